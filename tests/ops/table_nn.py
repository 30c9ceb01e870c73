"""Pooling, upsampling, library calls with epilogues, and the fused chains of real models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.rows import BF16, BOOL, F16, F32, F64, I64, U8, Make, Table

Fn = Callable[..., Any]


def _x(*shape: int) -> Make:
    return lambda s: (s.t(*shape),)


def _pooling(table: Table) -> None:
    image: Make = _x(2, 3, 9, 10)
    distinct: Make = lambda s: (s.distinct(2, 3, 9, 10),)  # noqa: E731
    pools: list[tuple[str, Fn]] = [
        ("max", lambda x: F.max_pool2d(x, 2)),
        ("max_pad", lambda x: F.max_pool2d(x, 3, 2, 1)),
        ("max_dilated", lambda x: F.max_pool2d(x, 3, 1, 0, 2)),
        ("max_ceil", lambda x: F.max_pool2d(x, 2, ceil_mode=True)),
        ("avg", lambda x: F.avg_pool2d(x, 2)),
        ("avg_pad", lambda x: F.avg_pool2d(x, 3, 2, 1)),
        ("avg_nopad", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
        ("avg_ceil", lambda x: F.avg_pool2d(x, 2, ceil_mode=True)),
        ("avg_divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3)),
        ("lp", lambda x: F.lp_pool2d(x, 2.0, 2)),
        ("adaptive1", lambda x: F.adaptive_avg_pool2d(x, 1)),
        ("adaptive", lambda x: F.adaptive_avg_pool2d(x, (3, 4))),
        ("adaptive_max", lambda x: F.adaptive_max_pool2d(x, (3, 4))),
        ("adaptive_up", lambda x: (F.adaptive_avg_pool2d(x[..., :1, :2], (7, 4)), F.adaptive_max_pool2d(x[..., :2, :1], (4, 7)))),
    ]
    for number, (name, fn) in enumerate(pools):
        table.add(f"pool2d/{name}", fn, image, (F32, (BF16, F64)[number % 2]), ulps=64)
    table.add("pool2d/max_cl", lambda x: F.max_pool2d(x, 3, 2, 1), lambda s: (s.channels_last(2, 4, 9, 10),), (F32,))
    table.add("pool2d/avg_cl", lambda x: F.avg_pool2d(x, 2), lambda s: (s.channels_last(2, 4, 9, 10),), (F32,))
    table.add("pool2d/max_indices", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), distinct, (F32,))
    both = {"return_indices": True}
    placed: list[tuple[str, Fn, Make]] = [
        ("ties", lambda x: F.max_pool2d(x.round(), 3, 2, 1, **both), image),
        ("nan", lambda x: F.max_pool2d(x, 3, 2, 1, **both), lambda s: (s.special(2, 2, 6, 7),)),
        ("least", lambda x: F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True, **both), lambda s: (s.t(1, 2, 9, 10) * 0 - float("inf"),)),
        ("large", lambda x: F.max_pool2d(x.round(), 5, 2, 2, ceil_mode=True, **both), image),
        ("large_nan", lambda x: F.max_pool2d(x, 5, 2, 2, **both), lambda s: (s.special(2, 2, 6, 7),)),
        ("large_least", lambda x: F.max_pool2d(x, (5, 4), 2, (2, 1), 2, **both), lambda s: (s.t(1, 2, 9, 10) * 0 - float("inf"),)),
        ("dilated", lambda x: F.max_pool2d(x, (3, 2), (2, 3), (1, 1), (2, 1), ceil_mode=True, **both), image),
        ("cl", lambda x: F.max_pool2d(x.round(), 3, 2, 1, ceil_mode=True, **both), lambda s: (s.channels_last(2, 4, 9, 10),)),
        ("unbatched", lambda x: F.max_pool2d(x, 2, **both), lambda s: (s.t(3, 8, 7),)),
        ("1d", lambda x: F.max_pool1d(x.round(), 4, 2, 1, 1, **both), lambda s: (s.t(2, 3, 17),)),
        ("3d", lambda x: F.max_pool3d(x.round(), 2, 1, 1, **both), lambda s: (s.t(1, 2, 4, 5, 3),)),
        ("adaptive", lambda x: F.adaptive_max_pool2d(x.round(), (3, 4), return_indices=True), image),
        ("adaptive_whole", lambda x: F.adaptive_max_pool2d(x.round(), (3, 5), return_indices=True), image),
        ("unpooled", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, **both), 2), lambda s: (s.distinct(2, 3, 8, 6),)),
    ]
    for name, fn, make in placed:
        table.add(f"pool2d/indices/{name}", fn, make, (F32, BF16), tags="triton", reference="eager")
    table.add("pool2d/indices/of_chain", lambda x: F.max_pool2d((x * 9 + 0.3).relu(), 2, **both), image, (F32,), reference="eager")
    table.add("pool2d/indices/int", lambda x: F.max_pool2d(x, 3, 2, 1, **both), image, (I64, U8), reference="eager")
    table.add("pool2d/max_nan", lambda x: F.max_pool2d(x, 2), lambda s: (s.special(1, 2, 6, 6),), (F32,))
    table.add(
        "pool1d/all",
        lambda x: (F.max_pool1d(x, 3, 2), F.avg_pool1d(x, 2), F.adaptive_avg_pool1d(x, 4), F.adaptive_max_pool1d(x, 3)),
        _x(2, 3, 13),
        (F32,),
    )
    table.add("pool3d/all", lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 2), F.adaptive_avg_pool3d(x, 2)), _x(1, 2, 6, 6, 4), (F32,))
    table.add("pool2d/of_chain", lambda x: F.max_pool2d(F.relu(x * 2 - 0.5), 2) + 1, image, (F32,))
    table.add("pool2d/global_mean", lambda x: x.relu().mean((2, 3)), lambda s: (s.channels_last(2, 5, 7, 7),), (F32, BF16))
    ups: list[tuple[str, dict[str, Any]]] = [
        ("nearest", {"scale_factor": 2, "mode": "nearest"}),
        ("nearest_size", {"size": (7, 5), "mode": "nearest"}),
        ("nearest_exact", {"size": (7, 5), "mode": "nearest-exact"}),
        ("bilinear", {"scale_factor": 2, "mode": "bilinear"}),
        ("bilinear_corners", {"size": (7, 9), "mode": "bilinear", "align_corners": True}),
        ("bilinear_down", {"size": (3, 2), "mode": "bilinear"}),
        ("bicubic", {"scale_factor": 2, "mode": "bicubic"}),
        ("area", {"size": (2, 3), "mode": "area"}),
        ("antialias_extern", {"size": (3, 3), "mode": "bilinear", "antialias": True}),
        ("scale_kept", {"scale_factor": 1.7, "mode": "bilinear"}),
    ]
    for number, (name, options) in enumerate(ups):
        table.add(
            f"upsample/{name}",
            lambda x, o=options: F.interpolate(x, **o),
            _x(2, 3, 4, 6),
            (F32,) if number % 2 else (F32, F64),
            ulps=64,
            factor=4,
        )
    table.add("upsample/1d_linear", lambda x: F.interpolate(x, size=11, mode="linear"), _x(2, 3, 7), (F32,), ulps=64)
    table.add(
        "upsample/3d",
        lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(3, 5, 4), mode="trilinear")),
        _x(1, 2, 2, 3, 3),
        (F32,),
        ulps=64,
    )
    table.add(
        "upsample/cl",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") + 1,
        lambda s: (s.channels_last(2, 4, 3, 5),),
        (F32,),
        ulps=64,
    )
    table.add(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        lambda s: (s.t(2, 3, 5, 6), s.t(2, 4, 4, 2)),
        (F32,),
        ulps=256,
        factor=8,
    )
    table.add("unfold_im2col", lambda x: F.unfold(x, 3, padding=1), image, (F32,))
    table.add("fold", lambda x: F.fold(x, (4, 4), 2), _x(1, 12, 9), (F32,))


def _matmul(table: Table) -> None:
    linear: Make = lambda s: (s.t(6, 32), s.t(48, 32) * 0.2, s.t(48))  # noqa: E731
    acts: list[tuple[str, Fn]] = [
        ("none", lambda x: x),
        ("relu", F.relu),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("silu", F.silu),
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
    ]
    for name, act in acts:
        table.add(f"linear/{name}", lambda x, w, b, act=act: act(F.linear(x, w, b)), linear, (F32, BF16), factor=4)
    table.add("linear/f64", F.linear, linear, (F64, F16), factor=4)
    table.add("linear/3d", lambda x, w, b: F.linear(x.view(2, 3, 32), w, b), linear, (F32,), factor=4)
    table.add("linear/nobias_residual", lambda x, w, b: x[:, :1] + F.linear(x, w) * 0.5, linear, (F32,), factor=4)
    table.add("linear/residual", lambda x, w, b, r: F.linear(x, w, b) + r, lambda s: (*linear(s), s.t(6, 48)), (F32, BF16), factor=4)
    table.add("linear/prologue", lambda x, w, b: F.linear(F.gelu(x * 2), w, b), linear, (F32,), factor=4)
    table.add("linear/one_row", lambda x, w, b: F.linear(x[:1], w, b), linear, (F32,), factor=4)
    table.add(
        "linear/int8_weights",
        lambda x, w, scale: F.silu(F.linear(x, w.to(x.dtype)) * scale) + x[:, :48],
        lambda s: (s.t(6, 300), s.ints(48, 300, low=-127, high=128, dtype=torch.int8), s.t(48) / 64),
        (F32, BF16, F16),
        factor=4,
    )
    table.add(
        "linear/float8_weights",
        lambda x, w, scale: F.silu(F.linear(x, w.to(x.dtype)) * scale),
        lambda s: (s.t(6, 300), s.float8(torch.float8_e4m3fn, 48, 300), s.t(48) / 64),
        (F32, BF16, F16),
        factor=4,
    )
    table.add("linear/1d", lambda x, w, b: F.linear(x[0], w, b), linear, (F32,), factor=4)
    table.add("mm/transposed", lambda a, b: a.t() @ b.t(), lambda s: (s.t(7, 5), s.t(9, 7)), (F32, F64), factor=4)
    table.add("mm/int", torch.mm, lambda s: (s.t(5, 7), s.t(7, 3)), (I64,))
    table.add("mm/empty_k", torch.mm, lambda s: (s.t(3, 0), s.t(0, 4)), (F32,))
    table.add("mm/empty_m", lambda a, b: a @ b + 1, lambda s: (s.t(0, 3), s.t(3, 4)), (F32,))
    table.add("mm/strided", lambda a, b: a @ b, lambda s: (s.sliced(5, 7), s.sliced(7, 6)), (F32,), factor=4)
    table.add(
        "addmm/alpha_beta",
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        lambda s: (s.t(5, 9), s.t(5, 7), s.t(7, 9)),
        (F32,),
        factor=4,
    )
    table.add("bmm", torch.bmm, lambda s: (s.t(3, 4, 5), s.t(3, 5, 6)), (F32, BF16), factor=4)
    table.add("baddbmm", torch.baddbmm, lambda s: (s.t(3, 4, 6), s.t(3, 4, 5), s.t(3, 5, 6)), (F32,), factor=4)
    table.add("matmul/broadcast", lambda a, b: a @ b, lambda s: (s.t(2, 3, 4, 5), s.t(5, 6)), (F32,), factor=4)
    table.add("matmul/batch_broadcast", lambda a, b: a @ b, lambda s: (s.t(2, 1, 4, 5), s.t(3, 5, 6)), (F32,), factor=4)
    table.add("mv_dot", lambda a, x: (a @ x, x @ x, torch.outer(x, x)), lambda s: (s.t(5, 7), s.t(7)), (F32,), factor=4)
    table.add("einsum", lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b), lambda s: (s.t(2, 3, 2, 4), s.t(2, 5, 2, 4)), (F32,), factor=4)
    table.add("matmul_softmax", lambda a, b: F.softmax(a @ b.mT / 2, -1), lambda s: (s.t(2, 5, 4), s.t(2, 6, 4)), (F32,), factor=8)
    table.add(
        "bilinear_product", lambda a, b: (a.unsqueeze(-1) * b.unsqueeze(-2)).sum(0), lambda s: (s.t(4, 5), s.t(4, 6)), (F32,), factor=4
    )


def _convolution(table: Table) -> None:
    conv: Make = lambda s: (s.t(2, 4, 8, 9), s.t(6, 4, 3, 3) * 0.3, s.t(6))  # noqa: E731
    convs: list[tuple[str, Fn]] = [
        ("plain", lambda x, w, b: F.conv2d(x, w, b)),
        ("stride_pad", lambda x, w, b: F.conv2d(x, w, b, 2, 1)),
        ("dilated", lambda x, w, b: F.conv2d(x, w, b, 1, 2, 2)),
        ("relu", lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1))),
        ("same", lambda x, w, b: F.conv2d(x, w, b, padding="same")),
        ("silu_residual", lambda x, w, b: F.silu(F.conv2d(x, w, padding=1)) + 1),
        ("1x1", lambda x, w, b: F.conv2d(x, w[:, :, :1, :1], b)),
    ]
    for number, (name, fn) in enumerate(convs):
        table.add(f"conv2d/{name}", fn, conv, (F32, BF16) if number % 3 == 0 else (F32,), factor=4)
    table.add(
        "conv2d/channels_last",
        lambda x, w, b: F.relu(F.conv2d(x, w, b, 1, 1)),
        lambda s: (s.channels_last(2, 4, 8, 9), *conv(s)[1:]),
        (F32,),
        factor=4,
    )
    table.add("conv2d/grouped", lambda x, w, b: F.conv2d(x, w[:, :2], b, groups=2), conv, (F32,), factor=4)
    table.add(
        "conv2d/depthwise",
        lambda x, w: F.conv2d(x, w, padding=3, groups=6),
        lambda s: (s.t(2, 6, 8, 8), s.t(6, 1, 7, 7) * 0.2),
        (F32,),
        factor=4,
    )
    table.add("conv2d/unbatched", lambda x, w, b: F.conv2d(x[0], w, b), conv, (F32,), factor=4)
    table.add("conv1d", lambda x, w, b: F.gelu(F.conv1d(x, w, b, 2, 1)), lambda s: (s.t(2, 4, 15), s.t(6, 4, 3), s.t(6)), (F32,), factor=4)
    table.add(
        "conv1d/causal",
        lambda x, w: F.silu(F.conv1d(F.pad(x, (3, 0)), w, groups=4)),
        lambda s: (s.t(2, 4, 15), s.t(4, 1, 4)),
        (F32,),
        factor=4,
    )
    table.add("conv3d", lambda x, w: F.conv3d(x, w, padding=1), lambda s: (s.t(1, 2, 4, 5, 5), s.t(3, 2, 3, 3, 3)), (F32,), factor=4)
    table.add(
        "conv_transpose2d",
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        lambda s: (s.t(2, 4, 5, 5), s.t(4, 3, 3, 3)),
        (F32,),
        factor=4,
    )
    bn: Make = lambda s: (*conv(s)[:2], s.t(6), s.uniform(6, low=0.5, high=2.0), s.t(6), s.t(6))  # noqa: E731
    table.add("conv2d/bn_relu", lambda x, w, m, v, g, b: F.relu(F.batch_norm(F.conv2d(x, w, padding=1), m, v, g, b)), bn, (F32,), factor=8)
    table.add(
        "conv2d/bn_add_relu",
        lambda x, w, m, v, g, b, r: F.relu(F.batch_norm(F.conv2d(x, w, padding=1), m, v, g, b) + r),
        lambda s: (*bn(s), s.t(2, 6, 8, 9)),
        (F32,),
        factor=8,
    )


def _other_libraries(table: Table) -> None:
    table.add("sort", lambda x: x.sort(1), lambda s: (s.distinct(4, 9),), (F32, I64), tags="extern")
    table.add("topk", lambda x: (x * 2).topk(3, -1), lambda s: (s.distinct(4, 9),), (F32,), tags="extern")
    table.add(
        "argsort_gather", lambda x: x.gather(1, x.argsort(1, descending=True)) + 1, lambda s: (s.distinct(4, 9),), (F32,), tags="extern"
    )
    table.add("fft", lambda x: torch.fft.rfft(x).abs() * 2, _x(3, 16), (F32,), tags="extern", ulps=64)
    table.add(
        "complex_multiply",
        lambda x: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(x.flip(0))),
        _x(4, 3, 2),
        (F32,),
        tags="extern",
        ulps=16,
    )
    table.add(
        "cholesky",
        lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4, device=x.device) * 3) * 2,
        _x(2, 4, 4),
        (F32,),
        tags="extern",
        factor=8,
        ulps=64,
    )
    table.add(
        "solve",
        lambda a, b: torch.linalg.solve(a + torch.eye(4, device=a.device) * 5, b),
        lambda s: (s.t(4, 4), s.t(4, 2)),
        (F32,),
        tags="extern",
        factor=8,
        ulps=64,
    )
    table.add(
        "inverse_det",
        lambda a: (torch.linalg.inv(a + torch.eye(4, device=a.device) * 5), torch.linalg.det(a)),
        _x(4, 4),
        (F32,),
        tags="extern",
        factor=8,
        ulps=64,
    )
    table.add(
        "lstm_cell",
        lambda x, h, c, w, u: torch.lstm_cell(x, (h, c), w, u),
        lambda s: (s.t(3, 4), s.t(3, 5), s.t(3, 5), s.t(20, 4), s.t(20, 5)),
        (F32,),
        factor=4,
    )
    table.add("cdist", lambda x, y: torch.cdist(x, y), lambda s: (s.t(4, 5), s.t(3, 5)), (F32,), tags="extern", factor=8, ulps=64)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `x` [B, H, S, D] as Llama does it."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def attention_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of [B, H, S, D] from its parts."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=BOOL, device=q.device).tril()
    return F.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def attention_block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, proj: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Pre-norm self attention with residual: x [2, 6, 16], w [48, 16], proj [16, 16]."""
    y = F.layer_norm(x, (16,), g, None)
    q, k, v = F.linear(y, w, b).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + F.linear(y.transpose(1, 2).reshape(2, 6, 16), proj)


