"""How a part is laid out over programs and lanes: a cost heuristic over its memory accesses, in place of measurements.

The figures behind it are from an H200 (132 multiprocessors): 8 to 16 elements for each thread; rows of reductions by as few warps as
give 16 elements a thread; reductions across rows in tiles whose lines are one or two sectors of memory wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from precast.codegen.common.value_facts import Facts, static_product
from precast.codegen.triton.render.matmul import product_in
from precast.codegen.triton.render.tiling import Part, Tiling, loaded, power_of_two
from precast.codegen.triton.render.value_rewrites import unroll
from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.matmul_patterns import MANY, Product
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Buffer, Kernel, Load, Reduce, Scan, Size, Store, Value, walk
from precast.lowering.ir.scalars import DType, ReduceOp
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.sympy_calls import expand

WARP = 32
ELEMENTS = 256
"""Elements of a row for each warp."""
NEAR = 4
"""Elements between neighbours along an axis up to which memory runs along it: windows of a pool step by so many."""
LINE = 3
"""Neighbours in memory from which a dimension of their own is worth it. With fewer, a sector is read for few of its elements, too, but by
lanes of one program, and so from its cache."""
MOST_TOGETHER = 64
"""Buffers of one launch that several parts share: Triton needs more than twice the time for twice the text, and one thread for each."""
TAPS, PLANE = 4, 128
"""Elements of a buffer that a point reads, and points that share them, from which programs stay within a plane. On an H200 a depthwise
convolution by 3x3 takes 0.26 ms so, of which it takes 0.37 with blocks of any points: each lane has loads of its own there.
"""
MOST_LOADS, MANY_LOADS = 64, 16
"""Loads of a point of a tile whose reductions are written out, at most; and from which half as many points are enough for a thread."""
PERSISTENT = 32768
"""Lanes of the longest row that stays in registers where it is used again; half of it where it is only reduced."""
MOST_ODD = 8192
"""The same of rows that are no multiple of what a thread reads at once."""
MOST_KEPT = 49152
"""Elements of all rows that a program keeps at once: of a multiprocessor's 65,536 registers some are needed for addresses and sums."""

MOST_ANEW, LEAST_ANEW = 1024, 2048
"""A program may reduce so many points anew for a block of a row, where rows have several blocks of at least so many."""
ROW_BLOCK = 4096

WINDOWS = 64
"""Elements of pooling and its like for each warp: max-pools of 3x3 by 2 ran at half the time of 256, averages of 3x3 by 1 at 0.8."""

VECTOR = 4
"""Elements that a thread reads at once where they lie in line."""

HALF = 2
"""Bytes of an element of a product's blocks."""

PRODUCTS = (
    (16, (16, 32, 256, 3), (16, 32, 128, 3)),
    (32, (32, 32, 256, 3), (32, 64, 128, 3)),
    (64, (64, 32, 256, 2), (64, 32, 128, 3)),
    (math.inf, (64, 32, 128, 3), (128, 64, 64, 3)),
)
"""Up to how many rows a product has which block, step and stages: with few columns, and with many. The fastest with int8 weights on an H200
that leave room in 99 KiB of shared memory."""


@dataclass(frozen=True)
class Access:
    """One load or store: elements between neighbours along each axis symbol (missing: 0), how many points differ, bytes of each."""

    strides: Mapping[sympy.Symbol, Size]
    points: int
    itemsize: int


def accesses(part: Part, known: Mapping[str, Buffer]) -> list[Access]:
    """The loads and stores whose indices are affine; gathered positions count as constants."""
    extents = {a.symbol: hint(a.extent) for a in _axes(part)}
    found: list[Access] = []
    seen: set[tuple[str, sympy.Expr]] = set()
    for buffer, index in _indices(part):
        if (buffer, index) in seen:
            continue
        seen.add((buffer, index))
        symbols = tuple(s for s in extents if s in index.free_symbols)
        affine = ix.coefficients(index, symbols)
        if affine is None:
            continue
        points = 1
        for s in symbols:
            points *= extents[s]
        found.append(Access(dict(zip(symbols, affine[1], strict=True)), points, known[buffer].dtype.itemsize))
    return found


def _axes(part: Part) -> dict[Axis, None]:
    found = dict.fromkeys(part.x)
    for store in part.stores:
        found |= dict.fromkeys(store.axes or ())
    return found | dict.fromkeys(a for v in _values(part) if isinstance(v, Reduce) for a in v.axes)


