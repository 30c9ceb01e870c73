"""Small programs in families (kernel_rows.py), side by side: eager, torch.compile, on a CPU its freezing for layers, and precast.

    python benchmarks/kernels.py [--device cpu|cuda] [--rows REGEX] [--rounds 9] [--jobs 1] [--resume FILE] [--seconds 500] [--list]

Contenders take turns within one process; a time is the median of the rounds. On a GPU each contender is captured in a CUDA graph, so that
only the device's time counts (rows that train are not). The floor is what the machine's measured rates allow for the bytes and products of
the program (inputs read once, results written once; gradients: both passes). `--resume` keeps finished rows in a file, and a later run
goes on with the others; `--seconds` ends a run after that long. `--jobs`: processes that compile rows side by side, for a GPU whose host
has cores to spare; while one of them takes times all others wait, so that nothing else is on the device.
Exit status 1: a result is further from float64 than it should be.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch
from kernel_rows import ROWS, KernelRow
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

Call = Callable[[], Any]
BLOCK = 0.02
"""Seconds that a contender is called for in one turn, at least once."""
DIFFERENCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""The largest distance from float64 that is no fault, as a share of the largest value, where eager's is not larger."""
SLOW, FAR = 0.95, 0.7


@contextmanager
def freezing() -> Iterator[None]:
    from torch._inductor import config

    with config.patch(freezing=True):
        yield


def step(row: KernelRow, program: Callable[..., Any], inputs: Sequence[Any], gradients: list[torch.Tensor]) -> Call:
    """One call, of a row that trains with its gradients; these are made of the same `gradients` of the results each time."""
    if not row.train:

        def call() -> Any:
            with torch.no_grad():
                return program(*inputs)

        return call
    leaves = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves += list(program.parameters()) if isinstance(program, torch.nn.Module) else []

    def with_gradients() -> Any:
        results = [t for t in tree_leaves(program(*inputs)) if t.requires_grad]
        if not gradients:
            gradients.extend(torch.randn_like(t) for t in results)
        return [*results, *torch.autograd.grad(results, leaves, gradients)]

    return with_gradients


def contenders(row: KernelRow, device: str, store: str) -> tuple[dict[str, Call], Call, tuple[Any, ...], Callable[..., Any]]:
    """Calls by name, the same in float64 where there is such, the inputs and the program."""
    import precast

    torch.manual_seed(0)
    program, inputs = row.make(device)
    if row.train:
        inputs = tree_map(lambda t: t.requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, inputs)
    precast.reset()
    torch._dynamo.reset()
    gradients: list[torch.Tensor] = []
    found = {"eager": step(row, program, inputs, gradients)}
    found["eager"]()
    found["torch.compile"] = step(row, torch.compile(program, dynamic=False), inputs, gradients)
    if device == "cpu" and isinstance(program, torch.nn.Module) and not row.train:
        frozen = step(row, torch.compile(program, dynamic=False), inputs, gradients)

        def with_freezing() -> Any:
            with freezing():
                return frozen()

        found["freezing"] = with_freezing
    found["precast"] = step(row, precast.compile(program, store=store, dynamic=False), inputs, gradients)
    wide_program = wide_module(program) if isinstance(program, torch.nn.Module) else program
    wide_inputs = tree_map(lambda t: wide(t) if isinstance(t, torch.Tensor) else t, inputs)
    exact = step(row, wide_program, wide_inputs, [g.double() for g in gradients])
    return found, exact, inputs, program


def wide(t: torch.Tensor) -> torch.Tensor:
    if not t.is_floating_point():
        return t
    return t.detach().double().requires_grad_(t.requires_grad)


def wide_module(module: torch.nn.Module) -> torch.nn.Module:
    import copy

    return copy.deepcopy(module).double()


def tensors(results: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(results) if isinstance(t, torch.Tensor)]


def distance(found: Any, exact: Any) -> float:
    """The largest distance from float64, as a share of the largest value of its tensor; of integers, of elements that differ."""
    worst = 0.0
    for got, want in zip(tensors(found), tensors(exact), strict=True):
        if not got.is_floating_point():
            differing = (got != want.to(got.dtype)).double().mean().item() if got.numel() else 0.0
            worst = max(worst, differing)
            continue
        scale = want.abs().max().item() if want.numel() else 1.0
        worst = max(worst, (got.double() - want.double()).abs().max().item() / (scale or 1.0))
    return worst


