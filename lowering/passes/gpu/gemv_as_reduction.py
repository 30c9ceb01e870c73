"""Matrix-vector products (GEMV) as reductions: each element of the matrix is read once, so they are bound by memory, and a generated kernel
reads as fast as a library's.

As a kernel such a product is fused with what follows it: bias, activation, residual, the other product of a gated layer. One-token decoding
consists of these. Only matrices that are contiguous along the reduction are taken, as those of linear layers are.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.traits import Traits
from precast.lowering.ir.nodes import Buffer, Gemm, Program
from precast.lowering.ir.scalars import DType
from precast.lowering.passes.fusion.library_loops import gemm_kernel

TYPES = (DType.BF16, DType.F16, DType.F32)


def vector_products(program: Program, traits: Traits) -> Program:
    """The program with each such product as a reduction kernel."""
    buffers = {b.name: b for b in program.buffers}
    steps = tuple(
        gemm_kernel(f"product{number}", step, buffers) if isinstance(step, Gemm) and _is_vector(step, buffers[step.out], traits) else step
        for number, step in enumerate(program.steps)
    )
    return replace(program, steps=steps)


def _is_vector(step: Gemm, out: Buffer, traits: Traits) -> bool:
    sizes = (*step.a.size, *step.b.size, *step.a.stride, *step.b.stride)
    if len(step.a.size) != 2 or out.dtype not in TYPES or not all(isinstance(n, int) for n in sizes):
        return False
    rows, depth, columns = step.a.size[0], step.a.size[1], step.b.size[1]
    assert isinstance(depth, int)
    along = (rows == 1 and step.b.stride[0] == 1) or (columns == 1 and step.a.stride[1] == 1)
    return along and depth >= traits.vector_depth
