"""Whether a product goes into the kernel that reads it: as a measurement on such a device says, else by the rule of lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from precast.codegen.common.library_steps import LibraryCall
from precast.codegen.common.measure import Record
from precast.codegen.cuda.select_library import expand
from precast.codegen.cuda.torch_calls import is_callable
from precast.codegen.cuda.tuning import (
    CANONICAL,
    LIBRARY,
    WITH_LIBRARY,
    CudaChooser,
    Problem,
    in_tilings,
    is_way,
    kernel_key,
    tiling_name,
)
from precast.codegen.triton.render.render import TritonKernel, render
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.ir.nodes import Buffer, Kernel, Program
from precast.lowering.passes.gpu import skinny_matmul_rule
from precast.lowering.passes.gpu.matmul_template_fusion import Alternative, ProductFusion, Sizes
from precast.lowering.targets.scheduling import Pass

LEAST = Sizes(rows=64, columns=64, depth=64)
"""Sizes of the smallest products that are worth a question."""


def measured_products(chooser: CudaChooser) -> Pass | None:
    """The pass that puts products into kernels as the chooser says; None where it knows nothing about any and measures nothing."""
    asks = chooser.measure is not None or any(key.startswith(WITH_LIBRARY) for key in chooser.tuning)
    return partial(_fused, chooser) if asks else None


def _fused(chooser: CudaChooser, program: Program) -> Program:
    decision = Measured(chooser)
    fusion = ProductFusion(program, chooser.traits)
    for candidate in fusion.candidates():
        if decision.considers(candidate.sizes):
            for alternative in fusion.alternatives(candidate):
                if decision.takes(alternative):
                    fusion.take(alternative)
    return fusion.program_now()


@dataclass(frozen=True)
class Measured:
    """Answers by measurements of the steps in turn beside one kernel in every tiling; by the rule without one.

    `open`: kernels that are questions without an answer.
    """

    chooser: CudaChooser
    open: set[Kernel] = field(default_factory=set)

    def considers(self, sizes: Sizes) -> bool:
        """Whether the product is large enough to ask."""
        asked = sizes.rows >= LEAST.rows and sizes.columns >= LEAST.columns and sizes.depth >= LEAST.depth
        return asked or skinny_matmul_rule.considers(sizes, self.chooser.traits)

    def takes(self, alternative: Alternative) -> bool:
        """Whether one kernel is the faster way."""
        by_rule = skinny_matmul_rule.considers(alternative.sizes, self.chooser.traits) and skinny_matmul_rule.takes(alternative)
        if alternative.inner in self.open:
            return by_rule  # what it would be measured against is not known yet
        record, asked = self._record(alternative, by_rule)
        if asked and record is None:
            self.open.add(alternative.kernel)
        return by_rule if record is None else record["winner"] != LIBRARY

    def _record(self, alternative: Alternative, by_rule: bool) -> tuple[Record | None, bool]:
        """What a measurement says, and whether there is a question at all."""
        together = alternative.finished(alternative.kernel)
        kernel = together.steps[0]
        if len(together.steps) > 1 or not isinstance(kernel, Kernel):
            return None, False
        chosen, plain = render(kernel, together.buffers, traits=self.chooser.traits), render(kernel, together.buffers, CANONICAL)
        apart = alternative.finished(*alternative.steps)
        library = self._library(apart) if len(chosen) == len(plain) == 1 else None
        if library is None:
            return None, False
        key = kernel_key(plain[0])
        self.chooser.against_library.add(key)
        default = tiling_name(chosen[0].tiling) if by_rule else LIBRARY

        def problem() -> Problem:
            variants = in_tilings(kernel, together.buffers, 0, chosen[0], self.chooser.traits)
            used = _used(apart, together.buffers, kernel)
            return Problem(WITH_LIBRARY + key, default, kernels=variants, buffers=used, library=library)

        return self.chooser.record(WITH_LIBRARY + key, is_way, problem), True

    def _library(self, apart: Program) -> tuple[LibraryCall | TritonKernel, ...] | None:
        """What the steps run in turn, each in its best known form; None where a tuner cannot."""
        found: list[LibraryCall | TritonKernel] = []
        for step in expand(apart, apart.steps, self.chooser):
            if isinstance(step, Kernel):
                found += render(step, apart.buffers, self.chooser.tilings(step, apart.buffers), self.chooser.traits)
            elif isinstance(step, LibraryCall) and is_callable(step):
                found.append(step)
            else:
                return None
        return tuple(found)


def _used(apart: Program, buffers: Sequence[Buffer], kernel: Kernel) -> tuple[Buffer, ...]:
    """The buffers that either way touches."""
    names = {name for step in (*apart.steps, kernel) for name in (*reads(step), *writes(step))}
    return tuple(b for b in {b.name: b for b in (*apart.buffers, *buffers)}.values() if b.name in names)
