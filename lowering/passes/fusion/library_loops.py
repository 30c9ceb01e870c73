"""Library calls as loops: what follows a call that does not take its epilogue, and whole products that are too small for a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul

import sympy

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    Alu,
    Attention,
    Axis,
    Buffer,
    Cast,
    Const,
    Conv,
    Gemm,
    Kernel,
    Load,
    Reduce,
    Size,
    Step,
    Store,
    Value,
    View,
    axis_symbol,
)
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.substitution import shared_axis
from precast.lowering.ir.sympy_calls import same

Buffers = Mapping[str, Buffer]


def constant(value: float, dtype: DType) -> Const:
    return Const(float(value), dtype)


def activate(kind: str, arguments: tuple[float, ...], v: Value) -> Value:
    """`kind` of `ir.Unary` applied to `v`, in its own (f32 or f64) type."""
    t = v.dtype

    def op(which: Op, *args: Value) -> Value:
        return Alu(which, args, t)

    def c(x: float) -> Value:
        return constant(x, t)

    def logistic(x: Value) -> Value:
        return op(Op.DIV, c(1.0), op(Op.ADD, c(1.0), op(Op.EXP, op(Op.NEG, x))))

    match kind:
        case "none":
            return v
        case "relu":
            return op(Op.MAX, v, c(0.0))
        case "gelu":
            return op(Op.MUL, op(Op.MUL, v, c(0.5)), op(Op.ADD, c(1.0), op(Op.ERF, op(Op.MUL, v, c(math.sqrt(0.5))))))
        case "gelu_tanh":
            cube = op(Op.MUL, op(Op.MUL, v, v), v)
            u = op(Op.MUL, c(math.sqrt(2 / math.pi)), op(Op.ADD, v, op(Op.MUL, c(0.044715), cube)))
            return op(Op.DIV, v, op(Op.ADD, c(1.0), op(Op.EXP, op(Op.MUL, c(-2.0), u))))
        case "sigmoid":
            return logistic(v)
        case "tanh":
            return op(Op.TANH, v)
        case "silu":
            return op(Op.DIV, v, op(Op.ADD, c(1.0), op(Op.EXP, op(Op.NEG, v))))
        case "hardswish":
            gate = op(Op.MIN, op(Op.MAX, op(Op.ADD, v, c(3.0)), c(0.0)), c(6.0))
            return op(Op.DIV, op(Op.MUL, v, gate), c(6.0))
        case "hardtanh":
            low, high = arguments or (-1.0, 1.0)
            return op(Op.MIN, op(Op.MAX, v, c(low)), c(high))
        case "leaky_relu":
            slope = arguments[0] if arguments else 0.01
            return Alu(Op.WHERE, (Alu(Op.LT, (v, c(0.0)), DType.BOOL), op(Op.MUL, v, c(slope)), v), t)
    raise TypeError(f"activation {kind!r} is not known")


def axes_of(size: tuple[Size, ...]) -> tuple[Axis, ...]:
    return tuple(Axis(axis_symbol(f"e{number}"), extent) for number, extent in enumerate(size))


def place(axes: tuple[Axis, ...], stride: tuple[Size, ...], offset: Size = 0) -> sympy.Expr:
    """Strided index of the point of `axes`."""
    index: sympy.Expr = sympy.sympify(offset)
    for axis, step in zip(axes, stride, strict=True):
        index = index + axis.symbol * step
    return index


def load_view(view: View, axes: tuple[Axis, ...], buffers: Buffers, stride: tuple[Size, ...] | None = None) -> Value:
    """A view's element at `axes`; `stride` overrides the view's own (for a broadcast bias)."""
    return Load(view.buffer, place(axes, view.stride if stride is None else stride, view.offset), buffers[view.buffer].dtype)


def in_compute_type(v: Value) -> Value:
    """The value in the type that it is computed in."""
    return v if v.dtype is v.dtype.compute else Cast(v, v.dtype.compute)


def finish(step: Gemm | Conv, value: Value, axes: tuple[Axis, ...], buffers: Buffers) -> Value:
    """Activation and residual of `step` over `value`."""
    residual = None if step.residual is None else in_compute_type(load_view(step.residual, axes, buffers))
    if residual is not None and step.residual_order == "before":
        value = Alu(Op.ADD, (value, residual), value.dtype)
    value = activate(step.activation, step.activation_args, value)
    if residual is not None and step.residual_order == "after":
        value = Alu(Op.ADD, (value, residual), value.dtype)
    return value


def epilogue_kernel(name: str, step: Gemm | Conv, buffers: Buffers) -> Kernel | None:
    """In-place kernel over `step.out` for activation and residual; None where there is nothing to do."""
    if step.activation == "none" and step.residual is None:
        return None
    out = buffers[step.out]
    order = sorted(range(len(out.size)), key=lambda d: -_known(out.stride[d]))
    axes = axes_of(out.size)
    index = place(axes, out.stride)
    value = finish(step, in_compute_type(Load(out.name, index, out.dtype)), axes, buffers)
    return Kernel(name, tuple(axes[d] for d in order), (Store(out.name, index, value),), step.origins)


def _known(size: Size) -> int:
    return int(size) if isinstance(size, int | sympy.Integer) else 1 << 40


def gemm_kernel(name: str, step: Gemm, buffers: Buffers, *, rounded: bool = False) -> Kernel:
    """The whole product as a reduction kernel with its epilogue: for vectors and tiny sizes. `rounded`: what is fused into its sides is
    rounded to their type, as it would be in memory.
    """
    out = buffers[step.out]
    axes = axes_of(out.size)
    depth = Axis(axis_symbol("k"), step.a.size[-1])
    batch = axes[:-2]
    a = load_view(step.a, (*batch, axes[-2], depth), buffers)
    b = load_view(step.b, (*batch, depth, axes[-1]), buffers)
    if rounded:
        a, b = Cast(a, a.dtype), Cast(b, b.dtype)
    bias = None if step.bias is None else load_view(step.bias, axes[-len(step.bias.size) :], buffers)
    return _product(name, step, (a, b), bias, axes, depth, buffers)


def pointwise_kernel(name: str, step: Conv, buffers: Buffers) -> Kernel:
    """The same for a convolution whose kernel is one pixel, without padding or groups: its image and its weight, summed over channels."""
    out = buffers[step.out]
    axes = axes_of(out.size)
    depth = Axis(axis_symbol("k"), step.x.size[1])
    x = load_view(step.x, (axes[0], depth, *axes[2:]), buffers, (*step.x.stride[:2], *map(mul, step.x.stride[2:], step.stride)))
    weight = load_view(step.weight, (axes[1], depth), buffers, step.weight.stride[:2])
    bias = None if step.bias is None else load_view(step.bias, axes[1:2], buffers)
    return _product(name, step, (x, weight), bias, axes, depth, buffers)


def _product(
    name: str, step: Gemm | Conv, sides: tuple[Value, Value], bias: Value | None, axes: tuple[Axis, ...], depth: Axis, buffers: Buffers
) -> Kernel:
    """The sum of the products of both sides, and the step's epilogue."""
    out = buffers[step.out]
    compute = out.dtype.compute
    a, b = map(in_compute_type, sides)
    value: Value = Reduce(ReduceOp.SUM, Alu(Op.MUL, (a, b), compute), (depth,), compute)
    if bias is not None:
        value = Alu(Op.ADD, (value, in_compute_type(bias)), compute)
    value = finish(step, value, axes, buffers)
    return Kernel(name, axes, (Store(out.name, place(axes, out.stride), value),), step.origins)


