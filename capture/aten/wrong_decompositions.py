"""Operators of which torch's own decomposition computes something else than their kernels: they stay whole while a graph is traced, or
are taken to the form that a table of decompositions knows. Torch's rules for these are dispatched to even where a table of decompositions
has none of them, or another one.

And norms, of which torch's rules round what the kernels keep for the backward pass.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._C import DispatchKey

from precast.capture.adapters.fake_tensors import guard_or_false
from precast.capture.adapters.operators import upsample_compute_output_size
from precast.capture.common.patching import replaced

KEPT_WHOLE = (
    torch.ops.aten.multilabel_margin_loss_forward.default,  # counts what stands behind the first -1, as if it were the label 0
    torch.ops.aten.multi_margin_loss.default,  # takes labels of types that the kernel refuses
)

INTERPOLATIONS = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
"""Torch's rules lose infinite pixels, and take integers that the kernels refuse."""

NEAREST = tuple(f"{name}{rank}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3))
"""Torch's rules make empty results where the kernels refuse them, and empty images."""


def without_wrong(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions, less those."""
    return {op: rule for op, rule in decompositions.items() if op not in KEPT_WHOLE}


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """Within it, with such a table, the tracer meets these operators as calls."""
    with contextlib.ExitStack() as stack:
        for op in KEPT_WHOLE:
            stack.enter_context(_kernels(op, {}))
        for name in INTERPOLATIONS:
            _take_over(stack, getattr(torch.ops.aten, name))
        for name in NEAREST:
            _keep_out_empty(stack, getattr(torch.ops.aten, name))
        yield


def _take_over(stack: contextlib.ExitStack, packet: Any) -> None:
    """An interpolation by sizes is met as a call, and one by factors becomes it."""
    output_size: Any = upsample_compute_output_size

    def by_factors(image: torch.Tensor, size: Any, align_corners: bool, factors: Any) -> torch.Tensor:
        found = output_size(image.size(), size, factors)
        result: torch.Tensor = packet.default(image, found, align_corners, *(factors or [None] * len(found)))
        return result

    forms: tuple[tuple[Any, dict[Any, Any]], ...] = (
        (packet.vec, {DispatchKey.CompositeImplicitAutograd: by_factors}),
        (packet.default, {}),
    )
    for op, kernels in forms:
        stack.enter_context(_kernels(op, kernels))


def _keep_out_empty(stack: contextlib.ExitStack, packet: Any) -> None:
    """Torch's rules for an operator that takes the nearest pixels stay, for images and results that have some, in each channel. With
    others the operator is met as a call, which raises eager's error.
    """
    op: Any = packet.default
    output_size: Any = upsample_compute_output_size

    def empty(image: torch.Tensor, sizes: Any) -> bool:
        return any(guard_or_false(n == 0) for n in (*image.shape[1:], *sizes))

    def by_factors(rule: Callable[..., Any], image: torch.Tensor, size: Any, factors: Any) -> Any:
        found = output_size(image.size(), size, factors)
        if empty(image, found):
            return op(image, found, *(factors or [None] * len(found)))
        if factors and packet is torch.ops.aten.upsample_nearest2d and image.device.type == "cpu":
            used = [None if _goes_by_sizes(*each) else each[2] for each in zip(image.shape[2:], found, factors, strict=True)]
            return op(image, found, *used) if None in used else rule(image, size, factors)
        return rule(image, size, factors)

    def recorded(rule: Callable[..., Any], image: torch.Tensor, size: Any, *factors: Any) -> Any:
        if not empty(image, size):
            return rule(image, size, *factors)
        with torch._C._AutoDispatchBelowAutograd():
            return op(image, size, *factors)

    def decomposed(rule: Callable[..., Any], image: torch.Tensor, size: Any, *factors: Any) -> Any:
        return NotImplemented if empty(image, size) else rule(image, size, *factors)

    def described(rule: Callable[..., Any], image: torch.Tensor, size: Any, *factors: Any) -> Any:
        return image.new_empty((*image.shape[:2], *size)) if empty(image, size) else rule(image, size, *factors)

    composite, autograd, meta = DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd, DispatchKey.Meta
    for form, kernels in ((packet.vec, dict.fromkeys((composite, autograd), by_factors)),
                          (op, {composite: decomposed, autograd: recorded, meta: described})):  # fmt: skip
        rules = {key: partial(kernel, form.py_kernels[key]) for key, kernel in kernels.items() if key in form.py_kernels}
        stack.enter_context(_kernels(form, rules))


def _goes_by_sizes(extent: Any, size: Any, factor: float) -> bool:
    """Whether eager's kernel for images on a CPU looks at the sizes alone, which it does where one stays or doubles: a factor of 1.1 leaves
    5, and the fifth pixel is the fifth, not the one at 4 / 1.1. Of sizes of the run time that is a guard.
    """
    return bool(1 < factor < 2 and size == extent) or bool(2 < factor < 3 and size == 2 * extent)


NORMS = (
    torch.ops.aten.native_layer_norm.default,
    torch.ops.aten.native_group_norm.default,
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
)


def unrounded_statistics(graph: torch.fx.Graph) -> None:
    """Means and deviations in float32 where a norm on a CPU takes a half type and weights or statistics in float32: those who read them
    widen them anyway.
    """
    for node in graph.nodes:
        if node.target not in NORMS:
            continue
        given = [n.meta["val"] for n in node.all_input_nodes]
        x = node.args[0].meta["val"]
        if x.device.type != "cpu" or x.dtype not in (torch.bfloat16, torch.float16) or all(t.dtype != torch.float32 for t in given):
            continue
        result, *rest = node.meta["val"]
        node.meta["val"] = (result, *(t.to(torch.float32) for t in rest))
        for part in node.users:
            if part.target is operator.getitem and part.args[1] != 0:
                part.meta["val"] = node.meta["val"][part.args[1]]


@contextlib.contextmanager
def _kernels(op: Any, more: Mapping[Any, Any]) -> Iterator[None]:
    """The operator's kernels in Python, without that of Autograd but with `more`; what was found of them before is looked up anew."""
    kernels = {key: kernel for key, kernel in op.py_kernels.items() if key is not DispatchKey.Autograd} | dict(more)
    try:
        with replaced(op, "py_kernels", kernels):
            op._dispatch_cache.clear()
            yield
    finally:
        op._dispatch_cache.clear()


__all__ = ["kept_whole", "unrounded_statistics", "without_wrong"]
