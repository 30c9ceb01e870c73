"""Whole programs that nobody tuned for, which benchmarks/archetypes.py times: one small, plain module for each kind of network, at the
sizes in which such networks are used. A CPU gets narrower ones, which take a tenth of a second or so.

Image generators have a file of their own: generator_rows.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Archetype:
    """`make(small)` gives a module and its inputs, on the default device and in the default dtype; `small`: in the sizes of a CPU.
    `dtype`: the default dtype on a GPU; a CPU's is float32.
    """

    name: str
    title: str
    make: Callable[[bool], tuple[nn.Module, Inputs]]
    dtype: torch.dtype = torch.bfloat16

    def built(self, device: str) -> tuple[nn.Module, Inputs]:
        """The module in eval mode, with seeded weights and norms as if they had been trained, and the inputs."""
        before = torch.get_default_dtype()
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32 if device == "cpu" else self.dtype)
        try:
            with torch.device(device), torch.no_grad():
                module, inputs = self.make(device == "cpu")
                for part in module.modules():
                    if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and part.running_mean is not None:
                        assert part.running_var is not None
                        part.running_mean.normal_(0, 0.1)
                        part.running_var.uniform_(0.7, 1.4)
        finally:
            torch.set_default_dtype(before)
        return module.eval().requires_grad_(False), inputs


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, channels) as (batch, heads, tokens, channels of a head)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def conv_norm_act(inner: int, outer: int, size: int = 3, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer), nn.SiLU())


# -- detection: a one-stage detector with a split backbone, a pyramid of features, and the best boxes of all levels
class Split(nn.Module):
    """Half of the channels go through bottlenecks, and each of their results into the join."""

    def __init__(self, inner: int, outer: int, depth: int) -> None:
        super().__init__()
        half = outer // 2
        self.first, self.last = conv_norm_act(inner, outer, 1), conv_norm_act((2 + depth) * half, outer, 1)
        self.blocks = nn.ModuleList(nn.Sequential(conv_norm_act(half, half), conv_norm_act(half, half)) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, dim=1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, dim=1))


class Detector(nn.Module):
    def __init__(self, width: int, classes: int = 80, best: int = 300) -> None:
        super().__init__()
        w, self.best = [width, 2 * width, 4 * width, 8 * width], best
        self.stem = nn.Sequential(conv_norm_act(3, width // 2, 3, 2), conv_norm_act(width // 2, width, 3, 2), Split(width, width, 1))
        self.stages = nn.ModuleList(nn.Sequential(conv_norm_act(a, b, 3, 2), Split(b, b, 2)) for a, b in zip(w, w[1:], strict=False))
        self.pool = conv_norm_act(4 * w[3], w[3], 1)
        self.up = nn.ModuleList([Split(w[3] + w[2], w[2], 1), Split(w[2] + w[1], w[1], 1)])
        self.heads = nn.ModuleList(nn.Sequential(conv_norm_act(c, w[1]), nn.Conv2d(w[1], 4 + classes, 1)) for c in w[1:])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, levels = self.stem(x), []
        for stage in self.stages:
            levels.append(x := stage(x))
        pooled = [levels[2]]
        for _ in range(3):
            pooled.append(F.max_pool2d(pooled[-1], 5, 1, 2))
        levels[2] = self.pool(torch.cat(pooled, dim=1))
        levels[1] = self.up[0](torch.cat([F.interpolate(levels[2], scale_factor=2.0), levels[1]], dim=1))
        levels[0] = self.up[1](torch.cat([F.interpolate(levels[1], scale_factor=2.0), levels[0]], dim=1))
        found = torch.cat([head(level).flatten(2) for head, level in zip(self.heads, levels, strict=True)], dim=2).transpose(1, 2)
        boxes, scores = found[..., :4].float().exp().clamp(max=1e3), found[..., 4:].float().sigmoid()
        value, at = scores.amax(-1).topk(self.best)
        return value, boxes.gather(1, at[..., None].expand(-1, -1, 4)).sum(1)


# -- segmentation: an encoder and a decoder with skips, resampled bilinearly
class Segmenter(nn.Module):
    def __init__(self, width: int, depth: int = 4, classes: int = 19) -> None:
        super().__init__()
        w = [width * 2**n for n in range(depth + 1)]
        self.down = nn.ModuleList(self._double(a, b) for a, b in zip([3, *w], w, strict=False))
        self.up = nn.ModuleList(self._double(a + b, b) for a, b in zip(w[:0:-1], w[-2::-1], strict=True))
        self.out = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _double(inner: int, outer: int) -> nn.Module:
        def one(a: int) -> list[nn.Module]:
            return [nn.Conv2d(a, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]

        return nn.Sequential(*one(inner), *one(outer))

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for n, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if n else x)
            kept.append(x)
        for block, skip in zip(self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([skip, F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)], dim=1))
        return self.out(x).float().log_softmax(1)


# -- speech: a conformer over a log-mel spectrogram
class Conformer(nn.Module):
    def __init__(self, width: int, heads: int, kernel: int = 31) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.before, self.after = (nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(2))
        self.attention = SelfAttention(width, heads)
        self.spread, self.join = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise, self.norm = nn.Conv1d(width, width, kernel, 1, kernel // 2, groups=width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(self.norms[0](x))
        x = x + self.attention(self.norms[1](x))
        wide = F.glu(self.spread(self.norms[2](x).transpose(1, 2)), dim=1)
        x = x + self.join(F.silu(self.norm(self.depthwise(wide)))).transpose(1, 2)
        x = x + 0.5 * self.after(self.norms[3](x))
        return self.norms[4](x)


class Speech(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, mels: int = 80, tokens: int = 1024) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1, groups=width), nn.ReLU())
        self.enter = nn.Linear(width * mels // 4, width)
        self.layers = nn.ModuleList(Conformer(width, heads) for _ in range(layers))
        self.leave = nn.Linear(width, tokens)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.enter(self.stem(mel[:, None]).permute(0, 2, 1, 3).flatten(2))
        for layer in self.layers:
            x = layer(x)
        return self.leave(x).float().log_softmax(-1)


# -- recommendation: large tables, bags of several entries, products of all pairs, and two perceptrons
class Recommender(nn.Module):
    def __init__(self, tables: int, rows: int, width: int, dense: int = 13) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        below = self.bottom(dense)
        bags = [table(entries) for table, entries in zip(self.tables, sparse.unbind(1), strict=True)]
        every = torch.stack([below, *bags], dim=1)
        products = torch.bmm(every, every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([below, products], dim=1)).sigmoid()


# -- state space: blocks whose recurrence is computed in chunks, products within a chunk and a short scan over chunks
class StateSpace(nn.Module):
    def __init__(self, width: int, state: int = 64, head: int = 64, chunk: int = 64) -> None:
        super().__init__()
        inner = 2 * width
        self.inner, self.state, self.heads, self.chunk = inner, state, inner // head, chunk
        self.norm, self.gate_norm = nn.RMSNorm(width), nn.RMSNorm(inner)
        self.enter = nn.Linear(width, 2 * inner + 2 * state + self.heads, bias=False)
        self.conv = nn.Conv1d(inner + 2 * state, inner + 2 * state, 4, groups=inner + 2 * state, padding=3)
        self.rate, self.skip, self.bias = (nn.Parameter(torch.zeros(self.heads)) for _ in range(3))
        self.leave = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        z, xbc, dt = self.enter(self.norm(x)).split([self.inner, self.inner + 2 * self.state, self.heads], dim=-1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        u, b, c = xbc.split([self.inner, self.state, self.state], dim=-1)
        dt = F.softplus(dt.float() + self.bias.float())
        u = u.unflatten(-1, (self.heads, -1))
        y = self._recurrence(u * dt[..., None].to(u.dtype), -dt * self.rate.float().exp(), b, c)
        y = y + u * self.skip[:, None]
        return x + self.leave(self.gate_norm(y.flatten(2) * F.silu(z)))

    def _recurrence(self, u: Tensor, decay: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """s[t] = exp(decay[t]) s[t-1] + b[t] u[t], and c[t] s[t] as the result."""
        u, decay, b, c = (t.unflatten(1, (-1, self.chunk)) for t in (u, decay, b, c))
        total = decay.cumsum(2)
        within = total[:, :, :, None] - total[:, :, None]
        lower = torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=u.device).tril()
        within = within.masked_fill(~lower[..., None], -torch.inf).exp().to(u.dtype)
        near = torch.einsum("nkls,nklsh,nkshp->nklhp", torch.einsum("nkld,nksd->nkls", c, b), within, u)
        ends = (total[:, :, -1:] - total).exp().to(u.dtype)
        states = torch.einsum("nksd,nksh,nkshp->nkhdp", b, ends, u)
        across = total[:, :, -1].cumsum(1)
        older = across[:, :, None] - across[:, None]
        chunks = torch.ones(older.shape[1], older.shape[1], dtype=torch.bool, device=u.device).tril()
        older = older.masked_fill(~chunks[..., None], -torch.inf).exp().to(u.dtype)
        carried = torch.einsum("nkjh,njhdp->nkhdp", older, states)
        carried = F.pad(carried[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
        far = torch.einsum("nkld,nkhdp,nklh->nklhp", c, carried, total.exp().to(u.dtype))
        return (near + far).flatten(1, 2)


# -- a decoder with grouped heads, rotations and a window; of dense or of routed perceptrons
def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class WindowAttention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, window: int) -> None:
        super().__init__()
        self.heads, self.groups, self.window, self.head = heads, groups, window, width // heads
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.head, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1], device=x.device)
        angle = at[:, None] * 1e4 ** (-torch.arange(0, self.head, 2, device=x.device) / self.head)
        cos, sin = (torch.cat([t, t], dim=-1).to(x.dtype) for t in (angle.cos(), angle.sin()))
        k, v = (heads_of(t, self.groups) for t in self.kv(x).chunk(2, dim=-1))
        q, k = rotated(heads_of(self.q(x), self.heads), cos, sin), rotated(k, cos, sin)
        back = at[:, None] - at
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, (back >= 0) & (back < self.window)).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """Each token goes to the best two experts, as far as these have room; what finds none goes on as it was."""

    def __init__(self, width: int, inner: int, experts: int = 8, best: int = 2) -> None:
        super().__init__()
        self.experts, self.best, self.route = experts, best, nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * inner) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, inner, width) / math.sqrt(inner))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        room = tokens.shape[0] * self.best * 5 // (4 * self.experts)
        weight, expert = self.route(tokens).float().softmax(-1).topk(self.best)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        chosen = F.one_hot(expert.flatten(), self.experts)
        place = (chosen.cumsum(0) * chosen).sum(-1) - 1
        at = torch.where(place < room, expert.flatten() * room + place, self.experts * room)
        given = tokens.repeat_interleave(self.best, dim=0)
        held = tokens.new_zeros(self.experts * room + 1, tokens.shape[1]).index_copy(0, at, given)
        gate, up = torch.bmm(held[:-1].unflatten(0, (self.experts, room)), self.up).chunk(2, dim=-1)
        made = torch.bmm(F.silu(gate) * up, self.down).flatten(0, 1)
        made = torch.cat([made, made.new_zeros(1, made.shape[1])])
        return (made[at].unflatten(0, (-1, self.best)) * weight[..., None]).sum(1).view_as(x)


class Decoder(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, groups: int, window: int, perceptron: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(32000, width), nn.RMSNorm(width)
        parts = [
            nn.ModuleList([nn.RMSNorm(width), WindowAttention(width, heads, groups, window), nn.RMSNorm(width), perceptron()])
            for _ in range(layers)
        ]
        self.layers, self.leave = nn.ModuleList(parts), nn.Linear(width, 32000, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for norm, attention, second, perceptron in self.layers:
            x = x + attention(norm(x))
            x = x + perceptron(second(x))
        return self.leave(self.norm(x)[:, -1])


# -- recurrent: two layers of gated units over a sequence, step by step, and a vocabulary
class Recurrent(nn.Module):
    def __init__(self, width: int, tokens: int, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.cells = nn.Embedding(tokens, width), nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        self.leave = nn.Linear(width, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        steps = self.embed(ids).unbind(1)
        for cell in self.cells:
            h = c = torch.zeros_like(steps[0])
            done = []
            for x in steps:
                h, c = cell(x, (h, c))
                done.append(h)
            steps = tuple(done)
        return self.leave(torch.stack(steps, dim=1)).float().log_softmax(-1)


# -- point clouds: graphs of nearest neighbours, edges through a perceptron, the largest of each neighbourhood
class PointCloud(nn.Module):
    def __init__(self, widths: tuple[int, ...], neighbours: int = 20, classes: int = 40) -> None:
        super().__init__()
        self.neighbours = neighbours
        pairs = zip((3, *widths[:-1]), widths, strict=True)
        self.edges = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)) for a, b in pairs
        )
        self.join = nn.Sequential(nn.Conv1d(sum(widths), 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2))
        self.out = nn.Sequential(nn.Linear(2048, 512), nn.LeakyReLU(0.2), nn.Linear(512, classes))

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for edge in self.edges:
            points = x.transpose(1, 2)
            square = (points * points).sum(-1)
            near = (2 * points @ x - square[:, None] - square[..., None]).topk(self.neighbours).indices
            around = points.gather(1, near.flatten(1)[..., None].expand(-1, -1, points.shape[-1])).unflatten(1, near.shape[1:])
            centre = points[:, :, None].expand_as(around)
            x = edge(torch.cat([around - centre, centre], dim=-1).permute(0, 3, 1, 2)).amax(-1)
            kept.append(x)
        x = self.join(torch.cat(kept, dim=1))
        return self.out(torch.cat([x.amax(-1), x.mean(-1)], dim=1))


# -- tabular: each column is a token, of numbers by a vector of their own, of categories by a table
class Tabular(nn.Module):
    def __init__(self, numbers: int, categories: int, width: int, layers: int, heads: int = 8) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(numbers, width)) for _ in range(2))
        self.first, self.table = nn.Parameter(torch.randn(1, 1, width)), nn.Embedding(categories * 100, width)
        self.register_buffer("offset", torch.arange(categories) * 100, persistent=False)
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(width), SelfAttention(width, heads), nn.LayerNorm(width), Gated(width, 4 * width // 3 // 8 * 8)])
            for _ in range(layers)
        )
        self.out = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        values = numbers[..., None] * self.scale + self.shift
        x = torch.cat([self.first.expand(len(numbers), -1, -1), values, self.table(categories + self.offset)], dim=1)
        for norm, attention, second, perceptron in self.layers:
            x = x + attention(norm(x))
            x = x + perceptron(second(x))
        return self.out(x[:, 0])


def _sequence(small: bool, cpu: tuple[int, int], gpu: tuple[int, int], high: int = 32000) -> Tensor:
    return torch.randint(0, high, cpu if small else gpu)


def _detection(small: bool) -> tuple[nn.Module, Inputs]:
    return Detector(16 if small else 64), (torch.randn((1, 3, 256, 256) if small else (16, 3, 640, 640)),)


def _segmentation(small: bool) -> tuple[nn.Module, Inputs]:
    return Segmenter(16 if small else 64), (torch.randn((1, 3, 128, 128) if small else (8, 3, 512, 512)),)


def _speech(small: bool) -> tuple[nn.Module, Inputs]:
    return Speech(*((144, 4, 4) if small else (512, 16, 8))), (torch.randn((1, 400, 80) if small else (8, 1600, 80)),)


def _recommendation(small: bool) -> tuple[nn.Module, Inputs]:
    tables, rows, width, batch = (8, 50_000, 32, 512) if small else (26, 400_000, 128, 8192)
    return Recommender(tables, rows, width), (torch.rand(batch, 13), torch.randint(0, rows, (batch, tables, 4)))


def _state_space(small: bool) -> tuple[nn.Module, Inputs]:
    width, layers, batch, length = (192, 2, 1, 256) if small else (1024, 12, 4, 2048)
    return nn.Sequential(*(StateSpace(width) for _ in range(layers))), (torch.randn(batch, length, width),)


def _experts(small: bool) -> tuple[nn.Module, Inputs]:
    width, layers = (192, 2) if small else (1024, 8)
    return Decoder(width, layers, width // 64, 4 if not small else 1, 1 << 20, lambda: Experts(width, 2 * width)), (
        _sequence(small, (1, 128), (4, 1024)),
    )


def _window(small: bool) -> tuple[nn.Module, Inputs]:
    width, layers = (256, 2) if small else (2048, 12)
    return Decoder(width, layers, width // 64, width // 256, 64 if small else 512, lambda: Gated(width, 3 * width)), (
        _sequence(small, (1, 192), (1, 4096)),
    )


def _recurrent(small: bool) -> tuple[nn.Module, Inputs]:
    width, tokens = (128, 500) if small else (1024, 10_000)
    return Recurrent(width, tokens), (_sequence(small, (8, 12), (64, 32), tokens),)


def _point_cloud(small: bool) -> tuple[nn.Module, Inputs]:
    return PointCloud((16, 16, 32) if small else (64, 64, 128, 256)), (torch.randn((1, 3, 256) if small else (16, 3, 1024)),)


def _tabular(small: bool) -> tuple[nn.Module, Inputs]:
    width, layers, batch = (64, 2, 128) if small else (192, 3, 4096)
    return Tabular(20, 12, width, layers), (torch.randn(batch, 20), torch.randint(0, 100, (batch, 12)))


ROWS = {
    row.name: row
    for row in (
        Archetype("detection", "one-stage detector 16x640²", _detection, torch.float16),
        Archetype("segmentation", "encoder and decoder with skips 8x512²", _segmentation, torch.float16),
        Archetype("speech", "conformer 16x512, 8x1600 frames", _speech),
        Archetype("recommendation", "26 tables of 400,000x128, bags of 4, batch 8192", _recommendation, torch.float32),
        Archetype("state space", "state-space blocks 12x1024, 4x2048", _state_space),
        Archetype("experts", "decoder 8x1024 with the best 2 of 8 experts, 4x1024", _experts),
        Archetype("sliding window", "decoder 12x2048 with a window of 512, 1x4096", _window),
        Archetype("recurrent", "LSTM cells 2x1024, 64x32", _recurrent),
        Archetype("point clouds", "edges to 20 neighbours, 16x1024 points", _point_cloud, torch.float32),
        Archetype("tabular", "a token a column, 3x192, batch 4096", _tabular),
    )
}
