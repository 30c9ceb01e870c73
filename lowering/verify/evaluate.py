"""Evaluates the values of one kernel with torch, for the oracle: each value is a tensor with one dimension per axis in scope (extent 1
where it does not vary).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import sympy
import torch

from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Cast,
    Const,
    Gather,
    Index,
    Kernel,
    Load,
    Reduce,
    Scan,
    Size,
    Store,
    Value,
    walk,
)
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.verify.philox import philox

Tensor = torch.Tensor
Points = tuple[Tensor, Tensor]
"""Flat element indices and the values at them, both one-dimensional."""
Stored = Points


def int_of(expr: Size | sympy.Basic, sizes: Mapping[sympy.Symbol, int]) -> int:
    """The integer that a size expression has for these symbols."""
    return int(expr) if isinstance(expr, int) else int(cast(Any, evaluate_index(expr, sizes)))


def evaluate_index(expr: sympy.Basic, env: Mapping[sympy.Symbol, Any]) -> Any:
    """An integer expression over ints or int64 tensors; floor semantics."""
    if isinstance(expr, sympy.Symbol):
        if expr not in env:
            raise ValueError(f"the symbol {expr} is bound neither by an axis nor by an input")
        return env[expr]
    if expr.is_Integer:
        return int(cast(sympy.Integer, expr))
    if expr.is_number:
        return float(cast(Any, expr))
    args = [evaluate_index(a, env) for a in expr.args]
    name = expr.func.__name__
    function = INDEX_FUNCTIONS.get(name) or getattr(math, name.removeprefix("OpaqueUnaryFn_"))  # torch's functions of reals are Python's
    return function(*args)


def _sum(*args: Any) -> Any:
    total = args[0]
    for a in args[1:]:
        total = total + a
    return total


def _product(*args: Any) -> Any:
    total = args[0]
    for a in args[1:]:
        total = total * a
    return total


def _extreme(of_tensors: Callable[[Tensor, Tensor], Tensor], of_ints: Callable[[int, int], int]) -> Callable[..., Any]:
    def fold(*args: Any) -> Any:
        best = args[0]
        for a in args[1:]:
            if isinstance(a, Tensor) or isinstance(best, Tensor):
                best = of_tensors(torch.as_tensor(best), torch.as_tensor(a))
            else:
                best = of_ints(best, a)
        return best

    return fold


def _piecewise(*pairs: Any) -> Any:
    result: Any = 0
    for value, condition in reversed(pairs):
        result = value if condition is True else torch.where(torch.as_tensor(condition), torch.as_tensor(value), torch.as_tensor(result))
    return result


def real_of(expr: Any, sizes: Mapping[sympy.Symbol, Any]) -> float:
    """The real number that an expression over sizes is, in double."""
    return float(evaluate_index(expr, sizes))


INDEX_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": _sum,
    "Mul": _product,
    "Pow": lambda a, b: a**b,
    "FloorDiv": lambda a, b: a // b,
    "Modulo": lambda a, b: a % b,
    "Mod": lambda a, b: a % b,
    "Max": _extreme(torch.maximum, max),
    "Min": _extreme(torch.minimum, min),
    "Piecewise": _piecewise,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "FloatPow": lambda a, b: a**b,
    "ToFloat": float,
    "TruncToFloat": lambda a: float(int(a)),
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "TruncToInt": math.trunc,
    "RoundToInt": round,
    "ExprCondPair": lambda value, condition: (value, condition),
    "BooleanTrue": lambda: True,
    "StrictLessThan": lambda a, b: a < b,
    "LessThan": lambda a, b: a <= b,
    "StrictGreaterThan": lambda a, b: a > b,
    "GreaterThan": lambda a, b: a >= b,
    "Equality": lambda a, b: a == b,
    "Unequality": lambda a, b: a != b,
    "And": lambda *args: all(args),
    "Or": lambda *args: any(args),
    "Not": lambda a: not a,
}


def evaluate_kernel(
    kernel: Kernel, memory: Callable[[str], Tensor], sizes: Mapping[sympy.Symbol, int], dtype: Callable[[DType], torch.dtype]
) -> list[Stored]:
    """For each store of the kernel, where it writes and what (masked points left out)."""
    roots = [v for s in kernel.stores for v in (s.value, *(g.value for g in s.gathers), *((s.mask,) if s.mask is not None else ()))]
    scope = _Scope(kernel, roots, memory, sizes, dtype)
    for value in walk(*roots):
        scope.values[value] = scope.compute(value)
    return [scope.points(store) for store in kernel.stores]


class _Scope:
    """The axes of one kernel, those that its reductions bind included, each at a dimension of its own."""

    def __init__(
        self,
        kernel: Kernel,
        roots: list[Value],
        memory: Callable[[str], Tensor],
        sizes: Mapping[sympy.Symbol, int],
        dtype: Callable[[DType], torch.dtype],
    ) -> None:
        self.kernel, self.memory, self.dtype = kernel, memory, dtype
        self.values: dict[Value, Tensor] = {}
        self.axes: dict[sympy.Symbol, Axis] = {}
        bound = [axis for v in walk(*roots) if isinstance(v, Reduce) for axis in v.axes]
        for axis in (*kernel.axes, *bound):
            other = self.axes.setdefault(axis.symbol, axis)
            if other.extent != axis.extent:
                raise ValueError(f"kernel {kernel.name} uses the axis {axis.symbol} with two extents: {other.extent} and {axis.extent}")
        self.extents = [int_of(a.extent, sizes) for a in self.axes.values()]
        self.place = {symbol: i for i, symbol in enumerate(self.axes)}
        self.env: dict[sympy.Symbol, Any] = dict(sizes)
        for symbol, i in self.place.items():
            self.env[symbol] = torch.arange(self.extents[i]).reshape([-1 if j == i else 1 for j in range(len(self.extents))])

    def index(self, expr: sympy.Expr, gathers: tuple[Gather, ...], mask: Tensor | None) -> Tensor:
        env = self.env
        if gathers:
            env = dict(env)
            for gather in gathers:
                env[gather.symbol] = self.gathered(gather, mask)
        found = torch.as_tensor(evaluate_index(expr, env), dtype=torch.int64)
        return found.reshape([1] * len(self.extents)) if found.dim() == 0 else found

    def gathered(self, gather: Gather, mask: Tensor | None) -> Tensor:
        value = self.values[gather.value].to(torch.int64)
        size = int_of(gather.size, self.env)
        if gather.wraps:
            value = torch.where(value < 0, value + size, value)
        bad = (value < 0) | (value >= size)
        if mask is not None:
            bad, value = bad & mask, torch.where(mask & ~bad, value, 0)
        if bool(bad.any()):
            error = RuntimeError if gather.checked == "RuntimeError" else IndexError
            raise error(f"kernel {self.kernel.name}: index out of range for a dimension of size {size}")
        return value

    def full(self, tensor: Tensor, symbols: tuple[sympy.Symbol, ...]) -> Tensor:
        places = {self.place[s] for s in symbols}
        return tensor.expand([self.extents[i] if i in places else tensor.shape[i] for i in range(len(self.extents))])

    def compute(self, value: Value) -> Tensor:
        rank = [1] * len(self.extents)
        match value:
            case Const(value=number, dtype=dtype):
                return torch.tensor(number, dtype=self.dtype(dtype.compute)).reshape(rank)
            case Index(expr=expr, dtype=DType.F64) if is_real(expr):
                return torch.tensor(real_of(expr, self.env), dtype=torch.float64).reshape(rank)
            case Index(expr=expr, dtype=dtype):
                return self.index(expr, (), None).to(self.dtype(dtype.compute))
            case Load():
                return self.load(value)
            case Cast(value=inner, dtype=dtype):
                source = self.values[inner]
                if dtype is DType.BOOL:
                    return source != 0
                return source.to(self.dtype(dtype)).to(self.dtype(dtype.compute))
            case Alu():
                return self.alu(value)
            case Reduce():
                return self.reduce(value)
            case Scan(op=op, value=inner, axis=axis, dtype=dtype):
                source = self.full(self.values[inner], (axis.symbol,))
                return SCANS[op](source.to(self.dtype(dtype)) if op in WIDENED else source, self.place[axis.symbol]).to(self.dtype(dtype))

    def load(self, value: Load) -> Tensor:
        flat = self.memory(value.buffer)
        mask = None if value.mask is None else self.values[value.mask]
        index = self.index(value.index, value.gathers, mask)
        if mask is not None:
            index = torch.where(mask, index, 0)
        if index.numel() and (mask is None or bool(mask.any())):
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= flat.numel():
                raise ValueError(
                    f"kernel {self.kernel.name}: load of {value.buffer} at {value.index} reaches {low}..{high} of {flat.numel()} elements"
                )
        wide = self.dtype(value.dtype.compute)
        if mask is not None and not flat.numel():
            return torch.zeros_like(index, dtype=wide)
        result = flat[index].to(wide)
        return result if mask is None else torch.where(mask, result, torch.zeros((), dtype=wide))

    def alu(self, value: Alu) -> Tensor:
        args = [self.values[a] for a in value.args]
        if value.op is Op.BITCAST:
            return self.bitcast(args[0], value)
        dtype = self.dtype(value.dtype.compute)
        if value.op in (Op.DIV, Op.POW, Op.FMA) or (value.op is not Op.WHERE and value.dtype is not DType.BOOL):
            args = [a.to(dtype) for a in args]
        if value.op in (Op.FLOORDIV, Op.TRUNCDIV, Op.MOD, Op.REM) and not args[1].is_floating_point():
            args[1] = torch.where(args[1] == 0, 1, args[1])  # undefined; may be computed at points that a WHERE discards
        return ALU[value.op](*args).to(dtype)

    def bitcast(self, source: Tensor, value: Alu) -> Tensor:
        target = value.dtype
        width = {8: torch.float64, 4: torch.float32, 2: torch.float16}
        if source.is_floating_point():  # undo the widening of double mode: bits are those of the stored type
            source = source.to(width[target.itemsize])
        found = {DType.F64: torch.float64, DType.F32: torch.float32}.get(target) or self.dtype(target)
        return source.contiguous().view(found).to(self.dtype(target.compute))

    def reduce(self, value: Reduce) -> Tensor:
        symbols = tuple(a.symbol for a in value.axes)
        source = self.full(self.values[value.value], symbols)
        places = [self.place[s] for s in symbols]
        dtype = self.dtype(value.dtype.compute)
        order = [i for i in range(source.dim()) if i not in places] + places
        flat = source.permute(order).flatten(source.dim() - len(places)) if places else source.unsqueeze(-1)
        if value.op in WIDENED:
            flat = flat.to(dtype)
        result = REDUCTIONS[value.op](flat).to(dtype)
        for place in sorted(places):
            result = result.unsqueeze(place)
        return result

    def points(self, store: Store) -> Points:
        axes = self.kernel.axes if store.axes is None else store.axes
        mask = None if store.mask is None else self.values[store.mask]
        index, value = self.index(store.index, store.gathers, mask), self.values[store.value]
        places = {self.place[a.symbol] for a in axes}
        shape = [self.extents[i] if i in places else 1 for i in range(len(self.extents))]
        if mask is None:
            return index.expand(shape).reshape(-1), value.expand(shape).reshape(-1)
        keep = mask.expand(shape).reshape(-1)
        return index.expand(shape).reshape(-1)[keep], value.expand(shape).reshape(-1)[keep]


WIDENED = (ReduceOp.SUM, ReduceOp.PROD)


def _arg(find: Callable[[Tensor], Tensor], sign: float) -> Callable[[Tensor], Tensor]:
    def first(x: Tensor) -> Tensor:
        if x.dtype is torch.bool:
            x = x.to(torch.uint8)
        extreme = x.amin(-1, keepdim=True) if sign < 0 else x.amax(-1, keepdim=True)
        hit = (x == extreme) | (x != x)
        return find(hit.to(torch.uint8))

    return first


REDUCTIONS: dict[ReduceOp, Callable[[Tensor], Tensor]] = {
    ReduceOp.SUM: lambda x: x.sum(-1, dtype=x.dtype),
    ReduceOp.PROD: lambda x: x.prod(-1, dtype=x.dtype),
    ReduceOp.MIN: lambda x: x.amin(-1),
    ReduceOp.MAX: lambda x: x.amax(-1),
    ReduceOp.ANY: lambda x: (x != 0).any(-1),
    ReduceOp.ALL: lambda x: (x != 0).all(-1),
    ReduceOp.ARGMIN: _arg(lambda hit: hit.argmax(-1), -1),  # argmax of a mask is its first true entry
    ReduceOp.ARGMAX: _arg(lambda hit: hit.argmax(-1), 1),
}

SCANS: dict[ReduceOp, Callable[[Tensor, int], Tensor]] = {
    ReduceOp.SUM: lambda x, d: x.cumsum(d),
    ReduceOp.PROD: lambda x, d: x.cumprod(d),
    ReduceOp.MIN: lambda x, d: x.cummin(d).values,
    ReduceOp.MAX: lambda x, d: x.cummax(d).values,
    ReduceOp.ARGMIN: lambda x, d: x.cummin(d).indices,
    ReduceOp.ARGMAX: lambda x, d: x.cummax(d).indices,
    ReduceOp.LOGSUMEXP: lambda x, d: x.logcumsumexp(d),
}

ALU: dict[Op, Callable[..., Tensor]] = {
    Op.NEG: torch.neg,
    Op.ABS: torch.abs,
    Op.EXP: torch.exp,
    Op.EXP2: torch.exp2,
    Op.EXPM1: torch.expm1,
    Op.LOG: torch.log,
    Op.LOG2: torch.log2,
    Op.LOG10: torch.log10,
    Op.LOG1P: torch.log1p,
    Op.SQRT: torch.sqrt,
    Op.RSQRT: torch.rsqrt,
    Op.SIN: torch.sin,
    Op.COS: torch.cos,
    Op.TAN: torch.tan,
    Op.ASIN: torch.asin,
    Op.ACOS: torch.acos,
    Op.ATAN: torch.atan,
    Op.SINH: torch.sinh,
    Op.COSH: torch.cosh,
    Op.TANH: torch.tanh,
    Op.ASINH: torch.asinh,
    Op.ACOSH: torch.acosh,
    Op.ATANH: torch.atanh,
    Op.ERF: torch.erf,
    Op.ERFC: torch.erfc,
    Op.LGAMMA: torch.lgamma,
    Op.J0: torch.special.bessel_j0,
    Op.J1: torch.special.bessel_j1,
    Op.Y0: torch.special.bessel_y0,
    Op.Y1: torch.special.bessel_y1,
    Op.FLOOR: torch.floor,
    Op.CEIL: torch.ceil,
    Op.TRUNC: torch.trunc,
    Op.ROUND: torch.round,
    Op.NOT: lambda x: torch.logical_not(x) if x.dtype is torch.bool else torch.bitwise_not(x),
    Op.ISNAN: torch.isnan,
    Op.ISINF: torch.isinf,
    Op.SIGNBIT: torch.signbit,
    Op.ADD: torch.add,
    Op.SUB: lambda a, b: torch.logical_xor(a, b) if a.dtype is torch.bool else a - b,
    Op.MUL: torch.mul,
    Op.DIV: torch.true_divide,
    Op.FLOORDIV: lambda a, b: torch.div(a, b, rounding_mode="floor"),
    Op.TRUNCDIV: lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    Op.MOD: torch.remainder,
    Op.REM: torch.fmod,
    Op.POW: torch.pow,
    Op.MIN: torch.minimum,
    Op.MAX: torch.maximum,
    Op.ATAN2: torch.atan2,
    Op.HYPOT: torch.hypot,
    Op.COPYSIGN: torch.copysign,
    Op.NEXTAFTER: torch.nextafter,
    Op.GCD: torch.gcd,
    Op.PHILOX: philox,
    Op.LT: torch.lt,
    Op.LE: torch.le,
    Op.EQ: torch.eq,
    Op.NE: torch.ne,
    Op.AND: torch.bitwise_and,
    Op.OR: torch.bitwise_or,
    Op.XOR: torch.bitwise_xor,
    Op.SHL: torch.bitwise_left_shift,
    Op.SHR: torch.bitwise_right_shift,
    Op.WHERE: torch.where,
    Op.FMA: lambda a, b, c: a * b + c,
}
