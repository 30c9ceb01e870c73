"""Library selection on a CPU: each product, convolution and attention gets the implementation that a rule or a measurement favours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import sympy

from precast.codegen.common.library_steps import LibraryCall, Pack, RunStep, attention_call
from precast.codegen.common.measure import POST_OPS, as_seen, conv_key, gemm_key
from precast.codegen.cpu.attention import attention_fits
from precast.codegen.cpu.depthwise import DepthwisePack
from precast.codegen.cpu.direct.few_channels import FewChannelsPack
from precast.codegen.cpu.missing_calls import ONEDNN, without_missing
from precast.codegen.cpu.panel_gemm import PanelPack, panel_fits
from precast.codegen.cpu.small_m_gemm import few_rows
from precast.codegen.cpu.tuning import (
    Chooser,
    attention_candidates,
    conv_candidates,
    gemm_candidates,
    panel_conv_candidates,
    plain_conv_candidates,
)
from precast.codegen.cpu.winograd import WinogradPack, winograd_candidates, winograd_shape
from precast.lowering.analysis.depthwise import depthwise_fits, few_channels_fits
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Attention, Buffer, Conv, Gemm, Program, Step, View
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import hint, known
from precast.lowering.passes.fusion.library_loops import attention_products, epilogue_kernel, gemm_kernel

How = Literal["onednn", "aten", "flash", "generated", "linear", "parts", "winograd", "own", "panel", "depthwise", "few channels"]
"""Who computes a library step on a CPU. `aten`: torch's operator, which is MKL for a product. `flash`: torch's attention kernel.
`generated`: a loop, or attention, in C++ of ours. `linear`: a 1x1 convolution over channels-last data as one oneDNN product, which reads
the ordinary weight without reordering it. `parts`: a product with a very large result, column block by column block into memory of ours
(`PART`). `winograd`: a 3x3 convolution by our own code (`winograd.py`). `own`: a product of few rows by our own code
(`small_m_gemm.py`). `panel`: a product, or a 1x1 convolution as one, with all that follows it by our own code (`panel_gemm.py`).
`depthwise`: a depthwise convolution with all that follows it by our own code (`depthwise.py`). `few channels`: a convolution over images of
few channels, alike (`direct/few_channels.py`)."""

TINY = 8_192
"""Multiplications up to which a generated loop beats any library call (a call costs about 1.5 us)."""


LARGE = 32 << 20
"""Bytes of a product from which it is made in parts: beyond, malloc maps and unmaps fresh pages at each call, and oneDNN's result cannot be
asked to lie elsewhere. Blocks of columns stay in recycled, cached memory, and copying them into huge pages costs less than the faults."""
PART = 4096
"""Columns of one part."""


def gemm_parts(step: Gemm) -> list[tuple[int, Gemm]]:
    """First column and product of each column block of `step`, whose operands are matrices of known sizes."""
    width = int(step.b.size[1])
    found = []
    for start in range(0, width, PART):
        count = min(PART, width - start)
        b = replace(step.b, size=(step.b.size[0], count), offset=step.b.offset + start * step.b.stride[1])
        bias = None if step.bias is None else replace(step.bias, size=(count,), offset=step.bias.offset + start)
        found.append((start, replace(step, b=b, bias=bias)))
    return found


_NOTHING_DECIDED: Mapping[str, str] = {}


def expand(
    program: Program,
    steps: Sequence[Step],
    chooser: Chooser,
    prefix: str = "library",
    weights: Collection[str] = (),
    lanes: int = 1,
    decided: Mapping[str, str] = _NOTHING_DECIDED,
) -> list[RunStep]:
    """Replaces every library step by its chosen implementation and, where that lacks the epilogue, a kernel.

    `weights` are the buffers of which packed copies will be made: calls that read them are measured with such copies.
    `lanes` is the number of f32 in the target's vectors. `decided`: who computes the products that write these
    buffers.
    """
    buffers = {b.name: b for b in program.buffers}
    result: list[RunStep] = []
    for number, step in enumerate(steps):
        name = f"{prefix}_{number}"
        match step:
            case Gemm() if step.out in decided:
                result.append(LibraryCall(step, decided[step.out]))
            case Gemm():
                result += _gemm(step, name, buffers, chooser, step.b.buffer in weights)
            case Conv():
                result += _conv(step, name, buffers, chooser, step.weight.buffer in weights, lanes)
            case Attention():
                result.append(_attention(step, buffers))
            case _:
                result.append(step)
    return without_missing(result, chooser.missing) if chooser.missing else result


def pack_weights(
    steps: Sequence[RunStep], weights: frozenset[str], buffers: Mapping[str, Buffer], lanes: int = 1
) -> tuple[list[RunStep], list[Pack]]:
    """Lets library calls read packed copies of `weights`; the copies asked for, in the order of their numbers."""
    packs: list[Pack] = []
    result: list[RunStep] = []
    for step in steps:
        if (
            isinstance(step, LibraryCall)
            and step.how in ("onednn", "linear", "parts", "winograd", "panel", "depthwise", "few channels")
            and isinstance(step.step, Gemm | Conv)
        ):
            call = step.step
            weight, data = (call.b, call.a) if isinstance(call, Gemm) else (call.weight, call.x)
            # the library prepares a convolution for one size of images
            of_sizes = isinstance(call, Conv) and step.how not in ("depthwise", "few channels")
            if weight.buffer in weights and known(*weight.size, *(data.size if of_sizes else ())):
                packed = len(packs)
                packs += _packs(step, call, buffers, lanes)
                step = replace(step, packed=packed)
        result.append(step)
    return result, packs


def _packs(step: LibraryCall, call: Gemm | Conv, buffers: Mapping[str, Buffer], lanes: int) -> list[Pack]:
    shape = winograd_shape(call, buffers, lanes) if step.how == "winograd" and isinstance(call, Conv) else None
    if shape is not None:
        return [WinogradPack(call, shape)]
    if step.how == "depthwise":
        return [DepthwisePack(call)]
    if step.how == "few channels":
        return [FewChannelsPack(call, lanes)]
    if step.how == "panel":
        return [PanelPack(call, lanes)]
    return [Pack(part) for _, part in gemm_parts(call)] if step.how == "parts" and isinstance(call, Gemm) else [Pack(call)]


def _bare(step: Gemm) -> Gemm:
    return replace(step, activation="none", activation_args=(), residual=None)


def product_library(step: Gemm, buffers: Mapping[str, Buffer], chooser: Chooser, packed: bool) -> How:
    """What computes a product: a `generated` loop, `own` code for few rows, `onednn`, or `aten`, which is MKL on a CPU.

    `packed`: with a prepared weight.
    """
    dtype = buffers[step.out].dtype
    sizes = (*step.a.size, *step.b.size)
    if known(*sizes):
        points = int(step.b.size[-1])
        for s in step.a.size:
            points *= int(s)
        if points <= TINY or int(step.a.size[-2]) == 1 and len(step.a.size) == 2 and dtype in (DType.F32, DType.BF16):
            return "generated"
    # oneDNN takes no matrix without a unit stride, and no product that is a sum of nothing
    runs = all(1 in view.stride for view in (step.a, step.b)) and sympy.sympify(step.b.size[-2]).is_positive
    if not runs or len(step.a.size) != 2 or not chooser.onednn_takes(dtype) or (step.bias is not None and step.bias.stride != (1,)):
        return "aten"
    if known(*step.b.size) and chooser.worth_it(int(step.b.size[0]) * int(step.b.size[1])):
        seen = as_seen(step)
        panels = chooser.races_panels(packed) and panel_fits(seen, buffers)
        others = " panels" if panels else " few rows" if few_rows(seen, buffers) else ""
        key = f"{gemm_key(seen, buffers)} with what follows{_notes(seen, packed)}{others}"
        winner = chooser.pick(key, gemm_candidates(seen, buffers, packed, panels), chooser.product_default())
        return _WINNERS.get(winner, "onednn")
    return "onednn"


_WINNERS: Mapping[str, How] = {"mkl": "aten", "own": "own", "panel": "panel"}


def _notes(step: Gemm | Conv, packed: bool) -> str:
    """The end of a choice's key. "by overload": earlier records of steps with a residual had timed torch's search for an overload, too."""
    return (" packed" if packed else "") + (" by overload" if step.residual is not None else "")


def _gemm(step: Gemm, name: str, buffers: Mapping[str, Buffer], chooser: Chooser, packed: bool) -> list[RunStep]:
    how = product_library(step, buffers, chooser, packed)
    match how:
        case "generated":
            return [gemm_kernel(name, step, buffers)]
        case "onednn":
            return _onednn_gemm(step, name, buffers)
        case "panel":
            return [LibraryCall(step, "panel")]
    rest = epilogue_kernel(name, step, buffers)
    return [LibraryCall(_bare(step), how), *([rest] if rest is not None else [])]


def _onednn_gemm(step: Gemm, name: str, buffers: Mapping[str, Buffer]) -> list[RunStep]:
    if step.residual is None and step.activation in POST_OPS:
        return [LibraryCall(step, "parts" if _large(step, buffers[step.out]) else "onednn")]
    same = step.residual is not None and step.residual.stride == buffers[step.out].stride
    if step.residual is not None and step.activation == "none" and same:
        return [LibraryCall(step, "onednn")]
    rest = epilogue_kernel(name, step, buffers)
    return [*_onednn_gemm(_bare(step), name, buffers), *([rest] if rest is not None else [])]


def _large(step: Gemm, out: Buffer) -> bool:
    sizes = (*step.b.size, *step.b.stride, *out.size[1:], *out.stride)
    if len(out.size) != 2 or not known(*sizes, step.b.offset, 0 if step.bias is None else step.bias.offset):
        return False
    return out.stride[1] == 1 and hint(out.size[0]) * int(out.size[1]) * out.dtype.itemsize >= LARGE and int(out.size[1]) > PART


SMALL_ROWS = 4096
"""Pixels up to which a 1x1 convolution may gain by running as a product; beyond, both were measured to be the same."""


def rows_view(view: View) -> View | None:
    """Channels-last [N, C, *spatial] as the matrix [pixels, C]; None where memory does not lie so."""
    size, stride = view.size, view.stride
    if not known(*size, *stride) or int(stride[1]) != 1:
        return None
    step = int(size[1])
    for dimension in (*range(len(size) - 1, 1, -1), 0):
        if int(size[dimension]) != 1 and int(stride[dimension]) != step:
            return None
        step *= int(size[dimension])
    return View(view.buffer, (step // int(size[1]), size[1]), (size[1], 1), view.offset, view.dtype)


def panel_conv(step: Conv, buffers: Mapping[str, Buffer], packed: bool = False) -> Gemm | None:
    """A 1x1 convolution with all that follows it as a product that our own code takes. With a `packed` weight that is any, also one of a
    few pixels or channels (the gate of a squeeze-and-excitation block), for which a library's call costs more than its products.
    """
    product = _as_product(step, buffers)
    return product if product is not None and panel_fits(product, buffers, any_size=packed) else None


def _pointwise_conv(step: Conv, buffers: Mapping[str, Buffer]) -> Gemm | None:
    """A 1x1 convolution of few pixels, with no activation after a residual, as a product."""
    if step.residual is not None and step.activation != "none":
        return None
    product = _as_product(step, buffers)
    return None if product is None or int(product.a.size[0]) > SMALL_ROWS else product


def _as_product(step: Conv, buffers: Mapping[str, Buffer]) -> Gemm | None:
    """A 1x1 convolution of stride one over channels-last data as the product that it is (its `out` keeps the convolution's shape)."""
    plain = all(s == 1 for s in step.stride) and not any(step.padding) and step.groups == 1 and not step.transposed
    if not plain or not all(int(n) == 1 for n in step.weight.size[2:] if known(n)) or not known(*step.weight.size, *step.weight.stride):
        return None
    out = buffers[step.out]
    x, result = rows_view(step.x), rows_view(View(step.out, out.size, out.stride))
    residual = None if step.residual is None else rows_view(step.residual)
    if x is None or result is None or (step.residual is not None and residual is None) or int(step.weight.stride[1]) != 1:
        return None
    weight = View(step.weight.buffer, step.weight.size[1::-1], (1, step.weight.stride[0]), step.weight.offset, step.weight.dtype)
    return Gemm(x, weight, step.bias, step.out, step.activation, step.activation_args, residual, step.residual_order)


def _plain_pointwise(step: Conv, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a step is a 1x1 convolution of stride one over contiguous images of known sizes, with nothing behind it but a bias."""
    out = buffers[step.out]
    sizes = (*step.x.size, *step.x.stride, *step.weight.size, *step.weight.stride, *out.stride)
    if len(step.x.size) != 4 or step.activation != "none" or step.residual is not None or step.groups != 1 or not known(*sizes):
        return False
    unit = all(int(n) == 1 for n in (*step.weight.size[2:], *step.stride)) and not any(step.padding)
    contiguous = all(tuple(v.stride) == ix.contiguous_strides(v.size) for v in (step.x, out))
    return unit and contiguous and int(step.x.size[1]) > 1


def _conv(step: Conv, name: str, buffers: Mapping[str, Buffer], chooser: Chooser, packed: bool, lanes: int) -> list[RunStep]:
    if depthwise_fits(step, buffers):
        return [LibraryCall(step, "depthwise")]
    if few_channels_fits(step, buffers):
        return [LibraryCall(step, "few channels")]
    shape = winograd_shape(step, buffers, lanes)
    if shape is not None and not chooser.missing & ONEDNN:  # it is measured against oneDNN
        key = f"{conv_key(step, buffers)} padding{list(step.padding)}{_notes(step, packed)}"
        default = "winograd" if packed and shape.pays else "onednn"
        if chooser.pick(key, winograd_candidates(step, shape, buffers, packed), default) == "winograd":
            return [LibraryCall(step, "winograd")]
    if chooser.onednn_takes(buffers[step.out].dtype) and not step.transposed and len(step.x.size) in (4, 5):
        whole = panel_conv(step, buffers, packed) if chooser.measure else None
        if whole is not None:
            key = f"{conv_key(step, buffers)} panels{_notes(step, packed)}"
            if chooser.pick(key, panel_conv_candidates(step, whole, buffers, packed), chooser.pixel_default()) == "panel":
                return [LibraryCall(whole, "panel")]
        product = _pointwise_conv(step, buffers)
        key = conv_key(step, buffers) + (" packed" if packed else "")
        if product is not None and chooser.pick(key, conv_candidates(step, product, buffers, packed), "onednn") == "linear":
            return _with_rest(step, product, "linear", name, buffers)
        if _plain_pointwise(step, buffers):
            default = "onednn" if packed else "aten"  # what eager runs: a short measurement on fresh pages should not lose to it
            if chooser.pick(key, plain_conv_candidates(step, buffers, packed), default) == "aten":
                return [LibraryCall(step, "aten")]
        if step.residual is None:
            return _with_rest(step, step, "onednn", name, buffers)
        apart = step.activation != "none" and step.activation not in POST_OPS
        if step.residual_order == "before" and step.residual.stride == buffers[step.out].stride and (step.activation == "none" or apart):
            rest = epilogue_kernel(name, replace(step, residual=None), buffers) if apart else None
            return [LibraryCall(replace(step, activation="none", activation_args=()), "onednn"), *([rest] if rest is not None else [])]
        return _with_rest(step, replace(step, residual=None), "onednn", name, buffers, apart=True)
    return _with_rest(step, step, "aten", name, buffers, apart=True)


def _with_rest(step: Conv, call: Conv | Gemm, how: How, name: str, buffers: Mapping[str, Buffer], *, apart: bool = False) -> list[RunStep]:
    """The library's `call` for a convolution, and a kernel for what it leaves; `apart`: the activation and the residual in any case."""
    if not apart and step.activation in POST_OPS:
        return [LibraryCall(call, how)]
    rest = epilogue_kernel(name, step, buffers)
    bare = replace(call, activation="none", activation_args=(), residual=None)
    return [LibraryCall(bare, how), *([rest] if rest is not None else [])]


def write_out_attention(program: Program, chooser: Chooser) -> Program:
    """The program with attention that it had as products and a softmax in bfloat16 as those again, where oneDNN's products are faster than
    the many small ones of the library's attention.
    """
    steps: list[Step] = []
    buffers = {b.name: b for b in program.buffers}
    for number, step in enumerate(program.steps):
        if not isinstance(step, Attention) or not _as_products(step, buffers, chooser):
            steps.append(step)
            continue
        made, more = attention_products(f"attention_{number}", step, buffers)
        steps += made
        buffers |= {b.name: b for b in more}
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values())) if len(steps) > len(program.steps) else program


