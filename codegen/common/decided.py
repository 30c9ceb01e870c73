"""Values under narrower ranges of their axes: comparisons of positions that always hold (or never do) disappear, with the masks of them.

The inside of a padded image, of a window or of a concatenation's part is then a plain expression; only borders keep their masks.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from precast.codegen.common.index_facts import replace_symbols
from precast.codegen.common.value_facts import rebuild
from precast.lowering.ir.nodes import Alu, Const, Gather, Index, Load, Value, operands, walk
from precast.lowering.ir.ranges import Interval, interval
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.sympy_calls import expand

Ranges = Mapping[sympy.Symbol, Interval | None]
TRUE, FALSE = Const(True, DType.BOOL), Const(False, DType.BOOL)


def position(value: Value) -> sympy.Expr | None:
    """The integer expression that a value is."""
    if not isinstance(value, Index | Const) or not value.dtype.is_int:
        return None
    found: sympy.Expr = value.expr if isinstance(value, Index) else sympy.Integer(int(value.value))
    return found


def difference(node: Value) -> sympy.Expr | None:
    """Of `a < b` and `a <= b` between positions: what is not negative where it holds."""
    if not (isinstance(node, Alu) and node.op in (Op.LT, Op.LE)):
        return None
    low, high = (position(a) for a in node.args)
    if low is None or high is None:
        return None
    apart: sympy.Expr = expand(high - low - (1 if node.op is Op.LT else 0))
    return apart


def decided(roots: Mapping[int, Value], ranges: Ranges) -> dict[int, Value]:
    """Each of the roots (by key) as it is where the axes are within `ranges`."""
    new: dict[int, Value] = {}
    kept: list[Value] = []
    for node in walk(*roots.values()):
        fresh = rebuild(node, new) if any(new[id(o)] is not o for o in operands(node)) else node
        result = _decide(fresh, ranges)
        new[id(node)] = result
        kept += (node, fresh, result)
    return {key: new[id(root)] for key, root in roots.items()}


def _decide(node: Value, ranges: Ranges) -> Value:
    match node:
        case Alu(op=Op.LT | Op.LE):
            apart = difference(node)
            bounds = None if apart is None else interval(apart, ranges)
            if bounds is not None and (bounds[0] >= 0 or bounds[1] < 0):
                return TRUE if bounds[0] >= 0 else FALSE
        case Alu(op=Op.AND | Op.OR, args=(a, b), dtype=DType.BOOL):
            end, way = (FALSE, TRUE) if node.op is Op.AND else (TRUE, FALSE)
            if a is end or b is end:
                return end
            if a is way or b is way:
                return b if a is way else a
        case Alu(op=Op.NOT, args=(a,), dtype=DType.BOOL) if a is TRUE or a is FALSE:
            return FALSE if a is TRUE else TRUE
        case Alu(op=Op.WHERE, args=(c, a, b)):
            return _choice(node, c, a, b)
        case Alu(op=Op.ABS | Op.NEG | Op.ADD | Op.SUB, dtype=DType.I64):
            return _as_position(node, ranges)
        case Load():
            return _load(node, ranges)
        case _:
            pass
    return node


def _choice(node: Alu, condition: Value, yes: Value, no: Value) -> Value:
    if condition is TRUE or condition is FALSE:
        return yes if condition is TRUE else no
    zero = isinstance(no, Const) and no.value == 0 and not str(no.value).startswith("-")
    if zero and isinstance(yes, Load) and yes.mask is condition and yes.dtype.compute is node.dtype.compute:
        return yes  # a masked load is 0 where its mask does not hold
    return node


def _as_position(node: Alu, ranges: Ranges) -> Value:
    """Sums and absolute values of positions as positions."""
    parts = [position(a) for a in node.args]
    exprs = [p for p in parts if p is not None]
    if len(exprs) < len(parts) or not any(isinstance(a, Index) for a in node.args):
        return node
    match node.op:
        case Op.ADD:
            return Index(expand(exprs[0] + exprs[1]), node.dtype)
        case Op.SUB:
            return Index(expand(exprs[0] - exprs[1]), node.dtype)
        case Op.NEG:
            return Index(expand(-exprs[0]), node.dtype)
        case _:
            bounds = interval(exprs[0], ranges)
            if bounds is not None and bounds[0] >= 0:
                return Index(exprs[0], node.dtype)
            return Index(expand(-exprs[0]), node.dtype) if bounds is not None and bounds[1] <= 0 else node


def _load(node: Load, ranges: Ranges) -> Value:
    if node.mask is FALSE:
        kind = node.dtype.compute
        return FALSE if kind is DType.BOOL else Const(0.0 if kind.is_float else 0, kind)
    mask = None if node.mask is TRUE else node.mask
    places: dict[sympy.Symbol, sympy.Expr] = {}
    gathers: list[Gather] = []
    for gather in node.gathers:
        at = position(gather.value)
        bounds = None if at is None else interval(at, ranges)
        size = gather.size
        if at is not None and bounds is not None and isinstance(size, int | sympy.Integer) and 0 <= bounds[0] and bounds[1] < int(size):
            places[gather.symbol] = at
        else:
            gathers.append(gather)
    if mask is node.mask and not places:
        return node
    return Load(node.buffer, expand(replace_symbols(node.index, places)) if places else node.index, node.dtype, tuple(gathers), mask)
