"""Which implementation runs a library call: measured on this machine when the program is compiled, and kept as evidence."""

from __future__ import annotations

import math
import platform
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from precast.codegen.common.measure import POST_OPS, Candidates, Record, decide, preemptions, race, tensor, torch_dtype
from precast.codegen.cpu.missing_calls import ONEDNN
from precast.codegen.cpu.panel_gemm import panel_call, panel_fits
from precast.codegen.cpu.small_m_gemm import few_rows, product_call
from precast.lowering.ir.nodes import Attention, Buffer, Conv, Gemm, View
from precast.lowering.ir.scalars import DType

_memory: dict[str, Record] = {}
WEIGHT_LIMIT = 8_000_000
"""Elements of a weight up to which its product is measured. Beyond, one sample would cost too much, and MKL was never seen to win."""


@cache
def cpu_model() -> str:
    """Vendor, family and model of this CPU: what decides which library wins."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines[:30])}
    return " ".join(found.get(k, "") for k in ("vendor_id", "cpu family", "model"))


BUDGET_S = 0.6
"""Seconds of measuring per graph: library calls met after that take the default, which seldom loses by much."""
THOROUGH = (0.2, 40)
"""Seconds and rounds at most for one library call when every one is measured."""

CALM, CALM_PER_S = 4, 40
"""Preemptions, and these per second, up to which a measurement counts. Threads that wait for one that others put to sleep make any
library look slow, and some more so than others: then it is measured again, and after some ATTEMPTS the default stays, and nothing is
remembered."""
ATTEMPTS = 3
DEAR_S = 0.1
"""Seconds of a race that is run once only: what few large calls take is not to use up the time of all others."""


def takes_bfloat16(target: str) -> bool:
    """Whether oneDNN computes in bfloat16 wherever code for the target runs: it needs AVX-512 (BW, VL, DQ) or AVX-NE-CONVERT."""
    if target == "cpu:native":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return target == "cpu:x86-64-v4"


def tuning_name() -> str:
    """Name of the record that keeps choices measured on this kind of CPU with this number of threads."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", f"{cpu_model()} threads {torch.get_num_threads()}")[:128]


@dataclass
class Chooser:
    """Answers "which implementation", from given tuning records, this process's memory, or a short measurement.

    `measure`: without it, what other programs of this process measured counts for nothing: the same input gives the same program.
    `thorough`: measures each call anew, with more rounds, for `seconds` at most. `bfloat16`: oneDNN takes it on the target.
    `alone()`: each measurement is made in it. `missing`: what the torch at hand lacks of what library calls need.
    """

    tuning: Mapping[str, Record] = field(default_factory=dict)
    measure: bool = True
    thorough: bool = False
    bfloat16: bool = True
    used: dict[str, Record] = field(default_factory=dict)
    spent_s: float = 0.0
    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    missing: frozenset[str] = frozenset()
    seconds: float = math.inf

    def worth_it(self, elements: int) -> bool:
        """Whether a product with a weight of so many elements is to be measured."""
        return self.thorough or elements <= WEIGHT_LIMIT

    def onednn_takes(self, dtype: DType) -> bool:
        """Whether oneDNN computes products and convolutions in this type on the target."""
        return not self.missing & ONEDNN and (dtype is DType.F32 or (dtype is DType.BF16 and self.bfloat16))

    def product_default(self) -> str:
        """Who computes a product where nothing is measured, or too noisily, or none is clearly faster: MKL on an Intel chip."""
        return "mkl" if self.measure and cpu_model().startswith("GenuineIntel") else "onednn"

    def pixel_default(self) -> str:
        """The same for a 1x1 convolution of channels-last images. Our own writes where the program wants it, with all that follows in the
        same pass, while the library's result is a new tensor of pages to be touched first.
        """
        return "onednn" if cpu_model().startswith("GenuineIntel") else "panel"

    def races_panels(self, packed: bool) -> bool:
        """Whether our own product over panels takes part in a race of products. Compiling it for that takes a second, and on Intel chips
        MKL loses to it with a `packed` weight at most.
        """
        return self.measure and (packed or self.thorough or not cpu_model().startswith("GenuineIntel"))

    def pick(self, key: str, candidates: Candidates, default: str) -> str:
        """The fastest of `candidates`; `default` without measuring, or where no other is faster by a margin."""
        full = f"{key} | {cpu_model()} | threads {torch.get_num_threads()} | torch {torch.__version__.split('+')[0]}"
        thorough = self.thorough and self.measure
        remembered = _memory if self.measure else {}
        record = self.used.get(full) if thorough else self.tuning.get(full) or remembered.get(full)
        if record is None and self.measure:
            with self.alone():
                record = self._measured(candidates, default, thorough)
            if record is not None:
                _memory[full] = record
        if record is None:
            return default
        self.used[full] = record
        return str(record["winner"])

    def _measured(self, candidates: Candidates, default: str, thorough: bool) -> Record | None:
        """A race that was not disturbed; None where each attempt was, or no time is left."""
        calls: dict[str, Callable[[], object]] | None = None
        for _ in range(ATTEMPTS):
            if self.spent_s >= (self.seconds if thorough else BUDGET_S):
                break
            calls = candidates() if calls is None else calls
            began, before = time.perf_counter(), preemptions()
            times = race(calls, *THOROUGH) if thorough else race(calls)
            took = time.perf_counter() - began
            self.spent_s += took
            if thorough or preemptions() - before <= CALM + took * CALM_PER_S:
                return decide(times, default)
            if took > DEAR_S:
                break
        return None


_IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "relu": torch.relu_, "gelu": torch.ops.aten.gelu_.default, "gelu_tanh": lambda t: torch.ops.aten.gelu_.default(t, approximate="tanh"),
    "sigmoid": torch.sigmoid_, "tanh": torch.tanh_, "silu": torch.ops.aten.silu_.default, "hardswish": torch.ops.aten.hardswish_.default,
}  # fmt: skip
"""A pass over a product's result that costs what its activation costs; the others of `POST_OPS` cost what relu does."""


def gemm_candidates(step: Gemm, buffers: Mapping[str, Buffer], packed: bool, panels: bool = False) -> Candidates:
    """oneDNN, which takes bias, activation or residual itself, on the ordinary (or the `packed`) weight, against MKL and one more pass,
    and against our own code for few rows, and that pass. With `panels` our own product over panels, which does it all, takes part.

    The pass stands for a kernel of ours, which does everything that follows such a product at once.
    """
    dtype = torch_dtype(buffers[step.a.buffer])
    m, n = int(step.a.size[0]), int(step.b.size[1])
    fused = step.activation in POST_OPS and step.residual is None
    name, algorithm = POST_OPS[step.activation] if fused else ("none", "none")
    scalars: list[float] = list(step.activation_args) if fused else []
    apart = step.activation not in POST_OPS

    def make() -> dict[str, Callable[[], object]]:
        bias = None if step.bias is None else torch.full((n,), 0.5, dtype=dtype)
        a, b = tensor(step.a, dtype), tensor(step.b, dtype)
        weight = torch.ops.mkldnn._reorder_linear_weight(b.t(), m) if packed else b.t()
        out = torch.empty(m, n, dtype=dtype)
        other = None if step.residual is None else torch.full((m, n), 0.5, dtype=dtype)

        def onednn() -> object:
            if other is not None:
                return torch.ops.mkldnn._linear_pointwise.binary(a, other, weight, bias, "add")
            found = torch.ops.mkldnn._linear_pointwise.default(a, weight, bias, name, scalars, algorithm)
            return torch.relu_(found) if apart else found

        def rest() -> object:
            if step.activation != "none":
                return _IN_PLACE.get(step.activation, torch.relu_)(out)
            if other is not None:
                return out.add_(other)
            return out if bias is None else out.add_(bias)

        def mkl() -> object:
            torch.mm(a, b, out=out)
            return rest()

        if panels and panel_fits(step, buffers):
            return {"onednn": onednn, "mkl": mkl, "panel": panel_call(a, b, out, step, packed, other)}
        if not few_rows(step, buffers):
            return {"onednn": onednn, "mkl": mkl}
        product = product_call(a, b, out, torch.get_num_threads())

        def own() -> object:
            product()
            return rest()

        return {"onednn": onednn, "mkl": mkl, "own": own}

    return make