def floor(row: KernelRow, call: Call, inputs: Sequence[Any], program: Callable[..., Any], peaks: Any) -> float:
    """Seconds that the program takes at least at the machine's measured rates; gradients of products are twice the products' work."""
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            program(*inputs)
    except AssertionError:  # torch 2.11 cannot count attention with fewer heads of keys than of queries: then bytes alone are the floor
        counter = FlopCounterMode(display=False)
    results = tensors(call())
    given = [t for t in inputs if isinstance(t, torch.Tensor)]
    given += [p for p in program.parameters()] if isinstance(program, torch.nn.Module) else []
    moved = row.moved(inputs, results) if row.moved is not None else sum(t.nbytes for t in [*given, *results])
    kinds = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}
    kind = next((kinds[t.dtype] for t in given if t.dtype in kinds), "f32")
    flops = counter.get_total_flops() * (3 if row.train else 1)
    return max(moved / peaks.bytes, flops / peaks.products(kind) if flops else 0.0)


def on_gpu(row: KernelRow, calls: Mapping[str, Call]) -> dict[str, tuple[Call, int]]:
    """Replays of CUDA graphs, with how many calls each holds; of rows that train, the calls."""
    from gpu_measure import captured

    return {name: (call, 1) if row.train else (captured(call, 5), 5) for name, call in calls.items()}


def seconds(call: Call, repeat: int, device: str) -> float:
    """Of one call, of `repeat` in a row."""
    if device != "cpu":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeat):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / repeat
    began = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - began) / repeat


