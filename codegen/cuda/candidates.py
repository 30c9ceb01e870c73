"""The ways in which a library step can run on CUDA, as data: names, the default's rule, and calls that a tuner can time.

The rules come from measurements on an H200 (docs/benchmarks-gpu.md). What no way but torch's own operator takes has one name, "aten".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import sympy
import torch
import torch.nn.functional as F

from precast.attention_results import CUDNN_DEPTH
from precast.codegen.common.measure import as_seen, conv_key, gemm_key, torch_dtype, view_as_seen
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Attention, Buffer, Conv, Extern, Gemm, Size, View
from precast.lowering.ir.scalars import HALVES, DType
from precast.lowering.ir.sizes import hint
from precast.lowering.passes.gpu.pad_matmul_rows import VECTOR

Buffers = Mapping[str, Buffer]
Calls = Callable[[], dict[str, Callable[[], object]]]

ACTIVATIONS = ("relu", "gelu_tanh")
"""What cuBLASLt applies to a product with a bias: exactly eager's functions, without the rounding in between."""
FLASH_DEPTH = 256
PLACE = "cuda"
"""Where the operands of what is timed lie."""


@dataclass(frozen=True)
class Choice:
    """One question: `names` are the possible answers, `calls` makes what a tuner times for each of them, on the current device."""

    key: str
    names: tuple[str, ...]
    default: str
    calls: Calls


@dataclass(frozen=True)
class StandIn:
    """What is timed where one of our own kernels takes part, that a tuner does not have: `call` costs as much, `answer` is the result."""

    call: Callable[[], object]
    answer: Callable[[], object] = field(repr=False)

    def __call__(self) -> object:
        return self.call()


def gemm_choice(step: Gemm, buffers: Buffers) -> Choice:
    """A product with an activation: in one call of cuBLASLt ("activation"), or followed by a kernel ("aten")."""
    seen = as_seen(step)
    flat = len(step.a.size) == 2 and step.bias is not None and step.bias.stride == (1,)
    half = buffers[step.out].dtype in HALVES
    exact = step.activation in ACTIVATIONS and (half or step.activation == "relu")  # its gelu is off by some 4e-6
    names = ("activation", "aten") if flat and exact and step.residual is None else ("aten",)

    def calls() -> dict[str, Callable[[], object]]:
        dtype = torch_dtype(buffers[step.out])
        a, b = tensor(seen.a, dtype, 0), tensor(seen.b, dtype, 1, hint(seen.b.size[0]))
        bias = tensor(View("", (b.shape[1],), (1,)), dtype, 2)
        out = torch.empty(a.shape[0], b.shape[1], dtype=dtype, device=PLACE)
        gelu = step.activation == "gelu_tanh"
        after = (lambda x: F.gelu(x, approximate="tanh")) if gelu else torch.relu_
        return {
            "activation": lambda: torch.ops.aten._addmm_activation(bias, a, b, use_gelu=gelu),
            "aten": lambda: after(torch.addmm(bias, a, b, out=out)),
        }

    return Choice(gemm_key(seen, buffers), names, names[0], calls)


def split_of(step: Gemm, buffers: Buffers) -> tuple[int, int, int] | None:
    """How many rows, terms of each sum, and columns are a whole number of vectors, where lowering gave rows of an operand or of the result
    room for that (`lowering/passes/gpu/pad_matmul_rows.py`): these are multiplied at full speed, and the last few apart. None: no product
    of that kind.
    """
    out = buffers[step.out]
    if len(out.size) != 2 or step.activation != "none" or step.residual is not None or out.dtype not in HALVES:
        return None
    rows, depth, columns = out.size[0], step.a.size[1], out.size[1]
    most = (
        _whole(rows, step.a.stride[0], step.a.stride[1]),
        _whole(depth, step.a.stride[1], step.a.stride[0]),
        _whole(columns, out.stride[1], out.stride[0]),
    )
    if not any(most):
        return None
    return tuple(m or n for m, n in zip(most, (rows, depth, columns), strict=True))  # type: ignore[return-value]


def _whole(count: Size, along: Size, across: Size) -> int:
    """The elements of a dimension that are whole vectors, where its rows are laid out with room for one more; 0 elsewhere."""
    if along != 1 or not isinstance(count, int | sympy.Integer) or count < VECTOR or count % VECTOR == 0:
        return 0
    return int(count) // VECTOR * VECTOR if across == -(-int(count) // VECTOR) * VECTOR else 0


def conv_choice(step: Conv, buffers: Buffers) -> Choice:
    """A convolution: cuDNN's fused operators ("cudnn"), a product over rows of channels ("product"), or ATen's ("aten")."""
    names: list[str] = []
    if is_product(step, buffers):
        names.append("product")
    if _fuses(step, buffers):
        names.append("cudnn")
    names.append("aten")
    # float32 convolutions may use TF32 by default, float32 products may not: a product could be far slower than what eager runs
    half = buffers[step.out].dtype in HALVES
    default = next(n for n in names if n != "product" or half)
    return Choice(f"{conv_key(step, buffers)} stride{list(step.stride)}", tuple(names), default, lambda: _conv_calls(step, buffers, names))


