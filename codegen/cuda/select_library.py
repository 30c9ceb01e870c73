"""How library steps run on CUDA: cuBLAS and cuDNN through torch's shims, one of three attention kernels, by a rule or a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from precast.codegen.common.library_steps import LibraryCall, RunStep, attention_call
from precast.codegen.cuda.candidates import (
    ACTIVATIONS,
    Choice,
    attention_choice,
    conv_choice,
    fused_convolution,
    gemm_choice,
    split_of,
)
from precast.codegen.cuda.tuning import CudaChooser
from precast.lowering.ir.nodes import Attention, Buffer, Conv, Gemm, Program, Step
from precast.lowering.passes.fusion.library_loops import epilogue_kernel

Buffers = Mapping[str, Buffer]
How = Literal["aten", "activation", "product", "split", "flash", "cudnn", "efficient"]
"""Who computes a library step on CUDA (`candidates.py`). `aten`: torch's operator. `activation`: a product with cuBLASLt's epilogue.
`product`: a 1x1 convolution as a product. `split`: a product in several calls. `flash`, `cudnn`, `efficient`: torch's attention kernels."""


def expand(program: Program, steps: Sequence[Step], chooser: CudaChooser, prefix: str = "library") -> list[RunStep]:
    """Replaces every library step by its implementation and, where that lacks the epilogue, a kernel."""
    buffers = {b.name: b for b in program.buffers}
    pick = _Picker(chooser)
    result: list[RunStep] = []
    for number, step in enumerate(steps):
        name = f"{prefix}_{number}"
        match step:
            case Gemm():
                result += _gemm(step, name, buffers, pick)
            case Conv():
                result += _conv(step, name, buffers, pick)
            case Attention():
                result.append(_attention(step, buffers, pick))
            case _:
                result.append(step)
    return result


class _Picker:
    """Answers from measurements, kept or made now; the default where there is none."""

    def __init__(self, chooser: CudaChooser) -> None:
        self.chooser = chooser

    def __call__(self, choice: Choice) -> str:
        if len(choice.names) < 2:
            return choice.default
        return self.chooser.pick(choice.key, choice.calls, choice.default, choice.names)


def _gemm(step: Gemm, name: str, buffers: Buffers, pick: _Picker) -> list[RunStep]:
    if split_of(step, buffers) is not None:
        return [LibraryCall(step, "split")]
    if step.activation in ACTIVATIONS and step.residual is None and pick(gemm_choice(step, buffers)) == "activation":
        return [LibraryCall(step, "activation")]
    return _plain(step, name, buffers)


def _conv(step: Conv, name: str, buffers: Buffers, pick: _Picker) -> list[RunStep]:
    match pick(conv_choice(step, buffers)):
        case "cudnn":
            return [fused_convolution(step)]
        case "product":
            return [LibraryCall(step, "product")]
        case _:
            return _plain(step, name, buffers)


def _plain(step: Gemm | Conv, name: str, buffers: Buffers) -> list[RunStep]:
    """The step by its ATen operator, and its epilogue as a kernel."""
    rest = epilogue_kernel(name, step, buffers)
    bare = replace(step, activation="none", activation_args=(), residual=None)
    return [LibraryCall(bare, "aten"), *([rest] if rest is not None else [])]


def _attention(step: Attention, buffers: Buffers, pick: _Picker) -> RunStep:
    match pick(attention_choice(step, buffers)):
        case ("flash" | "cudnn" | "efficient") as how:
            return LibraryCall(step, how)
        case _:
            return attention_call(step)
