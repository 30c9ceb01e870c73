"""Sizes that depend on data and that torch's own tracing loses: a refusal that says so."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from precast.capture.adapters.fake_tensors import PendingUnbackedSymbolNotFound
from precast.capture.common.captured_frame import CaptureRefused

_LINE = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def sizes_expressed(inputs: Sequence[Any]) -> Iterator[None]:
    """While it lasts, torch's complaint about a size that no result has becomes a CaptureRefused. `inputs`: those of the graph.

    `x[:n.item()]` of a tensor with 0 rows has 0 rows, whatever the number: torch made a symbol for them and then misses it.
    """
    try:
        yield
    except PendingUnbackedSymbolNotFound as error:
        lines = _LINE.findall(str(error))
        where = ":".join(lines[-1]) if lines else ""
        what = "torch cannot express a size here that depends on data"
        if any(isinstance(t, torch.Tensor) and any(n == 0 for n in t.shape if isinstance(n, int)) for t in inputs):
            hint = "such calls, with a tensor that has no elements, run eagerly, and others are compiled; else return early for them"
            raise CaptureRefused(f"{what}, as part of a tensor without elements", where, hint) from error
        first = str(error).strip().partition("\n")[0]
        hint = "a fake implementation of an operator may make more sizes than its results have"
        raise CaptureRefused(f"{what}: {first}", where, hint) from error


__all__ = ["sizes_expressed"]
