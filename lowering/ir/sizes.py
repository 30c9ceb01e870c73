"""Size symbols: what a program knows of each (least and greatest value, the value seen when it was traced), and how torch's symbolic
integers become them.

A symbol carries its own facts, so that every pass can ask without a table at hand: `low` and `high` are guarded (correctness may rest
on them), `hint` is what the traced call had (only costs may). Where the trace proved that a size is a multiple of k, it is `k * t`
for a symbol `t` of its own: then divisions vanish and every size is a polynomial.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import lcm
from typing import Any, cast
from weakref import WeakKeyDictionary

import sympy
import torch
from sympy.functions.elementary.piecewise import ExprCondPair

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Size

HINT = 64
"""The assumed value of a data-dependent size, where only a cost estimate needs one."""

MAX_BOUND = 1 << 62
"""A bound of this magnitude says nothing."""


cancel: Any = sympy.cancel
Real: Any = sympy.Float
new_symbol: Any = sympy.Symbol.__xnew__


class Unsupported(NotImplementedError):
    """The graph holds something that precast cannot compile (yet); the caller runs it eagerly."""


class SizeSymbol(sympy.Symbol):  # type: ignore[no-untyped-call]
    """A size: `low <= value <= high` (None: no upper bound), and the traced value as `hint`. Made by `size_symbol`."""

    __slots__ = ("definition", "high", "hint", "low", "unbacked")
    low: int
    high: int | None
    hint: int
    unbacked: bool
    definition: sympy.Expr | None

    def _hashable_content(self) -> tuple[Any, ...]:
        return (*cast(Any, super())._hashable_content(), self.low, self.high or 0, self.hint, self.unbacked, self.definition)


@lru_cache(None)
def size_symbol(
    name: str, low: int = 1, high: int | None = None, hint: int = HINT, unbacked: bool = False, definition: sympy.Expr | None = None
) -> SizeSymbol:
    """The symbol with these facts: equal arguments give one object. `unbacked`: its value comes out of a step of the program.
    `definition`: what it is in terms of other symbols, where that uses functions of real numbers (only the host program computes those).
    """
    sign = {"positive": True} if low > 0 else {"nonnegative": True} if low == 0 else {}
    made: Any = new_symbol(SizeSymbol, name, integer=True, **sign)
    made.low, made.high, made.hint, made.unbacked, made.definition = low, high, hint, unbacked, definition
    assert isinstance(made, SizeSymbol)
    return made


@lru_cache(None)
def float_symbol(name: str, hint: float, unbacked: bool = False) -> SizeSymbol:
    """A float of the call (or read from a tensor), as a symbol among the sizes: never part of one."""
    made: Any = new_symbol(SizeSymbol, name, real=True, integer=False)
    made.low, made.high, made.hint, made.unbacked, made.definition = -MAX_BOUND, None, hint, unbacked, None
    assert isinstance(made, SizeSymbol)
    return made


def is_unbacked(size: object) -> bool:
    """Whether the size is known only after some step of the program ran."""
    return isinstance(size, sympy.Basic) and any(isinstance(s, SizeSymbol) and s.unbacked for s in size.free_symbols)


def bounds_of(symbol: sympy.Symbol) -> tuple[int | None, int | None]:
    """The least and greatest value that the trace took for granted of an integer symbol; None: no bound."""
    if not isinstance(symbol, SizeSymbol) or not symbol.is_integer:
        return None, None
    return (symbol.low if symbol.low > -MAX_BOUND else None), symbol.high


def range_message(value: int | str, low: int | None, high: int | None) -> str:
    """What `aten::sym_constrain_range` says of a value out of range."""
    return f"Invalid value range for {value} between [{-(2**63) if low is None else low}, {2**63 - 1 if high is None else high}]."


def known(*sizes: object) -> bool:
    """Whether each of the sizes is a number, and none an expression over symbols."""
    return all(isinstance(s, int | sympy.Integer) for s in sizes)


def hint(size: Size) -> int:
    """The size, with each symbol's traced value put in (at least 1). For cost decisions only, never for correctness."""
    if isinstance(size, int):
        return size
    return _hint(size)


@lru_cache(1 << 14)
def _hint(size: sympy.Expr) -> int:
    values = {s: sympy.Integer(s.hint if isinstance(s, SizeSymbol) else HINT) for s in size.free_symbols}
    return max(int(cast(Any, size).xreplace(values)), 1)


# --- torch's symbolic integers -----------------------------------------------------------------------------------------------------


def sizes(values: Sequence[object]) -> tuple[Size, ...]:
    """Sizes or strides of a fake tensor as ints or sympy expressions."""
    return tuple(v if type(v) is int else size_of(v) for v in values)


