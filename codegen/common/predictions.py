"""The time that steps are expected to take on a chip: those of a graph from their records, and kernels before they are compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from precast.codegen.common.step_records import StepRecord
from precast.lowering.costs.chip_records import chip_of
from precast.lowering.costs.chips import Chip
from precast.lowering.costs.predicted_time import Predicted, predicted, reuse_distances
from precast.lowering.costs.work import work_of
from precast.lowering.ir.nodes import Buffer, Kernel


def predictions(records: Sequence[StepRecord], chip: Chip) -> tuple[Predicted, ...]:
    """Of all steps of one graph, which is called again and again. Buffers at one place of the workspace are the same memory. Convolutions
    in float32 are taken to round to TF32 where the chip has it: so they do by torch's defaults.
    """
    places = {name: ("workspace", offset) for record in records for name, (offset, _) in record.places.items()}
    distances = reuse_distances(records, places)
    return tuple(predicted(record, chip, far, tf32="conv" in record.name) for record, far in zip(records, distances, strict=True))


def dearest_first(kernels: Sequence[Kernel], buffers: Sequence[Buffer], target: str) -> list[Kernel]:
    """The kernels in the order of how long all that do the same amount of work are expected to take together; as given where no chip of
    the target is known.
    """
    chip = chip_of(target)
    if chip is None:
        return list(kernels)
    known = {buffer.name: buffer for buffer in buffers}
    works = [work_of(kernel, known) for kernel in kernels]
    amounts = [(work.bytes, work.operations) for work in works]
    count = Counter(amounts)
    expected = [predicted(work, chip).seconds * count[amount] for work, amount in zip(works, amounts, strict=True)]
    return [kernels[number] for number in sorted(range(len(kernels)), key=lambda number: -expected[number])]


__all__ = ["dearest_first", "predictions"]
