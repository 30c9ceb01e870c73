"""Our own products over panels: results beside float64, edges, what follows them, packed weights, and which steps they take."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precast
from precast.codegen.cpu import library_calls, panel_gemm, tuning
from precast.codegen.cpu.panel_gemm import panel_fits
from precast.codegen.cpu.tuning import Chooser, gemm_candidates
from precast.lowering.ir.nodes import View
from tests.codegen.cpu.products import TARGETS, build, product, relative_error


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every race in which this code takes part is won by it."""
    monkeypatch.setattr(Chooser, "pick", lambda self, key, candidates, default: "panel" if " panels" in key else default)
    monkeypatch.setattr(Chooser, "races_panels", lambda self, packed: True)


@pytest.mark.parametrize("target", TARGETS)
def test_against_float64_at_random_sizes(ours: None, target: str) -> None:
    draw = random.Random(target)
    for transposed in (True, False, True):
        m, k, n = draw.randint(33, 90), draw.choice((16, 17, 79, 384, 2500)), draw.choice((16, 31, 32, 64, 101))
        step, buffers = product(m, k, n, transposed, bias=View("b", (n,), (1,)))
        x, w, b, r = torch.randn(m, k), torch.randn(n, k), torch.randn(n), torch.randn(m, n)
        want = x.double() @ w.double().t() + b
        weight = w if transposed else w.t().contiguous()
        assert relative_error(build(step, buffers, "panel", target)(x, weight, b, r)[0], want) < 4e-6, (m, k, n, transposed)


EXACT: dict[str, Any] = {
    "none": lambda x: x, "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0), "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid,
}  # fmt: skip


@pytest.mark.parametrize("activation", panel_gemm.FINISH)
def test_what_follows(ours: None, activation: str) -> None:
    m, k, n = 40, 96, 50
    order = "after" if activation in ("relu", "gelu") else "before"
    bounds = (-0.5, 2.0) if activation == "hardtanh" else ()
    rest = View("r", (m, n), (n, 1))
    more = {"activation": activation, "activation_args": bounds, "residual": rest, "residual_order": order}
    step, buffers = product(m, k, n, bias=View("b", (n,), (1,)), **more)
    x, w, b, r = torch.randn(m, k), torch.randn(n, k), torch.randn(n), torch.randn(m, n)
    x[3, 5], x[4, 5], x[5, 5] = float("nan"), float("inf"), -float("inf")
    sums = x.double() @ w.double().t() + b
    want = EXACT[activation](sums) + r if order == "after" else EXACT[activation](sums + r)
    torch.testing.assert_close(build(step, buffers, "panel")(x, w, b, r)[0], want.float(), rtol=1e-5, atol=1e-5, equal_nan=True)


def test_the_same_bits_whatever_the_rows_and_threads(ours: None) -> None:
    k, n = 1100, 70
    w, b, x = torch.randn(n, k), torch.randn(n), torch.randn(300, k)
    threads = torch.get_num_threads()
    try:
        found = []
        for rows, count in ((300, 1), (300, 3), (37, 2)):
            torch.set_num_threads(count)
            loaded = build(*product(rows, k, n, bias=View("b", (n,), (1,))), "panel")
            found.append(loaded(x[:rows], w, b, torch.zeros(rows, n))[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0][:37], found[2])


def test_threads_begin_with_rows_of_their_own() -> None:
    """What a thread wrote just before is in the caches of its own core."""
    source = panel_gemm.panel_source(16)
    assert "Share share(shares)" in source and "schedule(dynamic" not in source


def test_which_products_it_takes() -> None:
    step, buffers = product(64, 64, 64)
    assert panel_fits(step, buffers)
    for refused in (
        product(8, 64, 64),
        product(64, 8, 64),
        product(64, 5000, 64),
        product(64, 64, 8),
        product(64, 64, 64, activation="tanh"),
    ):
        assert not panel_fits(*refused)


