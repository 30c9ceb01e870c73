"""Recording what guards ask of a call's own values, of which each call brings others: entries of the table that `recorder.py` fills."""

from __future__ import annotations

from typing import Any

import torch

from precast.artifact_store.format.guards import Guard, Path
from precast.artifact_store.format.tagged_constants import untag
from precast.runtime.guards.predicates import VALUE_RULES
from precast.runtime.guards.rule import Covered, Live, Opaque, Recorder
from precast.runtime.guards.table.attribute_lookup import ABSENT, find_on_class, plain_lookup
from precast.runtime.guards.tensor_spec import MARKS
from precast.runtime.native.kinds import Kind

_SCALARS = (int, float, str, bytes)


def live_value(recorder: Recorder, number: int, value: Any, path: Path) -> Any:
    """The place of a value of the call: a Live where an entry compares it by value; anything else has to be this very object."""
    kind = type(value)
    if kind in _SCALARS:
        recorder.table.live(number, *((Kind.TYPE, kind) if recorder.compares_value_only_by_type(path) else (Kind.EQUAL, value)))
        return Live(number, value)
    if kind is tuple or kind is list:
        recorder.table.live(number, Kind.TUPLE if kind is tuple else Kind.LIST, len(value))
        return Live(number, value)
    if kind is dict and all(type(key) is str for key in value):
        first = recorder.table.fields(number, tuple(value))
        return Live(first, value, number)
    if isinstance(value, torch.Tensor):
        return Live(number, value)
    recorder.table.live(number, Kind.POINTER, value)
    return value


def live_step(recorder: Recorder, place: Live, path: Path) -> Any:
    """What the last step of a path leads to from such a value. Raises Opaque."""
    value = place.value
    match path[-1]:
        case ("attr", name) if isinstance(value, torch.Tensor) and name in value.__dict__:
            if find_on_class(type(value), name) is not ABSENT or not plain_lookup(type(value)):
                raise Opaque
            recorder.cls(type(value))
            position = list(value.__dict__).index(name)
            return live_value(recorder, recorder.own_attributes(place) + position, value.__dict__[name], path)
        case ("item", tagged) if isinstance(value, dict):
            key = untag(tagged)
            return live_value(recorder, place.number + list(value).index(key), value[key], path)
        case ("item", tagged) if isinstance(value, (tuple, list)):
            position = range(len(value))[untag(tagged)]
            return live_value(recorder, recorder.table.item(place.number, position), value[position], path)
        case ("key", position) if isinstance(value, dict):
            return list(value)[position]
        case ("type",):
            return type(value)  # part of what is checked of the value
    raise Opaque


def live_guard(recorder: Recorder, guard: Guard, path: Path, place: Live) -> None:
    """Record what a guard asks of such a value: nothing more where the entry of the value covers it. Raises Opaque."""
    rule = VALUE_RULES[guard.predicate]
    kind = _kind(place.value)
    if kind is Covered.TENSOR:
        if rule.record_tensor is not None:
            rule.record_tensor(recorder, place, path, guard.constant)
            return
        if not recorder.compares_tensor(path):
            raise Opaque
    if kind not in rule.covered:
        raise Opaque


def _kind(value: Any) -> Covered:
    if isinstance(value, torch.Tensor):
        return Covered.TENSOR
    if isinstance(value, dict):
        return Covered.MAPPING
    return Covered.SEQUENCE if isinstance(value, (tuple, list)) else Covered.SCALAR


def own_attributes(recorder: Recorder, place: Live) -> int:
    """Record the names and the order of the attributes that a tensor of the call has of its own; the number of the first. Raises Opaque."""
    names = tuple(place.value.__dict__)
    if not all(type(name) is str for name in names) or not MARKS.isdisjoint(names):
        raise Opaque  # no entry compares which dimensions a mark names
    number: int = recorder.table.fields(recorder.table.own(place.number), names)
    return number


__all__ = ["live_guard", "live_step", "live_value", "own_attributes"]
