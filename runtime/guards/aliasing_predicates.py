"""Predicates about which objects of a call are one and the same, and which tensors share memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from precast.artifact_store.format.guards import Path, Predicate
from precast.runtime.guards.rule import SEVERAL_OBJECTS, Finding, Live, Opaque, Places, Recorder, RelationRule, Writer
from precast.runtime.native.kinds import Kind
from precast.runtime.paths.fake_tensors import address
from precast.runtime.paths.paths import describe

Labelled = Sequence[tuple[Any, Any]]
"""(label, object) pairs."""

# -- SAME_AS


def _same_as(path: Path, other: Path, places: Places) -> Finding:
    holds = places.at(path) is places.at(other)
    return holds, f"the same object as {describe(other)}", "another; the artifact was made for one object"


def _same_as_emit(writer: Writer, path: Path, other: Path) -> Iterator[str]:
    yield f"{writer.place(path)} is not {writer.place(other)}"


def _same_as_record(recorder: Recorder, path: Path, constant: Path) -> None:
    """Two that live on are one as long as each is the object that it was."""
    one, other = recorder.place(path), recorder.place(constant)
    if isinstance(one, Live) and isinstance(other, Live):
        recorder.table.live(one.whole, Kind.SAME, other.whole)
    elif isinstance(one, Live) or isinstance(other, Live):
        live, lasting = (one, other) if isinstance(one, Live) else (other, one)
        recorder.table.live(live.whole, Kind.POINTER, lasting)


# -- NOT_ALIASED


def aliased(distinct: Labelled, mutated: Labelled, others: Labelled) -> tuple[Any, Any] | None:
    """The labels of the first two objects that break the rule of NOT_ALIASED, or None."""
    return one_object(distinct) or overlapping(mutated, others)


def one_object(distinct: Labelled) -> tuple[Any, Any] | None:
    """The labels of the first two that are one and the same object, or None."""
    seen: dict[int, Any] = {}
    for label, value in distinct:
        if id(value) in seen:
            return seen[id(value)], label
        seen[id(value)] = label
    return None


def overlapping(mutated: Labelled, others: Labelled) -> tuple[Any, Any] | None:
    """The labels of the first two tensors that share memory, of which one at least is among `mutated`, or None."""
    spans = [(*span(v), p, True) for p, v in mutated] + [(*span(v), p, False) for p, v in others] if mutated else []
    spans.sort(key=lambda s: s[:2])
    open_end, written_end = -1, -1
    open_path: Path | None = None
    written_path: Path | None = None
    for start, end, path, written in spans:
        if start == end:
            continue
        if start < written_end and written_path is not None:
            return written_path, path
        if written and start < open_end and open_path is not None:
            return open_path, path
        if end > open_end:
            open_end, open_path = end, path
        if written and end > written_end:
            written_end, written_path = end, path
    return None


def joined(spans: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """The bytes in any of the spans, as sorted disjoint ranges: start, end, start, end, …"""
    found: list[int] = []
    for start, end in sorted(s for s in spans if s[0] != s[1]):
        if found and start <= found[-1]:
            found[-1] = max(found[-1], end)
        else:
            found += (start, end)
    return tuple(found)


def span(value: torch.Tensor) -> tuple[int, int]:
    """First byte and one past the last byte that the tensor can reach; equal for an empty one."""
    if value.numel() == 0:
        return (0, 0)
    start = address(value)
    reach = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return start, start + (reach + 1) * value.element_size()


def _not_aliased(path: Path, constant: Mapping[str, Sequence[Path]], places: Places) -> Finding:
    named = {key: list(zip(paths, places.all(paths), strict=True)) for key, paths in constant.items()}
    double = one_object(named["distinct"])
    if double is not None:
        first, second = map(describe, double)
        return False, f"{first} and {second} to be two objects", "that they are one; the artifact was made for two"
    clash = overlapping(named["mutated"], named["others"])
    if clash is None:
        return True, "", ""
    first, second = map(describe, clash)
    return False, f"{first} and {second} to be different tensors that share no memory", "that they do"


def _not_aliased_quick(path: Path, constant: Mapping[str, Sequence[Path]], places: Places) -> bool:
    if constant["mutated"]:
        return _not_aliased(path, constant, places)[0]
    paths = constant["distinct"]
    return len(set(map(id, places.all(paths)))) == len(paths)


def _not_aliased_emit(writer: Writer, path: Path, constant: Mapping[str, Sequence[Path]]) -> Iterator[str]:
    variables = {key: [writer.place(p) for p in constant[key]] for key in ("distinct", "mutated", "others")}
    distinct = variables["distinct"]
    if variables["mutated"]:
        pairs = (f"[{', '.join(f'(0, {p})' for p in found)}]" for found in variables.values())
        yield f"{writer.name(aliased)}({', '.join(pairs)}) is not None"
    elif len(distinct) == 2:
        yield f"{distinct[0]} is {distinct[1]}"
    else:
        yield f"len({{{', '.join(f'id({p})' for p in distinct)}}}) != {len(distinct)}"


def _not_aliased_record(recorder: Recorder, path: Path, constant: Mapping[str, Sequence[Path]]) -> None:
    if constant["mutated"]:
        _apart_record(recorder, constant)
    _distinct_record(recorder, constant["distinct"])


def _distinct_record(recorder: Recorder, paths: Sequence[Path]) -> None:
    """Those that live on are pairwise different as long as each is the object that it was; only what comes with the call is compared."""
    places = [recorder.place(path) for path in paths]
    fresh = tuple(place.whole for place in places if isinstance(place, Live))
    if fresh:
        recorder.table.distinct(fresh, tuple(place for place in places if not isinstance(place, Live)))


def _apart_record(recorder: Recorder, paths: Mapping[str, Sequence[Path]]) -> None:
    """What the graph writes shares no memory with other inputs. Among tensors that live on that is so while they lie where they do."""
    written = [recorder.place(path) for path in paths["mutated"]]
    read = [recorder.place(path) for path in paths["others"]]
    if not all(isinstance(place.value if isinstance(place, Live) else place, torch.Tensor) for place in (*written, *read)):
        raise Opaque
    ranges = []
    for places in (written, [*written, *read]):
        fixed = [place for place in places if not isinstance(place, Live)]
        for tensor in fixed:
            recorder.tensor(tensor)
            recorder.once("data", tensor)
        ranges.append(joined(span(tensor) for tensor in fixed))
    fresh = [(place, i < len(written)) for i, place in enumerate((*written, *read)) if isinstance(place, Live)]
    for place, writes in fresh:
        recorder.table.apart(place.number, (place.value.element_size(), *ranges[writes]))
    numbers, widths = tuple(place.number for place, _ in fresh), tuple(place.value.element_size() for place, _ in fresh)
    recorder.table.disjoint(numbers, widths, sum(writes for _, writes in fresh))


def _not_aliased_words(constant: Mapping[str, Sequence[Path]]) -> str:
    distinct, mutated, others = (tuple(map(describe, constant[key])) for key in ("distinct", "mutated", "others"))
    parts = [f"{', '.join(distinct)} are {len(distinct)} objects"] if distinct else []
    if mutated:
        read = f", nor with what is read: {', '.join(others)}" if others else ""
        parts.append(f"what is written shares no memory: {', '.join(mutated)}{read}")
    return "; ".join(parts)


RULES: dict[Predicate, RelationRule] = {
    Predicate.SAME_AS: RelationRule(evaluate=_same_as, emit=_same_as_emit, record=_same_as_record, words=describe),
    Predicate.NOT_ALIASED: RelationRule(
        evaluate=_not_aliased,
        quick=_not_aliased_quick,
        emit=_not_aliased_emit,
        record=_not_aliased_record,
        order=SEVERAL_OBJECTS,
        words=_not_aliased_words,
    ),
}
