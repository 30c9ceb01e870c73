"""Two linear layers whose weights torchao has quantized to int8, on a CPU: precast, torch.compile and eager, interleaved in one process.

int8 weights: cast on the way (`Int8WeightOnlyConfig`); int8 weights and activations: multiplied as integers
(`Int8DynamicActivationInt8WeightConfig`). The weights are tensor subclasses (docs/tensor-subclasses.md). For each dtype and number of rows:
the median time of a call, the quartiles of precast's, and the largest difference from eager as a share of eager's largest value.

    pip install torchao
    python benchmarks/quantized.py [--rounds 15] [--threads N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROWS = (1, 32, 256)
DTYPES = (torch.float32, torch.bfloat16)
Call = Callable[[torch.Tensor], torch.Tensor]


def network(config: Any, dtype: torch.dtype) -> torch.nn.Module:
    """1024 -> 4096 -> 1024, the shape of a small transformer's feed-forward part."""
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.SiLU(), torch.nn.Linear(4096, 1024)).eval().to(dtype)
    if config is not None:
        quantize_(made, config)
    return made


def contenders(module: torch.nn.Module, x: torch.Tensor, store: str) -> dict[str, Call]:
    """The module as each contender runs it, called often enough to have settled."""
    import precast

    precast.reset()
    torch._dynamo.reset()
    found: dict[str, Call] = {
        "eager": module,
        "precast": precast.compile(module, store=store, dynamic=False, fullgraph=True),
        "precast freeze": precast.compile(module, store=store, dynamic=False, fullgraph=True, options={"freeze": True}),
        "torch.compile": torch.compile(module, dynamic=False),
    }
    for call in found.values():
        for _ in range(4):
            call(x)
    return found


def measure(calls: dict[str, Call], x: torch.Tensor, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, taking turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call(x)
            found[name].append((time.perf_counter() - start) * 1e3)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
    except ImportError as error:
        print(f"this benchmark needs torchao (pip install torchao): {error}", file=sys.stderr)
        return 2
    if given.threads:
        torch.set_num_threads(given.threads)
    configs = {"none": None, "int8 weights": Int8WeightOnlyConfig(), "int8 both": Int8DynamicActivationInt8WeightConfig()}
    report: list[dict[str, Any]] = []
    print(
        f"{'quantized':14}{'dtype':10}{'rows':>5}   eager  torch.compile  precast (quartiles)  freeze   best rival / precast   difference"
    )
    for name, config in configs.items():
        for dtype in DTYPES:
            module = network(config, dtype)
            for rows in ROWS:
                x = torch.randn(rows, 1024, dtype=dtype)
                with torch.no_grad(), tempfile.TemporaryDirectory() as store:
                    calls = contenders(module, x, store)
                    wanted, got = module(x), calls["precast"](x)
                    times = measure(calls, x, given.rounds)
                middle = {contender: statistics.median(values) for contender, values in times.items()}
                low, _, high = statistics.quantiles(times["precast"], n=4)
                ratio = min(middle["eager"], middle["torch.compile"]) / middle["precast"]
                off = float((got - wanted).abs().max() / wanted.abs().max())
                kind = str(dtype).removeprefix("torch.")
                shown = f"{middle['precast']:9.2f} ({low:.2f} to {high:.2f}){middle['precast freeze']:8.2f}{ratio:14.2f}{off:20.1e}"
                print(f"{name:14}{kind:10}{rows:5}{middle['eager']:8.2f}{middle['torch.compile']:15.2f}{shown}", flush=True)
                report.append({"quantized": name, "dtype": kind, "rows": rows, "ms": middle, "quartiles": [low, high], "difference": off})
    if given.json:
        given.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
