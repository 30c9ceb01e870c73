"""Library calls in the host program: oneDNN, MKL through aten, flash attention."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Protocol

from precast.codegen.common.library_steps import LibraryCall, Pack, weight_view
from precast.codegen.common.measure import POST_OPS
from precast.codegen.common.torch_names import DTYPE_CODES
from precast.codegen.cpu.attention import attention_symbols
from precast.codegen.cpu.depthwise import DepthwisePack, form_of, function_of
from precast.codegen.cpu.direct.few_channels import FewChannelsPack, tile_of
from precast.codegen.cpu.panel_gemm import FINISH, PanelPack
from precast.codegen.cpu.select_library import gemm_parts
from precast.codegen.cpu.winograd import Shape, WinogradPack
from precast.codegen.host.aten_calls import aten_convolution, aten_gemm, optional, show, show_convolution
from precast.codegen.host.dispatcher_calls import BUILD_VERSION
from precast.lowering.ir.nodes import Attention, Buffer, Conv, Gemm, Size, View
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import hint


class Writer(Protocol):
    """What this file needs of the host writer."""

    buffers: dict[str, Buffer]
    python: list[str]
    functions: dict[int, str]
    lanes: int

    def add(self, line: str) -> None: ...
    def call(self, shim: str, arguments: str, step: str) -> None: ...
    def view_handle(self, view: View, step: str) -> str: ...
    def pointer(self, buffer: str) -> str: ...
    def new_owned(self) -> str: ...
    def free_shim(self) -> str: ...
    def settle(self, name: str, target: str, label: str) -> None: ...
    def size(self, size: Size) -> str: ...
    def ints(self, values: Sequence[Size]) -> str: ...


IN_PLACE = frozenset({"generated", "parts", "winograd", "own", "panel", "depthwise", "few channels"})
"""Code of our own, and products that are copied part by part."""


def writes_in_place(call: LibraryCall) -> bool:
    """Whether the call writes memory that the host program supplies (`out=`); others return a tensor of their own."""
    return call.how in IN_PLACE or call.how == "aten" and isinstance(call.step, Gemm)


def emit_library(writer: Writer, call: LibraryCall, label: str) -> None:
    """Writes the C++ of one library call."""
    match call.step:
        case Gemm() as step if call.how in ("onednn", "linear"):
            _onednn_gemm(writer, step, call.packed, label)
        case Gemm() as step if call.how == "parts":
            _gemm_in_parts(writer, step, call.packed, label)
        case Gemm() as step if call.how == "own":
            _few_rows(writer, step)
        case Gemm() as step if call.how == "panel":
            _panels(writer, step, call.packed, label)
        case Gemm() as step:
            aten_gemm(writer, step, label, "cpu")
        case Conv() as step if call.how == "winograd":
            _winograd(writer, step, call.packed, label)
        case Conv() as step if call.how == "depthwise":
            _depthwise(writer, step, call.packed, label)
        case Conv() as step if call.how == "few channels":
            _few_channels(writer, step, call.packed, label)
        case Conv() as step if call.how == "aten":
            aten_convolution(writer, step, label, "cpu")
        case Conv() as step:
            _onednn_conv(writer, step, call, label)
        case Attention() as step if call.how == "generated":
            _own_attention(writer, step)
        case Attention() as step:
            _attention(writer, step, label)


def _packed(number: int) -> str:
    return f"prepared->packed[{number}]"


def emit_pack(writer: Writer, number: int, pack: Pack, label: str) -> None:
    """Writes the C++ that makes packed weight `number`, in the prepare function."""
    step = pack.step
    weight = weight_view(step)
    if isinstance(pack, WinogradPack):
        _transformed_weight(writer, number, weight, pack.shape, label)
        return
    if isinstance(pack, DepthwisePack):
        channels, _, height, width = (int(n) for n in weight.size)
        writer.add("{ void* data = 0;")
        _own_memory(writer, number, pack.elements, label)
        sizes = f"{height}, {width}, {channels}"
        writer.add(f"depthwise::layout({_place(writer, weight)}, {writer.ints(weight.stride)}, {sizes}, (float*)data); }}")
        return
    if isinstance(pack, FewChannelsPack):
        writer.add("{ void* data = 0;")
        _own_memory(writer, number, pack.elements, label)
        sizes = ", ".join(writer.size(n) for n in weight.size)
        writer.add(f"few_channels::layout({_place(writer, weight)}, {writer.ints(weight.stride)}, {sizes}, (float*)data); }}")
        return
    if isinstance(pack, PanelPack):
        sizes = ", ".join(writer.size(n) for n in (*weight.stride[::-1], *weight.size[::-1]))
        writer.add("{ void* data = 0;")
        _own_memory(writer, number, pack.elements, label)
        writer.add(f"panel::layouts({_place(writer, weight)}, {sizes}, (float*)data, threads); }}")
        return
    writer.add("{")
    writer.add("void* handle = 0;")
    writer.call("aoti_torch_new_tensor_handle", f"{writer.view_handle(weight, label)}, &handle", label)
    if isinstance(step, Gemm):
        rows = f"(uint64_t)new uint64_t({hint(step.a.size[0])})"  # what the library shall expect: any number works
        writer.add(f"uint64_t stack[] = {{(uint64_t)handle, {rows}}};")
        name = "mkldnn::_reorder_linear_weight"
    else:
        lists = []
        for key, values in (("p", step.padding), ("s", step.stride), ("d", step.dilation), ("x", step.x.size)):
            writer.add(f"void* {key} = 0;")
            writer.call("torch_new_list_reserve_size", f"{len(values)}, &{key}", label)
            for value in values:
                writer.call("torch_list_push_back", f"{key}, (uint64_t)({writer.size(value)})", label)
            lists.append(f"(uint64_t){key}")
        lists[3] = f"(uint64_t)new uint64_t({lists[3]})"
        writer.add(f"uint64_t stack[] = {{(uint64_t)handle, {lists[0]}, {lists[1]}, {lists[2]}, {step.groups}u, {lists[3]}}};")
        name = "mkldnn::_reorder_convolution_weight"
    writer.call("torch_call_dispatcher", f'{json.dumps(name)}, "", stack, UINT64_C({BUILD_VERSION})', label)
    writer.add(f"{_packed(number)} = (void*)stack[0];")
    writer.add("}")


def _onednn_gemm(writer: Writer, step: Gemm, packed: int | None, label: str) -> None:
    a = writer.view_handle(step.a, label)
    weight = weight_view(step)
    w = writer.view_handle(weight, label) if packed is None else _packed(packed)
    bias = optional(writer, step.bias, label)
    target = writer.new_owned()
    if step.residual is not None:
        other = writer.view_handle(step.residual, label)
        writer.call("aoti_torch_cpu__linear_pointwise_binary", f'{a}, {other}, {w}, {bias}, "add", &{target}', label)
        writer.python.append(f"    {step.out} = linear({show(step.a)}, {show(weight)}, {show(step.bias)}) + {show(step.residual)}")
    else:
        name, scalars, count, algorithm = _post_op(writer, step)
        writer.call("aoti_torch_cpu__linear_pointwise", f"{a}, {w}, {bias}, {name}, {scalars}, {count}, {algorithm}, &{target}", label)
        writer.python.append(f"    {step.out} = {step.activation}(linear({show(step.a)}, {show(weight)}, {show(step.bias)}))")
    out = writer.buffers[step.out]
    if len(out.size) != len(step.a.size):  # a convolution's product: the same memory in the convolution's shape
        rows, target = target, writer.new_owned()
        arguments = f"{rows}, {len(out.size)}, {writer.ints(out.size)}, {writer.ints(out.stride)}, 0, &{target}"
        writer.call("aoti_torch__reinterpret_tensor", arguments, label)
    writer.settle(step.out, target, label)


def _gemm_in_parts(writer: Writer, step: Gemm, packed: int | None, label: str) -> None:
    """Column blocks in the library's own memory, each copied into the result while it lies in the cache."""
    a, out, release = writer.view_handle(step.a, label), writer.buffers[step.out], writer.free_shim()
    name, scalars, count, algorithm = _post_op(writer, step)
    for number, (start, part) in enumerate(gemm_parts(step)):
        w = writer.view_handle(weight_view(part), label) if packed is None else _packed(packed + number)
        bias = optional(writer, part.bias, label)
        target = writer.new_owned()
        writer.call("aoti_torch_cpu__linear_pointwise", f"{a}, {w}, {bias}, {name}, {scalars}, {count}, {algorithm}, &{target}", label)
        itemsize = out.dtype.itemsize
        width, step_bytes = int(part.b.size[1]) * itemsize, int(out.stride[0]) * itemsize
        writer.add("{ void* data = 0;")
        writer.call("aoti_torch_get_data_ptr", f"{target}, &data", label)
        place = f"(char*){writer.pointer(step.out)} + {start * itemsize}"
        writer.add(f"put_columns({place}, {step_bytes}, (const char*)data, {width}, {writer.size(out.size[0])}, threads); }}")
        writer.add(f"{release}({target}); {target} = 0;")
    writer.python.append(f"    {step.out} = {step.activation}(linear({show(step.a)}, {show(weight_view(step))}, {show(step.bias)}))")


