"""Weight-only quantised matrix products with few rows: kernels that read weights in a narrower type (int8, say) and cast them in registers.

A library multiplies a matrix in its own type: a kernel would cast all weights first, and the library would read the result, five times the
bytes. With few rows the time is that of reading the weights, so a generated kernel that casts as it reads replaces both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from precast.lowering.analysis.effects import writes
from precast.lowering.analysis.traits import Traits
from precast.lowering.build.builder import Cost
from precast.lowering.build.float8 import NODES, decodings
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Gemm, Kernel, Load, Program, Step, walk
from precast.lowering.ir.scalars import HALVES
from precast.lowering.ir.substitution import Definition, Rewriter, Uninvertible
from precast.lowering.passes.fusion.library_loops import gemm_kernel
from precast.lowering.passes.simplify.constant_fold import without_dead_steps

MAX_NODES = 6
"""Operations for each weight, which are done once for each block of rows; decoding a float of eight bits is not counted."""


def narrow_products(program: Program, traits: Traits) -> Program:
    """The program with each such product as a reduction kernel that computes its weights."""
    buffers = {b.name: b for b in program.buffers}
    makers: dict[str, _Maker] = {}
    steps: list[Step] = []
    for number, step in enumerate(program.steps):
        kernel = _narrow(f"narrow{number}", step, buffers, makers.get(step.b.buffer), traits) if isinstance(step, Gemm) else None
        steps.append(step if kernel is None else kernel)
        written = set(writes(step))
        makers = {name: maker for name, maker in makers.items() if not written & {name, *maker.loads}}
        if isinstance(step, Kernel):
            makers |= {maker.definition.buffer: maker for maker in _makers(step)}
    return without_dead_steps(replace(program, steps=tuple(steps)), set()) if tuple(steps) != program.steps else program


@dataclass(frozen=True, eq=False)
class _Maker:
    """How weights are computed, and from what."""

    definition: Definition
    loads: dict[str, int]
    """Buffers that are read, with the bytes of each for one weight: 0 where several weights share them."""


def _makers(kernel: Kernel) -> list[_Maker]:
    """The stores of a kernel that compute something cheap from elements at the same index."""
    return [m for m in (_maker(kernel, number) for number in range(len(kernel.stores))) if m is not None]


def _maker(kernel: Kernel, number: int) -> _Maker | None:
    store = kernel.stores[number]
    cost = Cost(store.value)
    if store.mode != "set" or store.mask is not None or store.gathers or store.axes is not None or cost.heavy:
        return None
    if cost.nodes > MAX_NODES + NODES * decodings(store.value):
        return None
    symbols = tuple(a.symbol for a in kernel.axes if a.extent != 1)
    loads: dict[str, int] = {}
    for load in walk(store.value):
        if isinstance(load, Load):
            along = ix.coefficients(load.index, symbols)
            if along is None:
                return None
            loads[load.buffer] = loads.get(load.buffer, 0) + (load.dtype.itemsize if all(along[1]) else 0)
    return _Maker(Definition(store.buffer, kernel.axes, store.index, store.value), loads)


def _narrow(name: str, step: Gemm, buffers: dict[str, Buffer], maker: _Maker | None, traits: Traits) -> Kernel | None:
    """The product with its right side computed as it is read; None unless it has few rows, and weights contiguous along the depth that
    take at most half of that side's bytes.
    """
    out = buffers[step.out]
    if maker is None or len(step.a.size) != 2 or out.dtype not in HALVES or 2 * sum(maker.loads.values()) > out.dtype.itemsize:
        return None
    (rows, depth), columns, stride = step.a.size, step.b.size[1], step.b.stride[0]
    if 0 in (*step.a.stride, *step.b.stride):
        return None  # spread: the sides do not vary as a product's do
    if stride != 1 or not (isinstance(rows, int) and isinstance(depth, int) and isinstance(columns, int)):
        return None
    if rows > traits.narrow_many_rows and columns < traits.narrow_many_columns:
        return None
    most, least = traits.narrow_rows, traits.narrow_columns
    if decodings(maker.definition.value):
        most, least = traits.decoded_rows, traits.decoded_columns
    if not 1 < rows <= most or columns < least or depth < traits.narrow_depth:
        return None
    kernel = gemm_kernel(name, step, buffers, rounded=True)
    (store,) = kernel.stores
    rewriter = Rewriter(kernel.axes, {maker.definition.buffer: maker.definition})
    try:
        return replace(kernel, stores=(replace(store, value=rewriter.rewrite(store.value, rewriter.env(()))),))
    except Uninvertible:
        return None
