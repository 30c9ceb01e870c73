"""Which implementation runs a library call: measured on this machine when the program is compiled, and kept as evidence."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from precast.codegen.host_shims import TORCH_NAMES
from precast.lowering.ir import Buffer, Conv, Gemm, View

Record = dict[str, Any]
"""One measurement: {"winner": name, "us": {candidate: microseconds}}; plain data, for the store's tuning cache."""

_memory: dict[str, Record] = {}
WEIGHT_LIMIT = 4_000_000
"""Elements of a weight used for measuring; wider ones are cut along N, which does not change who wins."""

POST_OPS = {
    "none": ("none", "none"), "relu": ("relu", "none"), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"),
    "sigmoid": ("sigmoid", "none"), "tanh": ("tanh", "none"), "silu": ("swish", "none"), "hardswish": ("hardswish", "none"),
    "hardtanh": ("hardtanh", "none"), "leaky_relu": ("leaky_relu", "none"),
}  # fmt: skip
"""oneDNN's name and algorithm of each activation of the IR."""


@cache
def cpu_model() -> str:
    """Vendor, family and model of this CPU: what decides which library wins."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(line.split(":", 1) for line in lines[:30] if ":" in line)
    return " ".join(found.get(k, found.get(k + "\t", "")).strip() for k in ("vendor_id", "cpu family", "model"))


@dataclass
class Chooser:
    """Answers "which implementation", from given tuning records, this process's memory, or a short measurement."""

    tuning: Mapping[str, Record] = field(default_factory=dict)
    measure: bool = True
    used: dict[str, Record] = field(default_factory=dict)
    spent_s: float = 0.0

    def pick(self, key: str, candidates: Mapping[str, Callable[[], Callable[[], object]]], default: str) -> str:
        """The fastest of `candidates` (name to a set-up that returns the timed call); `default` without measuring."""
        full = f"{key} | {cpu_model()} | threads {torch.get_num_threads()} | torch {torch.__version__.split('+')[0]}"
        record = self.tuning.get(full) or _memory.get(full)
        if record is None and self.measure and len(candidates) > 1:
            began = time.perf_counter()
            times = {name: best_of(setup()) for name, setup in candidates.items()}
            record = {"winner": min(times, key=lambda n: times[n]), "us": {n: round(t, 1) for n, t in times.items()}}
            self.spent_s += time.perf_counter() - began
            _memory[full] = record
        if record is None or record["winner"] not in candidates:
            return default
        self.used[full] = record
        return str(record["winner"])


def best_of(call: Callable[[], object], limit_s: float = 0.008, most: int = 8) -> float:
    """Least microseconds of a few runs after one that warms up."""
    call()
    best, began = float("inf"), time.perf_counter()
    for run in range(most):
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        if now - began > limit_s and run >= 2:  # one run alone may have been interrupted
            break
    return best * 1e6


def tensor(view: View, dtype: torch.dtype, size: tuple[int, ...] | None = None) -> torch.Tensor:
    """Random tensor with a view's size and stride (only the order of strides when `size` differs)."""
    sizes = tuple(int(s) for s in view.size) if size is None else size
    strides = tuple(int(s) for s in view.stride)
    if size is not None:
        order = sorted(range(len(sizes)), key=lambda d: (strides[d], sizes[d]))
        step, packed = 1, [0] * len(sizes)
        for d in order:
            packed[d], step = step, step * sizes[d]
        strides = tuple(packed)
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return (torch.rand(max(span, 1)) - 0.5).to(dtype).as_strided(sizes, strides)


def torch_dtype(buffer: Buffer) -> torch.dtype:
    found = getattr(torch, TORCH_NAMES[buffer.dtype])
    assert isinstance(found, torch.dtype)
    return found


def gemm_key(step: Gemm, buffers: Mapping[str, Buffer]) -> str:
    layout = f"a{_layout(step.a)} b{_layout(step.b)}"
    extras = f"{step.activation} bias{step.bias is not None} residual{step.residual is not None}"
    return f"gemm {'x'.join(str(s) for s in step.a.size)}x{step.b.size[-1]} {buffers[step.out].dtype.value} {layout} {extras}"


def _layout(view: View) -> str:
    return "".join("c" if s == 1 else "b" if s == 0 else "s" for s in view.stride)


def gemm_candidates(step: Gemm, buffers: Mapping[str, Buffer]) -> dict[str, Callable[[], Callable[[], object]]]:
    """oneDNN on the ordinary weight with its post-ops, against MKL through addmm."""
    dtype = torch_dtype(buffers[step.a.buffer])
    m, k = (int(s) for s in step.a.size[-2:])
    n = min(int(step.b.size[-1]), max(64, WEIGHT_LIMIT // max(k, 1) // 64 * 64))

    def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        cut = None if n == int(step.b.size[-1]) else (k, n)
        bias = None if step.bias is None else torch.rand(n).to(dtype)
        return tensor(step.a, dtype), tensor(step.b, dtype, cut), bias

    def onednn() -> Callable[[], object]:
        a, b, bias = operands()
        weight, (name, algorithm) = b.t(), POST_OPS[step.activation]
        scalars: list[float] = list(step.activation_args)
        return lambda: torch.ops.mkldnn._linear_pointwise(a, weight, bias, name, scalars, algorithm)

    def mkl() -> Callable[[], object]:
        a, b, bias = operands()
        out = torch.empty(m, n, dtype=dtype)
        if bias is None:
            return lambda: torch.mm(a, b, out=out)
        return lambda: torch.addmm(bias, a, b, out=out)

    return {"onednn": onednn, "mkl": mkl}


def conv_key(step: Conv, buffers: Mapping[str, Buffer]) -> str:
    shape = f"{'x'.join(str(s) for s in step.x.size)} w{'x'.join(str(s) for s in step.weight.size)}"
    extras = f"{step.activation} bias{step.bias is not None} residual{step.residual is not None}"
    return f"conv {shape} {buffers[step.out].dtype.value} x{_layout(step.x)} {extras}"


def conv_candidates(step: Conv, product: Gemm, buffers: Mapping[str, Buffer]) -> dict[str, Callable[[], Callable[[], object]]]:
    """A 1x1 convolution as oneDNN's convolution (which reorders the ordinary weight at each call) or as its product."""
    dtype = torch_dtype(buffers[step.x.buffer])
    name, algorithm = POST_OPS[step.activation]
    scalars: list[float] = list(step.activation_args)
    ones, zeros = [1] * len(step.stride), [0] * len(step.stride)

    def bias() -> torch.Tensor | None:
        return None if step.bias is None else torch.rand(int(step.weight.size[0])).to(dtype)

    def onednn() -> Callable[[], object]:
        x, w, b = tensor(step.x, dtype), tensor(step.weight, dtype), bias()
        return lambda: torch.ops.mkldnn._convolution_pointwise(x, w, b, zeros, ones, ones, 1, name, scalars, algorithm)

    def linear() -> Callable[[], object]:
        a, w, b = tensor(product.a, dtype), tensor(product.b, dtype).t(), bias()
        return lambda: torch.ops.mkldnn._linear_pointwise(a, w, b, name, scalars, algorithm)

    return {"onednn": onednn, "linear": linear}