def _post_op(writer: Writer, step: Gemm | Conv) -> tuple[str, str, int, str]:
    """Arguments `attr, scalars, scalars_len, algorithm` of a fused activation (scalars: pointer to optional values)."""
    name, algorithm = POST_OPS[step.activation]
    values = step.activation_args
    number = len(writer.python)
    if values:
        writer.add(f"const double pv{number}[] = {{{', '.join(repr(float(v)) for v in values)}}};")
        writer.add(f"const double* ps{number}[] = {{{', '.join(f'&pv{number}[{i}]' for i in range(len(values)))}}};")
    writer.add(f"const char* pa{number} = {json.dumps(algorithm)};")
    return json.dumps(name), f"ps{number}" if values else "0", len(values), f"&pa{number}"


def _onednn_conv(writer: Writer, step: Conv, chosen: LibraryCall, label: str) -> None:
    x = writer.view_handle(step.x, label)
    w = writer.view_handle(step.weight, label) if chosen.packed is None else _packed(chosen.packed)
    bias = optional(writer, step.bias, label)
    spatial = len(step.stride)
    padding, stride, dilation = (writer.ints(v) for v in (step.padding, step.stride, step.dilation))
    target = writer.new_owned()
    shape = f"{padding}, {spatial}, {stride}, {spatial}, {dilation}, {spatial}, {step.groups}"
    name, scalars, count, algorithm = _post_op(writer, step)
    if step.residual is None:
        writer.call(
            "aoti_torch_cpu_mkldnn__convolution_pointwise",
            f"{x}, {w}, {bias}, {shape}, {name}, {scalars}, {count}, {algorithm}, &{target}",
            label,
        )
    else:
        other, number = writer.view_handle(step.residual, label), len(writer.python)
        writer.add(f"const char* pu{number} = {name};")
        unary = f"&pu{number}" if step.activation != "none" else "0"
        operands = f"{other}, {x}" if chosen.over else f"{x}, {other}"
        arguments = f'{operands}, {w}, {bias}, {shape}, "add", 0, {unary}, 0, 0, 0, &{target}'
        writer.call(f"aoti_torch_cpu_mkldnn__convolution_pointwise_binary{'_' if chosen.over else ''}", arguments, label)
    show_convolution(writer, step)
    writer.settle(step.out, target, label)


