"""torch's symbolic shapes -> portable expressions: what torch prints as Python is parsed into artifact_store/format/expressions.py."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from precast.artifact_store.format.expressions import Expression, leaves, show_leaf
from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.capture.adapters.fake_tensors import ConstraintViolationError
from precast.capture.adapters.guards import TensorProperty, TensorPropertySource
from precast.capture.common.captured_frame import MarkViolated
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.runtime.paths.paths import describe

Leaf = tuple[Any, ...]

_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Div: "/",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.And: "and",
    ast.Or: "or",
}
_CALLS = {
    "min": "min",
    "max": "max",
    "abs": "abs",
    "math.floor": "floor",
    "math.ceil": "ceil",
    "math.trunc": "trunc",
    "int": "trunc",
    "round": "round",
    "float": "float",
    "torch.sym_float": "float",
    "torch._sym_sqrt": "sqrt",
    "math.sqrt": "sqrt",
    "math.isnan": "isnan",
}


def parse(printed: str, leaf: Callable[[str], Expression]) -> Expression:
    """`printed`: a Python expression of torch's printers; `leaf`: what a name in it means. Raises NotPortable for what has no form."""
    return _convert(ast.parse(printed.strip(), mode="eval").body, leaf)


def _convert(node: ast.expr, leaf: Callable[[str], Expression]) -> Expression:
    match node:
        case ast.Constant(value=int() | float() as value):  # a bool too: `n == n` is True, not 1
            return value
        case ast.Name(id=name):
            return leaf(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return (_BINARY[type(op)], _convert(left, leaf), _convert(right, leaf))
        case ast.BoolOp(op=op, values=values):
            return (_BINARY[type(op)], *(_convert(v, leaf) for v in values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _convert(operand, leaf)
            return -inner if isinstance(inner, (int, float)) else ("neg", inner)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ("not", _convert(operand, leaf))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            compared = [_convert(v, leaf) for v in (left, *comparators)]
            relations = [(_BINARY[type(op)], a, b) for op, a, b in zip(ops, compared, compared[1:], strict=False)]
            return relations[0] if len(relations) == 1 else ("and", *relations)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ("if", _convert(test, leaf), _convert(body, leaf), _convert(orelse, leaf))
        case ast.Call(func=function, args=args) if (called := _CALLS.get(ast.unparse(function))) is not None:
            return (called, *(_convert(a, leaf) for a in args))
    raise NotPortable(f"the shape expression {ast.unparse(node)} has no portable form")


def _print(expression: Any) -> str:
    printer: Any = PythonPrinter
    return str(printer().doprint(expression))


class SymbolTable:
    """Where each symbol of a graph's sizes can be read, from the graph's own inputs."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._leaves: dict[str, Leaf] = {}
        for k, value in enumerate(values):
            if isinstance(value, (torch.SymInt, torch.SymFloat)):
                self._note(value, ("int", k))
        for k, value in enumerate(values):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                for what, numbers in (("size", value.shape), ("stride", value.stride())):
                    for dim, number in enumerate(numbers):
                        self._note(number, (what, k, dim))
                self._note(value.storage_offset(), ("offset", k))

    def _note(self, number: Any, leaf: Leaf) -> None:
        if isinstance(number, (torch.SymInt, torch.SymFloat)) and isinstance(number.node.expr, sympy.Symbol):
            self._leaves.setdefault(str(number.node.expr), leaf)

    def expression(self, number: Any, found: Callable[[str], Expression] | None = None) -> Expression:
        """A size, stride or other number of the graph. `found` says what a name is that cannot be read from the inputs (data decides);
        without it such a number raises NotPortable."""
        if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            known = number.node.maybe_as_int() if isinstance(number, torch.SymInt) else None
            return known if known is not None else parse(_print(number.node.expr), lambda name: self._leaf(name, found))
        plain: Expression = number
        return plain

    def _leaf(self, name: str, found: Callable[[str], Expression] | None) -> Expression:
        if name not in self._leaves:
            if found is not None:
                return found(name)
            raise NotPortable(f"the number {name} depends on data")
        return self._leaves[name]


def shape_guards(output: Any, sources: SourceContext) -> tuple[list[Guard], list[str]]:
    """SHAPE guards for everything that tracing assumed of symbolic sizes and numbers, and sentences for what has no portable form.

    Raises MarkViolated where the user's mark_dynamic cannot be kept.
    """
    shape_env = output.shape_env
    tracked = list(getattr(shape_env, "tracked_fakes", None) or output.tracked_fakes)
    given: dict[Any, str] = {}

    def reference(source: Any) -> str:
        return given.setdefault(source, f"precast_{len(given)}")

    try:
        found = shape_env.produce_guards_verbose(
            [a.fake for a in tracked],
            [a.source for a in tracked],
            reference,
            input_contexts=[a.symbolic_context for a in tracked],
            ignore_static=True,
            langs=("python",),
        )
    except ConstraintViolationError as error:
        raise MarkViolated(str(error)) from error
    guards: list[Guard] = []
    problems: list[str] = []
    names = {name: source for source, name in given.items()}
    for printed in found[0].exprs:
        try:
            guards += _shape_guard(printed, names, sources)
        except (NotPortable, SyntaxError) as error:
            problems.append(f"shape guard {_readable(printed, names)}: {error}")
    return guards, problems


def _shape_guard(printed: str, names: Mapping[str, Any], sources: SourceContext) -> list[Guard]:
    paths: dict[Path, int] = {}

    def leaf(name: str) -> Leaf:
        return _source_leaf(names[name], sources, paths)

    expression = parse(printed, leaf)
    if not any(True for _ in leaves(expression)):
        return []
    parts = expression[1:] if isinstance(expression, tuple) and expression[0] == "and" else (expression,)
    return [Guard((("state",),), Predicate.SHAPE, {"expr": part, "paths": tuple(paths)}) for part in parts]


def _source_leaf(source: Any, sources: SourceContext, paths: dict[Path, int]) -> Leaf:
    if isinstance(source, TensorPropertySource):
        k = paths.setdefault(sources.path(source.base), len(paths))
        if source.prop is TensorProperty.STORAGE_OFFSET:
            return ("offset", k)
        return ("size" if source.prop is TensorProperty.SIZE else "stride", k, source.idx)
    return ("int", paths.setdefault(sources.path(source), len(paths)))


def _readable(printed: str, names: Mapping[str, Any]) -> str:
    for name in sorted(names, key=len, reverse=True):
        printed = printed.replace(name, str(names[name].name))
    return printed


def explained(output: Any, sources: SourceContext) -> tuple[str, ...]:
    """As text: each size and number that was symbolic when tracing began, whether it still is, and which line fixed it."""
    shape_env = output.shape_env
    stacks = getattr(shape_env, "specialization_stacks", {})
    lines = []
    for symbol, found in shape_env.var_to_sources.items():
        name = _name(found[0], sources)
        fixed = shape_env.replacements.get(symbol)
        if fixed is None or not fixed.is_number:
            known = shape_env.var_to_range.get(symbol)
            equal = f", equal to {_equal(fixed, shape_env, sources)}" if fixed is not None else ""
            lines.append(f"{name} is symbolic{equal}" + (f", in [{known.lower}, {known.upper}]" if known is not None else ""))
        else:
            stack = next((stacks[source] for source in found if stacks.get(source)), None)
            where = f" by {os.path.basename(stack[-1].filename)}:{stack[-1].lineno}: {stack[-1].line}" if stack else ""
            lines.append(f"{name} is fixed at {fixed}{where}")
    return tuple(sorted(lines))


def _equal(expression: Any, shape_env: Any, sources: SourceContext) -> str:
    names = {
        symbol: _name(shape_env.var_to_sources[symbol][0], sources)
        for symbol in expression.free_symbols
        if symbol in shape_env.var_to_sources
    }
    return str(expression.xreplace({symbol: _symbol(name) for symbol, name in names.items()}))


def _symbol(name: str) -> Any:
    make: Any = sympy.Symbol
    return make(name)


def _name(source: Any, sources: SourceContext) -> str:
    paths: dict[Path, int] = {}
    try:
        leaf = _source_leaf(source, sources, paths)
    except NotPortable:
        return str(source.name)
    return show_leaf(leaf, [describe(path) for path in paths])


__all__ = ["SymbolTable", "explained", "parse", "shape_guards"]
