"""Timing candidates against one another: races of calls, their keys, and operands to run them on."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from precast.lowering.ir.nodes import Buffer, Conv, Gemm, View
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.torch_dtypes import TORCH_DTYPES

Record = dict[str, Any]
"""One measurement: {"winner": name, "us": {candidate: microseconds}}; plain data, for the store's tuning cache."""

Candidates = Callable[[], dict[str, Callable[[], object]]]
"""Makes the calls to be timed, by name, on operands that they share."""

POST_OPS = {
    "none": ("none", "none"), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "sigmoid": ("sigmoid", "none"),
    "tanh": ("tanh", "none"), "silu": ("swish", "none"), "hardswish": ("hardswish", "none"), "leaky_relu": ("leaky_relu", "none"),
}  # fmt: skip
"""oneDNN's name and algorithm of each activation that it computes as eager does. Its relu and its hardtanh make a bound of NaN."""


MARGIN = 0.95
"""What the time of another candidate must be below, as a part of the default's, to win: less is noise."""


def preemptions() -> int:
    """How often threads of this process had to leave a core to others."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def decide(times: Mapping[str, list[float]], default: str) -> Record:
    """The winner of a race. Another's median has to beat the default's best by the margin: on a busy machine the default stays."""
    limit = MARGIN * min(times[default])
    middle = {name: sorted(found)[len(found) // 2] for name, found in times.items()}
    winner = min((n for n in times if n == default or middle[n] < limit), key=lambda n: min(times[default]) if n == default else middle[n])
    return {"winner": winner, "us": {name: round(min(found), 1) for name, found in times.items()}}


def race(calls: Mapping[str, Callable[[], object]], enough_s: float = 0.02, most: int = 9) -> dict[str, list[float]]:
    """Microseconds of each call over interleaved rounds (at least three), after one round that warms up."""
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    for number in range(most):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append((time.perf_counter() - start) * 1e6)
        if number >= 2 and time.perf_counter() - began > enough_s:
            break
    return found


def tensor(view: View, dtype: torch.dtype) -> torch.Tensor:
    """Tensor with a view's size and stride."""
    sizes, strides = tuple(int(s) for s in view.size), tuple(int(s) for s in view.stride)
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return torch.full((max(span, 1),), 0.5, dtype=dtype).as_strided(sizes, strides)


def torch_dtype(buffer: Buffer) -> torch.dtype:
    """torch's type of a buffer; floats of eight bits are bytes, as kernels see them."""
    return TORCH_DTYPES[DType.U8 if buffer.dtype is DType.FLOAT8 else buffer.dtype]


def gemm_key(step: Gemm, buffers: Mapping[str, Buffer]) -> str:
    layout = f"a{_layout(step.a)} b{_layout(step.b)}"
    extras = f"{_named(step)} bias{step.bias is not None} residual{step.residual is not None}"
    return f"gemm {'x'.join(str(s) for s in step.a.size)}x{step.b.size[-1]} {buffers[step.out].dtype.value} {layout} {extras}"


def _named(step: Gemm | Conv) -> str:
    """The activation in a key: one that oneDNN leaves to another pass is another thing to measure."""
    return step.activation if step.activation in POST_OPS else f"{step.activation} apart"


def _layout(view: View) -> str:
    return "".join("c" if s == 1 else "b" if s == 0 else "s" for s in view.stride)


def view_as_seen(view: View) -> View:
    """The view at the sizes that the traced call had: what is measured where sizes are symbolic."""
    return replace(view, size=tuple(hint(n) for n in view.size), stride=tuple(0 if n == 0 else hint(n) for n in view.stride))


def as_seen(step: Gemm) -> Gemm:
    """The product over such views."""
    bias, residual = (None if v is None else view_as_seen(v) for v in (step.bias, step.residual))
    return replace(step, a=view_as_seen(step.a), b=view_as_seen(step.b), bias=bias, residual=residual)


def conv_key(step: Conv, buffers: Mapping[str, Buffer]) -> str:
    shape = f"{'x'.join(str(s) for s in step.x.size)} w{'x'.join(str(s) for s in step.weight.size)}"
    extras = f"{_named(step)} bias{step.bias is not None} residual{step.residual is not None}"
    return f"conv {shape} {buffers[step.out].dtype.value} x{_layout(step.x)} w{_layout(step.weight)} {extras}"
