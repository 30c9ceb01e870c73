"""Writes one `Part` of a kernel as the body of a Triton function.

Outer points are lanes of dimension 0 ("x"); the points of a reduction, and a store's remaining axes, are lanes of dimension 1, a *tile*.
Tiles of equal extents share their symbols, so that a row that is normalised is loaded once. A tile that fits is evaluated at once, a
longer one in loops, one for each level of reductions that need one another.
"""

from __future__ import annotations

from typing import Any

import sympy

from precast.codegen.triton_index import write_index
from precast.codegen.triton_ops import COMBINE, TYPES, Unsupported, identity, literal, operand_type, write
from precast.codegen.triton_tiling import Part, Tiling, loaded, power_of_two, static
from precast.codegen.triton_values import in_tiles, kind
from precast.codegen.values import Facts, store_roots
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
    Store,
    Value,
    operands,
    walk,
)

INDEXED = (ReduceOp.ARGMIN, ReduceOp.ARGMAX)
NARROW = (DType.I16, DType.I8, DType.U8)
ATOMICS = {"add": "tl.atomic_add", "min": "tl.atomic_min", "max": "tl.atomic_max"}


class Lanes:
    """One dimension of a block: its symbols, how many points there are and how many lanes at a time."""

    def __init__(self, name: str, axes: tuple[Axis, ...], block: int, looped: bool) -> None:
        self.name, self.axes, self.block, self.looped = name, axes, block, looped
        self.symbols = frozenset(a.symbol for a in axes)
        count = static(a.extent for a in axes)
        self.mask = "" if count is not None and count > 0 and count % block == 0 else f"{name}_mask"


