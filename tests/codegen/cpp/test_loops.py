"""Loop structure: reductions over each kind of axis, softmax and norms, scans, transposes, gathers, scatters, odd sizes."""

from __future__ import annotations

import pytest
import torch

from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Buffer,
    Const,
    Gather,
    Index,
    Kernel,
    Load,
    Reduce,
    Scan,
    Store,
    Value,
    axis_symbol,
)
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.torch_dtypes import TORCH_DTYPES
from tests.codegen.programs import F32, alu, at, axis, buffer, build, load, map_kernel

SHAPES = [(4, 5, 6), (1, 1, 1), (33, 7, 100), (3, 300, 17), (2, 3, 4096), (70, 130, 3), (0, 3, 4), (3, 0, 4), (3, 4, 0), (5, 64, 64)]
DIMS = [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)]


def dense(size: tuple[int, ...], dtype: DType) -> torch.Tensor:
    if dtype is DType.BOOL:
        return torch.rand(size) < 0.98
    if dtype.is_float:
        return torch.randn(size).to(TORCH_DTYPES[dtype])
    return torch.randint(-3 if dtype is not DType.U8 else 0, 4, size).to(TORCH_DTYPES[dtype])


def eager(op: ReduceOp, x: torch.Tensor, dims: tuple[int, ...], result: DType) -> torch.Tensor:
    match op:
        case ReduceOp.SUM:
            return x.sum(dims, dtype=TORCH_DTYPES[result])
        case ReduceOp.PROD:
            y = x.to(TORCH_DTYPES[result])
            for d in sorted(dims, reverse=True):
                y = y.prod(d)
            return y
        case ReduceOp.MIN:
            return x.amin(dims)
        case ReduceOp.MAX:
            return x.amax(dims)
        case ReduceOp.ANY:
            return x.any(dims)
        case ReduceOp.ALL:
            return x.all(dims)
        case _:
            kept = [d for d in range(x.dim()) if d not in dims]
            flat = x.permute(*kept, *dims).flatten(len(kept))
            return flat.argmax(-1) if op is ReduceOp.ARGMAX else flat.argmin(-1)


KINDS = [
    (ReduceOp.SUM, DType.F32, DType.F32), (ReduceOp.SUM, DType.BF16, DType.F32), (ReduceOp.SUM, DType.I32, DType.I64),
    (ReduceOp.SUM, DType.F64, DType.F64),
    (ReduceOp.PROD, DType.F32, DType.F32), (ReduceOp.PROD, DType.I64, DType.I64), (ReduceOp.MIN, DType.F32, DType.F32),
    (ReduceOp.MAX, DType.F32, DType.F32),
    (ReduceOp.MAX, DType.F64, DType.F64), (ReduceOp.MAX, DType.F16, DType.F16), (ReduceOp.MAX, DType.I64, DType.I64),
    (ReduceOp.MIN, DType.U8, DType.U8),
    (ReduceOp.ANY, DType.BOOL, DType.BOOL), (ReduceOp.ALL, DType.BOOL, DType.BOOL), (ReduceOp.ARGMAX, DType.F32, DType.I64),
    (ReduceOp.ARGMIN, DType.F32, DType.I64),
    (ReduceOp.ARGMAX, DType.I64, DType.I64), (ReduceOp.ARGMIN, DType.F64, DType.I64),
]  # fmt: skip


def reduction(
    op: ReduceOp, source: DType, result: DType, shape: tuple[int, ...], dims: tuple[int, ...], tag: str
) -> tuple[Buffer, Buffer, Kernel]:
    axes = [axis(f"i{d}", n) for d, n in enumerate(shape)]
    x = buffer(f"x{tag}", shape, source)
    out = buffer(f"o{tag}", [n for d, n in enumerate(shape) if d not in dims], result)
    kept = [a for d, a in enumerate(axes) if d not in dims]
    value: Value = load(x, axes)
    if op is ReduceOp.SUM and not source.is_float:
        from precast.lowering.ir.nodes import Cast

        value = Cast(value, result)
    value = Reduce(op, value, tuple(axes[d] for d in dims), result if op not in (ReduceOp.MIN, ReduceOp.MAX) else source.compute)
    return x, out, map_kernel(f"k{tag}", out, kept, value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0].value}-{k[1].value}")