def attention_products(name: str, step: Attention, buffers: Buffers) -> tuple[list[Step], list[Buffer]]:
    """Attention without a mask as two products and a softmax between them, and the buffers that they need: scores, shares of them, and
    copies of operands (or of the result) whose heads do not lie in one row of matrices. A result that does is a buffer of matrices.
    """
    batch, heads, rows, _ = step.q.size
    count, dtype = ix.numel((batch, heads)), buffers[step.out].dtype
    before: list[Step] = []
    fresh: list[Buffer] = []

    def in_one_row(stride: Sequence[Size]) -> bool:
        return batch == 1 or same(stride[0], ix.numel((stride[1], heads)))

    def matrices(view: View, part: str) -> View:
        """[batch, heads, rows, depth] as [batch * heads, rows, depth]."""
        if in_one_row(view.stride):
            return View(view.buffer, (count, *view.size[2:]), view.stride[1:], view.offset, view.dtype)
        axes = tuple(shared_axis(s, n) for s, n in zip(ix.symbols(4), view.size, strict=True))
        stride = ix.contiguous_strides(view.size)
        copy = Buffer(f"{name}_{part}", dtype, tuple(view.size), stride)
        fresh.append(copy)
        value = Load(view.buffer, _at(view.stride, axes, view.offset), dtype.compute)
        before.append(Kernel(copy.name, axes, (Store(copy.name, _at(stride, axes), value),), step.origins))
        return View(copy.name, (count, *view.size[2:]), stride[1:])

    q, k, v = matrices(step.q, "q"), matrices(step.k, "k"), matrices(step.v, "v")
    size = (count, rows, step.k.size[2])
    stride = ix.contiguous_strides(size)
    scores, shares = (Buffer(f"{name}_{part}", dtype, size, stride) for part in ("scores", "shares"))
    out = buffers[step.out]
    result = (count, rows, step.v.size[3])
    alone = in_one_row(out.stride)
    made = Buffer(step.out, dtype, result, out.stride[1:]) if alone else Buffer(f"{name}_out", dtype, result, ix.contiguous_strides(result))
    turned = View(k.buffer, (count, k.size[2], k.size[1]), (k.stride[0], k.stride[2], k.stride[1]), k.offset, k.dtype)
    axes = tuple(shared_axis(s, n) for s, n in zip(ix.symbols(3), size, strict=True))
    last = shared_axis(axis_symbol("r0"), size[2])
    kind = dtype.compute

    def scaled(*point: Axis) -> Value:
        return Alu(Op.MUL, (Load(scores.name, _at(stride, point), kind), constant(step.scale, kind)), kind)

    top = Reduce(ReduceOp.MAX, scaled(*axes[:2], last), (last,), kind)
    total = Reduce(ReduceOp.SUM, Alu(Op.EXP, (Alu(Op.SUB, (scaled(*axes[:2], last), top), kind),), kind), (last,), kind)
    power = Alu(Op.EXP, (Alu(Op.SUB, (scaled(*axes), top), kind),), kind)
    softmax = Kernel(shares.name, axes, (Store(shares.name, _at(stride, axes), Alu(Op.DIV, (power, total), kind)),), step.origins)
    steps = [
        *before,
        Gemm(q, turned, None, scores.name, origins=step.origins),
        softmax,
        Gemm(View(shares.name, size, stride), v, None, made.name, origins=step.origins),
    ]
    if not alone:
        whole = tuple(shared_axis(s, n) for s, n in zip(ix.symbols(4), (batch, heads, rows, step.v.size[3]), strict=True))
        value = Load(made.name, _at(ix.contiguous_strides(tuple(a.extent for a in whole)), whole), kind)
        steps.append(Kernel(f"{name}_copy", whole, (Store(step.out, _at(out.stride, whole), value),), step.origins))
    return steps, [*fresh, scores, shares, made]


def _at(stride: Sequence[Size], axes: Sequence[Axis], offset: Size = 0) -> sympy.Expr:
    place: sympy.Expr = ix.affine(offset, tuple((s, a.symbol) for s, a in zip(stride, axes, strict=True)))
    return place
