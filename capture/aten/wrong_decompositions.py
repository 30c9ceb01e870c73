"""Operators of which torch's own decomposition computes something else than their kernels: they stay whole while a graph is traced, or
are taken to the form that a table of decompositions knows.

Torch's rules for these are dispatched to even where a table of decompositions has none of them, or another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._C import DispatchKey

from precast.capture.adapters.operators import upsample_compute_output_size
from precast.capture.common.patching import replaced

KEPT_WHOLE = (
    torch.ops.aten.multilabel_margin_loss_forward.default,  # counts what stands behind the first -1, as if it were the label 0
    torch.ops.aten.multi_margin_loss.default,  # takes labels of types that the kernel refuses
)

INTERPOLATIONS = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
"""Torch's rules lose infinite pixels, and take integers that the kernels refuse."""


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


@contextlib.contextmanager
def _kernels(op: Any, more: Mapping[Any, Any]) -> Iterator[None]:
    """The operator's kernels in Python, without that of Autograd and with `more`; what was found of them before is looked up anew."""
    kernels = {key: kernel for key, kernel in {**op.py_kernels, **more}.items() if key is not DispatchKey.Autograd}
    try:
        with replaced(op, "py_kernels", kernels):
            op._dispatch_cache.clear()
            yield
    finally:
        op._dispatch_cache.clear()


__all__ = ["kept_whole", "without_wrong"]
