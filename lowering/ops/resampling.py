"""Nearest-neighbour upsampling: an index map, affine or a floor division wherever eager's float arithmetic agrees with the exact one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor, alu
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Value
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ops.creation import empty_sizes, position
from precast.lowering.ops.indexing import Places


def _nearest(b: Builder, x: Tensor, rank: int, scales: Sequence[float | None], exact: bool) -> Result:
    if empty_sizes(b.size) or empty_sizes(x.size) or not all(isinstance(n, int) for n in (*x.size, *b.size)):
        return None
    x = b.settle(x)
    names: list[sympy.Expr] = [n if s != 1 else sympy.S.Zero for n, s in zip(ix.symbols(x.rank), b.size, strict=True)]
    places = Places(b, b.size)
    for k in range(rank):
        dim = x.rank - rank + k
        names[dim] = _source(b, places, dim, int(x.size[dim]), int(b.size[dim]), scales[k], exact)
    if not places.gathers:
        return tx.indexed(x, b.size, names)
    return b.lazy(b.size, x.dtype, places.load(b.realise(x), names))


def _source(b: Builder, places: Places, dim: int, extent: int, out: int, scale: float | None, exact: bool) -> sympy.Expr:
    """The position that output position `o` reads: `min(floor(o * scale), extent - 1)` in float32, as eager computes it."""
    name = ix.symbols(len(b.size))[dim] if out != 1 else sympy.S.Zero
    if extent == 1:
        return sympy.S.Zero
    ratio = numpy.float32(1.0 / scale) if scale is not None and scale > 0 else numpy.float32(extent) / numpy.float32(out)
    points = numpy.arange(out, dtype=numpy.float32)
    half = numpy.float32(0.5 if exact else 0.0)
    found = numpy.minimum(numpy.floor((points + half) * ratio), extent - 1).astype(numpy.int64)
    ideal = (2 * numpy.arange(out) + exact) * extent // (2 * out)
    if (found == ideal).all():
        found_index: sympy.Expr = ix.floordiv(ix.expand((2 * name + int(exact)) * extent), 2 * out, ix.extents_of(b.size))
        return found_index
    value: Value = tx.cast(position(dim, b.size), DType.F32)
    value = v.add(value, v.const(value, float(half))) if exact else value
    value = alu(Op.MIN, alu(Op.FLOOR, v.mul(value, v.const(value, float(ratio)))), v.const(value, float(extent - 1)))
    return places.at(tx.cast(value, DType.I64), extent, checked=False)


def _register() -> None:
    for rank in (1, 2, 3):
        for name, exact in ((f"upsample_nearest{rank}d", False), (f"_upsample_nearest_exact{rank}d", True)):

            def nearest(b: Builder, x: Tensor, size: object, *scales: float | None, _rank: int = rank, _exact: bool = exact) -> Result:
                return _nearest(b, x, _rank, scales or (None,) * _rank, _exact)

            def nearest_by_factors(
                b: Builder, x: Tensor, size: object, factors: Sequence[float] | None, _rank: int = rank, _exact: bool = exact
            ) -> Result:
                return _nearest(b, x, _rank, factors if factors is not None else (None,) * _rank, _exact)

            lowering(name)(nearest)
            lowering(f"{name}.vec")(nearest_by_factors)


_register()