def test_it_takes_part_where_it_was_seen_to_win(monkeypatch: pytest.MonkeyPatch) -> None:
    step, buffers = product(64, 64, 64)
    assert set(gemm_candidates(step, buffers, True, True)()) == {"onednn", "mkl", "panel"}
    monkeypatch.setattr(tuning, "cpu_model", lambda: "GenuineIntel 6 207")
    assert Chooser().races_panels(packed=True) and not Chooser().races_panels(packed=False)
    monkeypatch.setattr(tuning, "cpu_model", lambda: "AuthenticAMD 25 1")
    assert Chooser().races_panels(packed=False) and not Chooser(measure=False).races_panels(packed=True)


class _Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce, self.middle, self.expand = nn.Conv2d(48, 16, 1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 48, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(x)
        return F.relu(self.expand(F.relu6(self.middle(F.relu(self.reduce(x))))) + x)


@pytest.mark.parametrize("freeze", [False, True])
def test_convolutions_with_relu_behind_them(ours: None, freeze: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = _Bottleneck().eval(), torch.randn(2, 48, 9, 7)
    x[1, 3, 4, 2] = float("nan")
    called: list[str] = []
    write = library_calls._panels
    monkeypatch.setattr(library_calls, "_panels", lambda writer, step, *rest: (called.append(step.activation), write(writer, step, *rest)))
    compiled = precast.compile(model, store=tmp_path / "store", options={"freeze": freeze})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model.double()(x.double()).float(), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert called == ["relu", "relu"]


@pytest.mark.parametrize("n", [16, 24, 31, 50])
@pytest.mark.parametrize(("k", "freeze", "target"), [(24, True, "cpu:native"), (33, False, "cpu:x86-64-v3"), (1500, True, "cpu:native")])
def test_narrow_results(ours: None, n: int, k: int, freeze: bool, target: str) -> None:
    """The last panel begins earlier, or is one vector, where it would not be full."""
    m = 41
    more: dict[str, Any] = {"activation": "relu", "residual": View("r", (m, n), (n, 1)), "residual_order": "after"}
    step, buffers = product(m, k, n, bias=View("b", (n,), (1,)), **more)
    x, w, b, r = torch.randn(m, k), torch.randn(n, k), torch.randn(n), torch.randn(m, n)
    want = (x.double() @ w.double().t() + b).relu() + r
    assert relative_error(build(step, buffers, "panel", target, freeze=freeze)(x, w, b, r)[0], want) < 4e-6


class _Narrow(nn.Module):
    """1x1 convolutions of which no library's single pass is missed: nothing, or an activation that it takes, follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(32, 24, 1), nn.Conv2d(24, 40, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.second(self.first(x.relu())))


def test_convolutions_that_a_library_does_in_one_pass_take_part(ours: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _Narrow().eval(), torch.randn(2, 32, 9, 7).to(memory_format=torch.channels_last)
    called: list[str] = []
    write = library_calls._panels
    monkeypatch.setattr(library_calls, "_panels", lambda writer, step, *rest: (called.append(step.activation), write(writer, step, *rest)))
    compiled = precast.compile(model, store=tmp_path / "store")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert called == ["none", "silu"]


class _Gate(nn.Module):
    """Squeeze and excitation: two 1x1 convolutions of a single pixel an image, the second with few channels to read."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(x)
        return x * torch.sigmoid(self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True)))))


@pytest.mark.parametrize(("images", "channels", "squeezed"), [(4, 96, 5), (3, 150, 7), (1, 33, 6), (13, 40, 24)])
def test_convolutions_of_few_pixels_with_a_packed_weight(
    ours: None, images: int, channels: int, squeezed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = _Gate(channels, squeezed).eval(), torch.randn(images, channels, 9, 7).to(memory_format=torch.channels_last)
    called: list[str] = []
    write = library_calls._panels
    monkeypatch.setattr(library_calls, "_panels", lambda writer, step, *rest: (called.append(step.activation), write(writer, step, *rest)))
    compiled = precast.compile(model, store=tmp_path / "store", options={"freeze": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model.double()(x.double()).float(), rtol=1e-5, atol=1e-5)
    assert called == ["silu", "none"]
