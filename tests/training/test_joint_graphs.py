"""What is changed in a joint graph before it is cut: what lies between the two halves, and that values stay eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precast
from precast.capture.aten import aot_autograd


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.Node]:
    """What the forward graph keeps for the backward graph, inputs apart."""
    found: list[torch.fx.Node] = []
    cut = aot_autograd.cut

    def seen(joint: torch.fx.GraphModule, metadata: Any) -> Any:
        forward, backward = cut(joint, metadata)
        results = next(iter(forward.graph.find_nodes(op="output"))).args[0]
        found.extend(n for n in list(results)[metadata.num_forward :] if n.op != "placeholder")
        return forward, backward

    monkeypatch.setattr(aot_autograd, "cut", seen)
    return found


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"ignore_index": 3}, {"reduction": "sum"}], ids=str)
def test_cross_entropy_keeps_logits_and_two_numbers_a_row(options: dict[str, Any], kept: list[torch.fx.Node], tmp_path: Path) -> None:
    layer = nn.Linear(16, 201, bias=False).to(torch.bfloat16)
    x, labels = torch.randn(32, 16, dtype=torch.bfloat16), torch.randint(0, 201, (32,))
    compiled = precast.compile(lambda x, y: F.cross_entropy(layer(x).float(), y, **options), store=tmp_path, fullgraph=True)
    compiled(x, labels).backward()
    wide = [n for n in kept if n.meta["val"].numel() >= 32 * 201]
    assert [n.meta["val"].dtype for n in wide] == [torch.bfloat16]
    ours, layer.weight.grad = layer.weight.grad, None
    exact = layer.weight.detach().double().requires_grad_()
    F.cross_entropy(F.linear(x.double(), exact).to(torch.bfloat16).double(), labels, **options).backward()
    assert ours is not None and exact.grad is not None
    torch.testing.assert_close(ours.double(), exact.grad, rtol=2e-2, atol=2e-3 * float(exact.grad.abs().max()))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.second(F.dropout(F.relu(self.norm(self.first(x))), 0.2))
        return x, x.reshape(x.shape[0], -1).sum(1)


def test_images_are_channels_last_between_the_halves_and_results_as_eager_lays_them_out(kept: list[torch.fx.Node], tmp_path: Path) -> None:
    ours = Images()
    theirs = copy.deepcopy(ours)
    x = torch.randn(4, 3, 12, 12)
    compiled = precast.compile(ours, store=tmp_path, fullgraph=True)
    found = []
    for model, call in ((ours, compiled), (theirs, theirs)):
        torch.manual_seed(0)
        results = call(x)
        (results[0].sin().sum() + results[1].sum()).backward()
        found.append([*results, *(p.grad for p in model.parameters())])
    images = [n.meta["val"] for n in kept if n.meta["val"].dim() == 4 and n.meta["val"].is_floating_point()]
    assert any(t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in images)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)  # gradients before a norm are sums that cancel
    assert found[0][0].stride() == found[1][0].stride()


def written(h: Tensor) -> tuple[Tensor, ...]:
    h = h * 1
    h[:, 1:3].mul_(2)
    h[:, 2:] += 1
    return h, h[:, 1:3]


VIEWS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "parts": lambda h: (h[:, :4], h[:, 4:]),
    "rows": lambda h: (h, h[1:], h[1], h[:, :, 1:], h[..., 2]),
    "a view of a view": lambda h: (h.permute(0, 2, 3, 1), h[:, 1:].transpose(1, 2)[:, 1:]),
    "views of a copy": lambda h: ((h * 2).view(2, -1), h.flatten(2).softmax(-1), (h * 2)[:, ::2]),
    "expanded and unfolded": lambda h: (h, h.mean((2, 3), keepdim=True).expand(2, 6, 4, 3), h.diagonal(0, 2, 3), h.unfold(2, 2, 1)),
    "by offset": lambda h: (h[1:].as_strided((2, 3), (4, 1), 5) * 2, h.expand(2, 2, 6, 4, 3).as_strided((2, 3), (4, 1)) * 2),
    "written": written,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_images_that_are_given_back(name: str, tmp_path: Path) -> None:
    """They show the image that is given back, where eager's lie."""
    inputs = [(torch.randn(2, 4, 6, 5), torch.randn(6, 4, 3, 3))]
    inputs.append((inputs[0][0].clone(), inputs[0][1].clone()))

    def program(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return VIEWS[name](F.conv2d(x, weight))

    found = []
    for call, tensors in zip((precast.compile(program, store=tmp_path, fullgraph=True), program), inputs, strict=True):
        given = [t.requires_grad_() for t in tensors]
        results = call(*given)
        sum((r * torch.arange(r.numel()).reshape(r.shape)).sum() for r in results).backward()  # type: ignore[union-attr]
        shared = [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in results for b in results]
        found.append(([*results, *(t.grad for t in given)], [(r.stride(), r.storage_offset()) for r in results], shared))
    (ours, *laid_out), (theirs, *as_eager) = found
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert laid_out == as_eager
