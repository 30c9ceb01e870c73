"""A whole step in one compiled function: zero_grad, forward, loss, backward, clipping, the optimiser's groups, an average of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import precast
from precast.artifact_store import Store

Step = Callable[[Tensor, Tensor], Tensor]
SLOW = pytest.mark.slow


def make(clip: str, zeroed: bool, averaged: bool) -> tuple[list[nn.Module], Step]:
    """The modules whose weights a step changes, and the step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1))
    matrices, vectors = ([p for p in net.parameters() if (p.dim() > 1) == chosen] for chosen in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], 1e-2)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if averaged else None

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=not zeroed)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        if clip == "norm":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        elif clip == "value":
            torch.nn.utils.clip_grad_value_(net.parameters(), 0.05)
        optimizer.step()
        if average is not None:
            average.update_parameters(net)
        return loss.detach()

    return [net, *([average] if average is not None else [])], step


def run(modules: list[nn.Module], step: Step) -> Tensor:
    """The losses of some steps and all weights after them."""
    data = [torch.randn(16, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    losses = torch.stack([step(x, x.sum(1, keepdim=True)) for x in data])
    return torch.cat([losses, *(p.detach().flatten() for module in modules for p in module.parameters())])


@pytest.mark.parametrize(
    "clip, zeroed, averaged",
    [
        ("norm", True, True),
        pytest.param("", False, False, marks=SLOW),
        pytest.param("value", False, False, marks=SLOW),
        pytest.param("norm", False, False, marks=SLOW),
    ],
)
def test_values_are_eagers_and_graphs_as_few_as_torch_compiles(
    clip: str, zeroed: bool, averaged: bool, store: Store, fresh_tracer: None
) -> None:
    """The optimiser's step is one graph of torch.compile's; here it is one kernel for each kind of group, and counts as one."""
    modules, step = make(clip, zeroed, averaged)
    eager = run(modules, step)
    modules, step = make(clip, zeroed, averaged)
    ours = run(modules, precast.compile(step, store=store))
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
    count = 0

    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    modules, step = make(clip, zeroed, averaged)
    torch._dynamo.reset()
    run(modules, torch.compile(step, backend=counting))
    graphs = [m.program_name for m in store.manifests() if m.graphs]
    updates = [name for name in graphs if name.startswith("torch.optim:")]
    assert updates and len(graphs) - len(updates) + 1 <= count