def _fuses(step: Conv, buffers: Buffers) -> bool:
    if step.groups != 1 and step.weight.size[1] == 1:
        return False  # its fused operators take ten times as long where each channel is a group
    if step.transposed or len(step.x.size) != 4 or step.activation != "relu" or buffers[step.out].dtype not in (*HALVES, DType.F32):
        return False
    residual = step.residual
    return residual is None or (step.residual_order == "before" and residual.size == buffers[step.out].size)


def is_product(step: Conv, buffers: Buffers) -> bool:
    """Whether the convolution multiplies each pixel's channels, which lie side by side, by one matrix, and adds nothing but a bias."""
    plain = not step.transposed and step.groups == 1 and step.residual is None and len(step.x.size) == 4
    single = all(n == 1 for n in (*step.weight.size[2:], *step.stride)) and all(n == 0 for n in step.padding)
    if not plain or not single or step.activation not in ("none", "relu") or (step.activation == "relu" and step.bias is None):
        return False
    out = buffers[step.out]
    return rows_of(step.x) is not None and rows_of(View(out.name, out.size, out.stride)) is not None and step.weight.stride[1] == 1


def rows_of(view: View) -> View | None:
    """A channels-last image [N, C, H, W] as a matrix with a row for each pixel; None where the pixels are not evenly spaced."""
    n, c, h, w = view.size
    pitch = view.stride[3] if w != 1 else view.stride[2] if h != 1 else view.stride[0] if n != 1 else c
    even = (w == 1 or view.stride[3] == pitch) and (h == 1 or view.stride[2] == w * pitch) and (n == 1 or view.stride[0] == h * w * pitch)
    if view.stride[1] != 1 or not even:
        return None
    return View(view.buffer, (ix.numel((n, h, w)), c), (pitch, 1), view.offset, view.dtype)


def weight_matrix(step: Conv) -> View:
    """The weight [O, I, 1, 1] as the right side of a product: [I, O]."""
    weight = step.weight
    return View(weight.buffer, weight.size[1::-1], (1, weight.stride[0]), weight.offset, weight.dtype)


def fused_convolution(step: Conv) -> Extern:
    """The step as one of cuDNN's fused operators, whose `alpha` is 1 where it is not given."""
    sizes = (step.stride, step.padding, step.dilation, step.groups)
    if step.residual is None:
        return Extern("aten::cudnn_convolution_relu", (step.x, step.weight, step.bias, *sizes), (), (step.out,), origins=step.origins)
    arguments = (step.x, step.weight, step.residual, None, step.bias, *sizes)
    return Extern("aten::cudnn_convolution_add_relu", arguments, (), (step.out,), origins=step.origins)


