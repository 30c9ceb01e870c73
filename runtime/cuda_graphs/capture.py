"""Captures the launches of a function as a CUDA graph, on a stream and into a memory pool that nothing else uses.

The driver captures, and torch's allocator is told to allocate from the pool. torch's own `CUDAGraph` is used only for graphs that draw
random numbers: while it captures, other threads that draw get an error, and after a failed capture every thread does.
"""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from precast.runtime.cuda_graphs.cublas_workspaces import own_pool
from precast.runtime.cuda_graphs.graphs import CaptureFailed, Draws, Taken
from precast.runtime.native.cuda_driver import driver_library

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: only this thread is restricted by the capture
_INSTANTIATE = 1 | 8  # free on launch, priorities of nodes: as torch does
_ALLOCATOR = ("_cuda_beginAllocateCurrentStreamToPool", "_cuda_endAllocateToPool", "_cuda_releasePool")
Run = Callable[[], tuple[Any, ...]]


class Launchable:
    """An executable CUDA graph. Destroying it returns its memory to the pool, after a replay that is under way."""

    def __init__(self, index: int, pool: Any, graph: ctypes.c_void_p) -> None:
        self._index, self._pool = index, pool
        self._driver = driver_library()
        executable = ctypes.c_void_p()
        _check("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(_INSTANTIATE))
        self.address = executable.value or 0

    def replay(self) -> None:
        """Launches it on the current stream. Its device has to be the current one."""
        _check("cuGraphLaunch", ctypes.c_void_p(self.address), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    def __del__(self) -> None:
        address, self.address = getattr(self, "address", 0), 0
        if address and self._driver is not None:
            self._driver.cuGraphExecDestroy(ctypes.c_void_p(address))
            torch._C._cuda_releasePool(self._index, self._pool)


class Capturer:
    """The capture stream and the memory pool of one device, which has to be the current one at each call."""

    def __init__(self, index: int) -> None:
        missing = [name for name in _ALLOCATOR if not hasattr(torch._C, name)]
        if missing:
            raise CaptureFailed(f"this torch has no {missing[0]}")
        self._index = index
        stream = ctypes.c_void_p()
        _check("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        # not from torch's pool of streams, which others get: what libraries keep per stream then lies in the capture's memory pool
        self._stream = torch.cuda.ExternalStream(stream.value or 0, device=index)  # type: ignore[no-untyped-call]
        self._kept: list[Any] = []
        self._pool = self._new_pool()
        self._torch_pool: Any = None

    def capture(self, run: Run, draws: Draws, alone: bool) -> Taken:
        """A capture of `run`; `alone`: in a memory pool of its own, which is released with it. Where it may draw random numbers, or is
        alone, the current stream has waited for all replays and none is enqueued meanwhile. Raises CaptureFailed.
        """
        if alone:
            self._have_workspaces()
        if draws == "yes":
            return self._by_torch(run, alone)
        try:
            return self._by_driver(run, own_pool() if alone else self._pool)
        except CaptureFailed:
            if draws == "no":
                raise
        return self._by_torch(run, alone)

    def _have_workspaces(self) -> None:
        """Has cuBLAS allocate what it keeps for the capture stream in the shared pool: later captures use it, too, when a pool that belongs
        to one capture may be gone.
        """
        with self._in_turn():
            with self._allocating(self._pool):
                torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
                if not torch.are_deterministic_algorithms_enabled():  # products may then raise
                    a = torch.zeros(16, 16, dtype=torch.half, device=torch.device("cuda", self._index))
                    torch.addmm(a[0], a, a)  # by cuBLASLt, which may keep one of its own
                    del a
            torch._C._cuda_releasePool(self._index, self._pool)

    def _new_pool(self) -> Any:
        """A pool that is never released: a released pool cannot be used again."""
        pool = own_pool()
        with self._allocating(pool):
            pass
        return pool

    @contextmanager
    def _allocating(self, pool: Any) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            torch._C._cuda_beginAllocateCurrentStreamToPool(self._index, pool)
            try:
                yield
            finally:
                torch._C._cuda_endAllocateToPool(self._index, pool)

    def _by_driver(self, run: Run, pool: Any) -> Taken:
        stream, graph = ctypes.c_void_p(self._stream.cuda_stream), ctypes.c_void_p()
        problem: Exception | None = None
        outputs: tuple[Any, ...] = ()
        with self._allocating(pool), _no_collection():
            _check("cuStreamBeginCapture_v2", stream, ctypes.c_int(_THREAD_LOCAL))
            try:
                outputs = run()
            except Exception as error:  # noqa: BLE001 - whatever it is, the capture has to be ended, and the reason told
                problem = error
            try:
                _check("cuStreamEndCapture", stream, ctypes.byref(graph))
                launchable = Launchable(self._index, pool, graph) if problem is None else None
            except CaptureFailed as failed:
                problem, launchable = problem or failed, None
            if graph.value:
                _check("cuGraphDestroy", graph)
        if launchable is None:
            torch._C._cuda_releasePool(self._index, pool)
            raise CaptureFailed(_first_line(problem)) from problem
        return Taken(outputs, launchable.replay, launchable.address)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """A context that orders the capture stream after earlier work of the current stream, and before its later work.

        Beginning a capture writes, on the capture stream, the seed and offset that every graph which draws reads; each replay writes them
        on its own stream.
        """
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            yield
        finally:
            current.wait_stream(self._stream)

    def _by_torch(self, run: Run, alone: bool) -> Taken:
        with self._in_turn():
            if self._torch_pool is None:
                self._renew_torch_pool()
            return self._captured_by_torch(run, own_pool() if alone else self._torch_pool)

    def _captured_by_torch(self, run: Run, pool: Any) -> Taken:
        graph = torch.cuda.CUDAGraph()
        problem: Exception | None = None
        outputs: tuple[Any, ...] = ()
        with torch.cuda.stream(self._stream), _no_collection():
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = run()
            except Exception as error:  # noqa: BLE001 - as above
                problem = error
            try:
                graph.capture_end()
            except RuntimeError as error:
                problem = problem or error
                # allocators go on asking the graph which streams are its own, and find its pool in use
                self._kept.append(graph)
                torch._C._cuda_endAllocateToPool(self._index, pool)
                self._renew_torch_pool()
        if problem is not None:
            raise CaptureFailed(_first_line(problem)) from problem
        return Taken(outputs, graph.replay)

    def _renew_torch_pool(self) -> None:
        """Makes a new pool by an empty capture, which keeps it alive.

        After a failed capture the random generator believes that it is still under way, until another capture ends.
        """
        pool, empty = own_pool(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is empty
            empty.capture_begin(pool=pool, capture_error_mode="thread_local")
            empty.capture_end()
        self._torch_pool = pool
        self._kept.append(empty)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disables garbage collection: tensors and graphs must not be freed in the middle of a capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _check(name: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises CaptureFailed."""
    code = getattr(driver_library(), name)(*arguments)
    if code:
        raise CaptureFailed(f"{name}: error {code} of the driver")


def _first_line(problem: Exception | None) -> str:
    return str(problem).strip().partition("\n")[0] or type(problem).__name__
