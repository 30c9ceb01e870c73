"""Training in reduced precision on a GPU: autocast in both half types, a gradient scaler on the device, weights in float16, dropout."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precast
from tests.training.test_mixed_precision import no_further

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    with torch.enable_grad():
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.statistics = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16)
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.statistics(self.convolution(x))).flatten(2).transpose(1, 2)
        return self.last(self.attention(h).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_autocast(half: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net().cuda()
    twin, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    compiled = precast.compile(net, store=tmp_path, fullgraph=True)
    x = torch.randn(8, 3, 10, 10, device="cuda")
    found = []
    for module, called in ((net, compiled), (twin, twin), (exact, exact)):
        with torch.autocast("cuda", half, enabled=module is not exact):
            result = called(x.double() if module is exact else x)
        (result * torch.linspace(1, 2, 32, device="cuda").reshape(8, 4)).sum().backward()
        buffers = [b for b in module.buffers() if b.is_floating_point()]
        found.append([result.detach(), *(p.grad for p in module.parameters()), *buffers])
    for mine, theirs, true in zip(*found, strict=True):
        no_further(mine, theirs, true)


@pytest.mark.parametrize("fused", [True, False])
def test_a_loop_with_a_gradient_scaler(fused: bool, tmp_path: Path) -> None:
    """A loss that overflows makes the step be skipped and the scale be halved, on the device; later the scale grows again."""
    runs = []
    for compile_ in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1)).cuda()
        called = precast.compile(net, store=tmp_path) if compile_ else net
        optimizer = torch.optim.AdamW(net.parameters(), 0.01, fused=fused)
        if compile_:
            optimizer.step = precast.compile(optimizer.step, store=tmp_path)  # type: ignore[method-assign]
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=3)
        losses, scales, weights = [], [], []
        for step in range(8):
            x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step)).cuda()
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(called(x * (1e6 if step == 2 else 1)).float(), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if step % 2:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
            scales.append(scaler.get_scale())
            weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        runs.append((torch.stack(losses), scales, torch.stack(weights)))
    (mine, my_scales, my_weights), (theirs, scales, weights) = runs
    assert my_scales == scales and scales[2] == scales[1] / 2
    assert torch.equal(my_weights[2], my_weights[1]) and not torch.equal(my_weights[3], my_weights[2])
    kept = torch.arange(8) != 2
    torch.testing.assert_close(mine[kept], theirs[kept], rtol=5e-3, atol=1e-3)
    torch.testing.assert_close(my_weights, weights, rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_weights_in_a_half_type_with_masters_in_float32(half: torch.dtype, tmp_path: Path) -> None:
    runs = []
    for compile_ in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1)).cuda().to(half)
        masters = [p.detach().float().requires_grad_() for p in net.parameters()]
        optimizer = torch.optim.AdamW(masters, 1e-3)
        called = precast.compile(net, store=tmp_path, fullgraph=True) if compile_ else net
        if compile_:
            optimizer.step = precast.compile(optimizer.step, store=tmp_path)  # type: ignore[method-assign]
        for step in range(6):
            x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step)).cuda().to(half)
            F.mse_loss(called(x).float(), x.float().sum(1, keepdim=True)).backward()
            for p, master in zip(net.parameters(), masters, strict=True):
                assert p.grad is not None
                master.grad, p.grad = p.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(list(net.parameters()), masters)
        runs.append(torch.cat([m.detach().flatten() for m in masters]))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-2, atol=3e-3)


@pytest.mark.parametrize("options", [{}, {"fallback_random": False}])
def test_the_backward_pass_sees_what_was_drawn(options: dict[str, bool], tmp_path: Path) -> None:
    """Dropout, inside of a checkpoint, too; seeds repeat it."""

    def inner(v: Tensor) -> Tensor:
        return F.dropout(v, 0.4).exp()

    def dropped(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x, 0.3), torch.utils.checkpoint.checkpoint(inner, x * 1, use_reentrant=False) + 0

    compiled = precast.compile(dropped, store=tmp_path, fullgraph=True, options=options)
    found = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        x = torch.linspace(1, 2, 4096, device="cuda").requires_grad_()
        first, second = compiled(x)
        (gradient,) = torch.autograd.grad(first.sum() + second.sum(), x)
        first, second = first.detach(), second.detach()
        wanted = first / x.detach() + torch.where(second > 1.01, second / 0.6, 0.0)
        torch.testing.assert_close(gradient, wanted)
        found.append(torch.stack([first, second]))
    assert torch.equal(found[0], found[2]) and not torch.equal(found[0], found[1])
