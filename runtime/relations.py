"""Recording what guards ask of several values at once, and of torch's state: entries of the table that `recorder.py` fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._device

from precast.artifact_store.expressions import leaves, postfix
from precast.artifact_store.guards import Guard, Path, Predicate
from precast.runtime.class_digest import functions_described
from precast.runtime.eval_frame import GlobalStateGuard
from precast.runtime.guard_rules import joined, span
from precast.runtime.native_kinds import Kind, Slot
from precast.runtime.objects import Opaque
from precast.runtime.table_reads import Live

if TYPE_CHECKING:
    from precast.runtime.recorder import Recording

RELATIONS = (
    Predicate.SAME_AS,
    Predicate.NOT_ALIASED,
    Predicate.SAME_DEVICE,
    Predicate.GLOBAL_STATE,
    Predicate.CLASSES,
    Predicate.SHAPE,
)
_MAX_PAIRS = 64


def relation(walk: Recording, guard: Guard) -> None:
    """Record what a guard of one of `RELATIONS` asks. Raises Opaque where the table has no entry for it."""
    if guard.predicate is Predicate.GLOBAL_STATE:
        _state(walk)
    elif guard.predicate is Predicate.SAME_AS:
        _same(walk, walk.place(guard.path), walk.place(guard.constant))
    elif guard.predicate is Predicate.SAME_DEVICE:
        for path in guard.constant["paths"]:
            _device(walk, path, walk.place(path))
    elif guard.predicate is Predicate.CLASSES:
        _resolved(walk, guard.constant)
    elif guard.predicate is Predicate.SHAPE:
        _shape(walk, guard.constant)
    else:
        if guard.constant["mutated"]:
            _apart(walk, guard.constant)
        _distinct(walk, guard.constant["distinct"])


def _device(walk: Recording, path: Path, place: Any) -> None:
    """A tensor's device is among what its TENSOR guard has recorded."""
    if isinstance(place, Live):
        if not any(walk.plan.guards[i].predicate is Predicate.TENSOR and i not in walk.opaque for i in walk.plan.at.get(path, ())):
            raise Opaque
    else:
        walk.tensor(place)


def _resolved(walk: Recording, constant: Mapping[str, Any]) -> None:
    """A class's version covers what it and its bases define, but not the code in a function that stays the same object."""
    classes = [walk.place(path) for path, _, _ in constant["classes"]]
    if not all(isinstance(cls, type) for cls in classes):
        raise Opaque
    for cls in classes:
        walk.slot(cls, Slot.TYPE)  # whose attributes the class's own are looked up on
        walk.cls(cls)
    for function in functions_described(constant, classes):
        walk.slot(function, Slot.CODE)


def _same(walk: Recording, one: Any, other: Any) -> None:
    """Two that live on are one as long as each is the object that it was."""
    if isinstance(one, Live) and isinstance(other, Live):
        walk.table.live(one.whole, Kind.SAME, other.whole)
    elif isinstance(one, Live) or isinstance(other, Live):
        live, lasting = (one, other) if isinstance(one, Live) else (other, one)
        walk.table.live(live.whole, Kind.POINTER, lasting)


def _distinct(walk: Recording, paths: Sequence[Path]) -> None:
    """Those that live on are pairwise different as long as each is the object that it was; only what comes with the call is compared."""
    places = [walk.place(path) for path in paths]
    fresh = tuple(place.whole for place in places if isinstance(place, Live))
    if fresh:
        walk.table.distinct(fresh, tuple(place for place in places if not isinstance(place, Live)))


def _apart(walk: Recording, paths: Mapping[str, Any]) -> None:
    """What the graph writes shares no memory with other inputs. Among tensors that live on that is so while they lie where they do."""
    written = [walk.place(path) for path in paths["mutated"]]
    read = [walk.place(path) for path in paths["others"]]
    if not all(isinstance(place.value if isinstance(place, Live) else place, torch.Tensor) for place in (*written, *read)):
        raise Opaque
    ranges = []
    for places in (written, [*written, *read]):
        fixed = [place for place in places if not isinstance(place, Live)]
        for tensor in fixed:
            walk.tensor(tensor)
            walk.once("data", tensor)
        ranges.append(joined(span(tensor) for tensor in fixed))
    fresh = [(place, i < len(written)) for i, place in enumerate((*written, *read)) if isinstance(place, Live)]
    if len(fresh) ** 2 > _MAX_PAIRS:
        raise Opaque
    for i, (place, writes) in enumerate(fresh):
        walk.table.apart(place.number, (place.value.element_size(), *ranges[writes]))
        for other, also_writes in fresh[:i]:
            if writes or also_writes:
                walk.table.apart(place.number, (place.value.element_size(), other.value.element_size()), other.number)


def _shape(walk: Recording, constant: Mapping[str, Any]) -> None:
    """A relation between numbers of the call. What objects that live on add to it is as it was recorded of them."""
    places = [walk.place(path) for path in constant["paths"]]
    read = {leaf[1] for leaf in leaves(constant["expr"])}
    if any(isinstance(places[k], Live) and type(places[k].value) is float for k in read):
        raise Opaque  # the native runtime computes with integers only
    if all(isinstance(places[k], Live) for k in read):
        try:
            program = postfix(constant["expr"], lambda k: int(places[k].number))
        except ValueError as error:
            raise Opaque from error
        walk.table.shape(tuple(program))
    elif any(isinstance(places[k], Live) for k in read):
        raise Opaque


def _state(walk: Recording) -> None:
    """torch's state as cheap calls whose results have to stay what they are now."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise Opaque
    walk.key(torch.utils._device.__dict__, "CURRENT_DEVICE")
    for function in (_state_check(), *_STATE):
        walk.table.probe(function, function())


_STATE = (
    torch._C._len_torch_function_stack,
    torch._C._len_torch_dispatch_stack,
    torch.is_inference_mode_enabled,
    torch._C._is_torch_function_all_disabled,
    torch._C._get_float32_matmul_precision,
)


def _state_check() -> Callable[[], Any]:
    """A function that says whether grad mode, autocast, deterministic algorithms, default dtype, … are what they are now."""
    check: Callable[[], Any] = GlobalStateGuard().check  # C code: no part of the tracer
    return check


__all__ = ["RELATIONS", "relation"]
