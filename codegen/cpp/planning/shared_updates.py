"""How threads share a kernel that updates memory at run-time indices: no two of them may update one place.

Either the outer loops' points update places of their own (a scatter along the last dimension of many rows). Or each thread owns a range of
positions: all run through all indices, and each updates where the index is its own. Then every place is updated in the order of one thread,
whatever their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from precast.codegen.common.index_facts import stride_along
from precast.codegen.common.value_facts import Facts, static_product
from precast.lowering.ir.nodes import Axis, Buffer, Gather, Store
from precast.lowering.ir.ranges import Interval, interval
from precast.lowering.ir.sympy_calls import expand

OWNERS = ((64, 2), (32, 4), (16, 16))
"""From how many elements of a row on how many threads gain by it: each of them finds out of every row whose it is, and a branch that is not
foreseen costs as much as adding some 20 floats. Of 65,536 rows each thread of two took 1/2.05 of the time of one with 64 floats and 1/0.9
with 32 (1/1.2 of four), and with 16 each of 32 took 1/2 (places in the cache; in memory more is gained)."""

Ranges = Mapping[sympy.Symbol, Interval | None]


def loops_apart(store: Store, loops: Sequence[Axis], ranges: Ranges) -> int:
    """How many of the outermost loops run over points of which no two update the same place."""
    rest = sympy.sympify(store.index)
    for count, axis in enumerate(loops):
        step = stride_along(rest, axis.symbol)
        if not isinstance(step, int | sympy.Integer) or step <= 0:
            return count
        rest = expand(rest - step * axis.symbol)
        bounds = interval(rest, dict(ranges))
        if bounds is None or bounds[1] - bounds[0] >= int(step):
            return count
    return len(loops)


def owning_gather(store: Store, inner: Sequence[Axis], facts: Facts, buffer: Buffer) -> Gather | None:
    """The run-time position that tells whose an update is: it differs among the outer loops' points only, and is one of a dimension."""
    symbols = frozenset(a.symbol for a in inner)
    if store.mask is not None or owners(inner) is None or not _lies_apart(buffer):
        return None
    if any(not facts.deps(g.value).isdisjoint(symbols) for g in store.gathers):
        return None
    for gather in store.gathers:
        step = stride_along(sympy.sympify(store.index), gather.symbol)
        if any(n == gather.size and s == step for n, s in zip(buffer.size, buffer.stride, strict=True)):
            return gather
    return None


def owners(inner: Sequence[Axis]) -> int | None:
    """From how many threads on rows over these axes are owned; None where their owners would not gain."""
    row = static_product(a.extent for a in inner)
    if not inner:
        return None
    return OWNERS[1][1] if row is None else next((threads for least, threads in OWNERS if row >= least), None)


def _lies_apart(buffer: Buffer) -> bool:
    """Whether no two positions are one place in memory."""
    if not all(isinstance(n, int | sympy.Integer) for n in (*buffer.size, *buffer.stride)):
        return False
    reach = 0
    for step, size in sorted((int(s), int(n)) for n, s in zip(buffer.size, buffer.stride, strict=True) if n != 1):
        if step <= reach:
            return False
        reach += step * (size - 1)
    return True


__all__ = ["loops_apart", "owners", "owning_gather"]
