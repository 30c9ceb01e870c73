"""Every op over every dtype that has a row for it, against torch in float64 (floats) or exactly (integers)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from precast.codegen.cpp.kernel import render_kernel
from precast.codegen.cpp.ops import ROWS
from precast.lowering.ir.nodes import Cast, Const, Kernel, Store, Value
from precast.lowering.ir.scalars import COMPARISONS, DType, Op, arity
from precast.lowering.ir.torch_dtypes import TORCH_DTYPES
from tests.codegen.programs import Axis, Buffer, alu, at, axis, buffer, build, load
from tests.ops import bessel

N = 203
FLOATS = (DType.F64, DType.F32, DType.BF16, DType.F16)
INTS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)


TORCH_OPS: dict[Op, Callable[..., torch.Tensor]] = {
    Op.NEG: torch.neg, Op.ABS: torch.abs, Op.EXP: torch.exp, Op.EXP2: torch.exp2, Op.EXPM1: torch.expm1, Op.LOG: torch.log,
    Op.LOG2: torch.log2,
    Op.LOG10: torch.log10, Op.LOG1P: torch.log1p, Op.SQRT: torch.sqrt, Op.RSQRT: torch.rsqrt, Op.SIN: torch.sin, Op.COS: torch.cos,
    Op.TAN: torch.tan,
    Op.ASIN: torch.asin, Op.ACOS: torch.acos, Op.ATAN: torch.atan, Op.SINH: torch.sinh, Op.COSH: torch.cosh, Op.TANH: torch.tanh,
    Op.ASINH: torch.asinh,
    Op.ACOSH: torch.acosh, Op.ATANH: torch.atanh, Op.ERF: torch.erf, Op.ERFC: torch.erfc, Op.LGAMMA: torch.lgamma, Op.GCD: torch.gcd,
    Op.J0: bessel.J0, Op.J1: bessel.J1, Op.Y0: bessel.Y0, Op.Y1: bessel.Y1,
    Op.FLOOR: torch.floor, Op.CEIL: torch.ceil,
    Op.TRUNC: torch.trunc, Op.ROUND: torch.round, Op.ISNAN: torch.isnan, Op.ISINF: torch.isinf, Op.SIGNBIT: torch.signbit,
    Op.ADD: torch.add, Op.SUB: torch.sub, Op.MUL: torch.mul, Op.DIV: torch.div, Op.FLOORDIV: torch.floor_divide,
    Op.MOD: torch.remainder, Op.REM: torch.fmod,
    Op.TRUNCDIV: lambda a, b: torch.div(a, b, rounding_mode="trunc"), Op.POW: torch.pow, Op.MIN: torch.minimum, Op.MAX: torch.maximum,
    Op.ATAN2: torch.atan2,
    Op.HYPOT: torch.hypot, Op.COPYSIGN: torch.copysign, Op.NEXTAFTER: torch.nextafter, Op.LT: torch.lt, Op.LE: torch.le,
    Op.EQ: torch.eq, Op.NE: torch.ne,
    Op.FMA: lambda a, b, c: a * b + c,
    Op.NOT: torch.bitwise_not, Op.AND: torch.bitwise_and, Op.OR: torch.bitwise_or, Op.XOR: torch.bitwise_xor,
    Op.SHL: torch.bitwise_left_shift, Op.SHR: torch.bitwise_right_shift,
}  # fmt: skip
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 2.5, -2.5, 1e-3]
EXACT = {
    Op.NEG, Op.ABS, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.ISNAN, Op.ISINF, Op.SIGNBIT, Op.ADD, Op.SUB, Op.MUL, Op.MIN, Op.MAX,
    Op.LT, Op.LE, Op.EQ, Op.NE,
    Op.COPYSIGN, Op.DIV, Op.NEXTAFTER,
}  # fmt: skip


def operand(dtype: DType, seed: int, op: Op) -> torch.Tensor:
    """Random values with the special ones of the type in every pairing."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is DType.BOOL:
        return torch.randint(0, 2, (N,), generator=generator).bool()
    if dtype.is_float:
        x = torch.randn(N, generator=generator) * 3
        special = torch.tensor(SPECIAL)
        rows = special.repeat_interleave(12) if seed == 0 else special.repeat(12)
        x[: rows.numel()] = rows
        return x.to(TORCH_DTYPES[dtype])
    info = torch.iinfo(TORCH_DTYPES[dtype])
    if op in (Op.SHL, Op.SHR):
        return torch.randint(0 if seed else max(info.min, -100), 100 if not seed else info.bits - 1, (N,), generator=generator).to(
            TORCH_DTYPES[dtype]
        )
    x = torch.randint(max(info.min, -120), min(info.max, 120), (N,), generator=generator)
    if op in (Op.FLOORDIV, Op.TRUNCDIV, Op.MOD, Op.REM) and seed == 1:
        x[x == 0] = 7
    if op is Op.POW and seed == 1:
        x = x.abs() % 5
    x[:3] = torch.tensor([info.min if seed == 0 else 3, info.max, 1])
    return x.to(TORCH_DTYPES[dtype])