class Body:
    """The lines of one part; `buffers`, `sizes` and `checks` are what they turned out to need."""

    def __init__(self, part: Part, known: dict[str, Buffer], tiling: Tiling, index_type: str) -> None:
        self.known, self.index_type = known, index_type
        self.facts = Facts()
        tiles: dict[tuple[object, ...], tuple[Axis, ...]] = {}
        self.stores = [in_tiles(store, part.x, tiles, self.facts) for store in part.stores]
        self.x = Lanes("x", part.x, tiling.xblock, looped=False)
        self.tiles = [_tile(f"t{n}", axes, tiling) for n, axes in enumerate(tiles.values())]
        self.rank = 2 if self.tiles else 1
        self.lines: list[str] = []
        self.names: dict[object, str] = {}
        self.inner_lines: list[str] = []
        self.inner_names: dict[object, str] = {}
        self.loop: Lanes | None = None
        self.count = 0
        self.buffers: dict[str, None] = {}
        self.sizes: dict[str, None] = {}
        self.used: set[sympy.Symbol] = set()
        self.checks = False

    def write(self) -> list[str]:
        """The function's lines."""
        reductions = [v for v in walk(*(root for s in self.stores for root in store_roots(s))) if isinstance(v, Reduce)]
        levels: dict[Reduce, int] = {}
        for r in reductions:
            levels[r] = 1 + max((levels[v] for v in walk(r.value) if isinstance(v, Reduce)), default=0)
        for level in sorted(set(levels.values())):
            for tile in self.tiles:
                self._reduce([r for r in reductions if levels[r] == level and r.axes is tile.axes], tile)
        self._store_all()
        return [*self._header(), *self.lines]

    # -- lanes

    def _lane(self, lanes: Lanes) -> str:
        shape = "" if self.rank == 1 else "[:, None]" if lanes is self.x else "[None, :]"
        return f"tl.arange(0, {lanes.block}){shape}"

    def _header(self) -> list[str]:
        program = "tl.program_id(0)" if self.index_type == "tl.int32" else "tl.program_id(0).to(tl.int64)"
        lines = [f"x = {program} * {self.x.block} + {self._lane(self.x)}", *self._points(self.x)]
        for tile in self.tiles:
            if not tile.looped:
                lines += [f"{tile.name} = {self._lane(tile)}", *self._points(tile)]
        return lines

    def _points(self, lanes: Lanes) -> list[str]:
        """Lines for the mask and for those axis symbols that are used."""
        lines = [f"{lanes.mask} = {lanes.name} < {self._extent(lanes.axes)}"] if lanes.mask else []
        for position, axis in enumerate(lanes.axes):
            if axis.symbol not in self.used:
                continue
            below = self._extent(lanes.axes[position + 1 :])
            text = lanes.name if below == "1" else f"{lanes.name} // {below}"
            if position:
                text = f"({text}) % {self._extent((axis,))}" if "/" in text else f"{text} % {self._extent((axis,))}"
            lines.append(f"{axis.symbol} = {text}")
        return lines

    def _extent(self, axes: tuple[Axis, ...]) -> str:
        total: sympy.Expr = sympy.Mul(*(sympy.sympify(a.extent) for a in axes))
        text = write_index(total, self._name)
        return text if total.is_Integer or total.is_Symbol else f"({text})"

    def _lanes_of(self, *parts: Value | sympy.Expr) -> list[Lanes]:
        """The dimensions along which these vary."""
        symbols: set[sympy.Symbol] = set()
        for part in parts:
            symbols |= part.free_symbols if isinstance(part, sympy.Basic) else self.facts.deps(part)  # type: ignore[arg-type]
        return [lanes for lanes in (self.x, *self.tiles) if lanes.symbols & symbols]

    def _mask(self, lanes: list[Lanes], *more: str) -> str:
        return " & ".join([*(n.mask for n in lanes if n.mask), *(m for m in more if m)])

    def _wide(self, text: str, have: list[Lanes], want: list[Lanes]) -> str:
        """An index of `have`'s dimensions spread over those of `want` too: pointers must have the shape of what they are masked with."""
        return " + ".join([text, *(f"{n.name} * 0" for n in want if n not in have)])

    # -- names and lines

    def _name(self, symbol: sympy.Symbol) -> str:
        for lanes in (self.x, *self.tiles):
            if symbol in lanes.symbols:
                self.used.add(symbol)
                return str(symbol)
        self.sizes[str(symbol)] = None
        return str(symbol)

    def _line(self, key: object, text: str, lanes: list[Lanes], name: str = "") -> str:
        """Defines a name, inside the loop only where it must be."""
        if not name:
            name, self.count = f"v{self.count}", self.count + 1
        inner = self.loop is not None and self.loop in lanes
        (self.inner_lines if inner else self.lines).append(f"{name} = {text}" if name != "_" else text)
        (self.inner_names if inner else self.names)[key] = name
        return name

    def _known(self, key: object) -> str | None:
        return self.inner_names.get(key) or self.names.get(key)

    def emit(self, root: Value) -> str:
        """The name that holds `root`, written now unless it already is."""
        stack = [root]
        while stack:
            node = stack[-1]
            if self._known(node) is not None:
                stack.pop()
                continue
            missing = [o for o in operands(node) if self._known(o) is None] if not isinstance(node, Reduce) else []
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            for lanes in self._lanes_of(node):
                if lanes.looped and lanes is not self.loop:
                    raise Unsupported(f"a value varies along {lanes.name} outside its loop")
            self._line(node, self._text(node), self._lanes_of(node))
        return self._known(root) or ""

    def _text(self, node: Value) -> str:
        match node:
            case Const(value=value, dtype=dtype):
                return f"tl.full({[1] * self.rank}, {literal(value, dtype.compute)}, {TYPES[dtype.compute]})"
            case Index(expr=expr, dtype=dtype):
                text = write_index(expr, self._name)
                if not self._lanes_of(expr):
                    return f"tl.full({[1] * self.rank}, 0, {TYPES[dtype.compute]}) + {text}"
                return f"({text}).to({TYPES[dtype.compute]})"
            case Load():
                return self._load(node)
            case Cast(value=value, dtype=dtype):
                return self._cast(self.emit(value), kind(value), dtype)
            case Alu(op=Op.BITCAST, args=(value,), dtype=dtype):
                return _bitcast(self.emit(value), value.dtype, dtype)
            case Alu(op=op, args=args, dtype=dtype):
                names = tuple(self.emit(a) for a in args)
                text = write(op, operand_type(op, tuple(kind(a) for a in args), dtype.compute), names)
                return f"({text}).to({TYPES[dtype]})" if dtype in NARROW else text
            case Reduce():
                raise Unsupported("a reduction that was not placed")
            case Scan():
                raise Unsupported("scans have no Triton form yet")

    def _cast(self, name: str, source: DType, target: DType) -> str:
        if target is DType.BOOL:
            return name if source is DType.BOOL else f"{name} != 0"
        if target.compute is not target:
            return f"{name}.to({TYPES[target]}).to(tl.float32)"
        if source.is_float and target in NARROW:
            return f"{name}.to(tl.int32).to({TYPES[target]})"
        return f"{name}.to({TYPES[target]})"

    # -- memory

    def _pointer(self, buffer: str) -> str:
        if self.known[buffer].dtype not in TYPES:
            raise Unsupported(f"{buffer} holds {self.known[buffer].dtype.value}")
        self.buffers[buffer] = None
        return buffer

    def _gathers(self, gathers: tuple[Gather, ...], mask: Value | None) -> tuple[dict[sympy.Symbol, str], list[str]]:
        """Names of the gathered positions, and the conditions under which they are in range."""
        names: dict[sympy.Symbol, str] = {}
        inside: list[str] = []
        for gather in gathers:
            key = (gather.value, gather.size, mask)
            known = self._known(key)
            if known is None:
                known = self._gather(key, gather, mask)
            names[gather.symbol] = known
            if gather.checked:
                inside.append(f"{known}_inside")
        return names, inside

    def _gather(self, key: object, gather: Gather, mask: Value | None) -> str:
        lanes = self._lanes_of(gather.value)
        size = write_index(gather.size, self._name)
        raw = f"{self.emit(gather.value)}.to({self.index_type})"
        name = self._line((key, "raw"), raw, lanes)
        name = self._line(key, f"tl.where({name} < 0, {name} + {size}, {name})", lanes)
        if not gather.checked:
            return name
        self.checks = True
        self._line((key, "inside"), f"({name} >= 0) & ({name} < {size})", lanes, f"{name}_inside")
        wide = self._lanes_of(gather.value, mask) if mask is not None else lanes
        bad = self._mask(wide, "" if mask is None else self.emit(mask), f"({name}_inside == 0)")
        self._line((key, "check"), f"tl.store({self._wide(f'error_ptr + {name} * 0', lanes, wide)}, 1, {bad})", wide, "_")
        return name

    def _load(self, node: Load) -> str:
        pointer = self._pointer(node.buffer)
        names, inside = self._gathers(node.gathers, node.mask)
        text = write_index(node.index, lambda s: names.get(s) or self._name(s))
        have = self._lanes_of(*(g.value for g in node.gathers), *_free(node.index, names))
        want = self._lanes_of(node)
        if not have:
            text = (
                f"tl.full({[1] * self.rank}, {text}, {self.index_type})"
                if text.isdecimal()
                else f"tl.full({[1] * self.rank}, 0, {self.index_type}) + {text}"
            )
        mask = self._mask(want, "" if node.mask is None else self.emit(node.mask), *inside)
        arguments = f", {mask}, other=0" if mask else ""
        return f"tl.load({pointer}_ptr + {_operand(self._wide(text, have, want))}{arguments}).to({TYPES[kind(node)]})"

    def _store(self, store: Store) -> tuple[str, list[Lanes]]:
        pointer = self._pointer(store.buffer)
        target = self.known[store.buffer].dtype
        names, inside = self._gathers(store.gathers, store.mask)
        text = write_index(store.index, lambda s: names.get(s) or self._name(s))
        have = self._lanes_of(*(g.value for g in store.gathers), *_free(store.index, names))
        axes = store.axes or ()
        want = [self.x, *(t for t in self.tiles if t.axes and t.axes[0] in axes)]
        once = [f"({self._name(a.symbol)} == 0)" for a in self.x.axes if a not in axes]
        mask = self._mask(want, *once, "" if store.mask is None else self.emit(store.mask), *inside)
        value = self.emit(store.value)
        if kind(store.value) is not target.compute:
            value = self._cast(value, kind(store.value), target)
        address = f"{pointer}_ptr + {_operand(self._wide(text, have, want))}"
        tail = f", {mask}" if mask else ""
        if store.mode == "set":
            return f"tl.store({address}, {value}{tail})", want
        if (
            store.mode not in ATOMICS
            or target.compute is not target
            or target in (*NARROW, DType.BOOL)
            or (store.mode != "add" and target.is_float)
        ):
            raise Unsupported(f"atomic {store.mode} on {target.value}")
        return f"{ATOMICS[store.mode]}({address}, {value}{tail or ', None'}, sem='relaxed')", want

    def _store_all(self) -> None:
        """Stores without a loop together at the end, then one loop for each long tile."""
        loops = [t for t in self.tiles if t.looped and any(t.axes[0] in (s.axes or ()) for s in self.stores)]
        if len(loops) + (len(loops) < len(self.stores)) > 1 and {s.buffer for s in self.stores} & loaded(self.stores):
            raise Unsupported("an in-place kernel whose stores need several loops")
        for loop in (None, *loops):
            stores = [s for s in self.stores if next((t for t in loops if t.axes[0] in (s.axes or ())), None) is loop]
            self.loop = loop
            written = [self._store(s)[0] for s in stores]
            if loop is not None:
                self.inner_lines += written
                self._close(loop, [])
            else:
                self.lines += written

    # -- reductions

    def _reduce(self, reductions: list[Reduce], tile: Lanes) -> None:
        """The reductions of one level over one tile: at once, or together in one loop."""
        if reductions and tile.looped:
            self._reduce_in_loop(reductions, tile)
            return
        for r in reductions:
            value, item = self._item(r)
            if tile.mask or tile not in self._lanes_of(r.value):
                fill = f"tl.full([1, 1], {identity(r.op, item)}, {TYPES[item]})"
                value = f"tl.where({tile.mask or f'{tile.name} >= 0'}, {value}, {fill})"
            self._result(r, value, tile.name)

    def _reduce_in_loop(self, reductions: list[Reduce], tile: Lanes) -> None:
        self.loop = tile
        starts: list[str] = []
        finished: list[tuple[Reduce, str]] = []
        keep = tile.mask or f"({tile.name} >= 0)"
        for r in reductions:
            value, item = self._item(r)
            name, self.count = f"a{self.count}", self.count + 1
            shape = f"[{self.x.block}, {tile.block}]"
            starts.append(f"{name} = tl.full({shape}, {identity(r.op, item)}, {TYPES[item]})")
            if r.op in INDEXED:
                starts.append(f"{name}_at = tl.full({shape}, {(1 << 31) - 1}, tl.int64)")
                self.inner_lines += [
                    f"{name}_new, {name}_next = {COMBINE[r.op]}({name}, {name}_at, {value}, {tile.name}.to(tl.int64))",
                    f"{name}_at = tl.where({keep}, {name}_next, {name}_at)",
                    f"{name} = tl.where({keep}, {name}_new, {name})",
                ]
            else:
                self.inner_lines.append(f"{name} = tl.where({keep}, {COMBINE[r.op]}({name}, {value}), {name})")
            finished.append((r, name))
        self._close(tile, starts)
        for r, name in finished:
            self._result(r, name, f"{name}_at")

    def _close(self, tile: Lanes, starts: list[str]) -> None:
        """Puts the loop that was being written behind what stands outside."""
        lines = [f"{tile.name} = {tile.name}_start + {self._lane(tile)}", *self._points(tile), *self.inner_lines]
        head = f"for {tile.name}_start in range(0, {self._extent(tile.axes)}, {tile.block}):"
        self.lines += [*starts, head, *(f"    {line}" for line in lines)]
        self.inner_lines, self.inner_names, self.loop = [], {}, None

    def _item(self, r: Reduce) -> tuple[str, DType]:
        """The name of what is reduced, in the type that the accumulator has, and that type."""
        value = self.emit(r.value)
        source = kind(r.value)
        target = source if r.op in INDEXED else DType.BOOL if r.op in (ReduceOp.ANY, ReduceOp.ALL) else r.dtype.compute
        if target in (*NARROW, DType.BOOL) and r.op in INDEXED or (target is DType.BOOL and r.op in (ReduceOp.MIN, ReduceOp.MAX)):
            target = DType.I32
        if source is target:
            return value, target
        key = (r.value, "as", target)
        return self._known(key) or self._line(key, self._cast(value, source, target), self._lanes_of(r.value)), target

    def _result(self, r: Reduce, items: str, places: str) -> None:
        """Combines the lanes of dimension 1; `places` are their linear positions, for index reductions."""
        varies, combine = self._lanes_of(r), COMBINE[r.op]
        if r.op in INDEXED:
            name = self._line((r, "items"), items, varies)
            place = self._line((r, "places"), f"{places} + tl.zeros_like({name}).to(tl.int64)", varies)
            found, self.count = f"v{self.count}", self.count + 1
            self._line((r, "best"), f"{found}_best, {found} = tl.reduce(({name}, {place}), 1, {combine}, keep_dims=True)", varies, "_")
            self.names[r] = found
            return
        if r.op in (ReduceOp.ANY, ReduceOp.ALL):
            text = f"tl.reduce(({items}).to(tl.int32), 1, {combine}, keep_dims=True) != 0"
        else:
            text = f"tl.sum({items}, 1, keep_dims=True)" if r.op is ReduceOp.SUM else f"tl.reduce({items}, 1, {combine}, keep_dims=True)"
            if r.dtype.compute is DType.BOOL:
                text = f"{text} != 0"
        self._line(r, text, varies)


def _tile(name: str, axes: tuple[Axis, ...], tiling: Tiling) -> Lanes:
    count = static(a.extent for a in axes)
    looped = count is None or count > tiling.persistent
    return Lanes(name, axes, tiling.rblock if looped else power_of_two(count or 1), looped)


def _free(index: sympy.Expr, names: dict[sympy.Symbol, str]) -> list[sympy.Expr]:
    expr: Any = sympy.sympify(index)
    return sorted((s for s in expr.free_symbols if s not in names), key=str)


def _operand(text: str) -> str:
    return f"({text})" if " " in text else text


def _bitcast(name: str, source: DType, target: DType) -> str:
    """Reinterprets bits of equal width; half types through their own storage."""
    if source.compute is not source:
        name = f"{name}.to({TYPES[source]})"
    text = f"{name}.to({TYPES[target]}, bitcast=True)"
    return text if target.compute is target else f"{text}.to(tl.float32)"
