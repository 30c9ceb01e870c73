"""Rows that are shorter than a few vectors, run over as one range: a loop over three channels starts more often than it computes.

    for x: for c < 3: out[3 * x + c] = image[3 * x + c] * scale[c]

is one loop over 3 * x + c in blocks of whole rows. What lies in memory as the result does is read along it. What repeats with each row
(`scale`) is written out as often as a block has rows, once; what differs from row to row in another way is copied for each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from precast.codegen.common.index_facts import stride_along
from precast.codegen.common.value_facts import Facts
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Alu, Axis, Cast, Const, Index, Load, Reduce, Scan, Store, Value, operands, walk
from precast.lowering.ir.scalars import Op
from precast.lowering.ir.sympy_calls import expand

SHORT_LOOP = 12
"""Points of the innermost axis from which a loop of its own is as fast: rows of 12 took as long either way, of 5 half of that."""

SHORT_ROW = 64
"""Points of a row that several axes make up at most: four vectors of f32 on the widest machines."""

LEAST = 128
"""Points of all rows from which a block is worth its buffers."""

BLOCK = 512
"""Points of a block, about: its buffers take 2 KiB each of f32, and what is done once a block is little beside it."""

WRITTEN_OUT = 10
"""Points of a row below which copies of it are written out, element by element: a loop over so few takes as long as the one it saves."""

REPEATED = 8
"""Points of a row below which it may be repeated anew for each block, where loops around the rows change it."""

MOST = 8
"""Buffers of one block."""

DIVISIONS = (Op.FLOORDIV, Op.TRUNCDIV, Op.MOD, Op.REM)


@dataclass(frozen=True)
class ShortRows:
    """`head` counts rows, `inner` are the axes of one, the last with step one; `count` is the product of their extents."""

    head: Axis
    inner: tuple[Axis, ...]
    count: int
    once: tuple[Value, ...]
    """Values of the place in the row alone (and of loops around the rows)."""
    copied: tuple[Value, ...]
    """Values of the row, or of row and place, that do not lie in memory as the result does."""
    whole: tuple[Load, ...]
    """Loads that run over rows as over one range."""

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        return frozenset(a.symbol for a in (self.head, *self.inner))

    @property
    def width(self) -> int:
        """Points of a block: whole rows, no more than there are."""
        rows = max(1, BLOCK // self.count)
        extent = self.head.extent
        return self.count * (max(1, min(rows, int(extent))) if isinstance(extent, int | sympy.Integer) else rows)

    def step(self, index: sympy.Expr) -> sympy.Expr | None:
        """The step of an index along the one range; None where it does not run over rows as over that."""
        return _one_range(index, (self.head, *self.inner))


def short_rows(axes: Sequence[Axis], stores: Sequence[Store], facts: Facts) -> ShortRows | None:
    """How stores over these axes run over short rows as over one range; None where that is not possible, or does not gain."""
    if any(s.mode != "set" or s.mask is not None or s.gathers for s in stores):
        return None
    chain = _chain(axes, stores[0].index)
    if chain is None or any(_one_range(s.index, chain) != 1 for s in stores):
        return None
    head, inner = chain[0], chain[1:]
    count = 1
    for axis in inner:
        count *= int(axis.extent)
    roots = [root for s in stores for root in store_roots(s)]
    if any(isinstance(n, Reduce | Scan) or isinstance(n, Alu) and n.op in DIVISIONS and n.dtype.is_int for n in walk(*roots)):
        return None
    found = _Parts(head, inner, {s.buffer for s in stores}, facts)
    if not all(map(found.take, roots)) or len(found.once) + len(found.copied) > MOST:
        return None
    around = frozenset(a.symbol for a in axes) - {a.symbol for a in chain}
    changing = any(facts.deps(v) & around for v in found.once)
    if found.copied and count >= WRITTEN_OUT or changing and count >= REPEATED:
        return None
    return ShortRows(head, inner, count, tuple(found.once), tuple(found.copied), tuple(found.whole))


def _chain(axes: Sequence[Axis], index: sympy.Expr) -> tuple[Axis, ...] | None:
    """The axes that make up short rows of the store, the row's number first: each has the step of all within it."""
    found: tuple[Axis, ...] = ()
    count = 1
    while count < SHORT_ROW:
        axis = next((a for a in axes if a not in found and stride_along(index, a.symbol) == count and a.extent != 1), None)
        if axis is None:
            return None
        length = int(axis.extent) if isinstance(axis.extent, int | sympy.Integer) else None
        if found and (length is None or count * length >= LEAST):
            return (axis, *found)
        if length is None or length < 1 or (not found and length >= SHORT_LOOP):
            return None
        found = (axis, *found)
        count *= length
    return None


def _one_range(index: sympy.Expr, chain: Sequence[Axis]) -> sympy.Expr | None:
    """The step of `index` along the axes as along one range; 0 where it has none of them."""
    first = stride_along(index, chain[-1].symbol)
    if first is None:
        return None
    step = first
    for axis, outer in zip(reversed(chain), reversed(chain[:-1]), strict=False):
        step = step * axis.extent
        along = stride_along(index, outer.symbol)
        if along is None or expand(along - step) != 0:
            return None
    return first


class _Parts:
    """Sorts what values are made of into loads of whole rows and values that need a buffer."""

    def __init__(self, head: Axis, inner: tuple[Axis, ...], written: set[str], facts: Facts) -> None:
        self.chain = (head, *inner)
        self.head = {head.symbol}
        self.inner = {a.symbol for a in inner}
        self.written = written
        self.facts = facts
        self.once: list[Value] = []
        self.copied: list[Value] = []
        self.whole: list[Load] = []
        self.seen: set[int] = set()

    def take(self, root: Value) -> bool:
        """Whether the value can be had; what it is made of is in its list then."""
        stack = [root]
        while stack:
            node = stack.pop()
            along = self.facts.deps(node) & (self.head | self.inner)
            if id(node) in self.seen or not along:
                continue
            self.seen.add(id(node))
            if isinstance(node, Load) and node.mask is None and not node.gathers and _one_range(node.index, self.chain) == 1:
                self.whole.append(node)
            elif along <= self.inner or along <= self.head or isinstance(node, Load):
                if not self._buffered(node):
                    return False
                (self.once if along <= self.inner else self.copied).append(node)
            elif isinstance(node, Index | Const) or _of_positions(node):
                return False
            else:
                stack.extend(operands(node))
        return True

    def _buffered(self, node: Value) -> bool:
        """Whether a value may be made before the block: nothing of it is looked up at run time, or written by the same kernel."""
        loads = [n for n in walk(node) if isinstance(n, Load)]
        return all(not n.gathers and n.buffer not in self.written for n in loads)


def _of_positions(node: Value) -> bool:
    """Whether a value is written in terms of positions themselves, see `Body.narrow`."""
    return isinstance(node, Alu | Cast) and all(isinstance(o, Index | Const) for o in operands(node))
