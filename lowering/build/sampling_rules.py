"""Rules of our own for sampling between pixels, in torch's operators: `grid_sample` of images on a GPU, and linear interpolation.

Torch's rules for these compute the same wherever all numbers are finite. Eager also says what becomes of the others, and these keep it:

* A coordinate that is NaN or infinite has no pixel. On a GPU it lies outside of the image; with the border or reflected, one that is NaN
  after that counts as 0. (On a CPU `grid_sample` is the library's call, which is also the faster one.)
* Interpolation is a sum of weighted pixels: an infinite pixel stays infinite, where `a + (b - a) * w` makes it NaN.

A number becomes an integer only where it was compared with the size first, so that no conversion depends on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from precast.lowering.build.type_checks import is_zero

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
CUBIC = -0.75


def grid_sampler_2d(image: Tensor, grid: Tensor, mode: int = BILINEAR, padding: int = ZEROS, align_corners: bool = False) -> Tensor:
    """`aten::grid_sampler_2d` as CUDA's kernel does it; half types are sampled in f32."""
    kind = torch.float32 if image.dtype in (torch.float16, torch.bfloat16) else image.dtype
    place = partial(_placed, padding=padding, align_corners=align_corners)
    height, width = image.shape[2:]
    spots = grid.to(kind).unsqueeze(1)
    x, y = (_pixels(spots[..., k], size, align_corners) for k, size in enumerate((width, height)))
    at = partial(_pixel, image.to(kind))
    if mode == BICUBIC:
        edge = partial(_inside, padding=padding, align_corners=align_corners)
        result = _bicubic(lambda u, v: at(edge(u, width), edge(v, height)), x, y)
    else:
        x, y = place(x, width), place(y, height)
        result = at(x.round(), y.round()) if mode == NEAREST else _bilinear(at, x, y)
    sampled: Tensor = result.to(image.dtype).contiguous()
    return sampled


def _pixels(place: Tensor, size: Any, align_corners: bool) -> Tensor:
    """From [-1, 1] to positions of pixels."""
    half = (size - 1) / 2 if align_corners else size / 2
    return torch.sub(torch.mul(place + 1, half), 0.0 if align_corners else 0.5)


def _inside(place: Tensor, size: Any, padding: int, align_corners: bool) -> Tensor:
    """The position that stands for one outside of the image, by the padding; NaN becomes 0 where there is one."""
    if padding == ZEROS:
        return place
    if padding == REFLECTION:
        place = _reflected(place, size, align_corners)
    place = torch.where(place > 0, place, 0)  # which NaN is not
    return place.clamp(max=size - 1)


def _reflected(place: Tensor, size: Any, align_corners: bool) -> Tensor:
    if align_corners and size <= 1:
        return torch.zeros_like(place)
    low, period = (0.0, 2.0 * (size - 1)) if align_corners else (-0.5, 2.0 * size)
    away = (place - low).abs()
    rest = away - (away / period).trunc() * period
    return torch.minimum(rest, period - rest) + low


def _placed(place: Tensor, size: Any, padding: int, align_corners: bool) -> Tensor:
    """The position of a pixel and its neighbours; what no integer holds is outside."""
    place = _inside(place, size, padding, align_corners)
    return place if padding != ZEROS else torch.where(place.abs() < 2**31, place, -100)


