"""What traced code learns of processes that train together: ranks, numbers of processes, names of groups.

Dynamo puts the answers into the graph as constants and guards none of them. The artifact of one rank would then serve another, with the
rank of the first. Noted here are the questions: each becomes a guard that asks again, so that code that asks nothing has one artifact for
all ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.import_names import Untaggable, type_name
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.adapters.variables import OpaqueObjectVariable, TorchInGraphFunctionVariable
from precast.capture.common.patching import patched
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.runtime.paths.paths import PathError

_HOME = "torch.distributed.distributed_c10d"
_METHODS = {"get_rank": "rank", "get_world_size": "size", "_get_group_size_by_name": "size"}
"""Functions that ask a group what its method of this name answers."""
_QUESTIONS = (
    "is_initialized",
    "get_rank",
    "get_world_size",
    "_get_group_size_by_name",
    "_get_group_tag",
    "_rank_not_in_group",
    "get_process_group_ranks",
    "_resolve_group_name_by_ranks_and_tag",
)
"""Functions of torch.distributed that Dynamo calls while it traces, for the result."""


@dataclass
class Questions:
    """What was asked while one frame was traced."""

    plain: dict[str, None] = field(default_factory=dict)
    """Functions of torch.distributed without arguments."""
    methods: dict[tuple[Any, str], None] = field(default_factory=dict)
    """(source of a group or a mesh, method without arguments)."""
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = field(default_factory=list)
    """Functions with constant arguments: function, arguments, keywords, result."""
    problems: list[str] = field(default_factory=list)
    """What cannot be asked again."""

    def guards(self, sources: SourceContext) -> tuple[list[Guard], list[str]]:
        """A guard for each question, and sentences for those that have none. Must run before the frame's bytecode."""
        asked: list[Path] = [(("global", _HOME, name), ("call",)) for name in self.plain]
        found, problems = [], list(self.problems)
        for source, name in self.methods:
            try:
                asked.append((*sources.path(source), ("method", name)))
            except (NotPortable, PathError) as error:
                problems.append(f"the traced code asks a process group for its {name}: {error}")
        for path in asked:
            try:
                found.append(Guard(path, Predicate.EQUALS, tag(sources.value(path))))
            except (Untaggable, PathError) as error:
                problems.append(f"the traced code asks a process group: {error}")
        return found, problems


@contextlib.contextmanager
def recorded_questions(asked: Questions) -> Iterator[None]:
    """Notes, while a frame is traced, which functions of torch.distributed answer with a constant."""
    original = TorchInGraphFunctionVariable.call_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if _is_question(self.value):
            _note(asked, self.value, args, kwargs)
        return original(self, tx, args, kwargs)

    with patched(TorchInGraphFunctionVariable, "call_function", call_function):
        yield


@contextlib.contextmanager
def recorded_members(asked: Questions) -> Iterator[None]:
    """Notes, while a frame is traced, which methods of groups and meshes answer with a constant."""
    original = OpaqueObjectVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if is_group(_real(self)) and not name.startswith("__"):
            if self.source is None or args or kwargs:
                what = f"{type(_real(self)).__name__}.{name}"
                asked.problems.append(
                    f"the traced code calls {what} with arguments, or on one that it made, and takes the answer as constant"
                )
            else:
                asked.methods[self.source, name] = None
        return original(self, tx, name, args, kwargs)

    with patched(OpaqueObjectVariable, "call_method", call_method):
        yield


def is_group(value: Any) -> bool:
    """Whether it is a process group or a device mesh, in a torch whose tracer has their methods in one place (2.12)."""
    if OpaqueObjectVariable is None or not torch.distributed.is_available():
        return False
    from torch.distributed.device_mesh import DeviceMesh  # few programs have one: spare the others its import

    return isinstance(value, torch.distributed.ProcessGroup | DeviceMesh)


def group_guards(path: Path, value: Any) -> list[Guard]:
    """What another group, or mesh, has to be like to pass for this one. Names are in graphs, and say which group is which.

    Raises Untaggable.
    """
    if isinstance(value, torch.distributed.ProcessGroup):
        return [Guard(path, Predicate.TYPE, type_name(type(value))), _equal(path, value, "group_name")]
    root, flattened = (*path, ("method", "_get_root_mesh"), ("attr", "_flatten_mapping")), value._get_root_mesh()._flatten_mapping
    guards = [Guard(path, Predicate.TYPE, type_name(type(value))), *(_equal(path, value, name) for name in _MESH)]
    guards.append(Guard(root, Predicate.KEYS, {"keys": tuple(sorted(map(tag, flattened), key=repr)), "ordered": False}))
    return guards + [_equal((*root, ("item", tag(key))), mesh, "_dim_group_names") for key, mesh in sorted(flattened.items())]


_MESH = ("_flatten_rank_map", "shape", "_device_type", "_mesh_dim_names", "_dim_group_names")


def _equal(path: Path, value: Any, name: str) -> Guard:
    return Guard((*path, ("attr", name)), Predicate.EQUALS, tag(getattr(value, name)))


def _is_question(function: Any) -> bool:
    if not torch.distributed.is_available():
        return False
    return any(function is getattr(torch.distributed.distributed_c10d, name, None) for name in _QUESTIONS)


def _note(asked: Questions, function: Any, args: Any, kwargs: Any) -> None:
    name = function.__name__
    if not args and not kwargs:
        asked.plain[name] = None
        return
    given = [*args, *kwargs.values()]
    method = _METHODS.get(name)
    if method and len(given) == 1 and is_group(_real(given[0])) and given[0].source is not None:
        asked.methods[given[0].source, method] = None
        return
    try:
        values, named = [a.as_python_constant() for a in args], {key: a.as_python_constant() for key, a in kwargs.items()}
        asked.calls.append((function, tuple(values), named, function(*values, **named)))
    except NotImplementedError:
        asked.problems.append(f"the traced code asks torch.distributed.{name} of a process group, and takes the answer as constant")


def _real(variable: Any) -> Any:
    """The object that a variable of Dynamo's stands for, where it is one that the graph takes whole."""
    if OpaqueObjectVariable is None or not isinstance(variable, OpaqueObjectVariable):
        return None
    return getattr(variable.value, "real_obj", variable.value)


__all__ = ["Questions", "group_guards", "is_group", "recorded_members", "recorded_questions"]
