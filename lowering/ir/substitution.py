"""Moves values between kernels: renames axes, puts a producer's value in the place of a load of its buffer, and names bound axes
canonically.

Bound axes are named by the height of their reduction (how many reductions are nested inside), its position and extent, never by where it
stands. So the mean of a row is one object whether it appears in the row's result or inside another reduction, and the code generators
see it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import sympy

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Cast,
    Const,
    Gather,
    Index,
    Load,
    Reduce,
    Scan,
    Size,
    Store,
    Value,
    axis_symbol,
    operands,
)
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.sympy_calls import expand, symbols_of

Mapping_ = tuple[tuple[sympy.Symbol, sympy.Expr], ...]


@lru_cache(1 << 14)
def shared_axis(symbol: sympy.Symbol, extent: Size) -> Axis:
    """The one axis object for this symbol and extent: equal reductions are then one object."""
    return Axis(symbol, extent)


@dataclass(frozen=True, eq=False)
class Definition:
    """How a buffer comes to be: `buffer[index] = value` at every point of `axes`, once each."""

    buffer: str
    axes: tuple[Axis, ...]
    index: sympy.Expr
    value: Value


@lru_cache(1 << 14)
def strides_of(index: sympy.Expr, axes: tuple[Axis, ...]) -> tuple[tuple[Axis, Size], ...] | None:
    """The axes of an affine one-to-one store index with their strides, outermost first; None where it cannot be inverted."""
    found = ix.coefficients(index, tuple(a.symbol for a in axes))
    if found is None or found[0] != 0:
        return None
    pairs = [(a, c) for a, c in zip(axes, found[1], strict=True) if a.extent != 1]
    if all(isinstance(c, int) for _, c in pairs):
        pairs.sort(key=lambda p: -int(p[1]))
    else:
        pairs.sort(key=lambda p: -len(sympy.sympify(p[1]).free_symbols))  # symbolic row-major strides grow in factors outwards
    reach: Size = 0
    for axis, stride in reversed(pairs):
        room = expand(sympy.sympify(stride) - 1 - reach)
        if stride == 0 or not ix.is_nonnegative(ix.plain(room)):
            return None
        reach = ix.plain(expand(reach + sympy.sympify(stride) * (sympy.sympify(axis.extent) - 1)))
    return tuple(pairs)


@lru_cache(1 << 15)
def coordinates(store_index: sympy.Expr, axes: tuple[Axis, ...], at: sympy.Expr, extents: ix.Extents) -> Mapping_ | None:
    """The point of `axes` that stores element `at`: an expression per axis, or None where the store cannot be inverted."""
    pairs = strides_of(store_index, axes)
    if pairs is None:
        return None
    found: dict[sympy.Symbol, sympy.Expr] = {a.symbol: sympy.S.Zero for a in axes}
    rest = at
    for axis, stride in pairs:
        found[axis.symbol] = ix.floordiv(rest, stride, extents)
        rest = ix.modulo(rest, stride, extents)
    if rest != 0:
        return None  # the load falls between the stored elements: a layout that no store of this kind makes
    return tuple(found.items())


class Env:
    """Where a value is being placed: what its symbols become, which gathers those mention, and under which mask it is evaluated."""

    __slots__ = ("gathers", "items", "mapping", "mask")

    def __init__(self, items: Mapping_, gathers: Mapping[sympy.Symbol, Gather], mask: Value | None) -> None:
        self.items = tuple((s, e) for s, e in items if s is not e)
        self.mapping = dict(self.items)
        self.gathers = dict(gathers)
        self.mask = mask


class Uninvertible(Exception):
    """A load cannot be replaced by its producer's value; the message says why."""


