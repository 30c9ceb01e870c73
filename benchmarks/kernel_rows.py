"""Small programs in families, which benchmarks/kernels.py times: one or a few operators each, at sizes of a CPU and of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class KernelRow:
    """`make(device)` gives the program and its inputs. `train`: with the gradients of all inputs and parameters that take some.
    `moved`: bytes that it has to read and write at least, where that is less than all of its inputs and results.
    """

    family: str
    name: str
    make: Callable[[str], tuple[Callable[..., Any], tuple[Any, ...]]]
    train: bool = False
    moved: Callable[[Sequence[Any], Sequence[Tensor]], int] | None = None

    @property
    def label(self) -> str:
        return f"{self.family}/{self.name}"


ROWS: dict[str, KernelRow] = {}


def row(
    family: str,
    name: str,
    program: Callable[..., Any],
    cpu: Sequence[Sizes],
    gpu: Sequence[Sizes],
    *,
    dtype: torch.dtype = torch.float32,
    extra: Callable[[str], tuple[Any, ...]] = lambda device: (),
    train: bool = False,
    moved: Callable[[Sequence[Any], Sequence[Tensor]], int] | None = None,
) -> None:
    """A program of random tensors of these sizes, then of what `extra` gives."""

    def make(device: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        sizes = cpu if device == "cpu" else gpu
        tensors = tuple(torch.randn(size, device=device, dtype=dtype) for size in sizes)
        return program, (*tensors, *extra(device))

    ROWS[f"{family}/{name}"] = KernelRow(family, name, make, train, moved)


def layer(
    family: str, name: str, module: Callable[[], nn.Module], cpu: Sizes, gpu: Sizes, *, half: bool = False, train: bool = False
) -> None:
    """A module in eval mode (in training mode with `train`) and one input; `half`: in bfloat16 on a GPU."""

    def make(device: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        dtype = torch.bfloat16 if half and device != "cpu" else torch.float32
        with torch.device(device):
            made = module().train(train)
        if dtype != torch.float32:
            made = made.to(dtype)
        return made, (torch.randn(cpu if device == "cpu" else gpu, device=device, dtype=dtype),)

    ROWS[f"{family}/{name}"] = KernelRow(family, name, make, train)


def _integers(high: int, cpu: Sizes, gpu: Sizes) -> Callable[[str], tuple[Any, ...]]:
    return lambda device: (torch.randint(0, high, cpu if device == "cpu" else gpu, device=device),)


# -- pointwise
row("pointwise", "add", lambda a, b: a + b, [(2048, 2048)] * 2, [(8192, 8192)] * 2)
row("pointwise", "gelu tanh sigmoid", lambda a: torch.sigmoid(torch.tanh(F.gelu(a))), [(2048, 1024)], [(8192, 8192)])
row(
    "pointwise",
    "row and column broadcast",
    lambda a, b, c: (a + b) * c,
    [(2048, 2048), (2048,), (2048, 1)],
    [(8192, 8192), (8192,), (8192, 1)],
)
row("pointwise", "transposed input", lambda a, b: a.t() + b, [(2048, 2048)] * 2, [(8192, 8192)] * 2)
row("pointwise", "gelu of a transpose", lambda a: F.gelu(a.t()).contiguous(), [(2048, 2048)], [(8192, 8192)])
row("pointwise", "permute 0231", lambda a: (a.permute(0, 2, 3, 1) * 2).contiguous(), [(8, 64, 112, 112)], [(64, 64, 112, 112)])
row("pointwise", "permute heads", lambda a: (a.transpose(1, 2) + 1).contiguous(), [(8, 128, 12, 64)], [(64, 512, 16, 64)])
row("pointwise", "where and clamp", lambda a, b: torch.where(a > 0, a.clamp(max=1), b * 0.5), [(2048, 2048)] * 2, [(8192, 8192)] * 2)
row("pointwise", "pow and log", lambda a: (a.abs() + 1).pow(1.7).log1p(), [(2048, 1024)], [(8192, 8192)])
row("pointwise", "complex phases", lambda a, b: a * b.cos() - b * a.sin(), [(2048, 1024)] * 2, [(8192, 4096)] * 2)
row("pointwise", "many small rows", lambda a, b: (a * b).relu(), [(262144, 3), (3,)], [(4194304, 3), (3,)])
row("pointwise", "strided slice", lambda a: a[:, ::2] * a[:, 1::2], [(2048, 4096)], [(8192, 8192)])
row("pointwise", "gated", lambda a: F.silu(a.chunk(2, -1)[0]) * a.chunk(2, -1)[1], [(1024, 8192)], [(8192, 8192)], dtype=torch.float32)
row(
    "pointwise",
    "rotary",
    lambda q, c, s: q * c + torch.cat([-q[..., 32:], q[..., :32]], -1) * s,
    [(8, 12, 256, 64), (256, 64), (256, 64)],
    [(8, 32, 2048, 64), (2048, 64), (2048, 64)],
)

# -- casts
row("casts", "float to bfloat16", lambda a: a.bfloat16(), [(2048, 2048)], [(8192, 8192)])
row("casts", "bfloat16 to float, scaled", lambda a: a.float() * 0.5, [(2048, 2048)], [(8192, 8192)], dtype=torch.bfloat16)
row(
    "casts",
    "to int8 by rows",
    lambda a: (a * (127 / a.abs().amax(-1, True))).round().clamp(-128, 127).to(torch.int8),
    [(2048, 2048)],
    [(8192, 8192)],
)
row("casts", "bfloat16 gelu", lambda a: F.gelu(a), [(2048, 2048)], [(8192, 8192)], dtype=torch.bfloat16)
row(
    "casts",
    "half to uint8 image",
    lambda a: ((a * 0.5 + 0.5).clamp(0, 1) * 255).to(torch.uint8),
    [(8, 3, 512, 512)],
    [(64, 3, 1024, 1024)],
    dtype=torch.float16,
)

# -- reductions
row("reductions", "few long rows", lambda a: a.sum(-1), [(4, 1 << 20)], [(4, 1 << 24)])
row("reductions", "many short rows", lambda a: a.sum(-1), [(1 << 18, 16)], [(1 << 22, 16)])
row("reductions", "rows of a thousand", lambda a: (a * a).sum(-1), [(4096, 1024)], [(65536, 1024)])
row("reductions", "columns", lambda a: a.sum(0), [(65536, 64)], [(1 << 20, 64)])
row("reductions", "wide columns", lambda a: a.sum(0) * 2, [(4096, 1024)], [(65536, 1024)])
row("reductions", "everything", lambda a: a.square().sum(), [(1 << 22,)], [(1 << 27,)])
row("reductions", "outer and inner axes", lambda a: a.sum((0, 2)), [(64, 64, 1024)], [(256, 256, 1024)])
row("reductions", "middle axis", lambda a: a.amax(1), [(64, 64, 1024)], [(256, 256, 1024)])
row("reductions", "channels of images", lambda a: a.mean((0, 2, 3)), [(16, 64, 56, 56)], [(128, 256, 56, 56)])
row("reductions", "global average", lambda a: a.mean((2, 3)), [(16, 256, 28, 28)], [(256, 1024, 28, 28)])
row("reductions", "nested", lambda a: a.exp().sum(-1).amax(-1).log(), [(64, 64, 1024)], [(256, 256, 1024)])
row("reductions", "argmax", lambda a: a.argmax(-1), [(4096, 1024)], [(65536, 1024)])
row("reductions", "norms of rows", lambda a: a.norm(dim=-1), [(4096, 1024)], [(65536, 1024)])
row("reductions", "any and all", lambda a: ((a > 3).any(-1), (a > -9).all(-1)), [(4096, 1024)], [(65536, 1024)])
row("reductions", "logsumexp of columns", lambda a: a.logsumexp(0), [(4096, 1024)], [(65536, 1024)])
row("reductions", "mean of bfloat16", lambda a: a.mean(-1), [(4096, 1024)], [(65536, 1024)], dtype=torch.bfloat16)

# -- norms
for _name, _cpu, _gpu in (("768", (4096, 768), (65536, 768)), ("4096", (512, 4096), (16384, 4096)), ("64", (65536, 64), (1 << 20, 64))):
    layer("norms", f"layer norm of {_name}", lambda n=int(_name): nn.LayerNorm(n), _cpu, _gpu)
    layer("norms", f"layer norm of {_name}, training", lambda n=int(_name): nn.LayerNorm(n), _cpu, _gpu, train=True)
layer("norms", "layer norm of images", lambda: nn.LayerNorm((64, 128, 128)), (4, 64, 128, 128), (16, 64, 128, 128))
row(
    "norms",
    "RMS norm",
    lambda a, w: a * torch.rsqrt(a.square().mean(-1, True) + 1e-6) * w,
    [(2048, 4096), (4096,)],
    [(16384, 4096), (4096,)],
)
layer("norms", "group norm", lambda: nn.GroupNorm(32, 256), (8, 256, 32, 32), (64, 256, 64, 64))
layer("norms", "group norm, training", lambda: nn.GroupNorm(32, 256), (8, 256, 32, 32), (64, 256, 64, 64), train=True)
layer("norms", "instance norm", lambda: nn.InstanceNorm2d(64), (8, 64, 64, 64), (32, 64, 256, 256))
layer("norms", "batch norm", lambda: nn.Sequential(nn.BatchNorm2d(64), nn.ReLU()), (16, 64, 56, 56), (128, 64, 112, 112))
layer(
    "norms", "batch norm, training", lambda: nn.Sequential(nn.BatchNorm2d(64), nn.ReLU()), (16, 64, 56, 56), (128, 64, 112, 112), train=True
)
row("norms", "unit rows", lambda a: F.normalize(a, dim=-1), [(65536, 128)], [(1 << 20, 128)])
row(
    "norms",
    "residual and layer norm",
    lambda a, b, w: F.layer_norm(a + b, (1024,), w),
    [(4096, 1024)] * 2 + [(1024,)],
    [(65536, 1024)] * 2 + [(1024,)],
)

# -- softmax and cross-entropy
for _columns, _cpu_rows, _gpu_rows in (
    (8, 1 << 18, 1 << 22),
    (128, 1 << 14, 1 << 19),
    (2048, 2048, 1 << 15),
    (50257, 128, 4096),
    (250000, 16, 512),
):
    row("softmax", f"of {_columns} columns", lambda a: a.softmax(-1), [(_cpu_rows, _columns)], [(_gpu_rows, _columns)])
row("softmax", "masked", lambda a, m: (a + m).softmax(-1), [(8, 12, 256, 256), (256, 256)], [(16, 32, 1024, 1024), (1024, 1024)])
row("softmax", "over the first axis", lambda a: a.softmax(0), [(1024, 2048)], [(4096, 16384)])
row("softmax", "log softmax of 1000", lambda a: a.log_softmax(-1), [(4096, 1000)], [(65536, 1000)])
row("softmax", "training", lambda a: a.softmax(-1), [(4096, 512)], [(65536, 512)], train=True)
for _columns, _cpu_rows, _gpu_rows in ((1000, 2048, 65536), (32000, 512, 8192), (50257, 256, 8192)):
    row(
        "cross-entropy",
        f"of {_columns}",
        lambda a, y: F.cross_entropy(a, y),
        [(_cpu_rows, _columns)],
        [(_gpu_rows, _columns)],
        extra=_integers(_columns, (_cpu_rows,), (_gpu_rows,)),
    )
row(
    "cross-entropy",
    "of 50257 from bfloat16",
    lambda a, y: F.cross_entropy(a.float(), y),
    [(256, 50257)],
    [(8192, 50257)],
    dtype=torch.bfloat16,
    extra=_integers(50257, (256,), (8192,)),
)
row(
    "cross-entropy",
    "of 32000, training",
    lambda a, y: F.cross_entropy(a, y),
    [(256, 32000)],
    [(8192, 32000)],
    extra=_integers(32000, (256,), (8192,)),
    train=True,
)

# -- scans
row("scans", "cumsum of rows", lambda a: a.cumsum(-1), [(4096, 1024)], [(65536, 1024)])
row("scans", "cumsum of columns", lambda a: a.cumsum(0), [(4096, 1024)], [(8192, 8192)])
row("scans", "one long cumsum", lambda a: a.cumsum(0), [(1 << 20,)], [(1 << 24,)])
row("scans", "cumulative product, scaled", lambda a: (1 - a * 1e-3).cumprod(-1) * 2, [(4096, 1024)], [(65536, 1024)])
row("scans", "log of cumulative sums", lambda a: a.logcumsumexp(-1), [(1024, 1024)], [(16384, 1024)])
row("scans", "cummax", lambda a: a.cummax(-1).values, [(4096, 512)], [(65536, 512)])

# -- pooling
row("pooling", "max 3 stride 2, ReLU", lambda a: F.max_pool2d(a, 3, 2, 1).relu(), [(8, 64, 112, 112)], [(64, 64, 112, 112)])
row("pooling", "max 2", lambda a: F.max_pool2d(a, 2), [(8, 64, 112, 112)], [(64, 64, 224, 224)])
row("pooling", "max 3, training", lambda a: F.max_pool2d(a, 3, 2, 1), [(8, 64, 112, 112)], [(64, 64, 112, 112)], train=True)
row("pooling", "average 3 beside", lambda a: torch.cat([F.avg_pool2d(a, 3, 1, 1), a], 1) * 2, [(8, 64, 56, 56)], [(64, 64, 112, 112)])
row("pooling", "adaptive 7", lambda a: F.adaptive_avg_pool2d(a, 7), [(16, 256, 28, 28)], [(128, 512, 28, 28)])
row("pooling", "max 1d", lambda a: F.max_pool1d(a, 4), [(16, 64, 16384)], [(64, 256, 65536)])
row("pooling", "average 3d", lambda a: F.avg_pool3d(a, 2), [(2, 32, 32, 64, 64)], [(8, 64, 64, 128, 128)])
row(
    "pooling",
    "channels last max 3",
    lambda a: F.max_pool2d(a.contiguous(memory_format=torch.channels_last), 3, 2, 1),
    [(8, 64, 112, 112)],
    [(64, 64, 112, 112)],
)

# -- convolutions
layer("convolutions", "1d 5", lambda: nn.Sequential(nn.Conv1d(64, 128, 5, padding=2), nn.ReLU()), (8, 64, 4096), (32, 64, 16384), half=True)
layer(
    "convolutions",
    "2d 3x3",
    lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()),
    (4, 64, 56, 56),
    (64, 64, 56, 56),
    half=True,
)
layer("convolutions", "2d 1x1", lambda: nn.Sequential(nn.Conv2d(256, 64, 1), nn.SiLU()), (4, 256, 56, 56), (64, 256, 56, 56), half=True)
layer(
    "convolutions",
    "2d 7x7 stride 2",
    lambda: nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU()),
    (4, 3, 224, 224),
    (64, 3, 224, 224),
    half=True,
)
layer(
    "convolutions",
    "depthwise 3x3",
    lambda: nn.Sequential(nn.Conv2d(128, 128, 3, padding=1, groups=128), nn.ReLU()),
    (8, 128, 56, 56),
    (64, 128, 112, 112),
    half=True,
)
layer("convolutions", "depthwise 7x7", lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (4, 96, 56, 56), (64, 96, 56, 56), half=True)
layer("convolutions", "grouped", lambda: nn.Conv2d(256, 256, 3, padding=1, groups=32), (4, 256, 28, 28), (64, 256, 28, 28), half=True)
layer(
    "convolutions",
    "dilated",
    lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=4, dilation=4), nn.ReLU()),
    (4, 64, 56, 56),
    (32, 64, 112, 112),
    half=True,
)
layer(
    "convolutions",
    "transposed, global mean",
    lambda: nn.Sequential(nn.ConvTranspose2d(32, 32, 4, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    (4, 32, 64, 64),
    (16, 32, 128, 128),
    half=True,
)
layer(
    "convolutions",
    "3d",
    lambda: nn.Sequential(nn.Conv3d(16, 32, 3, padding=1), nn.ReLU()),
    (1, 16, 16, 56, 56),
    (4, 16, 32, 112, 112),
    half=True,
)
layer(
    "convolutions",
    "2d 3x3, training",
    lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
    (4, 64, 56, 56),
    (32, 64, 56, 56),
    train=True,
)
layer(
    "convolutions",
    "bottleneck",
    lambda: nn.Sequential(nn.Conv2d(256, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 256, 1)),
    (4, 256, 28, 28),
    (32, 256, 56, 56),
    half=True,
)

# -- gathers and scatters
_rows_of = lambda inputs, results: 2 * sum(t.nbytes for t in results) + inputs[-1].nbytes  # noqa: E731 - a table of rows
row(
    "gathers",
    "rows of a table",
    lambda t, i: t[i],
    [(100000, 64)],
    [(1000000, 128)],
    extra=_integers(100000, (65536,), (1000000,)),
    moved=_rows_of,
)
row(
    "gathers",
    "embedding, scaled",
    lambda t, i: F.embedding(i, t) * 8,
    [(50257, 768)],
    [(50257, 768)],
    extra=_integers(50257, (8, 512), (64, 1024)),
    moved=_rows_of,
)
row(
    "gathers",
    "along the last axis",
    lambda t, i: t.gather(-1, i),
    [(4096, 1024)],
    [(65536, 1024)],
    extra=_integers(1024, (4096, 64), (65536, 64)),
    moved=_rows_of,
)
row(
    "gathers",
    "index_select of columns",
    lambda t, i: t.index_select(1, i),
    [(4096, 1024)],
    [(65536, 1024)],
    extra=_integers(1024, (256,), (256,)),
    moved=_rows_of,
)
row(
    "gathers",
    "bag of embeddings",
    lambda t, i: F.embedding(i, t).sum(1),
    [(100000, 64)],
    [(1000000, 128)],
    extra=_integers(100000, (4096, 16), (65536, 32)),
    moved=lambda inputs, results: inputs[1].numel() * inputs[0].shape[1] * 4,
)
row(
    "scatters",
    "index_add",
    lambda s, i: torch.zeros(100000, 64, device=s.device).index_add(0, i, s),
    [(65536, 64)],
    [(500000, 64)],
    extra=_integers(100000, (65536,), (500000,)),
)
row(
    "scatters",
    "index_add of few rows",
    lambda s, i: torch.zeros(64, 128, device=s.device).index_add(0, i, s),
    [(65536, 128)],
    [(500000, 128)],
    extra=_integers(64, (65536,), (500000,)),
)
row(
    "scatters",
    "scatter_add of numbers",
    lambda s, i: torch.zeros(4096, device=s.device).scatter_add(0, i, s),
    [(1 << 20,)],
    [(1 << 24,)],
    extra=_integers(4096, (1 << 20,), (1 << 24,)),
)
row(
    "scatters",
    "scatter of rows",
    lambda s, i: torch.zeros(4096, 1024, device=s.device).scatter(1, i, s),
    [(4096, 64)],
    [(4096, 64)],
    extra=_integers(1024, (4096, 64), (4096, 64)),
)
row("scatters", "masked fill", lambda a: a.masked_fill(a > 1, 0.0), [(2048, 2048)], [(8192, 8192)])
row(
    "scatters",
    "embedding, training",
    lambda t, i: F.embedding(i, t),
    [(50257, 256)],
    [(50257, 768)],
    extra=_integers(50257, (2048,), (32768,)),
    train=True,
)

# -- sorting
row("sorting", "rows of 1024", lambda a: a.sort(-1).values, [(1024, 1024)], [(16384, 1024)])
row("sorting", "one long row", lambda a: a.sort().values, [(1 << 18,)], [(1 << 22,)])
row("sorting", "top 8 of 1000", lambda a: a.topk(8).values, [(4096, 1000)], [(65536, 1000)])
row("sorting", "top 50 of 50257", lambda a: a.topk(50).values.softmax(-1), [(16, 50257)], [(256, 50257)])
row("sorting", "argsort and gather", lambda a, b: b.gather(-1, a.argsort(-1)), [(1024, 512)] * 2, [(16384, 512)] * 2)

# -- resampling
row("resampling", "bilinear x2", lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), [(4, 32, 64, 64)], [(32, 64, 128, 128)])
row("resampling", "nearest x2, scaled", lambda a: F.interpolate(a, scale_factor=2) * 0.5, [(4, 64, 64, 64)], [(32, 128, 128, 128)])
row("resampling", "bicubic", lambda a: F.interpolate(a, size=(96, 96), mode="bicubic"), [(4, 32, 64, 64)], [(32, 64, 128, 128)])
row(
    "resampling",
    "grid sample",
    lambda a, g: F.grid_sample(a, g.tanh(), align_corners=False),
    [(4, 32, 64, 64), (4, 64, 64, 2)],
    [(16, 64, 128, 128), (16, 128, 128, 2)],
)
row("resampling", "pixel shuffle", lambda a: F.pixel_shuffle(a, 2).relu(), [(4, 128, 64, 64)], [(16, 256, 128, 128)])
row("resampling", "reflect padding", lambda a: F.pad(a, (3, 3, 3, 3), mode="reflect") * 2, [(8, 32, 112, 112)], [(64, 64, 112, 112)])
row("resampling", "unfold windows", lambda a: F.unfold(a, 3, padding=1), [(4, 32, 56, 56)], [(32, 64, 56, 56)])

# -- attention
_heads_cpu, _heads_gpu = (2, 12, 256, 64), (8, 16, 1024, 64)
row("attention", "plain", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [_heads_cpu] * 3, [_heads_gpu] * 3, dtype=torch.bfloat16)
row(
    "attention",
    "causal",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    [_heads_cpu] * 3,
    [_heads_gpu] * 3,
    dtype=torch.bfloat16,
)
row("attention", "float32", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [_heads_cpu] * 3, [(4, 16, 512, 64)] * 3)
row(
    "attention",
    "with a bias",
    lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b),
    [*[_heads_cpu] * 3, (1, 12, 256, 256)],
    [*[_heads_gpu] * 3, (1, 16, 1024, 1024)],
    dtype=torch.bfloat16,
)
row(
    "attention",
    "by hand",
    lambda q, k, v: (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v,
    [_heads_cpu] * 3,
    [(8, 16, 512, 64)] * 3,
    dtype=torch.bfloat16,
)
row(
    "attention",
    "groups of queries",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    [_heads_cpu, (2, 4, 256, 64), (2, 4, 256, 64)],
    [_heads_gpu, (8, 4, 1024, 64), (8, 4, 1024, 64)],
    dtype=torch.bfloat16,
)


def _window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2], device=q.device)
    near = (places[:, None] - places[None]).abs() <= 64
    return F.scaled_dot_product_attention(q, k, v, attn_mask=near)


row("attention", "sliding window", _window, [_heads_cpu] * 3, [_heads_gpu] * 3, dtype=torch.bfloat16)
row(
    "attention",
    "one query",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    [(2, 12, 1, 64), (2, 12, 1024, 64), (2, 12, 1024, 64)],
    [(16, 32, 1, 128), (16, 32, 4096, 128), (16, 32, 4096, 128)],
    dtype=torch.bfloat16,
)
row(
    "attention",
    "causal, training",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    [_heads_cpu] * 3,
    [_heads_gpu] * 3,
    dtype=torch.bfloat16,
    train=True,
)

# -- products
for _m, _k, _n in ((1, 4096, 4096), (16, 1024, 1024), (128, 768, 3072)):
    layer("products", f"{_m}x{_k}x{_n}", lambda k=_k, n=_n: nn.Sequential(nn.Linear(k, n), nn.GELU()), (_m, _k), (_m, _k), half=True)
layer(
    "products",
    "feed-forward",
    lambda: nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)),
    (256, 768),
    (8192, 768),
    half=True,
)
layer(
    "products",
    "feed-forward, training",
    lambda: nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)),
    (256, 768),
    (4096, 768),
    half=True,
    train=True,
)
row("products", "many small", lambda a, b: a @ b, [(1024, 32, 32)] * 2, [(16384, 32, 32)] * 2)
row("products", "of little depth", lambda a, b: (a @ b).relu(), [(4096, 16), (16, 1024)], [(65536, 16), (16, 1024)])
row("products", "of few columns", lambda a, b: a @ b, [(16384, 512), (512, 8)], [(262144, 512), (512, 8)])
row("products", "outer", lambda a, b: (a[:, :, None] * b[:, None, :]).sum(0), [(512, 128)] * 2, [(4096, 256)] * 2)
row("products", "matrix and vector", lambda a, b: torch.tanh(a @ b), [(4096, 4096), (4096,)], [(16384, 16384), (16384,)])
row(
    "products",
    "bias, residual, norm",
    lambda a, w, b, r: F.layer_norm(F.linear(a, w, b) + r, (768,)),
    [(512, 768), (768, 768), (768,), (512, 768)],
    [(16384, 768), (768, 768), (768,), (16384, 768)],
    dtype=torch.bfloat16,
)
row("products", "pairwise distances", lambda a, b: torch.cdist(a, b), [(512, 64)] * 2, [(8192, 64)] * 2)
row(
    "products",
    "int8 weights",
    lambda a, w, s: F.linear(a, w.to(a.dtype)) * s,
    [(16, 4096)],
    [(16, 4096)],
    dtype=torch.bfloat16,
    extra=lambda device: (
        torch.randint(-127, 128, (4096, 4096), dtype=torch.int8, device=device),
        torch.rand(4096, device=device).bfloat16(),
    ),
)
row(
    "products",
    "fp8 weights",
    lambda a, w: F.linear(a, w.to(a.dtype)),
    [(16, 2048)],
    [(16, 4096)],
    dtype=torch.bfloat16,
    extra=lambda device: ((torch.randn(2048, 2048) if device == "cpu" else torch.randn(4096, 4096)).to(device).to(torch.float8_e4m3fn),),
)

# -- concatenation
row("joins", "cat of two, activated", lambda a, b: torch.cat([a, b], 1).relu(), [(8, 64, 56, 56)] * 2, [(64, 64, 112, 112)] * 2)
row("joins", "cat along rows", lambda a, b: torch.cat([a, b * 2], -1), [(4096, 512)] * 2, [(65536, 512)] * 2)
row("joins", "stack of four", lambda a: torch.stack([a, a + 1, a * 2, a.neg()]), [(1024, 1024)], [(8192, 4096)])
row("joins", "split and swap", lambda a: torch.cat(a.chunk(2, -1)[::-1], -1), [(4096, 1024)], [(65536, 1024)])
row("joins", "roll", lambda a: a.roll((3, 5), (1, 2)) + a, [(16, 64, 64, 64)], [(64, 128, 128, 64)])
row(
    "joins",
    "shuffle of channels",
    lambda a: a.unflatten(1, (2, 32)).transpose(1, 2).flatten(1, 2).relu(),
    [(8, 64, 56, 56)],
    [(64, 64, 112, 112)],
)
row("joins", "triangle", lambda a: a.tril() + a.triu().mT, [(2048, 2048)], [(8192, 8192)])


# -- recurrent cells, and neighbours of transforms
def _lstm(x: Tensor, h: Tensor, c: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (torch.cat([x, h], -1) @ w).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(x: Tensor, h: Tensor, w: Tensor, u: Tensor) -> Tensor:
    for _ in range(4):
        r, z, n = (x @ w).chunk(3, -1)
        a, b, c = (h @ u).chunk(3, -1)
        gate = (z + b).sigmoid()
        h = (1 - gate) * (n + (r + a).sigmoid() * c).tanh() + gate * h
    return h


row(
    "recurrent",
    "LSTM cell",
    _lstm,
    [(64, 256), (64, 256), (64, 256), (512, 1024)],
    [(1024, 1024), (1024, 1024), (1024, 1024), (2048, 4096)],
)
row(
    "recurrent",
    "four GRU steps",
    _gru,
    [(64, 256), (64, 256), (256, 768), (256, 768)],
    [(1024, 512), (1024, 512), (512, 1536), (512, 1536)],
)
row("transforms", "power of a spectrum", lambda a: torch.fft.rfft(a).abs().square().log1p(), [(256, 4096)], [(4096, 16384)])
row(
    "transforms",
    "filter of a spectrum",
    lambda a, w: torch.fft.irfft(torch.fft.rfft(a) * w.sigmoid(), n=4096),
    [(256, 4096), (2049,)],
    [(4096, 4096), (2049,)],
)
row("transforms", "frames with a window", lambda a, w: a.unfold(-1, 400, 160) * w, [(8, 64000), (400,)], [(64, 480000), (400,)])

__all__ = ["ROWS", "KernelRow"]
