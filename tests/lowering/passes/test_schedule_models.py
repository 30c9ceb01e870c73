"""What traced models become: the number of steps of each kind, every pass checked against eager, and the text of a few schedules."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from precast.lowering.decompositions import DECOMPOSITIONS
from precast.lowering.ir.nodes import Attention, Conv, Gemm, Kernel, Program
from precast.lowering.ir.text import program_text, step_text
from precast.lowering.lower import lower
from precast.lowering.options import DEFAULTS, LoweringOptions
from precast.lowering.passes.simplify import constant_fold
from precast.lowering.pipeline import planned, schedule
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify

FROZEN = LoweringOptions(freeze=True)
GOLDEN = Path(__file__).parent / "golden"


def scheduled(
    module: nn.Module,
    *inputs: torch.Tensor,
    options: LoweringOptions = DEFAULTS,
    tolerance: float = 2e-4,
    target: str = "cpu:native",
) -> Program:
    """The module's schedule; after every pass the program computes what eager does, in poisoned memory."""
    module.eval()
    named = dict(module.named_parameters()) | dict(module.named_buffers())

    def call(*flat: torch.Tensor) -> Any:
        return functional_call(module, dict(zip(named, flat, strict=False)), tuple(flat[len(named) :]))

    arguments = [*(t.detach() for t in named.values()), *inputs]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = module(*inputs)
        graph = make_fx(functionalize(call), tracing_mode="fake", decomposition_table=DECOMPOSITIONS)(*arguments)
    program = verify(lower(graph, type(module).__name__.lower()))

    def same(name: str, after: Program) -> None:
        (found,) = run(after, arguments)
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance, msg=lambda m: f"after {name}: {m}")

    found = verify(planned(schedule(program, target, options, check=True, trace=same), target), "plan memory")
    same("plan memory", found)
    return found


def count(program: Program) -> dict[str, int]:
    return dict(Counter(type(s).__name__.lower() for s in program.steps))


class Block(nn.Module):
    """A transformer layer with attention written out: pre-norm, one product for query, key and value."""

    def __init__(self, width: int = 32, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, d // self.heads).transpose(1, 2) for t in self.qkv(self.first(x)).split(d, -1))
        scores = q @ k.transpose(-1, -2) * 0.3
        if self.causal:
            scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, d)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))