def in_turns(timed: Mapping[str, tuple[Call, int]], device: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of one call in each round, by contender; `timed` has what is called and how many calls that is."""
    repeats = {name: max(1, round(BLOCK / max(seconds(call, 2, device), 1e-7))) for name, (call, _) in timed.items()}
    times: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(rounds):
        for name in list(timed)[:: 1 if number % 2 else -1]:
            call, per = timed[name]
            times[name].append(seconds(call, repeats[name], device) / per)
    return times


class Turns:
    """Who may use the device: any number of processes that prepare rows, or one that takes times. What waits for times goes first."""

    def __init__(self, context: BaseContext) -> None:
        self.changed = context.Condition()
        self.preparers, self.waiting, self.measurers = (context.RawValue("i", 0) for _ in range(3))

    @contextmanager
    def preparing(self) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: not self.waiting.value and not self.measurers.value)
            self.preparers.value += 1
        try:
            yield
        finally:
            with self.changed:
                self.preparers.value -= 1
                self.changed.notify_all()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        with self.changed:
            self.waiting.value += 1
            self.changed.wait_for(lambda: not self.preparers.value and not self.measurers.value)
            self.waiting.value -= 1
            self.measurers.value = 1
        try:
            yield
        finally:
            with self.changed:
                self.measurers.value = 0
                self.changed.notify_all()


def measure(row: KernelRow, device: str, rounds: int, peaks: Any, turns: Turns) -> dict[str, Any]:
    """Median seconds by contender, their distances from float64, the floor; "error" where one failed."""
    with tempfile.TemporaryDirectory() as store:
        with turns.preparing():
            timed, found = prepared(row, device, store, peaks)
        with turns.measuring():
            times = in_turns(timed, device, rounds)
        low, _, high = statistics.quantiles(times["precast"], n=4) if "precast" in times and rounds > 1 else (0.0, 0.0, 0.0)
        return {**found, "seconds": {name: statistics.median(own) for name, own in times.items()}, "quartiles": [low, high]}


def prepared(row: KernelRow, device: str, store: str, peaks: Any) -> tuple[dict[str, tuple[Call, int]], dict[str, Any]]:
    """What is timed, and all that is known of the row without times."""
    calls, exact, inputs, program = contenders(row, device, store)
    errors: dict[str, str] = {}
    off: dict[str, float] = {}
    try:
        want = exact()
    except (RuntimeError, NotImplementedError):  # an operator that torch has no float64 form of
        want = calls["eager"]()
    for name in list(calls):
        try:
            for _ in range(2):
                results = calls[name]()
            off[name] = distance(results, want)
        except Exception as error:  # noqa: BLE001 - the row says so
            errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
            del calls[name]
    least = floor(row, calls["eager"], inputs, program, peaks)
    timed = on_gpu(row, calls) if device != "cpu" else {name: (call, 1) for name, call in calls.items()}
    dtypes = [t.dtype for t in tensors(want)]
    kind = next((t.dtype for t in inputs if isinstance(t, torch.Tensor) and t.dtype in DIFFERENCE), torch.float32)
    narrowest = max((kind, *(d for d in dtypes if d in DIFFERENCE)), key=lambda d: DIFFERENCE[d])
    far = off.get("precast", 0.0) > max(DIFFERENCE[narrowest], 2 * off["eager"])
    return timed, {"row": row.label, "floor": least, "difference": off, "errors": errors, "wrong": far}


def ratio(found: Mapping[str, Any]) -> float:
    """The best rival's time over precast's."""
    times = found["seconds"]
    return min(t for name, t in times.items() if name != "precast") / times["precast"] if "precast" in times else 0.0


def line(found: Mapping[str, Any]) -> str:
    times = found["seconds"]
    shown = [f"{times[name] * 1e6:11.1f}" if name in times else f"{'-':>11}" for name in ("eager", "torch.compile", "freezing", "precast")]
    low, high = found["quartiles"]
    ours = times.get("precast", math.inf)
    end = f"  WRONG: {found['difference'].get('precast'):.1e}, eager {found['difference']['eager']:.1e}" if found["wrong"] else ""
    end += "".join(f"  {name}: {text}" for name, text in found["errors"].items())
    return f"{found['row']:38}{''.join(shown)} ({low * 1e6:.1f} to {high * 1e6:.1f}){ratio(found):8.2f}{found['floor'] / ours:8.2f}{end}"


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    good = [f for f in found if "precast" in f["seconds"]]
    over = [f["seconds"]["torch.compile"] / f["seconds"]["precast"] for f in good if "torch.compile" in f["seconds"]]
    geomean = math.exp(statistics.fmean(map(math.log, over))) if over else math.nan
    slow = sorted((ratio(f), f["row"]) for f in good if ratio(f) < SLOW)
    far = sorted((f["floor"] / f["seconds"]["precast"], f["row"]) for f in good if f["floor"] / f["seconds"]["precast"] < FAR)
    return "\n".join(
        [
            f"{len(good)} rows; geometric mean over torch.compile {geomean:.2f}",
            f"{len(slow)} under {SLOW} of the best, {len(far)} under {FAR} of the floor:",
            *(f"  slow {value:.2f}  {name}" for value, name in slow),
            *(f"  of the floor {value:.2f}  {name}" for value, name in far),
        ]
    )


_TURNS = Turns(multiprocessing.get_context("spawn"))
"""Of this process alone, or in a worker of all of them."""


def _in_worker(turns: Turns) -> None:
    global _TURNS
    _TURNS = turns
    warnings.simplefilter("ignore")


def _one(label: str, device: str, rounds: int, peaks: Any) -> dict[str, Any]:
    try:
        return measure(ROWS[label], device, rounds, peaks, _TURNS)
    except Exception as error:  # noqa: BLE001 - the other rows go on, and the table says so
        return {"row": label, "failed": f"{type(error).__name__}: {str(error)[:200]}"}
    finally:
        if device == "cuda":
            torch.cuda.empty_cache()


def results_of(labels: Sequence[str], given: argparse.Namespace, peaks: Any) -> Iterator[dict[str, Any]]:
    """The rows as they are done, until the time is up."""
    began = time.perf_counter()
    if given.jobs == 1:
        for label in labels:
            if time.perf_counter() - began > given.seconds:
                return
            yield _one(label, given.device, given.rounds, peaks)
        return
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the workers are the parallelism
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, context, _in_worker, (Turns(context),)) as workers:
        pending = [workers.submit(_one, label, given.device, given.rounds, peaks) for label in labels]
        left = None if math.isinf(given.seconds) else given.seconds
        try:
            for done in as_completed(pending, left):
                yield done.result()
        except TimeoutError:
            workers.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    wanted = [row for name, row in ROWS.items() if re.search(given.rows, name)]
    if given.list:
        print("\n".join(row.label for row in wanted))
        return 0
    from precast.profiling.peaks import Peaks

    warnings.simplefilter("ignore")
    found: list[dict[str, Any]] = []
    if given.resume and given.resume.exists():
        found = [json.loads(text) for text in given.resume.read_text().splitlines()]
    done = {f["row"] for f in found}
    peaks = Peaks.measured(given.device)
    chip = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{chip}, torch {torch.__version__}, {peaks.bytes / 1e9:.0f} GB/s; microseconds")
    print(f"{'row':38}{'eager':>11}{'compile':>11}{'freezing':>11}{'precast':>11} (quartiles)  best/precast  floor/precast")
    labels = [row.label for row in wanted if row.label not in done]
    measured = 0
    for one in results_of(labels, given, peaks):
        measured += 1
        if "failed" in one:
            print(f"{one['row']:38} failed: {one['failed']}", flush=True)
            continue
        found.append(one)
        print(line(one), flush=True)
        if given.resume:
            with given.resume.open("a") as file:
                file.write(json.dumps(one) + "\n")
    if measured < len(labels):
        print(f"ended after {given.seconds:.0f} s: --resume goes on", flush=True)
    print(summary(found))
    return 1 if any(f["wrong"] for f in found) else 0


if __name__ == "__main__":
    sys.exit(main())
