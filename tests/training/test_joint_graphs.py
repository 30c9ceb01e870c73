"""What is changed in a joint graph before it is cut: what lies between the two halves, and that values stay eager's."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precast


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


def pools(x: Tensor, indices: bool = False, **more: Any) -> Any:
    """Maxima, and where they are, of an image that was computed."""
    pool = F.max_pool2d if x.dim() == 4 else F.max_pool3d
    return pool(x * 1, return_indices=indices, **more)


POOLS: dict[str, dict[str, Any]] = {
    "overlapping": {"kernel_size": 3, "stride": 2, "padding": 1},
    "side by side": {"kernel_size": 2, "ceil_mode": True},
    "dilated": {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
    "uneven": {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0), "dilation": (1, 2), "ceil_mode": True},
    "with gaps": {"kernel_size": 2, "stride": 3, "padding": 1},
    "covered often": {"kernel_size": 5, "stride": 1, "padding": 2},
    "large": {"kernel_size": 5, "stride": 2, "padding": 1, "ceil_mode": True},
}
IMAGES: dict[str, Callable[[], Tensor]] = {
    "ties": lambda: torch.randint(0, 3, (2, 9, 9, 11)).float(),
    "nan": lambda: torch.randn(2, 9, 9, 11).masked_fill(torch.rand(2, 9, 9, 11) < 0.1, float("nan")),
    "least": lambda: torch.full((2, 9, 9, 11), -float("inf")),
}


def gradients(call: Callable[..., Any], image: Tensor, **more: Any) -> list[Tensor]:
    """Results and the gradient, twice through one graph."""
    x = image.clone(memory_format=torch.preserve_format).requires_grad_()
    results = call(x, **more)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(0)
    given = torch.randn(results[0].shape).to(x.dtype)
    (first,) = torch.autograd.grad(results[0], x, given, retain_graph=True)
    results[0].backward(given)
    assert x.grad is not None and torch.equal(x.grad, first)
    return [*(r.detach() for r in results), first]


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "contiguous"])
@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_keeps_a_byte_an_element(name: str, last: bool, kept: list[torch.fx.Node], tmp_path: Path) -> None:
    """And gives eager's values, indices and gradients: of ties the first, and NaN before all."""
    compiled = precast.compile(pools, store=tmp_path, fullgraph=True, dynamic=False)
    for made in IMAGES.values():
        image = made().to(memory_format=torch.channels_last) if last else made()
        for indices in (False, True):
            ours, theirs = (gradients(call, image, indices=indices, **POOLS[name]) for call in (compiled, pools))
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, check_stride=True)
    small = {n.meta["val"].dtype for n in kept if not n.meta["val"].is_floating_point()}
    assert small == {torch.uint8}


def test_wide_windows_and_images_of_three_dimensions(kept: list[torch.fx.Node], tmp_path: Path) -> None:
    compiled = precast.compile(pools, store=tmp_path, fullgraph=True, dynamic=False)
    wide = torch.randn(1, 8, 40, 41).to(memory_format=torch.channels_last)
    deep = torch.randn(2, 8, 5, 6, 7)
    for image, more in (
        (wide, {"kernel_size": 17, "stride": 3, "padding": 8}),
        (deep, {"kernel_size": 2, "ceil_mode": True}),
        (deep.to(memory_format=torch.channels_last_3d), {"kernel_size": 2, "stride": 1, "padding": 1}),
    ):
        for a, b in zip(*(gradients(call, image, **more) for call in (compiled, pools)), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert [n.meta["val"].dtype for n in kept if not n.meta["val"].is_floating_point()] == [torch.int16, torch.uint8, torch.uint8]


def test_half_types_and_results_that_read_the_indices(tmp_path: Path) -> None:
    image = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last)

    def unpooled(x: Tensor) -> Tensor:
        return F.max_unpool2d(*F.max_pool2d(x * 2, 2, return_indices=True), 2)  # type: ignore[arg-type]

    compiled = precast.compile(unpooled, store=tmp_path, fullgraph=True)
    for a, b in zip(*(gradients(call, image) for call in (compiled, unpooled)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    compiled = precast.compile(pools, store=tmp_path, fullgraph=True)
    for a, b in zip(*(gradients(c, image.bfloat16(), kernel_size=3, stride=2) for c in (compiled, pools)), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)  # eager adds in bfloat16


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1))


def test_neither_weights_nor_the_pooled_image_are_kept_twice(kept: list[torch.fx.Node], tmp_path: Path) -> None:
    """Of what the convolutions take: the second's image. Steps add their gradients up as eager's do, with hooks on what is kept."""
    ours = Pooled()
    theirs = copy.deepcopy(ours)
    compiled = precast.compile(ours, store=tmp_path, fullgraph=True)
    for step in range(3):
        x = torch.randn(2, 3, 17, 17)
        for call in (compiled, theirs):
            with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t) if step == 2 else contextlib.nullcontext():
                call(x).sin().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
    images = [tuple(n.meta["val"].shape) for n in kept if n.meta["val"].dim() == 4 and n.meta["val"].dtype is torch.float32]
    assert sorted(s for s in images if min(s[1:]) > 1) == [(2, 16, 8, 8), (2, 16, 15, 15)]
