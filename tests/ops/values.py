"""Operators on NaN, infinities and numbers that no integer holds, where clamps, conversions and masks decide what becomes of them.

Rows as those of the op table: eager's answer is the reference, and NaN and infinity have to stand where eager has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.rows import BF16, F16, F32, F64, SHORT, Row, Sampler

NAN, INF = math.nan, math.inf
SPOTS = (NAN, INF, -INF, 0.5, -0.3, 1.0, -1.0, 2.5, -300.0, 3e9, -3e38, 0.0)
"""Coordinates: those of a bad flow field, of the border, and outside."""
PADDINGS = ("zeros", "border", "reflection")
ODD = (NAN, INF, -INF, 0.0, -0.0, 1e30, -1e30, 1e-40, 2.5, -2.5, 300.0, -300.0)


def spots(s: Sampler, dims: int) -> Tensor:
    """Each of `SPOTS` with each, as a grid of one image."""
    line = torch.tensor(SPOTS, dtype=F64).to(s.dtype)
    return torch.stack(torch.meshgrid(*(line for _ in range(dims)), indexing="ij"), -1)[None]


def odd(s: Sampler, *shape: int) -> Tensor:
    """Normal values with all of `ODD` among them (as many as there is room for)."""
    values = s.t(*shape).flatten()
    count = min(len(ODD), values.numel() // 2)
    places = torch.randperm(values.numel(), generator=s.generator)[:count]
    values[places] = torch.tensor(ODD[:count], dtype=F64).to(s.dtype)
    return values.reshape(shape)


def near(x: Tensor) -> Tensor:
    """Without the huge numbers, of which a sum in another order makes others; NaN and infinity stay."""
    return torch.where(x.isfinite(), x.clamp(-3, 3), x)


def poisoned(s: Sampler, value: float, *shape: int) -> Tensor:
    """Normal values, and one that is not."""
    values = s.t(*shape)
    values.view(-1)[values.numel() // 3] = value
    return values


def sampled(mode: str, padding: str, align_corners: bool) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, grid: F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align_corners)


def grids() -> list[Row]:
    """2-d sampling: each way."""
    found = []
    for mode, padding, align, dtype in product(("bilinear", "nearest", "bicubic"), PADDINGS, (True, False), (F32, F64)):
        fn, name = sampled(mode, padding, align), f"grid_sample/{mode}/{padding}/{'corners' if align else 'edges'}"
        found.append(_row(name, fn, lambda s: (s.t(1, 2, 4, 5), spots(s, 2)), dtype))
    return found


def _row(name: str, fn: Callable[..., Any], make: Callable[[Sampler], tuple[Any, ...]], dtype: torch.dtype = F32, ulps: float = 64) -> Row:
    return Row(f"values/{name}-{SHORT[dtype]}", fn, make, dtype, "eager", 2.0, ulps)


def interpolations() -> list[Row]:
    ways: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
        "linear": ({"scale_factor": 2.0, "mode": "linear"}, (2, 3, 5)),
        "bilinear": ({"scale_factor": 1.7, "mode": "bilinear"}, (1, 2, 4, 5)),
        "bilinear/down": ({"size": (2, 3), "mode": "bilinear"}, (1, 2, 4, 5)),
        "bilinear/corners": ({"size": (7, 9), "mode": "bilinear", "align_corners": True}, (1, 2, 4, 5)),
        "trilinear": ({"scale_factor": 2.0, "mode": "trilinear"}, (1, 2, 3, 4, 3)),
        "bicubic": ({"size": (7, 9), "mode": "bicubic"}, (1, 2, 4, 5)),
        "nearest": ({"scale_factor": 1.5, "mode": "nearest"}, (1, 2, 4, 5)),
        "nearest-exact": ({"size": (7, 3), "mode": "nearest-exact"}, (1, 2, 4, 5)),
        "area": ({"size": (3, 3), "mode": "area"}, (1, 2, 4, 5)),
    }
    found = []
    for (name, (how, shape)), value in product(ways.items(), (NAN, INF)):
        make = partial(lambda s, value, shape: (poisoned(s, value, *shape),), value=value, shape=shape)
        found.append(_row(f"interpolate/{name}/{value}", partial(F.interpolate, **how), make, ulps=1024))
    return found


def behind_libraries() -> list[Row]:
    """What libraries apply to their results; for more than one size, which may decide which library it is."""
    found = []
    ends: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "relu6": F.relu6,
        "hardtanh": F.hardtanh,
        "leaky_relu": F.leaky_relu,
        "silu": F.silu,
        "gelu": F.gelu,
        "hardswish": F.hardswish,
    }
    for (name, end), dtype in product(ends.items(), (F32, BF16)):
        product_of = partial(lambda x, w, b, end: end(F.linear(x, w, b)), end=end)
        found.append(_row(f"linear/{name}", product_of, lambda s: (poisoned(s, NAN, 16, 32), s.t(48, 32), s.t(48)), dtype, 4096))
        image = partial(lambda x, w, b, end: end(F.conv2d(x, w, b, padding=1)), end=end)
        found.append(_row(f"conv2d/{name}", image, lambda s: (poisoned(s, NAN, 1, 8, 9, 9), s.t(8, 8, 3, 3), s.t(8)), dtype, 4096))
    found.append(
        _row(
            "conv2d/add_relu",
            lambda x, w, y: F.relu(F.conv2d(x, w) + y),
            lambda s: (poisoned(s, NAN, 1, 16, 6, 6), s.t(16, 16, 1, 1), poisoned(s, NAN, 1, 16, 6, 6)),
            ulps=4096,
        )
    )
    return found


ALONE: dict[str, Callable[..., Any]] = {
    "clamp": lambda x: (x.clamp(-1, 1), x.clamp(min=NAN), x.clip(max=INF)),
    "clamp/tensors": lambda x: torch.clamp(x, x.roll(1), x.roll(2)),
    "extremes": lambda x: (x.amax(-1), x.amin(0), x.max(0), x.min(-1), torch.aminmax(x, dim=0), x.argmax(-1), x.argmin()),
    "running extremes": lambda x: (x.cummax(-1), x.cummin(0)),
    "sorted": lambda x: (x.sort(dim=-1, stable=True), x.topk(2, -1)[0], x.median(-1)[0], x.nanmedian(-1)[0], x.kthvalue(2, -1)[0]),
    "quantile": lambda x: (torch.quantile(x, 0.4, -1), torch.nanquantile(x, 0.4, -1)),
    "nan aware": lambda x: (near(x).nansum(-1), near(x).nanmean(0), x.nan_to_num(), x.nan_to_num(1.0, 2.0, -3.0), x.isnan(), x.isfinite()),
    "remainders": lambda x: (torch.remainder(x, 2.5), torch.remainder(x, INF), torch.fmod(x, 2.5), torch.floor_divide(x, 2.5), x // INF),
    "rounded": lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.round(decimals=1)),
    "signs": lambda x: (x.sign(), x.sgn(), x.signbit(), torch.copysign(x, x.roll(1)), torch.heaviside(x, x.roll(1))),
    "close": lambda x: (torch.isclose(x, x, equal_nan=True), torch.isclose(x, x.roll(1)), x.eq(x), x.ne(x), x > x.roll(1)),
    "shrunk": lambda x: (F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.5, 9.0), F.tanhshrink(x), F.relu6(x), F.hardswish(x)),
    "squashed": lambda x: (F.softplus(x), F.logsigmoid(x), F.silu(x), F.elu(x), F.celu(x), F.selu(x), F.mish(x), F.hardsigmoid(x)),
    "softmax": lambda x: (torch.where(x > 0, -INF, x).softmax(-1), x.log_softmax(0), x.logsumexp(-1), torch.full_like(x, -INF).softmax(0)),
    "pooled": lambda x: (F.max_pool1d(x, 3, 1, 1), F.avg_pool1d(x, 2), F.adaptive_avg_pool1d(x, 3), F.adaptive_max_pool1d(x, 3)),
    "bins": lambda x: (
        torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
        torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x, right=True),
    ),
    "scattered": lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.int64), x.roll(1), "amax"),
    "scattered low": lambda x: x.index_reduce(0, torch.tensor([0, 0]), x[:2], "amin"),
    "bits": lambda x: (torch.ldexp(x, torch.tensor(3)), torch.frexp(x), torch.nextafter(x, x.roll(1)), torch.logit(x, 0.1), x.hypot(x)),
    "filled": lambda x: (x.masked_fill(x > 0, NAN), torch.where(x > 0, x, INF), x.tril(), x * 0),
    "distances": lambda x: (
        torch.cdist(x, x, p=1.0),
        F.pairwise_distance(x, x.roll(1)),
        x.norm(dim=-1),
        x.norm(INF, -1),
        x.renorm(2, 0, 1.0),
    ),
    "booleans": lambda x: (x.bool(), x.any(-1), x.all(0), x.logical_and(x), x.count_nonzero(-1)),
}
"""Each of a matrix, of which all numbers of `ODD` are elements."""


def as_rows() -> tuple[Row, ...]:
    """All rows, in a fixed order."""
    volumes = [
        _row(f"grid_sample/3d/{mode}/{padding}", sampled(mode, padding, False), lambda s: (s.t(1, 2, 3, 4, 5), spots(s, 3)))
        for mode, padding in product(("bilinear", "nearest"), ("zeros", "border"))
    ]
    turned = _row(
        "affine_grid",
        lambda x, theta: F.grid_sample(x, F.affine_grid(theta, (1, 2, 5, 5), align_corners=False), align_corners=False),
        lambda s: (s.t(1, 2, 4, 5), poisoned(s, NAN, 1, 2, 3)),
    )
    halves = [
        _row(
            "grid_sample/half",
            sampled("bilinear", "zeros", False),
            lambda s: (s.t(1, 2, 4, 5), torch.tensor([[[[NAN, 0.5], [INF, NAN], [0.5, 0.5]]]]).to(s.dtype)),
            dtype,
            64,
        )
        for dtype in (BF16, F16)
    ]
    bags = _row(
        "embedding_bag",
        lambda w, p: F.embedding_bag(torch.tensor([0, 2, 1, 1]), w, torch.tensor([0, 2]), mode="sum", per_sample_weights=p),
        lambda s: (odd(s, 4, 6), poisoned(s, NAN, 4)),
    )
    alone = [_row(name, fn, lambda s: (odd(s, 5, 9),), dtype) for (name, fn), dtype in product(ALONE.items(), (F32,))]
    alone += [_row(name, ALONE[name], lambda s: (odd(s, 5, 9),), dtype) for name in HALVES for dtype in (F64, BF16)]
    return (*grids(), *volumes, turned, *halves, *interpolations(), *behind_libraries(), bags, *alone)


HALVES = ("clamp", "extremes", "rounded", "signs", "nan aware", "pooled", "filled", "booleans")
"""Those of `ALONE` that are also run in other types."""
