"""Training in reduced precision: autocast in all its places, loss scales, statistics and master weights in float32."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precast
from precast.artifact_store import Store

HALF = torch.bfloat16


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(tmp_path_factory.mktemp("store"))


class Layers(nn.Module):
    """`exact`: without reduced precision, wherever it is asked for inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.exact = False


class Around(Layers):
    """A softmax runs in float32, products in the half type."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.softmax(self.second(F.gelu(self.norm(self.first(x)))), -1))


class Nested(Layers):
    """A region that is on, with one inside that is off; and the loss behind them."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", HALF, enabled=not self.exact):
            h = self.first(x)
            with torch.autocast("cpu", enabled=False):
                h = self.second(self.norm(h.to(self.norm.weight.dtype)))
            h = self.last(h)
        return F.cross_entropy(h.to(self.norm.weight.dtype), torch.arange(x.shape[0]) % 4, reduction="none")


class Widened(torch.autograd.Function):
    """Runs in float32 under autocast, and so does its backward pass."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return given @ w.t(), x.t() @ given


class AsItComes(torch.autograd.Function):
    """Runs under the autocast of its call, and so does its backward pass."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x.mm(w)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return given.mm(w.t()), x.t().mm(given)


class Functions(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return AsItComes.apply(h, self.second.weight) + (self.exactly(h) if self.exact else Widened.apply(h, self.second.weight))  # type: ignore[no-any-return]

    def exactly(self, h: Tensor) -> Tensor:
        return h @ self.second.weight


class Convolutions(Layers):
    """Statistics of a batch stay in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.statistics = nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.statistics(self.convolution(x[..., None, None].expand(-1, -1, 6, 6) * 1))).mean((2, 3)))  # type: ignore[no-any-return]


class Attention(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x[None])


def no_further(mine: Tensor, eager: Tensor, exact: Tensor) -> None:
    """From the values of double precision than eager is, with some rounding granted."""
    assert mine.dtype == eager.dtype and mine.shape == eager.shape
    error, theirs, size = (float(v.norm()) for v in (mine.double() - exact, eager.double() - exact, exact))
    assert error <= 2 * theirs + 2e-3 * size + 1e-6, (error, theirs, size)


X = torch.linspace(-2, 2, 64).sin().reshape(8, 8)


@pytest.mark.parametrize(
    "make, outer",
    [
        (Around, HALF),
        pytest.param(Around, torch.float16, marks=pytest.mark.slow),
        (Nested, None),
        pytest.param(Nested, HALF, marks=pytest.mark.slow),
        (Functions, HALF),
        pytest.param(Functions, None, marks=pytest.mark.slow),
        pytest.param(Convolutions, HALF, marks=pytest.mark.slow),
        pytest.param(Attention, HALF, marks=pytest.mark.slow),
    ],
)
def test_autocast(make: Callable[[], nn.Module], outer: torch.dtype | None, store: Store) -> None:
    """Results, gradients and buffers, their dtypes, and how far they are from double precision; twice, with and without gradients of x."""
    torch.manual_seed(0)
    net = make()
    twin, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    exact.exact = True  # type: ignore[assignment]
    compiled = precast.compile(net, store=store, fullgraph=True)
    for recorded in (False, True):
        found = []
        for module, called in ((net, compiled), (twin, twin), (exact, exact)):
            module.zero_grad()
            x = X.clone().to(next(module.parameters()).dtype).requires_grad_(recorded)
            reduced = torch.autocast("cpu", outer) if outer is not None and module is not exact else contextlib.nullcontext()
            with reduced:
                result = called(x)
            (result.to(x.dtype) * torch.linspace(1, 2, result.numel()).reshape(result.shape)).sum().backward()
            gradients = [t.grad for t in (x, *module.parameters()) if t.grad is not None]
            found.append([result.detach(), *gradients, *(b for b in module.buffers() if b.is_floating_point())])
        for mine, theirs, true in zip(*found, strict=True):
            no_further(mine, theirs, true)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x)))  # type: ignore[no-any-return]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
}


@pytest.mark.parametrize("optimizer", ["SGD", pytest.param("AdamW fused", marks=pytest.mark.slow)])
@pytest.mark.parametrize("clipped", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_loop_with_a_gradient_scaler(optimizer: str, clipped: bool, store: Store) -> None:
    """A loss that overflows makes the step be skipped and the scale be halved; later the scale grows again."""
    runs = []
    for compile_ in (True, False):
        torch.manual_seed(0)
        net = Scaled()
        called = precast.compile(net, store=store, fullgraph=True) if compile_ else net
        chosen = OPTIMIZERS[optimizer](net.parameters())
        if compile_:
            chosen.step = precast.compile(chosen.step, store=store)  # type: ignore[method-assign]
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        losses, scales, weights = [], [], []
        for step in range(8):
            x = X * (1e6 if step == 2 else 1.0)
            chosen.zero_grad(set_to_none=step % 2 == 0)
            with torch.autocast("cpu", torch.float16):
                loss = F.mse_loss(called(x).float(), X.sum(1, keepdim=True))
            scaler.scale(loss).backward()
            if clipped:
                scaler.unscale_(chosen)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(chosen)
            scaler.update()
            losses.append(loss.detach())
            scales.append(scaler.get_scale())
            weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        runs.append((torch.stack(losses), scales, torch.stack(weights)))
    (mine, my_scales, my_weights), (theirs, scales, weights) = runs
    assert my_scales == scales and scales[2] == scales[1] / 2 and scales[5] == scales[1]
    assert torch.equal(my_weights[2], my_weights[1]) and not torch.equal(my_weights[3], my_weights[2])
    torch.testing.assert_close(mine[torch.arange(8) != 2], theirs[torch.arange(8) != 2], rtol=5e-3, atol=1e-4)
    torch.testing.assert_close(my_weights, weights, rtol=1e-2, atol=2e-3)


class Mixed(nn.Module):
    """Weights in bfloat16, but for norms, which have statistics and weights in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.statistics = nn.Conv2d(2, 8, 3, bias=False, dtype=HALF), nn.BatchNorm2d(8)
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 2, dtype=HALF)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.statistics(self.convolution(x))).mean((2, 3))
        h = self.norm(h.to(self.norm.weight.dtype))
        return self.last(h.to(self.last.weight.dtype))  # type: ignore[no-any-return]


