"""Measures candidates on a GPU: kernels through the driver, library calls through torch; by events, with caches swept in between."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from precast.codegen.common.measure import Record, torch_dtype
from precast.codegen.cuda.candidates import StandIn
from precast.codegen.cuda.torch_calls import library_call
from precast.codegen.cuda.tuning import LIBRARY, Problem
from precast.codegen.triton.build.images import Cubin, candidate_images
from precast.codegen.triton.render.render import TritonKernel
from precast.lowering.ir.nodes import Buffer
from precast.lowering.ir.sizes import hint

log = logging.getLogger("precast.compile")
Call = Callable[[], object]
MARGIN, LEAST_US = 0.97, 0.4
"""Another candidate's median must be below this part of the default's, and faster by so many microseconds, to win: less is noise. Small
kernels thus keep the default, with which they can be launched together.
"""
MAX_SHARED = 8
"""The driver's attribute of a function: how much dynamic shared memory it may have. More than 48 KiB has to be asked for."""
_PLAIN_SHARED = 48 << 10
_cuda: Any = torch.cuda  # parts of it have no types
AGREE = 2e-2
"""Relative L2 distance from the default's result beyond which a candidate counts as wrong."""


def decide(times: Mapping[str, Sequence[float]], default: str) -> Record:
    """The winner by medians; the default stays where no other is faster by the margin. Microseconds."""
    middle = {name: statistics.median(found) for name, found in times.items()}
    fastest = min(middle, key=lambda name: middle[name])
    winner = fastest if middle[fastest] < min(MARGIN * middle[default], middle[default] - LEAST_US) else default
    ranked = sorted(middle, key=lambda name: middle[name])[:5]
    return {"winner": winner, "us": {name: round(middle[name], 2) for name in dict.fromkeys((*ranked, default))}}


