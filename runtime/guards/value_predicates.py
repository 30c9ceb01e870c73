"""Predicates about what an object is: its class, its value, its identity."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Any

import torch

from precast.artifact_store.format.guards import Path, Predicate
from precast.artifact_store.format.import_names import Untaggable, find_object, is_method_of_object, named, same_object, type_name
from precast.artifact_store.format.tagged_constants import equals, tag
from precast.runtime.guards.rule import Constant, Covered, Finding, Opaque, Recorder, ValueRule, Writer
from precast.runtime.guards.tensor_spec import describe_tensor, spec_of
from precast.runtime.native.kinds import Slot
from precast.runtime.paths.fake_tensors import class_of
from precast.runtime.paths.paths import describe_constant

_BASES = {"int": int, "bigint": int, "float": float, "str": str, "bytes": bytes, "complex": complex}
_PLAIN = {"int": int, "bool": bool, "str": str}
_CONTAINERS = ("dict", "list", "tuple")
IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), range, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Classes whose objects never change."""


def shown(value: Any) -> str:
    """An object in a few words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {describe_tensor(spec_of(value))}"
    try:
        return describe_constant(tag(value))[:120]
    except Untaggable:
        return f"an object of type {type_name(type(value))}"


# -- TYPE, IS


def _type(value: Any, name: str) -> Finding:
    cls = class_of(value)
    found = type_name(cls)
    if found == name and not _stands(cls, name):
        return False, f"type {name}", "another class of that name"
    return found == name, f"type {name}", f"type {found}"


def _stands(cls: type, name: str) -> bool:
    """Whether a class of this name is the one that stands there, where any does: one that was shadowed is another class."""
    if "<locals>" in name:
        return True
    try:
        found = find_object(name)
    except LookupError:
        return True
    return found is cls or not isinstance(found, type)  # `sys.version_info` is an object, and its class bears the name


def _is(value: Any, name: str) -> Finding:
    if isinstance(value, type) and "<locals>" in name:
        holds = type_name(value) == name
    else:
        try:
            holds = same_object(find_object(name), value) and named(value, name)
        except LookupError:
            holds = False
    return holds, name, shown(value)


def _object_under(name: str) -> Any:
    """The object that generated code may compare with by identity. Raises LookupError where the name has to be looked up at each check."""
    if "<locals>" in name:
        raise LookupError(name)
    found = find_object(name)  # raises LookupError where its module is not loaded yet
    if isinstance(found, types.MethodType) or is_method_of_object(found) or not named(found, name):
        raise LookupError(name)  # a method is made anew at each look-up; and something else may stand under the name for a while
    return found


def type_condition(writer: Writer, name: str, place: str) -> str | None:
    """The condition under which the object in the variable `place` is not of this class; None where no name tells the class by now."""
    try:
        return f"type({place}) is not {writer.name(_object_under(name))}"
    except LookupError:
        return None


def _type_emit(writer: Writer, path: Path, name: str) -> Iterator[str]:
    place = writer.place(path)
    yield type_condition(writer, name, place) or writer.judge(Predicate.TYPE, place, name)


def _is_emit(writer: Writer, path: Path, name: str) -> Iterator[str]:
    place = writer.place(path)
    try:
        yield f"{place} is not {writer.name(_object_under(name))}"
    except LookupError:
        yield writer.judge(Predicate.IS, place, name)


def _type_record(recorder: Recorder, value: Any, _: Constant) -> None:
    recorder.slot(value, Slot.TYPE)


def _by_identity(recorder: Recorder, value: Any, _: Constant) -> None:
    """Nothing more than the entry that compares the object's identity, which every place has."""


# -- EQUALS, BASE_EQUALS


def _equals(value: Any, constant: Constant) -> Finding:
    return equals(value, constant), describe_constant(constant), shown(value)


def _equals_quick(value: Any, constant: Constant) -> bool:
    if constant[0] == "none":
        return value is None
    plain = _PLAIN.get(constant[0])
    if plain is not None:
        return type(value) is plain and bool(value == constant[1])
    return equals(value, constant)


def _base_equals(value: Any, constant: Constant) -> Finding:
    base = _BASES[constant[0]]
    return isinstance(value, base) and equals(base(value), constant), describe_constant(constant), shown(value)


