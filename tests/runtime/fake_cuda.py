"""A GPU for tests that have none: streams are names, a capture keeps what it has to run again, a replay writes into the same outputs.

As on a GPU, a capture reads its inputs at their addresses, and does not keep them alive.

With `native`, calls go through the native runtime, for which CUDA's driver is played by Python functions.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from precast.artifact_store.format.records import GraphInput
from precast.runtime.cuda_graphs.graphs import Capturable, CaptureFailed, CudaGraphs, Draws, Taken
from precast.runtime.cuda_graphs.native_replay import FUNCTIONS, NativePlayer
from precast.runtime.cuda_graphs.recording import flat
from precast.runtime.executable.calling_convention import Finish, GraphSpec
from precast.runtime.executable.graph_call import graph_call
from precast.runtime.native.torch_symbols import new_handle, resolve_symbol, take_handle
from precast.runtime.settings.options import CudaGraphOptions

_POINTER = ctypes.c_void_p
_WORDS = ctypes.POINTER(ctypes.c_void_p)
_NUMBERS = ctypes.POINTER(ctypes.c_int64)
_STREAMS = {"main": 0, "side": 17}
_EMPTY = (ctypes.c_int64, _NUMBERS, _NUMBERS, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, _WORDS)


class FakeDevice:
    """`events`: what happened, in order. While `capturing`, a run function must not change anything, as nothing is executed then."""

    def __init__(self, native: Any = None) -> None:
        self.native = native
        self.stream = "main"
        self.last = ""
        self.events: list[Any] = []
        self.capturing = False
        self.trouble = ""
        self.fails: list[str] = []
        self.offset = 0
        self.captures = 0
        self.alone = 0  # captures in a pool of their own
        self.replays = 0
        self.retired: list[int] = []
        self.spared = 0
        self.contexts: list[int] = [1]  # the thread's current one
        self.error = 0  # what the next launch returns
        self._launches: dict[int, weakref.ref[Callable[[], None]]] = {}
        self._order: Any = None

    def of(self, tensors: Mapping[str, torch.Tensor]) -> FakeDevice:
        return self

    def obstacle(self) -> str:
        if not self.trouble and self.native is not None:
            self.order().allow(_STREAMS[self.stream])
        return self.trouble

    def capture(self, run: partial[tuple[Any, ...]], draws: Draws, first: bool, alone: bool) -> Taken:
        self.events.append(("capture", "first" if first else "another", draws))
        self.captures += 1
        self.alone += alone
        self.capturing = True
        with _unchanged(run):
            try:
                outputs = run()
            except RuntimeError as error:
                raise CaptureFailed(str(error)) from error
            finally:
                self.capturing = False
        if self.fails:
            raise CaptureFailed(self.fails.pop(0))

        homes, given, *more = run.args
        again = partial(run.func, homes, [_unowned(value) for value in given], *more)

        @torch.no_grad()
        def replay() -> None:
            self.replays += 1
            for old, new in zip(outputs, again(), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        self._launches[self.captures] = weakref.ref(replay)
        return Taken(outputs, replay, self.captures if draws == "no" else 0)

    @contextmanager
    def entered(self) -> Iterator[None]:
        if self.last not in ("", self.stream):
            self.events.append(("wait", self.stream, self.last))
        self.last = self.stream
        yield

    def drawn(self) -> int:
        return self.offset

    def spare(self) -> None:
        self.spared += 1

    def retire(self, tensors: Sequence[torch.Tensor]) -> None:
        self.retired += [tensor.data_ptr() for tensor in tensors]

    def order(self) -> Any:
        """The native runtime's, with a driver that does what `entered` and `capture` do."""
        if self._order is None:
            names = {number: name for name, number in _STREAMS.items()}

            def current(to: Any, value: int) -> int:
                to[0] = value
                return 0

            def launch(graph: int, stream: int) -> int:
                if self.error:
                    return self.error
                replay = self._launches[graph]()
                assert replay is not None, "a capture that was dropped is launched"
                replay()
                return 0

            def record(event: int, stream: int | None) -> int:
                self.last = names[stream or 0]
                return 0

            def wait(stream: int | None, event: int, flags: int) -> int:
                self.events.append(("wait", names[stream or 0], self.last))
                return 0

            def copy(to: int, origin: int, count: int, stream: int) -> int:
                ctypes.memmove(to, origin, count)
                return 0

            def launch_kernel(kernel: int, x: int, rows: int, *rest: Any) -> int:
                table = ctypes.cast(rest[-2][0], ctypes.POINTER(ctypes.c_uint64))
                self.events.append(("copy", rows))
                assert kernel == 3 and x >= 1 and rest[:5] == (1, 256, 1, 1, 0)
                for row in range(rows):
                    ctypes.memmove(table[3 * row], table[3 * row + 1], table[3 * row + 2])
                return 0

            def capturing(stream: int, status: Any) -> int:
                status[0] = 1 if self.trouble else 0
                return 0

            def context_set(context: int | None) -> int:
                self.contexts.append(context or 0)
                return 0

            empty = ctypes.CFUNCTYPE(ctypes.c_int32, *_EMPTY)(resolve_symbol("aoti_torch_empty_strided") or 0)
            integer, number = ctypes.c_int, ctypes.c_uint64
            played = {
                "cuCtxGetCurrent": ((_WORDS,), lambda to: current(to, self.contexts[-1])),
                "cuCtxSetCurrent": ((_POINTER,), context_set),
                "cuStreamIsCapturing": ((_POINTER, ctypes.POINTER(integer)), capturing),
                "cuGraphLaunch": ((_POINTER, _POINTER), launch),
                "cuMemcpyDtoDAsync_v2": ((number, number, ctypes.c_size_t, _POINTER), copy),
                "cuLaunchKernel": ((_POINTER, *[ctypes.c_uint] * 7, _POINTER, _WORDS, _POINTER), launch_kernel),
                "cuEventRecord": ((_POINTER, _POINTER), record),
                "cuStreamWaitEvent": ((_POINTER, _POINTER, ctypes.c_uint), wait),
                "aoti_torch_get_current_cuda_stream": ((ctypes.c_int32, _WORDS), lambda _, to: current(to, _STREAMS[self.stream])),
                "aoti_torch_empty_strided": (_EMPTY, lambda dim, size, step, dtype, _, index, to: empty(dim, size, step, dtype, 0, 0, to)),
            }
            self._callbacks = [ctypes.CFUNCTYPE(integer, *kinds)(function) for kinds, function in played.values()]
            found = {name: ctypes.cast(call, _POINTER).value for name, call in zip(played, self._callbacks, strict=True)}
            self._order = self.native.ReplayOrder(-1, 1, 5, 3, tuple(found.get(name) or resolve_symbol(name) for name in FUNCTIONS))
        return self._order


