"""How long steps are expected to take on a chip, without one: the roofline model over what caches hold.

A step takes what a call costs, and the longer of moving its bytes and computing its operations. How fast a buffer is moved depends on how
much else was touched since it was used last (its reuse distance): what is used again soon comes from a cache. Calls repeat, so that
what the first step reads was used last by the call before.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from precast.lowering.costs.chips import Chip
from precast.lowering.costs.records import StepRecord, Work


@dataclass(frozen=True)
class Predicted:
    """`seconds` of a step; `bound`: what most of them go into, "memory", "compute" or "call"."""

    seconds: float
    bound: str


def predicted(work: Work, chip: Chip, distances: Mapping[str, int] | None = None, tf32: bool = False) -> Predicted:
    """Of one step. `distances`: bytes touched since each buffer was used; without them, the step is repeated by itself. `tf32`: float32
    products are rounded to it, as convolutions of a GPU are by torch's defaults.
    """
    own = work.bytes
    far = distances or {}
    memory = sum(count / chip.memory(max(far.get(name, own), 1)) for part in (work.read, work.written) for name, count in part.items())
    count = work.operations or 0
    if work.products:
        kind = "tf32" if tf32 and work.arithmetic == "f32" and "tf32" in chip.products else work.arithmetic
        compute = count / chip.product_rate(kind, max(count, 1))
    else:
        compute = count / chip.loop_rate(work.arithmetic)
    longest = max(memory, compute)
    bound = "call" if chip.call > longest else "compute" if compute > memory else "memory"
    return Predicted(chip.call + longest, bound)


def reuse_distances(steps: Sequence[Work], places: Mapping[str, Hashable] | None = None) -> list[dict[str, int]]:
    """For each step and each of its buffers, the bytes that are touched from the middle of the step that used it last to the middle of this
    one: what a cache has to hold, on average, for its elements to be there. `places`: of buffers in a shared workspace, by which memory
    is the same.
    """
    total = sum(step.bytes for step in steps)
    last: dict[Hashable, int] = {}
    own = places or {}
    found: list[dict[str, int]] = [{} for _ in steps]
    touched = 0
    for again in (False, True):  # the second time round every buffer has been used
        for number, step in enumerate(steps):
            touched += step.bytes
            for name in (*step.read, *step.written):
                place = own.get(name, name)
                if again:
                    found[number][name] = min(touched - step.bytes // 2 - last[place], total)
            for name in (*step.read, *step.written):
                last[own.get(name, name)] = touched - step.bytes // 2
    return found


def predictions(records: Sequence[StepRecord], chip: Chip) -> tuple[Predicted, ...]:
    """Of all steps of one graph, which is called again and again. Buffers at one place of the workspace are the same memory. Convolutions
    in float32 are taken to round to TF32 where the chip has it: so they do by torch's defaults.
    """
    places = {name: ("workspace", offset) for record in records for name, (offset, _) in record.places.items()}
    distances = reuse_distances(records, places)
    return tuple(predicted(record, chip, far, tf32="conv" in record.name) for record, far in zip(records, distances, strict=True))


__all__ = ["Predicted", "predicted", "reuse_distances"]
