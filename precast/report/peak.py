"""What dominates a graph's peak of memory: the buffers that are alive at its busiest step, by size, with the lines of the user's that
they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from precast.artifact_store import GraphRecord, Store
from precast.lowering.costs.records import STEPS, StepRecord, from_json
from precast.report.page.memory import Memory, over_time
from precast.report.page.schedule_parts import parsed
from precast.report.units import human_size

LISTED = 5


@dataclass(frozen=True)
class Alive:
    """A buffer that is there at the busiest step. `first` and `last`: the steps that write it first and use it last; `source`: a line of
    the user's that it comes from, empty where none is known.
    """

    buffer: str
    bytes: int
    type: str
    first: int
    last: int
    made_by: str
    source: str


@dataclass(frozen=True)
class Peak:
    """Of the graph's own buffers, without its inputs and weights. `buffers`: the largest first."""

    bytes: int
    step: int
    steps: int
    name: str
    buffers: tuple[Alive, ...]

    def lines(self) -> Iterator[str]:
        """For people: the step, and the largest buffers."""
        yield f"{human_size(self.bytes)} at step {self.step} of {self.steps} ({self.name}), without inputs and weights"
        for alive in self.buffers[:LISTED]:
            until = f"steps {alive.first} to {alive.last}"
            where = f", {alive.source}" if alive.source else ""
            yield f"  {human_size(alive.bytes):>9}  {alive.type or alive.buffer}, {until}, by {alive.made_by}{where}"
        if len(self.buffers) > LISTED:
            rest = sum(alive.bytes for alive in self.buffers[LISTED:])
            yield f"  {human_size(rest):>9}  {len(self.buffers) - LISTED} more"


def peak_of(store: Store, graph: GraphRecord) -> Peak | None:
    """None where the records of the graph's steps are not there, or the graph has no buffers of its own."""
    data = store.blob(graph.blobs[STEPS]) if STEPS in graph.blobs else None
    text = store.blob(graph.blobs["schedule"]) if "schedule" in graph.blobs else None
    if data is None or text is None:
        return None
    steps = from_json(data)
    schedule = parsed(text.decode(errors="replace"), steps)
    memory = over_time(steps, schedule.inputs, schedule.results)
    return _peak(steps, memory, schedule.buffers) if memory.buffers else None


def _peak(steps: tuple[StepRecord, ...], memory: Memory, types: dict[str, str]) -> Peak:
    at = memory.peak
    held = sorted((b for b in memory.buffers if b.first <= at <= b.last), key=lambda b: (-b.nbytes, b.first, b.name))

    def alive(name: str, nbytes: int, first: int, last: int) -> Alive:
        maker = steps[first]
        return Alive(name, nbytes, types.get(name, ""), first, last, maker.name, maker.sources[-1] if maker.sources else "")

    total = memory.placed[at] + memory.apart[at] + memory.results[at]
    return Peak(total, at, len(steps), steps[at].name, tuple(alive(b.name, b.nbytes, b.first, b.last) for b in held))


__all__ = ["Alive", "Peak", "peak_of"]
