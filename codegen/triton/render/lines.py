"""Emits values as lines of a Triton function: each distinct value is one variable, defined inside a loop only where it varies with it."""

from __future__ import annotations

import sympy

from precast.codegen.common.value_facts import Facts, static_product
from precast.codegen.triton.render.index_printer import write_index
from precast.codegen.triton.render.lanes import Lanes, Run
from precast.codegen.triton.render.ops import TYPES, Unsupported, literal, operand_type, write
from precast.codegen.triton.render.tiling import Part, Tiling, power_of_two
from precast.codegen.triton.render.value_rewrites import beside_one, in_tiles, kind, rough_values
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.index import bounds
from precast.lowering.ir.nodes import Alu, Axis, Buffer, Cast, Const, Index, Load, Reduce, Scan, Value, operands, walk
from precast.lowering.ir.scalars import COMPARISONS, DType, Op

NARROW = (DType.I16, DType.I8, DType.U8)


class Lines:
    """The lines of one part. `buffers`, `sizes`, `checks` and `functions` (name by the text after the name) collect what the lines use."""

    def __init__(self, part: Part, known: dict[str, Buffer], tiling: Tiling, index_type: str) -> None:
        self.part, self.known, self.tiling, self.index_type = part, known, tiling, index_type
        self.facts = Facts()
        tiles: dict[tuple[object, ...], tuple[Axis, ...]] = {}
        self.stores = [in_tiles(store, part.x, tiles, self.facts) for store in part.stores]
        self.rough, self.beside = rough_values(self.stores, known), beside_one(self.stores)
        self.x = Lanes("x", part.x, tiling.xblock, "grid")
        reduced = {v.axes for v in walk(*(r for s in self.stores for r in store_roots(s))) if isinstance(v, Reduce)}
        self.tiles = [self._tile(f"t{n}", axes, part.grid and axes not in reduced) for n, axes in enumerate(tiles.values())]
        self.rank = 2 if self.tiles else 1
        self.lines: list[str] = []
        self.names: dict[object, str] = {}
        self.loop: Lanes | None = None
        self.starts: list[str] = []
        self.inner_lines: list[str] = []
        self.inner_names: dict[object, str] = {}
        self.scanned = False
        self.marks: list[tuple[sympy.Expr, int]] = []
        self.count = 0
        self.buffers: dict[str, int] = {}
        self.sizes: dict[sympy.Symbol, int] = {}
        self.checks = False
        self.functions: dict[str, str] = {}

    def _tile(self, name: str, axes: tuple[Axis, ...], grid: bool) -> Lanes:
        count = static_product(a.extent for a in axes)
        if grid:
            return Lanes(name, axes, self.tiling.rblock, "grid")
        if count is None or count > self.tiling.persistent:
            return Lanes(name, axes, self.tiling.rblock, "loop")
        return Lanes(name, axes, power_of_two(count or 1), "whole")

    # -- lanes

    def lane(self, lanes: Lanes) -> str:
        shape = "" if self.rank == 1 else "[:, None]" if lanes is self.x else "[None, :]"
        wide = ".to(tl.int64)" if self.index_type == "tl.int64" else ""
        return f"tl.arange(0, {lanes.block}){shape}{wide}"

    def lanes_of(self, *parts: Value | sympy.Expr) -> list[Lanes]:
        """The dimensions of the block along which these values vary."""
        symbols: set[sympy.Symbol] = set()
        for part in parts:
            symbols |= part.free_symbols if isinstance(part, sympy.Basic) else self.facts.deps(part)  # type: ignore[arg-type]
        return [lanes for lanes in (self.x, *self.tiles) if lanes.symbols & symbols]

    def mask(self, lanes: list[Lanes], *more: str) -> str:
        return " & ".join([*(n.mask for n in lanes if n.mask), *(m for m in more if m)])

    def index(self, expr: sympy.Expr, names: dict[sympy.Symbol, str]) -> str:
        """An index expression; `names` are those of gathered positions."""
        joined = sympy.sympify(expr)
        for lanes in (self.x, *self.tiles):
            joined = lanes.joined(joined)
        return write_index(joined, lambda s: names.get(s) or self.name(s))

    # -- names and lines

    def name(self, symbol: sympy.Symbol) -> str:
        """An axis' position, or a size."""
        for lanes in (self.x, *self.tiles):
            if symbol in lanes.used:
                return str(symbol)
            for position, axis in enumerate(lanes.axes):
                if symbol is axis.symbol:
                    return str(lanes.symbol(Run(position, position)))
        return self.size(symbol)

    def size(self, symbol: sympy.Symbol) -> str:
        return f"size{self.sizes.setdefault(symbol, len(self.sizes))}"

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"

    def line(self, key: object, text: str, lanes: list[Lanes], name: str = "") -> str:
        """Defines a name, inside the loop only where it must be."""
        name = name or self.fresh()
        inner = self.loop is not None and self.loop in lanes
        (self.inner_lines if inner else self.lines).append(f"{name} = {text}" if name != "_" else text)
        (self.inner_names if inner else self.names)[key] = name
        return name

    def found(self, key: object) -> str | None:
        return self.inner_names.get(key) or self.names.get(key)

    def emit(self, root: Value) -> str:
        """The name that holds `root`, written now unless it already is."""
        stack = [root]
        while stack:
            node = stack[-1]
            if self.found(node) is not None:
                stack.pop()
                continue
            inputs = () if isinstance(node, Reduce) or self._compares_positions(node) else operands(node)
            missing = [o for o in inputs if self.found(o) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            for lanes in self.lanes_of(node):
                if lanes.looped and lanes is not self.loop:
                    raise Unsupported(f"a value varies along {lanes.name} outside its loop")
            if isinstance(node, Scan):
                self.scan(node)
            else:
                self.line(node, self._text(node), self.lanes_of(node))
        return self.found(root) or ""

    def scan(self, node: Scan) -> None:
        raise NotImplementedError

    def load(self, node: Load) -> str:
        raise NotImplementedError

    def _text(self, node: Value) -> str:
        match node:
            case Const(value=value, dtype=dtype):
                return f"tl.full({[1] * self.rank}, {literal(value, dtype.compute)}, {TYPES[dtype.compute]})"
            case Index(expr=expr, dtype=dtype):
                return self._index_value(expr, dtype)
            case Load():
                return self.load(node)
            case Cast(value=value, dtype=dtype):
                return self.cast(self.emit(value), kind(value), dtype)
            case Alu(op=Op.BITCAST, args=(value,), dtype=dtype):
                return _bitcast(self.emit(value), value.dtype, dtype)
            case Alu(op=op, args=args, dtype=dtype):
                if self._compares_positions(node):  # in the type of index arithmetic: 64-bit comparisons cost twice
                    return write(op, DType.I32, tuple(self._position(a) for a in args))
                names = tuple(self.emit(a) for a in args)
                text = write(
                    op, operand_type(op, tuple(kind(a) for a in args), dtype.compute), names, node in self.rough, node in self.beside
                )
                return f"({text}).to({TYPES[dtype]})" if dtype in NARROW else text
            case Reduce() | Scan():
                raise Unsupported("a reduction that was not placed")

    def _index_value(self, expr: sympy.Expr, dtype: DType) -> str:
        if not self.lanes_of(expr):
            return f"tl.full({[1] * self.rank}, 0, {TYPES[dtype.compute]}) + {self.index(expr, {})}"
        if self._fits(expr):
            return f"({self.index(expr, {})}).to({TYPES[dtype.compute]})"
        text = write_index(expr, lambda s: f"{self.name(s)}.to(tl.int64)" if self.lanes_of(s) else self.name(s))
        return f"({text}).to({TYPES[dtype.compute]})"

    def _fits(self, expr: sympy.Expr) -> bool:
        """Whether the expression's values are known to fit 32 bits."""
        extents = tuple((a.symbol, a.extent) for lanes in (self.x, *self.tiles) for a in lanes.axes if a.symbol in expr.free_symbols)
        found = bounds(sympy.sympify(expr), extents)
        return found is not None and all(isinstance(b, int) and abs(b) < 1 << 31 for b in found)

    def _compares_positions(self, node: Value) -> bool:
        """Whether this compares index expressions with one another or with small numbers."""
        if not isinstance(node, Alu) or node.op not in COMPARISONS or len(node.args) != 2:
            return False
        return all(_small(a) or (isinstance(a, Index) and a.dtype.is_int and self._fits(a.expr)) for a in node.args) and any(
            isinstance(a, Index) and self.lanes_of(a.expr) for a in node.args
        )

    def _position(self, value: Value) -> str:
        if isinstance(value, Const):
            return literal(value.value, DType.I64)
        assert isinstance(value, Index)
        text = self.index(value.expr, {})
        return f"({text})" if " " in text else text

    def cast(self, name: str, source: DType, target: DType) -> str:
        """`name`, of type `source` in registers, as `target`'s."""
        if target is DType.BOOL:
            return name if source is DType.BOOL else f"{name} != 0"
        if target.compute is not target:
            return f"{name}.to({TYPES[target]}).to(tl.float32)"
        if source.is_float and target in NARROW:
            return f"{name}.to(tl.int32).to({TYPES[target]})"
        return f"{name}.to({TYPES[target]})"


def _small(value: Value) -> bool:
    return isinstance(value, Const) and value.dtype.is_int and abs(value.value) < 1 << 31


def _bitcast(name: str, source: DType, target: DType) -> str:
    """Reinterprets bits of equal width; half types through their own storage."""
    if source.compute is not source:
        name = f"{name}.to({TYPES[source]})"
    text = f"{name}.to({TYPES[target]}, bitcast=True)"
    return text if target.compute is target else f"{text}.to(tl.float32)"
