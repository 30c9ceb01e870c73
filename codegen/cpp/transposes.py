"""Transpositions within a kernel: what is read or written across the vector axis goes through small buffers, turned in registers.

A read along the outer axis of a block is gathered, one element at a time, where the arithmetic runs along the inner axis. So each block's
elements are first copied as they lie into a buffer that the first cache holds, and turned on the way; the arithmetic then reads that buffer
along its own axis, as vectors. What is written across is turned the other way after the block's arithmetic.

A block takes one cache line of each row of what lies across, and lines whole: rows a power of two apart share few sets of a cache, which
hold no line until its rest is asked for. Lines of one column follow in equal steps, from block to block too, as prefetchers foresee.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from precast.codegen.common.index_facts import free_symbols, stride_along
from precast.codegen.cpp.body import Body, Level
from precast.codegen.cpp.planning.sections import MOST_TILES, Section
from precast.codegen.cpp.types import storage
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Load, Reduce, Store, walk
from precast.lowering.ir.sizes import known
from precast.lowering.ir.sympy_calls import expand

ALONG = 64
"""Most points of a block along its vector axis: some lines of the other side, whose rows are read or written in one go."""

LINE, LINES = 64, 4
"""Bytes of a cache line; lines of each row that a block takes at most."""

ROOM = 1 << 14
"""Bytes of a block's buffers, if these are not many: half of the first cache."""


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


