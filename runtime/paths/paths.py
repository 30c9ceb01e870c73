"""Paths to objects: from a frame's locals, a module's globals or sys.modules to the object that a guard or an input means."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from precast.artifact_store.format.guards import Path, Step
from precast.artifact_store.format.tagged_constants import tag, untag
from precast.runtime.paths.fake_tensors import class_of

HOOKS_OF = {
    "_forward_hooks_with_kwargs": "_forward_hooks",
    "_forward_hooks_always_called": "_forward_hooks",
    "_forward_pre_hooks_with_kwargs": "_forward_pre_hooks",
}
"""By the name of a table of flags, that of the hooks which have them or not."""


def flagged(module: Any, name: str) -> tuple[int, ...]:
    """Positions of the hooks that are in a table of flags."""
    tables = module.__dict__
    return tuple(place for place, key in enumerate(tables[HOOKS_OF[name]]) if key in tables[name])


NAMESPACE = "<globals>"
"""Beside the contents of closure cells, which are named by identifiers: where the globals are no module's, their dict."""
CLOSURE = "<closure>"
"""And, of a function with free variables, the tuple of the cells."""


class PathError(LookupError):
    """The path leads nowhere in this process; the message says at which step."""


def resolve(path: Path, local_values: Mapping[str, Any], cells: Mapping[str, Any] | None = None) -> Any:
    """The object at `path`. `local_values`: the frame's locals; `cells`: contents of its closure cells (default: among the locals).

    Raises PathError when a step does not exist.
    """
    place = start(path[0], local_values, local_values if cells is None else cells)
    for position, step in enumerate(path[1:], 1):
        try:
            place = walk(place, step)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, LookupError) as error:
            raise PathError(f"{describe(path[: position + 1])} does not exist ({type(error).__name__}: {error})") from None
    return place


def shared_steps(path: Sequence[Any], other: Sequence[Any]) -> int:
    """How many steps two paths begin with in common."""
    common = 0
    for step, other_step in zip(path, other, strict=False):
        if step != other_step:
            break
        common += 1
    return common


def resolve_all(paths: Iterable[Path], local_values: Mapping[str, Any], cells: Mapping[str, Any] | None = None) -> list[Any]:
    """The objects at `paths`; what a path has in common with the one before it is not walked again. Raises PathError."""
    found: list[Any] = []
    before: Path = ()
    places: list[Any] = []
    for path in paths:
        common = shared_steps(path, before)
        del places[common:]
        try:
            for step in path[common:]:
                places.append(walk(places[-1], step) if places else start(step, local_values, local_values if cells is None else cells))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            resolve(path, local_values, cells)  # raises the same, with the place
            raise
        before = path
        found.append(places[-1])
    return found


