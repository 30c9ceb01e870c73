"""The activations that library calls can apply, as values. Values are interned, so an activation is recognised by being the same object."""

from __future__ import annotations

import math
from collections.abc import Callable

from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.lazy_tensor import alu
from precast.lowering.ir.nodes import Alu, Const, Load, Unary, Value, walk
from precast.lowering.ir.scalars import Op


def _gelu_new(x: Value) -> Value:
    """The tanh form as models write it by hand: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))`."""
    cube = v.mul(v.mul(x, x), x)
    inner = v.mul(v.add(x, v.mul(cube, v.const(x, 0.044715))), v.const(x, math.sqrt(2.0 / math.pi)))
    return v.mul(v.mul(x, v.const(x, 0.5)), v.add(alu(Op.TANH, inner), v.const(x, 1.0)))


def _silu(x: Value) -> Value:
    return v.div(x, v.add(v.const(x, 1.0), v.exp(v.neg(x))))


def _hardswish(x: Value) -> Value:
    clamped = v.clamp(v.add(x, v.const(x, 3.0)), v.const(x, 0.0), v.const(x, 6.0))
    return v.mul(x, v.div(clamped, v.const(x, 6.0)))


def relu(x: Value) -> Value:
    return v.maximum(x, v.const(x, 0.0))


FORMS: tuple[tuple[Unary, Op, Callable[[Value], Value]], ...] = (
    ("relu", Op.MAX, relu),
    ("gelu", Op.MUL, v.gelu),
    ("gelu_tanh", Op.DIV, v.gelu_tanh),
    ("gelu_tanh", Op.MUL, _gelu_new),
    ("sigmoid", Op.DIV, v.sigmoid),
    ("silu", Op.DIV, _silu),
    ("silu", Op.MUL, lambda x: v.mul(x, v.sigmoid(x))),
    ("tanh", Op.TANH, lambda x: alu(Op.TANH, x)),
    ("hardswish", Op.MUL, _hardswish),
)
"""Name, outermost operation, form. Every form computes exactly eager's function; the forms of one activation differ in rounding only."""


def match_activation(value: Value, of: Load) -> tuple[Unary, tuple[float, ...], Value] | None:
    """`(activation, arguments, operand)` when the value is an activation of some operand that contains the load."""
    if not isinstance(value, Alu):
        return None
    forms = [(name, form) for name, op, form in FORMS if op is value.op]  # building the others would be for nothing
    if not (forms or value.op is Op.MIN) or len(nodes := list(walk(value))) > 64:
        return None
    holds: set[Value] = {of}
    for node in nodes:
        if isinstance(node, Alu) and any(a in holds for a in node.args):
            holds.add(node)
    for operand in nodes:
        if operand in holds and operand is not value and operand.dtype.compute.is_float:
            for name, form in forms:
                if form(operand) is value:
                    return name, (), operand
            clamped = _match_hardtanh(value, operand)
            if clamped is not None:
                return clamped
    return None


def _match_hardtanh(value: Alu, operand: Value) -> tuple[Unary, tuple[float, ...], Value] | None:
    if value.op is Op.MIN and isinstance(value.args[1], Const) and isinstance(inner := value.args[0], Alu) and inner.op is Op.MAX:
        if inner.args[0] is operand and isinstance(inner.args[1], Const):
            return "hardtanh", (float(inner.args[1].value), float(value.args[1].value)), operand
    return None
