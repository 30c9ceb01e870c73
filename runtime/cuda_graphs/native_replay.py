"""The native player: gives captures to runtime/native/src/cuda_replay.c, which replays them in microseconds of host time a call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from precast.runtime.cuda_graphs.batched_copy import copy_kernel
from precast.runtime.cuda_graphs.recording import FromInput, Output, Recording, flat
from precast.runtime.executable.calling_convention import Finish
from precast.runtime.native.torch_symbols import resolve_symbol

FUNCTIONS = (
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuStreamIsCapturing",
    "cuGraphLaunch",
    "cuMemcpyDtoDAsync_v2",
    "cuLaunchKernel",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "aoti_torch_get_current_cuda_stream",
    "aoti_torch_get_data_ptr",
    "aoti_torch__reinterpret_tensor",
    "aoti_torch_empty_strided",
)
"""The driver's functions that replays call, in the order of `Functions` in runtime/native/src/cuda_replay.h."""
_SETUP: tuple[tuple[str, tuple[Any, ...]], ...] = (("cuCtxGetCurrent", ()), ("cuEventCreate", (ctypes.c_uint,)))
_EVENT_DISABLE_TIMING = 2


class NativePlayer:
    """A Player. `call` is the graph callable; a call that no capture serves goes to `slow`, with its arguments.

    `graph`: the native graph call that returns raw outputs. `stamped`: the graph has packed weights, whose changes only `slow` sees.
    """

    def __init__(self, native: Any, graph: Any, finish: Finish | None, slow: Callable[..., Any], stamped: bool) -> None:
        self.call = native.Replays(graph, finish, slow, stamped)

    @property
    def plays(self) -> int:
        return int(self.call.plays)

    def add(self, recording: Recording) -> None:
        copies = tuple((i, buffer.data_ptr(), _bytes(buffer)) for i, buffer in recording.buffers.items())
        shapes = tuple((i, size, stride) for i, (size, stride) in recording.shapes.items())
        results = tuple(_result(output, i in recording.copied) for i, output in enumerate(recording.outputs))
        order = recording.device.order()
        self.call.add(recording, order, recording.launch, recording.replay, recording.clones, recording.words, copies, shapes, results)

    def drop(self, recording: Recording) -> None:
        self.call.drop(recording)

    def play(self, values: Sequence[Any], stamp: Any) -> tuple[Any, ...] | None:
        raw: tuple[Any, ...] | None = self.call.play(values, stamp)
        return raw


def _bytes(tensor: Any) -> int:
    return int(flat(tensor).numel()) * int(tensor.element_size())


def _result(output: Output, copied: bool) -> tuple[Any, ...]:
    if isinstance(output, int):
        return (output,)
    if isinstance(output, FromInput):
        return output.input, output.size, output.stride, output.offset, False
    return output, tuple(output.shape), output.stride(), _bytes(output), copied


def replay_order(native: Any, index: int) -> Any:
    """The order of replays on the current device, whose index is `index`. Raises RuntimeError where the driver refuses."""
    context, event = ctypes.c_void_p(), ctypes.c_void_p()
    get, create = (ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *more)(_address(name)) for name, more in _SETUP)
    failed = get(ctypes.addressof(context)) or create(ctypes.addressof(event), _EVENT_DISABLE_TIMING)
    if failed:
        raise RuntimeError(f"CUDA gives no context or no event for the order of replays: error {failed} of the driver")
    addresses = tuple(_address(name) for name in FUNCTIONS)
    return native.ReplayOrder(index, context.value or 0, event.value or 0, copy_kernel(), addresses)


def _address(name: str) -> int:
    address = resolve_symbol(name)
    if not address:
        raise RuntimeError(f"CUDA graphs need {name}, which is not there")
    return address
