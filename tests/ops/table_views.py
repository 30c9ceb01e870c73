"""Views, joins and splits, padding, creation, indexing and scattering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.rows import BF16, BOOL, F16, F32, F64, I32, I64, U8, Make, Sampler, Table

Fn = Callable[..., Any]


def _x(*shape: int) -> Make:
    return lambda s: (s.t(*shape),)


VIEWS: list[tuple[str, Fn]] = [
    ("view", lambda x: x.view(8, 15)),
    ("reshape_copy", lambda x: x.transpose(0, 1).reshape(20, 6)),
    ("flatten", lambda x: x.flatten(1)),
    ("permute", lambda x: x.permute(2, 0, 1)),
    ("transpose", lambda x: x.transpose(0, 2)),
    ("unsqueeze", lambda x: x.unsqueeze(1)),
    ("squeeze", lambda x: x[:, :1].squeeze(1)),
    ("expand", lambda x: x[:, :1].expand(4, 3, 6)),
    ("slice", lambda x: x[1:3, ::2, 1:-1]),
    ("select", lambda x: x[:, 2]),
    ("narrow", lambda x: x.narrow(1, 1, 3)),
    ("diagonal", lambda x: x.diagonal(0, 1, 2)),
    ("diagonal_offset", lambda x: x.diagonal(-1, 0, 2)),
    ("unfold", lambda x: x.unfold(2, 3, 2)),
    ("movedim", lambda x: x.movedim(0, -1)),
    ("mT", lambda x: x.mT),
    ("as_strided", lambda x: x.as_strided((3, 4), (7, 2), 5)),
    ("unflatten", lambda x: x.unflatten(2, (2, 3))),
    ("split", lambda x: x.split(2, 1)),
    ("chunk", lambda x: x.chunk(3, 2)),
    ("unbind", lambda x: x.unbind(1)),
    ("tensor_split", lambda x: x.tensor_split((1, 4), 1)),
    ("swapaxes", lambda x: x.swapaxes(0, 1)),
    ("view_as_1d", lambda x: x.view(-1)),
    ("newaxis", lambda x: x[None, :, None, 1]),
    ("negative_select", lambda x: x[..., -1]),
    ("broadcast_to", lambda x: x[0, 0].broadcast_to(2, 6)),
]


def _views(table: Table) -> None:
    dtypes = (F32, BF16, I64, F64, BOOL, F16, U8)
    for number, (name, fn) in enumerate(VIEWS):
        table.add(f"view/{name}", fn, _x(4, 5, 6), (dtypes[number % len(dtypes)],))
        table.add(
            f"view_then/{name}",
            lambda x, fn=fn: torch.utils._pytree.tree_map(lambda v: v * 2 + 1, fn(x + 1)),
            _x(4, 5, 6),
            (F32,),
            tags="triton",
        )
    table.add("view/chain", lambda x: x.permute(1, 0, 2)[1:].flatten(0, 1)[::3].t() * 2, _x(4, 5, 6), (F32, BF16), tags="triton")
    table.add("view/heads", lambda x: x.view(2, 7, 3, 4).transpose(1, 2) * 1.5, _x(2, 7, 12), (F32,), tags="triton")
    table.add("view/merge_heads", lambda x: (x + 1).transpose(1, 2).reshape(2, 7, 12), _x(2, 3, 7, 4), (F32,), tags="triton")
    table.add("view/flip_of_slice", lambda x: x[:, 1:].flip(0, 1), _x(4, 5), (F32, I64))
    table.add("view/0d", lambda x: (x.view(1, 1), x.unsqueeze(0), x.reshape(-1) * 2), _x(), (F32,))
    table.add("view/empty", lambda x: (x.reshape(3, 0), x.t() + 1), _x(0, 3), (F32,))
    table.add("view/input_alias", lambda x: x[1:], _x(4, 5), (F32,))
    table.add("view/two_aliases", lambda x: (lambda y: (y, y.t(), y[1:]))(x * 2), _x(4, 5), (F32,))
    table.add("view/pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), _x(2, 8, 3, 3), (F32,))
    table.add("view/pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), _x(2, 2, 6, 4), (F32,))
    table.add("view/channel_shuffle", lambda x: x.view(2, 2, 3, 4, 4).transpose(1, 2).reshape(2, 6, 4, 4) + 1, _x(2, 6, 4, 4), (F32,))
    table.add("view/as_real", lambda x: torch.view_as_real(torch.complex(x, x * 2)) * 2, _x(4, 5), (F32,), tags="extern")


def _joins(table: Table) -> None:
    two: Make = lambda s: (s.t(3, 4), s.t(2, 4))  # noqa: E731
    same: Make = lambda s: (s.t(3, 4), s.t(3, 4))  # noqa: E731
    table.add("cat/0", lambda x, y: torch.cat([x, y]), two, (F32, BF16, I64, BOOL), tags="triton")
    table.add("cat/1_of_chain", lambda x, y: torch.cat([x.exp(), y * 2, x - y], 1) * 3, same, (F32, F16), tags="triton")
    table.add("cat/promote", lambda x, y: torch.cat([x, y.long()]), two, (F32,))
    table.add("cat/empty_part", lambda x, y: torch.cat([x, y[:0], y]), two, (F32,))
    table.add("cat/legacy_empty", lambda x: torch.cat([x, torch.empty(0, device=x.device)], 1), _x(3, 4), (F32,))
    table.add(
        "cat/channels_last", lambda x, y: torch.cat([x, y], 1), lambda s: (s.channels_last(2, 3, 4, 4), s.channels_last(2, 5, 4, 4)), (F32,)
    )
    table.add("cat/self", lambda x, y: torch.cat([x, x, x.flip(0)]), same, (F32,))
    table.add("cat/many", lambda x, y: torch.cat([x * i for i in range(9)], 1), same, (F32,))
    table.add("stack/0", lambda x, y: torch.stack([x, y]), same, (F32, I32))
    table.add("stack/-1", lambda x, y: torch.stack([x.sin(), x.cos(), y], -1), same, (F32, BF16), tags="triton")
    table.add("hstack_vstack", lambda x, y: (torch.hstack([x, y]), torch.vstack([x, y])), same, (F32,))
    table.add("split_cat", lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1), _x(2, 3, 8), (F32, BF16), tags="triton")
    pads: list[tuple[str, tuple[int, ...], str]] = [
        ("constant", (1, 2), "constant"),
        ("constant2", (1, 2, 0, 3), "constant"),
        ("negative", (-1, 2, 1, -1), "constant"),
        ("reflect", (2, 1, 1, 2), "reflect"),
        ("replicate", (2, 1, 0, 2), "replicate"),
        ("circular", (1, 1, 2, 0), "circular"),
    ]
    for name, widths, mode in pads:
        table.add(f"pad/{name}", lambda x, w=widths, m=mode: F.pad(x, w, m) * 2, _x(2, 3, 5, 6), (F32, BF16), tags="triton")
    table.add("pad/value", lambda x: F.pad(x, (1, 1), value=-2.5), _x(3, 4), (F32, I64))
    table.add("pad/1d_reflect", lambda x: F.pad(x, (3, 2), "reflect"), _x(2, 3, 7), (F32, F64))
    table.add("pad/3d_replicate", lambda x: F.pad(x, (1, 1, 1, 0, 0, 1), "replicate"), _x(1, 2, 3, 4, 4), (F32,))
    table.add("pad/masked_log", lambda x: F.pad(x.abs().log(), (1, 1)), _x(3, 4), (F32,))
    table.add("flip", lambda x: (x.flip(0), x.flip(1, 2), x.fliplr()), _x(3, 4, 5), (F32, U8), tags="triton")
    table.add("roll", lambda x: (x.roll(2), x.roll((1, -1), (0, 2))), _x(3, 4, 5), (F32, I64), tags="triton")
    table.add("repeat", lambda x: (x.repeat(2, 3), x.repeat(2, 1, 1)), _x(3, 4), (F32, BOOL), tags="triton")
    table.add("repeat_interleave", lambda x: x.repeat_interleave(3, 1), _x(3, 4), (F32, I64))
    table.add("tile", lambda x: x.tile(2, 2), _x(3, 4), (F32,))
    table.add("rot90", lambda x: x.rot90(1, (0, 1)), _x(3, 4), (F32,))
    for k in (-1, 0, 2):
        table.add(f"tril_triu/{k}", lambda x, k=k: (x.tril(k), x.triu(k) + 1), _x(2, 5, 6), (F32, I64), tags="triton")
    table.add("meshgrid", lambda x, y: torch.meshgrid(x[0], y[:, 0], indexing="ij"), two, (F32,))
    table.add("block_diag", lambda x, y: torch.block_diag(x, y), two, (F32,))
    table.add("diag_embed", torch.diag_embed, _x(3, 4), (F32,))
    table.add("kron", torch.kron, lambda s: (s.t(2, 3), s.t(3, 2)), (F32,))
    table.add("cartesian", lambda x, y: (x.unsqueeze(1) - y.unsqueeze(0)).abs().sum(-1), two, (F32,))


def _copysign_of_zeros(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    zeros = torch.cat([torch.zeros(2, device=x.device), -torch.zeros(3, device=x.device)])
    return x.copysign(zeros), 1 / zeros


def _creation(table: Table) -> None:
    table.add(
        "arange",
        lambda x: (torch.arange(7), torch.arange(1, 9, 2, dtype=F32), x + torch.arange(5, device=x.device)),
        _x(3, 5),
        (F32, I64),
        tags="triton",
    )
    table.add("linspace", lambda x: x + torch.linspace(0, 1, 5, device=x.device), _x(3, 5), (F32,))
    table.add(
        "full",
        lambda x: (torch.full((2, 3), 1.5), torch.full_like(x, 2), torch.ones_like(x), x.new_zeros(2, 2), torch.zeros(3, dtype=BOOL)),
        _x(3, 5),
        (F32, I64, BF16),
    )
    table.add("eye", lambda x: (torch.eye(3, 5), x @ torch.eye(5, device=x.device)), _x(3, 5), (F32,), reference="eager")
    table.add("one_hot", lambda i: F.one_hot(i, 7), lambda s: (s.ints(3, 4, low=0, high=7),), (I64,))
    table.add("scalar_tensor", lambda x: x + torch.tensor(2.5), _x(3, 5), (F32, I64, BF16))
    table.add(
        "causal_mask",
        lambda x: x.masked_fill(torch.arange(6, device=x.device)[None, :] > torch.arange(6, device=x.device)[:, None], -1e9),
        _x(2, 6, 6),
        (F32,),
        tags="triton",
    )
    table.add("tri_indices", lambda x: x[:, torch.tril_indices(4, 4)[0]], _x(3, 5), (F32,))
    table.add("constant_output", lambda x: (x, 3, None, "a", torch.zeros(2)), _x(2, 2), (F32,))
    table.add("size_arithmetic", lambda x: x.sum() / x.shape[0] + x.numel(), _x(3, 5), (F32,))
    table.add("zeros_of_two_signs", _copysign_of_zeros, _x(3, 5), (F32,), tags="triton")
    table.add("rand_like", lambda x: torch.rand_like(x), _x(3, 5), (F32,), tags="random")
    table.add("dropout/eval", lambda x: F.dropout(x, 0.5, training=False) + 1, _x(3, 5), (F32,))


def _index(s: Sampler, *shape: int, size: int) -> torch.Tensor:
    """Indices of both signs."""
    return s.ints(*shape, low=-size, high=size)


def _indexing(table: Table) -> None:
    table.add("embedding", F.embedding, lambda s: (s.ints(3, 4, low=0, high=11), s.t(11, 6)), (F32, BF16), tags="triton")
    table.add("embedding/i32", F.embedding, lambda s: (s.ints(3, 4, low=0, high=11, dtype=I32), s.t(11, 6)), (F32,), tags="triton")
    table.add(
        "embedding/sum",
        lambda i, w, p: F.embedding(i, w) * 2 + p,
        lambda s: (s.ints(3, 4, low=0, high=11), s.t(11, 6), s.t(4, 6)),
        (F32,),
        tags="triton",
    )
    table.add(
        "embedding_bag_extern",
        lambda i, w: F.embedding_bag(i, w),
        lambda s: (s.ints(3, 4, low=0, high=11), s.t(11, 6)),
        (F32,),
        tags="extern",
    )
    for dim in (0, 1, 2):
        table.add(
            f"gather/{dim}",
            lambda x, i, d=dim: x.gather(d, i),
            lambda s: (s.t(4, 4, 4), s.ints(4, 3, 2, low=0, high=4)),
            (F32, I64),
            tags="triton",
        )
        table.add(
            f"index_select/{dim}",
            lambda x, i, d=dim: x.index_select(d, i),
            lambda s: (s.t(4, 4, 4), s.ints(6, low=0, high=4)),
            (F32, BF16),
            tags="triton",
        )
    table.add("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), lambda s: (s.t(4, 5), s.ints(4, 2, low=0, high=5)), (F32,))
    table.add("take", lambda x, i: x.take(i), lambda s: (s.t(4, 5), s.ints(7, low=-20, high=20)), (F32,))
    advanced: list[tuple[str, Fn]] = [
        ("one", lambda x, i, j: x[i]),
        ("middle", lambda x, i, j: x[:, i]),
        ("pair", lambda x, i, j: x[i, j]),
        ("pair_slice", lambda x, i, j: x[i, :, j]),
        ("broadcast", lambda x, i, j: x[i[:, None], j[None, :]]),
        ("with_int", lambda x, i, j: x[1, i]),
        ("of_chain", lambda x, i, j: (x * 2 + 1)[:, i] - 1),
        ("ellipsis", lambda x, i, j: x[..., i]),
        ("none", lambda x, i, j: x[i, None, 1:]),
    ]
    for number, (name, fn) in enumerate(advanced):
        table.add(
            f"index/{name}",
            fn,
            lambda s: (s.t(5, 5, 5), _index(s, 3, size=5), _index(s, 3, size=5)),
            (F32, (BF16, I64, BOOL)[number % 3]),
            tags="triton",
        )
    table.add("index/bool_extern", lambda x, m: torch.where(m, x, 0)[1:], lambda s: (s.t(5, 4), s.t(5, 4, dtype=BOOL)), (F32,))
    table.add("index/empty", lambda x, i: x[i], lambda s: (s.t(5, 4), s.ints(0, low=0, high=5)), (F32,))
    table.add("index/0d", lambda x, i: x.index_select(0, i) + 1, lambda s: (s.t(5, 4), s.ints(low=0, high=5)), (F32,))
    put: Make = lambda s: (s.t(6, 5), s.perm(6)[:3], s.t(3, 5))  # noqa: E731
    table.add("index_put", lambda x, i, v: x.index_put((i,), v), put, (F32, I64, BF16))
    table.add("index_put/accumulate", lambda x, i, v: x.index_put((i % 2,), v, accumulate=True), put, (F32, I64), ulps=32)
    table.add("index_put/scalar", lambda x, i, v: x.index_put((i,), torch.tensor(3.0)), put, (F32,), reference="eager")
    table.add("index_put/inplace", lambda x, i, v: (x.__setitem__((i, slice(1, 3)), v[:, 1:3]), x * 2)[1], put, (F32,), tags="mutates")
    table.add("index_put/mask", lambda x, i, v: x.index_put((x > 0,), torch.tensor(0.0)), put, (F32,))
    table.add("index_add", lambda x, i, v: x.index_add(0, i % 2, v, alpha=2), put, (F32, I64), ulps=32)
    table.add("index_copy", lambda x, i, v: x.index_copy(0, i, v), put, (F32,))
    table.add("index_fill", lambda x, i, v: x.index_fill(1, i % 5, -2.0), put, (F32,))
    scatter: Make = lambda s: (s.t(4, 6), torch.stack([s.perm(6)[:3] for _ in range(4)]), s.t(4, 3))  # noqa: E731
    table.add("scatter", lambda x, i, v: x.scatter(1, i, v), scatter, (F32, I64, BF16))
    table.add("scatter/value", lambda x, i, v: x.scatter(1, i, 2.5), scatter, (F32,))
    table.add("scatter_add", lambda x, i, v: x.scatter_add(1, i % 2, v), scatter, (F32, I64), ulps=32)
    for kind in ("sum", "prod", "amax", "amin", "mean"):
        table.add(
            f"scatter_reduce/{kind}", lambda x, i, v, k=kind: x.scatter_reduce(1, i % 3, v, k, include_self=True), scatter, (F32,), ulps=32
        )
    table.add("scatter_reduce/no_self", lambda x, i, v: x.scatter_reduce(1, i % 3, v, "sum", include_self=False), scatter, (F32,), ulps=32)
    table.add("masked_scatter_extern", lambda x, i, v: x.masked_scatter(x > 0, x.flip(0).contiguous()), scatter, (F32,), tags="extern")
    table.add("slice_scatter", lambda x, v: x.slice_scatter(v, 1, 1, 5, 2), lambda s: (s.t(4, 6), s.t(4, 2)), (F32, I64), tags="triton")
    table.add("select_scatter", lambda x, v: x.select_scatter(v, 0, 2), lambda s: (s.t(4, 6), s.t(6)), (F32, BF16), tags="triton")
    table.add("diagonal_scatter", lambda x, v: x.diagonal_scatter(v), lambda s: (s.t(4, 6), s.t(4)), (F32,))
    table.add(
        "as_strided_scatter",
        lambda x, v: x.as_strided_scatter(v, (2, 3), (6, 2), 1),
        lambda s: (s.t(4, 6), s.t(2, 3)),
        (F32,),
        tags="extern",
    )
    table.add(
        "setitem_slice",
        lambda x, v: (x.__setitem__((slice(None), slice(1, 3)), v), x)[1] * 2,
        lambda s: (s.t(4, 6), s.t(4, 2)),
        (F32,),
        tags="mutates",
    )
    table.add(
        "kv_cache_update",
        lambda c, p, v: c.index_copy_(1, p, v).sum(1),
        lambda s: (s.t(2, 8, 3), s.perm(8)[:2], s.t(2, 2, 3)),
        (F32,),
        tags="mutates",
    )
    table.add("searchsorted_extern", torch.searchsorted, lambda s: (s.t(9).sort().values, s.t(3, 4)), (F32,), tags="extern")
    table.add("bucketize", lambda x, b: torch.bucketize(x, b), lambda s: (s.t(3, 4), s.t(9).sort().values), (F32,), tags="extern")
    table.add("isin", lambda x, y: torch.isin(x, y), lambda s: (s.ints(3, 4, low=0, high=9), s.ints(4, low=0, high=9)), (I64,))
    table.add("histc_extern", lambda x: torch.histc(x, 5, -2, 2), _x(50), (F32,), tags="extern")


def add_rows(table: Table) -> None:
    for part in (_views, _joins, _creation, _indexing):
        part(table)
