"""The time that kernels are expected to take, before they are compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from precast.lowering.costs.chip_records import chip_of
from precast.lowering.costs.predicted_time import predicted
from precast.lowering.costs.work import work_of
from precast.lowering.ir.nodes import Buffer, Kernel


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


__all__ = ["dearest_first"]
