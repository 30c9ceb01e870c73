"""How `precast tune` asks and answers what decides CUDA code: tilings of kernels, and which library computes a step."""

from __future__ import annotations

from collections.abc import Collection

from precast.codegen.common.tuner import Answer
from precast.codegen.cuda.benchmarking import lab_for
from precast.codegen.cuda.pipeline import choose_all, passes_by
from precast.codegen.cuda.tuning import CudaChooser
from precast.lowering.analysis.traits import traits_of
from precast.lowering.ir.nodes import Program
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import schedule


class CudaTuner:
    """A `tuner.Tuner`."""

    def ask(self, program: Program, target: str, options: LoweringOptions, bound: Collection[str] | None, answer: Answer) -> None:
        chooser = CudaChooser(measure=answer, traits=traits_of(target))
        choose_all(schedule(program, target, options, bound, instead=passes_by(chooser)), chooser, target)

    def lab(self, target: str) -> Answer:
        return lab_for(target).measure


__all__ = ["CudaTuner"]