def _equals_emit(writer: Writer, path: Path, constant: Constant) -> Iterator[str]:
    return _unequal(writer, writer.place(path), constant)


def _unequal(writer: Writer, place: str, constant: Constant) -> Iterator[str]:
    """Conditions under which an object differs from a tagged constant; of a list, tuple or dict one part after the other."""
    kind, parts = constant[0], constant[1] if len(constant) > 1 else ()
    if kind not in _CONTAINERS or (kind == "dict" and any(key[0] != "str" for key, _ in parts)):
        yield _unequal_scalar(writer, place, constant) or f"not {writer.name(equals)}({place}, {writer.name(constant)})"
        return
    keys = [key[1] for key, _ in parts] if kind == "dict" else list(range(len(parts)))
    held = [part for _, part in parts] if kind == "dict" else parts
    yield f"type({place}) is not {kind} or " + (f"[*{place}] != {keys!r}" if kind == "dict" else f"len({place}) != {len(parts)}")
    for key, part in zip(keys, held, strict=True):
        yield from _unequal(writer, writer.assign(f"{place}[{key!r}]"), part)


def _unequal_scalar(writer: Writer, place: str, constant: Constant) -> str | None:
    match constant:
        case ("none",):
            return f"{place} is not None"
        case ("bool", value):
            return f"{place} is not {value}"
        case ("int", value):
            return f"type({place}) is not int or {place} != {value}"
        case ("str", value):
            return f"type({place}) is not str or {place} != {value!r}"
        case ("float", text) if (value := float.fromhex(text)) == value and value not in (0.0, float("inf"), float("-inf")):
            return f"type({place}) is not float or {place} != {value!r}"
        case ("dtype", name):
            return f"{place} is not {writer.name(getattr(torch, name))}"
    return None


def _equals_record(recorder: Recorder, value: Any, _: Constant) -> None:
    """Nothing more of an immutable object: it stays the same object."""
    if is_immutable(value):
        return
    if type(value) is list and all(map(is_immutable, value)):
        recorder.once("items", value)
    elif type(value) is dict and all(map(is_immutable, value.values())):
        recorder.whole(value)
    else:
        raise Opaque


def _base_equals_record(recorder: Recorder, value: Any, constant: Constant) -> None:
    if not isinstance(value, (int, float, complex, str, bytes)):
        _equals_record(recorder, value, constant)


def is_immutable(value: Any) -> bool:
    """Whether an object, and all that it holds, stays equal to itself as long as it lives."""
    kind = type(value)
    if kind in IMMUTABLE or isinstance(value, (enum.Enum, type)):
        return True
    if kind is tuple or kind is frozenset or kind is torch.Size:
        return all(map(is_immutable, value))
    if kind is types.UnionType or kind is types.GenericAlias:
        return all(map(is_immutable, value.__args__))
    if kind is slice:
        return all(map(is_immutable, (value.start, value.stop, value.step)))
    return False


# -- NOT_NONE


def _not_none_emit(writer: Writer, path: Path, _: Constant) -> Iterator[str]:
    yield f"{writer.place(path)} is None"


_EVERYWHERE = Covered.SCALAR | Covered.SEQUENCE | Covered.MAPPING | Covered.TENSOR | Covered.CLASS_DICT
RULES: dict[Predicate, ValueRule] = {
    Predicate.TYPE: ValueRule(evaluate=_type, emit=_type_emit, record=_type_record, covered=_EVERYWHERE, of_class=True),
    Predicate.IS: ValueRule(evaluate=_is, emit=_is_emit, record=_by_identity, covered=Covered.NOTHING),
    Predicate.EQUALS: ValueRule(
        evaluate=_equals, quick=_equals_quick, emit=_equals_emit, record=_equals_record, order=1, words=describe_constant
    ),
    Predicate.BASE_EQUALS: ValueRule(evaluate=_base_equals, record=_base_equals_record, words=describe_constant),
    Predicate.NOT_NONE: ValueRule(
        evaluate=lambda value, _: (value is not None, "an object", "None"),
        quick=lambda value, _: value is not None,
        emit=_not_none_emit,
        record=_by_identity,
        covered=_EVERYWHERE,
        of_class=True,
    ),
}
