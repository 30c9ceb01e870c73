"""Where max-pooling found its maxima, in as few bytes as a window has positions: what is kept of it for the backward pass.

Eager's indices are eight bytes an element, and count in the whole image. What is kept here is the number of the position within its
window, a byte for windows of up to 256 positions. The gradient is made of the numbers where that is the faster way, and does not need the
pooled tensor either, which the library's takes for its size. Whoever else reads indices, the caller too, gets them computed from the
numbers and from where the windows begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from precast.capture.aten.joint.recomputation import compute_again
from precast.capture.graph.inline_subgraph import splice
from precast.pool_operators import GRADIENT, MOST_ASKED, NUMBERS, number_type

aten = torch.ops.aten
_POOLS = {
    aten.max_pool2d_with_indices.default: aten.max_pool2d_with_indices_backward.default,
    aten.max_pool3d_with_indices.default: aten.max_pool3d_with_indices_backward.default,
}
_NUMBERED = 1 << 31
"""Images of more elements are counted in 64 bits."""
_MOST_COMPARED = 8
"""Windows of more positions along a dimension are divided by, not compared with."""
_LEAST_CHANNELS = 8


@dataclass(frozen=True)
class _Windows:
    """The windows of a pooling, and of the image and of the result the size: a number a dimension."""

    extents: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def shape(self) -> tuple[list[int], ...]:
        """What both operators take."""
        return list(self.kernel), list(self.stride), list(self.padding), list(self.dilation)

    @property
    def covering(self) -> int:
        """How many of them cover one position at most."""
        return math.prod((k - 1) * d // s + 1 for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True))


def keep_offsets(joint: torch.fx.GraphModule, fake_mode: Any, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
    """Lets the max-poolings of a joint graph that have gradients give numbers within windows instead of indices; in place."""
    for node in list(joint.graph.nodes):
        if node.target not in _POOLS:
            continue
        indices = next((user for user in node.users if user.args[1] == 1), None)
        if indices is None or not any(user.target is _POOLS[node.target] for user in indices.users):
            continue
        windows = _windows_of(node)
        if windows is not None:
            _number(joint, node, indices, windows, fake_mode, decompositions)


def _windows_of(node: torch.fx.Node) -> _Windows | None:
    """The windows; None where a size varies, or there is nothing to pool."""
    source: Any = node.args[0]
    image, result = source.meta["val"], node.meta["val"][0]
    if not all(isinstance(n, int) and n > 0 for n in (*image.shape, *result.shape)) or not image.dtype.is_floating_point:
        return None
    rank = len(node.args[1])  # type: ignore[arg-type]
    kernel, stride, padding, dilation = (_each(node, place, rank, default) for place, default in ((1, 1), (2, 0), (3, 0), (4, 1)))
    stride = stride if all(stride) else kernel
    return _Windows(tuple(image.shape[-rank:]), tuple(result.shape[-rank:]), kernel, stride, padding, dilation)


def _each(node: torch.fx.Node, place: int, rank: int, default: int) -> tuple[int, ...]:
    values: Any = node.args[place] if len(node.args) > place else ()
    given = tuple(values) if isinstance(values, list | tuple) else (values,)
    return (given or (default,)) * rank if len(given) < rank else given


def _number(
    joint: torch.fx.GraphModule,
    node: torch.fx.Node,
    indices: torch.fx.Node,
    windows: _Windows,
    fake_mode: Any,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> None:
    """Replaces the node, and what reads its indices."""
    graph, backward = joint.graph, _POOLS[node.target]  # type: ignore[index]
    values, places = node.meta["val"]
    with fake_mode:
        numbers = torch.empty_like(places, dtype=number_type(windows.kernel))
    with graph.inserting_after(indices):
        again = graph.call_function(aten.clone.default, (indices,))
    again.meta["val"] = places
    indices.replace_all_uses_with(again, lambda user: user is not again)
    node.target, node.args = NUMBERS, (node.args[0], *windows.shape, node.args[5] if len(node.args) > 5 else False)
    node.meta["val"], indices.meta["val"] = (values, numbers), numbers
    for gradient in list(again.users):
        image: Any = gradient.meta.get("val")
        if gradient.target is backward and windows.covering <= MOST_ASKED and _by_channels(image, len(windows.kernel)):
            sizes = (list(image.shape), list(image.stride()))
            gradient.target, gradient.args = GRADIENT, (gradient.args[0], indices, *sizes, *windows.shape)
    if not again.users:
        graph.erase_node(again)
        return
    before = set(graph.nodes)
    splice(joint, again, lambda n: _found(n, windows), fake_mode, decompositions)
    for made in set(graph.nodes) - before:  # the library takes the indices in memory, so that the partitioner would keep them
        compute_again(made)


def _by_channels(image: torch.Tensor, rank: int) -> bool:
    """Whether neighbours in memory are of one position: a vector asks one window for all."""
    return image.dim() == rank + 2 and image.stride(1) == 1 and image.shape[1] >= _LEAST_CHANNELS


def _found(numbers: torch.Tensor, windows: _Windows) -> torch.Tensor:
    """The indices of the positions that have these numbers within their windows."""
    kind = torch.int32 if math.prod(windows.extents) < _NUMBERED else torch.int64
    rest = numbers.to(kind)
    start = ahead = torch.zeros((), dtype=kind, device=numbers.device)
    rank = len(windows.kernel)
    for d in range(rank):
        inner, within = math.prod(windows.extents[d + 1 :]), math.prod(windows.kernel[d + 1 :])
        steps = _whole(rest, within, windows.kernel[d])
        rest = rest - steps * within
        begins = torch.arange(windows.outputs[d], dtype=kind, device=numbers.device) * windows.stride[d] - windows.padding[d]
        start = start + begins.view([-1 if e == d else 1 for e in range(rank)]) * inner
        ahead = ahead + steps * (windows.dilation[d] * inner)
    return (ahead + start).to(torch.int64)


def _whole(value: torch.Tensor, step: int, count: int) -> torch.Tensor:
    """How many whole steps are in a value, fewer than `count`: vectors compare faster than they divide."""
    if step == 1:
        return value
    if count > _MOST_COMPARED:
        return value.div(step, rounding_mode="trunc")
    passed = [(value >= k * step).to(value.dtype) for k in range(1, count)]
    return sum(passed[1:], passed[0]) if passed else torch.zeros_like(value)


__all__ = ["keep_offsets"]