def supported(dtype: DType) -> list[Op]:
    """Ops with a row for operands of this type and a torch twin."""
    found = []
    for op, row in ROWS.items():
        form = row.real if dtype.is_float else row.boolean if dtype is DType.BOOL else row.integer
        if (
            form is None
            or op not in TORCH_OPS
            or (dtype is DType.BOOL and op in (Op.SUB, Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.ISINF, Op.ABS, Op.SIGNBIT, Op.POW))
        ):
            continue
        if op is Op.NEXTAFTER and dtype in (DType.BF16, DType.F16):
            continue  # a neighbour in f32 is none in a half type; lowering leaves it to eager
        found.append(op)
    return found


def reference(op: Op, args: list[torch.Tensor], dtype: DType) -> torch.Tensor:
    """Eager in float64 for rounded ops, in the type itself for exact ones and for those whose steps show the type."""
    if dtype.is_float and op not in EXACT and op not in (Op.FLOORDIV, Op.MOD, Op.REM, Op.TRUNCDIV):
        return TORCH_OPS[op](*(a.double() for a in args))
    if dtype in (DType.BF16, DType.F16):
        return TORCH_OPS[op](*(a.float() for a in args))
    return TORCH_OPS[op](*args)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, DType.BOOL], ids=lambda d: d.value)
def test_every_op(dtype: DType) -> None:
    i = axis("i", N)
    ops = supported(dtype)
    names = [buffer(n, (N,), dtype) for n in ("a", "b", "c")]
    inputs, outputs, steps = [], [], []
    data, expected = [], []
    for op in ops:
        mine = [buffer(f"{op.value}_{b.name}", (N,), dtype) for b in names[: arity(op)]]
        out = buffer(f"{op.value}_out", (N,), DType.BOOL if op in COMPARISONS else dtype)
        inputs += mine
        outputs.append(out)
        steps.append(Kernel(f"k_{op.value}", (i,), (Store(out.name, i.symbol, alu(op, *(load(b, (i,)) for b in mine), dtype=out.dtype)),)))
        values = [operand(dtype, seed, op) for seed in range(arity(op))]
        data += values
        expected.append(reference(op, values, dtype))
    results = build(inputs, outputs, steps)(*data)
    failures = []
    for op, result, want in zip(ops, results, expected, strict=True):
        problem = disagreement(op, dtype, result, want)
        if problem:
            failures.append(f"{op.value}: {problem}")
    assert not failures, "\n".join(failures)


def disagreement(op: Op, dtype: DType, result: torch.Tensor, want: torch.Tensor) -> str:
    if not dtype.is_float or result.dtype is torch.bool:
        wrong = (result != want.to(result.dtype)).nonzero().flatten()[:3]
        return f"at {wrong.tolist()}: {result[wrong].tolist()} != {want[wrong].tolist()}" if len(wrong) else ""
    want = want.to(result.dtype) if op in EXACT else want
    tolerance = {DType.F64: 1e-14, DType.F32: 2e-6, DType.BF16: 8e-3, DType.F16: 1e-3}[dtype]
    a, b = result.double(), want.to(result.dtype).double()
    close = torch.isclose(a, b, rtol=0 if op in EXACT else tolerance, atol=0 if op in EXACT else tolerance * 1e-3, equal_nan=True)
    wrong = (~close).nonzero().flatten()[:4]
    return f"at {wrong.tolist()}: {result[wrong].tolist()} != {want[wrong].tolist()}" if len(wrong) else ""


def test_where_takes_a_condition() -> None:
    i = axis("i", N)
    for dtype in (*FLOATS, *INTS, DType.BOOL):
        c, a, b, out = buffer("c", (N,), DType.BOOL), buffer("a", (N,), dtype), buffer("b", (N,), dtype), buffer("o", (N,), dtype)
        kernel = Kernel("k", (i,), (Store("o", i.symbol, alu(Op.WHERE, load(c, (i,)), load(a, (i,)), load(b, (i,)))),))
        x, y, z = operand(DType.BOOL, 0, Op.WHERE), operand(dtype, 0, Op.WHERE), operand(dtype, 1, Op.WHERE)
        (result,) = build([c, a, b], [out], [kernel])(x, y, z)
        torch.testing.assert_close(result, torch.where(x, y, z), rtol=0, atol=0, equal_nan=True)