def _place(writer: Writer, view: View | None) -> str:
    return "0" if view is None else f"(const float*){writer.pointer(view.buffer)} + {writer.size(view.offset)}"


def _own_memory(writer: Writer, number: int, elements: int, label: str) -> None:
    """A tensor of so many f32 for packed weight `number`; `data` points at it."""
    size, unit = writer.ints((elements,)), writer.ints((1,))
    code = DTYPE_CODES[DType.F32]
    writer.call("aoti_torch_empty_strided", f"1, {size}, {unit}, {code}, 0, 0, &{_packed(number)}", label)
    writer.call("aoti_torch_get_data_ptr", f"{_packed(number)}, &data", label)
    writer.add(f"huge_pages(data, {4 * elements});")


def _transformed_weight(writer: Writer, number: int, weight: View, shape: Shape, label: str) -> None:
    writer.add("{ void* data = 0;")
    _own_memory(writer, number, shape.weight_elements, label)
    arguments = f"{_place(writer, weight)}, {writer.ints(weight.stride)}, {shape.channels}, {shape.filters}, (float*)data, threads"
    writer.add(f"wino::winograd_weights({arguments}); }}")


def _winograd(writer: Writer, step: Conv, packed: int | None, label: str) -> None:
    _, channels, height, width = step.x.size
    images, filters = step.x.size[0], step.weight.size[0]
    places = [_place(writer, v) for v in (step.bias, step.residual)]
    writer.add("{")
    if packed is None:
        weight = f"{_place(writer, step.weight)}, {writer.ints(step.weight.stride)}"
    else:
        writer.add("void* data = 0;")
        writer.call("aoti_torch_get_data_ptr", f"{_packed(packed)}, &data", label)
        weight = "(const float*)data"
    operands = f"{_place(writer, step.x)}, {weight}, {places[0]}, {places[1]}, (float*){writer.pointer(step.out)}"
    sizes = ", ".join(str(int(n)) for n in (images, height, width, channels, filters, *step.padding))
    writer.add(
        f"if (wino::winograd_{'whole' if packed is None else 'conv'}({operands}, {sizes}, {int(step.activation == 'relu')}, threads)) {{"
    )
    writer.add('say(error, capacity, "out of memory: a convolution\'s transformed inputs could not be allocated"); return 1; } }')
    writer.python.append(
        f"    {step.out} = {step.activation}(winograd({show(step.x)}, {show(step.weight)}, {show(step.bias)}, padding={step.padding})"
        + (f" + {show(step.residual)})" if step.residual is not None else ")")
    )


