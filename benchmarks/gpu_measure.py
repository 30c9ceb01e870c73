"""Measuring on a GPU in one process: times in interleaved rounds, kernels and gaps, errors, the chip's real peaks."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpu_rows import Inputs, in_float32, rewind
from rows import first_tensor

Call = Callable[..., Any]


@dataclass
class Result:
    """What one contender showed on one row. Seconds and bytes; `error` holds the sentence when it failed.

    sync: each round's median of calls with the device idle before and waited for after; b2b: each round's time per call of a train of
    calls. `run` names the run whose rounds these are: only series of one run were interleaved. `prepared`: seconds of compiling in the
    measuring process (caches may be warm: `cold` is the figure). `difference`: relative L2 distance from the float32 reference.
    """

    sync: list[float] = field(default_factory=list)
    b2b: list[float] = field(default_factory=list)
    run: str | None = None
    prepared: float | None = None
    difference: float | None = None
    largest: float | None = None
    kernels: float | None = None
    busy: float | None = None
    top: list[tuple[str, float, float]] = field(default_factory=list)
    cold: float | None = None
    cold_peak: int | None = None
    warm: list[float] = field(default_factory=list)
    warm_peak: int | None = None
    device_bytes: int | None = None
    size: int | None = None
    error: str | None = None


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def captured(call: Callable[[], Any], calls: int = 1) -> Call:
    """The bare replay of what `calls` calls launch: no guards, no inputs, no outputs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            kept = call()
    replay: Call = lambda: (graph.replay(), kept)[0]  # noqa: E731 - keeps the captured output's memory alive
    return replay


def timed(call: Call, inputs: Inputs, device: str) -> float:
    """Seconds of one call from an idle device to an idle device."""
    rewind(inputs)
    synchronize(device)
    start = time.perf_counter()
    call(**inputs)
    synchronize(device)
    return time.perf_counter() - start


def train(call: Call, inputs: Inputs, device: str, calls: int) -> float:
    """Seconds per call of `calls` calls that do not wait for each other."""
    rewind(inputs)
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call(**inputs)
    synchronize(device)
    return (time.perf_counter() - start) / calls


def rounds(calls: dict[str, Call], inputs: Inputs, device: str, count: int, each: int) -> dict[str, Result]:
    """`count` rounds in which every contender makes two untimed calls, `each` synchronised ones and a train of as many.

    The order is turned round from one round to the next, so that no contender always follows the same one.
    """
    found = {name: Result() for name in calls}
    for number in range(count):
        for name in list(calls)[:: 1 if number % 2 == 0 else -1]:
            call = calls[name]
            for _ in range(2):
                timed(call, inputs, device)
            found[name].sync.append(statistics.median(timed(call, inputs, device) for _ in range(each)))
            found[name].b2b.append(train(call, inputs, device, each))
    return found


def answer(call: Call, inputs: Inputs, device: str) -> torch.Tensor:
    """The call's first tensor as float32, own memory."""
    rewind(inputs)
    found = first_tensor(call(**inputs)).detach().to(torch.float32, copy=True)
    synchronize(device)
    return found


def reference(model: torch.nn.Module, inputs: Inputs, device: str) -> torch.Tensor:
    """The row's answer from eager in float32 with TF32 off, from the very weights and inputs (rounded to bf16 where the row's are)."""
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        wide, values = in_float32(model, inputs)
        found = answer(wide, values, device)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution
    del wide, values
    if device != "cpu":
        torch.cuda.empty_cache()
    return found


def distance(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Relative L2 distance and the largest absolute difference; NaN counts as infinite."""
    difference = (got - want).double()
    relative = float(difference.norm() / want.double().norm())
    return (relative if relative == relative else float("inf")), float(difference.abs().max())


def profile(call: Call, inputs: Inputs, calls: int = 5) -> dict[str, Any]:
    """What the device did per call in a train of calls: number of kernels, copies and fills, seconds busy, the dearest."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    rewind(inputs)
    torch.cuda.synchronize()
    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(calls):
            call(**inputs)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return _device_work([e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")], calls)


def _device_work(events: list[dict[str, Any]], calls: int) -> dict[str, Any]:
    spans = sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events)
    if not spans:
        return {"kernels": 0.0, "busy": 0.0, "top": []}
    busy, reached = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    costs: dict[str, list[float]] = {}
    for e in events:
        costs.setdefault(str(e["name"]), []).append(float(e["dur"]))
    dearest = sorted(costs.items(), key=lambda item: -sum(item[1]))[:12]
    return {
        "kernels": len(events) / calls,
        "busy": busy / calls * 1e-6,
        "top": [(name[:90], len(times) / calls, sum(times) / calls * 1e-6) for name, times in dearest],
    }


def flops(model: torch.nn.Module, inputs: Inputs) -> float:
    """Floating-point operations of the row's products, convolutions and attention."""
    from torch.utils.flop_counter import FlopCounterMode

    rewind(inputs)
    counter = FlopCounterMode(display=False)
    with counter:
        model(**inputs)
    return float(counter.get_total_flops())


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers: a call reads each at least once."""
    return sum(t.numel() * t.element_size() for t in {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}.values())


def peaks() -> dict[str, float]:
    """What this chip really does: bf16 and tf32 products of 8192³ on random data (TFLOP/s), and a device copy (bytes read and written)."""
    found = {}
    for name, dtype in (("bf16_tflops", torch.bfloat16), ("tf32_tflops", torch.float32)):
        before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
        found[name] = 2 * 8192**3 / _event_seconds(lambda a=a, b=b: a @ b) / 1e12
        torch.backends.cuda.matmul.allow_tf32 = before
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    found["copy_tbps"] = 2 * source.numel() * 2 / _event_seconds(lambda: target.copy_(source)) / 1e12
    return found


def _event_seconds(work: Callable[[], Any], repeats: int = 10) -> float:
    """Median seconds of one piece of device work, by events, after three unmeasured ones."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)