def _conv_calls(step: Conv, buffers: Buffers, names: list[str]) -> dict[str, Callable[[], object]]:
    dtype = torch_dtype(buffers[step.out])
    x, w = (
        tensor(view_as_seen(step.x), dtype, 0),
        tensor(view_as_seen(step.weight), dtype, 1, math.prod(hint(n) for n in step.weight.size[1:])),
    )
    bias = None if step.bias is None else tensor(view_as_seen(step.bias), dtype, 2)
    z = None if step.residual is None else tensor(view_as_seen(step.residual), dtype, 3)
    sizes = (step.stride, step.padding, step.dilation)

    def fused() -> object:
        if z is None:
            return torch.ops.aten.cudnn_convolution_relu(x, w, bias, *sizes, step.groups)
        return torch.ops.aten.cudnn_convolution_add_relu(x, w, z, 1.0, bias, *sizes, step.groups)

    def product() -> object:
        rows, matrix = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]), w.flatten(1).t()
        if step.activation == "relu":
            found = torch.ops.aten._addmm_activation(bias, rows, matrix)
        else:
            found = rows @ matrix if bias is None else torch.addmm(bias, rows, matrix)
        return found.view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2)

    def bare(with_bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.convolution(x, w, with_bias, *sizes, step.transposed, step.output_padding, step.groups)

    def one_pass() -> object:
        out = bare()
        if z is not None:
            return out.add_(z)
        return out if bias is None and step.activation == "none" else torch.relu_(out)

    def whole() -> object:
        out = bare(bias) if z is None else bare(bias) + z
        return out if step.activation == "none" else torch.relu(out)

    every: dict[str, Callable[[], object]] = {"cudnn": fused, "product": product, "aten": StandIn(one_pass, whole)}
    return {name: every[name] for name in names}


def attention_choice(step: Attention, buffers: Buffers) -> Choice:
    """The attention kernels that take the step; "aten" leaves the choice to torch at each call.

    cuDNN's is the fastest on an H200 from one row of queries to thousands, with a mask and without.
    """
    names = (
        *(n for n, fits in (("cudnn", _cudnn_fits), ("flash", _flash_fits), ("efficient", _efficient_fits)) if fits(step, buffers)),
        "aten",
    )
    return Choice(attention_key(step, buffers), names, names[0], lambda: _attention_calls(step, buffers, names))


def attention_key(step: Attention, buffers: Buffers) -> str:
    """What decides which kernel wins: sizes as traced, dtype, mask."""
    q, k = ("x".join(str(hint(n)) for n in v.size) for v in (step.q, step.k))
    mask = (
        "none"
        if step.mask is None
        else "x".join("1" if s == 0 else str(hint(n)) for n, s in zip(step.mask.size, step.mask.stride, strict=True))
    )
    return f"attention q{q} k{k} {buffers[step.out].dtype.value} causal{step.causal} mask {mask}"


def _dense(step: Attention) -> bool:
    """Whether heads of queries, keys and values are as the kernels want them: rows side by side, one depth."""
    views = (step.q, step.k, step.v)
    return all(v.stride[-1] == 1 for v in views) and step.q.size[-1] == step.v.size[-1]


def _depth(step: Attention, most: int) -> bool:
    depth = step.q.size[-1]
    return isinstance(depth, int | sympy.Integer) and int(depth) % 8 == 0 and int(depth) <= most


def _square(step: Attention) -> bool:
    """Kernels differ in where a causal mask lies when there are more keys than queries; eager's begins at the first key."""
    return not step.causal or step.q.size[2] == step.k.size[2]


def _flash_fits(step: Attention, buffers: Buffers) -> bool:
    half = buffers[step.out].dtype in HALVES
    return half and step.mask is None and _dense(step) and _depth(step, FLASH_DEPTH) and _square(step)


def _cudnn_fits(step: Attention, buffers: Buffers) -> bool:
    known = all(isinstance(n, int | sympy.Integer) for v in (step.q, step.k) for n in v.size)  # each size is planned anew
    known = known and step.k.size[2] != 1  # of one key it knows no plan
    dtype, mask = buffers[step.out].dtype, step.mask
    plain = _square(step) if mask is None else not step.causal and mask.stride[-1] == 1 and buffers[mask.buffer].dtype is dtype
    return dtype in HALVES and known and plain and _dense(step) and _depth(step, CUDNN_DEPTH)


def _efficient_fits(step: Attention, buffers: Buffers) -> bool:
    dtype = buffers[step.out].dtype
    if dtype not in (*HALVES, DType.F32) or step.q.size[1] != step.k.size[1] or not _dense(step) or not _depth(step, 1 << 12):
        return False
    mask = step.mask
    if mask is None:
        return _square(step)
    rows = [s for n, s in zip(mask.size[:3], mask.stride[:3], strict=True) if n != 1]
    aligned = all(isinstance(s, int | sympy.Integer) and int(s) % 8 == 0 for s in rows) and _whole_vectors(mask.offset)
    return aligned and not step.causal and mask.stride[-1] == 1 and _whole_vectors(mask.size[-1]) and buffers[mask.buffer].dtype is dtype


def _whole_vectors(count: Size) -> bool:
    return isinstance(count, int | sympy.Integer) and int(count) % 8 == 0


def heads_once(mask: View) -> View:
    """A mask that is the same for all heads, as cuDNN takes it: with one head."""
    return mask if mask.stride[1] != 0 else View(mask.buffer, (mask.size[0], 1, *mask.size[2:]), mask.stride, mask.offset, mask.dtype)


def _attention_calls(step: Attention, buffers: Buffers, names: tuple[str, ...]) -> dict[str, Callable[[], object]]:
    dtype = torch_dtype(buffers[step.out])
    q, k, v = (tensor(view_as_seen(view), dtype, seed) for seed, view in enumerate((step.q, step.k, step.v)))
    mask = None if step.mask is None else tensor(view_as_seen(step.mask), dtype, 3)
    once = None if step.mask is None else tensor(view_as_seen(heads_once(step.mask)), dtype, 3)  # the same numbers: its span is the mask's
    aten, causal, scale = torch.ops.aten, step.causal, step.scale
    grouped = q.shape[1] != k.shape[1]
    every: dict[str, Callable[[], object]] = {
        "flash": lambda: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale),
        "cudnn": lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, once, False, 0.0, causal, False, scale=scale),
        "efficient": lambda: aten._scaled_dot_product_efficient_attention(q, k, v, mask, False, 0.0, causal, scale=scale),
        "aten": lambda: F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped),
    }
    return {name: every[name] for name in names}


def tensor(view: View, dtype: torch.dtype, seed: int, terms: int = 1) -> torch.Tensor:
    """A tensor at `PLACE` with a view's sizes and strides and normal numbers, the same for a seed. `terms`: as many of them are added up
    into each result, which stays of the size of one, so that what is added to it counts in a comparison.
    """
    sizes, strides = tuple(int(n) for n in view.size), tuple(int(n) for n in view.stride)
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    drawn = torch.randn(max(span, 1), device=PLACE, generator=torch.Generator(PLACE).manual_seed(seed))
    return (drawn / math.sqrt(max(terms, 1))).to(dtype).as_strided(sizes, strides)
