"""What a kernel moves between memory and its lanes, in bytes of whole sectors.

Memory hands out sectors (`Traits.sector`). Where the lanes of a warp run along an axis along which an access is consecutive, they use
all of each sector; where their elements lie further apart, or at positions that are known at run time only, they use a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import sympy

from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.kernel_facts import reduction_levels
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Buffer, Gather, Kernel, Load, Reduce, Scan, Size, Store, walk
from precast.lowering.ir.sizes import hint


@dataclass(frozen=True)
class Access:
    """One load or store: elements between neighbours along each axis on which its index depends, the axes along which neighbours lie at
    run-time positions, how many points differ, and bytes of each.
    """

    strides: Mapping[sympy.Symbol, Size]
    scattered: frozenset[sympy.Symbol]
    points: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.points * self.itemsize

    def moved(self, lanes: Iterable[sympy.Symbol], sector: int) -> int:
        """Bytes that are moved for it where lanes run along any of these axes; what depends on none of them is read from a cache."""
        along = [self._apart(s, sector) for s in lanes if s in self.strides or s in self.scattered]
        return self.points * min(along, default=self.itemsize)

    def _apart(self, axis: sympy.Symbol, sector: int) -> int:
        """Bytes that are moved for each element where lanes run along the axis."""
        if axis in self.scattered:
            return max(sector, self.itemsize)
        return max(self.itemsize, min(sector, abs(hint(self.strides[axis])) * self.itemsize))


@dataclass(frozen=True)
class Moved:
    """Bytes that a kernel moves, and those that it would move if all its accesses were consecutive along its lanes."""

    nbytes: int = 0
    least: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.nbytes + other.nbytes, self.least + other.least)


def moved_by(kernel: Kernel, buffers: Mapping[str, Buffer], sector: int) -> Moved:
    """What the kernel moves with lanes along the axes that suit it best: the sum over its stores of the same axes."""
    groups: dict[tuple[Axis, ...], list[Store]] = {}
    for store in kernel.stores:
        groups.setdefault(kernel.axes if store.axes is None else store.axes, []).append(store)
    parts = (replace(kernel, axes=axes, stores=tuple(replace(s, axes=None) for s in stores)) for axes, stores in groups.items())
    return sum((_moved_by_part(part, buffers, sector) for part in parts), Moved())


def _moved_by_part(part: Kernel, buffers: Mapping[str, Buffer], sector: int) -> Moved:
    """Lanes run along the axes that are reduced, or along which reduced values are used again, and along one or two of the others. What
    runs along the second of these crosses from lane to lane: it is moved once more.
    """
    accesses = _accesses(part, buffers)
    levels = reduction_levels(part)
    values = list(walk(*(r for s in part.stores for r in store_roots(s))))
    inside = {a.symbol for v in values if isinstance(v, Reduce) for a in v.axes} | {v.axis.symbol for v in values if isinstance(v, Scan)}
    outer = [a.symbol for a in part.axes if a.symbol not in inside]
    if levels:
        depended = frozenset().union(*levels)
        inside |= {s for s in outer if s not in depended}
        outer = [s for s in outer if s in depended]
    near = [s for s in outer if any(s in a.strides and s not in a.scattered and a._apart(s, sector) < sector for a in accesses)]
    least = sum(a.nbytes for a in accesses)
    best = sum(a.moved((*inside, *outer[-1:]), sector) for a in accesses)
    for one in near:
        best = min(best, sum(a.moved((*inside, one), sector) for a in accesses))
    for one, other in combinations(near, 2):
        ways = [tuple(a.moved((*inside, *lanes), sector) for lanes in ((one,), (other,), (one, other))) for a in accesses]
        crossing = min(sum(w[2] for w in ways if w[0] > w[1]), sum(w[2] for w in ways if w[1] > w[0]))
        best = min(best, sum(w[2] for w in ways) + crossing)
    return Moved(best, least)


def _accesses(part: Kernel, buffers: Mapping[str, Buffer]) -> list[Access]:
    """The loads and stores whose indices are affine but for gathered positions."""
    values = [v for v in walk(*(r for s in part.stores for r in store_roots(s)))]
    extents = {a.symbol: a.extent for a in part.axes}
    extents |= {a.symbol: a.extent for v in values if isinstance(v, Reduce) for a in v.axes}
    every: dict[tuple[str, sympy.Expr, tuple[Gather, ...]], None] = {(s.buffer, s.index, s.gathers): None for s in part.stores}
    every |= {(v.buffer, v.index, v.gathers): None for v in values if isinstance(v, Load)}
    found: list[Access] = []
    for name, index, gathers in every:
        at = sympy.sympify(index)
        scattered: set[sympy.Symbol] = set()
        for gather in gathers:
            if gather.symbol in at.free_symbols:
                for value in walk(gather.value):
                    position = index_expr(value)
                    scattered |= set() if position is None else set(sympy.sympify(position).free_symbols) & extents.keys()
        own = tuple(s for s in extents if s in at.free_symbols)
        affine = ix.coefficients(at, (*own, *(g.symbol for g in gathers if g.symbol in at.free_symbols)))
        if affine is None or name not in buffers:
            continue
        points = 1
        for symbol in {*own, *scattered}:
            points *= hint(extents[symbol])
        found.append(Access(dict(zip(own, affine[1], strict=False)), frozenset(scattered), points, buffers[name].dtype.itemsize))
    return found
