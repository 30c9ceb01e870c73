"""Host time of a call and of a kernel on a GPU: precast, torch.compile's default and its C++ wrapper, a bare CUDA graph replay.

Per kernel: chains of small reductions that cannot be fused, of two lengths; the slope of host time over the number of kernels that the
profiler counted (each contender's own), and what is left per call; beside them a C++ loop over the driver's launch.
Per call: GPT-2 with its 149 inputs (12 layers, narrow) in reduce-overhead, against replaying a CUDA graph that was captured from the same
compiled program and asks nothing.
Host time is that of calls that return while the device is kept busy by a sleeping kernel, fewer launches than its queue holds at a time.

    python benchmarks/gpu_overhead.py [--rounds 15] [--no-cpp-wrapper] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from contenders import environment
from gpu_contenders import first_answer
from gpu_measure import captured, profile
from report import table

Call = Callable[..., Any]
LENGTHS = (8, 64)
QUEUE = 700
"""Launches in flight at most: the device's queue holds about a thousand, and a launch into a full one waits."""
CALL_LIMIT_US, KERNEL_LIMIT_US = 10.0, 3.5


def chain(length: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Reductions over rows and columns in turn, each of which needs all of the one before: as many kernels as steps, or more."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for step in range(length):
            x = x - x.amax(step % 2, keepdim=True)
        return x

    return run


def contenders(cache: str, cpp_wrapper: bool) -> dict[str, Callable[[Callable[..., Any] | torch.nn.Module], Call]]:
    """What turns a program into the measured callable, without CUDA graphs."""
    import precast

    found: dict[str, Callable[[Any], Call]] = {
        "precast": lambda f: precast.compile(f, store=cache),
        "inductor": lambda f: torch.compile(f),
    }
    if cpp_wrapper:
        found["inductor cpp_wrapper"] = lambda f: torch.compile(f, options={"cpp_wrapper": True})
    return found


def host_us(calls: dict[str, Call], launches: dict[str, int], rounds: int) -> dict[str, list[float]]:
    """Microseconds of host time per call, one figure a round, the contenders taking turns. `launches`: of each, at most.

    Comes before the profiler has run once in the process: it leaves hooks behind that make every later launch dearer.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = max(3, min(50, QUEUE // launches[name]))
            call()
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)  # about 10 ms: the device is behind while the host is timed
            start = time.perf_counter()
            for _ in range(count):
                call()
            found[name].append((time.perf_counter() - start) / count * 1e6)
            torch.cuda.synchronize()
    return found


BARE = """
typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
extern "C" int launches(Launch launch, void* function, void* stream, void** arguments, int count) {
  int code = 0;
  for (int i = 0; i < count && !code; ++i) code = launch(function, 64, 1, 1, 128, 1, 1, 0, stream, arguments, 0);
  return code;
}
"""
EMPTY = 'extern "C" __global__ void nothing(float* from, float* to) {}'


def bare_launches(count: int, folder: Path) -> Call:
    """A loop in C++ that launches an empty kernel of two pointers: what the driver itself costs here."""
    source, library = folder / "bare.cpp", folder / "bare.so"
    source.write_text(BARE)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    loop, launch = ctypes.CDLL(str(library)).launches, ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    kernel = torch.cuda._compile_kernel(EMPTY, "nothing")
    x = torch.zeros(64, device="cuda")
    pointers = [ctypes.c_void_p(x.data_ptr()) for _ in range(2)]
    arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(p) for p in pointers))

    def call() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = loop(launch, kernel.func, stream, arguments, count)
        if code:
            raise RuntimeError(f"cuLaunchKernel answers {code}")

    call.kept = (x, pointers, kernel)  # type: ignore[attr-defined]  # what the launches point to
    return call


def _agrees(call: Call, x: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(call(x), want)


@dataclass
class Timed:
    """Callables by contender, and microseconds of host time per call, one figure a round."""

    calls: dict[str, Call]
    us: dict[str, list[float]]

    def kernels(self) -> dict[str, float]:
        """How many kernels each launches per call. Only after all timing: see `host_us`."""
        return {name: profile(lambda call=call: call(), {})["kernels"] for name, call in self.calls.items()}


def chains(compilers: dict[str, Callable[[Any], Call]], length: int, rounds: int, folder: Path) -> Timed:
    """Contenders on a chain of this length, and as many bare launches."""
    x = torch.randn(64, 64, device="cuda")
    program, calls = chain(length), {}
    want = program(x)
    for name, compiler in compilers.items():
        calls[name] = partial(first_answer(partial(compiler, program), partial(_agrees, x=x, want=want)), x)
    calls["bare launches"] = bare_launches(length, folder)
    for call in calls.values():
        call()
    return Timed(calls, host_us(calls, dict.fromkeys(calls, 2 * length), rounds))


def slopes(few: Timed, many: Timed) -> dict[str, dict[str, float]]:
    """Slope and intercept of host time over the number of kernels."""
    found = {}
    fewer, more = few.kernels(), many.kernels()
    for name in many.calls:
        few_us, many_us = (statistics.median(timed.us[name]) for timed in (few, many))
        slope = (many_us - few_us) / max(more[name] - fewer[name], 1)
        found[name] = {"kernels": more[name], "us": many_us, "slope": slope, "fixed": few_us - slope * fewer[name]}
    return found


def gpt2() -> tuple[torch.nn.Module, torch.Tensor]:
    """GPT-2 with all of its 12 layers and 148 parameters, narrow, and one short input."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False, n_embd=48, vocab_size=1000)).eval().cuda().requires_grad_(False)
    return model, torch.ones(1, 8, dtype=torch.int64, device="cuda")


def per_call(cache: str, rounds: int) -> Timed:
    """Host time per call of GPT-2 in both sides' modes, and of bare replays of the very same kernels."""
    import precast

    model, ids = gpt2()
    calls: dict[str, Call] = {}
    for title, compiled in (
        ("precast default", precast.compile(model, store=cache)),
        ("precast reduce-overhead", precast.compile(model, store=cache, mode="reduce-overhead")),
        ("torch.compile default", torch.compile(model)),
        ("torch.compile reduce-overhead", torch.compile(model, mode="reduce-overhead")),
    ):
        call = calls[title] = first_answer(partial(partial, compiled, input_ids=ids), lambda call: call())
        for _ in range(4):
            call()
    for title in ("precast default", "torch.compile default"):
        calls[f"bare replay of {title}"] = captured(calls[title])
    launches = {name: 1 if "replay" in name or "reduce" in name else 200 for name in calls}
    return Timed(calls, host_us(calls, launches, rounds))


def host_times(timed: Timed) -> dict[str, dict[str, float]]:
    """Medians and least figures beside the kernels."""
    kernels = timed.kernels()
    return {name: {"kernels": kernels[name], "us": statistics.median(us), "least": min(us)} for name, us in timed.us.items()}


def report(kernel: dict[str, dict[str, float]], call: dict[str, dict[str, float]]) -> str:
    """Both tables and whether the limits are met."""
    lines = ["### Host time per kernel, chains without fusion", ""]
    body = [[n, f"{f['kernels']:.0f}", f"{f['us']:.1f}", f"{f['slope']:.2f}", f"{f['fixed']:.1f}"] for n, f in kernel.items()]
    lines += [table(["", "kernels", "us per call", "us per kernel", "us besides"], body), ""]
    ours, bare = kernel["precast"]["slope"], kernel["bare launches"]["slope"]
    verdict = "met" if ours <= KERNEL_LIMIT_US else "NOT met"
    lines.append(f"- {verdict}: {ours:.2f} us per kernel, limit {KERNEL_LIMIT_US}; the driver's launch alone takes {bare:.2f} here")
    lines += ["", "### Host time per call, GPT-2 with 149 inputs", ""]
    body = [[n, f"{f['kernels']:.0f}", f"{f['us']:.1f}", f"{f['least']:.1f}"] for n, f in call.items()]
    lines += [table(["", "kernels", "us per call", "least"], body), ""]
    over = call["precast reduce-overhead"]["us"] - call["bare replay of precast default"]["us"]
    lines.append(f"- {'met' if over <= CALL_LIMIT_US else 'NOT met'}: {over:.1f} us over the bare replay, limit {CALL_LIMIT_US:.0f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-cpp-wrapper", action="store_true", help="leave out torch's C++ wrapper, which compiles for 40 s")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ.update(environment(Path(folder)))
        calls = per_call(folder, args.rounds)
        compilers = contenders(folder, not args.no_cpp_wrapper)
        few, many = (chains(compilers, length, args.rounds, Path(folder)) for length in LENGTHS)
        kernel, call = slopes(few, many), host_times(calls)
    print(report(kernel, call))
    if args.json:
        args.json.write_text(json.dumps({"kernel": kernel, "call": call}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
