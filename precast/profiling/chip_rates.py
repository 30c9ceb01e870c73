"""Measures the machine's `Chip` (lowering/costs/chips.py), by kernels of precast's own where these are what is predicted."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from precast.artifact_store import Store
from precast.lowering.costs.chip_records import chip_of
from precast.lowering.costs.chips import Chip, Curve
from precast.profiling.marks import Recorder
from precast.profiling.peaks import wait
from precast.runtime.api.compile import compile as compiled_form
from precast.runtime.executable.library import opened

TYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_MOVED_ON_HOST = tuple(1 << n for n in range(14, 30, 2))
_MOVED_ON_DEVICE = tuple(1 << n for n in range(16, 33, 2))
"""Bytes that are touched, read and written together."""
_SIDES_ON_HOST, _SIDES_ON_DEVICE = (16, 64, 256, 512, 1024), (64, 256, 512, 1024, 2048, 4096, 8192)
"""Of square products: a power of two more than one that the machine needs for its full rate."""
_SLOW, _LONG, _MOST = 0.5, 0.8, 2000
"""Seconds from which a run is not repeated, seconds for which others are, and how often at most: on a CPU few of them are undisturbed."""
_RUNS = 8
"""Of a graph in one recording; the first of them warms up."""
_DEGREE = 64
_OPERATIONS = 2 * _DEGREE
"""Multiplications and additions for each element of a polynomial in Horner's form: nothing but arithmetic."""
_CYCLES = 4_000_000
"""For which a device sleeps before a measurement, so that the host is ahead: about 2 ms."""


def measured_chip(device: str, say: Callable[[str], None] = lambda text: None) -> Chip:
    """Of this machine: "cpu", or the current device of another kind. Takes some 20 s, and up to 4 GiB on a device."""
    with tempfile.TemporaryDirectory(prefix="precast-rates-") as folder, torch.no_grad():
        store = Store.open(folder)
        say("memory")
        call, memory = _memory(device, store)
        products: dict[str, Curve] = {}
        for name, dtype in TYPES.items():
            say(f"products in {name}")
            products[name] = _products(device, dtype, call)
        if device != "cpu":
            products["tf32"] = _tf32(device, call)
        loops = {}
        for name in ("f32", "f64"):
            say(f"loops in {name}")
            loops[name] = _loops(device, store, TYPES[name])
        return Chip(
            name=chip_name(device),
            source=f"measured, torch {torch.__version__.partition('+')[0]}",
            units=torch.get_num_threads() if device == "cpu" else int(torch.cuda.get_device_properties(device).multi_processor_count),
            call=call,
            memory=memory,
            products=products,
            loops=loops,
        )


def chip_name(device: str) -> str:
    """What the machine calls itself; a CPU goes by the instructions that torch uses."""
    if device != "cpu":
        return str(torch.cuda.get_device_name(device))
    matrices = " and AMX" if _capability() == "AVX512" and torch.cpu._is_amx_tile_supported() else ""
    return f"CPU with {_capability()}{matrices}"


def _capability() -> str:
    return str(torch.backends.cpu.get_cpu_capability())


def _options(device: str) -> dict[str, Any]:
    """Of kernels: on a CPU they use the instructions that torch uses, which may be told to leave some out."""
    target = {"target": "cpu:x86-64-v3"} if device == "cpu" and _capability() == "AVX2" else {}
    return {"triton.cudagraphs": False, **target}


def chip_here(device: str) -> Chip | None:
    """The record that predicts times on this machine: of its own kind, or of the architecture; None where there is none."""
    if device == "cpu":
        found = chip_of("", chip_name(device))
        return None if found is None else found.with_units(torch.get_num_threads())
    if device != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability()
    return chip_of(f"cuda:sm_{major}{minor}", chip_name(device))


