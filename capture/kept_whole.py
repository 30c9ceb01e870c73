"""Operators of which torch's own decomposition computes something else than their kernels: they stay whole while a graph is traced.

These rules are dispatched to even where a table of decompositions has none of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey

KEPT_WHOLE = (
    torch.ops.aten.multilabel_margin_loss_forward.default,  # counts what stands behind the first -1, as if it were the label 0
    torch.ops.aten.multi_margin_loss.default,  # takes labels of types that the kernel refuses
)


def without_wrong(decompositions: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions, less those."""
    return {op: rule for op, rule in decompositions.items() if op not in KEPT_WHOLE}


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """Within it, with such a table, the tracer meets these operators as calls."""
    with contextlib.ExitStack() as stack:
        for op in KEPT_WHOLE:
            left = {key: kernel for key, kernel in op.py_kernels.items() if key is not DispatchKey.Autograd}
            stack.enter_context(mock.patch.dict(op.py_kernels, left, clear=True))
            stack.callback(op._dispatch_cache.clear)
            op._dispatch_cache.clear()
        yield


__all__ = ["kept_whole", "without_wrong"]