class PostNorm(nn.Module):
    """A BERT layer: separate projections, library attention, norms after the sums."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = (p(x).view(b, s, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, d)
        x = self.first(x + self.out(mixed))
        return self.second(x + self.down(F.gelu(self.up(x))))


class SwiGLU(nn.Module):
    """A Llama feed-forward layer with its norm."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.rand(width))
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((width, 48), (width, 48), (48, width)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Bottleneck(nn.Module):
    """A ResNet block behind a stem with pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.convs = nn.ModuleList([nn.Conv2d(16, 8, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.Conv2d(8, 16, 1, bias=False)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(16)])
        self.head = nn.Linear(16, 10)
        for norm in (self.stem_norm, *self.norms):
            for t, (low, high) in zip(
                (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data), [(-1, 1), (0.5, 2)] * 2, strict=True
            ):
                t.uniform_(low, high)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = y = self.pool(F.relu(self.stem_norm(self.stem(x))))
        for conv, norm in zip(self.convs[:2], self.norms[:2], strict=True):
            y = F.relu(norm(conv(y)))
        y = F.relu(self.norms[2](self.convs[2](y)) + x)
        return self.head((y * y.sigmoid()).mean((2, 3)))


class Dense(nn.Module):
    """Two DenseNet layers: norm, relu, convolution over everything so far."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(12), nn.BatchNorm2d(16)])
        self.convs = nn.ModuleList([nn.Conv2d(8, 4, 3, 1, 1, bias=False), nn.Conv2d(12, 4, 3, 1, 1, bias=False)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.stem(x)]
        for conv, norm in zip(self.convs, self.norms[:2], strict=True):
            parts.append(conv(F.relu(norm(torch.cat(parts, 1)))))
        return F.avg_pool2d(F.relu(self.norms[2](torch.cat(parts, 1))), 4)


class Bare(nn.Module):
    """One function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


ROWS = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("make", "x", "options", "wanted"),
    [
        (lambda: Bare(lambda x: F.layer_norm(x + 1.0, (32,))), ROWS, DEFAULTS, {"kernel": 1}),
        (lambda: Bare(lambda x: F.gelu(F.layer_norm(x, (32,)))), ROWS, DEFAULTS, {"kernel": 1}),
        (lambda: Bare(lambda x: (x * 0.5).softmax(-1)), ROWS, DEFAULTS, {"kernel": 1}),
        (lambda: Bare(lambda x: x.softmax(-1).log().sum(-1)), ROWS, DEFAULTS, {"kernel": 1}),
        (Block, ROWS, DEFAULTS, {"kernel": 2, "gemm": 4, "attention": 1}),
        (lambda: Block(causal=False), ROWS, DEFAULTS, {"kernel": 2, "gemm": 4, "attention": 1}),
        (PostNorm, ROWS, DEFAULTS, {"kernel": 2, "gemm": 6, "attention": 1}),
        (PostNorm, ROWS, FROZEN, {"kernel": 2, "gemm": 4, "attention": 1}),
        (SwiGLU, ROWS, DEFAULTS, {"kernel": 2, "gemm": 3}),
        (SwiGLU, ROWS, FROZEN, {"kernel": 2, "gemm": 2}),
        (Bottleneck, IMAGES, FROZEN, {"kernel": 2, "conv": 4, "gemm": 1}),
    ],
    ids=[
        "norm",
        "norm, gelu",
        "softmax",
        "log, sum",
        "block",
        "block, no mask",
        "bert",
        "bert frozen",
        "swiglu",
        "swiglu frozen",
        "resnet frozen",
    ],
)
def test_step_counts(make: Callable[[], nn.Module], x: torch.Tensor, options: LoweringOptions, wanted: dict[str, int]) -> None:
    torch.manual_seed(0)
    assert count(scheduled(make(), x, options=options)) == wanted


def test_products_carry_their_epilogues() -> None:
    torch.manual_seed(0)
    gemms = [s for s in scheduled(Block(), ROWS).steps if isinstance(s, Gemm)]
    assert [(g.activation, g.bias is not None, g.residual is not None) for g in gemms] == [
        ("none", True, False),
        ("none", True, True),
        ("gelu", True, False),
        ("none", True, True),
    ]


def test_written_out_attention_is_causal_and_reads_without_copies() -> None:
    torch.manual_seed(0)
    (found,) = (s for s in scheduled(Block(), ROWS).steps if isinstance(s, Attention))
    assert found.causal and found.mask is None and found.scale == 0.3
    assert found.q.buffer == found.k.buffer == found.v.buffer and [found.q.offset, found.k.offset, found.v.offset] == [0, 32, 64]


@pytest.mark.parametrize(
    ("mask", "causal", "kept"),
    [
        (lambda s: torch.zeros(s, s), False, False),
        (lambda s: torch.full((s, s), float("-inf")).triu(1), True, False),
        (lambda s: (torch.arange(s)[None, :] >= 0).expand(s, s), False, False),
        (lambda s: ((1.0 - torch.ones(2, s)[:, None, None, :]) * torch.finfo(torch.float32).min).expand(2, 1, s, s)[0, 0], False, False),
        (lambda s: torch.arange(s)[None, :] <= torch.arange(s)[:, None], True, False),
        (lambda s: torch.arange(s * s).reshape(s, s) * 0.01, False, True),
    ],
    ids=["nothing", "causal", "bert, of booleans", "bert, of numbers", "causal, of booleans", "other"],
)
@pytest.mark.parametrize("target", ["cpu:native", "cuda:sm_90"])
def test_masks_that_the_graph_computes_from_nothing(mask: Callable[[int], torch.Tensor], causal: bool, kept: bool, target: str) -> None:
    def attend(x: torch.Tensor) -> torch.Tensor:
        q = x.view(2, 16, 4, 8).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask(16)[None, None].expand(2, 1, 16, 16))

    (found,) = (s for s in scheduled(Bare(attend), ROWS, target=target).steps if isinstance(s, Attention))
    assert found.causal == causal and (found.mask is not None) == kept


def test_concatenated_images_stay_channels_last() -> None:
    torch.manual_seed(0)
    program = scheduled(Dense(), IMAGES)
    images = [b for b in program.buffers if len(b.size) == 4 and b.name not in program.inputs and "weight" not in b.name]
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    assert images and all(b.stride[1] == 1 for b in images if b.name not in outputs)
    roots = [step_text(s) for s in program.steps if isinstance(s, Kernel) and "sqrt" in step_text(s)]
    assert roots and all("[i0<" in text or "sum[" in text for text in roots)  # the scale of a norm is computed per channel, not per pixel


@pytest.mark.parametrize("freeze", [False, True])
def test_convolutions_are_channels_last_with_folded_norms(freeze: bool) -> None:
    torch.manual_seed(0)
    program = scheduled(Bottleneck(), IMAGES, options=LoweringOptions(freeze=freeze))
    convs = [s for s in program.steps if isinstance(s, Conv)]
    assert all(c.x.stride[1] == 1 for c in convs[1:]) and all(program.buffer(c.out).stride[1] == 1 for c in convs)
    assert convs[0].x.buffer in program.inputs  # an image of few channels is read as it comes, without a copy
    assert all(c.bias is not None for c in convs)
    assert [(c.activation, c.residual is not None) for c in convs] == [("relu", False)] * 3 + [("relu", True)]
    assert bool(program.prepare) == freeze and bool(program.persistent) == freeze


def test_without_freeze_weights_are_not_copied_outside_the_call() -> None:
    program = scheduled(PostNorm(), ROWS)
    assert program.prepare == () and program.persistent == ()


@pytest.mark.parametrize(
    ("name", "make", "x"),
    [
        ("layer_norm_gelu", lambda: Bare(lambda x: F.gelu(F.layer_norm(x, (32,)))), ROWS),
        ("softmax", lambda: Bare(lambda x: (x * 0.5).softmax(-1)), ROWS),
        ("block", Block, ROWS),
    ],
)
def test_golden_text(name: str, make: Callable[[], nn.Module], x: torch.Tensor) -> None:
    """`PRECAST_UPDATE_GOLDEN=1` writes the files anew."""
    torch.manual_seed(0)
    text = program_text(scheduled(make(), x))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("PRECAST_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


class Pieces(nn.Module):
    """Two per-channel scalings whose results are pieces of one channels-last tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(32)), nn.Parameter(torch.rand(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = (w[None, :, None, None] for w in (self.a.sigmoid().sqrt(), self.b.exp().sqrt()))
        return torch.cat([x[:, :32] * a, x[:, 32:] * b], 1)


def test_invariants_of_pieces_of_one_buffer_have_names_of_their_own() -> None:
    program = scheduled(Pieces(), torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last))
    assert len([b for b in program.buffers if "_part" in b.name]) == 2


def test_a_mask_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers compute it, and however many heads it is spread over."""
    looked: list[int] = []
    meaning = constant_fold._meaning

    def counted(view: Any, values: torch.Tensor) -> str:
        where = torch.where
        with monkeypatch.context() as patch:
            patch.setattr(torch, "where", lambda c, a, b: looked.append(b.numel()) or where(c, a, b))
            return meaning(view, values)

    def attend(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            q = x.view(2, 16, 4, 8).transpose(1, 2)
            mask = torch.full((16, 16), float("-inf")).triu(1)[None, None].expand(2, 1, 16, 16)
            x = F.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        return x

    monkeypatch.setattr(constant_fold, "_meaning", counted)
    steps = scheduled(Bare(attend), ROWS).steps
    assert [s.causal and s.mask is None for s in steps if isinstance(s, Attention)] == [True] * 3
    assert looked == [2 * 16 * 16]


def convolved(after: Callable[[torch.Tensor], torch.Tensor] = lambda y: y, convs: int = 1, size: int = 1) -> nn.Module:
    """Convolutions of 8 channels, and something behind them."""
    return nn.Sequential(*(nn.Conv2d(8, 8, size, padding=size // 2) for _ in range(convs)), Bare(after))


@pytest.mark.parametrize("after", [lambda y: y, F.relu, lambda y: F.gelu(y) * y], ids=["alone", "relu", "gelu"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_convolution_between_contiguous_images_stays_contiguous(after: Callable[[torch.Tensor], torch.Tensor], size: int) -> None:
    program = scheduled(convolved(after, size=size), torch.randn(2, 8, 6, 6))
    (conv,) = (s for s in program.steps if isinstance(s, Conv))
    assert conv.x.buffer in program.inputs and program.buffer(conv.out).stride == (288, 36, 6, 1)
    assert any(note.startswith("not channels-last: ") for note in program.notes)


@pytest.mark.parametrize("after", [lambda y: y, F.relu], ids=["alone", "relu"])
def test_what_leaves_channels_last_convolutions_is_copied_by_a_kernel(after: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """And not by the library's result being found in another layout than planned."""
    program = scheduled(convolved(after, convs=4), torch.randn(2, 8, 6, 6))
    convs = [s for s in program.steps if isinstance(s, Conv)]
    assert all(c.x.stride[1] == 1 and program.buffer(c.out).stride[1] == 1 for c in convs)
    assert count(program) == {"conv": 4, "kernel": 2} and isinstance(program.steps[-1], Kernel)
    assert not any("channels-last" in note for note in program.notes)


def test_one_convolution_whose_result_stays_inside_is_channels_last() -> None:
    program = scheduled(convolved(lambda y: y.mean((2, 3))), torch.randn(2, 8, 6, 6))
    (conv,) = (s for s in program.steps if isinstance(s, Conv))
    assert conv.x.stride[1] == 1 and program.buffer(conv.out).stride[1] == 1


def test_weights_of_contiguous_convolutions_do_not_look_channels_last() -> None:
    """A folded scale makes a new weight: the library would answer its strides with a channels-last result."""
    program = scheduled(nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)), torch.randn(2, 8, 6, 6))
    (conv,) = (s for s in program.steps if isinstance(s, Conv))
    assert conv.weight.stride == (8, 1, 1, 1) and program.steps[-1] is conv


def test_an_image_of_one_channel_is_channels_last_without_a_copy() -> None:
    stem = nn.Conv2d(1, 8, 3)
    program = scheduled(nn.Sequential(stem, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), torch.randn(2, 1, 12, 12))
    first = next(s for s in program.steps if isinstance(s, Conv))
    assert first.x.buffer in program.inputs and first.x.stride == (144, 1, 12, 1)


def test_results_in_between_are_copied_and_read_channels_last() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.convs[1](self.convs[0](x))
            return torch.cat([y, self.convs[3](self.convs[2](y))[:, :4]], 1)

    program = scheduled(Between(), torch.randn(2, 8, 6, 6))
    assert all(s.x.stride[1] == 1 for s in program.steps if isinstance(s, Conv))
