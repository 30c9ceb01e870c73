"""Transpositions within a kernel: what is read or written across the vector axis goes through small square buffers, turned in registers.

A read along the outer axis of a square block is gathered, one element at a time, where the arithmetic runs along the inner axis. So each
block's elements are first copied as they lie into a buffer that the first cache holds, and turned on the way; the arithmetic then reads
that buffer along its own axis, as vectors. What is written across is turned the other way after the block's arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from precast.codegen.common.index_facts import free_symbols, stride_along
from precast.codegen.common.value_facts import static_product
from precast.codegen.cpp.body import Body, Level
from precast.codegen.cpp.planning.loop_plan import TILE
from precast.codegen.cpp.planning.sections import MOST_TILES, Section
from precast.codegen.cpp.types import storage
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Load, Reduce, Store, walk
from precast.lowering.ir.sizes import known
from precast.lowering.ir.sympy_calls import expand

CACHED = 1 << 14
"""Points of a matrix up to which a cache holds what is read and written: its lines need not be asked for."""


@dataclass(frozen=True)
class Crossing:
    """An access that runs along the block's outer axis with step one and along its vector axis with step `stride`."""

    access: Load | Store
    stride: sympy.Expr


def crossings(section: Section, tile: tuple[Axis, Axis], body: Body) -> tuple[list[Crossing], list[Crossing]]:
    """The reads and the writes of a block that are worth a buffer."""
    roots = [v for s in section.stores for v in store_roots(s)]
    nodes = list(walk(*roots))
    bound = {a.symbol for n in nodes if isinstance(n, Reduce) for a in n.axes}
    reads = [c for n in nodes if isinstance(n, Load) and (c := _crossing(n, tile, bound, body)) is not None]
    writes = [c for s in section.stores if (c := _crossing(s, tile, bound, body)) is not None]
    return reads[:MOST_TILES], writes[: max(0, MOST_TILES - len(reads))]


def _crossing(access: Load | Store, tile: tuple[Axis, Axis], bound: set[sympy.Symbol], body: Body) -> Crossing | None:
    across, along = (a.symbol for a in tile)
    index = sympy.sympify(access.index)
    stride = stride_along(index, along)
    if access.gathers or stride is None or stride in (0, 1) or stride_along(index, across) != 1:
        return None
    base = expand(index - across - stride * along)
    if free_symbols(base) & (bound | {across, along}):
        return None
    if access.mask is not None and (isinstance(access, Store) or body.facts.deps(access.mask) & {across, along}):
        return None
    return Crossing(access, stride)


class Tiles:
    """The buffers of one block: `fill` before its loops, `places` within, `empty` behind. The next block lies along the axis `onward`."""

    def __init__(self, body: Body, tile: tuple[Axis, Axis], section: Section, onward: Axis) -> None:
        self.body = body
        self.tile = tile
        self.onward = onward
        self.section = section
        nodes = walk(*(v for s in section.stores for v in store_roots(s)))
        self.bound = {a.symbol for n in nodes if isinstance(n, Reduce) for a in n.axes}
        self.reads, self.writes = crossings(section, tile, body)

    def fill(self, level: Level) -> None:
        """Declares the buffers, and copies what is read into them. Lines that this block writes and that the next one reads are asked for
        first: neither kind of access is one that processors foresee, and stores that wait for their lines hold up the reads behind them.
        """
        if self.reads or self.writes:
            for line in self._asked():
                level.add(line)
        for crossing in (*self.reads, *self.writes):
            access = crossing.access
            name, kind = self.body.fresh("tile"), storage(self.body.buffers[access.buffer].dtype)
            level.add(f"{kind} {name}[{TILE * TILE}] __attribute__((aligned(64)));")
            low = [f"{self.body.variable(a.symbol)} - {self.body.variable(a.symbol)}_0" for a in self.tile]
            self.body.tiles[id(access)] = f"{name}[({low[0]}) * {TILE} + ({low[1]})]"
        for crossing in self.reads:
            assert isinstance(crossing.access, Load)
            mask = crossing.access.mask
            turn = self._turn(crossing, read=True)
            name = self._name(crossing)
            level.add(turn if mask is None else f"if ({self.body.value(mask)}) {turn} else __builtin_memset({name}, 0, sizeof {name});")

    def empty(self, level: Level) -> None:
        """Copies what was written into its buffers to where it belongs."""
        for crossing in self.writes:
            level.add(self._turn(crossing, read=False))
        for crossing in (*self.reads, *self.writes):
            del self.body.tiles[id(crossing.access)]

    def apart(self, lines: list[str], level: Level) -> list[str]:
        """`lines`, the block's loops, once more for blocks whose vectors are whole: the compiler knows how many those are."""
        axis, pad = self.tile[1], "  " * level.indent
        if known(axis.extent) and int(axis.extent) % TILE == 0:
            return lines
        name = self.body.variable(axis.symbol)
        whole = [line.replace(f"{name} < {name}_1", f"{name} < {name}_0 + {TILE}") for line in lines]
        return [f"{pad}if ({name}_1 - {name}_0 == {TILE}) {{", *whole, f"{pad}}} else {{", *lines, f"{pad}}}"]

    def _asked(self) -> list[str]:
        """Calls that ask for the lines of all plain accesses of the block: rows of it along either axis."""
        points = static_product(a.extent for a in self.tile)
        if points is not None and points <= CACHED:
            return []
        roots = [v for s in self.section.stores for v in store_roots(s)]
        accesses: list[Load | Store] = [*self.section.stores, *(n for n in walk(*roots) if isinstance(n, Load))]
        return [line for access in accesses if (line := self._ask_for(access)) is not None][:MOST_TILES]

    def _ask_for(self, access: Load | Store) -> str | None:
        body, index, write = self.body, sympy.sympify(access.index), isinstance(access, Store)
        across, along = (stride_along(index, a.symbol) for a in self.tile)
        if access.gathers or access.mask is not None or free_symbols(index) & self.bound or across is None or along is None:
            return None
        if 0 in (across, along) or (across == 1) is (along == 1):
            return None
        low = [f"{body.variable(a.symbol)}_0" for a in self.tile]
        width, height = (f"{body.variable(a.symbol)}_1 - {body.variable(a.symbol)}_0" for a in self.tile)
        step, rows, row = (across, width, height) if along == 1 else (along, height, width)
        first = f"{body.pointers[access.buffer]} + {body.index(index, dict(zip((a.symbol for a in self.tile), low, strict=True)))}"
        if not write:
            first += f" + {TILE} * {body.index(along if self.onward is self.tile[1] else across)}"  # the block that comes next
        size = body.buffers[access.buffer].dtype.itemsize
        return f"ask_for_lines<{int(write)}>({first}, {body.index(step)} * {size}, {rows}, ({row}) * {size});"

    def _name(self, crossing: Crossing) -> str:
        return self.body.tiles[id(crossing.access)].split("[")[0]

    def _turn(self, crossing: Crossing, read: bool) -> str:
        body, buffer = self.body, self.body.buffers[crossing.access.buffer]
        corner = sympy.sympify(crossing.access.index)
        names = {a.symbol: f"{body.variable(a.symbol)}_0" for a in self.tile}
        memory = f"{body.pointers[buffer.name]} + {body.index(corner, names)}"
        width, height = (f"{body.variable(a.symbol)}_1 - {body.variable(a.symbol)}_0" for a in self.tile)
        stride = body.index(crossing.stride)
        function = f"transpose_{buffer.dtype.itemsize}"
        if read:
            return f"{function}({memory}, {stride}, {self._name(crossing)}, {TILE}, {height}, {width});"
        return f"{function}({self._name(crossing)}, {TILE}, {memory}, {stride}, {width}, {height});"


