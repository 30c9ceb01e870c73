"""Straight-line C++ for values: each value is written once, at the loop level of the axes that it depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import sympy

from precast.codegen.common.decided import decided
from precast.codegen.common.index_facts import free_symbols, stride_along
from precast.codegen.common.value_facts import Facts, float_bounds, substitute
from precast.codegen.cpp.index_printer import IndexPrinter
from precast.codegen.cpp.ops import bounded, cast, render
from precast.codegen.cpp.planning.loop_plan import has_loop, unrolled
from precast.codegen.cpp.reductions import identity, inline_fold, row_scan_lines, update_lines
from precast.codegen.cpp.types import COMPUTE, literal, load
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import Alu, Axis, Buffer, Cast, Const, Gather, Index, Load, Reduce, Scan, Value, operands, walk
from precast.lowering.ir.ranges import Interval, interval
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.sympy_calls import expand

INT32_RANGE = (-(2**31), 2**31 - 1)
LARGEST_HALF = 65504.0
COMPARES = (Op.LT, Op.LE, Op.EQ, Op.NE)


@dataclass
class Level:
    """One loop (or the function's top): the lines of its body so far and the values named in it."""

    axes: frozenset[sympy.Symbol]
    indent: int
    lines: list[str] = field(default_factory=list)
    names: dict[object, str] = field(default_factory=dict)
    simd: bool = False

    def add(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)


@dataclass
class ScanState:
    """Carried accumulators of a scan: `acc` and, for index scans, `index`; arrays over lanes when `lane` names the lane variable."""

    acc: str
    index: str = ""


DIVISIONS = (Op.FLOORDIV, Op.TRUNCDIV, Op.MOD, Op.REM)
DIVIDED_BY_0 = -2
"""Stands for a dimension in what a kernel reports (`templates.py`)."""
NO_INDEX_ERROR = 1 << 16
"""Added to the dimension where a position outside of it is to be a RuntimeError, not an IndexError."""


class Body:
    """Writes values into the current path of loop levels."""

    def __init__(
        self,
        facts: Facts,
        buffers: dict[str, Buffer],
        pointers: dict[str, str],
        variables: dict[sympy.Symbol, str],
        ranges: dict[sympy.Symbol, Interval | None],
        index_type: str,
    ) -> None:
        self.facts = facts
        self.buffers = buffers
        self.pointers = pointers
        self.variables = variables
        self.ranges = ranges
        self.index_type = index_type
        self.path: list[Level] = []
        self.made: dict[int, str] = {}
        self.scans: dict[int, ScanState] = {}
        self.tiles: dict[int, str] = {}
        """Where loads and stores (by id) of a block find their elements, turned: see `transposes.py`."""
        self.positions: dict[tuple[int, int], str] = {}
        """Where positions of gathers (by the gather's id and that of its load's mask) lie that an earlier section made."""
        self.bad: dict[int, list[str]] = {}
        self.counter = 0
        self.checks = False
        self.truncates = False
        """Whether floats become integers: where those become floats again, the compiler would make one truncation of both, which is another
        function of what is no integer's (and of -0.5). It cannot where it does not see that `nothing` is 0."""
        self._keep: list[object] = []

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def variable(self, symbol: sympy.Symbol) -> str:
        """The C++ variable of an axis or size symbol."""
        if symbol not in self.variables:
            self.variables[symbol] = f"x{len(self.variables)}"
        return self.variables[symbol]

    def home(self, deps: frozenset[sympy.Symbol]) -> Level:
        """The innermost level among those whose loops `deps` mentions."""
        for level in reversed(self.path):
            if level.axes & deps:
                return level
        return self.path[0]

    def value(self, root: Value) -> str:
        """Name (or literal) of `root`, written with everything that it needs."""
        stack: list[tuple[Value, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if self.known(node) is not None:
                continue
            if ready or not (needed := self._needed(node)):
                self._define(node)
                continue
            stack.append((node, True))
            stack.extend((n, False) for n in reversed(needed))
        name = self.known(root)
        assert name is not None
        return name

    def known(self, node: Value) -> str | None:
        if id(node) in self.made:
            return self.made[id(node)]
        if isinstance(node, Const):
            text = literal(node.value, node.dtype)
            return f"({text})" if text.startswith("-") else text
        return self.home(self.facts.deps(node)).names.get(id(node))

    def _needed(self, node: Value) -> tuple[Value, ...]:
        if isinstance(node, Reduce):
            return ()
        if self._narrow(node) is not None:
            return ()
        if isinstance(node, Alu) and node.op is Op.WHERE and self._masked_by(node.args[1], node.args[0], node.dtype):
            return (*operands(node.args[1]), node.args[2])
        inner = gelu_operand(node)
        return operands(node) if inner is None else (inner,)

    def _define(self, node: Value) -> None:
        self._keep.append(node)
        level = self.home(self.facts.deps(node))
        if isinstance(node, Reduce):
            level.names[id(node)] = self._inline_reduce(node, level)
            return
        if isinstance(node, Scan):
            level.names[id(node)] = self._scan(node, level)
            return
        text = self._expression(node, level)
        name = self.fresh("v")
        level.add(f"const {COMPUTE[node.dtype]} {name} = {text};")
        level.names[id(node)] = name

    def _expression(self, node: Value, level: Level) -> str:
        match node:
            case Alu(op=op, args=args, dtype=dtype):
                narrow = self._narrow(node)
                if narrow is not None:
                    return narrow
                if op is Op.WHERE and self._masked_by(args[1], args[0], dtype):
                    assert isinstance(args[1], Load)
                    return self._load(args[1], level, self.value(args[2]))
                if op is Op.WHERE and dtype.compute is DType.F32 and level.axes and not self.facts.deps(args[0]) & level.axes:
                    return self._select(args[0], self.value(args[1]), self.value(args[2]), dtype, level)
                inner = gelu_operand(node)
                if inner is not None:
                    return f"gelu_f32({self.value(inner)})"
                if op in DIVISIONS and dtype.is_int:
                    self._check_divisor(node, args[1], level)
                if op in (Op.MIN, Op.MAX) and dtype.is_float and (bound := _bound(args)) is not None:
                    return bounded(op, self.value(args[1 - bound]), self.value(args[bound]))
                return render(op, tuple(self.value(a) for a in args), tuple(a.dtype for a in args), dtype)
            case Cast(value=v, dtype=dtype):
                if isinstance(v, Index) and self._fits(v.expr) and dtype.is_float:
                    return cast(f"(int32_t){self.index(v.expr)}", DType.I32, dtype)
                name = self.value(v)
                if dtype is DType.F16 and max(map(abs, float_bounds(v))) <= LARGEST_HALF:
                    return f"f16_round_finite((float){name})"
                text = cast(name, v.dtype, dtype)
                if v.dtype.is_float and dtype.is_int:
                    self.truncates, text = True, f"({text} ^ nothing)"
                return text
            case Index(expr=sympy.Symbol() as symbol, dtype=DType.F64) if is_real(symbol):
                return self.variable(symbol)
            case Index(expr=expr, dtype=dtype):
                return f"({COMPUTE[dtype]}){self.index(expr)}"
            case Load():
                return self._load(node, level)
            case _:
                raise TypeError(f"{type(node).__name__} cannot be written as one expression")

    def _masked_by(self, value: Value, condition: Value, dtype: DType) -> bool:
        """Whether a value is a load that happens under a condition, in the type that a choice by that condition has, and yet to be made:
        what is in a buffer is 0 there where the condition does not hold.
        """
        made = id(value) in self.made or id(value) in self.tiles
        return not made and isinstance(value, Load) and value.mask is condition and value.dtype.compute is dtype.compute

    def _narrow(self, node: Value) -> str | None:
        """Comparison of index expressions in 32 bits (so that masks keep the lanes of f32 data), where that is proven exact."""
        if not (isinstance(node, Alu) and node.op in COMPARES and all(isinstance(a, Index | Const) and a.dtype.is_int for a in node.args)):
            return None
        texts = []
        for arg in node.args:
            if isinstance(arg, Const):
                if not INT32_RANGE[0] <= int(arg.value) <= INT32_RANGE[1]:
                    return None
                texts.append(str(int(arg.value)))
            elif isinstance(arg, Index) and self._fits(arg.expr):
                texts.append(self.index(arg.expr))
            else:
                return None
        return f"{texts[0]} {COMPARE_SIGNS[node.op]} {texts[1]}"

    def _fits(self, expr: sympy.Expr) -> bool:
        bounds = interval(expr, self.ranges)
        return self.index_type == "int32_t" and bounds is not None and INT32_RANGE[0] <= bounds[0] and bounds[1] <= INT32_RANGE[1]

    def index(self, expr: sympy.Expr, gathers: dict[sympy.Symbol, str] | None = None) -> str:
        names = {s: (gathers or {}).get(s) or self.variable(s) for s in sorted(free_symbols(expr), key=str)}
        expr = sympy.sympify(expr)
        text = IndexPrinter(self.ranges).print(expr, names)
        one = text.startswith("(") and not isinstance(expr, sympy.Mul | sympy.Pow)  # of a product it is a factor's
        return text if one or text.isalnum() else f"({text})"

    def extent(self, axis: Axis) -> str:
        return self.index(sympy.sympify(axis.extent))

    def _load(self, node: Load, level: Level, other: str | None = None) -> str:
        """The expression of a load; `other`: what stands for it where its mask does not hold, in place of 0."""
        buffer = self.buffers[node.buffer]
        if id(node) in self.tiles:
            return load(buffer.dtype, self.tiles[id(node)])
        hoisted = self._hoisted(node, buffer, level)
        index = hoisted or self._index_with_gathers(node.index, node.gathers, node.mask, buffer, level)
        text = load(buffer.dtype, f"{self.pointers[node.buffer]}[{index}]")
        if node.mask is None:
            return text
        other = literal(0, node.dtype) if other is None else other
        if hoisted is None:  # read where the mask holds, and nowhere else: there the index may lie outside of the buffer
            return f"{self.value(node.mask)} ? {text} : {other}"
        name = self.fresh("u")  # a statement of its own: g++ does not move a load out of a conditional
        level.add(f"const {COMPUTE[node.dtype]} {name} = {text};")
        text = name
        return self._select(node.mask, text, other, node.dtype, level)

    def _select(self, mask: Value, yes: str, no: str, dtype: DType, level: Level) -> str:
        """`mask ? yes : no`. Where `level`'s loop does not change the mask g++ vectorises no conditional: bits of f32 and of bytes are
        picked. Then both are evaluated, whatever the mask says.
        """
        steady = level.axes and not self.facts.deps(mask) & level.axes
        condition = self.value(mask)
        return f"pick({condition}, {yes}, {no})" if steady and COMPUTE[dtype] in ("float", "uint8_t") else f"{condition} ? {yes} : {no}"

    def _hoisted(self, node: Load, buffer: Buffer, level: Level) -> str | None:
        """Index of a masked load whose mask does not change in `level`'s loop: the mask picks the row's start outside the loop (0 where
        it is false), so that the load inside is in bounds either way and compilers vectorise it, where they may not speculate it.
        """
        inner = free_symbols(node.index) & level.axes
        if node.mask is None or node.gathers or len(inner) != 1 or self.facts.deps(node.mask) & level.axes:
            return None
        (axis,) = inner
        step, span = stride_along(node.index, axis), static_span(buffer)
        bounds = interval(axis, self.ranges)
        if not isinstance(step, int | sympy.Integer) or span is None or bounds is None:
            return None
        if bounds[0] < 0 or step < 0 or bounds[1] * int(step) >= span:
            return None
        rest = expand(node.index - step * axis)
        if free_symbols(rest) & level.axes:
            return None
        outer = self.home(self.facts.deps(node.mask) | free_symbols(rest))
        name, mask = self.fresh("o"), self.value(node.mask)
        outer.add(f"const {self.index_type} {name} = {mask} ? {self.index(rest)} : 0;")
        return f"{name} + {self.index(step * axis)}"

    def _index_with_gathers(self, expr: sympy.Expr, gathers: tuple[Gather, ...], mask: Value | None, buffer: Buffer, level: Level) -> str:
        names = {g.symbol: self._gather(g, mask, self._dimension(expr, g, buffer), level) for g in gathers}
        return self.index(expr, names).strip()

    def place_of(self, expr: sympy.Expr, gather: Gather, mask: Value | None, buffer: Buffer, level: Level) -> str:
        """The variable of one of the run-time positions of an access."""
        return self._gather(gather, mask, self._dimension(expr, gather, buffer), level)

    def _dimension(self, expr: sympy.Expr, gather: Gather, buffer: Buffer) -> int:
        """The dimension of the buffer that a gather selects along, for the error message; -1 when strides do not tell."""
        step = stride_along(expr, gather.symbol)
        hits = [d for d, (n, s) in enumerate(zip(buffer.size, buffer.stride, strict=True)) if s == step and n == gather.size]
        return hits[0] if len(hits) == 1 else -1

    def _gather(self, gather: Gather, mask: Value | None, dimension: int, user: Level) -> str:
        """Variable that holds a gathered index: wrapped where it wraps, checked and clamped."""
        if (id(gather), id(mask)) in self.positions:
            return self.positions[id(gather), id(mask)]
        deps = self.facts.deps(gather.value) | (self.facts.deps(mask) if mask is not None else frozenset())
        level = self.home(deps)
        key = (id(gather), id(mask))
        if key in level.names:
            return level.names[key]
        self._keep.append(gather)
        raw = self.value(gather.value)
        size = self.index(sympy.sympify(gather.size))
        name = self.fresh("g")
        wrapped = f"({raw} < 0 ? {raw} + {size} : {raw})" if gather.wraps and gather.value.dtype is not DType.U8 else raw
        if not gather.checked:
            level.add(f"const {self.index_type} {name} = ({self.index_type}){wrapped};")
        else:
            self.checks = True
            wide = self.fresh("w")
            level.add(f"const int64_t {wide} = (int64_t){wrapped};")
            outside = f"({wide} < 0 || {wide} >= {size})"
            if mask is not None:
                outside = f"({self.value(mask)} && {outside})"
            self._report(level, outside, f"(int64_t){raw}", size, dimension + (NO_INDEX_ERROR if gather.checked == "RuntimeError" else 0))
            level.add(f"const {self.index_type} {name} = {wide} < 0 || {wide} >= {size} ? 0 : ({self.index_type}){wide};")
        level.names[key] = name
        return name

    def _check_divisor(self, node: Alu, divisor: Value, level: Level) -> None:
        """Reports a 0, as eager does on a CPU. Where the quotient stands under a mask (a part of a concatenation, the inside of a padding)
        there is nothing to divide in some places, and nothing is looked at: what is loaded says so.
        """
        loads = [v for v in walk(node) if isinstance(v, Load)]
        if isinstance(divisor, Const) and divisor.value != 0 or not loads or any(v.mask is not None for v in loads):
            return
        self.checks = True
        self._report(level, f"({self.value(divisor)} == 0)", "INT64_C(0)", "INT64_C(0)", DIVIDED_BY_0)

    def _report(self, level: Level, outside: str, raw: str, size: str, dimension: int) -> None:
        if not level.simd:
            level.add(f"if (__builtin_expect({outside}, 0)) bad_index(error, {raw}, {size}, {dimension});")
            return
        flag = self.fresh("bad")
        self.bad.setdefault(id(level), []).append(flag)
        level.names[("bad", flag)] = f"if (__builtin_expect({flag} != INT64_MIN, 0)) bad_index(error, {flag}, {size}, {dimension});"
        level.add(f"const int64_t r{flag} = {outside} ? {raw} : INT64_MIN; {flag} = r{flag} > {flag} ? r{flag} : {flag};")

    def _inline_reduce(self, node: Reduce, level: Level) -> str:
        """A reduction inside the body: written out when small, else a scalar loop."""
        if unrolled(node):
            return self._unrolled(node, level)
        names = update_lines(node.op, node.dtype, node.value.dtype, self.fresh("acc"), self.fresh("n"))
        for kind, name, start in names.variables:
            level.add(f"{kind} {name} = {start};")
        position = self.path.index(level)
        saved = self.path
        self.path = saved[: position + 1]
        opened: list[Level] = []
        for axis in node.axes:
            self.path.append(Level(frozenset({axis.symbol}), self.path[-1].indent + 1))
            opened.append(self.path[-1])
        item = self.value(node.value)
        for line in names.update(item, self.linear(node.axes)):
            opened[-1].add(line)
        clean = names.clauses and not self.checks and not has_loop((node.value,), set(self.made))
        self.close(opened, node.axes, level, names.clauses if clean else ())
        self.path = saved
        result = self.fresh("v")
        level.add(f"const {COMPUTE[node.dtype]} {result} = {names.result};")
        return result

    def close(self, opened: list[Level], axes: tuple[Axis, ...], into: Level, clauses: tuple[str, ...]) -> None:
        """Writes nested loops over `axes`, whose bodies are `opened`, into `into`; the innermost is `omp simd` with `clauses`, if any."""
        inner: list[str] = []
        if clauses:
            inner.append("  " * (opened[-1].indent - 1) + "#pragma omp simd" + "".join(f" reduction({c})" for c in clauses))
        for level, axis in zip(reversed(opened), reversed(axes), strict=True):
            pad = "  " * (level.indent - 1)
            if clauses and level is opened[-1]:
                inner += [f"{pad}{self.loop_header(axis)} {{", *level.lines, f"{pad}}}"]
            else:
                inner = [f"{pad}{self.loop_header(axis)} {{", *level.lines, *inner, f"{pad}}}"]
        into.lines += inner

    def loop_header(self, axis: Axis, low: str = "0", high: str | None = None) -> str:
        name = self.variable(axis.symbol)
        return f"for ({self.index_type} {name} = {low}; {name} < {high or self.index(sympy.sympify(axis.extent))}; ++{name})"

    def linear(self, axes: tuple[Axis, ...]) -> str:
        """Row-major number of the current point of `axes`."""
        expr: sympy.Expr = sympy.S.Zero
        for axis in axes:
            expr = expr * axis.extent + axis.symbol
        return self.index(expr)

    def _unrolled(self, node: Reduce, level: Level) -> str:
        points: list[dict[sympy.Symbol, sympy.Expr]] = [{}]
        for axis in node.axes:
            points = [{**p, axis.symbol: sympy.Integer(i)} for p in points for i in range(int(axis.extent))]
        values = [decided({0: substitute(node.value, p, self.facts)}, self.ranges)[0] for p in points]
        self._keep += values
        items = [self.value(v) for v in values]
        if not items:
            return identity(node.op, node.dtype)
        result = self.fresh("v")
        lines = inline_fold(node.op, node.dtype, node.value.dtype, items, result, self.fresh("n"))
        level.lines += ["  " * level.indent + line for line in lines]
        return result

    def _scan(self, node: Scan, level: Level) -> str:
        """One step of a running reduction; its accumulators were declared outside the scanned loop."""
        state = self.scans[id(node)]
        item = self.value(node.value)
        names = update_lines(node.op, node.dtype, node.value.dtype, state.acc, state.index, scan=True)
        index = f"(int64_t){self.variable(node.axis.symbol)}"
        alone = None if "[" in state.acc else row_scan_lines(node.op, node.value.dtype, state.acc, state.index, item, index)
        for line in alone or names.update(item, index):
            level.add(line)
        result = self.fresh("v")
        level.add(f"const {COMPUTE[node.dtype]} {result} = {names.result};")
        return result


def gelu_operand(node: Value) -> Value | None:
    """The x of `x * 0.5 * (1 + erf(x * sqrt(0.5)))` in f32, as lowering writes GELU; None for anything else."""
    for half, rest in _orders(node, Op.MUL):
        for one, erf in _orders(rest, Op.ADD):
            if not (_is_constant(one, 1.0) and isinstance(erf, Alu) and erf.op is Op.ERF):
                continue
            for x, root in _orders(erf.args[0], Op.MUL):
                if _is_constant(root, math.sqrt(0.5)) and any(v is x and _is_constant(c, 0.5) for v, c in _orders(half, Op.MUL)):
                    return x
    return None


def _orders(node: Value, op: Op) -> tuple[tuple[Value, Value], ...]:
    """Both orders of the operands of an f32 `op`; nothing for any other value."""
    if not (isinstance(node, Alu) and node.op is op and node.dtype is DType.F32):
        return ()
    first, second = node.args
    return (first, second), (second, first)


def _bound(args: tuple[Value, ...]) -> int | None:
    """Which operand is a constant other than NaN, and the other is none."""
    found = [n for n, a in enumerate(args) if isinstance(a, Const) and a.value == a.value]
    return found[0] if len(found) == 1 else None


def _is_constant(value: Value, wanted: float) -> bool:
    return isinstance(value, Const) and value.value == wanted


def static_span(buffer: Buffer) -> int | None:
    """Elements from a buffer's first to its last, where its sizes are known."""
    span = 1
    for size, stride in zip(buffer.size, buffer.stride, strict=True):
        if not isinstance(size, int | sympy.Integer) or not isinstance(stride, int | sympy.Integer) or size == 0:
            return None
        span += (int(size) - 1) * int(stride)
    return span


COMPARE_SIGNS = {Op.LT: "<", Op.LE: "<=", Op.EQ: "==", Op.NE: "!="}