def test_reductions_over_every_axis(kind: tuple[ReduceOp, DType, DType]) -> None:
    op, source, result = kind
    inputs, outputs, steps, data, want, labels = [], [], [], [], [], []
    for shape in SHAPES:
        for dims in DIMS:
            empty = any(shape[d] == 0 for d in dims)
            if empty and op in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.ARGMAX, ReduceOp.ARGMIN):
                continue
            x, out, kernel = reduction(op, source, result, shape, dims, str(len(steps)))
            values = dense(shape, source)
            if source.is_float and values.numel() > 20 and len(steps) % 3 == 0:
                values.view(-1)[7] = float("nan")
            inputs.append(x), outputs.append(out), steps.append(kernel), data.append(values), labels.append((shape, dims))
            want.append(
                eager(
                    op,
                    values.double() if source.is_float and op in (ReduceOp.SUM, ReduceOp.PROD) else values,
                    dims,
                    DType.F64 if source.is_float and op in (ReduceOp.SUM, ReduceOp.PROD) else result,
                )
            )
    for label, got, expected in zip(labels, build(inputs, outputs, steps)(*data), want, strict=True):
        exact = not got.dtype.is_floating_point or op in (ReduceOp.MIN, ReduceOp.MAX)
        tolerance = 0 if exact else 1e-10 if source is DType.F64 else 2e-5
        torch.testing.assert_close(
            got, expected.to(got.dtype), rtol=tolerance, atol=tolerance * 10, equal_nan=True, msg=lambda m, at=label: f"{at}: {m}"
        )


def softmax_value(x: Buffer, axes: list[Axis], dim: int) -> Value:
    n = int(axes[dim].extent)

    def point(a: Axis) -> Value:
        return load(x, [a if d == dim else b for d, b in enumerate(axes)])

    first, second = axis("r0", n), axis("r1", n)
    top = Reduce(ReduceOp.MAX, point(first), (first,), F32)
    total = Reduce(ReduceOp.SUM, alu(Op.EXP, alu(Op.SUB, point(second), top)), (second,), F32)
    return alu(Op.DIV, alu(Op.EXP, alu(Op.SUB, point(axes[dim]), top)), total)


def variance_norm(x: Buffer, axes: list[Axis], dims: tuple[int, ...]) -> Value:
    def point(bound: dict[int, Axis]) -> Value:
        return load(x, [bound.get(d, a) for d, a in enumerate(axes)])

    def over(tag: str) -> tuple[dict[int, Axis], tuple[Axis, ...]]:
        bound = {d: axis(f"{tag}{d}", int(axes[d].extent)) for d in dims}
        return bound, tuple(bound.values())

    count = 1
    for d in dims:
        count *= int(axes[d].extent)
    n = Const(float(count), F32)
    b0, a0 = over("p")
    mean = alu(Op.DIV, Reduce(ReduceOp.SUM, point(b0), a0, F32), n)
    b1, a1 = over("q")
    centred = alu(Op.SUB, point(b1), mean)
    variance = alu(Op.DIV, Reduce(ReduceOp.SUM, alu(Op.MUL, centred, centred), a1, F32), n)
    return alu(Op.MUL, alu(Op.SUB, point({}), mean), alu(Op.RSQRT, alu(Op.ADD, variance, Const(1e-5, F32))))


def test_softmax_and_norms_along_each_axis() -> None:
    inputs, outputs, steps, data, want = [], [], [], [], []
    for shape in ((4, 5, 60), (33, 70, 100), (2, 300, 17)):
        axes = [axis(f"i{d}", n) for d, n in enumerate(shape)]
        x = torch.randn(shape) * 2
        for dim in range(3):
            b, o = buffer(f"x{len(steps)}", shape), buffer(f"o{len(steps)}", shape)
            inputs.append(b), outputs.append(o), data.append(x), want.append(x.double().softmax(dim))
            steps.append(map_kernel(f"k{len(steps)}", o, axes, softmax_value(b, axes, dim)))
        for dims in ((2,), (1, 2), (0,), (0, 2), (0, 1, 2)):
            b, o = buffer(f"x{len(steps)}", shape), buffer(f"o{len(steps)}", shape)
            d = x.double()
            inputs.append(b), outputs.append(o), data.append(x)
            want.append((d - d.mean(dims, True)) / (d.var(dims, unbiased=False, keepdim=True) + 1e-5).sqrt())
            steps.append(map_kernel(f"k{len(steps)}", o, axes, variance_norm(b, axes, dims)))
    for got, expected in zip(build(inputs, outputs, steps)(*data), want, strict=True):
        torch.testing.assert_close(got, expected.float(), rtol=1e-4, atol=1e-4)


