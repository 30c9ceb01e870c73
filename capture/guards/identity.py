"""Guards on object identity: paths that led to one object while tracing lead to one object, and paths to different objects to different
ones.

Dynamo treats an object that several paths lead to as one: what is written through one path is read through the other, and `a is b` is a
constant. It guards that such paths lead to one object; that other paths lead to different objects it guards for tensor arguments only.
This module guards both for every object that the traced code accessed and that a program can tell from an equal one. Device meshes and
the placements of DTensors are compared by what they say; which of them are one object depends on what torch's caches hold.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy
import torch

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.import_names import type_name
from precast.capture.adapters.dtensors import is_mesh, is_placement
from precast.capture.common.source_paths import SourceContext
from precast.runtime.fingerprint.classes import is_versioned
from precast.runtime.paths.fake_tensors import class_of
from precast.runtime.paths.paths import PathError

_CONSTANTS = (
    *(int, float, complex, str, bytes, bool, type(None), type(Ellipsis), type(NotImplemented), range, enum.Enum, re.Pattern),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme, torch.finfo, torch.iinfo),
    *(numpy.generic, numpy.dtype, types.ModuleType, types.CodeType),
)
"""Types without an identity that counts: values that the interpreter may share or copy, and objects that are identified by name or text."""
_OF_CLASSES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    property,
    staticmethod,
    classmethod,
)
"""Types of class members, which guards on classes cover."""
_CELL = type_name(types.CellType)
"""The type of the items of a function's closure."""
_TYPED = (Predicate.TYPE, Predicate.TENSOR)


def identity_guards(met: Iterable[Path], guards: Sequence[Guard], sources: SourceContext, compared: Collection[Path] = ()) -> list[Guard]:
    """For the objects at the paths `met`: SAME_AS where several paths lead to one, and NOT_ALIASED for the different objects of each
    type.

    `compared`: paths of constants that count nevertheless, since the traced code compared them by `is`. `guards`: those of the frame so
    far. Objects of different types cannot be one; where no guard fixes the type of an object, one is added.
    """
    found = _objects(met, sources, compared)
    pinned = {guard.path for guard in guards if guard.predicate is Predicate.IS and "<locals>" not in guard.constant}
    codes = {guard.path: guard.constant for guard in guards if guard.predicate is Predicate.CODE}
    typed = {guard.path for guard in guards if guard.predicate in _TYPED}
    same: list[Guard] = []
    kinds: dict[tuple[str, Any], list[Path]] = {}
    for value, paths in found:
        first, *others = paths
        if not pinned.issuperset(paths):
            same += [Guard(other, Predicate.SAME_AS, first) for other in others]
        kinds.setdefault((type_name(class_of(value)), codes.get(first)), []).append(first)
    kept: list[Guard] = []
    for (name, code), paths in kinds.items():
        if len(paths) < 2 or pinned.issuperset(paths):
            continue  # one object, or objects that are known by their names
        if code is None and name != _CELL:
            kept += [Guard(path, Predicate.TYPE, name) for path in paths if path not in typed and path[-1] != ("dict",)]
        kept.append(Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": tuple(paths), "mutated": (), "others": ()}))
    return [*same, *kept]


def _objects(met: Iterable[Path], sources: SourceContext, compared: Collection[Path]) -> list[tuple[Any, list[Path]]]:
    """The objects whose identity counts, each with its paths, both in the order of the paths."""
    kept: dict[int, tuple[Any, list[Path]]] = {}
    for path in sorted(set(met), key=repr):
        try:
            value = sources.value(path)
            lasts = sources.value(path) is value
        except PathError:
            continue  # nothing is there before the call
        if lasts and (path in compared or _counts(path, value)):  # what each look makes anew is no other object's double
            kept.setdefault(id(value), (value, []))[1].append(path)
    return list(kept.values())


def _counts(path: Path, value: Any) -> bool:
    """Whether the object has an identity that counts, and no guard of another kind determines it."""
    if not has_identity(value) or (isinstance(value, types.FunctionType) and ("type",) in path):
        return False
    return not (callable(value) and not isinstance(value, torch.nn.Module) and _of_library(path))


def has_identity(value: Any) -> bool:
    """Whether a program can tell the object from an equal one. Objects with a qualified name are identified by that."""
    if isinstance(value, type):
        return "<locals>" in type_name(value)
    return not isinstance(value, _OF_CLASSES) and not _constant(value)


def _constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_constant, value))
    if isinstance(value, slice):
        return all(map(_constant, (value.start, value.stop, value.step)))
    return isinstance(value, _CONSTANTS) or is_mesh(value) or is_placement(value)


def _of_library(path: Path) -> bool:
    """Whether the path leads through torch or the standard library, whose versions are part of every artifact's key."""
    root = path[0]
    return root[0] == "builtin" or (root[0] in ("global", "module") and is_versioned(root[1]))


__all__ = ["has_identity", "identity_guards"]