def helpers(source: str) -> str:
    """The functions of this file that `source` calls, for elements of 1, 2, 4 or 8 bytes."""
    sizes = sorted({int(size) for size in re.findall(r"\btranspose_([1248])\(", source)})
    return (LINES if sizes else "") + "".join(_function(size) for size in sizes)


LINES = r"""
template <int write> INLINE void ask_for_lines(const void* p, int64_t step, int64_t rows, int64_t bytes) {
  const __UINTPTR_TYPE__ first = (__UINTPTR_TYPE__)p;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void*)(first + (__UINTPTR_TYPE__)(row * step + at)), write);
}
"""
"""Addresses behind a buffer's end are asked for in vain, and do no harm."""


def _lanes(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _square(size: int, parts: int) -> str:
    """Statements that turn `parts` squares of 16 bytes by side, one above another. Rows are read in halves of a vector each; neighbours
    are then interleaved within the halves, as often as a square has rows doubled from one: after that row i holds column i.
    """
    side = 16 // size
    wide, narrow = f"v{16 * parts}", "v16"
    lines = []
    for i in range(side):
        for part in range(parts):
            lines.append(f"{narrow} a{i}_{part}; __builtin_memcpy(&a{i}_{part}, s + {part * side + i} * from, 16);")
        joined = f"__builtin_shufflevector(a{i}_0, a{i}_1, {_lanes(range(2 * side))})" if parts == 2 else f"a{i}_0"
        lines.append(f"{wide} r{i} = {joined};")
    low = [part * side + j // 2 + side * parts * (j % 2) for part in range(parts) for j in range(side)]
    high = [lane + side // 2 for lane in low]
    rows, step = [f"r{i}" for i in range(side)], 0
    while 1 << step < side:
        made = []
        for i in range(side // 2):
            first, second = rows[i], rows[i + side // 2]
            for number, lanes in enumerate((low, high)):
                name = f"r{step}_{2 * i + number}"
                lines.append(f"const {wide} {name} = __builtin_shufflevector({first}, {second}, {_lanes(lanes)});")
                made.append(name)
        rows, step = made, step + 1
    lines += [f"__builtin_memcpy(d + {i} * to, &{row}, {16 * parts});" for i, row in enumerate(rows)]
    return "\n      ".join(lines)


def _function(size: int) -> str:
    side = 16 // size
    kind = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}[size]

    def loops(parts: int) -> str:
        return f"""
  typedef {kind} v16 __attribute__((vector_size(16))); typedef {kind} v32 __attribute__((vector_size(32)));
  for (; r + {side * parts} <= rows; r += {side * parts})
    for (int64_t c = 0; c + {side} <= columns; c += {side}) {{
      const {kind}* s = source + r * from + c; {kind}* d = target + c * to + r;
      {_square(size, parts)}
    }}
  whole = r;"""

    return f"""
static __attribute__((noinline)) void transpose_{size}(const void* s0, int64_t from, void* d0, int64_t to, int64_t rows, int64_t columns) {{
  const {kind}* source = (const {kind}*)s0; {kind}* target = ({kind}*)d0;
  int64_t r = 0, whole = 0;
#ifdef __AVX2__{loops(2)}
#else{loops(1)}
#endif
  const int64_t turned = columns / {side} * {side};
  for (r = 0; r < rows; ++r)
    for (int64_t c = r < whole ? turned : 0; c < columns; ++c) target[c * to + r] = source[r * from + c];
}}
"""