@dataclass
class Lab:
    """One GPU, the current device of torch. `workers`: threads that compile candidates."""

    arch: str
    workers: int = 8
    seconds: float = 0.25
    """Spent on measuring one problem, besides compiling its candidates."""
    limit: float = math.inf
    """Seconds of all that is answered, compiling candidates included, after which nothing is measured any more."""
    spent: float = 0.0
    swept: torch.Tensor | None = field(default=None, repr=False)

    def measure(self, problem: Problem) -> Record | None:
        """Times the candidates of one problem that run and agree with the default. Raises RuntimeError where that does not run."""
        usable = self._usable(problem)
        if problem.default not in usable:
            raise RuntimeError(f"{problem.default} does not run on this device, for {problem.key}")
        return {**decide(self.race(usable), problem.default), "default": problem.default, "device": torch.cuda.get_device_name()}

    def _usable(self, problem: Problem) -> dict[str, Call]:
        if problem.calls is not None:
            return self.agreeing(problem.calls(), problem.default)
        return self.sequences(problem) if problem.ways else self.launches(problem)

    def answer(self, problem: Problem) -> Record | None:
        """As `measure`, for a build: what cannot be measured, or not in the time that is left, is logged, and the default is taken."""
        if self.spent >= self.limit:
            log.info("not measured, as the time for it is spent: %s", problem.key)
            return None
        began = time.perf_counter()
        try:
            return self.measure(problem)
        except RuntimeError as error:
            log.warning("not measured: %s", error)
            return None
        finally:
            self.spent += time.perf_counter() - began

    def agreeing(self, calls: Mapping[str, Call], default: str) -> dict[str, Call]:
        """The library calls that run and give what the default gives; none where that does not run. The default comes first."""
        found: dict[str, Call] = {}
        wanted: list[torch.Tensor] = []
        for name in sorted(calls, key=lambda name: name != default):
            if not self.runs(calls[name]):
                if name == default:
                    return {}
                continue
            given = calls[name]
            result = _result(given.answer() if isinstance(given, StandIn) else given())
            if name == default:
                wanted = [t.clone() for t in result]  # candidates may share the memory that they write to
            if len(result) == len(wanted) and all(g.shape == w.shape and _agrees(g, w) for g, w in zip(result, wanted, strict=True)):
                found[name] = given
            else:
                log.warning("%s is left out: its result is not that of %s", name, default)
        return found

    def runs(self, call: Call) -> bool:
        """Whether the candidate runs at all: libraries refuse what they do not support, kernels may need too much shared memory."""
        try:
            call()
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def launches(self, problem: Problem) -> dict[str, Call]:
        """Launches of the candidate kernels (and of the library's way) over tensors of their own, without those whose results differ from
        the default's; none where that does not run. The default comes first.
        """
        names = list(problem.kernels)
        rest = [step for step in problem.library if isinstance(step, TritonKernel)]
        cubins = candidate_images([*problem.kernels.values(), *rest], self.arch, self.workers)
        for name, cubin in zip([*names, *([LIBRARY] * len(rest))], cubins, strict=True):
            if isinstance(cubin, Exception):
                log.warning("%s is left out: it cannot be compiled for %s: %s", name, problem.key, said(cubin))
        tensors = {b.name: _tensor(b) for b in problem.buffers}
        calls = {n: launch(problem.kernels[n], cubin, tensors) for n, cubin in zip(names, cubins[: len(names)], strict=True)}
        if problem.library:
            calls[LIBRARY] = _in_turn(problem, dict(zip(map(id, rest), cubins[len(names) :], strict=True)), tensors)
        written = {a.buffer for kernel in problem.kernels.values() for a in kernel.arguments if a.kind == "buffer"}
        return self._agreeing_over(problem, calls, tensors, written)

    def sequences(self, problem: Problem) -> dict[str, Call]:
        """As `launches`, of ways that are several kernels in turn."""
        every = [kernel for way in problem.ways.values() for kernel in way]
        cubins = dict(zip(map(id, every), candidate_images(every, self.arch, self.workers), strict=True))
        tensors = {b.name: _tensor(b) for b in problem.buffers}
        calls: dict[str, Call | None] = {}
        for name, way in problem.ways.items():
            own = {**tensors, **{b.name: _tensor(b) for b in problem.temporaries.get(name, ())}}
            steps = [launch(kernel, cubins[id(kernel)], own) for kernel in way]
            calls[name] = None if None in steps else partial(_all, [step for step in steps if step is not None])
        return self._agreeing_over(problem, calls, tensors, set(tensors))

    def _agreeing_over(
        self, problem: Problem, calls: Mapping[str, Call | None], tensors: Mapping[str, torch.Tensor], written: Collection[str]
    ) -> dict[str, Call]:
        """The calls that run and leave in `tensors` what the default leaves there."""
        start = {name: tensor.clone() for name, tensor in tensors.items()}
        found: dict[str, Call] = {}
        wanted: dict[str, torch.Tensor] = {}
        for name in sorted(calls, key=lambda name: name != problem.default):
            call = calls[name]
            for buffer, tensor in tensors.items():
                tensor.copy_(start[buffer])
            if call is None or not self.runs(call.answer if isinstance(call, StandIn) else call):
                if name == problem.default:
                    return {}
                continue
            if name == problem.default:
                wanted = {buffer: tensors[buffer].clone() for buffer in written}
            if all(_agrees(tensors[buffer], want) for buffer, want in wanted.items()):
                found[name] = call
            else:
                log.warning("%s is left out: its result is not that of %s", name, problem.default)
        return found

    def race(self, calls: Mapping[str, Call]) -> dict[str, list[float]]:
        """Microseconds of each call over rounds in which they take turns, with the second-level cache swept before each."""
        sweep, cuda = self._sweeper(), _cuda
        found: dict[str, list[float]] = {name: [] for name in calls}
        began = time.perf_counter()
        for number in range(60):
            pairs = []
            cuda._sleep(1_000_000)  # the device is behind while the round is queued, so that it never waits for the host
            for name, call in calls.items():
                sweep()
                begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
                begin.record()
                call()
                end.record()
                pairs.append((name, begin, end))
            torch.cuda.synchronize()
            if number:  # the first round warms up
                for name, begin, end in pairs:
                    found[name].append(begin.elapsed_time(end) * 1e3)
            if number >= 5 and time.perf_counter() - began > self.seconds:
                break
        return found

    def _sweeper(self) -> Call:
        if self.swept is None:
            cache = int(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 64 << 20))
            self.swept = torch.empty(2 * cache, dtype=torch.uint8, device="cuda")
        return self.swept.zero_


def _all(calls: Sequence[Call]) -> object:
    return [call() for call in calls]