def test_statistics_in_float32_of_bfloat16(store: Store) -> None:
    torch.manual_seed(0)
    net = Mixed()
    twin, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    compiled = precast.compile(net, store=store, fullgraph=True)
    x = (torch.randn(4, 2, 18, 18) * torch.linspace(0.5, 2, 4)[:, None, None, None] + 3).to(HALF)
    found = []
    for module, called in ((net, compiled), (twin, twin), (exact, exact)):
        result = called(x.double() if module is exact else x)
        (result * torch.linspace(1, 2, 8).reshape(4, 2).to(result.dtype)).sum().backward()
        found.append(
            [result.detach(), *(p.grad for p in module.parameters()), module.statistics.running_mean, module.statistics.running_var]
        )
    for mine, theirs, true in zip(*found, strict=True):
        no_further(mine, theirs, true)


@pytest.mark.parametrize(
    "inside", [pytest.param(False, id="steps of its own"), pytest.param(True, id="a compiled step", marks=pytest.mark.slow)]
)
def test_master_weights_in_float32(inside: bool, store: Store) -> None:
    """A bfloat16 model whose optimiser holds float32 copies: gradients are widened, weights are rounded after each step."""

    def run(compile_: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = Scaled().to(HALF)
        masters = [p.detach().float().requires_grad_() for p in net.parameters()]
        optimizer = torch.optim.AdamW(masters, 1e-3)

        def train(x: Tensor) -> Tensor:
            loss = F.mse_loss(called(x).float(), x.float().sum(1, keepdim=True))
            loss.backward()
            for p, master in zip(net.parameters(), masters, strict=True):
                assert p.grad is not None
                master.grad = p.grad.float()
                p.grad = None
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(list(net.parameters()), masters)
            return loss.detach()

        called: Any = net
        step = train
        if compile_ and inside:
            step = precast.compile(train, store=store)
        elif compile_:
            called = precast.compile(net, store=store, fullgraph=True)
            optimizer.step = precast.compile(optimizer.step, store=store)  # type: ignore[method-assign]
        losses = [step(X.to(HALF)) for _ in range(6)]
        return [torch.stack(losses), *(m.detach() for m in masters), *(p.detach().float() for p in net.parameters())]

    for mine, theirs in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=2e-3)


@pytest.mark.slow
def test_an_optimiser_over_bfloat16_weights(store: Store) -> None:
    """Weights, gradients and state in bfloat16: no further from double precision than eager, after ten steps."""
    found = []
    for compile_, dtype in ((True, HALF), (False, HALF), (False, torch.float64)):
        torch.manual_seed(0)
        net = Scaled().to(HALF).to(dtype)
        called = precast.compile(net, store=store, fullgraph=True) if compile_ else net
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        if compile_:
            optimizer.step = precast.compile(optimizer.step, store=store)  # type: ignore[method-assign]
        for _ in range(10):
            optimizer.zero_grad()
            F.mse_loss(called(X.to(dtype)), X.sum(1, keepdim=True).to(dtype)).backward()
            optimizer.step()
        assert {t.dtype for s in optimizer.state.values() for k, t in s.items() if k != "step"} == {dtype}
        found.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    mine, theirs, exact = found
    assert (mine.double() - exact).norm() <= 1.5 * (theirs.double() - exact).norm() + 1e-2
