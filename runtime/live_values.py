"""Recording what guards ask of a call's own values, which come fresh each time: entries of the table that `recorder.py` fills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from precast.artifact_store.constants import untag
from precast.artifact_store.guards import Guard, Path, Predicate
from precast.runtime.guard_rules import MARKS
from precast.runtime.native_kinds import Kind
from precast.runtime.objects import ABSENT, Opaque, find_on_class, lacks_on_class, plain_lookup
from precast.runtime.table_reads import Live

if TYPE_CHECKING:
    from precast.runtime.recorder import Recording

_SCALARS = (int, float, str, bytes)
_IN_SPEC = (Predicate.TYPE, Predicate.UNMARKED, Predicate.MARKS, Predicate.NOT_NONE, Predicate.RUNS_ON)
"""Guards on a call's tensor that ask for no more than its TENSOR guard has checked: class, device, no attributes but the known ones."""


def live_value(walk: Recording, number: int, value: Any, path: Path) -> Any:
    """A value of the call: what comes fresh each time is a Live; anything else has to be this very object."""
    kind = type(value)
    if kind in _SCALARS:
        walk.table.live(number, *((Kind.TYPE, kind) if path in walk.plan.free else (Kind.EQUAL, value)))
        return Live(number, value)
    if kind is tuple or kind is list:
        walk.table.live(number, Kind.TUPLE if kind is tuple else Kind.LIST, len(value))
        return Live(number, value)
    if kind is dict and all(type(key) is str for key in value):
        first = walk.table.fields(number, tuple(value))
        return Live(first, value, number)
    if isinstance(value, torch.Tensor):
        return Live(number, value)
    walk.table.live(number, Kind.POINTER, value)
    return value


def live_step(walk: Recording, place: Live, path: Path) -> Any:
    """What the last step of a path leads to from such a value. Raises Opaque."""
    value = place.value
    match path[-1]:
        case ("attr", name) if isinstance(value, torch.Tensor) and name in value.__dict__:
            if find_on_class(type(value), name) is not ABSENT or not plain_lookup(type(value)):
                raise Opaque
            walk.cls(type(value))
            return live_value(walk, _attributes(walk, place) + list(value.__dict__).index(name), value.__dict__[name], path)
        case ("item", tagged) if isinstance(value, dict):
            key = untag(tagged)
            return live_value(walk, place.number + list(value).index(key), value[key], path)
        case ("item", tagged) if isinstance(value, (tuple, list)):
            position = range(len(value))[untag(tagged)]
            return live_value(walk, walk.table.item(place.number, position), value[position], path)
        case ("key", position) if isinstance(value, dict):
            return list(value)[position]
        case ("type",):
            return type(value)  # part of what is checked of the value
    raise Opaque


def live_guard(walk: Recording, guard: Guard, path: Path, place: Live) -> None:
    """What a guard asks of such a value. Raises Opaque."""
    value = place.value
    if isinstance(value, torch.Tensor):
        specs = [walk.plan.guards[i].constant for i in walk.plan.at[path] if walk.plan.guards[i].predicate is Predicate.TENSOR]
        if guard.predicate is Predicate.TENSOR:
            _tensor(walk, place, guard.constant)
        elif guard.predicate is Predicate.LACKS_ATTR and specs and not value.__dict__:
            if not lacks_on_class(type(value), guard.constant, walk):
                raise Opaque
            return  # and the tensor check admits no attributes of the tensor's own
        elif guard.predicate is Predicate.LACKS_OWN and specs:
            return  # nor others than those that it has now
        elif not specs or guard.predicate not in _IN_SPEC or not MARKS.isdisjoint(value.__dict__):
            raise Opaque  # the table reads how many attributes there are, and not which dimensions a mark names
        return
    if type(value) in _SCALARS:
        if guard.predicate is Predicate.IS:
            raise Opaque  # equal, and perhaps not the same object
        return
    checked = (Predicate.TYPE, Predicate.LENGTH, Predicate.NOT_NONE, Predicate.EMPTY)
    of_keys = (Predicate.KEYS, Predicate.HAS_KEY, Predicate.LACKS_KEY)
    if guard.predicate not in checked and not (isinstance(value, dict) and guard.predicate in of_keys):
        raise Opaque


def _tensor(walk: Recording, place: Live, spec: Mapping[str, Any]) -> None:
    size, stride = spec["size"], spec["stride"]
    plain = place.value.dim() == len(size) == len(stride)
    if not plain or not walk.table.live_tensor(place.number, place.value, spec["requires_grad"], spec["offset"], size, stride):
        raise Opaque
    if place.value.__dict__:
        _attributes(walk, place)


def _attributes(walk: Recording, place: Live) -> int:
    """The number of the first of a tensor's own attributes, which have to be of these names and in this order."""
    if place.number not in walk.own_fields:
        names = tuple(place.value.__dict__)
        if not all(type(name) is str for name in names) or not MARKS.isdisjoint(names):
            raise Opaque
        walk.own_fields[place.number] = walk.table.fields(walk.table.own(place.number), names)
    return walk.own_fields[place.number]


__all__ = ["live_guard", "live_step", "live_value"]
