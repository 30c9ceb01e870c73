"""Products as steps of a program, compiled for a CPU with code of our own, for the tests of each kind of such code."""

from __future__ import annotations

from typing import Any

import torch

from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.lowering.ir.nodes import Buffer, Gemm, View
from precast.lowering.pipeline import schedule
from tests.codegen.loader import Loaded
from tests.codegen.programs import buffer, program, view

TARGETS = ["cpu:native", "cpu:x86-64-v3", "cpu:x86-64-v2"]


def product(m: int, k: int, n: int, transposed: bool = True, **more: Any) -> tuple[Gemm, dict[str, Buffer]]:
    """x[m, k] times the transposed w[n, k], or w[k, n]."""
    inputs = [
        buffer("x", (m, k)),
        buffer("w", (n, k) if transposed else (k, n)),
        buffer("b", (n,)),
        buffer("r", (m, n)),
        buffer("o", (m, n)),
    ]
    weight = View("w", (k, n), (1, k) if transposed else (n, 1))
    return Gemm(view(inputs[0]), weight, more.pop("bias", None), "o", **more), {b.name: b for b in inputs}


def build(step: Gemm, buffers: dict[str, Buffer], namespace: str, target: str = "cpu:native", freeze: bool = False) -> Loaded:
    """The program of that one step, whose code is of this `namespace`; with `freeze` its weight is laid out once."""
    *inputs, out = buffers.values()
    compiled = compile_program(schedule(program(inputs, [out], [step]), target), target, CodegenOptions(measure=False, freeze=freeze))
    assert f"namespace {namespace}" in compiled.kernel_source
    return Loaded(compiled.library)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())
