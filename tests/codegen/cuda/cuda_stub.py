"""A GPU that is none: host programs for CUDA run for real against functions that stand for the driver and for torch's CUDA shims.

Device memory is host memory, so inputs are CPU tensors; a launched kernel is carried out by the oracle, from the addresses that the launch
passed. What the host program asked of the driver is recorded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from precast.codegen import CompiledGraph, compile_program
from precast.codegen.common.measure import Record
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.cuda import pipeline
from precast.codegen.cuda.host.writer import CudaHostWriter, Launch
from precast.lowering.ir.nodes import Kernel, Program
from precast.lowering.verify.interpret import _Machine
from tests.codegen.loader import TORCH_CPU, Loaded, _capsule_pointer, _handle_to_tensor

P, N, U, L = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_int64
STREAM, FUNCTIONS, MODULES = 0x77, 0x1000, 0x2000
PASSED_ON = ("mm_out", "bmm_out", "addmm_out", "baddbmm_out", "convolution", "_addmm_activation")
LAST_TEXT = "torch_exception_get_what_without_backtrace"
C_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp64": ctypes.c_double}


CUDNN = torch.library.Library("aten", "IMPL")
"""cuDNN's fused operators on CPU tensors, for as long as the process lives."""


def _relu(x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return torch.relu(torch.conv2d(x, w, b, stride, padding, dilation, groups))


def _add_relu(x: Any, w: Any, z: Any, alpha: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return torch.relu(torch.conv2d(x, w, b, stride, padding, dilation, groups) + (1.0 if alpha is None else alpha) * z)


CUDNN.impl("cudnn_convolution_relu", _relu, "CPU")
CUDNN.impl("cudnn_convolution_add_relu", _add_relu, "CPU")


@dataclass
class Launched:
    """One call of `cuLaunchKernel`: `values` are the visible arguments, addresses and numbers."""

    name: str
    image: int
    grid: int
    block: int
    shared: int
    stream: int
    values: list[Any]
    hidden: list[int]


def compile_cuda(
    program: Program, freeze: Sequence[str] = (), tuning: Mapping[str, Record] | None = None
) -> tuple[CompiledGraph, CudaHostWriter]:
    """The program compiled for cuda:sm_90, and the writer of its host program."""
    seen: list[CudaHostWriter] = []

    class Seen(CudaHostWriter):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            seen.append(self)

    with patch.object(pipeline, "CudaHostWriter", Seen):
        graph = compile_program(
            program, "cuda:sm_90", CodegenOptions(freeze=bool(freeze)), CompileContext(bound=freeze, tuning=tuning or {})
        )
    return graph, seen[0]


class Stub(Loaded):
    """A compiled graph on the GPU that is none. `fail[name] = code` makes a driver function fail; `calls` holds their names in order."""

    def __init__(self, graph: CompiledGraph, writer: CudaHostWriter, n_outputs: int = 1, device: int = 0) -> None:
        self.graph, self.writer, self.device = graph, writer, device
        self.context: int | None = 1
        self.calls: list[str] = []
        self.launched: list[Launched] = []
        self.fail: dict[str, int] = {}
        self.memory: dict[int, torch.Tensor] = {}
        self.guards: list[int] = []
        self.events: list[tuple[int, int | None]] = []  # that were recorded, with their streams
        self._callbacks: dict[str, Any] = {}
        self._texts = [ctypes.c_char_p(b"CUDA_ERROR_STUB"), ctypes.c_char_p(b"the stub fails")]
        super().__init__(graph.library, n_outputs)
        self._images = (ctypes.c_char_p * (len(graph.images) + 1))(*[i.data for i in graph.images], None)
        self.hand_over()

    def hand_over(self) -> None:
        sizes = (ctypes.c_int64 * (len(self.graph.images) + 1))(*[len(i.data) for i in self.graph.images], 0)
        self.dll.precast_images(self._images, sizes, L(len(self.graph.images)))

    def __call__(self, *inputs: Any, **more: Any) -> list[torch.Tensor]:
        self.expect(*inputs)
        return super().__call__(*inputs, **more)

    def expect(self, *inputs: Any) -> None:
        """Makes ready for one call with these inputs: which kernels it will launch, in order."""
        self._coming = self._order(self.writer.steps)
        if self.writer.second is not None and not self.state.value:
            self._coming = iter([*self._order(self.writer.second.steps), *self._coming])
        self._inputs = inputs
        self._pointers: dict[str, int] = {}
        self._sizes: dict[Any, Any] = {}

    def _order(self, steps: Sequence[Any]) -> Iterator[tuple[Kernel, Launch]]:
        return iter([(s, launch) for s in steps if isinstance(s, Kernel) for launch in self.writer.launches[s.name]])

    def place(self, device: str) -> torch.device:
        assert device in ("cuda", "cpu")
        return torch.device("cpu")

    # -- symbols

    def _resolve(self, name: str) -> int | None:
        name = name.removeprefix("?")
        own = getattr(self, f"_{name}", None)
        if own is None:
            assert not name.startswith("cu"), f"the stub has no {name}"
            return super()._resolve(name.replace("_cuda_", "_cpu_") if name.removeprefix("aoti_torch_cuda_") in PASSED_ON else name)
        result = ctypes.c_char_p if name == LAST_TEXT else N
        callback = self._callbacks[name] = ctypes.CFUNCTYPE(result, *own.types)(own if name == LAST_TEXT else self._recorded(name, own))
        return ctypes.cast(callback, P).value

    def text(self) -> bytes | None:
        """What torch says of the last failure; nothing of a failure that was asked for, and nothing before torch 2.12."""
        function = getattr(TORCH_CPU, LAST_TEXT, None)
        if function is None:
            return None
        function.restype = ctypes.c_char_p
        return None if self.fail else function()

    def _recorded(self, name: str, function: Callable[..., int | None]) -> Callable[..., int]:
        def run(*args: Any) -> int:
            self.calls.append(name)
            return self.fail.get(name) or function(*args) or 0

        return run


def stub(*types: Any) -> Callable[[Any], Any]:
    """Marks a method that stands for a C function with these argument types."""

    def mark(function: Any) -> Any:
        function.types = types
        return function

    return mark


def put(address: int, value: int | None) -> None:
    ctypes.c_void_p.from_address(address).value = value


class CudaStub(Stub):
    """The functions."""

    @stub(N, P)
    def _cuGetErrorName(self, code: int, out: int) -> None:
        put(out, ctypes.cast(self._texts[0], P).value)

    @stub(N, P)
    def _cuGetErrorString(self, code: int, out: int) -> None:
        put(out, ctypes.cast(self._texts[1], P).value)

    @stub(P, P)
    def _cuEventRecord(self, event: int, stream: int | None) -> None:
        self.events.append((event, stream))

    @stub(P)
    def _cuCtxGetCurrent(self, out: int) -> None:
        put(out, self.context)

    @stub(P)
    def _cuCtxSetCurrent(self, context: int) -> None:
        self.context = context

    @stub()
    def _cuCtxSynchronize(self) -> None:
        return None

    @stub(P, N)
    def _cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        assert device == self.device
        put(out, 2)

    @stub(P, P, U, P, P)
    def _cuModuleLoadDataEx(self, out: int, image: int, count: int, options: int, values: int) -> None:
        found = [n for n, i in enumerate(self.graph.images) if ctypes.string_at(image, len(i.data)) == i.data]
        put(out, MODULES + found[0])

    @stub(P, P, ctypes.c_char_p)
    def _cuModuleGetFunction(self, out: int, module: int, name: bytes) -> None:
        assert self.graph.images[module - MODULES].metadata["entry"] == name.decode()
        put(out, FUNCTIONS + module - MODULES)

    @stub(P, N, N)
    def _cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        assert attribute == 8 and value == self.graph.images[function - FUNCTIONS].metadata["shared"]

    @stub(P, ctypes.c_size_t)
    def _cuMemAlloc_v2(self, out: int, nbytes: int) -> None:
        put(out, self._allocate(nbytes))

    @stub(P, P, ctypes.c_size_t)
    def _cuMemcpyHtoD_v2(self, to: int, source: int, nbytes: int) -> None:
        ctypes.memmove(to, source, nbytes)

    @stub(P, U, ctypes.c_size_t, P)
    def _cuMemsetD32Async(self, to: int, value: int, count: int, stream: int) -> None:
        assert stream == STREAM
        ctypes.memmove(to, value.to_bytes(4, "little") * count, 4 * count)

    @stub(P, P, ctypes.c_size_t, P)
    def _cuMemcpyDtoHAsync_v2(self, to: int, source: int, nbytes: int, stream: int) -> None:
        assert stream == STREAM
        ctypes.memmove(to, source, nbytes)

    _cuMemcpyDtoDAsync_v2 = _cuMemcpyDtoHAsync_v2

    @stub(P)
    def _cuStreamSynchronize(self, stream: int) -> None:
        assert stream == STREAM

    @stub(P, U, U, U, U, U, U, U, P, P, P)
    def _cuLaunchKernel(
        self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int, params: int, extra: int | None
    ) -> None:
        assert (gy, gz, by, bz, extra) == (1, 1, 1, 1, None) and gx > 0
        image = function - FUNCTIONS
        step, launch, kernel = next(
            (step, launch, k.kernel) for step, launch in self._coming for k in (launch, launch.wide) if k is not None and k.image == image
        )
        places = ctypes.cast(params, ctypes.POINTER(P))
        values = [
            (ctypes.c_void_p if a.kind == "buffer" else C_TYPES[a.type]).from_address(places[n]).value
            for n, a in enumerate(kernel.arguments)
        ]
        hidden = [ctypes.c_void_p.from_address(places[len(values) + n]).value or 0 for n in range(2)]
        self.launched.append(Launched(kernel.name, image, gx, bx, shared, stream, values, hidden))
        for argument, value in zip(kernel.arguments, values, strict=True):
            if argument.kind == "buffer":
                assert not argument.aligned or (value or 0) % 16 == 0, f"{kernel.name}: {argument.buffer} at {value:#x}"
                self._pointers[argument.buffer] = value or 0
            else:
                self._sizes[argument.symbol] = value
        if launch is self.writer.launches[step.name][-1]:
            self.execute(step)
            self._pointers = {}

    # -- torch's shims

    @stub()
    def _torch_exception_get_what_without_backtrace(self) -> bytes | None:
        return self.text()

    @stub(P, P)
    def _aoti_torch_get_device_index(self, tensor: int, out: int) -> None:
        ctypes.c_int32.from_address(out).value = self.device

    @stub(P)
    def _aoti_torch_get_current_device_index(self, out: int) -> None:
        ctypes.c_int32.from_address(out).value = self.device

    @stub(N, P)
    def _aoti_torch_create_cuda_guard(self, device: int, out: int) -> None:
        self.guards.append(device)
        put(out, len(self.guards))

    @stub(P)
    def _aoti_torch_delete_cuda_guard(self, guard: int) -> None:
        self.guards.pop()

    @stub(N, P)
    def _aoti_torch_get_current_cuda_stream(self, device: int, out: int) -> None:
        assert device == self.device
        put(out, STREAM)

    @stub(ctypes.c_uint64, P)
    def _aoti_torch_cuda_caching_allocator_raw_alloc(self, nbytes: int, out: int) -> None:
        put(out, self._allocate(nbytes))

    @stub(P)
    def _aoti_torch_cuda_caching_allocator_raw_delete(self, address: int) -> None:
        self.memory.pop(address)

    @stub(L, P, P, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, P)
    def _aoti_torch_empty_strided(self, rank: int, sizes: int, strides: int, dtype: int, kind: int, index: int, out: int) -> int:
        self._check_device(kind, index)
        return int(TORCH_CPU.aoti_torch_empty_strided(L(rank), P(sizes), P(strides), dtype, 0, 0, P(out)))

    @stub(P, L, P, P, L, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, P)
    def _aoti_torch_create_tensor_from_blob(
        self, data: int, rank: int, sizes: int, strides: int, offset: int, dtype: int, kind: int, index: int, out: int
    ) -> int:
        self._check_device(kind, index)
        arguments = (P(data), L(rank), P(sizes), P(strides), L(offset), dtype, 0, 0, P(out))
        return int(TORCH_CPU.aoti_torch_create_tensor_from_blob(*arguments))

    @stub(P, P, P, ctypes.c_double, ctypes.c_double, ctypes.c_int32, P)
    def _aoti_torch_cuda__addmm_activation(self, bias: int, a: int, b: int, beta: float, alpha: float, gelu: int, out: int) -> None:
        product = torch.addmm(*(_borrowed(h) for h in (bias, a, b)), beta=beta, alpha=alpha)
        _give(torch.nn.functional.gelu(product, approximate="tanh") if gelu else product.relu(), out)

    @stub(P, P, P, ctypes.c_double, ctypes.c_int32, ctypes.c_int32, P, *[P] * 9)
    def _aoti_torch_cuda__scaled_dot_product_flash_attention(
        self, q: int, k: int, v: int, dropout: float, causal: int, debug: int, scale: int, *results: int
    ) -> None:
        assert dropout == debug == 0
        _attend(q, k, v, None, causal, scale, [r for n, r in enumerate(results) if n not in (4, 5)])

    @stub(P, P, P, P, ctypes.c_int32, ctypes.c_double, ctypes.c_int32, ctypes.c_int32, P, *[P] * 9)
    def _aoti_torch_cuda__scaled_dot_product_cudnn_attention(
        self, q: int, k: int, v: int, mask: int | None, sums: int, dropout: float, causal: int, debug: int, scale: int, *results: int
    ) -> None:
        assert sums == dropout == debug == 0
        _attend(q, k, v, mask, causal, scale, [r for n, r in enumerate(results) if n not in (4, 5)])

    @stub(P, P, P, P, ctypes.c_int32, ctypes.c_double, ctypes.c_int32, P, *[P] * 4)
    def _aoti_torch_cuda__scaled_dot_product_efficient_attention(
        self, q: int, k: int, v: int, mask: int | None, sums: int, dropout: float, causal: int, scale: int, *results: int
    ) -> None:
        assert sums == dropout == 0
        _attend(q, k, v, mask, causal, scale, results)

    def _check_device(self, kind: int, index: int) -> None:
        assert (kind, index) in ((1, self.device), (0, 0))

    # -- what the device does

    def _allocate(self, nbytes: int) -> int:
        block = torch.full((nbytes + 512,), 255, dtype=torch.uint8)
        address = (block.data_ptr() + 511) // 512 * 512
        self.memory[address] = block
        return address

    def execute(self, step: Kernel) -> None:
        """Carries out a kernel, from the addresses and sizes that its launches passed."""
        machine = _Machine(self.writer.program, list(self._inputs), False)
        machine.sizes.update(self._sizes)
        for name, address in self._pointers.items():
            machine.memory[name] = _flat(address, machine._span(machine.buffers[name]), machine._stored(name))
        machine._step(step)


def _borrowed(handle: int) -> torch.Tensor:
    """The tensor of a handle that stays the host program's."""
    again = P()
    TORCH_CPU.aoti_torch_new_tensor_handle(P(handle), ctypes.byref(again))
    assert again.value is not None
    return _handle_to_tensor(again.value)


def _attend(q: int, k: int, v: int, mask: int | None, causal: int, scale: int, results: Sequence[int]) -> None:
    """Attention on borrowed handles; `mask` and `scale` are addresses. The first result is attention's, laid out as the kernels do it."""
    tensors = [_borrowed(h) for h in (q, k, v)]
    bias = None if mask is None else _borrowed(P.from_address(mask).value or 0)
    factor = ctypes.c_double.from_address(scale).value
    out = torch.nn.functional.scaled_dot_product_attention(*tensors, bias, is_causal=bool(causal), scale=factor, enable_gqa=True)
    made = [out.transpose(1, 2).contiguous().transpose(1, 2), *(torch.empty(0) for _ in results[1:])]
    for address, tensor in zip(results, made, strict=True):
        _give(tensor, address)


def _give(tensor: torch.Tensor, address: int) -> None:
    """A handle of the host program's own, put where it asked for it."""
    (handle,) = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([tensor])
    put(address, _capsule_pointer(handle))


def _flat(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    if not count:
        return torch.empty(0, dtype=dtype)
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=dtype, count=count)
