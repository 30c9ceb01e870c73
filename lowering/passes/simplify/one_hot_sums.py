"""Sums of rows that are zero but at one position: the element there.

The gradient of cross-entropy sums the gradient of its log-probabilities over the classes, and only the target's is not zero. The forms
meet when the one is fused into the other.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir.nodes import Alu, Const, Index, Kernel, Load, Program, Reduce, Value, walk
from precast.lowering.ir.scalars import DType, Op, ReduceOp


def one_hot_sums(program: Program) -> Program:
    """Each kernel without such sums."""
    return replace(program, steps=tuple(map_kernel(s, _only_element) if isinstance(s, Kernel) else s for s in program.steps))


def _only_element(value: Value) -> Value:
    match value:
        case Reduce(
            op=ReduceOp.SUM,
            value=Alu(op=Op.WHERE, args=(Alu(op=Op.EQ, args=(Index(expr=along, dtype=DType.I64), place)), element, Const(value=rest))),
            axes=(axis,),
            dtype=dtype,
        ):
            if along is not axis.symbol or rest != 0 or element.dtype is not dtype or any(_mentions(v, along) for v in (place, element)):
                return value
            at_least = Alu(Op.LE, (Const(0, DType.I64), place), DType.BOOL)
            below = Alu(Op.LT, (place, Index(sympy.sympify(axis.extent))), DType.BOOL)
            inside = Alu(Op.AND, (at_least, below), DType.BOOL)
            return Alu(Op.WHERE, (inside, element, Const(0.0 if dtype.is_float else 0, dtype)), dtype)
        case _:
            return value


def _mentions(value: Value, symbol: sympy.Symbol) -> bool:
    indices = [node.index if isinstance(node, Load) else node.expr for node in walk(value) if isinstance(node, Load | Index)]
    return any(symbol in sympy.sympify(index).free_symbols for index in indices)


__all__ = ["one_hot_sums"]
