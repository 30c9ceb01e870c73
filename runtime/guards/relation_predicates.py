"""Predicates about several objects at once, their identity and memory apart (`aliasing_predicates.py`), and about torch's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._device

from precast.artifact_store.format.expressions import evaluate as evaluate_expression
from precast.artifact_store.format.expressions import function_of, leaves, postfix, show_leaf, source, text
from precast.artifact_store.format.guards import Path, Predicate
from precast.runtime.common.eval_frame import GlobalStateGuard
from precast.runtime.guards.rule import SEVERAL_OBJECTS, Constant, Finding, Live, Opaque, Places, Recorder, RelationRule, Writer
from precast.runtime.paths.paths import describe
from precast.runtime.paths.torch_state import global_state

# -- GLOBAL_STATE


def _state(path: Path, wanted: Mapping[str, Any], places: Places) -> Finding:
    now = global_state()
    differ = sorted(k for k in {*now, *wanted} if now.get(k) != wanted.get(k))
    return not differ, ", ".join(f"{k} {wanted.get(k)}" for k in differ), ", ".join(f"{k} {now.get(k)}" for k in differ)


def _state_quick(path: Path, wanted: Constant, places: Places) -> bool:
    return bool(global_state() == wanted)


def _state_emit(writer: Writer, path: Path, wanted: Constant) -> Iterator[str]:
    yield f"{writer.name(global_state)}() != {writer.name(wanted)}"


def _state_record(recorder: Recorder, path: Path, wanted: Constant) -> None:
    """torch's state as cheap calls whose results have to stay what they are now."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise Opaque
    recorder.key(torch.utils._device.__dict__, "CURRENT_DEVICE")
    for function in (_state_check(), *_state_functions()):
        recorder.table.probe(function, function())


def _state_functions() -> tuple[Callable[[], Any], ...]:
    return (
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


# -- SAME_DEVICE


def strays(tensors: Sequence[torch.Tensor], index: int | None) -> int:
    """Position of the first tensor on another device than the first one, or than that of `index`; -1 where there is none."""
    found = [tensor.device.index for tensor in tensors]
    wanted = found[0] if index is None else index
    return next((i for i, other in enumerate(found) if other != wanted), -1)


def _same_device(path: Path, constant: Mapping[str, Any], places: Places) -> Finding:
    paths, index = constant["paths"], constant["index"]
    tensors = places.all(paths)
    stray = strays(tensors, index)
    if stray < 0:
        return True, "", ""
    wanted = f"on {tensors[0].device}, as {describe(paths[0])}" if index is None else f"on cuda:{index}, which the code names"
    return False, f"{describe(paths[stray])} to be {wanted}", f"it on {tensors[stray].device}"


def _same_device_emit(writer: Writer, path: Path, constant: Mapping[str, Any]) -> Iterator[str]:
    yield f"{writer.name(strays)}([{', '.join(map(writer.place, constant['paths']))}], {constant['index']}) >= 0"


def _same_device_record(recorder: Recorder, _: Path, constant: Mapping[str, Any]) -> None:
    """A tensor's device is among what an entry for its TENSOR guard compares."""
    for path in constant["paths"]:
        place = recorder.place(path)
        if not isinstance(place, Live):
            recorder.tensor(place)
        elif not recorder.compares_tensor(path):
            raise Opaque


def _same_device_words(constant: Mapping[str, Any]) -> str:
    where = "one GPU" if constant["index"] is None else f"cuda:{constant['index']}"
    return f"{', '.join(map(describe, constant['paths']))} on {where}"


# -- SHAPE


def _shape(path: Path, constant: Mapping[str, Any], places: Places) -> Finding:
    expression, paths = constant["expr"], constant["paths"]
    objects = places.all(paths)
    if evaluate_expression(expression, objects):
        return True, "", ""
    names = [describe(path) for path in paths]
    read = dict.fromkeys(leaves(expression))
    return False, text(expression, names), ", ".join(f"{show_leaf(leaf, names)} = {evaluate_expression(leaf, objects)}" for leaf in read)


def _shape_emit(writer: Writer, path: Path, constant: Mapping[str, Any]) -> Iterator[str]:
    variables = [writer.place(path) for path in constant["paths"]]

    def function(name: str) -> str:
        return writer.name(function_of(name))

    yield f"not ({source(constant['expr'], lambda leaf: show_leaf(leaf, variables), function)})"


def _shape_record(recorder: Recorder, path: Path, constant: Mapping[str, Any]) -> None:
    """A relation between numbers of the call. What objects that live on add to it is as it was recorded of them."""
    places = [recorder.place(path) for path in constant["paths"]]
    read = {leaf[1] for leaf in leaves(constant["expr"])}
    if any(isinstance(places[k], Live) and type(places[k].value) is float for k in read):
        raise Opaque  # the native runtime computes with integers only
    if all(isinstance(places[k], Live) for k in read):
        try:
            program = postfix(constant["expr"], lambda k: int(places[k].number))
        except ValueError as error:
            raise Opaque from error
        recorder.table.shape(tuple(program))
    elif any(isinstance(places[k], Live) for k in read):
        raise Opaque


RULES: dict[Predicate, RelationRule] = {
    Predicate.GLOBAL_STATE: RelationRule(evaluate=_state, quick=_state_quick, emit=_state_emit, record=_state_record, order=0),
    Predicate.SAME_DEVICE: RelationRule(
        evaluate=_same_device, emit=_same_device_emit, record=_same_device_record, order=SEVERAL_OBJECTS, words=_same_device_words
    ),
    Predicate.SHAPE: RelationRule(
        evaluate=_shape,
        emit=_shape_emit,
        record=_shape_record,
        keeps_memory_safe=True,
        words=lambda constant: text(constant["expr"], [describe(path) for path in constant["paths"]]),
    ),
}
