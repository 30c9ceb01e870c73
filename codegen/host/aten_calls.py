"""Library calls through torch's own shims, which CPU and GPU have under the same names: products with `out=`, convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from precast.lowering.ir.nodes import Buffer, Conv, Gemm, Size, View

Device = Literal["cpu", "cuda"]


class Writer(Protocol):
    """What this file needs of the host writer."""

    buffers: dict[str, Buffer]
    python: list[str]

    def call(self, shim: str, arguments: str, step: str) -> None: ...
    def view_handle(self, view: View, step: str) -> str: ...
    def new_owned(self) -> str: ...
    def settle(self, name: str, target: str, label: str) -> None: ...
    def ints(self, values: Sequence[Size]) -> str: ...


def aten_gemm(writer: Writer, step: Gemm, label: str, device: Device) -> None:
    """`out = a @ b (+ bias)` into memory of the host program."""
    out = writer.buffers[step.out]
    handle = writer.view_handle(View(step.out, out.size, out.stride), label)
    a, b = writer.view_handle(step.a, label), writer.view_handle(step.b, label)
    batched = len(step.a.size) == 3
    if step.bias is None:
        writer.call(f"aoti_torch_{device}_{'bmm' if batched else 'mm'}_out", f"{handle}, {a}, {b}", label)
    else:
        bias = writer.view_handle(step.bias, label)
        name = f"aoti_torch_{device}_{'baddbmm' if batched else 'addmm'}_out"
        writer.call(name, f"{handle}, {bias}, {a}, {b}, 1.0, 1.0", label)
    writer.python.append(f"    {step.out} = mm({show(step.a)}, {show(step.b)})" + (f" + {show(step.bias)}" if step.bias else ""))


def aten_convolution(writer: Writer, step: Conv, label: str, device: Device) -> None:
    """A convolution without its epilogue; the result is the library's own tensor."""
    x, w, bias = writer.view_handle(step.x, label), writer.view_handle(step.weight, label), optional(writer, step.bias, label)
    spatial = len(step.stride)
    padding, stride, dilation = (writer.ints(v) for v in (step.padding, step.stride, step.dilation))
    output_padding = writer.ints(step.output_padding or (0,) * spatial)
    target = writer.new_owned()
    rest = f"{int(step.transposed)}, {output_padding}, {spatial}, {step.groups}, &{target}"
    arguments = f"{x}, {w}, {bias}, {stride}, {spatial}, {padding}, {spatial}, {dilation}, {spatial}, {rest}"
    writer.call(f"aoti_torch_{device}_convolution", arguments, label)
    show_convolution(writer, step)
    writer.settle(step.out, target, label)


def optional(writer: Writer, view: View | None, label: str) -> str:
    """`AtenTensorHandle*` of an optional tensor."""
    return "0" if view is None else f"(void**)&{writer.view_handle(view, label)}"


def show_convolution(writer: Writer, step: Conv) -> None:
    """The readable line of a convolution."""
    writer.python.append(
        f"    {step.out} = {step.activation}(conv({show(step.x)}, {show(step.weight)}, {show(step.bias)}, "
        f"stride={step.stride}, padding={step.padding}))"
    )


def show(view: View | None) -> str:
    """A view in the readable program."""
    if view is None:
        return "None"
    return f"{view.buffer}{list(view.size)}" if view.offset == 0 else f"{view.buffer}[{view.offset}:]{list(view.size)}"
