"""A GPU for CUDA graphs: capturing, the order of replays, and which graphs can be captured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from precast.runtime.common.locks import Lock
from precast.runtime.cuda_graphs.capture import Capturer, Run
from precast.runtime.cuda_graphs.cublas_workspaces import give_back_workspaces
from precast.runtime.cuda_graphs.graphs import Draws, Taken, Unfit
from precast.runtime.cuda_graphs.native_replay import replay_order
from precast.runtime.executable.fallback_ops import find_op
from precast.runtime.executable.triton_launch import LAUNCH
from precast.runtime.native import loader

_devices: dict[int, CudaDevice] = {}
_lock = Lock()


def device_of(tensors: Mapping[str, torch.Tensor]) -> CudaDevice:
    """The GPU on which all these tensors lie; their names are for messages. Raises Unfit where they are not on one GPU."""
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise Unfit(f"{name} is on the {tensor.device.type}")
    indices = sorted({tensor.get_device() for tensor in tensors.values()})
    if not indices:
        raise Unfit("no input of its own says which GPU it is for")
    if len(indices) > 1:
        raise Unfit(f"its inputs are on several GPUs ({', '.join(map(str, indices))})")
    with _lock:
        return _devices.setdefault(indices[0], CudaDevice(indices[0]))


class CudaDevice:
    """One GPU. Its captures share a memory pool: no two replays run at the same time, so they may use the same work memory."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._lock = Lock()
        self._capturer: Capturer | None = None
        self._last: Any = None
        self._order: Any = None

    def obstacle(self) -> str:
        with torch.cuda.device(self.index):
            if torch.cuda.is_current_stream_capturing():
                return "its stream is being captured by somebody else"
            stream = torch.cuda.current_stream()
            if stream.stream_id == stream.cuda_stream != 0:
                return "its stream is not one of torch's, and may be gone when another stream has to wait for it"
            if self._order is not None:
                self._order.allow(stream.cuda_stream)
        return ""

    def order(self) -> Any:
        """The order of replays, kept by the native runtime. Made on a stream on which something may be replayed."""
        with self._lock, torch.cuda.device(self.index):
            if self._order is None:
                self._order = replay_order(loader.loaded(), self.index)
                if self._last is not None:
                    self._order.enter(self._last.cuda_stream)
                    self._order.leave()
            self._order.allow(torch.cuda.current_stream().cuda_stream)
            return self._order

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self._lock, torch.cuda.device(self.index):
            stream = torch.cuda.current_stream()
            if self._order is not None:  # this graph is older than the native runtime
                self._order.enter(stream.cuda_stream)
                try:
                    yield
                finally:
                    self._order.leave()
                return
            if self._last is not None and self._last != stream:
                stream.wait_stream(self._last)  # an output that was dropped may still be read there
            self._last = stream
            yield

    def drawn(self) -> int:
        return int(torch.cuda.default_generators[self.index].get_offset())

    def spare(self) -> None:
        """Gives back memory that nothing needs between calls of a graph: cuBLAS's workspaces."""
        give_back_workspaces()

    def retire(self, tensors: Sequence[torch.Tensor]) -> None:
        with self.entered():  # this stream comes after all replays
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream())

    def capture(self, run: Run, draws: Draws, first: bool, alone: bool) -> Taken:
        with self._lock, torch.cuda.device(self.index):
            torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]  # of this thread: it cannot be made in a capture
            self.spare()
            if first:
                torch.cuda.empty_cache()  # what the first calls worked in: captures have memory of their own
            if self._capturer is None:
                self._capturer = Capturer(self.index)
            try:
                with self.entered() if alone or draws != "no" else nullcontext():
                    return self._capturer.capture(run, draws, alone)
            finally:
                self.spare()


def unfit(operators: Sequence[str]) -> str:
    """Why a graph that calls these operators through Python may not be captured; "" where it may."""
    for name in operators:
        namespace, _, rest = name.partition("::")
        if name.startswith(LAUNCH):
            continue  # warmed up, it is launched on the stream that is captured
        if namespace == "control":
            return f"{name} decides on the host"
        try:
            tags = find_op(name).tags
        except RuntimeError as error:
            return str(error)  # which calls will raise
        for tag in (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape):
            if tag in tags:
                return f"{name} waits for the GPU: its result or its size is wanted on the host"
        if torch.Tag.cudagraph_unsafe in tags:
            return f"{name} is tagged cudagraph_unsafe"
        if namespace not in ("aten", "prims") and in_python(f"{namespace}/{rest.removesuffix('.default')}"):
            return f"{name} is written in Python, and may do more than a replay would"
    return ""


def in_python(name: str) -> bool:
    """Whether an operator ("namespace/name.overload") has kernels that were registered from Python."""
    kernels: set[str] = torch.library._impls
    return any(kernel.startswith(f"{name}/") and not kernel.endswith(("/Meta", "/Autograd")) for kernel in kernels)
