"""Which bytes a graph holds while each of its steps runs, by what its steps read and write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from precast.lowering.costs.records import StepRecord


@dataclass(frozen=True)
class Held:
    """A buffer that the graph makes, from step `first`, which writes it, to step `last`, which uses it last (to the end where the graph
    hands it out). `offset`: in the workspace; None for what is allocated by itself.
    """

    name: str
    nbytes: int
    first: int
    last: int
    offset: int | None
    result: bool


@dataclass(frozen=True)
class Memory:
    """Bytes at each step: `placed` in the workspace, `apart` from it (what libraries allocate for what they return), and `results`. `peak`:
    the step at which they are most together.
    """

    buffers: tuple[Held, ...]
    placed: tuple[int, ...]
    apart: tuple[int, ...]
    results: tuple[int, ...]
    peak: int


def over_time(steps: Sequence[StepRecord], inputs: Collection[str], results: Collection[str]) -> Memory:
    """Of the graph's own buffers; its inputs (weights, too) are there all the time and belong to the caller."""
    found: dict[str, Held] = {}
    for number, step in enumerate(steps):
        for name in (*step.read, *step.written):
            if name in found:
                found[name] = _used(found[name], number)
        for name, nbytes in step.written.items():
            if name not in found and name not in inputs:
                offset, room = step.places.get(name, (None, nbytes))
                last = len(steps) - 1 if name in results else number
                found[name] = Held(name, max(room, nbytes), number, last, offset, name in results)
    buffers = tuple(found.values())
    placed, apart, handed = [], [], []
    for number in range(len(steps)):
        live = [held for held in buffers if held.first <= number <= held.last]
        placed.append(_covered([(held.offset, held.nbytes) for held in live if held.offset is not None]))
        apart.append(sum(held.nbytes for held in live if held.offset is None and not held.result))
        handed.append(sum(held.nbytes for held in live if held.offset is None and held.result))
    most = [sum(parts) for parts in zip(placed, apart, handed, strict=True)]
    return Memory(buffers, tuple(placed), tuple(apart), tuple(handed), most.index(max(most)) if most else 0)


def _used(held: Held, number: int) -> Held:
    return held if number <= held.last else Held(held.name, held.nbytes, held.first, number, held.offset, held.result)


def _covered(places: Iterable[tuple[int, int]]) -> int:
    """Bytes of these places; where two share some (a step that writes over what it reads), they count once."""
    total = reached = 0
    for offset, nbytes in sorted(places):
        total += max(0, offset + nbytes - max(offset, reached))
        reached = max(reached, offset + nbytes)
    return total


__all__ = ["Held", "Memory", "over_time"]