class Rewriter:
    """Rewrites values into one kernel with the given axes. `definitions` are the buffers whose loads are replaced."""

    def __init__(self, axes: Iterable[Axis], definitions: Mapping[str, Definition]) -> None:
        self.definitions = definitions
        self.extents: dict[sympy.Symbol, Size] = {a.symbol: a.extent for a in axes}
        self.known: ix.Extents = tuple(self.extents.items())
        self.memo: dict[tuple[Value, Env], Value] = {}
        self.envs: dict[tuple[Mapping_, Value | None, tuple[Gather, ...]], Env] = {}
        self.heights: dict[Value, int] = {}
        self.bound: dict[tuple[int, int, Size], Axis] = {}
        self.gather_symbols: dict[tuple[Value, Size, bool], sympy.Symbol] = {}

    def env(self, items: Mapping_, gathers: Mapping[sympy.Symbol, Gather] | None = None, mask: Value | None = None) -> Env:
        key = (items, mask, tuple((gathers or {}).values()))
        if key not in self.envs:
            self.envs[key] = Env(items, gathers or {}, mask)
        return self.envs[key]

    def _know(self, symbol: sympy.Symbol, extent: Size) -> None:
        if symbol not in self.extents:
            self.extents[symbol] = extent
            self.known = tuple(self.extents.items())

    def height(self, root: Value) -> int:
        """How many reductions are nested in the value, replaced loads included."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.heights:
                stack.pop()
                continue
            below = list(operands(node))
            if isinstance(node, Load) and node.buffer in self.definitions:
                below.append(self.definitions[node.buffer].value)
            missing = [b for b in below if b not in self.heights]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            self.heights[node] = max((self.heights[b] for b in below), default=0) + isinstance(node, Reduce)
        return self.heights[root]

    def bound_axis(self, height: int, position: int, extent: Size) -> Axis:
        key = (height, position, extent)
        if key not in self.bound:
            self.bound[key] = shared_axis(axis_symbol(f"r{len(self.bound)}"), extent)
            self._know(self.bound[key].symbol, extent)
        return self.bound[key]

    def substitute(self, expr: sympy.Expr, env: Env) -> sympy.Expr:
        return ix.substitute(expr, env.items, self.known) if env.items else expr

    def rewrite(self, root: Value, env: Env) -> Value:
        """The value with the environment's symbols replaced and loads of `definitions` expanded."""
        memo = self.memo
        stack: list[tuple[Value, Env]] = [(root, env)]
        while stack:
            key = stack[-1]
            if key in memo:
                stack.pop()
                continue
            missing = [d for d in self.needs(*key) if d not in memo]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            memo[key] = self.build(*key)
        return memo[(root, env)]

    def needs(self, value: Value, env: Env) -> list[tuple[Value, Env]]:
        match value:
            case Const() | Index():
                return []
            case Reduce():
                return [(value.value, self.inside(value, env))]
            case Load() if value.buffer in self.definitions:
                first = [(g.value, env) for g in value.gathers] + ([(value.mask, env)] if value.mask is not None else [])
                if any(f not in self.memo for f in first):
                    return first
                return [*first, self.producer(value, env)]
            case _:
                return [(o, env) for o in operands(value)]

    def inside(self, value: Reduce, env: Env) -> Env:
        """The environment of a reduction's body: its axes get their canonical names."""
        height = self.height(value)
        renamed = tuple((a.symbol, self.bound_axis(height, p, a.extent).symbol) for p, a in enumerate(value.axes))
        own = {s for s, _ in renamed}
        return self.env((*((s, e) for s, e in env.items if s not in own), *renamed), env.gathers, env.mask)

    def gathers(self, gathers: tuple[Gather, ...], env: Env) -> dict[sympy.Symbol, Gather]:
        """The gathers of one access, rewritten and under their canonical symbols, keyed by the old symbol."""
        found = {}
        for g in gathers:
            value = self.memo[(g.value, env)]
            name = self.gather_symbols.setdefault((value, g.size, g.wraps), axis_symbol(f"g{len(self.gather_symbols)}"))
            self._know(name, g.size)
            found[g.symbol] = Gather(name, value, g.size, g.checked, g.wraps)
        return found

    def place(
        self, expr: sympy.Expr, gathers: tuple[Gather, ...], env: Env
    ) -> tuple[sympy.Expr, tuple[Gather, ...], dict[sympy.Symbol, Gather]]:
        """An index expression in the new kernel, with the gathers that it then needs."""
        own = self.gathers(gathers, env)
        local = env if not own else self.env((*env.items, *((s, g.symbol) for s, g in own.items())), env.gathers, env.mask)
        placed = self.substitute(expr, local)
        by_name = {**env.gathers, **{g.symbol: g for g in own.values()}}
        checked = {g.symbol for g in own.values() if g.checked}  # also of a dimension that is expanded, which no address shows
        used = tuple(by_name[s] for s in sorted(symbols_of(placed) & by_name.keys() | checked, key=str))
        return placed, used, by_name

    def mask(self, mask: Value | None, env: Env) -> Value | None:
        own = None if mask is None else self.memo[(mask, env)]
        if own is None or env.mask is None or own is env.mask:
            return own or env.mask
        return Alu(Op.AND, (env.mask, own), DType.BOOL)

    def producer(self, load: Load, env: Env) -> tuple[Value, Env]:
        """The producer's value and the environment in which it is what the load reads."""
        definition = self.definitions[load.buffer]
        at, _, by_name = self.place(load.index, load.gathers, env)
        found = coordinates(definition.index, definition.axes, at, self.known)
        if found is None:
            raise Uninvertible(f"{load.buffer}[{at}] cannot be traced back to the point that stores it")
        used = {s: g for s, g in by_name.items() if any(s in symbols_of(e) for _, e in found)}
        return definition.value, self.env(found, used, self.mask(load.mask, env))

    def build(self, value: Value, env: Env) -> Value:
        match value:
            case Const():
                return value
            case Index(expr=expr, dtype=dtype):
                placed = self.substitute(expr, env)
                if symbols_of(placed) & env.gathers.keys():
                    raise Uninvertible("a position computed from gathered data has no index expression")
                return Index(placed, dtype)
            case Cast(value=inner, dtype=dtype):
                return Cast(self.memo[(inner, env)], dtype)
            case Alu(op=op, args=args, dtype=dtype):
                return Alu(op, tuple(self.memo[(a, env)] for a in args), dtype)
            case Reduce(op=op, value=inner, axes=axes, dtype=dtype):
                height = self.height(value)
                bound = tuple(self.bound_axis(height, p, a.extent) for p, a in enumerate(axes))
                return Reduce(op, self.memo[(inner, self.inside(value, env))], bound, dtype)
            case Scan(op=op, value=inner, axis=axis, dtype=dtype):
                symbol = env.mapping.get(axis.symbol, axis.symbol)
                if not isinstance(symbol, sympy.Symbol):
                    raise Uninvertible("a scan runs along one axis of its own kernel")
                return Scan(op, self.memo[(inner, env)], shared_axis(symbol, axis.extent), dtype)
            case Load():
                if value.buffer not in self.definitions:
                    at, gathers, _ = self.place(value.index, value.gathers, env)
                    return Load(value.buffer, at, value.dtype, gathers, self.mask(value.mask, env))
                found = self.memo[self.producer(value, env)]
                mask = None if value.mask is None else self.memo[(value.mask, env)]
                found = found if found.dtype.compute is value.dtype.compute else Cast(found, value.dtype)
                return found if mask is None else Alu(Op.WHERE, (mask, found, zero(found.dtype.compute)), found.dtype.compute)

    def store(self, store: Store, env: Env, axes: tuple[Axis, ...] | None) -> Store:
        """The store placed in the new kernel, running over `axes` (None: all)."""
        for root in (*(g.value for g in store.gathers), *((store.mask,) if store.mask is not None else ())):
            self.rewrite(root, env)
        value = self.rewrite(store.value, env)
        at, gathers, _ = self.place(store.index, store.gathers, env)
        return Store(store.buffer, at, value, store.mode, gathers, self.mask(store.mask, env), axes)


def zero(dtype: DType) -> Const:
    """The zero of a compute type."""
    return Const(False if dtype is DType.BOOL else 0.0 if dtype.is_float else 0, dtype)
