"""Pointwise rows: unary and binary arithmetic, comparison, logic, casts, activations, ternaries."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.ops import bessel
from tests.ops.rows import BF16, BOOL, BROADCASTS, F16, F32, F64, I8, I16, I32, I64, LAYOUTS, SHORT, U8, Make, Sampler, Table, cycle

Fn = Callable[..., Any]

UNARY_ANY: list[tuple[str, Fn]] = [
    ("neg", torch.neg),
    ("abs", torch.abs),
    ("exp", torch.exp),
    ("exp2", torch.exp2),
    ("expm1", torch.expm1),
    ("sin", torch.sin),
    ("cos", torch.cos),
    ("tanh", torch.tanh),
    ("sigmoid", torch.sigmoid),
    ("erf", torch.erf),
    ("erfc", torch.erfc),
    ("atan", torch.atan),
    ("sinh", torch.sinh),
    ("cosh", torch.cosh),
    ("asinh", torch.asinh),
    ("floor", torch.floor),
    ("ceil", torch.ceil),
    ("trunc", torch.trunc),
    ("round", torch.round),
    ("frac", torch.frac),
    ("square", torch.square),
    ("sign", torch.sign),
    ("sgn", torch.sgn),
    ("relu", torch.relu),
    ("relu6", F.relu6),
    ("silu", F.silu),
    ("gelu", F.gelu),
    ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    ("softplus", F.softplus),
    ("softsign", F.softsign),
    ("mish", F.mish),
    ("elu", F.elu),
    ("celu", F.celu),
    ("selu", F.selu),
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.1)),
    ("hardtanh", F.hardtanh),
    ("hardswish", F.hardswish),
    ("hardsigmoid", F.hardsigmoid),
    ("hardshrink", F.hardshrink),
    ("softshrink", F.softshrink),
    ("tanhshrink", F.tanhshrink),
    ("logsigmoid", F.logsigmoid),
    ("sinc", torch.sinc),
    ("deg2rad", torch.deg2rad),
    ("positive", torch.positive),
    ("threshold", lambda x: F.threshold(x, 0.1, -7.0)),
    ("nan_to_num", torch.nan_to_num),
    ("clamp", lambda x: torch.clamp(x, -0.7, 0.3)),
    ("clamp_min", lambda x: torch.clamp(x, min=0.25)),
    ("round_decimals", lambda x: torch.round(x, decimals=1)),
]
UNARY_DOMAIN: list[tuple[str, Fn, float, float]] = [
    ("log", torch.log, 0.01, 9.0),
    ("log2", torch.log2, 0.01, 9.0),
    ("log10", torch.log10, 0.01, 9.0),
    ("log1p", torch.log1p, -0.9, 5.0),
    ("sqrt", torch.sqrt, 0.0, 9.0),
    ("rsqrt", torch.rsqrt, 0.1, 9.0),
    ("reciprocal", torch.reciprocal, 0.2, 4.0),
    ("asin", torch.asin, -0.99, 0.99),
    ("acos", torch.acos, -0.99, 0.99),
    ("tan", torch.tan, -1.2, 1.2),
    ("acosh", torch.acosh, 1.05, 6.0),
    ("atanh", torch.atanh, -0.95, 0.95),
    ("logit", torch.logit, 0.05, 0.95),
    ("lgamma", torch.lgamma, 0.3, 6.0),
    ("digamma", torch.digamma, 2.0, 6.0),
    ("erfinv", torch.erfinv, -0.9, 0.9),
    ("i0", torch.i0, -3.0, 3.0),
    ("erfinv/tails", torch.erfinv, -1.0, 1.0),
    ("digamma/negative", torch.digamma, -5.9, -5.1),
    ("trigamma", lambda x: torch.polygamma(1, x), 0.6, 20.0),
    ("i0/far", torch.i0, 8.0, 30.0),
    ("logit_eps", lambda x: torch.logit(x, 0.1), 0.0, 1.0),
]
BESSEL = {"bessel_j0": bessel.J0, "bessel_j1": bessel.J1, "bessel_y0": bessel.Y0, "bessel_y1": bessel.Y1}
SPECIAL_FUNCTIONS: list[tuple[str, Fn, float, float]] = [
    ("bessel_j0", torch.special.bessel_j0, 0.1, 30.0),
    ("bessel_j1", torch.special.bessel_j1, -30.0, -0.1),
    ("bessel_y0", torch.special.bessel_y0, 0.1, 30.0),
    ("bessel_y1", torch.special.bessel_y1, 0.1, 30.0),
    ("spherical_bessel_j0", torch.special.spherical_bessel_j0, -9.0, 9.0),
    ("modified_bessel_i0", torch.special.modified_bessel_i0, -20.0, 20.0),
    ("modified_bessel_i1", torch.special.modified_bessel_i1, -20.0, 20.0),
    ("ndtri", torch.special.ndtri, 0.0, 1.0),
    ("ndtri/tail", torch.special.ndtri, 1e-30, 1e-12),
    ("i0e", torch.special.i0e, -20.0, 20.0),
    ("i1", torch.special.i1, -20.0, 20.0),
    ("i1e", torch.special.i1e, -20.0, 20.0),
]
BINARY: list[tuple[str, Fn]] = [
    ("add", torch.add),
    ("sub", torch.sub),
    ("mul", torch.mul),
    ("div", torch.div),
    ("maximum", torch.maximum),
    ("minimum", torch.minimum),
    ("fmax", torch.fmax),
    ("fmin", torch.fmin),
    ("atan2", torch.atan2),
    ("hypot", torch.hypot),
    ("copysign", torch.copysign),
    ("add_alpha", lambda x, y: torch.add(x, y, alpha=3)),
    ("rsub", lambda x, y: torch.rsub(x, y, alpha=2)),
    ("prelu_like", lambda x, y: torch.where(x > 0, x, x * y)),
    ("heaviside", torch.heaviside),
    ("squared_difference", lambda x, y: (x - y) ** 2),
    ("xlogy", lambda x, y: torch.xlogy(x, y.abs() + 0.1)),
    ("logaddexp", torch.logaddexp),
    ("logaddexp2", torch.logaddexp2),
    ("ldexp_like", lambda x, y: x * torch.exp2(torch.floor(y))),
]
COMPARE: list[tuple[str, Fn]] = [("lt", torch.lt), ("le", torch.le), ("gt", torch.gt), ("ge", torch.ge), ("eq", torch.eq), ("ne", torch.ne)]
INT_BINARY: list[tuple[str, Fn]] = [
    ("add", torch.add),
    ("sub", torch.sub),
    ("mul", torch.mul),
    ("bitwise_and", torch.bitwise_and),
    ("bitwise_or", torch.bitwise_or),
    ("bitwise_xor", torch.bitwise_xor),
    ("maximum", torch.maximum),
    ("minimum", torch.minimum),
    ("truediv", lambda x, y: torch.div(x, y.abs() + 1)),
    ("gt", torch.gt),
    ("eq", torch.eq),
    ("rsub", torch.rsub),
]
INT_UNARY: list[tuple[str, Fn]] = [
    ("neg", torch.neg),
    ("abs", torch.abs),
    ("bitwise_not", torch.bitwise_not),
    ("sign", torch.sign),
    ("square", torch.square),
    ("sqrt_abs", lambda x: torch.sqrt(x.abs())),
    ("exp", torch.exp),
    ("clamp", lambda x: torch.clamp(x, 1, 5)),
    ("relu", torch.relu),
    ("sigmoid", torch.sigmoid),
    ("logical_not", torch.logical_not),
]


def _nonzero(s: Sampler, *shape: int) -> torch.Tensor:
    """No zeros, both signs where the type has them."""
    if s.dtype.is_floating_point:
        return s.uniform(*shape, low=0.3, high=3.0) * (s.ints(*shape, low=0, high=2) * 2 - 1).to(s.dtype)
    values = s.ints(*shape, low=1, high=7)
    if s.dtype != U8:
        values = values * (s.ints(*shape, low=0, high=2) * 2 - 1)
    return values.to(s.dtype)


def _one(kind: str) -> Make:
    return lambda s: (LAYOUTS[kind](s),)


def _between(low: float, high: float, rows: int = 4) -> Make:
    return lambda s: (s.uniform(rows, 33, low=low, high=high),)


def _two(kind: str) -> Make:
    return lambda s: (BROADCASTS[kind][0](s), BROADCASTS[kind][1](s))


def _unary(table: Table) -> None:
    kinds = [k for k in LAYOUTS if k != "c"]
    halves = (BF16, F16)
    for number, (name, fn) in enumerate(UNARY_ANY):
        table.add(f"{name}/c", fn, _one("c"), (F32,), tags="triton")
        table.add(f"{name}/special", fn, lambda s: (s.special(3, 13),), (F32, F64)[number % 2 :][:1])
        table.add(
            f"{name}/{kinds[number % len(kinds)]}",
            fn,
            _one(kinds[number % len(kinds)]),
            (halves[number % 2],),
            tags="free_strides" if name == "logsigmoid" else "",
        )
    for number, (name, fn, low, high) in enumerate(UNARY_DOMAIN):
        dtypes = (F32, (F64, BF16, F16)[number % 3])
        table.add(f"{name}/domain", fn, _between(low, high), dtypes, tags="triton", ulps=16)
        if name not in ("lgamma", "tan"):
            table.add(f"{name}/special", fn, lambda s: (s.special(3, 13),), (F32,), ulps=16)
    table.add("digamma/subnormal", torch.digamma, lambda s: (s.uniform(4, 9, low=-1.1e-38, high=-1e-45),), (F32, BF16), tags="triton")
    for name, fn in [
        ("isnan", torch.isnan),
        ("isinf", torch.isinf),
        ("isfinite", torch.isfinite),
        ("signbit", torch.signbit),
        ("isposinf", torch.isposinf),
    ]:
        table.add(f"{name}/special", fn, lambda s: (s.special(3, 13),), (F32, BF16), tags="triton")
    for name, fn, low, high in SPECIAL_FUNCTIONS:
        exact = BESSEL.get(name, "f64")
        rows = 128 if name in BESSEL else 4  # their error is largest near a zero, of which eager's has to see enough to be told by
        table.add(f"{name}/domain", fn, _between(low, high, rows), (F32,), tags="triton", reference=exact, ulps=32)
        table.add(f"{name}/special", fn, lambda s: (s.special(3, 13).clamp(-9e3, 9e3),), (F32,), tags="triton", reference=exact, ulps=64)
    table.add("neg/of_zero", lambda x: torch.reciprocal(torch.neg(x)), lambda s: (s.special(3, 13),), (F32, F64, BF16), tags="triton")
    table.add("angle/special", torch.angle, lambda s: (s.special(3, 13),), (F32, F64, BF16), tags="triton")
    table.add("polygamma_extern", lambda x: torch.polygamma(2, x), lambda s: (s.uniform(3, 9, low=0.5, high=9.0),), (F32,))
    table.add("angle/int", torch.angle, _one("c"), (I64,))
    table.add("frexp/special", torch.frexp, lambda s: (s.special(3, 13) * 1e-5,), (F32, F64, BF16), reference="eager", tags="triton")
    table.add("frexp/denormal", torch.frexp, lambda s: (s.t(3, 13) * 1e-39,), (F32,), reference="eager")
    for number, (name, fn) in enumerate(INT_UNARY):
        table.add(
            f"{name}/int", fn, _one(kinds[number % len(kinds)]), (I64, (I32, I16, I8, U8)[number % 4]) if name != "neg" else (I64, I32)
        )


def _binary(table: Table) -> None:
    kinds = list(BROADCASTS)
    for number, (name, fn) in enumerate(BINARY):
        first, second = cycle(kinds, number, 2)
        table.add(f"{name}/{first}", fn, _two(first), (F32,), tags="triton")
        table.add(f"{name}/{second}", fn, _two(second), ((BF16, F64, F16)[number % 3],))
    for name, fn in BINARY[:8]:
        table.add(f"{name}/special", fn, lambda s: (s.special(6, 6), s.special(6, 6)), (F32,))
    for number, (name, fn) in enumerate(COMPARE):
        table.add(f"{name}/special", fn, lambda s: (s.special(6, 6), s.special(6, 6)), (F32, BF16), tags="triton")
        table.add(f"{name}/int", fn, _two(kinds[number]), (I32, BOOL))
    for number, (name, fn) in enumerate(INT_BINARY):
        table.add(f"{name}/int", fn, _two(kinds[number % len(kinds)]), (I64, (I32, I16, I8, U8)[number % 4]))
    pairs: list[tuple[str, Fn]] = [
        ("floor_divide", torch.floor_divide),
        ("div_trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ("div_floor", lambda x, y: torch.div(x, y, rounding_mode="floor")),
        ("remainder", torch.remainder),
        ("fmod", torch.fmod),
    ]
    for name, fn in pairs:
        table.add(
            f"{name}/nonzero", fn, lambda s: (s.t(5, 9), _nonzero(s, 5, 9)), (F32, F64, I64, I32, U8), reference="eager", tags="triton"
        )
    table.add("floor_divide/special", torch.floor_divide, lambda s: (s.special(6, 6), _nonzero(s, 6)), (F32,), reference="eager")
    table.add("remainder/scalar", lambda x: (x % 3, x // 3, x % -3), _one("c"), (F32, I64), reference="eager")
    for name, fn in [
        ("and", torch.logical_and),
        ("or", torch.logical_or),
        ("xor", torch.logical_xor),
        ("bitand", operator.and_),
        ("bitor", operator.or_),
    ]:
        table.add(f"logical_{name}", fn, _two("row"), (BOOL,), tags="triton")
    table.add("logical_and/float", torch.logical_and, lambda s: (s.special(3, 9), s.t(9)), (F32, I64))
    for name, fn in [("shl", torch.bitwise_left_shift), ("shr", torch.bitwise_right_shift)]:
        table.add(name, fn, lambda s: (s.t(4, 5), s.ints(5, low=0, high=6, dtype=s.dtype)), (I64, I32, U8))
    for name, fn in [("gcd", torch.gcd), ("lcm", torch.lcm)]:
        table.add(name, fn, lambda s: (s.t(4, 5), s.t(5)), (I64, I32, U8), tags="triton")
        table.add(f"{name}/far", fn, lambda s: (s.ints(30, low=-127, high=128, dtype=I8), s.ints(30, low=-127, high=128, dtype=I8)), (I8,))
    table.add("ldexp", torch.ldexp, lambda s: (s.special(5, 9), s.t(9, dtype=I32) * 9), (F32, BF16), tags="triton")
    table.add("nextafter", torch.nextafter, lambda s: (s.special(3, 6), s.special(3, 6)), (F32, F64))


def _pow(table: Table) -> None:
    for exponent in (2, 3, 0.5, -1, -0.5, 0, 1, 4):
        table.add(
            f"pow/{exponent}",
            lambda x, e=exponent: torch.pow(x, e),
            lambda s: (s.uniform(4, 9, low=0.2, high=3.0),),
            (F32, BF16),
            tags="triton",
        )
    table.add("pow/tensor", torch.pow, lambda s: (s.uniform(4, 9, low=0.2, high=3.0), s.t(9)), (F32, F64), ulps=32)
    table.add("pow/int", lambda x: torch.pow(x, 3), _one("c"), (I64, I32))
    table.add("pow/int_tensor", torch.pow, lambda s: (s.t(4, 5), s.ints(5, low=0, high=5, dtype=s.dtype)), (I64,))
    table.add("pow/scalar_base", lambda x: torch.pow(2.5, x), _one("c"), (F32,), ulps=32)
    table.add(
        "pow/negative_base",
        lambda x: (torch.pow(x, 3.0), torch.pow(x, 2.0), torch.pow(x, -2.0)),
        lambda s: (s.special(4, 9),),
        (F32,),
        ulps=32,
    )


def _casts(table: Table) -> None:
    sources = [F32, F64, BF16, F16, I64, I32, U8, BOOL]
    for number, source in enumerate(sources):
        for target in (F32, F64, BF16, F16, I64, I32, I8, U8, BOOL):
            if target == source or (target in (U8, I8) and source.is_floating_point):
                continue
            tags = "triton" if number % 2 == 0 else ""
            table.add(
                f"to/{SHORT[target]}",
                lambda x, d=target: x.to(d),
                _one("c" if number % 2 else "t"),
                (source,),
                tags=tags,
                reference="eager",
            )
    table.add(
        "to/roundtrip", lambda x: (x.to(BF16).to(F32) * 3, x.to(F16).float() + x), _one("c"), (F32,), reference="eager", ulps=2**17
    )  # a rounding between fused ops may be left out
    kinds = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    for number, kind in enumerate(kinds):
        others = ((BF16, F64), (F16,), (BF16, BOOL), (F16,))[number]
        table.add(
            f"to/from_{kind}",
            lambda x, others=others: (x.float() * 3, x.t()[1:].float() + 1, *(x.to(d) for d in others)),
            lambda s, kind=kind: (s.float8(getattr(torch, kind), 16, 16),),
            (F32,),
            reference="eager",
        )
    table.add("to/u8_nonnegative", lambda x: x.abs().to(U8), _one("c"), (F32,), reference="eager")
    table.add("promote/int_float", lambda i, x: i + x * 2, lambda s: (s.ints(4, 5, low=-5, high=5), s.t(5)), (F32, BF16))
    table.add("promote/bool_int", lambda b, i: b * i + b, lambda s: (s.t(4, 5, dtype=BOOL), s.t(5)), (I64, I32))
    table.add("promote/half_scalar", lambda x: x * 1.5 + 2, _one("c"), (BF16, F16))
    table.add("promote/half_float", lambda x, y: x * y, lambda s: (s.t(4, 5), s.t(5, dtype=F32)), (BF16, F16))
    table.add("promote/0d", lambda x, y: x + y, lambda s: (s.t(4, 5), s.t(dtype=F64)), (F32, BF16))
    table.add("view_dtype", lambda x: x.view(I32) ^ 1, _one("c"), (F32,), reference="eager")
    table.add("to_channels_last", lambda x: (x * 2).to(memory_format=torch.channels_last), lambda s: (s.t(2, 3, 4, 5),), (F32,))
    table.add("contiguous", lambda x: (x + 1).contiguous(), lambda s: (s.transposed(4, 5),), (F32,))
    table.add("clone_preserve", lambda x: x.clone(), lambda s: (s.channels_last(2, 3, 4, 5),), (F32,))


def _ternary(table: Table) -> None:
    three: Make = lambda s: (s.t(5, 9), s.t(9), s.t(5, 1))  # noqa: E731
    for number, (name, fn) in enumerate(
        [
            ("lerp", lambda a, b, c: torch.lerp(a, b, c)),
            ("lerp_scalar", lambda a, b, c: torch.lerp(a, b.expand_as(a), 0.3)),
            ("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=0.5)),
            ("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c.abs() + 0.5, value=0.5)),
            ("clamp_tensor", lambda a, b, c: torch.clamp(a, torch.minimum(b, c), torch.maximum(b, c))),
            ("where", lambda a, b, c: torch.where(a > c, a, b)),
            ("where_scalar", lambda a, b, c: torch.where(a > 0, a * b, -1.0) + c),
            ("masked_fill", lambda a, b, c: a.masked_fill(b > 0, -3.0) + c),
        ]
    ):
        table.add(name, fn, three, (F32, (BF16, F64, F16)[number % 3]), tags="triton")
    table.add("where/mixed", torch.where, lambda s: (s.t(4, 1, dtype=BOOL), s.t(1, 5), s.t(4, 5)), (F32, I64, BOOL), tags="triton")
    table.add("where/nan_branch", lambda x: torch.where(x > 0, torch.log(x), torch.zeros_like(x)), lambda s: (s.special(4, 9),), (F32,))
    table.add(
        "masked_fill/tensor", lambda x, m, v: x.masked_fill(m, v), lambda s: (s.t(4, 5), s.t(4, 5, dtype=BOOL), s.t()), (F32, BF16, I64)
    )
    table.add("prelu", F.prelu, lambda s: (s.t(2, 3, 5), s.t(3)), (F32,))
    table.add("glu", lambda x: F.glu(x, 1), lambda s: (s.t(3, 8, 2),), (F32, BF16))
    table.add(
        "chain/polynomial", lambda x: ((x * 0.3 + 1.2) * x - 0.7) * x + x.sin() * x.cos(), _one("long"), (F32, F64), tags="triton", factor=4
    )
    table.add(
        "chain/gelu_by_hand",
        lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))),
        _one("long"),
        (F32, BF16),
        tags="triton",
        factor=4,
    )
    table.add("inplace", lambda x: x.add_(1).mul_(2), _one("c"), (F32, I64), tags="mutates")
    table.add("inplace/view", lambda x: (x[1:].mul_(3), x.sum())[1], _one("c"), (F32,), tags="mutates")
    table.add("inplace/two", lambda x, y: x.copy_(y) + y.relu_(), lambda s: (s.t(4, 5), s.t(5)), (F32,), tags="mutates")
    table.add("inplace/transposed", lambda x: x.t().add_(torch.arange(5.0, device=x.device)), _one("c"), (F32,), tags="mutates")


def add_rows(table: Table) -> None:
    for part in (_unary, _binary, _pow, _casts, _ternary):
        part(table)