def conv_candidates(step: Conv, product: Gemm, buffers: Mapping[str, Buffer], packed: bool) -> Candidates:
    """A 1x1 convolution as oneDNN's convolution (which reorders an ordinary weight at each call) or as its product."""
    dtype = torch_dtype(buffers[step.x.buffer])
    name, algorithm = POST_OPS.get(step.activation, ("none", "none"))  # one that is apart follows either
    scalars: list[float] = list(step.activation_args) if step.activation in POST_OPS else []
    ones, zeros = [1] * len(step.stride), [0] * len(step.stride)

    def make() -> dict[str, Callable[[], object]]:
        bias = None if step.bias is None else torch.full((int(step.weight.size[0]),), 0.5, dtype=dtype)
        x, w = tensor(step.x, dtype), tensor(step.weight, dtype)
        a, b = tensor(product.a, dtype), tensor(product.b, dtype).t()
        if packed:
            w = torch.ops.mkldnn._reorder_convolution_weight(w, zeros, ones, ones, 1, list(x.shape))
            b = torch.ops.mkldnn._reorder_linear_weight(b, a.shape[0])
        return {
            "onednn": lambda: torch.ops.mkldnn._convolution_pointwise.default(x, w, bias, zeros, ones, ones, 1, name, scalars, algorithm),
            "linear": lambda: torch.ops.mkldnn._linear_pointwise.default(a, b, bias, name, scalars, algorithm),
        }

    return make


def panel_conv_candidates(step: Conv, product: Gemm, buffers: Mapping[str, Buffer], packed: bool) -> Candidates:
    """A 1x1 convolution as oneDNN's and a pass over the result for what that leaves, or as our own product over panels."""
    name, algorithm = POST_OPS.get(step.activation, ("none", "none"))
    apart, kept = step.activation not in POST_OPS, step.residual is not None and step.residual_order == "before"
    ones, zeros = [1] * len(step.stride), [0] * len(step.stride)
    dtype = torch.float32

    def make() -> dict[str, Callable[[], object]]:
        bias = None if step.bias is None else torch.full((int(step.weight.size[0]),), 0.5)
        x, w = tensor(step.x, dtype), tensor(step.weight, dtype)
        shape = buffers[step.out]
        result = tensor(View(step.out, shape.size, shape.stride), dtype)
        residual = None if step.residual is None else result.clone()
        theirs = torch.ops.mkldnn._reorder_convolution_weight(w, zeros, ones, ones, 1, list(x.shape)) if packed else w

        def onednn() -> object:
            if kept and residual is not None:
                found = torch.ops.mkldnn._convolution_pointwise.binary(
                    x, residual, theirs, bias, zeros, ones, ones, 1, "add", None, None, [], None
                )
            else:
                found = torch.ops.mkldnn._convolution_pointwise.default(x, theirs, bias, zeros, ones, ones, 1, name, [], algorithm)
            return torch.relu_(found) if apart else found

        a, b = tensor(product.a, dtype), tensor(product.b, dtype)
        out, other = (None if t is None else t.permute(0, *range(2, t.dim()), 1).reshape(-1, t.shape[1]) for t in (result, residual))
        assert out is not None
        return {"onednn": onednn, "panel": panel_call(a, b, out, product, packed, other)}

    return make


def plain_conv_candidates(step: Conv, buffers: Mapping[str, Buffer], packed: bool) -> Candidates:
    """A 1x1 convolution over contiguous images as oneDNN's, which changes their layout and back, or as torch's own choice."""
    dtype = torch_dtype(buffers[step.x.buffer])
    ones, zeros = [1] * len(step.stride), [0] * len(step.stride)

    def make() -> dict[str, Callable[[], object]]:
        bias = None if step.bias is None else torch.full((int(step.weight.size[0]),), 0.5, dtype=dtype)
        x, w = tensor(step.x, dtype), tensor(step.weight, dtype)
        theirs = torch.ops.mkldnn._reorder_convolution_weight(w, zeros, ones, ones, 1, list(x.shape)) if packed else w
        return {
            "onednn": lambda: torch.ops.mkldnn._convolution_pointwise.default(x, theirs, bias, zeros, ones, ones, 1, "none", [], "none"),
            "aten": lambda: torch.conv2d(x, w, bias),
        }

    return make


def attention_candidates(step: Attention, buffers: Mapping[str, Buffer]) -> Candidates:
    """Attention as the library's, or as two products and a softmax in memory that is at hand."""
    dtype = torch_dtype(buffers[step.q.buffer])

    def make() -> dict[str, Callable[[], object]]:
        q, k, v = (tensor(view, dtype) for view in (step.q, step.k, step.v))
        a, b, c = q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1)
        scores, out = (
            torch.empty(a.shape[0], a.shape[1], b.shape[2], dtype=dtype),
            torch.empty(a.shape[0], a.shape[1], c.shape[2], dtype=dtype),
        )
        shares = torch.empty_like(scores)

        def products() -> object:
            torch.bmm(a, b, out=scores)
            torch.ops.aten._softmax.out(scores, -1, False, out=shares)
            return torch.bmm(shares, c, out=out)

        return {
            "flash": lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=step.scale),
            "products": products,
        }

    return make
