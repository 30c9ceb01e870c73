"""Predicates about one tensor: its metadata, its marks of dynamic dimensions, the device that it is on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from precast.artifact_store.format.guards import Path, Predicate
from precast.runtime.guards.rule import BEFORE_OTHERS, Constant, Covered, Finding, Live, Opaque, Recorder, ValueRule, Writer
from precast.runtime.guards.tensor_spec import MARKS, describe_tensor, spec_fits, spec_of
from precast.runtime.guards.value_predicates import shown, type_condition
from precast.runtime.native.kinds import Slot
from precast.runtime.targets.ladder import rules_of

# -- TENSOR


def _tensor(value: Any, spec: dict[str, Any]) -> Finding:
    if not isinstance(value, torch.Tensor):
        return False, f"a tensor {describe_tensor(spec)}", shown(value)
    found = spec_of(value)
    return spec_fits(spec, found), f"a tensor {describe_tensor(spec)}", f"a tensor {describe_tensor(found, spec)}"


def _tensor_quick(value: Any, spec: dict[str, Any]) -> bool:
    """The words of the rule take as long as the comparison, and a model has hundreds of tensors."""
    return isinstance(value, torch.Tensor) and spec_fits(spec, spec_of(value))


def _tensor_emit(writer: Writer, path: Path, spec: dict[str, Any]) -> Iterator[str]:
    place = writer.place(path)
    known = type_condition(writer, spec["type"], place)
    if known is None or spec["layout"] != "strided" or spec["conj"] or spec["neg"]:
        yield writer.judge(Predicate.TENSOR, place, spec)
        return
    parts = [
        known,
        f"{place}.dtype is not {writer.name(getattr(torch, spec['dtype']))}",
        f"{place}.device.type != {spec['device']!r}",
        f"{place}.requires_grad is not {spec['requires_grad']}",
        *_numbers(f"{place}.shape", spec["size"]),
        f"{place}.layout is not {writer.name(torch.strided)}",
        *_numbers(f"{place}.stride()", spec["stride"]),
        f"{place}.is_neg()",
    ]
    if spec["dtype"].startswith("complex"):
        parts.append(f"{place}.is_conj()")
    if spec["offset"] is not None:
        parts.append(f"{place}.storage_offset() != {spec['offset']}")
    yield " or ".join(parts)


def _numbers(place: str, wanted: tuple[int | None, ...]) -> list[str]:
    """Conditions under which sizes or strides differ from those wanted; None is free."""
    if None not in wanted:
        return [f"{place} != {wanted!r}"]
    return [f"len({place}) != {len(wanted)}", *(f"{place}[{i}] != {n}" for i, n in enumerate(wanted) if n is not None)]


def _tensor_record(recorder: Recorder, value: Any, _: Constant) -> None:
    recorder.tensor(value)


def _tensor_record_live(recorder: Recorder, place: Live, _: Path, spec: dict[str, Any]) -> None:
    size, stride = spec["size"], spec["stride"]
    plain = place.value.dim() == len(size) == len(stride)
    if not plain or not recorder.table.live_tensor(place.number, place.value, spec["requires_grad"], spec["offset"], size, stride):
        raise Opaque
    if place.value.__dict__:
        recorder.own_attributes(place)


# -- UNMARKED, MARKS


def _unmarked(value: Any, _: Constant) -> Finding:
    marks = MARKS.intersection(getattr(value, "__dict__", ()))
    return not marks, "a tensor without dynamic-shape marks", f"marks {', '.join(sorted(marks))}"


def _unmarked_quick(value: Any, _: Constant) -> bool:
    return MARKS.isdisjoint(getattr(value, "__dict__", ()))


def _unmarked_emit(writer: Writer, path: Path, _: Constant) -> Iterator[str]:
    place = writer.place(path)
    yield f"{place}.__dict__ and not {writer.name(MARKS)}.isdisjoint({place}.__dict__)"


def _marks(value: Any, allowed: dict[str, tuple[int, ...]]) -> Finding:
    found = {name: set(getattr(value, name)) for name in MARKS.intersection(getattr(value, "__dict__", ()))}
    holds = all(dims <= set(allowed.get(name, ())) for name, dims in found.items())
    return holds, f"no dynamic-shape marks beside {dict(allowed)}", f"marks {found}"


def _marks_record(recorder: Recorder, value: Any, _: Constant) -> None:
    recorder.slot(value, Slot.DICT)
    if value.__dict__:
        recorder.whole(value.__dict__)


# -- RUNS_ON


def _runs_on(value: torch.Tensor, target: str) -> Finding:
    return rules_of(target).runs_on(target, value.device)


_ON_TENSOR = Covered.SCALAR | Covered.TENSOR
RULES: dict[Predicate, ValueRule] = {
    Predicate.TENSOR: ValueRule(
        evaluate=_tensor,
        quick=_tensor_quick,
        emit=_tensor_emit,
        record=_tensor_record,
        record_tensor=_tensor_record_live,
        order=BEFORE_OTHERS,
        keeps_memory_safe=True,
    ),
    Predicate.UNMARKED: ValueRule(evaluate=_unmarked, quick=_unmarked_quick, emit=_unmarked_emit, record=_marks_record, covered=_ON_TENSOR),
    Predicate.MARKS: ValueRule(evaluate=_marks, record=_marks_record, covered=_ON_TENSOR),
    Predicate.RUNS_ON: ValueRule(evaluate=_runs_on, record=_tensor_record, covered=_ON_TENSOR),
}
