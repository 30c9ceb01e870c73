"""The programs of the corpus. Each row says what is compiled, for which calls, with which options, for which targets.

A row stays as it is once it is recorded: new ground is a new row. Values do not matter, sizes and dtypes do: nothing here is run, but for
the programs with graph breaks, whose continuation depends on values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CPUS = ("cpu:x86-64-v3", "cpu:x86-64-v4")
GPUS = ("cuda:sm_80", "cuda:sm_90")
BOTH = (*CPUS, *GPUS)
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """`make`: the program and its calls. `runs`: the calls are run, so that what follows a graph break is compiled as well."""

    name: str
    make: Callable[[], tuple[Any, Sequence[Call]]]
    targets: tuple[str, ...] = BOTH
    options: Mapping[str, Any] = field(default_factory=dict)
    runs: bool = False


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def pointwise(x: torch.Tensor, y: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return torch.where(x > 0, F.gelu(x * scale), y.exp().clamp(max=4.0)).to(torch.float16)


def reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(-1), x.softmax(0), x.var(1, correction=0), x.argmax(-1), x.amax((0, 1)), x.cumsum(1)


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.t()[1:], x.flip(0) + x, torch.cat([x, x * 2], 1)[:, ::2], x.reshape(-1)[3:7], F.pad(x, (1, 2), value=1.0)


def gathers(table: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.embedding(ids, table) * 3, table[ids.flatten()[:4]], table.gather(1, ids.abs().clamp(0, 3)[: table.shape[0]]), table[2]


def scatters(x: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.index_add(0, ids, values), x.scatter(0, ids[:, None].expand_as(values), values)


def writes(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache[1:3] = x
    cache.mul_(2)
    return cache.sum() + x


def draws(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.25, training=True) + torch.rand_like(x)


def integers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x // y, x % y, x << 2, (x ^ y).to(torch.uint8), torch.bitwise_not(x) & 0xFF


def products(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(torch.addmm(b, x, a)) @ a.t() + torch.bmm(x[None], a[None])[0].sum()


def pooled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.interpolate(x, scale_factor=2.0, mode="bilinear")


def varying(x: torch.Tensor, n: int) -> torch.Tensor:
    return (x.reshape(n, -1) * n).softmax(-1).sum(0)


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos() * 2, (x,))


def broken(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    y = x / (x.abs() + 1)
    log.append(x.shape[0])
    if y.sum() < 0:
        y = -y
    return y * 2


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.norm(self.linear(x)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.inner, self.point = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.stem(x)))
        return F.adaptive_avg_pool2d(self.point(F.relu(self.inner(x)) + x), 1).flatten(1)


class Cached(nn.Module):
    """One step of decoding: a buffer is written, and an object of the call's is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(8, 16))
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        self.kept[state["at"]] = self.linear(x)
        state["at"] += 1
        return self.kept.mean(0)


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def model(module: nn.Module, *calls: Call) -> tuple[nn.Module, Sequence[Call]]:
    return module.eval(), calls


ones = torch.ones
ROWS = (
    Row("pointwise", lambda: (pointwise, [call(ones(8, 32), ones(32))])),
    Row("pointwise bfloat16", lambda: (pointwise, [call(ones(8, 33, dtype=torch.bfloat16), ones(33, dtype=torch.bfloat16), scale=0.5)])),
    Row("reductions", lambda: (reductions, [call(ones(6, 100))])),
    Row("reductions half", lambda: (reductions, [call(ones(6, 100, dtype=torch.float16))])),
    Row("views", lambda: (views, [call(ones(5, 7))])),
    Row("gathers", lambda: (gathers, [call(ones(9, 4), ids(2, 4))])),
    Row("scatters", lambda: (scatters, [call(ones(9, 4), ids(5), ones(5, 4))])),
    Row("writes", lambda: (writes, [call(ones(5, 4), ones(2, 4))])),
    Row("random numbers", lambda: (draws, [call(ones(64))])),
    Row("integers", lambda: (integers, [call(ids(12), ids(12))])),
    Row("products", lambda: (products, [call(ones(4, 16), ones(16, 8), ones(8))])),
    Row("products half", lambda: (products, [call(*(ones(s, dtype=torch.bfloat16) for s in ((4, 16), (16, 8), (8,))))])),
    Row("pooling", lambda: (pooled, [call(ones(1, 3, 9, 9))])),
    Row("sizes that vary", lambda: (varying, [call(ones(24), 3), call(ones(40), 5)])),
    Row("control flow", lambda: (branches, [call(ones(6))]), CPUS),
    Row("graph breaks", lambda: (broken, [call(ones(6), [])]), ("cpu:x86-64-v3",), runs=True),
    Row("norm", lambda: model(Normed(), call(ones(4, 64)))),
    Row("norm, all sizes symbolic", lambda: model(Normed(), call(ones(4, 64))), options={"dynamic": True}),
    Row("attention", lambda: model(Attention(), call(ones(2, 16, 64)))),
    Row(
        "attention half, frozen",
        lambda: model(Attention().bfloat16(), call(ones(2, 16, 64, dtype=torch.bfloat16))),
        options={"freeze": True},
    ),
    Row("convolutions", lambda: model(Convolutions(), call(ones(2, 3, 32, 32)))),
    Row("convolutions, frozen", lambda: model(Convolutions(), call(ones(2, 3, 32, 32))), options={"freeze": True}),
    Row("state", lambda: model(Cached(), call(ones(16), {"at": 2}))),
)
