"""Library calls in host programs for CUDA."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Protocol

from precast.codegen.common.library_steps import LibraryCall
from precast.codegen.cuda.candidates import heads_once, rows_of, split_of, weight_matrix
from precast.codegen.host.aten_calls import Writer as AtenWriter
from precast.codegen.host.aten_calls import aten_convolution, aten_gemm, optional, show, show_convolution
from precast.lowering.ir.nodes import Attention, Conv, Gemm, Size, View


class Writer(AtenWriter, Protocol):
    """What this file needs of the host writer."""

    def add(self, line: str) -> None: ...
    def free_shim(self) -> str: ...


def writes_in_place(call: LibraryCall) -> bool:
    """Whether the call writes memory that the host program supplies (`out=`); others return a tensor of their own."""
    match call.step:
        case Gemm():
            return call.how in ("aten", "split")
        case Conv() as step:
            return call.how == "product" and step.activation == "none"
        case _:
            return False


def emit_library(writer: Writer, call: LibraryCall, label: str) -> None:
    """Writes the C++ of one library call."""
    match call.step:
        case Gemm() as step if call.how == "activation":
            target = _activated(writer, step, label)
            writer.settle(step.out, target, label)
        case Gemm() as step if call.how == "split":
            _split(writer, step, label)
        case Gemm() as step:
            aten_gemm(writer, step, label, "cuda")
        case Conv() as step if call.how == "product":
            _pixel_product(writer, step, label)
        case Conv() as step:
            aten_convolution(writer, step, label, "cuda")
        case Attention() as step if call.how in ATTENTION:
            _attention(writer, step, call.how, label)
        case other:
            raise TypeError(f"{label}: {type(other).__name__} has no call of its own on CUDA")


def _activated(writer: Writer, step: Gemm, label: str) -> str:
    """`activation(a @ b + bias)` by cuBLASLt, as a tensor of its own; its handle."""
    assert step.bias is not None
    a, b, bias = (writer.view_handle(v, label) for v in (step.a, step.b, step.bias))
    target = writer.new_owned()
    gelu = int(step.activation == "gelu_tanh")
    writer.call("aoti_torch_cuda__addmm_activation", f"{bias}, {a}, {b}, 1.0, 1.0, {gelu}, &{target}", label)
    writer.python.append(f"    {step.out} = {step.activation}(mm({show(step.a)}, {show(step.b)}) + {show(step.bias)})")
    return target


def _split(writer: Writer, step: Gemm, label: str) -> None:
    """`a @ b (+ bias)`, in pieces of a whole number of vectors and the rest. The few last terms of the sums come first: the product over
    the others adds to them before it rounds.
    """
    out, most = writer.buffers[step.out], split_of(step, writer.buffers)
    assert most is not None
    columns = out.size[1]
    for top, height in _pieces(most[0], step.a.size[0]):
        for left, width in _pieces(most[2], columns):
            offset = top * out.stride[0] + left * out.stride[1]
            target = writer.view_handle(View(out.name, (height, width), out.stride, offset), label)
            added = "" if step.bias is None else _handle(writer, step.bias, (width,), left * step.bias.stride[0], label)
            for first, count in reversed(_pieces(most[1], step.a.size[1])):
                a, b = step.a, step.b
                left_side = _handle(writer, a, (height, count), top * a.stride[0] + first * a.stride[1], label)
                right_side = _handle(writer, b, (count, width), first * b.stride[0] + left * b.stride[1], label)
                if added:
                    writer.call("aoti_torch_cuda_addmm_out", f"{target}, {added}, {left_side}, {right_side}, 1.0, 1.0", label)
                else:
                    writer.call("aoti_torch_cuda_mm_out", f"{target}, {left_side}, {right_side}", label)
                added = target
    writer.python.append(f"    {step.out}[:] = mm({show(step.a)}, {show(step.b)})  # in whole vectors, and the rest")


def _pieces(most: Size, count: Size) -> list[tuple[Size, Size]]:
    """Where each piece of a dimension begins, and how long it is."""
    return [(0, most)] if most == count else [(0, most), (most, count - most)]


def _handle(writer: Writer, view: View, size: tuple[Size, ...], offset: Size, label: str) -> str:
    return writer.view_handle(replace(view, size=size, offset=view.offset + offset), label)


def _pixel_product(writer: Writer, step: Conv, label: str) -> None:
    """A 1x1 convolution as a product: a row for each pixel, by the weight as a matrix."""
    out = writer.buffers[step.out]
    x, y = rows_of(step.x), rows_of(View(out.name, out.size, out.stride))
    assert x is not None and y is not None
    if step.activation != "none":
        product = Gemm(x, weight_matrix(step), step.bias, step.out, step.activation)
        rows, target = _activated(writer, product, label), writer.new_owned()
        sizes, strides = writer.ints(out.size), writer.ints(out.stride)
        writer.call("aoti_torch__reinterpret_tensor", f"{rows}, {len(out.size)}, {sizes}, {strides}, 0, &{target}", label)
        writer.settle(step.out, target, label)
        return
    a, b, into = (writer.view_handle(v, label) for v in (x, weight_matrix(step), y))
    if step.bias is None:
        writer.call("aoti_torch_cuda_mm_out", f"{into}, {a}, {b}", label)
    else:
        writer.call("aoti_torch_cuda_addmm_out", f"{into}, {writer.view_handle(step.bias, label)}, {a}, {b}, 1.0, 1.0", label)
    show_convolution(writer, step)


ATTENTION = {
    "flash": ("{q}, {k}, {v}, 0.0, {causal}, 0, &{scale}, &{out}, &rest[0], &rest[1], &rest[2], n, n + 1, &rest[3], &rest[4], &rest[5]"),
    "cudnn": (
        "{q}, {k}, {v}, {mask}, 0, 0.0, {causal}, 0, &{scale}, &{out}, &rest[0], &rest[1], &rest[2], n, n + 1, &rest[3], &rest[4], &rest[5]"
    ),
    "efficient": "{q}, {k}, {v}, {mask}, 0, 0.0, {causal}, &{scale}, &{out}, &rest[0], &rest[1], &rest[2]",
}
"""Arguments of each kernel's shim. What it returns beside the result serves a backward pass only."""


def _attention(writer: Writer, step: Attention, how: str, label: str) -> None:
    q, k, v = (writer.view_handle(view, label) for view in (step.q, step.k, step.v))
    taken = heads_once(step.mask) if step.mask is not None and how == "cudnn" else step.mask
    mask, target = optional(writer, taken, label), writer.new_owned()
    bits = int.from_bytes(struct.pack("<d", step.scale), "little")
    writer.add(f"{{ void* rest[6] = {{0}}; int64_t n[2]; (void)n; const uint64_t bits = 0x{bits:x}u; double scale;")
    writer.add("__builtin_memcpy(&scale, &bits, sizeof scale);")
    names = {"q": q, "k": k, "v": v, "mask": mask, "causal": int(step.causal), "scale": "scale", "out": target}
    writer.call(f"aoti_torch_cuda__scaled_dot_product_{how}_attention", ATTENTION[how].format(**names), label)
    writer.add(f"for (void* extra : rest) if (extra) {writer.free_shim()}(extra); }}")
    operands = ", ".join(show(view) for view in (step.q, step.k, step.v))
    masked = f", mask={show(step.mask)}" if step.mask is not None else ", causal" if step.causal else ""
    writer.python.append(f"    {step.out} = {how}_attention({operands}{masked}, scale={step.scale!r})")
    writer.settle(step.out, target, label)