ALL = (*FLOATS, *INTS, DType.BOOL)


@pytest.mark.parametrize("source", ALL, ids=lambda d: d.value)
def test_casts(source: DType) -> None:
    i = axis("i", N)
    a = buffer("a", (N,), source)
    outs = [buffer(f"o_{d.value}", (N,), d) for d in ALL]
    data = operand(source, 0, Op.ADD)
    if source.is_float:
        data = torch.where(data.isfinite(), data, torch.ones_like(data)).abs()
    elif source is not DType.BOOL:
        data = data.clamp(0, 100)
    kernel = Kernel("k", (i,), tuple(Store(o.name, i.symbol, Cast(load(a, (i,)), o.dtype)) for o in outs))
    for out, result in zip(outs, build([a], outs, [kernel])(data), strict=True):
        torch.testing.assert_close(result, data.to(TORCH_DTYPES[out.dtype]), rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 40])
def test_shifts_by_the_width_and_more(n: int) -> None:
    """Nothing is left, as in eager; the machine's instruction takes the distance modulo the width."""
    i = axis("i", n)
    inputs, outputs, steps, data, want = [], [], [], [], []
    for dtype in (DType.I64, DType.I32, DType.I16, DType.I8):
        info = torch.iinfo(TORCH_DTYPES[dtype])
        for op in (Op.SHL, Op.SHR):
            for by in (0, 1, info.bits - 1, info.bits, info.bits + 1, info.max, -1, info.min):
                tag = str(len(steps))
                a, b, out = (buffer(name + tag, (n,), dtype) for name in "abo")
                inputs += [a, b]
                outputs.append(out)
                steps.append(Kernel("k" + tag, (i,), (Store(out.name, i.symbol, alu(op, load(a, (i,)), load(b, (i,)))),)))
                values = torch.arange(n, dtype=TORCH_DTYPES[dtype]) * 3 - 7, torch.full((n,), by, dtype=TORCH_DTYPES[dtype])
                data += values
                want.append(TORCH_OPS[op](*values))
    for got, expected in zip(build(inputs, outputs, steps)(*data), want, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=lambda d: d.value)
def test_a_cast_to_a_half_type_rounds_where_it_stands(dtype: DType) -> None:
    """Not at the next store only: what reads the value before sees a value of the type."""
    i = axis("i", N)
    a, out = buffer("a", (N,)), buffer("o", (N,))
    kernel = Kernel("k", (i,), (Store("o", i.symbol, Cast(Cast(load(a, (i,)), dtype), DType.F32)),))
    x = torch.randn(N) * 3
    (got,) = build([a], [out], [kernel])(x)
    assert torch.equal(got, x.to(TORCH_DTYPES[dtype]).float()) and not torch.equal(got, x)


