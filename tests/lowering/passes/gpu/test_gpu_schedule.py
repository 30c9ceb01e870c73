"""Schedules for GPUs: what their libraries take over, layouts, and steps per layer; every pass is checked against eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from precast.lowering.ir.nodes import Attention, Conv, Extern, Gemm, Kernel, Load, Program, walk
from precast.lowering.ir.text import step_text
from precast.lowering.lower import lower
from precast.lowering.options import LoweringOptions
from tests.lowering.passes.test_schedule_models import IMAGES, ROWS, Bare, Block, Bottleneck, PostNorm, SwiGLU, count
from tests.lowering.passes.test_schedule_models import scheduled as scheduled_for


def scheduled(module: nn.Module, *inputs: torch.Tensor, freeze: bool = False) -> Program:
    torch.manual_seed(0)
    return scheduled_for(module, *inputs, options=LoweringOptions(freeze=freeze), target="cuda:sm_90")


@cache
def of(make: Callable[[], nn.Module], freeze: bool = False) -> Program:
    """The schedule of a module that several tests look at."""
    torch.manual_seed(0)
    return scheduled(make(), IMAGES if make in (Bottleneck, Patches, Grown) else ROWS, freeze=freeze)


class Patches(nn.Module):
    """The first layer of a vision transformer: patches, a class token, positions, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 16, 8, 8), nn.LayerNorm(16)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        return self.norm(torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.place)


