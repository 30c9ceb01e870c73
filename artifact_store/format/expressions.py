"""Integer expressions over the sizes, strides and numbers of a call: shape guards and the windows of outputs are made of them. Data only.

An expression is an int, a float, a leaf, or `(operator, operand…)`, nested; msgpack as it stands. A leaf says where a number is read:
("size" | "stride", k, dim) and ("offset", k) of the k-th object, a tensor; ("int", k) the k-th object itself, a number; ("raw", k) the
k-th raw output of the graph. The objects are given to `evaluate`. Python's meaning throughout: `//` and `%` round down, `/` gives a float.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

Expression = int | float | tuple[Any, ...]

LEAVES = ("size", "stride", "offset", "int", "raw")
OPERATORS = ("+", "*", "-", "//", "%", "min", "max", "**", "neg", "==", "!=", "<", "<=", ">", ">=", "and", "or", "not", "if", "abs")
"""Operators that the native runtime evaluates too, by their position here (`runtime/native/src/shape_expression.c`). "and" and "or" see
all operands.
"""
_NATIVE_LEAVES = ("const", "int", "size", "stride", "offset")


def _divide(a: Any, b: Any) -> Any:
    return a / b


def _place(position: int, size: int, dim: int) -> int:
    """A position of a dimension, counted from its front. Raises IndexError in eager's words where it lies outside."""
    if not -size <= position < size:
        raise IndexError(f"index {position} is out of bounds for dimension {dim} with size {size}")
    return position if position >= 0 else position + size


_FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "+": (lambda *v: sum(v[1:], v[0]), " + "),
    "*": (lambda *v: reduce(operator.mul, v), " * "),
    "-": (operator.sub, " - "),
    "//": (operator.floordiv, " // "),
    "%": (operator.mod, " % "),
    "min": (min, ""),
    "max": (max, ""),
    "**": (operator.pow, " ** "),
    "neg": (operator.neg, "-"),
    "==": (operator.eq, " == "),
    "!=": (operator.ne, " != "),
    "<": (operator.lt, " < "),
    "<=": (operator.le, " <= "),
    ">": (operator.gt, " > "),
    ">=": (operator.ge, " >= "),
    "and": (lambda *v: all(v), " and "),
    "or": (lambda *v: any(v), " or "),
    "not": (operator.not_, "not "),
    "if": (lambda condition, then, otherwise: then if condition else otherwise, ""),
    "abs": (abs, ""),
    "/": (_divide, " / "),
    "place": (_place, ""),
    "&": (operator.and_, " & "),
    "|": (operator.or_, " | "),
    "^": (operator.xor, " ^ "),
    "float": (float, ""),
    "floor": (math.floor, ""),
    "ceil": (math.ceil, ""),
    "trunc": (math.trunc, ""),
    "round": (round, ""),
    "sqrt": (math.sqrt, ""),
    "isnan": (math.isnan, ""),
}
KNOWN = frozenset(_FUNCTIONS)


def evaluate(expression: Expression, objects: Sequence[Any], raw: Sequence[Any] = ()) -> Any:
    """The value: an int (a bool for a relation; a float where `/` or `float` occur).

    Raises what the arithmetic raises, and ValueError for what is no expression.
    """
    if not isinstance(expression, tuple):
        return expression
    match expression:
        case ("size", k, dim):
            return objects[k].size(dim)
        case ("stride", k, dim):
            return objects[k].stride(dim)
        case ("offset", k):
            return objects[k].storage_offset()
        case ("int", k):
            return objects[k]
        case ("raw", k):
            return raw[k]
    found = _FUNCTIONS.get(expression[0])
    if found is None:
        raise ValueError(f"unknown operator {expression[0]!r} in a shape expression")
    return found[0](*[evaluate(operand, objects, raw) for operand in expression[1:]])


def source(expression: Expression, leaf: Callable[[tuple[Any, ...]], str], function: Callable[[str], str]) -> str:
    """Python source that computes it. `leaf`: source for a leaf; `function`: the name under which an operator's function can be called."""
    if not isinstance(expression, tuple):
        return repr(expression)
    if expression[0] in LEAVES:
        return leaf(expression)
    operands = [source(operand, leaf, function) for operand in expression[1:]]
    between = _FUNCTIONS[expression[0]][1]
    if not between:
        return f"{function(expression[0])}({', '.join(operands)})"
    if len(operands) == 1:
        return f"({between}{operands[0]})"
    return f"({between.join(operands)})"


def text(expression: Expression, names: Sequence[str]) -> str:
    """For people; `names`: what the objects are called."""
    shown = source(expression, lambda leaf: show_leaf(leaf, names), str)
    return shown[1:-1] if shown.startswith("(") and _closes(shown) == len(shown) - 1 else shown


def show_leaf(leaf: tuple[Any, ...], names: Sequence[str]) -> str:
    """`x.size(0)`, `n`."""
    match leaf:
        case ("int", k):
            return str(names[k])
        case ("raw", k):
            return f"output {k}"
        case ("offset", k):
            return f"{names[k]}.storage_offset()"
        case (what, k, dim):
            return f"{names[k]}.{what}({dim})"
    raise ValueError(f"no leaf: {leaf!r}")


def _closes(shown: str) -> int:
    """Where the parenthesis closes that `shown` begins with."""
    depth = 0
    for position, letter in enumerate(shown):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return position
    return -1


def leaves(expression: Expression) -> Iterator[tuple[Any, ...]]:
    """Every leaf, in order, repeated ones too."""
    if isinstance(expression, tuple):
        if expression[0] in LEAVES:
            yield expression
        else:
            for operand in expression[1:]:
                yield from leaves(operand)


def postfix(expression: Expression, number: Callable[[int], int]) -> list[int]:
    """The program that the native runtime runs on a stack: (code, argument, argument) each.

    Codes 0… are the leaves of `_NATIVE_LEAVES`, 16… the OPERATORS. `number`: what the native runtime calls the k-th object.
    Raises ValueError for what it does not compute (floats).
    """
    if isinstance(expression, float):
        raise ValueError("the native runtime computes with integers only")
    if isinstance(expression, int):
        return [0, int(expression), 0]
    if expression[0] in LEAVES:
        what, k, *dim = expression
        return [_NATIVE_LEAVES.index(what), number(k), dim[0] if dim else 0]
    if expression[0] not in OPERATORS:
        raise ValueError(f"the native runtime has no {expression[0]!r}")
    program: list[int] = []
    for operand in expression[1:]:
        program += postfix(operand, number)
    return [*program, 16 + OPERATORS.index(expression[0]), len(expression) - 1, 0]


def function_of(name: str) -> Callable[..., Any]:
    """The function of an operator."""
    return _FUNCTIONS[name][0]


__all__ = ["KNOWN", "Expression", "evaluate", "function_of", "leaves", "postfix", "show_leaf", "source", "text"]
