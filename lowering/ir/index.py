"""Index arithmetic: `FloorDiv` and `Modulo` as sympy functions, exact simplification under axis ranges, and reshapes as index maps.

Every expression is an integer expression over axis symbols (bounded: `0 <= symbol < extent`) and size symbols. `simplify` uses only
identities that hold for floor semantics on all integers, plus the ranges that it is given; it is cached, since the layers of one
model ask the same questions over and over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import gcd, prod
from typing import Any

import sympy

from precast.lowering.ir.nodes import Size, axis_symbol

Expr = Any
"""A sympy integer expression; sympy's own annotations are too partial for arithmetic on them to type-check."""

expand: Any = sympy.expand
expand_mul: Any = sympy.expand_mul

Extents = tuple[tuple[sympy.Symbol, Size], ...]
"""What is known about symbols: `0 <= symbol < extent`. A tuple, so that it can be a cache key."""

CACHE = 1 << 16


class FloorDiv(sympy.Function):
    """`base // divisor`, rounding down; the divisor is positive."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, base: Expr, divisor: Expr) -> Expr | None:
        if divisor is sympy.S.One or base is sympy.S.Zero:
            return base
        if base.is_Integer and divisor.is_Integer:
            return sympy.Integer(int(base) // int(divisor))
        if isinstance(base, FloorDiv):
            return FloorDiv(base.args[0], base.args[1] * divisor)
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[0].is_nonnegative else None


class Modulo(sympy.Function):
    """`base % divisor` with the sign of the (positive) divisor."""

    nargs = (2,)
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, base: Expr, divisor: Expr) -> Expr | None:
        if divisor is sympy.S.One or base is sympy.S.Zero:
            return sympy.S.Zero
        if base.is_Integer and divisor.is_Integer:
            return sympy.Integer(int(base) % int(divisor))
        return None


@lru_cache(None)
def symbol(number: int) -> sympy.Symbol:
    """The canonical symbol of a tensor's dimension, counted from the innermost: broadcasting then renames nothing."""
    return axis_symbol(f"i{number}")


@lru_cache(None)
def reduction_symbol(number: int) -> sympy.Symbol:
    return axis_symbol(f"r{number}")


@lru_cache(None)
def symbols(rank: int) -> tuple[sympy.Symbol, ...]:
    """Canonical symbols of a tensor of that rank, outermost dimension first."""
    return tuple(symbol(rank - 1 - d) for d in range(rank))


@lru_cache(CACHE)
def extents_of(size: tuple[Size, ...]) -> Extents:
    return tuple(zip(symbols(len(size)), size, strict=True))


def numel(size: Iterable[Size]) -> Size:
    """The product of the sizes."""
    sizes = tuple(size)
    if all(isinstance(s, int) for s in sizes):
        return prod(sizes)
    return plain(expand(sympy.Mul(*sizes)))


def plain(value: Any) -> Size:
    """An int where the expression is one."""
    if isinstance(value, int):
        return value
    return int(value) if value.is_Integer else value


def contiguous_strides(size: tuple[Size, ...]) -> tuple[Size, ...]:
    """Row-major strides, as torch gives them (a dimension of size 0 counts as 1)."""
    strides: list[Size] = []
    step: Size = 1
    for s in reversed(size):
        strides.append(step)
        step = plain(step * (s if s != 0 else 1))
    return tuple(reversed(strides))


@lru_cache(CACHE)
def affine(offset: Size, terms: tuple[tuple[Size, Any], ...]) -> Expr:
    """`offset + sum(coefficient * expression)`."""
    return sympy.Add(*(sympy.Mul(c, e) for c, e in terms if c != 0), offset)


def is_nonnegative(value: Size) -> bool:
    """Whether the value is provably >= 0."""
    if isinstance(value, int):
        return value >= 0
    if value.is_Integer:
        return int(value) >= 0
    return _provably_nonnegative(value)


@lru_cache(CACHE)
def _provably_nonnegative(value: Expr) -> bool:
    if value.is_nonnegative:
        return True
    # each size as its least value plus something that is not negative: then coefficients that are not negative prove it
    shifted = expand(value.xreplace({s: _excess(s) + _least(s) for s in value.free_symbols if s.is_nonnegative}))
    return bool(shifted.is_nonnegative)


def _least(symbol: sympy.Symbol) -> int:
    return max(getattr(symbol, "low", 0), 1 if symbol.is_positive else 0)


@lru_cache(CACHE)
def _excess(symbol: sympy.Symbol) -> sympy.Symbol:
    return axis_symbol(f"{symbol.name}_beyond_{_least(symbol)}")


