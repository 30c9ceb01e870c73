"""Writes one `Part` of a kernel as the body of a Triton function.

Outer points are lanes of dimension 0 ("x"); the points of a reduction, and a store's remaining axes, are lanes of dimension 1, a *tile*. Tiles of
equal extents share their symbols, so that a row that is normalised is loaded once. A tile that fits is evaluated at once, a longer one in
loops, one for each level of reductions that need one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import sympy

from precast.codegen.triton_ops import COMBINE, TYPES, Unsupported, identity, literal, operand_type, write
from precast.codegen.triton_tiling import Extents, Part, Tiling, power_of_two, static
from precast.codegen.values import Facts, rebuild, rebuild_store, store_roots, substitute
from precast.lowering.index import is_nonnegative
from precast.lowering.ir import (
    Alu,
    Axis,
    Buffer,
    Cast,
    Const,
    DType,
    Gather,
    Index,
    Load,
    Op,
    Reduce,
    ReduceOp,
    Scan,
    Size,
    Store,
    Value,
    axis_symbol,
    walk,
)

FOLD: dict[ReduceOp, Op] = {
    ReduceOp.SUM: Op.ADD,
    ReduceOp.PROD: Op.MUL,
    ReduceOp.MIN: Op.MIN,
    ReduceOp.MAX: Op.MAX,
    ReduceOp.ANY: Op.OR,
    ReduceOp.ALL: Op.AND,
}
INDEXED = (ReduceOp.ARGMIN, ReduceOp.ARGMAX)


class Tile:
    """Dimension 1 at some extents: its symbols and how its lanes are walked."""

    def __init__(self, number: int, extents: Extents, tiling: Tiling) -> None:
        self.name = f"r{number}"
        self.extents = extents
        self.symbols = tuple(axis_symbol(f"{self.name}_{i}") for i in range(len(extents)))
        count = static(extents)
        self.looped = count is None or count > tiling.persistent
        self.count = count
        self.block = tiling.rblock if self.looped else power_of_two(count or 1)
        self.mask = None if not self.looped and count == self.block else f"{self.name}_mask"


class Body:
    """The lines of one part. `buffers` and `sizes` are what it turned out to need, in order of first use."""

    def __init__(self, part: Part, buffers: dict[str, Buffer], tiling: Tiling) -> None:
        self.tiling, self.known = tiling, buffers
        self.facts = Facts()
        self.lines: list[str] = []
        self.indent = 1
        self.names: dict[int, str] = {}
        self.keep: list[Value] = []
        self.scope: set[int] | None = None  # values that belong to the loop being written
        self.counter = 0
        self.buffers: dict[str, None] = {}
        self.sizes: dict[str, None] = {}
        self.checks = False
        self.tiles: dict[Extents, Tile] = {}
        self.x = part.x
        self.x_count = static(a.extent for a in part.x)
        self.stores = [(s, tuple(a for a in (s.axes if s.axes is not None else part.x + self._inner(s, part))) ) for s in part.stores]
