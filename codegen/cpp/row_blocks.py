"""Short rows as one range, in blocks of whole rows: what does not lie in memory as the result does is in buffers that one loop reads along.

Which values those are, `planning/short_rows.py` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import sympy

from precast.codegen.common.index_facts import replace_symbols
from precast.codegen.common.value_facts import static_product
from precast.codegen.cpp.body import Body, Level
from precast.codegen.cpp.planning.short_rows import ShortRows
from precast.codegen.cpp.types import COMPUTE, storage
from precast.lowering.ir.nodes import Axis, Load, Store, Value, axis_symbol
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import known

GROUPS = (2, 3, 4, 8)
"""Elements side by side that the compiler turns with vectors."""


class RowBlocks:
    """The loop over `axis`, all points of the rows, in blocks of `rows.width`; `axis` runs from its `_0` to its `_1` in a block."""

    def __init__(self, body: Body, rows: ShortRows) -> None:
        self.body = body
        self.rows = rows
        self.axis = Axis(axis_symbol(f"{rows.head.symbol}_range"), rows.head.extent * rows.count)
        self.buffers: dict[int, str] = {}
        """Elements of the buffers, by the ids of the values that they hold."""
        body.ranges[self.axis.symbol] = None if (points := static_product((self.axis.extent,))) is None else (0, max(points - 1, 0))

    def once(self, top: Level, outer: Sequence[Axis]) -> None:
        """Fills the buffers that are the same in every block, ahead of all loops. Without points there may be nothing to read."""
        around = {a.symbol for a in outer}
        unsure = [a for a in (*outer, self.rows.head) if not (known(a.extent) and int(a.extent) > 0)]
        points = " && ".join(f"{self.body.extent(a)} > 0" for a in unsure)
        for value in self.rows.once:
            if not self.body.facts.deps(value) & around:
                self._repeated(value, top, points)

    def write(self, level: Level, stores: tuple[Store, ...], put: Callable[[Store, Level], None]) -> None:
        """One block: its buffers, then its loop, in which `put` writes the stores."""
        for value in self.rows.once:
            if id(value) not in self.buffers:
                self._repeated(value, level)
        if self.rows.copied:
            self._copied(level)
        body, name = self.body, self.body.variable(self.axis.symbol)
        inner = Level(self.rows.symbols | {self.axis.symbol}, level.indent + 1, simd=True)
        body.path.append(inner)
        made = {}
        for value in (*self.rows.once, *self.rows.copied):
            made[id(value)] = body.fresh("v")
            inner.add(f"const {COMPUTE[value.dtype]} {made[id(value)]} = {self.buffers[id(value)]};")
        body.made |= made
        places: list[Load | Store] = [*self.rows.whole, *stores]
        flat = {a.symbol: sympy.S.Zero for a in self.rows.inner} | {self.rows.head.symbol: self.axis.symbol / self.rows.count}
        for access in places:
            index = replace_symbols(sympy.sympify(access.index), flat)
            body.tiles[id(access)] = f"{body.pointers[access.buffer]}[{body.index(index)}]"
        for store in stores:
            put(store, inner)
        for access in places:
            del body.tiles[id(access)]
        for key in made:
            del body.made[key]
        body.path.pop()
        level.add("#pragma omp simd")
        level.add(f"{body.loop_header(self.axis, f'{name}_0', f'{name}_1')} {{")
        level.lines += inner.lines
        level.add("}")

    def _declare(self, value: Value, level: Level) -> str:
        """The name of a new buffer for a value."""
        name, low = self.body.fresh("row"), self.body.variable(self.axis.symbol)
        kind = storage(value.dtype) if value.dtype is DType.BOOL else COMPUTE[value.dtype]
        level.add(f"{kind} {name}[{self.rows.width}];")
        place = f"{name}[{low} - {low}_0]"
        self.buffers[id(value)] = f"({place} != 0)" if value.dtype is DType.BOOL else place
        return name

    def _repeated(self, value: Value, level: Level, points: str = "") -> None:
        """One row of a value, then copies of it, where there are `points`."""
        name, body, saved = self._declare(value, level), self.body, self.body.path
        body.path = saved[: saved.index(level) + 1]
        opened = []
        for axis in self.rows.inner:
            opened.append(Level(frozenset({axis.symbol}), body.path[-1].indent + 1))
            body.path.append(opened[-1])
        opened[-1].add(f"{name}[{body.linear(self.rows.inner)}] = {body.value(value)};")
        if points:
            level.add(f"if ({points}) {{")
        body.close(opened, self.rows.inner, level, ())
        if points:
            level.add("}")
        body.path = saved
        level.add(f"repeat_row({name}, {self.rows.count}, {self.rows.width});")

    def _copied(self, level: Level) -> None:
        """The buffers of what differs from row to row: a loop over the rows of the block, in which the elements of one are written out."""
        body, rows, low = self.body, self.rows, self.body.variable(self.axis.symbol)
        names = [self._declare(value, level) for value in rows.copied]
        head = body.variable(rows.head.symbol)
        each = Level(frozenset({rows.head.symbol}), level.indent + 1, simd=rows.count in GROUPS)
        body.path.append(each)
        for number, place in enumerate(product(*(range(int(a.extent)) for a in rows.inner))):
            point = Level(frozenset(a.symbol for a in rows.inner), each.indent + 1)
            body.path.append(point)
            lines = []
            for name, value in zip(names, rows.copied, strict=True):
                lines.append(f"{name}[({head} - {low}_0 / {rows.count}) * {rows.count} + {number}] = {body.value(value)};")
            body.path.pop()
            constants = [f"{body.variable(a.symbol)} = {n}" for a, n in zip(rows.inner, place, strict=True)]
            each.add(f"{{ const {body.index_type} {', '.join(constants)};")
            each.lines += point.lines
            for line in lines:
                each.add(f"  {line}")
            each.add("}")
        body.path.pop()
        if each.simd:
            level.add("#pragma omp simd")
        level.add(f"{body.loop_header(rows.head, f'{low}_0 / {rows.count}', f'{low}_1 / {rows.count}')} {{")
        level.lines += each.lines
        level.add("}")


HELPER = """
template <class T> INLINE void repeat_row(T* row, int count, int width) {
  for (int have = count; have < width;) {
    const int more = have < width - have ? have : width - have;
    __builtin_memcpy(row + have, row, more * sizeof(T));
    have += more;
  }
}
"""


def helpers(source: str) -> str:
    """What `source` needs of this file."""
    return HELPER if "repeat_row(" in source else ""