def _terms(expr: Expr) -> tuple[list[tuple[int, Expr]], int]:
    """`(coefficient, atom)` terms and the constant."""
    terms: list[tuple[int, Expr]] = []
    constant = 0
    for arg in expr.args if expr.is_Add else (expr,):
        if arg.is_Integer:
            constant += int(arg)
        elif arg.is_Mul and arg.args[0].is_Integer:
            rest = arg.args[1:]
            terms.append((int(arg.args[0]), rest[0] if len(rest) == 1 else sympy.Mul(*rest)))
        else:
            terms.append((1, arg))
    return terms, constant


Bounds = tuple[Size, Size]


@lru_cache(CACHE)
def bounds(expr: Expr, extents: Extents) -> Bounds | None:
    """Least and greatest value, where they are known. Size symbols stay symbolic."""
    known = dict(extents)
    terms, constant = _terms(expr)
    low: Size = constant
    high: Size = constant
    for coefficient, atom in terms:
        bound = _atom_bounds(atom, known, extents)
        if bound is None:
            return None
        a, b = bound
        if coefficient < 0:
            a, b = b, a
        low, high = low + coefficient * a, high + coefficient * b
    return plain(low), plain(high)


def _atom_bounds(atom: Expr, known: Mapping[sympy.Symbol, Size], extents: Extents) -> Bounds | None:
    if atom.is_Symbol:
        if atom in known:
            return 0, plain(known[atom] - 1)
        return (atom, atom) if atom.is_positive else None
    if isinstance(atom, Modulo):
        return 0, plain(atom.args[1] - 1)
    if isinstance(atom, FloorDiv):
        inner = bounds(atom.args[0], extents)
        if inner is None:
            return None
        return plain(FloorDiv(sympy.sympify(inner[0]), atom.args[1])), plain(FloorDiv(sympy.sympify(inner[1]), atom.args[1]))
    if atom.is_Mul or (atom.is_Pow and atom.exp.is_Integer and int(atom.exp) > 0):
        factors = atom.args if atom.is_Mul else (atom.base,) * int(atom.exp)
        low: Size = 1
        high: Size = 1
        for factor in factors:
            bound = _atom_bounds(factor, known, extents)
            if bound is None or not is_nonnegative(bound[0]):
                return None
            low, high = low * bound[0], high * bound[1]
        return plain(expand(low)), plain(expand(high))
    return None


def in_range(expr: Expr, size: Size, extents: Extents) -> bool:
    """Whether `0 <= expr < size` is proven."""
    bound = bounds(expr, extents)
    return bound is not None and is_nonnegative(bound[0]) and is_nonnegative(plain(expand(size - 1 - bound[1])))


