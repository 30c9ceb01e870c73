"""Gradients of max-pooling: each position asks the windows that cover it whether it was their maximum.

The library adds each window's gradient where its maximum was: it needs the indices in memory, and zeros to add to. Asked the other way
round, every element is written once, and what comes next is fused. The windows are asked in the order in which eager adds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.build.registry import LOWERINGS
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Index, Value
from precast.lowering.ir.scalars import DType
from precast.pool_operators import GRADIENT


@dataclass(frozen=True)
class _Asked:
    """One of the windows that may cover a position, along one dimension: which, where in it the position would be, and whether there is
    such a window that has it.
    """

    place: sympy.Expr
    step: sympy.Expr
    mask: Value | None


def _asked(symbol: sympy.Symbol, extent: int, outputs: int, kernel: int, stride: int, pad: int, dilation: int) -> list[_Asked]:
    """The windows that may cover a position, first to last."""
    within: ix.Extents = ((symbol, extent),) if extent != 1 else ()
    at = (symbol if extent != 1 else sympy.S.Zero) + pad
    last = ix.floordiv(at, stride, within)
    found = []
    for back in range((kernel - 1) * dilation // stride, -1, -1):
        place = last - back
        low = v.ge(Index(place), Index(sympy.S.Zero)) if pad // stride < back else None
        high = v.lt(Index(place), Index(sympy.Integer(outputs))) if (extent - 1 + pad) // stride - back >= outputs else None
        ahead = at - last * stride + back * stride
        step = ix.floordiv(ahead, dilation, within)
        mask = tx.both(low, high)
        if dilation != 1:
            mask = tx.both(mask, v.eq(Index(ahead), Index(step * dilation)))
        if stride - 1 + back * stride > (kernel - 1) * dilation:
            mask = tx.both(mask, v.lt(Index(step), Index(sympy.Integer(kernel))))
        found.append(_Asked(place if outputs != 1 else sympy.S.Zero, step, mask))
    return found


def _max_pool_gradient(
    b: Builder,
    gradient: Tensor,
    numbers: Tensor,
    size: Sequence[int],
    strides: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    rank, whole, kind = len(kernel), tuple(size), b.dtype
    gradient, numbers = b.settle(gradient), b.settle(numbers)
    names, outputs = ix.symbols(len(whole)), [int(n) for n in gradient.size[-rank:]]
    dims = zip(names[-rank:], whole[-rank:], outputs, kernel, stride, padding, dilation, strict=True)
    lead = [n if s != 1 else sympy.S.Zero for n, s in zip(names[:-rank], whole[:-rank], strict=True)]
    total: Value = tx.constant(0, kind)
    within = ix.extents_of(whole)
    for number, windows in enumerate(itertools.product(*(_asked(*dim) for dim in dims))):
        mask: Value | None = None
        position: sympy.Expr = sympy.S.Zero
        for w, count in zip(windows, kernel, strict=True):
            mask, position = tx.both(mask, w.mask), position * count + w.step
        place = [*lead, *(w.place for w in windows)]
        found, given = (tx.cast(t.at(place, within), k) for t, k in ((numbers, DType.I32), (gradient, kind)))
        if mask is not None:
            found, given = tx.masked(found, mask), tx.masked(given, mask)
        hit = tx.both(mask, v.eq(found, tx.cast(Index(position), DType.I32)))
        assert hit is not None
        part = v.where(hit, given, tx.constant(0, kind))
        total = part if number == 0 else v.add(total, part)
    return v.lazy(b, total)


LOWERINGS[GRADIENT] = _max_pool_gradient