def size_of(value: object) -> Size:
    """One integer of the graph: an int, or a symbolic one's expression in precast's symbols."""
    if isinstance(value, torch.SymInt):
        return translator_of(value.node.shape_env).size(value.node.expr)
    return int(value)  # type: ignore[call-overload, no-any-return]


def is_unguarded(condition: Any) -> bool:
    """Whether a condition of the graph is about sizes of the call that no guard tells about."""
    given = translator_of(condition.node.shape_env).given if isinstance(condition, torch.SymBool) else frozenset()
    return bool(given) and not given.isdisjoint(condition.node.expr.free_symbols)


def number_of(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Any symbolic number of the graph: a `Size`, a real or a boolean expression (over torch's own functions), or a Python number."""
    if isinstance(value, torch.SymInt):
        return size_of(value)
    return translator_of(value.node.shape_env).number(value.node.expr)


_translators: WeakKeyDictionary[Any, Translator] = WeakKeyDictionary()


def translator_of(shape_env: Any) -> Translator:
    """The translator of one trace's symbols. Made at the first question, when the trace and its guards are complete."""
    found = _translators.get(shape_env)
    if found is None:
        found = _translators[shape_env] = Translator(shape_env)
    return found


class Translator:
    """torch's size expressions in precast's symbols and functions, under the facts that one trace's guards hold."""

    def __init__(self, shape_env: Any) -> None:
        self.ranges: dict[Any, Any] = dict(shape_env.var_to_range)
        self.values: dict[Any, Any] = dict(shape_env.backed_var_to_val if hasattr(shape_env, "backed_var_to_val") else shape_env.var_to_val)
        self.given: frozenset[Any] = frozenset(getattr(shape_env, "unbacked_inputs", ()))
        """Sizes of the call that were marked as unknown (`mark_unbacked`): the trace saw no value, and no guard tells about them."""
        self.factors: dict[Any, int] = {}
        for fact in shape_env.divisible:
            self._divisible(*fact.args[:2])
        self.known: dict[Any, Size] = {}
        self.opaque: dict[Any, int] = {}

    def _divisible(self, base: Any, divisor: Any) -> None:
        """Notes a symbol that is a multiple of a number: also where the trace said so of `s*n % (k*n)`."""
        numerator, denominator = (base / divisor).as_numer_denom()
        if numerator.is_Symbol and denominator.is_Integer and numerator in self.values and int(denominator) > 1:
            self.factors[numerator] = lcm(self.factors.get(numerator, 1), int(denominator))

    def symbol(self, torch_symbol: Any) -> SizeSymbol:
        """Precast's symbol for one of torch's, as an integer input carries it."""
        bounds, value = self.ranges.get(torch_symbol), self.values.get(torch_symbol)
        low, high = (-MAX_BOUND, None) if bounds is None else (_bound(bounds.lower, -MAX_BOUND), _bound(bounds.upper, None))
        if not torch_symbol.is_integer:
            return float_symbol(str(torch_symbol), 1.0 if value is None else float(value), value is None)
        usable = value is not None and value.is_Integer
        unbacked = value is None and torch_symbol not in self.given
        return size_symbol(str(torch_symbol), low, high, int(cast(Any, value)) if usable else HINT, unbacked)

    def size(self, expr: Any) -> Size:
        """A size expression; `Unsupported` where it uses a function that precast has no integer form for."""
        if expr not in self.known:
            self.known[expr] = ix.plain(self._expression(expr))
        return self.known[expr]

    def number(self, expr: Any) -> Any:
        """A real or boolean expression: its integer parts in precast's terms, torch's functions of reals as they are."""
        if expr.is_number or expr in (sympy.true, sympy.false):
            return bool(expr) if expr in (sympy.true, sympy.false) else float(expr)
        if expr.is_integer:
            return self.size(expr)
        if expr.is_Atom:
            return self._atom(expr)
        args = (a if a.is_number else sympy.sympify(self.number(a)) for a in expr.args)
        # an assertion is not decided by the range that it gave its symbol
        return expr.func(*args, evaluate=False) if isinstance(expr, sympy.Rel) else expr.func(*args)

    def _expression(self, expr: Any) -> Any:
        done: dict[Any, Any] = {}
        for node in sympy.postorder_traversal(expr):  # type: ignore[no-untyped-call]
            if node not in done:
                done[node] = self._atom(node) if node.is_Atom else self._node(expr, node, [done[a] for a in node.args])
        return done[expr]

    def _atom(self, atom: Any) -> Any:
        if not atom.is_Symbol:
            return atom
        symbol, factor = self.symbol(atom), self.factors.get(atom, 1)
        if factor == 1:
            return symbol
        high = None if symbol.high is None else symbol.high // factor
        part = size_symbol(f"{symbol.name}_{factor}", -(-symbol.low // factor), high, max(symbol.hint // factor, 1))
        return part * factor

    def _node(self, whole: Any, node: Any, args: list[Any]) -> Any:
        if isinstance(node, sympy.logic.boolalg.Boolean | ExprCondPair | sympy.Piecewise):
            return node.func(*args)
        rule = FUNCTIONS.get(type(node).__name__)
        if rule is None or any(not a.is_integer for a in args):
            found = _rounded(node, args)
            if found is None and type(node).__name__ in ROUNDINGS:
                found = self._opaque(node.func(*args))
            if found is None:
                raise Unsupported(f"a size of the graph, {whole}, uses {type(node).__name__}, which precast does not know")
            return found
        return rule(*args)

    def _low(self, expr: Any) -> int:
        """A lower bound of a rounded number: 0 where the sizes in it only make it greater."""
        return (
            0
            if all(s.is_nonnegative for s in expr.free_symbols)
            and not expr.atoms(sympy.Add)
            and not any(n.is_negative for n in expr.atoms(sympy.Number))
            else -MAX_BOUND
        )

    def _opaque(self, expr: Any) -> SizeSymbol:
        """A symbol of its own for a rounded real number."""
        values = {s: sympy.Integer(s.hint) if s.is_integer else Real(s.hint) for s in expr.free_symbols}
        traced = expr.xreplace(values)
        known = traced.is_Integer and not is_unbacked(expr)
        number = self.opaque.setdefault(expr, len(self.opaque))
        return size_symbol(f"d{number}", self._low(expr), None, int(traced) if known else HINT, False, expr)


def _bound(value: Any, otherwise: Any) -> Any:
    """A range's end as an int, where it is a number that says something."""
    number = int(value) if getattr(value, "is_Integer", False) else None
    return otherwise if number is None or abs(number) >= MAX_BOUND else number


def _divide(a: Any, b: Any) -> Any:
    """`a // b`: exact where the terms divide, else as a FloorDiv."""
    if a.is_Integer and b.is_Integer:
        return sympy.Integer(int(a) // int(b))
    numerator, denominator = cancel(a / b).as_numer_denom()
    if denominator is sympy.S.One and not numerator.atoms(sympy.Function):
        return ix.expand(numerator)
    return ix.floordiv(ix.expand(a), ix.plain(b), ())


def _remainder(a: Any, b: Any) -> Any:
    return ix.modulo(ix.expand(a), ix.plain(b), ())


def _rounded(node: Any, args: list[Any]) -> Any:
    """Rounded quotients of integers, which torch writes in terms of floats: `ceil(a / b)`, `int(a * 1.5)`."""
    name = type(node).__name__
    if name in ("CeilToInt", "FloorToInt", "TruncToInt"):
        ratio = _as_ratio(node.args[0], args[0])
        if ratio is None:
            return None
        top, bottom = ratio
        if name == "CeilToInt":
            return -_divide(-top, bottom)
        return _divide(top, bottom) if name == "FloorToInt" or ix.is_nonnegative(ix.plain(top)) else None
    if name in ("IntTrueDiv", "ToFloat", "FloatTrueDiv", "Mul", "Float"):
        return node.func(*args) if name != "Mul" else sympy.Mul(*args)
    return None


def _as_ratio(node: Any, translated: Any) -> tuple[Any, Any] | None:
    """`(a, b)` with integer expressions `a` and `b > 0` whose float quotient is exact enough to round as the integers do."""
    name = type(translated).__name__
    if name == "IntTrueDiv" and ix.is_nonnegative(ix.plain(translated.args[1] - 1)):
        return translated.args[0], translated.args[1]
    if name == "ToFloat":
        return translated.args[0], sympy.S.One
    if name == "Mul" and len(translated.args) == 2:
        number, rest = translated.args
        if number.is_Float and type(rest).__name__ == "ToFloat":
            top, bottom = float(number).as_integer_ratio()
            if bottom <= 1 << 20 and abs(top) < 1 << 30:  # the product is exact in a double
                return top * rest.args[0], sympy.Integer(bottom)
    return None


ROUNDINGS = ("CeilToInt", "FloorToInt", "TruncToInt", "RoundToInt")

FUNCTIONS: dict[str, Any] = {
    "Add": sympy.Add,
    "Mul": sympy.Mul,
    "Pow": lambda a, n: sympy.Pow(a, n),
    "PowByNatural": lambda a, n: sympy.Pow(a, n),
    "Max": sympy.Max,
    "Min": sympy.Min,
    "FloorDiv": _divide,
    "CleanDiv": _divide,
    "CeilDiv": lambda a, b: -_divide(-a, b),
    "Mod": _remainder,
    "PythonMod": _remainder,
    "ModularIndexing": lambda a, b, m: _remainder(_divide(a, b), m),
    "Identity": lambda a: a,
}