def _bounds(step: Gemm | Conv) -> tuple[str, str]:
    """What a hardtanh keeps values between, in C++."""
    low, high = (float(n) for n in (step.activation_args if len(step.activation_args) == 2 else (0, 0)))
    return _number(low), _number(high)


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}__builtin_inf()"


def _depthwise(writer: Writer, step: Conv, packed: int | None, label: str) -> None:
    out = writer.buffers[step.out]
    x, weight, bias, rest = (_place(writer, v) for v in (step.x, step.weight, step.bias, step.residual))
    steps = ", ".join(writer.size(step.x.stride[d]) for d in (0, 2, 3))
    images, channels, *image = step.x.size
    sizes = ", ".join(writer.size(n) for n in (images, *image, channels, *out.size[2:], *step.padding))
    _open_packed(writer, packed, label)
    operands = f"{x}, {steps}, (const float*)data, {weight}, {writer.ints(step.weight.stride)}, {bias}, {rest}"
    _call_convolution(writer, step, f"depthwise::{function_of(form_of(step, out))}<{_finish(step)}>", operands, sizes, "weight")


def _few_channels(writer: Writer, step: Conv, packed: int | None, label: str) -> None:
    out = writer.buffers[step.out]
    x, weight, bias = (_place(writer, v) for v in (step.x, step.weight, step.bias))
    filters, _, *window = step.weight.size
    down, fall, pace = step.stride[0], *step.dilation
    sizes = ", ".join(writer.size(n) for n in (*step.x.size, filters, *out.size[2:], *window, down, *step.padding, fall, pace))
    _open_packed(writer, packed, label)
    operands = f"{x}, {writer.ints(step.x.stride)}, (const float*)data, {weight}, {writer.ints(step.weight.stride)}, {bias}"
    function = f"few_channels::{tile_of(step, out, writer.lanes).function}<{list(FINISH).index(step.activation)}>"
    _call_convolution(writer, step, function, operands, sizes, "rows")


def _call_convolution(writer: Writer, step: Conv, function: str, operands: str, sizes: str, laid: str) -> None:
    """A convolution of ours, which ends the block of its packed weight. `laid`: what it may find no memory for."""
    low, high = _bounds(step)
    writer.add(f"if ({function}({operands}, (float*){writer.pointer(step.out)}, {sizes}, {low}, {high}, threads)) {{")
    writer.add(f'say(error, capacity, "out of memory: a convolution\'s {laid} could not be laid out"); return 1; }} }}')
    show_convolution(writer, step)