def _values(part: Part) -> Iterator[Value]:
    return walk(*(root for s in part.stores for root in store_roots(s)))


def _indices(part: Part) -> Iterator[tuple[str, sympy.Expr]]:
    for store in part.stores:
        yield store.buffer, sympy.sympify(store.index)
    for value in _values(part):
        if isinstance(value, Load):
            yield value.buffer, sympy.sympify(value.index)


def two_dimensional(part: Part, known: Mapping[str, Buffer]) -> Part:
    """A pointwise part whose operands are consecutive along different axes gets a tile along each; any other is returned as it is."""
    if len(part.x) < 2 or any(isinstance(v, Reduce | Scan) for v in _values(part)) or any(s.axes != part.x for s in part.stores):
        return part
    total = 1
    for axis in part.x:
        total *= hint(axis.extent)
    votes: dict[sympy.Symbol, int] = {}
    for access in accesses(part, known):
        near = min((n for a in part.x if isinstance(n := access.strides.get(a.symbol, 0), int) and 0 < n <= NEAR), default=1)
        fast = [a for a in part.x if access.strides.get(a.symbol) == near and hint(a.extent) > 1]
        if fast and 4 * access.points >= total and hint(fast[-1].extent) >= LINE:
            votes[fast[-1].symbol] = votes.get(fast[-1].symbol, 0) + access.points * access.itemsize
    if len(votes) < 2:
        return _by_planes(part)
    first, second = sorted(votes, key=lambda s: -votes[s])[:2]
    if part.x[-1].symbol in (first, second):  # the innermost axis is the main store's
        first, second = part.x[-1].symbol, second if part.x[-1].symbol is first else first
    tile = next(a for a in part.x if a.symbol is first)
    line = next(a for a in part.x if a.symbol is second)
    rest = tuple(a for a in part.x if a is not tile and a is not line)
    return replace(part, x=(*rest, line), grid=True)


def written_out(part: Part, known: Mapping[str, Buffer], limit: int, facts: Facts) -> Part:
    """A part that reduces at most `limit` points, reads them along one of its axes and stores along another: pointwise, with a tile along
    each, in which its reductions are written out. Any other is returned as it is.
    """
    if not any(isinstance(v, Reduce) for v in _values(part)):
        return part
    plain = replace(part, stores=unroll(Kernel("", part.x, part.stores), limit, facts).stores)
    if sum(1 for _ in _loads(plain)) > MOST_LOADS:
        return part
    tiled = two_dimensional(plain, known)
    return tiled if tiled.grid and not tiled.planes else part


def _by_planes(part: Part) -> Part:
    """A pointwise part that reads several elements of one buffer for each plane (the taps of a window): its programs stay within a plane,
    so that such an element is read once for all lanes. What is read at run-time positions is another element for each lane.
    """
    axes = [a.symbol for a in part.x]
    own: dict[tuple[str, int], set[sympy.Expr]] = {}
    for buffer, index in _loads(part):
        used = [n for n, s in enumerate(axes) if s in index.free_symbols]
        if used:
            own.setdefault((buffer, used[-1] + 1), set()).add(index)
    outer = sorted(depth for (_, depth), found in own.items() if len(found) >= TAPS and _count(part.x[depth:]) >= PLANE)
    return replace(part, x=part.x[: outer[0]], grid=True, planes=True) if outer else part


def spread(part: Part, traits: Traits) -> Part:
    """A part of few long rows whose reductions are short (those of a row's chunks, say): each program computes them anew, for a block of
    the row. Any other is returned as it is.
    """
    values = list(_values(part))
    reductions = [v for v in values if isinstance(v, Reduce)]
    inner = {tuple(a for a in s.axes or () if a not in part.x) for s in part.stores} - {()}
    if part.grid or not reductions or len(inner) != 1 or any(isinstance(v, Scan) for v in values) or product_in(part) is not None:
        return part
    (tile,) = inner
    sizes = [tuple(a.extent for a in v.axes) for v in reductions]
    short = all((static_product(size) or MOST_ANEW + 1) <= MOST_ANEW for size in sizes) and tuple(a.extent for a in tile) not in sizes
    short = short and not any(v.op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX, ReduceOp.ANY, ReduceOp.ALL) for v in reductions)
    alone = all(s.mode == "set" for s in part.stores) and not {s.buffer for s in part.stores} & loaded(part.stores)
    few = _count(part.x) < 4 * traits.processors or sum(_count(v.axes) for v in reductions) * WARP <= LEAST_ANEW  # next to nothing a block
    return replace(part, grid=True) if short and alone and few and _count(tile) >= 2 * LEAST_ANEW else part