def _as_products(step: Attention, buffers: Mapping[str, Buffer], chooser: Chooser) -> bool:
    dtype, sizes = buffers[step.out].dtype, (*step.q.size, *step.k.size, *step.v.size)
    strides = (*step.q.stride, *step.k.stride, *step.v.stride)
    if not step.written_out or step.causal or step.mask is not None or dtype is not DType.BF16 or not known(*sizes, *strides):
        return False
    if not chooser.onednn_takes(dtype) or step.q.size[:2] != step.k.size[:2]:
        return False
    scores = int(ix.numel((*step.q.size[:3], step.k.size[2]))) * dtype.itemsize
    if not 0 < scores <= LARGE or not all(1 in view.stride[2:] for view in (step.q, step.k, step.v)):
        return False
    key = f"attention {dtype.value} {[int(n) for n in sizes]} {[int(n) for n in strides]}"
    return chooser.pick(key, attention_candidates(step, buffers), "products") == "products"


def _attention(step: Attention, buffers: Mapping[str, Buffer]) -> RunStep:
    if attention_fits(step, buffers):
        return LibraryCall(step, "generated")
    unit = all(v.stride[-1] == 1 for v in (step.q, step.k, step.v))
    masked = step.mask is None or (len(step.mask.size) == 4 and buffers[step.mask.buffer].dtype is buffers[step.out].dtype)
    square = step.q.size[-1] == step.v.size[-1]
    if unit and masked and square and step.q.size[1] == step.k.size[1] and buffers[step.out].dtype.value in ("f32", "bf16", "f16", "f64"):
        return LibraryCall(step, "flash")
    return attention_call(step)