def widths(section: Section, tile: tuple[Axis, Axis], body: Body) -> tuple[int, int]:
    """Points of a block along either axis: some whole lines across."""
    across, along = (int(a.extent) if known(a.extent) else 1 << 30 for a in tile)
    sizes = [body.buffers[c.access.buffer].dtype.itemsize for side in crossings(section, tile, body) for c in side] or [4]
    lines = ROOM // (ALONG * LINE * sum(sizes) // min(sizes))
    return min(LINE // min(sizes) * max(1, min(LINES, lines)), across), min(ALONG, along)


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
    """The buffers of one block, of `size` points along either axis: `fill` before its loops, `places` within, `empty` behind."""

    def __init__(self, body: Body, tile: tuple[Axis, Axis], section: Section, size: tuple[int, int]) -> None:
        self.body = body
        self.tile = tile
        self.across, self.along = size
        self.reads, self.writes = crossings(section, tile, body)

    def fill(self, level: Level) -> None:
        """Declares the buffers, and copies what is read into them."""
        for crossing in (*self.reads, *self.writes):
            access = crossing.access
            name, kind = self.body.fresh("tile"), storage(self.body.buffers[access.buffer].dtype)
            level.add(f"{kind} {name}[{self.across * self.along}] __attribute__((aligned(64)));")
            low = [f"{self.body.variable(a.symbol)} - {self.body.variable(a.symbol)}_0" for a in self.tile]
            self.body.tiles[id(access)] = f"{name}[({low[0]}) * {self.along} + ({low[1]})]"
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
        if known(axis.extent) and int(axis.extent) % self.along == 0:
            return lines
        name = self.body.variable(axis.symbol)
        whole = [line.replace(f"{name} < {name}_1", f"{name} < {name}_0 + {self.along}") for line in lines]
        return [f"{pad}if ({name}_1 - {name}_0 == {self.along}) {{", *whole, f"{pad}}} else {{", *lines, f"{pad}}}"]

    def _name(self, crossing: Crossing) -> str:
        return self.body.tiles[id(crossing.access)].split("[")[0]

    def _turn(self, crossing: Crossing, read: bool) -> str:
        body, buffer = self.body, self.body.buffers[crossing.access.buffer]
        corner = sympy.sympify(crossing.access.index)
        names = {a.symbol: f"{body.variable(a.symbol)}_0" for a in self.tile}
        memory = f"{body.pointers[buffer.name]} + {body.index(corner, names)}"
        width, height = (f"{body.variable(a.symbol)}_1 - {body.variable(a.symbol)}_0" for a in self.tile)
        stride = body.index(crossing.stride)
        size = buffer.dtype.itemsize
        if read:
            return f"lines_to_tile_{size}({memory}, {stride}, {self._name(crossing)}, {self.along}, {height}, {width});"
        return f"tile_to_lines_{size}({self._name(crossing)}, {self.along}, {memory}, {stride}, {width}, {height});"


def helpers(source: str) -> str:
    """The functions of this file that `source` calls, for elements of 1, 2, 4 or 8 bytes."""
    found = sorted(set(re.findall(r"\b(lines_to_tile|tile_to_lines)_([1248])\(", source)))
    return (NEXT if found else "") + "".join(_function(name, int(size)) for name, size in found)


NEXT = """
template <class T> INLINE T* next_row(T* p, int64_t step) { p += step; __asm__("" : "+r"(p)); return p; }
"""
"""A compiler that sees through it holds the multiples of the step for all rows of a square, in more registers than there are."""


def _shuffled(first: str, second: str, elements: Sequence[int]) -> str:
    return f"__builtin_shufflevector({first}, {second}, {', '.join(map(str, elements))})"


def _interleaved(rows: list[str], size: int, wide: int, tag: str) -> tuple[list[str], list[str]]:
    """Statements that turn the squares of 16 bytes by side that lie side by side in `rows`, vectors of `wide` bytes; and names of results:
    the i-th holds column i of each square. Neighbours are interleaved within squares, as often as rows are doubled from one.
    """
    side, parts = 16 // size, wide // 16
    low = [part * side + j // 2 + side * parts * (j % 2) for part in range(parts) for j in range(side)]
    high = [lane + side // 2 for lane in low]
    step, lines = 0, list[str]()
    while 1 << step < side:
        made: list[str] = []
        for first, second in zip(rows[: side // 2], rows[side // 2 :], strict=True):
            for elements in (low, high):
                made.append(f"{tag}{step}_{len(made)}")
                lines.append(f"const v{wide} {made[-1]} = {_shuffled(first, second, elements)};")
        rows, step = made, step + 1
    return lines, rows


def _exchanged(rows: list[str], size: int, wide: int, tag: str) -> tuple[list[str], list[str]]:
    """The same of a square whose elements have 16 bytes: the i-th result holds the i-th 16 bytes of each row."""
    side, parts = 16 // size, wide // 16
    if parts == 1:
        return [], rows

    def pick(first: str, second: str, odd: int) -> str:
        """Every other 16 bytes of both."""
        return _shuffled(first, second, [part * side + j for part in range(odd, 2 * parts, 2) for j in range(side)])

    lines, step = list[str](), 0
    while 1 << step < parts:
        made = [f"{tag}{step}_{i}" for i in range(parts)]
        for number in range(parts // 2):
            for odd in (0, 1):
                place = number + odd * parts // 2
                lines.append(f"const v{wide} {made[place]} = {pick(rows[2 * number], rows[2 * number + 1], odd)};")
        rows, step = made, step + 1
    return lines, rows


def _read(names: Sequence[str], nbytes: int) -> list[str]:
    """Statements that read so many bytes of consecutive rows into vectors of these names."""
    lines = ["const T* p = s;"]
    for name in names:
        lines.append(f"v{nbytes} {name}; __builtin_memcpy(&{name}, p, {nbytes}); p = next_row(p, from);")
    return lines


def _write(vectors: Sequence[str], nbytes: int) -> list[str]:
    """Statements that write vectors of so many bytes into consecutive rows."""
    lines = ["T* q = d;"]
    for number, vector in enumerate(vectors):
        lines.append(f"const v{nbytes} w{number} = {vector}; __builtin_memcpy(q, &w{number}, {nbytes}); q = next_row(q, to);")
    return lines


def _square(size: int, wide: int) -> list[str]:
    """Statements that turn a square of `wide` bytes by side."""
    side, parts = 16 // size, wide // 16
    names = [f"a{i}" for i in range(side * parts)]
    lines, groups, columns = _read(names, wide), list[list[str]](), [""] * len(names)
    for part in range(parts):
        more, group = _interleaved(names[part * side : (part + 1) * side], size, wide, f"b{part}_")
        lines, groups = lines + more, [*groups, group]
    for i in range(side):
        more, columns[i::side] = _exchanged([group[i] for group in groups], size, wide, f"c{i}_")
        lines += more
    return [*lines, *_write(columns, wide)]


def _lines_to_tile(size: int, wide: int) -> list[str]:
    """Statements that turn `wide` bytes of as many rows as 16 bytes have elements: read whole, written by 16 bytes."""
    side = 16 // size
    names = [f"a{i}" for i in range(side)]
    lines, columns = _interleaved(names, size, wide, "b")
    pieces = [
        _shuffled(column, column, range(part * side, (part + 1) * side)) if wide > 16 else column
        for part in range(wide // 16)
        for column in columns
    ]
    return [*_read(names, wide), *lines, *_write(pieces, 16)]


def _tile_to_lines(size: int, wide: int) -> list[str]:
    """The other way: as many columns as 16 bytes have elements, read by 16 bytes and written whole."""
    side, parts = 16 // size, wide // 16
    lines = _read([f"a{part}_{i}" for part in range(parts) for i in range(side)], 16)
    for i in range(side):
        names, length = [f"a{part}_{i}" for part in range(parts)], side
        while len(names) > 1:
            length *= 2
            names = [_shuffled(first, second, range(length)) for first, second in zip(names[::2], names[1::2], strict=True)]
        lines.append(f"const v{wide} a{i} = {names[0]};")
    more, columns = _interleaved([f"a{i}" for i in range(side)], size, wide, "b")
    return [*lines, *more, *_write(columns, wide)]


REGISTERS = 16
"""Rows of a square that vector registers hold."""


def _loops(square: list[str], rows: int, columns: int, order: str) -> str:
    """`square`, of so many rows and columns, over as much of a matrix as holds such; `order`: the outer loop first."""
    ends = {"r": ("rows", rows), "c": ("columns", columns)}
    heads = [f"for (int64_t {v} = 0; {v} + {step} <= {end}; {v} += {step})" for v in order for end, step in (ends[v],)]
    body = "\n    ".join(["const T* s = source + r * from + c; T* d = target + c * to + r;", *square])
    return f"  {heads[0]} {heads[1]} {{\n    {body}\n  }}\n  const int64_t m = rows / {rows} * {rows}, n = columns / {columns} * {columns};"


def _function(name: str, size: int) -> str:
    """`target[c * to + r] = source[r * from + c]`: squares first, or lines; then squares of 16 bytes by side, then single elements."""
    side, read = 16 // size, name == "lines_to_tile"
    kind = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}[size]
    order = "cr" if read else "rc"

    def loops(wide: int) -> str:
        many = wide // size
        if many <= REGISTERS:
            return _loops(_square(size, wide), many, many, order)
        return _loops(_lines_to_tile(size, wide), side, many, order) if read else _loops(_tile_to_lines(size, wide), many, side, order)

    return f"""
static __attribute__((noinline)) void {name}_rest_{size}(
    const {kind}* source, int64_t from, {kind}* target, int64_t to, int64_t rows, int64_t columns) {{
  typedef {kind} T; typedef T v16 __attribute__((vector_size(16)));
{_loops(_square(size, 16), side, side, order)}
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < m ? n : 0; c < columns; ++c) target[c * to + r] = source[r * from + c];
}}
static __attribute__((noinline)) void {name}_{size}(const void* s0, int64_t from, void* d0, int64_t to, int64_t rows, int64_t columns) {{
  typedef {kind} T; typedef T v16 __attribute__((vector_size(16))); typedef T v32 __attribute__((vector_size(32)));
  typedef T v64 __attribute__((vector_size(64)));
  const T* source = (const T*)s0; T* target = (T*)d0;
#ifdef __AVX512BW__
{loops(64)}
#elif defined(__AVX2__)
{loops(32)}
#else
  const int64_t m = 0, n = columns;
#endif
  if (m < rows) {name}_rest_{size}(source + m * from, from, target + m, to, rows - m, n);
  if (n < columns) {name}_rest_{size}(source + n, from, target + n * to, to, rows, columns - n);
}}
"""
