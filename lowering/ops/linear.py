"""Library calls: matrix products, convolutions, attention. Operands go in as strided windows, without copies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder, Cost
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.build.output_strides import streamed, strides_as_read
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Attention, Conv, Gemm, Kernel, Size, Value, View
from precast.lowering.ir.scalars import DType, ReduceOp
from precast.lowering.ops.creation import empty_sizes


def gemm(b: Builder, x: Tensor, y: Tensor, bias: Tensor | None, out: Tensor) -> Result:
    """`x @ y + bias` into `out`; declines types that no library multiplies, and answers empty sums itself."""
    if not x.dtype.is_float or x.dtype is not y.dtype:
        return None
    assert out.window is not None
    if x.size[-1] == 0 or empty_sizes(out.size):
        b.store(out, b.lazy(out.size, out.dtype, bias.body() if bias is not None else tx.constant(0, out.dtype)))
    elif _streams(b, x, y):
        b.store(out, _row_by_row(b, x, y, bias))
    else:
        left, right = (b.window(t, strides_as_read(t) if t.window is None else None) for t in (x, y))
        b.steps.append(Gemm(left, right, None if bias is None else b.window(bias), out.window.buffer, origins=(b.origin,)))
    return out


FEW_ROWS = {DType.F32: 4, DType.F64: 4}
"""Up to so many rows (2 of half precision, which libraries multiply faster) a product reads weights of a narrower type as they are, once
for each row. Measured on a Zen 4 with int8 weights: one row of float32 takes a sixth of the time of a cast and a library call."""


def _streams(b: Builder, x: Tensor, y: Tensor) -> bool:
    """Whether a few rows are multiplied with a matrix that is cheap to compute of much less memory: int8 weights, say."""
    rows = x.size[0]
    few = x.rank == y.rank == 2 and isinstance(rows, int) and rows <= FEW_ROWS.get(x.dtype, 2)
    if not few or b.on_gpu or b.realised(y).window is not None:
        return False
    cost = Cost(y.body())
    return cost.nodes <= 6 and not cost.heavy and streamed(y, 0)


def _row_by_row(b: Builder, x: Tensor, y: Tensor, bias: Tensor | None) -> Tensor:
    """The product as sums over rows of the transposed matrix."""
    m, n, k = (*x.size[:1], y.size[1], x.size[1])
    row, column, inner = ix.symbols(3)
    extents = ix.extents_of((m, n, k))
    place = [e if size != 1 else sympy.S.Zero for e, size in ((row, m), (inner, k), (column, n))]
    product = v.mul(b.settle(x).at(place[:2], extents), y.at(place[1:], extents))
    finish = None if bias is None else (lambda total: v.add(total, v.value_of(bias, b.dtype)))
    return b.reduce(ReduceOp.SUM, b.lazy((m, n, k), b.dtype, product), [2], b.dtype, finish=finish)


@lowering("mm")
def mm(b: Builder, x: Tensor, y: Tensor) -> Result:
    return gemm(b, x, y, None, b.output()) if x.dtype.is_float else None


@lowering("bmm")
def bmm(b: Builder, x: Tensor, y: Tensor) -> Result:
    return gemm(b, x, y, None, b.output()) if x.dtype.is_float else None


def _of_one_type(*tensors: Tensor) -> bool:
    """Whether eager multiplies them: products of several types are its errors to raise."""
    return all(tensor.dtype is tensors[0].dtype for tensor in tensors)


def _scaled(b: Builder, addend: Tensor, product: Tensor, beta: v.Number, alpha: v.Number) -> Tensor:
    """`beta * addend + alpha * product`; a beta of 0 ignores the addend, NaN included."""
    total = v.mul(product.body(), v.number(alpha, b.dtype))
    if beta == 0:
        return b.lazy(b.size, b.dtype, total)
    return b.lazy(b.size, b.dtype, v.add(total, v.mul(v.value_of(addend, b.dtype), v.number(beta, b.dtype))))


@lowering("addmm")
def addmm(b: Builder, bias: Tensor, x: Tensor, y: Tensor, *, beta: v.Number = 1, alpha: v.Number = 1) -> Result:
    if not x.dtype.is_float or not _of_one_type(bias, x, y):
        return None
    if alpha == 0:  # the factors are ignored, NaN included
        zero = tx.constant(0, b.dtype)
        return b.lazy(b.size, b.dtype, zero if beta == 0 else v.mul(v.value_of(bias, b.dtype), v.number(beta, b.dtype)))
    flat = bias.rank == 1 or (bias.rank == 2 and bias.size[0] == 1)
    if beta == 1 and alpha == 1 and flat and bias.size[-1] == y.size[1]:
        return gemm(b, x, y, bias if bias.rank == 1 else tx.select(bias, 0, 0), b.output())
    product = gemm(b, x, y, None, b.whole(b.buffer(b.size, b.dtype)))
    assert isinstance(product, Tensor)
    return _scaled(b, bias, product, beta, alpha)


@lowering("baddbmm")
def baddbmm(b: Builder, addend: Tensor, x: Tensor, y: Tensor, *, beta: v.Number = 1, alpha: v.Number = 1) -> Result:
    if not x.dtype.is_float or not _of_one_type(addend, x, y):
        return None
    product = gemm(b, x, y, None, b.whole(b.buffer(b.size, b.dtype)))
    assert isinstance(product, Tensor)
    return _scaled(b, addend, product, beta, alpha)


@lowering("linear")
def linear(b: Builder, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Result:
    if not x.dtype.is_float or weight.rank != 2 or x.rank == 0 or not _of_one_type(x, weight, *([] if bias is None else [bias])):
        return None
    rows = ix.numel(x.size[:-1])
    flat = tx.reshape(x, (rows, x.size[-1]))
    out = b.whole(b.buffer((rows, weight.size[0]), b.dtype))
    gemm(b, flat, tx.permute(weight, (1, 0)), bias, out)
    return tx.reshape(out, b.size)


@lowering("matmul")
def matmul(b: Builder, x: Tensor, y: Tensor) -> Result:
    """Vectors are reductions; a matrix on the right takes all leading dimensions at once; otherwise batches are broadcast."""
    if not x.dtype.is_float or empty_sizes(b.size) or not _of_one_type(x, y):
        return None
    if x.rank == 1 and y.rank == 1:
        return b.reduce(ReduceOp.SUM, b.lazy(x.size, b.dtype, v.mul(x.body(), y.body())), [0], b.dtype)
    left = tx.unsqueeze(x, 0) if x.rank == 1 else x
    right = tx.unsqueeze(y, 1) if y.rank == 1 else y
    n = right.size[-1]
    if right.rank == 2:
        flat = tx.reshape(left, (ix.numel(left.size[:-1]), left.size[-1]))
        found = gemm(b, flat, right, None, b.whole(b.buffer((flat.size[0], n), b.dtype)))
    else:
        batch = _broadcast(left.size[:-2], right.size[:-2])
        count = ix.numel(batch)
        sides = [tx.reshape(tx.expand(t, (*batch, *t.size[-2:])), (count, *t.size[-2:])) for t in (left, right)]
        found = gemm(b, sides[0], sides[1], None, b.whole(b.buffer((count, left.size[-2], n), b.dtype)))
    assert isinstance(found, Tensor)
    return tx.reshape(found, b.size)


def _broadcast(a: tuple[Size, ...], b: tuple[Size, ...]) -> tuple[Size, ...]:
    rank = max(len(a), len(b))
    one = (*(1 for _ in range(rank - len(a))), *a)
    two = (*(1 for _ in range(rank - len(b))), *b)
    return tuple(y if x == 1 else x for x, y in zip(one, two, strict=True))


def _vector_product(b: Builder, matrix: Tensor, vector: Tensor) -> Tensor:
    """`matrix @ vector` as a reduction over the columns."""
    return b.reduce(ReduceOp.SUM, b.lazy(matrix.size, b.dtype, v.mul(matrix.body(), vector.body())), [1], b.dtype)


@lowering("mv")
def mv(b: Builder, matrix: Tensor, vector: Tensor) -> Result:
    return _vector_product(b, matrix, vector) if _of_one_type(matrix, vector) else None


@lowering("addmv")
def addmv(b: Builder, x: Tensor, matrix: Tensor, vector: Tensor, *, beta: v.Number = 1, alpha: v.Number = 1) -> Result:
    fits = b.dtype.is_float and _of_one_type(x, matrix, vector) and alpha != 0
    return _scaled(b, x, _vector_product(b, matrix, vector), beta, alpha) if fits else None


@lowering("addr")
def addr(b: Builder, x: Tensor, column: Tensor, row: Tensor, *, beta: v.Number = 1, alpha: v.Number = 1) -> Result:
    if not b.dtype.is_float:
        return None
    product = b.lazy(b.size, b.dtype, v.mul(v.value_of(tx.unsqueeze(column, 1), b.dtype), v.value_of(row, b.dtype)))
    return _scaled(b, x, product, beta, alpha)


@lowering("convolution")
def convolution(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Result:
    spatial = weight.rank - 2
    plain = x.dtype.is_float and x.dtype is weight.dtype and (bias is None or bias.dtype is x.dtype) and x.rank == weight.rank
    if not plain or empty_sizes(b.size) or empty_sizes(x.size) or empty_sizes(weight.size):
        return None
    if any(isinstance(n, sympy.Expr) for n in (*stride, *padding, *dilation, *output_padding)):
        return None
    out = b.output()
    assert out.window is not None

    def each(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(values) if len(values) == spatial else tuple(values) * spatial

    b.steps.append(
        Conv(
            b.window(x),
            b.window(weight),
            None if bias is None else b.window(bias),
            out.window.buffer,
            each(stride),
            each(padding),
            each(dilation),
            transposed,
            each(output_padding),
            groups,
            origins=(b.origin,),
        )
    )
    return out


@lowering("scaled_dot_product_attention")
def attention(
    b: Builder,
    q: Tensor,
    k: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Result:
    if dropout_p != 0.0 or q.rank < 3 or not q.dtype.is_float or not isinstance(q.size[-1], int):
        return None
    if any(empty_sizes(t.size) for t in (q, k, value)) or (q.size[:-3] != k.size[:-3]) or q.size[:-3] != value.size[:-3]:
        return None
    if q.rank >= 3 and not enable_gqa and (q.rank > 2 and q.size[-3] != k.size[-3]):
        return None
    return _attention(b, q, k, value, attn_mask, is_causal, scale, None)


@lowering("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    b: Builder,
    q: Tensor,
    k: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Result:
    """The second result, the log of the sums, is for a backward pass: where it is read, the call stays whole."""
    if dropout_p != 0.0 or b.is_used(1) or not isinstance(q.size[-1], int) or any(empty_sizes(t.size) for t in (q, k, value)):
        return None
    return _attention(b, q, k, value, attn_mask, is_causal, scale, b.output(0)), None


def _attention(
    b: Builder, q: Tensor, k: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None, out: Tensor | None
) -> Tensor:
    depth = q.size[-1]
    assert isinstance(depth, int)
    factor = 1 / math.sqrt(depth) if scale is None else scale
    four = [_to_rank(t, 4) for t in (q, k, value)]
    four[1:] = _shared_heads(*four[1:])
    if out is None and b.on_gpu and q.rank == 4 and (b.is_result or _given(b, four[0])):
        target = b.output()  # the library lays its result out as the queries lie
    else:
        target = _heads_last(b, (*four[0].size[:3], four[2].size[3]), q.dtype) if out is None else out
    assert target.window is not None
    b.steps.append(
        Attention(
            b.window(four[0]),
            b.window(four[1]),
            b.window(four[2]),
            None if mask is None else _mask(b, mask, q.dtype, (*target.size[:3], four[1].size[2])),
            target.window.buffer,
            causal,
            float(factor),
            (b.origin,),
        )
    )
    return tx.reshape(target, b.size) if out is None else out


def _shared_heads(k: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values without the repetition over groups of heads, where both are repeated alike."""
    heads = k.size[1]
    if k.window is not None or value.window is not None or not isinstance(heads, int):
        return k, value
    for group in range(heads, 1, -1):
        if heads % group == 0:
            fewer = [_every(t, group) for t in (k, value)]
            if all(_repeated(short, t, group) is t.body() for short, t in zip(fewer, (k, value), strict=True)):
                return fewer[0], fewer[1]
    return k, value