def said(error: Exception) -> str:
    """The error on one line: its kind and the beginning of what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def launch(kernel: TritonKernel, cubin: Cubin | Exception, tensors: Mapping[str, torch.Tensor]) -> Call | None:
    """A call that launches the kernel once on torch's current stream; None where this device does not take it, or nothing compiled it."""
    if isinstance(cubin, Exception):
        return None
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    if driver.cuModuleLoadData(ctypes.byref(module), cubin.image):
        return None
    if driver.cuModuleGetFunction(ctypes.byref(function), module, cubin.metadata["entry"].encode()):
        return None
    shared = int(cubin.metadata["shared"])
    if shared > _PLAIN_SHARED and driver.cuFuncSetAttribute(function, MAX_SHARED, shared):
        return None
    grid = hint(kernel.grid)
    values = _arguments(kernel, cubin, tensors, grid)
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    block = int(cubin.metadata["block"])

    def call() -> object:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, pointers, None)
        if code:
            raise RuntimeError(f"cuLaunchKernel answers {code}")
        return values, module, tensors  # kept alive by the call

    return call if grid > 0 else None


def _in_turn(problem: Problem, cubins: Mapping[int, Cubin | Exception], tensors: Mapping[str, torch.Tensor]) -> Call | None:
    """The library's way as one call. What is timed leaves out the copies that bring a library's own memory to where its result is read."""
    buffers = {b.name: b for b in problem.buffers}
    calls: list[Call | None] = []
    for step in problem.library:
        calls.append(launch(step, cubins[id(step)], tensors) if isinstance(step, TritonKernel) else library_call(step, tensors, buffers))
    steps = [call for call in calls if call is not None]
    if len(steps) < len(calls):
        return None
    return StandIn(lambda: [call() for call in steps], lambda: [call.answer() if isinstance(call, StandIn) else call() for call in steps])


_SIZES: dict[str, Any] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp64": ctypes.c_double}


def _arguments(kernel: TritonKernel, cubin: Cubin, tensors: Mapping[str, torch.Tensor], grid: int) -> list[Any]:
    """The kernel's arguments in their C types, and the two hidden pointers."""
    values: list[Any] = []
    for argument in kernel.arguments:
        if argument.kind == "buffer":
            values.append(ctypes.c_uint64(tensors[argument.buffer].data_ptr()))
        else:
            assert argument.symbol is not None
            values.append(_SIZES[argument.type](hint(argument.symbol)))
    scratch = int(cubin.metadata["global_scratch_size"]) * grid
    memory = torch.empty(max(scratch, 1), dtype=torch.uint8, device="cuda") if scratch else None
    hidden = ctypes.c_uint64(memory.data_ptr() if memory is not None else 0)
    if memory is not None:
        hidden.memory = memory  # type: ignore[attr-defined]  # lives as long as the argument
    return [*values, hidden, ctypes.c_uint64(0)]


def _tensor(buffer: Buffer) -> torch.Tensor:
    """Memory for a buffer with values that any kernel takes: small numbers, and zeros where they may be indices."""
    dtype = torch_dtype(buffer)
    span = 1 + sum((hint(n) - 1) * hint(s) for n, s in zip(buffer.size, buffer.stride, strict=True)) if buffer.size else 1
    flat = torch.zeros(max(span, 1), dtype=dtype, device="cuda")
    if dtype.is_floating_point:
        flat.normal_(0, 0.5, generator=torch.Generator(device="cuda").manual_seed(span))
    return flat


def _result(given: object) -> list[torch.Tensor]:
    """The tensor that a library call is made for: attention's operators give what backward needs behind it."""
    first = given[0] if isinstance(given, tuple | list) else given
    return [first] if isinstance(first, torch.Tensor) else []


def _agrees(got: torch.Tensor, want: torch.Tensor) -> bool:
    if not want.is_floating_point():
        return torch.equal(got, want)
    got, want = got.double(), want.double()
    finite = want.isfinite()
    if not torch.equal(got.isfinite(), finite):
        return False
    error, scale = (got[finite] - want[finite]).norm(), want[finite].norm()
    return bool(error <= AGREE * scale + 1e-12)


def lab_for(target: str, limit: float = math.inf) -> Lab:
    """The lab of this machine's current device, for `limit` seconds. Raises RuntimeError where it is none of the target's architecture."""
    if not torch.cuda.is_available():
        raise RuntimeError("this machine has no GPU that torch can use")
    major, minor = torch.cuda.get_device_capability()
    if target != f"cuda:sm_{major}{minor}":
        raise RuntimeError(f"this machine's GPU is of architecture sm_{major}{minor}, not {target.removeprefix('cuda:')}")
    return Lab(target.removeprefix("cuda:"), os.cpu_count() or 1, limit=limit)
