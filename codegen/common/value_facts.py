"""Facts about IR values that the planner and the renderer share: dependencies, cost, substitution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import sympy

from precast.codegen.common.index_facts import free_symbols, replace_symbols
from precast.codegen.common.op_costs import op_cost
from precast.lowering.ir.nodes import Alu, Axis, Cast, Const, Gather, Index, Load, Reduce, Scan, Store, Value, operands, walk
from precast.lowering.ir.scalars import DType, Op

Symbols = frozenset[sympy.Symbol]

SMALL_INTEGERS = {DType.BOOL: (0.0, 1.0), DType.U8: (0.0, 255.0), DType.I8: (-128.0, 127.0), DType.I16: (-32768.0, 32767.0)}
"""Least and largest values of integer types."""


class Facts:
    """Memoised properties of values, by identity (values are interned)."""

    def __init__(self) -> None:
        self._deps: dict[int, Symbols] = {}
        self._cost: dict[int, float] = {}
        self._keep: list[Value] = []

    def deps(self, value: Value) -> Symbols:
        """Axis symbols on which `value` depends; bound and gathered symbols are resolved, size symbols are included."""
        if id(value) not in self._deps:
            for node in walk(value):
                if id(node) not in self._deps:
                    self._deps[id(node)] = self._own_deps(node)
                    self._keep.append(node)
        return self._deps[id(value)]

    def _own_deps(self, node: Value) -> Symbols:
        inner: Symbols = frozenset().union(*(self._deps[id(o)] for o in operands(node)))
        match node:
            case Load(index=index, gathers=gathers):
                return inner | (free_symbols(index) - {g.symbol for g in gathers})
            case Index(expr=expr):
                return free_symbols(expr)
            case Reduce(axes=axes):
                return inner - {a.symbol for a in axes}
            case Scan(axis=axis):
                return inner | {axis.symbol}
            case _:
                return inner

    def cost(self, value: Value) -> float:
        """Vector instructions to compute `value` at one point, Reduce results being free and shared values counted once."""
        if id(value) not in self._cost:
            total, stack, seen = 0.0, [value], set()
            while stack:
                node = stack.pop()
                if id(node) in seen or isinstance(node, Reduce):
                    continue
                seen.add(id(node))
                total += own_cost(node)
                stack.extend(operands(node))
            self._cost[id(value)] = total
            self._keep.append(value)
        return self._cost[id(value)]


def own_cost(node: Value) -> float:
    match node:
        case Alu(op=op):
            return op_cost(op)
        case Load(gathers=gathers):
            return 2.0 + 8.0 * len(gathers)
        case Cast() | Scan():
            return 1.0
        case _:
            return 0.0


def float_bounds(value: Value, depth: int = 8) -> tuple[float, float]:
    """Between which numbers a value lies where it is not NaN, as clamps, constants and integers tell."""
    if depth:
        match value:
            case Const() if value.value == value.value:
                return float(value.value), float(value.value)
            case Cast(value=v) if v.dtype in SMALL_INTEGERS:
                return SMALL_INTEGERS[v.dtype]
            case Cast(value=v, dtype=DType.F32 | DType.F64 | DType.F16) if v.dtype.is_float:
                return float_bounds(v, depth - 1)
            case Alu(op=Op.MIN | Op.MAX | Op.ADD | Op.MUL, args=(a, b)):
                return _combined(value.op, float_bounds(a, depth - 1), float_bounds(b, depth - 1))
    return -math.inf, math.inf


def _combined(op: Op, a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    if op in (Op.MIN, Op.MAX):
        pick = min if op is Op.MIN else max
        return pick(a[0], b[0]), pick(a[1], b[1])
    every = (a[0] + b[0], a[1] + b[1]) if op is Op.ADD else tuple(x * y for x in a for y in b)
    return (-math.inf, math.inf) if any(math.isnan(x) for x in every) else (min(every), max(every))


def rebuild(node: Value, new: Mapping[int, Value]) -> Value:
    """`node` with its operands replaced as `new` (by id) says."""

    def get(v: Value) -> Value:
        return new.get(id(v), v)

    match node:
        case Alu(args=args):
            return Alu(node.op, tuple(get(a) for a in args), node.dtype)
        case Cast(value=v):
            return Cast(get(v), node.dtype)
        case Reduce(value=v):
            return Reduce(node.op, get(v), node.axes, node.dtype)
        case Scan(value=v):
            return Scan(node.op, get(v), node.axis, node.dtype)
        case Load(gathers=gathers, mask=mask):
            if not gathers and mask is None:
                return node
            bound = tuple(Gather(g.symbol, get(g.value), g.size, g.checked, g.wraps) for g in gathers)
            return Load(node.buffer, node.index, node.dtype, bound, None if mask is None else get(mask))
        case Const() | Index():
            return node


def rebuild_store(store: Store, new: Mapping[int, Value]) -> Store:
    def get(v: Value) -> Value:
        return new.get(id(v), v)

    gathers = tuple(Gather(g.symbol, get(g.value), g.size, g.checked, g.wraps) for g in store.gathers)
    return replace(store, value=get(store.value), gathers=gathers, mask=None if store.mask is None else get(store.mask))


def substitute(value: Value, mapping: Mapping[sympy.Symbol, sympy.Expr], facts: Facts, axes: Mapping[Axis, Axis] | None = None) -> Value:
    """`value` with free axis symbols replaced (and `axes` swapped in scans); nodes that mention none of them stay the same objects."""
    keys = frozenset(mapping)
    new: dict[int, Value] = {}
    facts.deps(value)
    for node in walk(value):
        if not (facts.deps(node) & keys):
            new[id(node)] = node
            continue
        match node:
            case Load(index=index, gathers=gathers, mask=mask):
                bound = tuple(Gather(g.symbol, new[id(g.value)], g.size, g.checked, g.wraps) for g in gathers)
                new[id(node)] = Load(
                    node.buffer, replace_symbols(index, mapping), node.dtype, bound, None if mask is None else new[id(mask)]
                )
            case Index(expr=expr):
                new[id(node)] = Index(replace_symbols(expr, mapping), node.dtype)
            case Scan(value=v, axis=axis):
                new[id(node)] = Scan(node.op, new[id(v)], (axes or {}).get(axis, axis), node.dtype)
            case _:
                new[id(node)] = rebuild(node, new)
    return new[id(value)]


def static_product(sizes: Iterable[object]) -> int | None:
    """Product of sizes where all of them are known."""
    total = 1
    for size in sizes:
        if not isinstance(size, int | sympy.Integer):
            return None
        total *= int(size)
    return total