def _memory(device: str, store: Store) -> tuple[float, Curve]:
    """Seconds of a step that does next to nothing, and the curve without these: a kernel that adds a number, of each size. It writes to
    memory that is there, as new memory would cost page faults.
    """
    add = compiled_form(lambda x, y: y.copy_(x + 1), store=store, options=_options(device), dynamic=True)

    def seconds(nbytes: int) -> float:
        x, y = (torch.ones(nbytes // 8, dtype=torch.float32, device=device) for _ in range(2))  # of one storage they were one input
        return _step_seconds(device, add, x, y)

    sizes = _MOVED_ON_HOST if device == "cpu" else _MOVED_ON_DEVICE
    took = {nbytes: seconds(nbytes) for nbytes in reversed(sizes)}  # the first size is what the kernel's tiling is chosen for
    call = seconds(512)
    return call, Curve(tuple((float(nbytes), nbytes / max(took[nbytes] - call, call / 10)) for nbytes in sizes))


def _loops(device: str, store: Store, dtype: torch.dtype) -> float:
    """Simple operations a second of a kernel that has hundreds for each element."""
    count = (1 << 18) if device == "cpu" else (1 << 24)

    def polynomial(x: torch.Tensor) -> torch.Tensor:
        y = x
        for n in range(_DEGREE):
            y = y * x + (0.5 + n)
        return y

    own = compiled_form(polynomial, store=store, options=_options(device), dynamic=False)
    x = torch.full((count,), 0.5, dtype=dtype, device=device)
    return _OPERATIONS * count / _step_seconds(device, own, x)


def _step_seconds(device: str, call: Callable[..., Any], *args: torch.Tensor) -> float:
    """Of the only step of the only graph that the call runs."""
    for _ in range(2):
        call(*args)
    recorder = Recorder(frozenset() if device == "cpu" else frozenset(opened()), events=64)
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < 5 or (time.perf_counter() - began < _long(device) and len(found) < _MOST):
        _sleep(device)
        with recorder.recording() as runs:
            for _ in range(_RUNS):
                call(*args)
        found += [sum(run.steps) for own in runs.values() for run in own[1:]]
        if found and max(found) > _SLOW:
            break
    return _usual(device, found)


def _products(device: str, dtype: torch.dtype, call: float) -> Curve:
    """Without the seconds that any step takes."""
    points = []
    for side in _SIDES_ON_HOST if device == "cpu" else _SIDES_ON_DEVICE:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        operations = 2.0 * side**3
        took = _seconds(device, partial(torch.mm, a, b, out=torch.empty_like(a)))
        points.append((operations, operations / max(took - call, call / 10)))
        if took > _SLOW:
            break
    return Curve(tuple(points))


def _tf32(device: str, call: float) -> Curve:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return _products(device, torch.float32, call)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _seconds(device: str, run: Callable[[], object]) -> float:
    """Of one run among equal ones."""
    run()
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < 5 or (time.perf_counter() - began < _long(device) and len(found) < _MOST):
        found += _on_host(run) if device == "cpu" else _by_events(device, run)
        if max(found) > _SLOW:
            break
    return _usual(device, found)


def _on_host(run: Callable[[], object], repeat: int = 1) -> list[float]:
    began = time.perf_counter()
    for _ in range(repeat):
        run()
    return [(time.perf_counter() - began) / repeat]


def _by_events(device: str, run: Callable[[], object], repeat: int = 10) -> list[float]:
    _sleep(device)
    events = [torch.Event(device, enable_timing=True) for _ in range(repeat + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    wait(device)
    return [first.elapsed_time(second) / 1e3 for first, second in zip(events[1:-1], events[2:], strict=True)]


def _long(device: str) -> float:
    return _LONG if device == "cpu" else _LONG / 4


def _sleep(device: str) -> None:
    if device != "cpu":
        wait(device)
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]


def _usual(device: str, found: Sequence[float]) -> float:
    """The median; on a CPU, whose neighbours only ever make it slower, the fastest."""
    return statistics.median(found) if device != "cpu" else min(found)


__all__ = ["TYPES", "chip_here", "chip_name", "measured_chip"]