def start(root: Step, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> Any:
    """The object that a path's root names."""
    try:
        match root:
            case ("local", name):
                return local_values[name]
            case ("cell", name):
                return cells[name]
            case ("namespace",):
                return cells[NAMESPACE]
            case ("closure",):
                return cells[CLOSURE]
            case ("global", module, name):
                return _module(module).__dict__[name]
            case ("module", name):
                return _module(name)
            case ("builtin", name):
                return builtins.__dict__[name]
    except KeyError as error:
        raise PathError(f"{describe((root,))} does not exist ({error} is missing)") from None
    raise ValueError(f"unknown path root {root!r}")


def _module(name: str) -> Any:
    """The module; imported where it is not, since the traced code had imported it."""
    found = sys.modules.get(name)
    if found is not None:
        return found
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PathError(f"module {name} cannot be imported ({error})") from None


_ABSENT = object()


def item(place: Any, key: Any) -> Any:
    """`place[key]` as containers have it, whatever a subclass makes of that: a key that is absent is not made, as a defaultdict would."""
    if isinstance(place, dict):
        if (held := dict.get(place, key, _ABSENT)) is _ABSENT:
            raise KeyError(key)
        return held
    if isinstance(place, list):
        return list.__getitem__(place, key)
    if isinstance(place, tuple):
        return tuple.__getitem__(place, key)
    return place[key]


def _key(place: Any, position: int) -> Any:
    for key in itertools.islice(dict.keys(place), position, None):
        return key
    raise IndexError(f"there is no key {position}")


def _next(place: Any, position: int) -> Any:
    _, (sequence,), consumed = place.__reduce__()
    return sequence[consumed + position]


def _as_tensor(place: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(place)
    except RuntimeError as error:  # for None, say, where an earlier call had a number of numpy's
        raise TypeError(str(error)) from None


_STEPS: dict[str, Callable[..., Any]] = {
    "attr": getattr,
    "raw": object.__getattribute__,
    "dict": lambda place: place.__dict__,
    "item": lambda place, key: item(place, untag(key)),
    "key": _key,
    "hook": lambda place, position: list(place.values())[position],
    "flagged": flagged,
    "submodule": lambda place, name: place.__dict__["_modules"][name],
    "param": lambda place, name: place.__dict__["_parameters"][name],
    "buffer": lambda place, name: place.__dict__["_buffers"][name],
    "type": class_of,
    "closure": lambda place, i: place.__closure__[i].cell_contents,
    "default": lambda place, i: place.__defaults__[i],
    "kwdefault": lambda place, name: place.__kwdefaults__[name],
    "next": _next,
    "namedtuple_fields": lambda place: place._fields,
    "dataclass_fields": dataclasses.fields,
    "call": lambda place: place(),
    "method": lambda place, name: getattr(place, name)(),
    "get": lambda place, default: place.get(untag(default)),
    "as_tensor": _as_tensor,
}


def walk(place: Any, step: Step) -> Any:
    """One step from `place`. Raises what the step raises (AttributeError, KeyError …); an unknown step is a ValueError."""
    move = _STEPS.get(step[0])
    if move is None:
        raise ValueError(f"unknown path step {step!r}")
    return move(place, *step[1:])


def describe(path: Path) -> str:
    """The path as a person would write it: `self.transformer.h[0].ln_1.weight`."""
    text = ""
    for step in path:
        match step:
            case ("local" | "cell" | "builtin", name):
                text = str(name)
            case ("namespace",):
                text = "the code's own globals"
            case ("closure",):
                text = "the function's own cells"
            case ("global", module, name):
                text = f"{module}.{name}"
            case ("module", name):
                text = str(name)
            case ("constant", i):
                text = f"constant {i}"
            case ("state",):
                text = "torch's global state"
            case ("attr" | "raw" | "param" | "buffer" | "submodule", name):
                text += f".{name}" if str(name).isidentifier() else f"[{name}]"
            case ("item", key):
                text += f"[{describe_constant(key)}]"
            case ("key", i):
                text = f"key {i} of {text}"
            case ("type",):
                text = f"type({text})"
            case ("dict",):
                text += ".__dict__"
            case ("closure", i):
                text += f".__closure__[{i}]"
            case ("default", i):
                text += f".__defaults__[{i}]"
            case ("kwdefault", name):
                text += f".__kwdefaults__[{name!r}]"
            case ("method", name):
                text += f".{name}()"
            case ("call",):
                text += "()"
            case ("get", default):
                text += f".get({describe_constant(default)})"
            case ("hook", position):
                text = f"hook {position} of {text}"
            case ("flagged", name):
                text = f"the places of {text}.{name}"
            case ("as_tensor",):
                text = f"torch.as_tensor({text})"
            case ("random", i):
                text = f"random number {i}"
            case _:
                text += f"<{' '.join(map(str, step))}>"
    return text


def describe_constant(tagged: Any) -> str:
    """A tagged constant as Python would print it; falls back to its parts."""
    match tagged:
        case ("str", text):
            return repr(text)
        case ("float", text):
            return repr(float.fromhex(text))
        case ("none",):
            return "None"
        case ("object", name):
            return str(name)
        case ("enum", cls, name):
            return f"{cls.rpartition(':')[2]}.{name}"
        case ("tuple" | "size", items):
            return "(" + ", ".join(map(describe_constant, items)) + ("," if len(items) == 1 else "") + ")"
        case ("list", items):
            return "[" + ", ".join(map(describe_constant, items)) + "]"
        case ("set" | "frozenset", items):
            return "{" + ", ".join(map(describe_constant, items)) + "}"
        case ("dict", items):
            return "{" + ", ".join(f"{describe_constant(k)}: {describe_constant(v)}" for k, v in items) + "}"
        case ("dtype", name):
            return f"torch.{name}"
        case (_, value):
            return str(value)
        case _:
            return " ".join(map(str, tagged))


__all__ = [
    "HOOKS_OF",
    "PathError",
    "describe",
    "describe_constant",
    "flagged",
    "resolve",
    "resolve_all",
    "shared_steps",
    "start",
    "tag",
    "walk",
]
