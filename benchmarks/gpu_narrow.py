"""Products with int8 weights and few rows in bfloat16 on a GPU: precast, torch.compile (as it is, and max-autotune) and eager, interleaved.

A linear layer, and a gated feed-forward block of Llama's (silu(gate) * up, then down), with int8 weights and a scale for each column. Each
contender is captured in a CUDA graph of 20 calls, so that only the device's time counts. For each shape and number of rows: microseconds
of a call (median of the rounds; quartiles of precast's), the same with bfloat16 weights in eager, and the largest difference of precast
and of eager from float64 as a share of the largest value.

    python benchmarks/gpu_narrow.py [--rounds 15] [--rows 1,2,16,64,128] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_measure import captured
from torch import Tensor
from torch.nn import functional as F

CALLS = 20
LAYERS = {"4096 to 4096": (4096, 4096), "4096 to 11008": (4096, 11008), "3072 to 768": (3072, 768)}
Weights = Sequence[tuple[Tensor, Tensor]]


def linear(x: Tensor, weights: Weights) -> Tensor:
    """`x` [rows, inputs]; weights [outputs, inputs] with a scale [outputs]."""
    ((weight, scale),) = weights
    return F.linear(x, weight.to(x.dtype)) * scale


def gated(x: Tensor, weights: Weights) -> Tensor:
    gate, up, down = ([w] for w in weights)
    return linear(F.silu(linear(x, gate)) * linear(x, up), down)


def quantized(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """A random int8 weight and its scale."""
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, device="cuda")
    return weight, (torch.rand(outputs, device="cuda") / (100 * inputs**0.5)).bfloat16()


def microseconds(replay: Callable[[], Any]) -> float:
    """Of one call, where `replay` makes `CALLS`."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / CALLS


def compiled(fn: Callable[[Tensor, Weights], Tensor], store: str) -> dict[str, Callable[[Tensor, Weights], Tensor]]:
    import precast

    precast.reset()
    torch._dynamo.reset()
    return {
        "eager": fn,
        "torch.compile": torch.compile(fn, dynamic=False, fullgraph=True),
        "max-autotune": torch.compile(fn, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs"),
        "precast": precast.compile(fn, store=store, dynamic=False, fullgraph=True),
    }


def case(fn: Callable[[Tensor, Weights], Tensor], weights: Weights, x: Tensor, rounds: int, store: str) -> dict[str, Any]:
    """The times and the errors of all contenders."""
    calls = compiled(fn, store)
    want = fn(x.double(), [(w, s.double()) for w, s in weights])
    off = {name: float((call(x, weights).double() - want).abs().max() / want.abs().max()) for name, call in calls.items()}
    graphs = {name: captured(partial(call, x, weights), CALLS) for name, call in calls.items()}
    plain = [(w.to(x.dtype), s) for w, s in weights]
    graphs["eager, bfloat16 weights"] = captured(partial(fn, x, plain), CALLS)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(rounds):
        for name in list(graphs)[:: 1 if number % 2 else -1]:
            times[name].append(microseconds(graphs[name]))
    low, _, high = statistics.quantiles(times["precast"], n=4)
    return {"us": {n: statistics.median(t) for n, t in times.items()}, "quartiles": [low, high], "difference": off}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", default="1,2,16,64,128")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device", file=sys.stderr)
        return 2
    report: list[dict[str, Any]] = []
    rivals = "layer           rows   eager  bf16 weights  torch.compile  max-autotune"
    print(f"{rivals}  precast (quartiles)  best rival / precast  difference (eager's)")
    for name in (*LAYERS, "gated 11008"):
        fn = linear if name in LAYERS else gated
        inputs = LAYERS[name][0] if name in LAYERS else 4096
        weights = [quantized(*LAYERS[name])] if name in LAYERS else [quantized(4096, 11008), quantized(4096, 11008), quantized(11008, 4096)]
        for rows in map(int, given.rows.split(",")):
            with torch.inference_mode(), tempfile.TemporaryDirectory() as store:
                found = case(fn, weights, torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16), given.rounds, store)
            us, (low, high), off = found["us"], found["quartiles"], found["difference"]
            ratio = min(us[n] for n in ("eager", "torch.compile", "max-autotune")) / us["precast"]
            shown = f"{us['eager']:8.1f}{us['eager, bfloat16 weights']:14.1f}{us['torch.compile']:15.1f}{us['max-autotune']:14.1f}"
            ours = f"{us['precast']:9.1f} ({low:.1f} to {high:.1f}){ratio:14.2f}{off['precast']:16.1e} ({off['eager']:.1e})"
            print(f"{name:15}{rows:5}{shown}{ours}", flush=True)
            report.append({"layer": name, "rows": rows, **found})
    if given.json:
        given.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": report}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