@contextmanager
def _unchanged(run: partial[Any]) -> Iterator[None]:
    """A context after which nothing that the run was given has changed: nothing runs in a capture. Buffers of copied inputs hold zeros."""
    policy, drawn = run.func.__self__, torch.get_rng_state()  # type: ignore[attr-defined]
    for size in policy._sizes.values():
        for buffer in size.buffers.values():
            buffer.zero_()
    given = [flat(value.detach()) for value in (*run.args[1], *policy.bound) if isinstance(value, torch.Tensor)]
    before = [value.clone() for value in given]
    try:
        yield
    finally:
        torch.set_rng_state(drawn)
        for value, old in zip(given, before, strict=True):
            ctypes.memmove(value.data_ptr(), old.data_ptr(), old.numel() * old.element_size())


def _unowned(value: Any) -> Any:
    """A tensor at the same address, which does not own that memory."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    memory = (ctypes.c_char * (flat(value).numel() * value.element_size())).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=value.dtype).as_strided(value.shape, value.stride())


def given(name: str, position: int, mutated: bool = False) -> GraphInput:
    """A tensor that comes with each call."""
    return GraphInput((("local", name),), False, position, mutated=mutated)


def bound(name: str) -> GraphInput:
    """A tensor that a module owns."""
    return GraphInput((("local", "self"), ("param", name)), True, None)


class Graphs:
    """What a test calls, and the policy behind it."""

    def __init__(self, call: Callable[..., tuple[Any, ...]], policy: CudaGraphs) -> None:
        self.call, self.policy = call, policy

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return self.call(*args)

    @property
    def refused(self) -> str:
        return self.policy.refused

    def recordings(self) -> list[Any]:
        return [recording for size in self.policy._sizes.values() for recording in size.recordings]


def graphs(
    device: FakeDevice,
    run: Callable[..., tuple[Any, ...]],
    inputs: Sequence[GraphInput],
    weights: Sequence[torch.Tensor] = (),
    kinds: str = "t",
    finish: Finish | None = None,
    skip_dynamic: bool = False,
    **more: Any,
) -> Graphs:
    """CUDA graphs around `run`, which takes the per-call inputs."""
    spec = GraphSpec(tuple(inputs), kinds, finish)
    if device.native is not None:
        run = native_run(run, GraphSpec(tuple(inputs), kinds, None), weights)
    device_of = more.pop("device_of", device.of)
    policy = CudaGraphs(Capturable("net", run, spec, weights, **more), CudaGraphOptions(skip_dynamic), device_of)
    if device.native is None:
        return Graphs(policy, policy)
    policy.player = player = NativePlayer(device.native, run, finish, policy, "stamp" in more)
    return Graphs(player.call, policy)


def native_run(run: Callable[..., tuple[Any, ...]], spec: GraphSpec, weights: Sequence[torch.Tensor]) -> Any:
    """`run` as a native graph call, which reaches it through a `precast_run` that is a Python function."""
    duplicate = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _WORDS)(resolve_symbol("aoti_torch_new_tensor_handle") or 0)

    def value(item: GraphInput, word: int | None) -> Any:
        if item.kind == "int":
            return ctypes.c_int64(word or 0).value
        if item.kind == "float":
            return ctypes.c_double.from_buffer(ctypes.c_uint64(word or 0)).value
        handle = ctypes.c_void_p()
        duplicate(word, ctypes.pointer(handle))
        return take_handle(handle.value or 0)

    def precast_run(table: Any, inputs: Any, outputs: Any, state: Any, error: Any, capacity: int) -> int:
        args = {item.position: value(item, inputs[i]) for i, item in enumerate(spec.inputs) if item.position is not None}
        with torch.no_grad():
            results = run(*(args[i] for i in sorted(args)))
        for i, result in enumerate(results):
            outputs[i] = new_handle(result) if isinstance(result, torch.Tensor) else result
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _WORDS, _WORDS, _POINTER, _POINTER, ctypes.c_int64)(precast_run)
    address = ctypes.cast(callback, _POINTER).value
    library: Any = SimpleNamespace(run=address, prepare=0, release=0, table=0, frees=(), uses_threads=False, run_rows=0, callback=callback)
    return graph_call(library, spec, weights)