def _every(t: Tensor, group: int) -> Tensor:
    """Every `group`-th head."""
    return tx.narrow(t, 1, 0, t.size[1] // group, group)


def _repeated(t: Tensor, like: Tensor, group: int) -> Value:
    """Each head of `t` `group` times over."""
    names = list(ix.symbols(4))
    names[1] = ix.floordiv(names[1], group, ix.extents_of(like.size))
    index = [n if s != 1 else sympy.S.Zero for n, s in zip(names, t.size, strict=True)]
    return t.at(index, ix.extents_of(like.size))


def _given(b: Builder, q: Tensor) -> bool:
    """Whether the queries lie in memory in a layout that no kernel chooses."""
    made = {store.buffer for step in b.steps if isinstance(step, Kernel) for store in step.stores}
    return q.window is not None and q.window.buffer not in made


def _heads_last(b: Builder, size: tuple[Size, ...], dtype: DType) -> Tensor:
    """Memory for [B, H, S, D] laid out as [B, S, H, D], as the projection that follows reads it."""
    n, heads, rows, depth = size
    stride = (ix.numel((heads, rows, depth)), depth, ix.numel((heads, depth)), 1)
    return b.whole(b.buffer(size, dtype, stride))


def _to_rank(t: Tensor, rank: int) -> Tensor:
    """Leading dimensions of size 1 added, or leading dimensions merged."""
    if t.rank == rank:
        return t
    if t.rank < rank:
        return tx.reshape(t, (*(1 for _ in range(rank - t.rank)), *t.size))
    return tx.reshape(t, (ix.numel(t.size[: t.rank - rank + 1]), *t.size[t.rank - rank + 1 :]))


def _mask(b: Builder, mask: Tensor, dtype: DType, size: tuple[Size, ...]) -> View:
    """The additive mask; true of a boolean one means "attend"."""
    if mask.dtype is DType.BOOL:
        zero, low = tx.constant(0.0, dtype), tx.constant(-math.inf, dtype)
        mask = b.lazy(mask.size, dtype, v.where(mask.body(), zero, low))
    elif mask.dtype is not dtype:
        mask = b.lazy(mask.size, dtype, mask.body())
    return b.window(tx.expand(b.realise(mask), size))