def choose(part: Part, known: Mapping[str, Buffer], traits: Traits) -> Tiling:
    """The tiling of a part, without having measured."""
    rows = _count(part.x)
    product = product_in(part)
    if product is not None:
        return _product(product, traits)
    if part.planes:
        rblock = min(512, power_of_two(_count(tuple(a for a in part.stores[0].axes or () if a not in part.x))))
        return Tiling(1, rblock=rblock, num_warps=rblock // 128)
    if part.grid:
        return _blocks(part) if any(isinstance(v, Reduce) for v in _values(part)) else _square(part, traits)
    inner = [_count(v.axes) for v in _values(part) if isinstance(v, Reduce)]
    inner += [hint(v.axis.extent) for v in _values(part) if isinstance(v, Scan)]
    inner += [_count(tuple(a for a in s.axes or () if a not in part.x)) for s in part.stores]
    widest = max(inner, default=1)
    if widest == 1:
        updates = [s for s in part.stores if s.mode != "set"]
        if updates:
            return _flat(rows, traits, 256 if traits.vector_updates and all(_in_vectors(s, part, known) for s in updates) else WARP)
        full = [a for a in accesses(part, known) if a.points == rows]
        if _windows(part, full):
            return _flat(rows, traits, WINDOWS)
        gathered = sum(isinstance(v, Load) and bool(v.gathers) for v in _values(part))
        return _flat(rows, traits, 512 if len(full) + gathered <= 2 else 256)
    if any(isinstance(v, Reduce | Scan) for v in _values(part)) and _across(part, known):
        return _columns(rows, widest, part, known, traits)
    known_width = all(static_product((a.extent,)) is not None for a in _axes(part) if a not in part.x)
    again = any(set(s.axes or ()) - set(part.x) for s in part.stores) and any(isinstance(v, Reduce) for v in _values(part))
    wide = [a for a in accesses(part, known) if a.points >= widest]
    return _rows(rows, widest, max((a.itemsize for a in wide), default=4), _wide_loads(part, widest), known_width, again, traits)


def _windows(part: Part, full: Sequence[Access]) -> bool:
    """Whether most reads are of windows: a buffer is read at several near places, so that reads of whole vectors are out of line. A thread
    reads these one by one, whatever it holds, and its neighbours' lie side by side only where each has few.
    """
    places: dict[str, dict[sympy.Expr, None]] = {}
    for buffer, index in _loads(part):
        places.setdefault(buffer, {})[index] = None
    most = max(places.values(), key=len, default={})
    if len(most) < max(3, len(full) / 2) or len(most) > MOST_TOGETHER:
        return False
    first, *others = most
    apart = [expand(index - first) for index in others]
    return sum(bool(n.is_Integer and n % VECTOR) for n in apart) * 2 >= len(others)


def _loads(part: Part) -> Iterator[tuple[str, sympy.Expr]]:
    for value in _values(part):
        if isinstance(value, Load) and not value.gathers:
            yield value.buffer, sympy.sympify(value.index)


def _in_vectors(store: Store, part: Part, known: Mapping[str, Buffer]) -> bool:
    """Whether neighbouring points update floats side by side."""
    if not part.x or known[store.buffer].dtype is not DType.F32:
        return False
    inner = part.x[-1].symbol
    positions = [index_expr(v) for g in store.gathers for v in walk(g.value)]
    along = ix.coefficients(sympy.sympify(store.index), (inner,))
    return along is not None and along[1] == (1,) and not any(p is not None and inner in sympy.sympify(p).free_symbols for p in positions)


def together(parts: Sequence[Part]) -> bool:
    """Whether one launch may do all the parts, each in programs of its own: pointwise ones of which none reads what another writes."""
    for part in parts:
        others = [s for other in parts if other is not part for s in other.stores]
        if any(isinstance(v, Reduce | Scan) for v in _values(part)) or {s.buffer for s in part.stores} & loaded(others):
            return False
    return True


def portions(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts in order, dealt to launches of at most `MOST_TOGETHER` buffers and of about equal size; a part is not cut."""
    counts = [len({s.buffer for s in part.stores} | loaded(part.stores)) for part in parts]
    share = sum(counts) / math.ceil(sum(counts) / MOST_TOGETHER)
    dealt: list[list[Part]] = []
    held = 0
    for part, count in zip(parts, counts, strict=True):
        if not dealt or held + count > MOST_TOGETHER or held + count / 2 > share:
            dealt.append([])
            held = 0
        dealt[-1].append(part)
        held += count
    return dealt


def choose_together(parts: Sequence[Part], traits: Traits, flat: Tiling | None = None) -> list[Tiling]:
    """Tilings for parts of one launch, which share its number of warps; `flat` is given for those of one dimension."""
    if flat is None:
        flat = _flat(sum(_count((*part.x, *(a for a in part.stores[0].axes or () if a not in part.x))) for part in parts), traits)
    side = min(flat.xblock, 64 if flat.num_warps >= 4 else 32)
    return [_together(part, flat, side) if part.grid else flat for part in parts]


def _count(axes: tuple[Axis, ...]) -> int:
    total = 1
    for axis in axes:
        total *= hint(axis.extent)
    return total


def _flat(points: int, traits: Traits, elements: int = 256) -> Tiling:
    """Pointwise: `elements` for each warp; smaller blocks where there would be too few to go round."""
    xblock = 4 * elements
    while xblock > 128 and points < 2 * traits.processors * xblock:
        xblock //= 2
    xblock = min(xblock, power_of_two(points))
    return Tiling(xblock, num_warps=max(1, xblock // elements))


def _square(part: Part, traits: Traits) -> Tiling:
    """Tiles of 64 by 64, so that both sides are read and written in whole lines; of as many elements where the main store's lines are
    shorter. Those of the other side may be short: the lanes go on with the lines behind them.
    """
    (tile,) = _inner(part)
    side = min(64, power_of_two(hint(tile.extent)))
    rows = _count(part.x)
    many = sum(1 for _ in _loads(part)) > MANY_LOADS
    other = min((2048 if many else 4096) // side, power_of_two(rows))
    while other > 16 and rows * hint(tile.extent) < 2 * traits.processors * side * other:
        other //= 2
    return Tiling(other, rblock=side, num_warps=max(1, min(8, other * side // (256 if many else 512))))


def _together(part: Part, flat: Tiling, side: int) -> Tiling:
    """Of a part with two dimensions beside others in one launch."""
    return replace(flat, xblock=1, rblock=flat.xblock) if part.planes else _tile(part, flat, side)


def _tile(part: Part, flat: Tiling, side: int) -> Tiling:
    """The same for a part of a launch with others, in tiles of `side` squared elements."""
    (tile,) = _inner(part)
    rblock = min(side, power_of_two(hint(tile.extent)))
    return replace(flat, xblock=min(side * side // rblock, power_of_two(_count(part.x))), rblock=rblock)


def _inner(part: Part) -> tuple[Axis, ...]:
    """The axes of the stores that are not the part's outer ones."""
    return tuple({a: None for s in part.stores for a in s.axes or () if a not in part.x})


def _blocks(part: Part) -> Tiling:
    """Blocks of rows; what is reduced for each of them stays in registers."""
    rblock = min(ROW_BLOCK, power_of_two(_count(_inner(part))))
    return Tiling(1, persistent=MOST_ANEW, rblock=rblock, num_warps=max(1, rblock // 512))


def _wide_loads(part: Part, widest: int) -> int:
    """How many buffers have another element for each point of the widest rows."""
    extents = {a.symbol: hint(a.extent) for a in _axes(part) if a not in part.x}
    found: set[str] = set()
    for value in _values(part):
        if isinstance(value, Load):
            used = sympy.sympify(value.index).free_symbols
            if math.prod(n for s, n in extents.items() if s in used) >= widest:
                found.add(value.buffer)
    return len(found)


def _looped(rows: int, width: int, itemsize: int, loads: int, again: bool, traits: Traits) -> Tiling:
    """Rows in loops: narrow programs where there are many, loads of several steps in flight where there are few. A row that is read `again`
    should still be in the cache then: wide programs, of which few share a multiprocessor, with several steps in flight, too.
    """
    lanes = power_of_two(width)
    rblock, warps = (2048, 8) if rows >= 8 * traits.processors else (4096, 8) if rows >= 2 * traits.processors else (8192, 16)
    stages = 1 if again or rows >= 8 * traits.processors else 3
    if again and rows >= traits.processors:
        rblock, warps = (4096 if traits.processors * width * itemsize <= traits.cache else 8192), 16
        stages = max(1, min(4, traits.blocks_in_flight // (max(loads, 1) * rblock * itemsize)))
    while rblock > 256 and rblock > lanes:
        rblock, warps = rblock // 2, max(1, warps // 2)
    return Tiling(1, persistent=4 * rblock, rblock=rblock, num_warps=warps, num_stages=stages)


def _rows(rows: int, width: int, itemsize: int, loads: int, known: bool, again: bool, traits: Traits) -> Tiling:
    """Rows that lie along memory: in registers where they fit; in a loop, too, where their width is `known` at run time only. `again`:
    something of a row's length is stored, for which what was reduced is read once more. `loads`: rows that are read side by side.
    """
    lanes = power_of_two(width)
    odd = width * itemsize % 16 != 0  # loads of single elements take registers, too; in a loop they are aligned
    most_lanes = MOST_ODD if odd else PERSISTENT if again else PERSISTENT // 2
    if lanes > most_lanes or not known or (again and lanes * loads > MOST_KEPT):
        return _looped(rows, width, itemsize, loads, again, traits)
    xblock = max(1, min(power_of_two(rows), 1024 // lanes))
    while xblock > 1 and rows < traits.processors * xblock:
        xblock //= 2
    most = 8 if rows >= 8 * traits.processors else 32 if lanes > 8192 else 16
    warps = 1 << max(0, round(math.log2(max(width * xblock / ELEMENTS, 1))))
    return Tiling(
        xblock, persistent=PERSISTENT, rblock=4096, num_warps=max(min(warps, most), lanes * xblock // (2048 if lanes > 16384 else 4096))
    )


def _product(product: Product, traits: Traits) -> Tiling:
    """Narrow blocks, so that every processor reads a part of the columns' side; long steps where the processors are hardly filled."""
    rows, columns, depth = product.size
    if rows >= MANY:
        return _many_rows(product, traits)
    few, many = next(blocks for most, *blocks in PRODUCTS if rows <= most)
    xblock, rblock, step, stages = many if columns >= traits.processors * 32 else few
    if xblock > 16 and columns < traits.processors * 16:
        xblock, rblock, step, stages = 32, 16, 256, 3
    return Tiling(xblock, rblock=rblock, depth=min(step, power_of_two(depth)), num_warps=4, num_stages=stages)


def _many_rows(product: Product, traits: Traits) -> Tiling:
    """As many columns as a block holds, so that the rows, which cost memory, are read seldom; smaller blocks where those would be few, and
    fewer steps in flight where several sums would fill the shared memory.
    """
    rows, columns, depth = product.size
    rblock = min(128, power_of_two(columns))
    few = (rows // 64) * -(-columns // rblock) < 2 * traits.processors
    rblock = min(rblock, 64) if few else rblock
    step = 32 if depth <= 64 else 64
    lines = 64 * len({s.left for s in product.sums}) + rblock * len({s.right for s in product.sums})
    stages = min(4 if few else 3, max(1, traits.blocks_in_flight // (lines * step * HALF)))
    return Tiling(64, rblock=rblock, depth=step, num_warps=4, num_stages=stages)


def _across(part: Part, known: Mapping[str, Buffer]) -> bool:
    """Whether neighbours in memory lie along the outer axes: reductions of columns."""
    own = {a.symbol for a in part.x}
    along = across = 0
    for access in accesses(part, known):
        fast = [s for s, n in access.strides.items() if n == 1]
        if fast:
            size = access.points * access.itemsize
            along, across = (along, across + size) if fast[-1] in own else (along + size, across)
    return across > along


def _columns(rows: int, width: int, part: Part, known: Mapping[str, Buffer], traits: Traits) -> Tiling:
    """Columns: a line of neighbours, fewer where programs would be few, and many rows of them at a time."""
    itemsize = min((known[b].dtype.itemsize for b, _ in _indices(part)), default=4)
    xblock = max(1, min(traits.line // itemsize, power_of_two(rows)))
    while xblock * itemsize > traits.sector and rows < 2 * traits.processors * xblock:
        xblock //= 2
    lanes = power_of_two(width)
    run = min(hint(part.x[-1].extent), rows) if part.x else 1
    if lanes * xblock < 4096 and rows >= 8 * traits.processors * 4096 // lanes:  # few rows of each column: more columns, and much a thread
        wide = min(4096 // lanes, power_of_two(run))
        if wide > xblock:
            return Tiling(wide, persistent=lanes, rblock=lanes, num_warps=max(1, wide * lanes // 1024))
    rblock = max(1, min(lanes, 4096 // xblock))
    warps = max(1, min(8, xblock * rblock // 128))
    return Tiling(xblock, persistent=rblock, rblock=rblock, num_warps=warps)