def test_scan_that_is_the_same_in_every_lane() -> None:
    """Memory runs along the axis of the lanes, but the scanned value does not vary with it: `ones.cumsum(1)`, positions in a picture."""
    axes = [axis(f"i{d}", n) for d, n in enumerate((2, 8, 24))]
    out, row = buffer("o", (2, 8, 24)), buffer("r", (8,))
    steps = [
        map_kernel("k", out, axes, Scan(ReduceOp.SUM, load(row, axes[1:2]), axes[1], F32)),
    ]
    x = torch.randn(8)
    (got,) = build([row], [out], steps)(x)
    torch.testing.assert_close(got, x.cumsum(0)[None, :, None].expand(2, 8, 24))


def test_scans() -> None:
    inputs, outputs, steps, data, want = [], [], [], [], []
    for shape in ((4, 5, 60), (3, 130, 70)):
        axes = [axis(f"i{d}", n) for d, n in enumerate(shape)]
        for dim in range(3):
            for op, ref in (
                (ReduceOp.SUM, torch.cumsum),
                (ReduceOp.PROD, torch.cumprod),
                (ReduceOp.MAX, torch.cummax),
                (ReduceOp.ARGMAX, torch.cummax),
                (ReduceOp.ARGMIN, torch.cummin),
            ):
                arg = op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
                tag = str(len(steps))
                b, o = buffer("x" + tag, shape), buffer("o" + tag, shape, DType.I64 if arg else F32)
                x = torch.randn(shape).round(decimals=1)
                if op is not ReduceOp.SUM:
                    x.view(-1)[11] = float("nan")
                inputs.append(b), outputs.append(o), data.append(x)
                result = ref(x if op not in (ReduceOp.SUM, ReduceOp.PROD) else x.double(), dim)
                want.append(result[1] if arg else result[0] if isinstance(result, tuple) else result)
                steps.append(map_kernel("k" + tag, o, axes, Scan(op, load(b, axes), axes[dim], o.dtype)))
    for got, expected in zip(build(inputs, outputs, steps)(*data), want, strict=True):
        torch.testing.assert_close(got, expected.to(got.dtype), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_strided_inputs_and_transposes() -> None:
    inputs, outputs, steps, data, want = [], [], [], [], []
    for shape in ((37, 53), (128, 64), (1, 9), (5, 1)):
        for dtype in (DType.F32, DType.BF16, DType.I64, DType.U8):
            tag = str(len(steps))
            i, j = axis("i", shape[0]), axis("j", shape[1])
            x = buffer("x" + tag, shape[::-1], dtype)
            o = buffer("o" + tag, shape, dtype)
            values = dense(shape[::-1], dtype)
            inputs.append(x), outputs.append(o), data.append(values), want.append(values.t().contiguous())
            steps.append(map_kernel("k" + tag, o, (i, j), load(x, (j, i))))
    gap = buffer("gap", (6, 7), F32, (21, 3))
    inputs.append(gap), outputs.append(buffer("og", (6, 7)))
    data.append(torch.randn(6, 21)[:, ::3]), want.append(data[-1].contiguous() * 2)
    i, j = axis("i", 6), axis("j", 7)
    steps.append(map_kernel("kg", outputs[-1], (i, j), alu(Op.MUL, load(gap, (i, j)), Const(2.0, F32))))
    for got, expected in zip(build(inputs, outputs, steps)(*data), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def gather_kernel(rows: int, width: int, picks: int, index: DType = DType.I64) -> tuple[list[Buffer], Buffer, Kernel]:
    i, j = axis("i", picks), axis("j", width)
    table, ids, out = buffer("t", (rows, width)), buffer("ids", (picks,), index), buffer("o", (picks, width))
    g = axis_symbol("g")
    value = Load("t", at(table, (g, j)), F32, (Gather(g, load(ids, (i,)), rows),))
    return [table, ids], out, map_kernel("k", out, (i, j), value)


@pytest.mark.parametrize("width", [1, 3, 64, 700])
def test_gather_and_its_index_error(width: int) -> None:
    inputs, out, kernel = gather_kernel(5, width, 70)
    run = build(inputs, [out], [kernel])
    table, ids = torch.randn(5, width), torch.randint(-5, 5, (70,))
    torch.testing.assert_close(run(table, ids)[0], table[ids], rtol=0, atol=0)
    for wrong in (7, -6, 5, 2**40, -(2**62)):
        bad = ids.clone()
        bad[33] = wrong
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension 0 with size 5"):
            run(table, bad)
    torch.testing.assert_close(run(table, ids)[0], table[ids], rtol=0, atol=0)


def test_gather_along_the_vector_axis() -> None:
    i, j = axis("i", 9), axis("j", 130)
    table, ids, out = buffer("t", (9, 40)), buffer("ids", (9, 130), DType.I64), buffer("o", (9, 130))
    g = axis_symbol("g")
    value = Load("t", at(table, (i, g)), F32, (Gather(g, load(ids, (i, j)), 40),))
    run = build([table, ids], [out], [map_kernel("k", out, (i, j), value)])
    x, index = torch.randn(9, 40), torch.randint(0, 40, (9, 130))
    torch.testing.assert_close(run(x, index)[0], x.gather(1, index), rtol=0, atol=0)
    index[4, 77] = 40
    with pytest.raises(IndexError, match="index 40 is out of bounds for dimension 1 with size 40"):
        run(x, index)


def test_masked_loads_read_nothing_outside() -> None:
    """Padding: where the mask is false the index lies outside the buffer, and a gather there is not checked."""
    i = axis("i", 1000)
    x, ids, out, picked = buffer("x", (600,)), buffer("ids", (1000,), DType.I64), buffer("o", (1000,)), buffer("p", (1000,))
    inside = alu(
        Op.AND,
        alu(Op.LE, Const(200, DType.I64), Index(i.symbol), dtype=DType.BOOL),
        alu(Op.LT, Index(i.symbol), Const(800, DType.I64), dtype=DType.BOOL),
    )
    padded = Load("x", i.symbol - 200, F32, (), inside)
    g = axis_symbol("g")
    chosen = Load("x", g, F32, (Gather(g, load(ids, (i,)), 600),), inside)
    kernel = Kernel("k", (i,), (Store("o", i.symbol, padded), Store("p", i.symbol, chosen)))
    data, index = torch.randn(600), torch.randint(0, 600, (1000,))
    index[:200] = 10**12
    o, p = build([x, ids], [out, picked], [kernel])(data, index)
    torch.testing.assert_close(o, torch.nn.functional.pad(data, (200, 200)), rtol=0, atol=0)
    want = torch.zeros(1000)
    want[200:800] = data[index[200:800]]
    torch.testing.assert_close(p, want, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["add", "mul", "min", "max", "set"])
@pytest.mark.parametrize("width", [1, 130])
def test_scatter_modes(mode: str, width: int) -> None:
    i, j = axis("i", 200), axis("j", width)
    start, ids, src, out = buffer("s", (10, width)), buffer("ids", (200,), DType.I64), buffer("v", (200, width)), buffer("o", (10, width))
    r = axis("r", 10)
    g = axis_symbol("g")
    copy = map_kernel("copy", out, (r, j), load(start, (r, j)))
    store = Store("o", at(out, (g, j)), load(src, (i, j)), mode, (Gather(g, load(ids, (i,)), 10),))
    x, values, index = torch.randn(10, width), torch.randn(200, width), torch.randint(-10, 10, (200,))
    if mode == "set":
        index = torch.randperm(10).repeat(20)
        values = values[:10].repeat(20, 1)
    got = build([start, ids, src], [out], [copy, Kernel("scatter", (i, j), (store,))])(x, index, values)[0]
    full = (index % 10)[:, None].expand(200, width)
    reduce = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax", "set": "amax"}[mode]
    want = x.scatter(0, full, values) if mode == "set" else x.scatter_reduce(0, full, values, reduce)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [7, 20_000])
def test_colliding_writes_keep_one_of_the_values(rows: int) -> None:
    i = axis("i", rows)
    start, ids, src, out = buffer("s", (10,)), buffer("ids", (rows,), DType.I64), buffer("v", (rows,)), buffer("o", (10,))
    r, g = axis("r", 10), axis_symbol("g")
    copy = map_kernel("copy", out, (r,), load(start, (r,)))
    store = Store("o", at(out, (g,)), load(src, (i,)), "set", (Gather(g, load(ids, (i,)), 10),))
    x, values, index = torch.full((10,), -1.0), torch.arange(float(rows)), torch.arange(rows) % 7 % 3
    got = build([start, ids, src], [out], [copy, Kernel("scatter", (i,), (store,))])(x, index, values)[0]
    for place in range(3):
        assert got[place] in values[index == place], "one of the values that were written there"
    assert got[3:].tolist() == x[3:].tolist()


def test_scalars_and_stores_over_fewer_axes() -> None:
    i, j = axis("i", 12), axis("j", 80)
    x, one, y, m, n = buffer("x", (12, 80)), buffer("c", ()), buffer("y", (12, 80)), buffer("m", (12,)), buffer("n", ())
    r = axis("r", 80)
    mean = alu(Op.DIV, Reduce(ReduceOp.SUM, load(x, (i, r)), (r,), F32), Const(80.0, F32))
    stores = (
        Store("y", at(y, (i, j)), alu(Op.SUB, load(x, (i, j)), mean)),
        Store("m", at(m, (i,)), mean, axes=(i,)),
        Store("n", at(n, ()), alu(Op.ADD, load(one, ()), Const(1.0, F32)), axes=()),
    )
    values = torch.randn(12, 80)
    a, b, c = build([x, one], [y, m, n], [Kernel("k", (i, j), stores)])(values, torch.tensor(3.0))
    torch.testing.assert_close(a, values - values.mean(1, True))
    torch.testing.assert_close(b, values.mean(1))
    assert c.shape == () and c.item() == 4.0


def test_windows_inside_a_reduction() -> None:
    """A pooled value (small inline reduction) summed over rows: reductions within reductions."""
    n, w = 9, 50
    i, j, k, r = axis("i", n), axis("j", w), axis("k", 3), axis("r", w)
    x, o, total = buffer("x", (n, w + 2)), buffer("o", (n, w)), buffer("t", (n,))

    def pooled(a: Axis) -> Value:
        return Reduce(ReduceOp.MAX, load(x, (i, a.symbol + k.symbol)), (k,), F32)

    kernel = Kernel(
        "k",
        (i, j),
        (Store("o", at(o, (i, j)), pooled(j)), Store("t", at(total, (i,)), Reduce(ReduceOp.SUM, pooled(r), (r,), F32), axes=(i,))),
    )
    data = torch.randn(n, w + 2)
    a, b = build([x], [o, total], [kernel])(data)
    want = torch.nn.functional.max_pool1d(data[None], 3, 1)[0]
    torch.testing.assert_close(a, want, rtol=0, atol=0)
    torch.testing.assert_close(b, want.sum(1), rtol=1e-5, atol=1e-5)


def test_large_windows_inside_a_reduction() -> None:
    n, w, big = 4, 40, 50
    i, k, r = axis("i", n), axis("k", big), axis("r", w)
    x, total = buffer("x", (n, w + big)), buffer("t", (n,))
    inner = Reduce(ReduceOp.SUM, load(x, (i, r.symbol + k.symbol)), (k,), F32)
    kernel = map_kernel("k", total, (i,), Reduce(ReduceOp.MAX, inner, (r,), F32))
    data = torch.randn(n, w + big)
    (got,) = build([x], [total], [kernel])(data)
    torch.testing.assert_close(got, data.double().unfold(1, big, 1)[:, :w].sum(-1).amax(1).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 7, 64])
def test_masked_rows_beside_a_loop(channels: int) -> None:
    """A mask that the innermost loop does not change picks the row outside it; rows outside the image are never read."""
    x, out = buffer("x", (3, channels)), buffer("o", (6, channels))
    i, c = axis("i", 6), axis("c", channels)
    row = Index(i.symbol - 2, DType.I64)
    inside = alu(
        Op.AND,
        Alu(Op.LE, (Const(0, DType.I64), row), DType.BOOL),
        Alu(Op.LT, (row, Const(3, DType.I64)), DType.BOOL),
    )
    value = load(x, (i.symbol - 2, c), mask=inside)
    data = torch.randn(3, channels)
    want = torch.zeros(6, channels)
    want[2:5] = data
    assert torch.equal(build([x], [out], [map_kernel("k", out, (i, c), value)])(data)[0], want)
