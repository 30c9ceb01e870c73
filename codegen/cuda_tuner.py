"""How `precast tune` asks and answers what decides CUDA code: tilings of kernels, and which library computes a step."""

from __future__ import annotations

from collections.abc import Collection

from precast.codegen.cuda_choices import CudaChooser
from precast.codegen.cuda_lab import lab_for
from precast.codegen.cuda_pipeline import choose_all, passes_by
from precast.codegen.tuner import Answer
from precast.lowering.ir import Program
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import schedule
from precast.lowering.traits import traits_of


class CudaTuner:
    """A `tuner.Tuner`."""

    def ask(self, program: Program, target: str, options: LoweringOptions, bound: Collection[str] | None, answer: Answer) -> None:
        chooser = CudaChooser(measure=answer, traits=traits_of(target))
        choose_all(schedule(program, target, options, bound, instead=passes_by(chooser)), chooser)

    def lab(self, target: str) -> Answer:
        return lab_for(target).measure


__all__ = ["CudaTuner"]