def _open_packed(writer: Writer, packed: int | None, label: str) -> None:
    """Opens a block in which `data` is the weight as it was laid out, or null."""
    writer.add("{ void* data = 0;")
    if packed is not None:
        writer.call("aoti_torch_get_data_ptr", f"{_packed(packed)}, &data", label)


def _finish(step: Gemm | Conv) -> str:
    """Template arguments of what our own code does with a result: the activation, and where the residual is added."""
    order = 0 if step.residual is None else 1 if step.residual_order == "before" else 2
    return f"{list(FINISH).index(step.activation)}, {order}"


def _few_rows(writer: Writer, step: Gemm) -> None:
    out = writer.buffers[step.out]
    a, b, bias = (_place(writer, v) for v in (step.a, step.b, step.bias))
    steps = [writer.size(n) for n in (step.a.stride[0], step.b.stride[1], out.stride[0])]
    sizes = ", ".join(writer.size(n) for n in (step.a.size[0], step.b.size[1], step.b.size[0]))
    operands = f"{a}, {steps[0]}, {b}, {steps[1]}, {bias}, (float*){writer.pointer(step.out)}, {steps[2]}"
    writer.add(f"few::product({operands}, {sizes}, threads);")
    writer.python.append(f"    {step.out} = mm({show(step.a)}, {show(step.b)})" + (f" + {show(step.bias)}" if step.bias else ""))


def _panels(writer: Writer, step: Gemm, packed: int | None, label: str) -> None:
    out = writer.buffers[step.out]
    a, b, bias, rest = (_place(writer, v) for v in (step.a, step.b, step.bias, step.residual))
    more = "0" if step.residual is None else writer.size(step.residual.stride[0])
    row = writer.size(out.stride[0] if len(out.size) == 2 else step.b.size[1])  # a convolution's pixels lie close together
    sizes = ", ".join(writer.size(n) for n in (step.a.size[0], step.b.size[1], step.b.size[0]))
    low, high = _bounds(step)
    _open_packed(writer, packed, label)
    operands = f"{a}, {writer.size(step.a.stride[0])}, (const float*)data, {b}, {', '.join(writer.size(n) for n in step.b.stride)}"
    results = f"{bias}, {rest}, {more}, (float*){writer.pointer(step.out)}, {row}"
    writer.add(f"if (panel::panel_product<{_finish(step)}>({operands}, {results}, {sizes}, {low}, {high}, threads)) {{")
    writer.add('say(error, capacity, "out of memory: a panel of a weight could not be allocated"); return 1; } }')
    product = f"mm({show(step.a)}, {show(step.b)})" + (f" + {show(step.bias)}" if step.bias else "")
    before = step.residual_order == "before"
    if step.residual is not None and before:
        product += f" + {show(step.residual)}"
    shown = product if step.activation == "none" else f"{step.activation}({product})"
    writer.python.append(f"    {step.out} = {shown}" + (f" + {show(step.residual)}" if step.residual is not None and not before else ""))


def _own_attention(writer: Writer, step: Attention) -> None:
    places = ", ".join(_place(writer, v) for v in (step.q, step.k, step.v, step.mask))
    sizes = "".join(f"{writer.size(s)}, " for s in attention_symbols(step, writer.buffers[step.out]))
    writer.add(f"{writer.functions[id(step)]}({places}, (float*){writer.pointer(step.out)}, {sizes}threads);")
    writer.python.append(
        f"    {step.out} = attention({show(step.q)}, {show(step.k)}, {show(step.v)}, mask={show(step.mask)}, causal={step.causal})"
    )


def _attention(writer: Writer, step: Attention, label: str) -> None:
    q, k, v = (writer.view_handle(view, label) for view in (step.q, step.k, step.v))
    mask = optional(writer, step.mask, label)
    number = len(writer.python)
    writer.add(f"double sc{number} = {float(step.scale)!r};")
    target, statistics = writer.new_owned(), writer.new_owned()
    arguments = f"{q}, {k}, {v}, 0.0, {int(step.causal)}, {mask}, &sc{number}, &{target}, &{statistics}"
    writer.call("aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu", arguments, label)
    writer.python.append(
        f"    {step.out} = attention({show(step.q)}, {show(step.k)}, {show(step.v)}, mask={show(step.mask)}, causal={step.causal})"
    )
    writer.settle(step.out, target, label)
