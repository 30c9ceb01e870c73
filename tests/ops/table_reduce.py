"""Reductions, softmax and norms, cumulative ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.rows import BF16, BOOL, F16, F32, F64, I32, I64, U8, Make, Sampler, Table

Fn = Callable[..., Any]


def _x(*shape: int) -> Make:
    return lambda s: (s.t(*shape),)


DIMS: dict[str, tuple[Any, bool]] = {
    "all": (None, False),
    "last": (-1, False),
    "first_keep": (0, True),
    "mid": (1, False),
    "pair": ((0, 2), False),
    "pair_keep": ((1, 2), True),
}
DIM_REDUCTIONS: list[tuple[str, Callable[[torch.Tensor, Any, bool], Any]]] = [
    ("sum", lambda x, d, k: x.sum() if d is None else x.sum(d, k)),
    ("mean", lambda x, d, k: x.mean() if d is None else x.mean(d, k)),
    ("amax", lambda x, d, k: x.amax() if d is None else x.amax(d, k)),
    ("amin", lambda x, d, k: x.amin() if d is None else x.amin(d, k)),
    ("var", lambda x, d, k: x.var() if d is None else x.var(d, keepdim=k)),
    ("std_biased", lambda x, d, k: x.std(unbiased=False) if d is None else x.std(d, unbiased=False, keepdim=k)),
    ("logsumexp", lambda x, d, k: x.logsumexp((0, 1, 2) if d is None else d, k)),
    ("norm2", lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k)),
]
ONE_DIM_REDUCTIONS: list[tuple[str, Fn]] = [
    ("prod", lambda x, d, k: x.prod() if d is None else x.prod(d, k)),
    ("argmax", lambda x, d, k: x.argmax() if d is None else x.argmax(d, k)),
    ("argmin", lambda x, d, k: x.argmin() if d is None else x.argmin(d, k)),
    ("max_dim", lambda x, d, k: x.max() if d is None else x.max(d, k)),
    ("min_dim", lambda x, d, k: x.min() if d is None else x.min(d, k)),
    ("any", lambda x, d, k: (x > 0.5).any() if d is None else (x > 0.5).any(d, k)),
    ("all", lambda x, d, k: (x > -2).all() if d is None else (x > -2).all(d, k)),
    ("count_nonzero", lambda x, d, k: (x > 0).count_nonzero(d)),
]


def _distinct(s: Sampler) -> tuple[torch.Tensor]:
    return (s.distinct(4, 6, 9),)


def _factors(s: Sampler) -> tuple[torch.Tensor]:
    """Values whose product neither overflows nor vanishes, in whatever order."""
    return (s.uniform(4, 6, 9, low=0.7, high=1.4),)


def _reductions(table: Table) -> None:
    for name, fn in DIM_REDUCTIONS:
        for where, (dim, keep) in DIMS.items():
            table.add(f"{name}/{where}", lambda x, fn=fn, d=dim, k=keep: fn(x, d, k), _x(4, 7, 19), (F32,), tags="triton", ulps=128)
        table.add(f"{name}/half", lambda x, fn=fn: fn(x, -1, False), _x(3, 5, 65), (BF16, F16))
        table.add(f"{name}/transposed", lambda x, fn=fn: fn(x, 1, False), lambda s: (s.transposed(3, 8, 5),), (F64,), ulps=128)
    for name, fn in ONE_DIM_REDUCTIONS:
        for where in ("all", "last", "first_keep", "mid"):
            dim, keep = DIMS[where]
            table.add(
                f"{name}/{where}",
                lambda x, fn=fn, d=dim, k=keep: fn(x, d, k),
                _factors if name == "prod" else _distinct,
                (F32,),
                tags="triton",
                ulps=32,
            )
        table.add(f"{name}/half", lambda x, fn=fn: fn(x, -1, False), lambda s: (s.distinct(3, 4, 9),), (BF16,), ulps=32)
    for name, fn in [("sum", torch.sum), ("prod", torch.prod), ("amax", torch.amax), ("argmax", lambda x: x.argmax())]:
        make: Make = (lambda s: (s.distinct(3, 15),)) if name == "argmax" else _x(3, 15)
        table.add(f"{name}/int", fn, make, (I64, I32, U8) if name != "argmax" else (I64, I32))
    table.add("sum/bool", torch.sum, _x(5, 9), (BOOL,))
    table.add("any/int", lambda x: (x.any(), x.all(1)), _x(5, 9), (I64, BOOL))
    table.add("sum/dtype", lambda x: (x.sum(dtype=F64), x.sum(1, dtype=F32)), _x(5, 99), (F32, BF16), reference="eager", ulps=256)
    table.add("mean/long", lambda x: x.mean(1), _x(3, 5003), (F32, BF16), ulps=256)
    table.add("sum/nan", lambda x: (x.sum(1), x.amax(1), x.amin(0), x.prod(0)), lambda s: (s.special(5, 11),), (F32,))
    table.add("argmax/nan", lambda x: (x.argmax(1), x.argmin(0)), lambda s: (torch.where(s.t(5, 11) > 1, torch.nan, s.t(5, 11)),), (F32,))
    table.add(
        "argmax/ties", lambda x: (x.argmax(1), x.argmin(1), x.argmax()), lambda s: (s.ints(6, 31, low=0, high=3).to(s.dtype),), (F32, I64)
    )
    table.add("sum/0d", lambda x: (x.sum(), x.mean(), x.amax()), _x(), (F32,))
    table.add("sum/empty", lambda x: (x.sum(), x.sum(0), x.prod(1), x.any(1)), _x(0, 3), (F32,))
    table.add("mean/empty", lambda x: (x.mean(), x.mean(0)), _x(0, 3), (F32,))
    table.add("sum/one", lambda x: x.sum((0, 2)), _x(1, 5, 1), (F32,))
    table.add("sum/expanded", lambda x: x.sum(0), lambda s: (s.t(1, 7).expand(5, 7),), (F32,))
    table.add("aminmax", lambda x: torch.aminmax(x, dim=1), _x(4, 9), (F32, I64))
    table.add("var_mean", lambda x: torch.var_mean(x, dim=(0, 2), correction=0), _x(4, 3, 9), (F32, BF16), tags="triton", ulps=128)
    table.add("var/correction", lambda x: x.var(1, correction=2), _x(4, 9), (F32, F64))
    table.add("var/offset", lambda x: x.var(1), lambda s: (s.t(4, 300) + 1000,), (F32,), factor=4)
    for order in (0, 1, 3, float("inf"), float("-inf")):
        table.add(f"vector_norm/{order}", lambda x, p=order: torch.linalg.vector_norm(x, p, 1), _x(4, 17), (F32,), ulps=32)
    table.add("norm/fro", lambda x: torch.norm(x), _x(4, 17), (F32, F64))
    table.add("nansum", lambda x: torch.nansum(x, 1), lambda s: (torch.where(s.t(4, 9) > 1, torch.nan, s.t(4, 9)),), (F32,))
    table.add("dist", torch.dist, lambda s: (s.t(4, 5), s.t(5)), (F32,))
    table.add("median_extern", lambda x: x.median(1).values, _distinct, (F32,), tags="extern")
    table.add("sum_to_size", lambda x: x.sum_to_size(4, 1), _x(3, 4, 5), (F32,), ulps=128)
    table.add("trace", torch.trace, _x(5, 5), (F32,), ulps=128)
    table.add("l1_loss", F.l1_loss, lambda s: (s.t(4, 5), s.t(4, 5)), (F32,))
    table.add(
        "reduce_then_broadcast",
        lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-3),
        _x(6, 50),
        (F32, BF16),
        tags="triton",
        factor=4,
    )
    table.add(
        "reduce_of_chain",
        lambda x, y: ((x * y).tanh() + 1).sum((0, 2)),
        lambda s: (s.t(4, 5, 33), s.t(5, 1)),
        (F32,),
        tags="triton",
        ulps=128,
    )
    table.add("two_reductions_apart", lambda x: (x.sum(0), x.sum(1), x.amax()), _x(8, 21), (F32,), tags="triton", ulps=128)


def _normalisations(table: Table) -> None:
    for dim in (-1, 0, 1):
        table.add(f"softmax/{dim}", lambda x, d=dim: F.softmax(x, d), _x(4, 6, 19), (F32, BF16), tags="triton")
        table.add(f"log_softmax/{dim}", lambda x, d=dim: F.log_softmax(x, d), _x(4, 6, 19), (F32, F16))
    table.add("softmax/f64", lambda x: F.softmax(x, 1), _x(4, 33), (F64,))
    table.add("softmax/large", lambda x: F.softmax(x * 200, 1), _x(4, 33), (F32,))
    table.add(
        "softmax/masked",
        lambda x, m: F.softmax(x.masked_fill(m, float("-inf")), -1),
        lambda s: (s.t(4, 8, 8), torch.ones(8, 8).triu(1).bool()),
        (F32, BF16),
        tags="triton",
    )
    table.add("softmax/all_masked", lambda x: F.softmax(torch.full_like(x, float("-inf")), -1), _x(2, 5), (F32,))
    table.add("softmax/dtype", lambda x: F.softmax(x, -1, dtype=F32).to(x.dtype), _x(3, 33), (BF16, F16))
    table.add("softmax/0d", lambda x: F.softmax(x, 0), _x(), (F32,))
    table.add("softmin", lambda x: F.softmin(x, 1), _x(3, 9), (F32,))
    norm: Make = lambda s: (s.t(3, 7, 48), s.t(48), s.t(48))  # noqa: E731
    table.add("layer_norm", lambda x, w, b: F.layer_norm(x, (48,), w, b), norm, (F32, BF16, F16, F64), tags="triton", factor=4)
    table.add("layer_norm/plain", lambda x, w, b: F.layer_norm(x, (7, 48)), norm, (F32,), factor=4)
    table.add("layer_norm/offset", lambda x, w, b: F.layer_norm(x + 100, (48,), w, b), norm, (F32,), factor=8, ulps=64)
    table.add("rms_norm", lambda x, w, b: F.rms_norm(x, (48,), w, 1e-6), norm, (F32, BF16), tags="triton", factor=4)
    table.add(
        "rms_norm/llama",
        lambda x, w, b: w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype),
        norm,
        (F32, BF16),
        tags="triton",
        factor=4,
    )
    table.add("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), lambda s: (s.t(2, 6, 5, 5), s.t(6), s.t(6)), (F32, BF16), factor=4)
    table.add(
        "group_norm/channels_last",
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda s: (s.channels_last(2, 6, 5, 4), s.t(6), s.t(6)),
        (F32,),
        factor=4,
    )
    table.add("instance_norm", lambda x: F.instance_norm(x), _x(2, 3, 5, 7), (F32,), factor=4)
    stats: Make = lambda s: (s.t(3, 4, 5, 5), s.t(4), s.uniform(4, low=0.5, high=2.0), s.t(4), s.t(4))  # noqa: E731
    table.add("batch_norm/eval", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), stats, (F32, BF16), factor=4, tags="triton")
    table.add("batch_norm/train", lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True, 0.1), stats, (F32,), factor=8, tags="mutates")
    table.add(
        "batch_norm/eval_cl",
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        lambda s: (s.channels_last(3, 4, 5, 5), *stats(s)[1:]),
        (F32,),
        factor=4,
    )
    table.add("normalize", lambda x: F.normalize(x, dim=1), _x(4, 33), (F32, BF16))
    table.add("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, 1), lambda s: (s.t(4, 33), s.t(4, 33)), (F32,), factor=4)
    table.add("local_response_norm", lambda x: F.local_response_norm(x, 3), _x(2, 6, 5, 5), (F32,))
    _losses(table)


def _losses(table: Table) -> None:
    labelled: Make = lambda s: (s.t(8, 11), s.ints(8, low=0, high=11))  # noqa: E731
    table.add("cross_entropy", F.cross_entropy, labelled, (F32, F64), factor=4)
    table.add("cross_entropy/none", lambda x, y: F.cross_entropy(x, y, reduction="none"), labelled, (F32, BF16), factor=4)
    table.add("cross_entropy/ignore", lambda x, y: F.cross_entropy(x, torch.where(y > 5, -100, y)), labelled, (F32,), factor=4)
    table.add("cross_entropy/smooth", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), labelled, (F32,), factor=4)
    table.add("cross_entropy/2d", F.cross_entropy, lambda s: (s.t(2, 5, 3, 3), s.ints(2, 3, 3, low=0, high=5)), (F32,), factor=4)
    table.add("nll_loss", lambda x, y: F.nll_loss(F.log_softmax(x, 1), y), labelled, (F32,), factor=4)
    pair: Make = lambda s: (s.t(6, 9), s.t(6, 9))  # noqa: E731
    for name, fn in [
        ("mse_loss", F.mse_loss),
        ("smooth_l1_loss", F.smooth_l1_loss),
        ("huber_loss", F.huber_loss),
        ("soft_margin", lambda x, y: F.soft_margin_loss(x, y.sign())),
    ]:
        table.add(name, fn, pair, (F32, BF16), factor=4)
    table.add("bce_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), pair, (F32,), factor=4)
    table.add("bce", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), pair, (F32,), factor=4)
    table.add("kl_div", lambda x, y: F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean"), pair, (F32,), factor=4)
    table.add("hinge_embedding", lambda x, y: F.hinge_embedding_loss(x, y.sign()), pair, (F32,), factor=4)


def _scans(table: Table) -> None:
    for dim in (0, 1, -1):
        table.add(f"cumsum/{dim}", lambda x, d=dim: x.cumsum(d), _x(4, 9, 5), (F32, I64))
    table.add("cumsum/dtype", lambda x: (x.cumsum(1), x.cumsum(0, dtype=F32)), _x(4, 9), (I32, BOOL, BF16))
    table.add("cumsum/long", lambda x: x.cumsum(1), _x(2, 4001), (F32,), factor=4)
    table.add("cumsum/0d", lambda x: x.cumsum(0), _x(), (F32,))
    table.add("cumsum/empty", lambda x: x.cumsum(0), _x(0, 3), (F32,))
    table.add("cumprod", lambda x: x.cumprod(1), lambda s: (s.uniform(4, 9, low=0.5, high=1.5),), (F32, F64))
    table.add("cummax", lambda x: torch.cummax(x, 1), lambda s: (s.distinct(4, 9),), (F32, I64))
    table.add("cummin", lambda x: torch.cummin(x, 0), lambda s: (s.distinct(4, 9),), (F32,))
    table.add("cummax/ties", lambda x: torch.cummax(x, 1), lambda s: (s.ints(4, 30, low=0, high=4).to(s.dtype),), (F32, I64))
    table.add("logcumsumexp", lambda x: torch.logcumsumexp(x, 1), _x(4, 9), (F32,), ulps=32)
    infinite = lambda x: torch.logcumsumexp(torch.where(x.abs() < 0.5, x / 0 * x.sign(), x), 0)  # noqa: E731
    table.add("logcumsumexp/infinite", infinite, _x(9, 4), (F32,), ulps=32)
    endless = lambda x: torch.where(x.abs() < 0.3, x / 0, x)  # noqa: E731
    table.add("cummax/infinite", lambda x: (torch.cummax(endless(x), 1), endless(x).cumsum(0)), _x(9, 20), (F32,))
    table.add("cumprod/scaled", lambda x: 1 - (1 - x * 0.1).cumprod(1) * 2, _x(4, 9), (F32, BF16), factor=4)
    table.add("cumsum/two_readers", lambda x: (x.cumsum(0).relu(), x.cumsum(0)[:, 1:] * 2), _x(5, 6), (F32,), factor=4)
    table.add("cummax/values", lambda x: (torch.cummax(x, 1)[0] - x, torch.cummin(x, 0)[1]), lambda s: (s.distinct(4, 9),), (F32,))
    table.add("cumsum/flipped", lambda x: x.flip(1).cumsum(1).flip(1), _x(3, 7), (F32,))
    table.add("cumsum/of_chain", lambda x: (x.exp() * 0.5).cumsum(-1) / torch.arange(1, 10, device=x.device), _x(4, 9), (F32,))
    # one result in all beside one per row, in one kernel that also stores every element
    both = lambda x: (y := (x - x.mean()).tanh(), y.sum(1), y.sum(0))  # noqa: E731
    table.add("mean_all_and_rows", both, _x(200, 70), (F32,), factor=8)
    for dim in (0, 1):  # a scan of what a reduction along the same or another axis made
        table.add(f"cumsum/of_layer_norm/{dim}", lambda x, d=dim: F.layer_norm(x, (9,)).cumsum(d), _x(4, 9), (F32,), factor=4)
        table.add(f"cumsum/of_softmax/{dim}", lambda x, d=dim: x.softmax(1).cumsum(d), _x(4, 9), (F32,), factor=4)
        table.add(f"cumsum/of_sum/{dim}", lambda x, d=dim: x.sum(1).cumsum(d), _x(5, 70, 6), (F32,), factor=4)
        table.add(f"cummax/of_norm/{dim}", lambda x, d=dim: torch.cummax(x / x.norm(dim=0), d)[0], _x(40, 30), (F32,), factor=4)
    table.add("mask_positions", lambda m: (m.cumsum(1) * m).long() + 1, lambda s: (s.t(3, 9, dtype=BOOL).int(),), (I32,))
    table.add("diff", lambda x: torch.diff(x, dim=1), _x(4, 9), (F32, I64))
    table.add("trapezoid", lambda x: torch.trapezoid(x, dim=1), _x(4, 9), (F32,))


def add_rows(table: Table) -> None:
    for part in (_reductions, _normalisations, _scans):
        part(table)
