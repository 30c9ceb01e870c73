"""Strides for a tensor that is computed into memory: those of the operands that make up most of its bytes."""

from __future__ import annotations

from collections import Counter

from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Load, Size, walk


def strides_as_read(t: Tensor) -> tuple[Size, ...] | None:
    """Dense strides in the order of the loads that make up most of its bytes; None: contiguous, or not to be told.

    A cast of a transposed weight stays transposed, say, as in eager: products take it so, and nothing is moved across the memory.
    """
    dims = [d for d, n in enumerate(t.size) if n != 1]
    symbols = ix.symbols(t.rank)
    natural = tuple(dims)
    orders: Counter[tuple[int, ...]] = Counter()
    for load in walk(t.body()):
        if not isinstance(load, Load) or load.gathers:
            continue
        found = ix.coefficients(load.index, tuple(symbols[d] for d in dims))
        steps = [n for n in found[1] if isinstance(n, int) and n > 0] if found is not None else []
        if len(steps) == len(dims):  # no broadcast, and no window of symbolic strides
            orders[tuple(d for _, d in sorted(zip(steps, dims, strict=True), key=lambda pair: -pair[0]))] += load.dtype.itemsize
    if not orders:
        return None
    chosen = max(orders, key=lambda order: (orders[order], order == natural))
    if chosen == natural:
        return None
    strides: list[Size] = [1] * t.rank
    step: Size = 1
    for d in reversed(chosen):
        strides[d] = step
        step = ix.plain(step * t.size[d])
    return tuple(strides)


def streamed(t: Tensor, along: int) -> bool:
    """Whether each element takes half of its own bytes to read, or less, and dimension `along` lies densely there: computing it on the
    way takes less memory traffic than reading it computed."""
    symbols = ix.symbols(t.rank)
    read = 0
    for load in walk(t.body()):
        if not isinstance(load, Load):
            continue
        found = None if load.gathers else ix.coefficients(load.index, symbols)
        if found is None:
            return False
        if all(n != 0 for n in found[1]):
            read += load.dtype.itemsize
            if found[1][along] != 1:
                return False
    return 0 < 2 * read <= t.dtype.itemsize


__all__ = ["streamed", "strides_as_read"]
