"""Products that MKL, or our own code for few rows, computes are left bare: what follows them becomes kernels, which join their neighbours.

`addmm` writes the bias into every row of its result, and MKL reads it back from there; a kernel that follows adds it on the way, and is
often part of the kernel that uses the result anyway (the norm behind a residual). oneDNN, which does all of it itself, keeps its epilogue.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from precast.codegen.cpu.select_library import How, product_library
from precast.codegen.cpu.tuning import Chooser
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Buffer, Gemm, Kernel, Load, Program, Step, Store, Value
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.substitution import shared_axis
from precast.lowering.passes.fusion.library_loops import finish, load_view, place


def split_epilogues(program: Program, chooser: Chooser, weights: Collection[str] = ()) -> tuple[Program, dict[str, How]]:
    """The program with its f32 products by MKL and by us bare, and the results of these, with who computes them.

    What followed them is kernels now, which are to be scheduled again. `weights` as for `expand.expand`.
    """
    buffers = {b.name: b for b in program.buffers}
    steps: list[Step] = []
    bare: dict[str, Buffer] = {}
    found: dict[str, How] = {}
    for step in program.steps:
        steps.append(step)
        if not isinstance(step, Gemm) or buffers[step.out].dtype is not DType.F32 or not _has_epilogue(step):
            continue
        how = product_library(step, buffers, chooser, step.b.buffer in weights)
        if how not in ("aten", "own"):
            continue
        raw = replace(buffers[step.out], name=f"{step.out}_bare")
        bare[raw.name] = raw
        found[raw.name] = how
        product = replace(step, out=raw.name, bias=None, activation="none", activation_args=(), residual=None)
        steps[-1:] = [product, _rest(step, raw, {**buffers, **bare})]
    if not bare:
        return program, found
    return replace(program, steps=tuple(steps), buffers=(*program.buffers, *bare.values())), found


def _has_epilogue(step: Gemm) -> bool:
    return len(step.a.size) == 2 and (step.bias is not None or step.activation != "none" or step.residual is not None)


def _rest(step: Gemm, raw: Buffer, buffers: dict[str, Buffer]) -> Kernel:
    """What `step` does to its product, as a kernel from `raw` into the step's result."""
    out = buffers[step.out]
    axes = tuple(shared_axis(s, n) for s, n in zip(ix.symbols(len(out.size)), out.size, strict=True))
    value: Value = Load(raw.name, place(axes, raw.stride), raw.dtype)
    if step.bias is not None:
        value = Alu(Op.ADD, (value, load_view(step.bias, axes[-1:], buffers)), value.dtype)
    value = finish(step, value, axes, buffers)
    return Kernel(f"{step.out}_rest", axes, (Store(out.name, place(axes, out.stride), value),), step.origins)