class Shortcut(nn.Module):
    """A residual block whose shortcut is a convolution with a norm; both norms become biases, of which one call adds the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.Conv2d(8, 16, 1, 2, bias=False)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16)])
        for norm in self.norms:
            for t in (norm.running_mean, norm.bias.data):
                t.normal_()
            for t in (norm.running_var, norm.weight.data):
                t.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = (norm(conv(x)) for conv, norm in zip(self.convs, self.norms, strict=True))
        y = F.relu(a + b)
        return (y * y.sigmoid()).mean((2, 3))


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (Block, {"kernel": 4, "gemm": 4, "attention": 1}),
        (PostNorm, {"kernel": 3, "gemm": 6, "attention": 1}),
        (SwiGLU, {"kernel": 3, "gemm": 3}),
        (Patches, {"kernel": 2, "gemm": 1}),
    ],
    ids=["block", "bert", "swiglu", "patches"],
)
def test_step_counts(make: Callable[[], nn.Module], wanted: dict[str, int]) -> None:
    """A residual and the norm behind it are one kernel; nothing is copied or cast on the way."""
    assert count(of(make)) == wanted


def test_products_have_the_epilogues_of_cublaslt_only() -> None:
    def net(x: torch.Tensor) -> torch.Tensor:
        y = x.view(-1, 32)
        w = y[:32] * 2.0
        a, b, c = (torch.addmm(y[n], y, w) for n in range(3))
        return F.relu(a) @ w @ F.gelu(b, approximate="tanh") @ F.gelu(c)

    gemms = [s for s in scheduled(Bare(net), ROWS).steps if isinstance(s, Gemm) and s.bias is not None]
    assert sorted(g.activation for g in gemms) == ["gelu_tanh", "none", "relu"] and all(g.residual is None for g in gemms)


def test_without_a_bias_no_activation_is_attached() -> None:
    (gemm,) = (s for s in scheduled(Bare(lambda x: F.relu(x[0] @ x[1].T)), ROWS).steps if isinstance(s, Gemm))
    assert gemm.activation == "none"


@pytest.mark.parametrize("freeze", [False, True])
def test_norms_are_folded_and_weights_lie_channels_last(freeze: bool) -> None:
    program = of(Bottleneck, freeze)
    convs = [s for s in program.steps if isinstance(s, Conv)]
    assert len(convs) == 4 and all(c.x.stride[1] == 1 and program.buffer(c.out).stride[1] == 1 for c in convs)
    assert all(c.bias is not None and c.activation == "relu" for c in convs)
    assert all(c.weight.stride[1] == 1 for c in convs)


def test_the_stem_reads_blocks_of_pixels() -> None:
    (conv, *_) = (s for s in of(Bottleneck).steps if isinstance(s, Conv))
    assert conv.x.size == (2, 16, 19, 19) and conv.weight.size == (16, 16, 4, 4)
    assert (conv.stride, conv.padding) == ((1, 1), (0, 0))


@pytest.mark.parametrize(("kernel", "padding", "channels"), [(3, 1, 3), (5, 2, 4), (4, 0, 1), (7, 2, 3)])
def test_any_strided_first_convolution_is_the_same_on_blocks(kernel: int, padding: int, channels: int) -> None:
    module = nn.Sequential(nn.Conv2d(channels, 8, kernel, 2, padding), nn.ReLU())
    program = scheduled(module, torch.randn(2, channels, 13, 18))
    (conv,) = (s for s in program.steps if isinstance(s, Conv))
    assert conv.x.size[1] == 16 and conv.stride == (1, 1)


def test_a_shortcuts_bias_goes_into_the_sum() -> None:
    convs = [s for s in scheduled(Shortcut(), torch.randn(2, 8, 12, 12)).steps if isinstance(s, Conv)]
    assert sorted((c.bias is not None, c.activation, c.residual is not None) for c in convs) == [
        (False, "none", False),
        (True, "relu", True),
    ]


def test_a_lone_bias_is_added_by_the_kernel_that_follows() -> None:
    program = scheduled(nn.Sequential(nn.Conv2d(8, 16, 3), nn.SiLU()), torch.randn(2, 8, 12, 12))
    (conv,) = (s for s in program.steps if isinstance(s, Conv))
    kernels = [s for s in program.steps if isinstance(s, Kernel) and "exp(" in step_text(s)]
    assert conv.bias is None and len(kernels) == 1
    read = {v.buffer for v in walk(*(s.value for s in kernels[0].stores)) if isinstance(v, Load)}
    assert read == {conv.out, "in1"}


def test_patches_are_gathered_and_multiplied() -> None:
    (gemm,) = (s for s in of(Patches).steps if isinstance(s, Gemm))
    assert gemm.a.size == (32, 192) and gemm.b.size == (192, 16) and gemm.bias is not None


def test_attention_reads_projections_without_copies() -> None:
    (found,) = (s for s in of(Block).steps if isinstance(s, Attention))
    assert found.causal and found.mask is None and found.q.buffer == found.k.buffer == found.v.buffer


class Grown(nn.Module):
    """A DenseNet block: each layer reads everything before it."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8 + 4 * n) for n in range(layers + 1)])
        self.convs = nn.ModuleList([nn.Conv2d(8 + 4 * n, 4, 3, 1, 1, bias=False) for n in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [F.max_pool2d(self.stem(x), 2)]
        for norm, conv in zip(self.norms[:-1], self.convs, strict=True):
            parts.append(conv(F.relu(norm(torch.cat(parts, 1)))))
        return F.relu(self.norms[-1](torch.cat(parts, 1))).mean((2, 3))


def test_joins_that_grow_share_one_buffer() -> None:
    """Two launches a layer: the norm reads what was there, and what the last convolution made, which it puts there too."""
    program = of(Grown)
    convs = [n for n, s in enumerate(program.steps) if isinstance(s, Conv)]
    assert len(convs) == 4 and convs[3] - convs[1] == 4
    (join,) = (b.name for b in program.buffers if len(b.size) == 4 and b.size[1] == 20)
    second = program.steps[convs[1] + 1]
    assert isinstance(second, Kernel) and {s.buffer for s in second.stores} == {join, program.steps[convs[2]].x.buffer}


class Rotary(nn.Module):
    """Attention with rotary positions: queries and keys are made by kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(2, 16, 4, 8).transpose(1, 2) for t in self.qkv(x).split(32, -1))
        angle = torch.arange(16.0)[:, None] * torch.arange(4.0)
        cos, sin = (f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))

        def turned(t: torch.Tensor) -> torch.Tensor:
            return t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin

        return self.out(F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True).transpose(1, 2).reshape(2, 16, 32))


def test_rotated_queries_and_keys_are_one_kernel_in_rows_of_heads() -> None:
    program = of(Rotary)
    (found,) = (s for s in program.steps if isinstance(s, Attention))
    assert found.q.stride == found.k.stride == (512, 8, 32, 1) and found.q.buffer != found.k.buffer
    makers = [s for s in program.steps if isinstance(s, Kernel) and {t.buffer for t in s.stores} & {found.q.buffer, found.k.buffer}]
    assert len(makers) == 1


def test_kernels_of_weights_alone_run_first() -> None:
    steps = of(Bottleneck).steps
    made = [
        (n, t.buffer) for n, s in enumerate(steps) if isinstance(s, Kernel) for t in s.stores if t.buffer.endswith(("_weight", "_bias"))
    ]
    assert len(made) >= 6 and max(made)[0] < min(n for n, s in enumerate(steps) if isinstance(s, Conv))


def test_writes_that_may_collide_stay_torchs_own_where_asked_for() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.index_add(x * 2, 0, i, y) + 1

    with FakeTensorMode():
        inputs = [torch.empty(8, 4, device="cuda"), torch.empty(5, dtype=torch.int64, device="cuda"), torch.empty(5, 4, device="cuda")]
        graph = make_fx(fn)(*inputs)
    plain, strict = (lower(graph, "test", LoweringOptions(deterministic=d)) for d in (False, True))
    assert not any(isinstance(s, Extern) for s in plain.steps)
    assert [s.op for s in strict.steps if isinstance(s, Extern)] == ["aten::index_add"]


class Decoder(nn.Module):
    """One token through a gated layer with norms before and residuals after: what one-token decoding is made of."""

    def __init__(self, depth: int = 512, wide: int = 768) -> None:
        super().__init__()
        self.norms = nn.ParameterList([nn.Parameter(torch.randn(depth)) for _ in range(2)])
        self.parts = nn.ModuleList([nn.Linear(depth, depth, bias=False) for _ in range(4)])
        self.gate, self.up, self.down = nn.Linear(depth, wide), nn.Linear(depth, wide), nn.Linear(wide, depth)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def normed(t: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

        y = normed(x, self.norms[0])
        q, k, v = (part(y) for part in self.parts[:3])
        turned = q * 2 + torch.cat([-q[..., 256:], q[..., :256]], -1)  # each element needs two of the product's
        x = x + self.parts[3](turned * k + v)
        y = normed(x, self.norms[1])
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def test_products_with_one_row_are_reductions_fused_with_what_follows() -> None:
    """Norm, three products, the turned ones, a product with its residual, norm, two gated products, a product with bias and residual."""
    program = scheduled(Decoder(), torch.randn(1, 1, 512))
    kernels = [s for s in program.steps if isinstance(s, Kernel)]
    assert len(program.steps) == len(kernels) == 7
    read = [v.buffer for k in kernels for v in set(walk(*(s.value for s in k.stores))) if isinstance(v, Load) and v.dtype.is_float]
    weights = [b.name for b in program.buffers if b.name in program.inputs and len(b.size) == 2]
    assert len(weights) == 7 and all(read.count(name) == 1 for name in weights)  # no product is computed twice


def test_products_with_one_column_read_their_matrix_once_with_what_makes_it() -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(384, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(self.head(F.gelu(x)))

    program = scheduled(Scores(), torch.randn(64, 384))
    assert [type(s) for s in program.steps] == [Kernel]


@pytest.mark.parametrize("rows, depth", [(2, 512), (1, 64)])
def test_other_products_stay_the_librarys(rows: int, depth: int) -> None:
    program = scheduled(nn.Linear(depth, 96), torch.randn(rows, depth))
    assert [type(s) for s in program.steps] == [Gemm]


def test_a_matrix_whose_columns_lie_along_memory_is_the_librarys() -> None:
    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(512, 96))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    assert [type(s) for s in scheduled(Columns(), torch.randn(1, 512)).steps] == [Gemm]


@pytest.mark.parametrize(
    "op, size, librarys",
    [
        ("cumsum", (8192,), True),
        ("cumprod", (1, 100_000), True),
        ("cumsum", (8191,), False),
        ("cumsum", (2, 100_000), False),
        ("cummax", (100_000,), False),
    ],
)
def test_the_scan_of_one_long_row_is_the_librarys(op: str, size: tuple[int, ...], librarys: bool) -> None:
    """On a GPU; on a CPU it is ours at any length."""
    for device in ("cuda", "cpu"):
        with FakeTensorMode():
            graph = make_fx(lambda x: getattr(torch, op)(x * 2, -1))(torch.empty(size, device=device))
        calls = [step.op for step in lower(graph, "test").steps if isinstance(step, Extern)]
        assert calls == ([f"aten::{op}"] if librarys and device == "cuda" else [])
