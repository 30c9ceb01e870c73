"""Simplifications that change no result, bit for bit: folded integers and conditions, positions instead of gathers, masks that are always
true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import cast

import sympy

from precast.lowering.analysis.effects import store_roots, value_dtype
from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Cast, Const, Index, Kernel, Load, Program, Reduce, Size, Value, walk
from precast.lowering.ir.ranges import Interval, interval
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.substitution import zero
from precast.lowering.ir.sympy_calls import cannot_wrap, expand

TRUE, FALSE = Const(True, DType.BOOL), Const(False, DType.BOOL)


def simplify(program: Program) -> Program:
    """Each kernel simplified."""
    return replace(program, steps=tuple(simplify_kernel(s) if isinstance(s, Kernel) else s for s in program.steps))


def simplify_kernel(kernel: Kernel) -> Kernel:
    """The kernel with every value simplified under the ranges of its axes."""
    extents: dict[sympy.Symbol, Size] = {a.symbol: a.extent for a in kernel.axes}
    for value in walk(*(r for s in kernel.stores for r in store_roots(s))):
        if isinstance(value, Reduce):
            extents |= {a.symbol: a.extent for a in value.axes}
    scope = _Scope(tuple(extents.items()))
    return map_kernel(kernel, scope.rule)


class _Scope:
    """The rules, with the ranges of the axes in scope."""

    def __init__(self, extents: ix.Extents) -> None:
        self.extents = extents
        self.ranges: dict[sympy.Symbol, Interval] = {s: (0, max(int(n) - 1, 0)) for s, n in extents if isinstance(n, int)}

    def rule(self, value: Value) -> Value:
        match value:
            case Alu(op=op) if op in RULES:
                return RULES[op](self, value)
            case Alu(args=(Const(), Const())) if value.op in FOLD:
                return _fold(value)
            case Cast(value=inner, dtype=dtype):
                same = value_dtype(inner) is dtype  # a cast to a half type rounds, so it is never the same
                return inner if same else _cast_constant(value)
            case Load():
                return self.load(value)
            case _:
                return value

    def load(self, value: Load) -> Value:
        if value.mask is FALSE:
            return zero(value.dtype.compute)
        if value.mask is TRUE:
            value = Load(value.buffer, value.index, value.dtype, value.gathers)
        for gather in value.gathers:
            position = position_of(gather.value)
            if position is None:
                continue
            found = self.interval(position)
            if found is None or not isinstance(gather.size, int) or found[0] < 0 or found[1] >= gather.size:
                continue
            rest = tuple(g for g in value.gathers if g is not gather)
            extents = (*self.extents, *((g.symbol, g.size) for g in rest))
            index = ix.substitute(value.index, ((gather.symbol, position),), extents)
            value = Load(value.buffer, index, value.dtype, rest, value.mask)
        return value

    def interval(self, expr: sympy.Expr) -> Interval | None:
        return interval(expr, self.ranges)

    def compare(self, value: Alu) -> Value:
        """A comparison of positions that the ranges decide."""
        a, b = (position_of(x) for x in value.args)
        if a is None or b is None:
            return value
        found = self.interval(cast(sympy.Expr, ix.simplify(expand(a - b), self.extents)))
        if found is None:
            return value
        low, high = found
        match value.op:
            case Op.LT:
                decided = True if high < 0 else False if low >= 0 else None
            case Op.LE:
                decided = True if high <= 0 else False if low > 0 else None
            case Op.EQ:
                decided = True if low == high == 0 else False if low > 0 or high < 0 else None
            case _:
                decided = False if low == high == 0 else True if low > 0 or high < 0 else None
        return value if decided is None else TRUE if decided else FALSE

    def arithmetic(self, value: Alu) -> Value:
        """Sums and products of 64-bit positions are positions."""
        if value.dtype is DType.I64:
            a, b = (position_of(x) for x in value.args)
            numbers = isinstance(value.args[0], Const) and isinstance(value.args[1], Const)
            square = value.op is Op.MUL and all(x is not None and x.free_symbols & set(self.ranges) for x in (a, b))  # may wrap
            if a is not None and b is not None and not numbers and not square:
                return Index(_combine(value.op, a, b), DType.I64)
        left, right = value.args
        if value.op in (Op.MUL, Op.DIV) and isinstance(right, Const) and right.value == 1 and value_dtype(left) is value.dtype.compute:
            return left
        if value.op is Op.MUL and isinstance(left, Const) and left.value == 1 and value_dtype(right) is value.dtype.compute:
            return right
        if value.op is Op.SUB and isinstance(right, Const) and repr(right.value) in ("0", "0.0"):
            return left  # x - 0.0 is x for every x; x + 0.0 is not, where x is -0.0
        if value.op is Op.ADD and not value.dtype.is_float and isinstance(right, Const) and right.value == 0:
            return left
        return _fold(value) if all(isinstance(x, Const) for x in value.args) else value


@lru_cache(1 << 14)
def _combine(op: Op, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    result = a + b if op is Op.ADD else a - b if op is Op.SUB else a * b
    return expand(result)


def position_of(value: Value) -> sympy.Expr | None:
    """The index expression that an integer value is, if it is one that cannot wrap."""
    match value:
        case Index(expr=expr, dtype=DType.I64):
            found = expr if isinstance(expr, sympy.Expr) else sympy.Integer(expr)
        case Const(value=number, dtype=DType.I64):
            found = cast(sympy.Expr, sympy.Integer(int(number)))
        case _:
            return None
    return found if cannot_wrap(found) else None


def _cast_constant(value: Cast) -> Value:
    inner, dtype = value.value, value.dtype
    if isinstance(inner, Const):
        if dtype is DType.BOOL:
            return TRUE if inner.value != 0 else FALSE
        if dtype in (DType.F64, DType.F32) and abs(inner.value) < 1 << 24 and float(inner.value).is_integer():
            return Const(float(inner.value), dtype)
        if dtype is DType.I64 and isinstance(inner.value, bool | int):
            return Const(int(inner.value), dtype)
    return value


def _where(scope: _Scope, value: Alu) -> Value:
    condition, a, b = value.args
    if condition is TRUE or a is b:
        return a
    if condition is FALSE:
        return b
    if a is TRUE and b is FALSE:
        return condition
    if a is FALSE and b is TRUE:
        return scope.rule(Alu(Op.NOT, (condition,), DType.BOOL))
    return value


def _lattice(neutral: Const, absorbing: Const) -> Callable[[_Scope, Alu], Value]:
    """The rule of a logical operation of two booleans: `neutral` leaves the other as it is, `absorbing` decides."""

    def rule(scope: _Scope, value: Alu) -> Value:
        a, b = value.args
        if value.dtype is DType.BOOL:
            if a is absorbing or b is absorbing:
                return absorbing
            if a is neutral or a is b:
                return b
            if b is neutral:
                return a
        return value

    return rule


def _not(scope: _Scope, value: Alu) -> Value:
    (a,) = value.args
    if value.dtype is not DType.BOOL:
        return value
    if isinstance(a, Const):
        return FALSE if a.value else TRUE
    if isinstance(a, Alu) and a.op is Op.NOT:
        return a.args[0]
    return value


def _compare(scope: _Scope, value: Alu) -> Value:
    if all(isinstance(x, Const) for x in value.args):
        return _fold(value)
    return scope.compare(value)


FOLD: Mapping[Op, Callable[[int, int], int | bool]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
}


def _fold(value: Alu) -> Value:
    """Integer arithmetic (within 64 bits) and comparisons of two constants."""
    a, b = value.args
    assert isinstance(a, Const) and isinstance(b, Const)
    if value.op not in FOLD or isinstance(a.value, bool) != isinstance(b.value, bool):
        return value
    if value.dtype is DType.BOOL and value.op in (Op.LT, Op.LE, Op.EQ, Op.NE):
        return TRUE if FOLD[value.op](a.value, b.value) else FALSE  # type: ignore[arg-type]
    if value.dtype is DType.I64 and not isinstance(a.value, bool):
        result = int(FOLD[value.op](a.value, b.value))  # type: ignore[arg-type]
        return Const(result, DType.I64) if -(1 << 63) <= result < 1 << 63 else value
    return value


RULES: Mapping[Op, Callable[[_Scope, Alu], Value]] = {
    Op.WHERE: _where,
    Op.AND: _lattice(TRUE, FALSE),
    Op.OR: _lattice(FALSE, TRUE),
    Op.NOT: _not,
    Op.LT: _compare,
    Op.LE: _compare,
    Op.EQ: _compare,
    Op.NE: _compare,
    Op.ADD: _Scope.arithmetic,
    Op.SUB: _Scope.arithmetic,
    Op.MUL: _Scope.arithmetic,
    Op.DIV: _Scope.arithmetic,
}