def _pixel(image: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The pixels at whole positions, 0 outside of the image."""
    n, channels, height, width = image.shape
    there = ((x >= 0) & (x < width)) & ((y >= 0) & (y < height))
    column, row = (torch.where(there, place, 0).to(torch.int64) for place in (x, y))
    batch, channel = (torch.arange(k, device=image.device) for k in (n, channels))
    return torch.where(there, image[batch.view(-1, 1, 1, 1), channel.view(1, -1, 1, 1), row, column], 0)


def _bilinear(at: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    left, top = x.floor(), y.floor()
    w, n = x - left, y - top
    e, s = 1 - w, 1 - n
    upper = at(left, top) * (s * e) + at(left + 1, top) * (s * w)
    return upper + at(left, top + 1) * (n * e) + at(left + 1, top + 1) * (n * w)


def _bicubic(at: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    left, top = x.floor(), y.floor()
    across, down = _cubic(x - left), _cubic(y - top)
    lines = [_weighted(across, [at(left + (k - 1), top + (line - 1)) for k in range(4)]) for line in range(4)]
    return _weighted(down, lines)


def _weighted(weights: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    total = weights[0] * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        total = total + weight * value
    return total


def _cubic(t: Tensor) -> list[Tensor]:
    """Weights of the four pixels around a position that is `t` behind the second."""

    def near(d: Tensor) -> Tensor:
        return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def upsample_linear(image: Tensor, size: Sequence[Any], align_corners: bool, *scales: float | None) -> Tensor:
    """`aten::upsample_linear1d`, `upsample_bilinear2d` and `upsample_trilinear3d` of floats."""
    dtype, dims = image.dtype, len(size)
    kind = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    factors = scales or (None,) * dims
    taps = [_taps(image, k, size[k], align_corners, factors[k], kind) for k in range(dims)]
    if _one_by_one(image, size, factors):
        for k in reversed(range(dims)):
            first, second, share = taps[k]
            pick = partial(_picked, image, k + 2, kind)
            image = pick(first) * (1 - share) + pick(second) * share
        return image.to(dtype).contiguous()
    corners = []
    for sides in product((0, 1), repeat=dims):
        places = [taps[k][side] for k, side in enumerate(sides)]
        corners.append(torch.ops.aten._unsafe_index(image, [None, None, *places]).to(kind))
    for _, _, share in reversed(taps):
        corners = [a * (1 - share) + b * share for a, b in zip(corners[::2], corners[1::2], strict=True)]
    layout = suggest_memory_format(image)
    if image.device.type != "cpu" and image.shape[1] < 16:
        layout = torch.contiguous_format
    result: Tensor = corners[0].to(dtype).contiguous(memory_format=layout)
    return result


def upsample_bicubic(image: Tensor, size: Sequence[Any], align_corners: bool, *scales: float | None) -> Any:
    """`aten::upsample_bicubic2d` of floats, dimension by dimension; `NotImplemented` where that does not pay."""
    factors = scales or (None, None)
    if not _one_by_one(image, size, factors):
        return NotImplemented
    kind = torch.float32 if image.dtype in (torch.float16, torch.bfloat16) else image.dtype
    places = [_places(image, k, size[k], align_corners, factors[k], kind) for k in range(2)]
    result = image
    for k in (1, 0):
        left, most = places[k].floor(), image.shape[k + 2] - 1
        weights, first = _cubic((places[k] - left).clamp(0.0, 1.0)), left.to(torch.int64)
        result = _weighted(weights, [_picked(result, k + 2, kind, (first + (n - 1)).clamp(0, most)) for n in range(4)])
    return result.to(image.dtype).contiguous()


def _one_by_one(image: Tensor, size: Sequence[Any], scales: Sequence[float | None]) -> bool:
    """Whether an image is resampled one dimension after another, the last one first: each of its lines then serves several of the result.

    On a GPU what lies between would have to be written and read. Of channels last the pixels are whole vectors, which nothing gathers.
    """
    if image.device.type != "cpu" or suggest_memory_format(image) != torch.contiguous_format:
        return False
    return all(_grows(image.shape[k + 2], size[k], scales[k]) for k in range(len(size) - 1))


def _grows(extent: Any, size: Any, scale: float | None) -> bool:
    """Whether lines between are not many more than those of the result."""
    if isinstance(extent, int) and isinstance(size, int):
        return 2 * size >= extent
    return scale is not None and scale >= 0.5


def _picked(image: Tensor, dim: int, kind: torch.dtype, places: Tensor) -> Tensor:
    """An image at positions along one dimension, in the type that it is sampled in."""
    found: Tensor = torch.ops.aten._unsafe_index(image, [*[None] * dim, places.flatten()]).to(kind)
    return found


def _taps(image: Tensor, dim: int, size: Any, align_corners: bool, scale: float | None, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The two positions along a dimension of the image that each point of the result lies between, and the second one's weight."""
    extent = image.shape[dim + 2]
    if _kept(image, extent, size, scale):
        first = torch.arange(size, device=image.device).reshape(-1, *(1 for _ in range(image.dim() - 3 - dim)))
        return first, first, torch.zeros_like(first, dtype=kind)
    place = _places(image, dim, size, align_corners, scale, kind).clamp(min=0.0)
    first = place.to(torch.int64).clamp(max=extent - 1)
    return first, (first + 1).clamp(max=extent - 1), (place - first).clamp(0.0, 1.0)


def _kept(image: Tensor, extent: Any, size: Any, scale: float | None) -> bool:
    """Whether a CPU's kernel copies along a dimension: where its size stays, as under a factor of 1.1 that of 5 does."""
    if image.device.type != "cpu" or (scale is None and not (isinstance(extent, int) and isinstance(size, int))):
        return False
    return bool(extent == size)


def _places(image: Tensor, dim: int, size: Any, align_corners: bool, scale: float | None, kind: torch.dtype) -> Tensor:
    """The position along a dimension of the image of each point of the result."""
    extent, behind = image.shape[dim + 2], image.dim() - 3 - dim
    points = torch.arange(size, device=image.device).to(kind)
    if align_corners:
        place = points * ((extent - 1.0) / (size - 1.0) if size > 1 else 0)
    else:
        place = (points + 0.5) * (1.0 / scale if scale is not None and scale > 0 else extent / size) - 0.5
    return place.reshape(-1, *(1 for _ in range(behind)))


def max_unpool(rule: Callable[..., Tensor], pooled: Tensor, places: Tensor, size: Sequence[Any], *more: Any) -> Tensor:
    """`aten::max_unpool2d` and `aten::max_unpool3d`. `rule`, torch's own, says what is refused and how the result lies, but counts places
    through all planes, so that one outside of its plane would be in the next.
    """
    made, dims = rule(pooled, places, size, *more), len(size)
    if is_zero(made.numel()):
        return made
    planes, image = math.prod(pooled.shape[:-dims]), math.prod(size)
    flat, here = pooled.reshape(planes, -1), places.reshape(planes, -1)
    found: Tensor = pooled.new_zeros((planes, image)).scatter(1, here, flat).view(made.shape)
    return found


def on_gpu(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`rule` for images on a GPU; on a CPU the operator is called."""

    def chosen(image: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return rule(image, *args, **kwargs) if image.device.type != "cpu" else NotImplemented

    return chosen


def for_floats(rule: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` for images of floats, and `other` for those that it does not take.

    Images of bytes are the library's call. Eager's kernel on a CPU has weights of 16 bits, with as many digits behind the point as the
    largest one leaves, resamples the last dimension first and rounds what lies between to bytes; it is fast, too.
    """

    def chosen(image: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not image.is_floating_point():
            return NotImplemented
        found = rule(image, *args, **kwargs)
        return other(image, *args, **kwargs) if found is NotImplemented else found

    return chosen


def replaced(table: dict[torch._ops.OperatorBase, Callable[..., Any]]) -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """The operators of a table that have a rule here, with it."""
    found: dict[torch._ops.OperatorBase, Callable[..., Any]] = {torch.ops.aten.grid_sampler_2d.default: on_gpu(grid_sampler_2d)}
    rules = dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), upsample_linear)
    for name, rule in (rules | {"upsample_bicubic2d": upsample_bicubic}).items():
        op = getattr(torch.ops.aten, name).default
        if op in table:
            found[op] = for_floats(rule, table[op])
    for name in ("max_unpool2d", "max_unpool3d"):
        op = getattr(torch.ops.aten, name).default
        if op in table:
            found[op] = partial(max_unpool, table[op])
    return {op: rule for op, rule in found.items() if op in table}