def bottleneck(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """ResNet's bottleneck with batch norms: x [2, 8, 7, 7], inner width 4."""
    y = F.relu(F.batch_norm(F.conv2d(x, w1), m[:4], v[:4]))
    y = F.relu(F.batch_norm(F.conv2d(y, w2, padding=1), m[:4], v[:4]))
    return F.relu(F.batch_norm(F.conv2d(y, w3), m, v) + x)


def _chains(table: Table) -> None:
    norm: Make = lambda s: (s.t(3, 5, 64), s.t(3, 5, 64), s.t(64), s.t(64))  # noqa: E731
    table.add(
        "chain/residual_layernorm_gelu",
        lambda x, r, w, b: F.gelu(F.layer_norm(x + r, (64,), w, b)),
        norm,
        (F32, BF16, F64),
        factor=4,
        tags="triton",
    )
    table.add(
        "chain/residual_and_norm",
        lambda x, r, w, b: (lambda h: (h, F.layer_norm(h, (64,), w, b)))(x + r),
        norm,
        (F32, BF16),
        factor=4,
        tags="triton",
    )
    table.add("chain/rmsnorm_scale", lambda x, r, w, b: F.rms_norm(x + r, (64,), w) * (1 + b), norm, (F32, BF16), factor=4, tags="triton")
    table.add(
        "chain/bias_gelu_dropout",
        lambda x, r, w, b: F.dropout(F.gelu(x + b), 0.1, training=False) * w + r,
        norm,
        (F32,),
        factor=4,
        tags="triton",
    )
    table.add("chain/adaln", lambda x, r, w, b: F.layer_norm(x, (64,)) * (1 + r[:, :1]) + r[:, 1:2], norm, (F32,), factor=4, tags="triton")
    turn: Make = lambda s: (s.t(2, 3, 7, 8), s.uniform(7, 8, low=-1, high=1), s.uniform(7, 8, low=-1, high=1))  # noqa: E731
    table.add("chain/rope", rope, turn, (F32, BF16), factor=4, tags="triton")
    table.add(
        "chain/rope_transposed",
        lambda x, c, s: rope(x.transpose(1, 2).contiguous().transpose(1, 2), c, s),
        turn,
        (F32,),
        factor=4,
        tags="triton",
    )
    swiglu: Make = lambda s: (s.t(2, 5, 16), s.t(24, 16) * 0.3, s.t(24, 16) * 0.3, s.t(16, 24) * 0.3)  # noqa: E731
    table.add("chain/swiglu", lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d), swiglu, (F32, BF16), factor=8)
    table.add("chain/swiglu_pointwise", lambda x, g, u, d: F.silu(g) * u, swiglu, (F32, F16), factor=4, tags="triton")
    qkv: Make = lambda s: (s.t(2, 3, 6, 8), s.t(2, 3, 6, 8), s.t(2, 3, 6, 8))  # noqa: E731
    table.add("chain/attention_by_hand", attention_by_hand, qkv, (F32, BF16), factor=8, ulps=64)
    table.add("sdpa", F.scaled_dot_product_attention, qkv, (F32, BF16), factor=8, ulps=64)
    table.add("sdpa/causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), qkv, (F32,), factor=8, ulps=64)
    table.add(
        "sdpa/mask",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(6, 6, device=q.device).tril().bool()),
        qkv,
        (F32,),
        factor=8,
        ulps=64,
    )
    table.add("sdpa/float_mask", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, (q @ k.mT) * 0.1), qkv, (F32,), factor=8, ulps=64)
    table.add(
        "sdpa/gqa", lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True), qkv, (F32,), factor=8, ulps=64
    )
    table.add(
        "sdpa/scale", lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :, :4], v[:, :, :4], scale=0.2), qkv, (F32,), factor=8, ulps=64
    )
    block: Make = lambda s: (s.t(2, 6, 16), s.t(48, 16) * 0.3, s.t(48), s.t(16, 16) * 0.3, s.t(16))  # noqa: E731
    table.add("chain/attention_block", attention_block, block, (F32, BF16), factor=8, ulps=64)
    res: Make = lambda s: (s.t(2, 8, 7, 7), s.t(4, 8, 1, 1), s.t(4, 4, 3, 3), s.t(8, 4, 1, 1), s.t(8), s.uniform(8, low=0.5, high=2.0))  # noqa: E731
    table.add("chain/bottleneck", bottleneck, res, (F32,), factor=8, ulps=64)
    table.add("chain/bottleneck_cl", bottleneck, lambda s: (s.channels_last(2, 8, 7, 7), *res(s)[1:]), (F32,), factor=8, ulps=64)
    table.add(
        "chain/patch_embed",
        lambda x, w, p: F.conv2d(x, w, stride=4).flatten(2).transpose(1, 2) + p,
        lambda s: (s.t(2, 3, 8, 8), s.t(16, 3, 4, 4), s.t(4, 16)),
        (F32,),
        factor=4,
    )
    table.add(
        "chain/squeeze_excite",
        lambda x, w, u: x * torch.sigmoid(F.conv2d(F.relu(F.conv2d(x.mean((2, 3), keepdim=True), w)), u)),
        lambda s: (s.t(2, 8, 5, 5), s.t(4, 8, 1, 1), s.t(8, 4, 1, 1)),
        (F32,),
        factor=8,
    )
    table.add(
        "chain/mean_pool_normalize",
        lambda h, m: F.normalize((h * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1e-9), dim=1),
        lambda s: (s.t(3, 6, 16), s.ints(3, 6, low=0, high=2).to(s.dtype)),
        (F32,),
        factor=4,
        tags="triton",
    )
    table.add(
        "chain/ssm_step",
        lambda h, a, b, x: h * torch.exp(-F.softplus(a)) + b * x.unsqueeze(-1),
        lambda s: (s.t(2, 4, 8), s.t(4, 8), s.t(4, 8), s.t(2, 4)),
        (F32, BF16),
        factor=4,
        tags="triton",
    )
    table.add(
        "chain/relative_bias",
        lambda x, w: (
            x + w[(torch.arange(6, device=w.device)[None] - torch.arange(6, device=w.device)[:, None]).clamp(-3, 3) + 3].permute(2, 0, 1)
        ),
        lambda s: (s.t(2, 3, 6, 6), s.t(7, 3)),
        (F32,),
        tags="triton",
    )
    table.add(
        "chain/concat_growth",
        lambda x, w: torch.cat([x, F.conv2d(F.relu(x), w, padding=1)], 1).relu(),
        lambda s: (s.t(1, 4, 6, 6), s.t(3, 4, 3, 3)),
        (F32,),
        factor=4,
    )
    table.add(
        "chain/token_shift",
        lambda x, m: x * m + F.pad(x, (0, 0, 1, -1)) * (1 - m),
        lambda s: (s.t(2, 5, 8), s.uniform(8, low=0, high=1)),
        (F32, F16),
        tags="triton",
        factor=4,
    )
    table.add(
        "chain/window_partition",
        lambda x: x.view(1, 2, 4, 2, 4, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 3).roll(1, 0) + 1,
        _x(1, 8, 8, 3),
        (F32,),
        tags="triton",
    )


def add_rows(table: Table) -> None:
    for part in (_pooling, _matmul, _convolution, _other_libraries, _chains):
        part(table)