def test_half_conversions_of_every_bit_pattern() -> None:
    n = 65536
    i = axis("i", n)
    bits = torch.arange(n, dtype=torch.int32).to(torch.uint16).view(torch.int16)
    for dtype in (DType.BF16, DType.F16):
        a, wide, back = buffer("a", (n,), dtype), buffer("w", (n,)), buffer("b", (n,), dtype)
        kernel = Kernel("k", (i,), (Store("w", i.symbol, load(a, (i,))), Store("b", i.symbol, load(a, (i,)))))
        data = bits.view(TORCH_DTYPES[dtype])
        up, same = build([a], [wide, back], [kernel])(data)
        torch.testing.assert_close(up, data.float(), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(same, data, rtol=0, atol=0, equal_nan=True)


def test_half_stores_round_to_nearest_even() -> None:
    n = 200_000
    i = axis("i", n)
    a = buffer("a", (n,))
    bits = torch.randint(-(2**31), 2**31 - 1, (n,), dtype=torch.int64).to(torch.int32)
    data = torch.cat([bits.view(torch.float32)[: n // 2], (torch.randn(n // 2) * 10 ** (torch.rand(n // 2) * 14 - 8))])
    outs = [buffer("b", (n,), DType.BF16), buffer("h", (n,), DType.F16)]
    kernel = Kernel("k", (i,), tuple(Store(o.name, i.symbol, Cast(load(a, (i,)), o.dtype)) for o in outs))
    for out, result in zip(outs, build([a], outs, [kernel])(data), strict=True):
        torch.testing.assert_close(result, data.to(TORCH_DTYPES[out.dtype]), rtol=0, atol=0, equal_nan=True)


def test_bitcasts() -> None:
    i = axis("i", N)
    pairs = [
        (DType.F32, DType.I32),
        (DType.I32, DType.F32),
        (DType.F64, DType.I64),
        (DType.BF16, DType.I16),
        (DType.I16, DType.F16),
        (DType.U8, DType.I8),
    ]
    for source, result in pairs:
        a, o = buffer("a", (N,), source), buffer("o", (N,), result)
        data = (
            torch.randint(0, 100, (N,)).to(torch.int8).to(TORCH_DTYPES[source])
            if not source.is_float
            else torch.randn(N).to(TORCH_DTYPES[source])
        )
        (got,) = build([a], [o], [Kernel("k", (i,), (Store("o", i.symbol, alu(Op.BITCAST, load(a, (i,)), dtype=result)),))])(data)
        torch.testing.assert_close(got, data.view(TORCH_DTYPES[result]), rtol=0, atol=0)


def test_table_is_complete() -> None:
    assert set(ROWS) == set(Op)
    untested = set(Op) - set(TORCH_OPS) - {Op.WHERE, Op.BITCAST, Op.PHILOX}  # PHILOX: tests/end_to_end/test_random.py
    assert not untested


def test_constants_are_exact() -> None:
    values = {
        DType.F32: [0.1, -0.0, 1e-45, 3.4e38, -7.0],
        DType.F64: [0.1, 1e308, -0.0],
        DType.I64: [-(2**63), 2**63 - 1],
        DType.U8: [255],
        DType.I8: [-128],
    }
    for dtype, items in values.items():
        one: Axis = axis("i", 1)
        outs: list[Buffer] = [buffer(f"o{n}", (1,), dtype) for n in range(len(items))]
        constants: list[Value] = [Const(v, dtype) for v in items]
        kernel = Kernel("k", (one,), tuple(Store(o.name, at(o, (one,)), v) for o, v in zip(outs, constants, strict=True)))
        for got, item in zip(build([], outs, [kernel])(), items, strict=True):
            torch.testing.assert_close(got, torch.tensor([item], dtype=TORCH_DTYPES[dtype]), rtol=0, atol=0)
            assert math.copysign(1, got.item()) == math.copysign(1, item)


def test_written_out_functions_are_within_two_ulp() -> None:
    """`exp_f32` and `erf_f32` over their whole ranges, without and with fused multiply-add, against float64."""
    n = 400_000
    i = axis("i", n)
    a, outs = buffer("a", (n,)), [buffer("e", (n,)), buffer("f", (n,))]
    stores = tuple(Store(o.name, i.symbol, alu(op, load(a, (i,)))) for o, op in zip(outs, (Op.EXP, Op.ERF), strict=True))
    data = torch.cat([torch.rand(n // 2) * 193 - 104, torch.rand(n // 2) * 10 - 5])
    for target in ("cpu:x86-64-v2", "cpu:native"):
        for result, function in zip(build([a], outs, [Kernel("k", (i,), stores)], target)(data), (torch.exp, torch.erf), strict=True):
            want = function(data.double())
            single = want.float()
            ulp = torch.nextafter(single.abs(), torch.tensor(math.inf)).double() - single.abs().double()
            finite = single.isfinite()
            assert torch.equal(result.isfinite(), finite)
            assert (((result.double() - want).abs() / ulp)[finite]).max() < 2


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:native"])
def test_gelu_is_one_function_as_exact_as_eager(target: str, order: int) -> None:
    n = 400_000
    i = axis("i", n)
    a, o = buffer("a", (n,)), buffer("o", (n,))
    half, one, root = (Const(c, DType.F32) for c in (0.5, 1.0, math.sqrt(0.5)))

    def both(op: Op, *args: Value) -> Value:
        return alu(op, *args[::order])

    x = load(a, (i,))
    value = both(Op.MUL, both(Op.MUL, x, half), both(Op.ADD, alu(Op.ERF, both(Op.MUL, x, root)), one))
    kernel = Kernel("k", (i,), (Store("o", i.symbol, value),))
    assert "= gelu_f32(" in render_kernel(kernel, {"a": a, "o": o}).source
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 5.41, 5.43, 30.0, -30.0, 1e30, -1e30, math.inf, math.nan])
    data = torch.cat([special, torch.linspace(-8, 8, n - len(special))])
    (got,) = build([a], [o], [kernel], target)(data)
    want = torch.nn.functional.gelu(data.double())
    eager = (torch.nn.functional.gelu(data) - want).abs()[len(special) :].max()
    found = 1.3e-6  # among 8 million arguments the largest is 1.05e-6 to 1.28e-6, by chip and target
    assert (got - want).abs()[len(special) :].max() <= max(eager, found)
    torch.testing.assert_close(got[: len(special)].double(), want[: len(special)], rtol=1e-6, atol=1e-44, equal_nan=True)
