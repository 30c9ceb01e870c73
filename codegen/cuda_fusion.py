"""Whether a product goes into the kernel that reads it: as a measurement on such a device says, else by the rule of lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precast.codegen.cuda_choices import (
    CANONICAL,
    LIBRARY,
    WITH_LIBRARY,
    CudaChooser,
    Problem,
    in_tilings,
    kernel_key,
    tiling_name,
    tiling_of,
)
from precast.codegen.cuda_expand import expand
from precast.codegen.cuda_torch import is_callable
from precast.codegen.expand import LibraryCall
from precast.codegen.triton_render import TritonKernel, render
from precast.lowering.effects import reads, writes
from precast.lowering.gpu_products import Alternative, Decides, Sizes
from precast.lowering.gpu_shallow import SHALLOW
from precast.lowering.ir import Buffer, Kernel, Program

LEAST = Sizes(rows=64, columns=64, depth=64)
"""Sizes of the smallest products that are worth a question."""


def products_by(chooser: CudaChooser) -> Decides:
    """What lowering asks about products, answered by the chooser; the rule alone where it knows nothing about any and measures nothing."""
    asks = chooser.measure is not None or any(key.startswith(WITH_LIBRARY) for key in chooser.tuning)
    return Measured(chooser) if asks else SHALLOW


@dataclass(frozen=True)
class Measured:
    """Answers by measurements of the library's way beside one kernel in every tiling; by the rule without one."""

    chooser: CudaChooser

    def considers(self, sizes: Sizes) -> bool:
        """Whether the product is large enough to ask."""
        asked = sizes.rows >= LEAST.rows and sizes.columns >= LEAST.columns and sizes.depth >= LEAST.depth
        return asked or SHALLOW.considers(sizes)

    def takes(self, alternative: Alternative) -> bool:
        """Whether one kernel is the faster way."""
        by_rule = SHALLOW.considers(alternative.sizes) and SHALLOW.takes(alternative)
        together = alternative.finished(alternative.kernel)
        kernel = together.steps[0]
        if len(together.steps) > 1 or not isinstance(kernel, Kernel):
            return by_rule
        chosen, plain = render(kernel, together.buffers), render(kernel, together.buffers, CANONICAL)
        if len(chosen) > 1 or len(plain) > 1:
            return by_rule
        apart = alternative.finished(*alternative.steps)
        library = self._library(apart)
        if library is None:
            return by_rule
        key = WITH_LIBRARY + kernel_key(plain[0])
        default = tiling_name(chosen[0].tiling) if by_rule else LIBRARY

        def problem() -> Problem:
            variants = in_tilings(kernel, together.buffers, 0, chosen[0])
            return Problem(key, default, kernels=variants, buffers=_used(apart, together.buffers, kernel), library=library)

        record = self.chooser.record(key, _is_answer, problem)
        self.chooser.against_library.add(kernel_key(plain[0]))
        return by_rule if record is None else record["winner"] != LIBRARY

    def _library(self, apart: Program) -> tuple[LibraryCall | TritonKernel, ...] | None:
        """What the steps run in turn; None where a tuner cannot."""
        found: list[LibraryCall | TritonKernel] = []
        for step in expand(apart, apart.steps, {"chooser": self.chooser}):
            if isinstance(step, Kernel):
                found += render(step, apart.buffers)
            elif isinstance(step, LibraryCall) and is_callable(step):
                found.append(step)
            else:
                return None
        return tuple(found)


def _is_answer(winner: str) -> bool:
    tiling = tiling_of(winner)
    return winner == LIBRARY or (tiling is not None and tiling.depth > 0)


def _used(apart: Program, buffers: Sequence[Buffer], kernel: Kernel) -> tuple[Buffer, ...]:
    """The buffers that either way touches."""
    names = {name for step in (*apart.steps, kernel) for name in (*reads(step), *writes(step))}
    return tuple(b for b in {b.name: b for b in (*apart.buffers, *buffers)}.values() if b.name in names)