def _quotient(coefficient: int, atom: Expr, divisor: Size) -> Expr | None:
    """`coefficient * atom / divisor` where that is an integer expression."""
    if isinstance(divisor, int):
        return sympy.Mul(coefficient // divisor, atom) if coefficient % divisor == 0 else None
    numerator, denominator = (coefficient * atom / divisor).as_numer_denom()
    return numerator if denominator == 1 else None


def _split(expr: Expr, divisor: Size) -> tuple[Expr, Expr]:
    """`expr == divisor * quotient + rest`, with every term that divides exactly in the quotient."""
    terms, constant = _terms(expr)
    quotient: list[Any] = []
    rest: list[Any] = []
    for coefficient, atom in terms:
        q = _quotient(coefficient, atom, divisor)
        if q is None:
            rest.append(sympy.Mul(coefficient, atom))
        else:
            quotient.append(q)
    if isinstance(divisor, int):
        quotient.append(constant // divisor)
        rest.append(constant % divisor)
    else:
        rest.append(constant)
    return sympy.Add(*quotient), sympy.Add(*rest)


def _common(expr: Expr, divisor: Size, extents: Extents) -> tuple[Size, Expr, Expr] | None:
    """`(g, outer, inner)` with `expr == g * outer + inner`, `g > 1` dividing the divisor and `0 <= inner < g`."""
    terms, _ = _terms(expr)
    if isinstance(divisor, int):
        candidates: list[Size] = sorted({gcd(abs(c), divisor) for c, _ in terms} - {1, divisor}, reverse=True)
    else:
        candidates = _symbolic_factors(terms, divisor, frozenset(s for s, _ in extents))
    for g in candidates:
        outer, inner = _split(expr, g)
        if in_range(inner, g, extents):
            return g, outer, inner
    return None


def _symbolic_factors(terms: list[tuple[int, Expr]], divisor: Expr, axes: frozenset[sympy.Symbol]) -> list[Size]:
    """What multiplies the axes in the terms and divides the divisor, greatest first."""
    found = {
        plain(coefficient * sympy.Mul(*(f for f in sympy.Mul.make_args(atom) if not f.free_symbols & axes))) for coefficient, atom in terms
    }
    usable = [g for g in found if g != 1 and g != divisor and is_nonnegative(plain(g - 1)) and exact_quotient(divisor, g) is not None]
    return sorted(usable, key=lambda g: (-evaluate(g, dict.fromkeys(getattr(g, "free_symbols", ()), 1009)), str(g)))


def exact_quotient(a: Size, b: Size) -> Size | None:
    """`a / b` where that is a number or a polynomial with whole coefficients, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    numerator, denominator = (sympy.sympify(a) / b).as_numer_denom()
    return plain(expand(numerator)) if denominator == 1 else None


def _divided(divisor: Size, factor: Size) -> Size:
    found = exact_quotient(divisor, factor)
    assert found is not None
    return found


def floordiv(expr: Expr, divisor: Size, extents: Extents) -> Expr:
    """`expr // divisor`, simplified under the ranges; `expr` is simplified already."""
    if divisor == 1:
        return expr
    quotient, rest = _split(expr, divisor)
    if rest is sympy.S.Zero or in_range(rest, divisor, extents):
        return quotient
    common = _common(rest, divisor, extents)
    if common is not None:
        g, outer, _ = common
        return quotient + floordiv(outer, _divided(divisor, g), extents)
    if isinstance(rest, Modulo):
        over = exact_quotient(plain(rest.args[1]), divisor)
        if over is not None:  # (e % (a*b)) // b == (e // b) % a
            return quotient + modulo(floordiv(rest.args[0], divisor, extents), over, extents)
    inner = [a for a in sympy.Add.make_args(rest) if isinstance(a, FloorDiv)]
    if len(inner) == 1:
        # (a + b // m) // n == (m*a + b) // (m*n): one division is the normal form
        base, step = inner[0].args
        return quotient + floordiv(expand_mul(step * (rest - inner[0])) + base, plain(step * divisor), extents)
    bound = bounds(rest, extents)
    if bound is not None and isinstance(divisor, int) and isinstance(bound[0], int) and isinstance(bound[1], int):
        low = bound[0] // divisor
        if bound[1] // divisor == low:
            return quotient + low
    return quotient + FloorDiv(rest, sympy.sympify(divisor))


def modulo(expr: Expr, divisor: Size, extents: Extents) -> Expr:
    """`expr % divisor`, simplified under the ranges; `expr` is simplified already."""
    if divisor == 1:
        return sympy.S.Zero
    _, rest = _split(expr, divisor)
    if rest is sympy.S.Zero or in_range(rest, divisor, extents):
        return rest
    common = _common(rest, divisor, extents)
    if common is not None:
        g, outer, inner = common
        return expand_mul(g * modulo(outer, _divided(divisor, g), extents)) + inner
    if isinstance(rest, Modulo) and exact_quotient(plain(rest.args[1]), divisor) is not None:
        return modulo(rest.args[0], divisor, extents)
    bound = bounds(rest, extents)
    if bound is not None and isinstance(divisor, int) and isinstance(bound[0], int) and isinstance(bound[1], int):
        low = bound[0] // divisor
        if bound[1] // divisor == low:
            return rest - low * divisor
    return Modulo(rest, sympy.sympify(divisor))


def has_division(expr: Expr) -> bool:
    return bool(expr.atoms(FloorDiv, Modulo))


@lru_cache(CACHE)
def simplify(expr: Expr, extents: Extents) -> Expr:
    """The same integer function, with divisions taken out where the ranges allow it."""
    if expr.is_Symbol or expr.is_Integer or not has_division(expr):
        return expr
    if isinstance(expr, FloorDiv):
        return floordiv(simplify(expr.args[0], extents), plain(expr.args[1]), extents)
    if isinstance(expr, Modulo):
        return modulo(simplify(expr.args[0], extents), plain(expr.args[1]), extents)
    if expr.is_Mul:
        return expand_mul(sympy.Mul(*(simplify(a, extents) for a in expr.args)))
    if expr.is_Add:
        return _merge(sympy.Add(*(simplify(a, extents) for a in expr.args)), extents)
    return expr


def _merge(expr: Expr, extents: Extents) -> Expr:
    """`c*k*(e // k) + c*(e % k)` becomes `c*e`, until nothing merges."""
    while True:
        for term in expr.args if expr.is_Add else ():
            coefficient, atom = term.as_coeff_Mul()
            if atom.is_Mul:
                parts = [a for a in atom.args if isinstance(a, Modulo)]
                if len(parts) != 1:
                    continue
                coefficient, atom = term / parts[0], parts[0]
            if not isinstance(atom, Modulo):
                continue
            base, divisor = atom.args
            partner = expand_mul(coefficient * divisor * floordiv(base, plain(divisor), extents))
            remainder = expr - term - partner
            if len(sympy.Add.make_args(remainder)) < len(expr.args) - len(sympy.Add.make_args(partner)) + (remainder is sympy.S.Zero):
                expr = expand_mul(remainder + coefficient * base)
                break
        else:
            return expr


@lru_cache(CACHE)
def substitute(expr: Expr, mapping: tuple[tuple[sympy.Symbol, Expr], ...], extents: Extents) -> Expr:
    """`expr` with symbols replaced all at once, simplified under the new symbols' ranges."""
    replaced = expr.xreplace(dict(mapping))
    if replaced is expr:
        return expr
    if replaced.is_Mul:
        replaced = expand_mul(replaced)
    elif replaced.is_Add:
        replaced = sympy.Add(*(expand_mul(a) if a.is_Mul else a for a in replaced.args))
    return simplify(replaced, extents)


@lru_cache(CACHE)
def reshape_index(old: tuple[Size, ...], new: tuple[Size, ...]) -> tuple[Expr, ...]:
    """For each dimension of `old`, its index as a function of the canonical symbols of `new`. The element counts must be equal."""
    extents = extents_of(new)
    result: list[Expr] = [sympy.S.Zero] * len(old)
    left = [d for d, s in enumerate(old) if s != 1]
    right = [(symbols(len(new))[d], s) for d, s in enumerate(new) if s != 1]
    while left or right:
        dims, factors, a, b = _take_group(old, left, right)
        flat = affine(0, tuple(zip(contiguous_strides(tuple(s for _, s in factors)), (x for x, _ in factors), strict=True)))
        sizes = tuple(old[d] for d in dims)
        for position, (dim, stride) in enumerate(zip(dims, contiguous_strides(sizes), strict=True)):
            index = floordiv(flat, stride, extents)
            result[dim] = modulo(index, old[dim], extents) if position else index
        left, right = left[a:], right[b:]
    return tuple(result)


def _take_group(
    old: tuple[Size, ...], left: list[int], right: list[tuple[sympy.Symbol, Size]]
) -> tuple[list[int], list[tuple[sympy.Symbol, Size]], int, int]:
    """The shortest leading runs of both sides with the same number of elements (everything, when no shorter run is proven equal)."""
    lefts: list[Size] = [1]
    for d in left:
        lefts.append(
            plain(expand(lefts[-1] * old[d])) if not isinstance(old[d], int) or not isinstance(lefts[-1], int) else lefts[-1] * old[d]
        )
    step: Size = 1
    for b, (_, s) in enumerate(right, 1):
        step = step * s if isinstance(step, int) and isinstance(s, int) else plain(expand(step * s))
        for a in range(1, len(lefts)):
            if lefts[a] == step:
                return left[:a], right[:b], a, b
    return left, right, len(left), len(right)


def linear_index(size: tuple[Size, ...], index: tuple[Expr, ...]) -> Expr:
    """The row-major position of a point of a tensor of that size."""
    return affine(0, tuple(zip(contiguous_strides(size), index, strict=True)))


@lru_cache(CACHE)
def coefficients(expr: Expr, axes: tuple[sympy.Symbol, ...]) -> tuple[Size, tuple[Size, ...]] | None:
    """`(offset, coefficient of each axis)` of an expression that is affine in the axes, else None."""
    wanted = set(axes)
    offset: Size = 0
    found: dict[sympy.Symbol, Size] = dict.fromkeys(axes, 0)
    for term in expr.args if expr.is_Add else (expr,):
        used = term.free_symbols & wanted
        if not used:
            offset = offset + term
        elif len(used) > 1:
            return None
        else:
            (axis,) = used
            factor = term / axis
            if axis in factor.free_symbols:
                return None
            found[axis] = found[axis] + factor
    return plain(offset), tuple(plain(found[a]) for a in axes)


def affine_in_one(value: Size) -> tuple[sympy.Symbol, int, int] | None:
    """`(symbol, factor, offset)` where the size is `factor * symbol + offset` for one symbol and numbers, else None."""
    if isinstance(value, int) or len(value.free_symbols) != 1:
        return None
    (symbol,) = value.free_symbols
    assert isinstance(symbol, sympy.Symbol)
    found = coefficients(value, (symbol,))
    if found is None:
        return None
    offset, (factor,) = found
    return (symbol, factor, offset) if isinstance(factor, int) and isinstance(offset, int) and factor > 0 else None


def evaluate(expr: Size, values: Mapping[Any, int]) -> int:
    """The expression's value at a point."""
    whole: Any = expr
    return whole if isinstance(whole, int) else int(whole.xreplace({k: sympy.Integer(v) for k, v in values.items()}))
