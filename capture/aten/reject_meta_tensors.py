"""Tensors that hold no data: on the meta device, or fake. Generated code would read memory that is not there, so such calls run eagerly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from precast.capture.adapters.fake_tensors import FakeTensor
from precast.capture.common.captured_frame import CaptureRefused
from precast.runtime.paths.fake_tensors import is_stand_in


def refusal_of_dataless(inputs: Iterable[Any]) -> CaptureRefused | None:
    """Why a graph of these inputs cannot be compiled for them; None where each holds data, or stands for a tensor that does."""
    kinds = [_kind(value) for value in inputs if isinstance(value, torch.Tensor) and not is_stand_in(value)]
    kind = next(filter(None, kinds), "")
    return CaptureRefused(f"{kind}, which holds no data", hint="to compile ahead of time give real tensors") if kind else None


def _kind(value: torch.Tensor) -> str:
    if isinstance(value, FakeTensor):
        return "a tensor that it reads is a fake one"
    return "a tensor that it reads is on the meta device" if value.is_meta else ""


__all__ = ["refusal_of_dataless"]
