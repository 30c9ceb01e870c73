"""Training steps (forward, loss, backward, AdamW, zero_grad) side by side: eager, torch.compile of the model, of the whole step and with
CUDA graphs, and precast. See docs/benchmarks.md.

python benchmarks/training.py [--rows bert,resnet50] [--contenders eager,model,step,precast] [--device cuda] [--rounds 7] [--steps 5]
    [--no-fresh] [--json out.json]

Steady: the contenders take turns in one process, medians with the quartiles. Fresh: seconds of a new process's first step (after imports
and the model's construction), with an empty cache and with a filled one.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contenders import COMPILER, RUNTIME, environment, names_of
from training_rows import ROWS, build

Step = Callable[[], torch.Tensor]
TITLES = {
    "eager": "eager",
    "model": "torch.compile(model)",
    "step": "torch.compile(model), torch.compile(step)",
    "graphs": "torch.compile reduce-overhead",
    "precast": "precast",
    "precast_graphs": "precast reduce-overhead",
}
_TRACER = ("torch._dynamo", "torch._inductor", "torch._inductor.compile_fx")
IMPORTS = {"model": _TRACER, "step": _TRACER, "graphs": _TRACER, "precast": (*RUNTIME, *COMPILER), "precast_graphs": (*RUNTIME, *COMPILER)}


def training_step(name: str, model: torch.nn.Module, inputs: dict[str, torch.Tensor], store: str) -> Step:
    """One step of the contender: returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    update: Callable[[], Any] = optimizer.step
    called: Callable[..., Any] = model
    if name == "model":
        called = torch.compile(model)
    elif name == "graphs":
        called = torch.compile(model, mode="reduce-overhead")
    elif name == "step":
        called, update = torch.compile(model), torch.compile(optimizer.step)
    elif name.startswith("precast"):
        import precast

        mode = "reduce-overhead" if name == "precast_graphs" else None
        called, update = precast.compile(model, mode=mode, store=store), precast.compile(optimizer.step, store=store)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = called(**inputs)
        loss.backward()
        update()
        return loss.detach()

    return step


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def steady(row: str, names: list[str], device: str, rounds: int, steps: int, store: str) -> dict[str, dict[str, Any]]:
    """Interleaved rounds of `steps` steps; losses of the first steps; on a GPU peak memory over the model and time that the GPU is busy."""
    model, inputs = build(row, device)
    made: dict[str, Step] = {}
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        torch.manual_seed(1)
        own = copy.deepcopy(model)
        try:
            step = training_step(name, own, inputs, store)
            losses = []
            for _ in range(4):
                torch.manual_seed(2)
                losses.append(float(step()))
            synchronize(device)
        except Exception as error:  # noqa: BLE001  (a contender that fails is a row that says so)
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
            continue
        made[name], found[name] = step, {"losses": losses, "seconds": []}
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step()
            synchronize(device)
            found[name]["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
            found[name]["busy_ms"], found[name]["kernels"] = busy(step)
    for _ in range(rounds):
        for name, step in made.items():
            synchronize(device)
            start = time.perf_counter()
            for _ in range(steps):
                step()
                synchronize(device)
            found[name]["seconds"].append((time.perf_counter() - start) / steps)
    return found


def steady_alone(row: str, names: list[str], args: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """`steady` in a process of its own: in one process torch's tracer takes the sizes of a second row for sizes that vary."""
    result = folder / f"{row}.json"
    command = [sys.executable, __file__, "--rows", row, "--contenders", ",".join(names), "--device", args.device, "--alone", str(result)]
    command += ["--rounds", str(args.rounds), "--steps", str(args.steps), "--store", str(folder / f"{row}-steady")]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return {name: {"error": done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "died"} for name in names}
    found: dict[str, dict[str, Any]] = json.loads(result.read_text())
    return found


def busy(step: Step) -> tuple[float, int]:
    """Milliseconds in which the GPU computes in one step, and its kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.time_range.elapsed_us() for e in events) / 1000, len(events)


def first(row: str, name: str, device: str, store: str) -> float:
    """Seconds of this process's first step."""
    import importlib

    for module in IMPORTS.get(name, ()):
        importlib.import_module(module)
    model, inputs = build(row, device)
    synchronize(device)
    start = time.perf_counter()
    training_step(name, model, inputs, store)()
    synchronize(device)
    return time.perf_counter() - start


def fresh(row: str, name: str, device: str, folder: Path) -> list[float]:
    """The same in new processes: with an empty cache, and twice with a filled one (of which the better counts)."""
    cache = folder / f"{row}-{name}"
    cache.mkdir(mode=0o700)
    command = [sys.executable, __file__, "--rows", row, "--first", name, "--device", device, "--store", str(cache)]
    seconds = []
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment(cache), "PRECAST_STRICT": "0"})
        if done.returncode:
            print(done.stderr[-1500:], file=sys.stderr)
            return seconds
        seconds.append(float(done.stdout.strip().splitlines()[-1]))
    return [seconds[0], min(seconds[1:])]


def table(row: str, found: dict[str, dict[str, Any]]) -> str:
    """One row as Markdown."""
    lines = [
        f"### {ROWS[row].title}",
        "",
        "| | ms a step (quartiles) | over eager | first step cold, warm, s | GPU busy, ms (kernels) | peak, MiB |",
        "|---|---|---|---|---|---|",
    ]
    eager = found.get("eager", {}).get("seconds")
    for name, result in found.items():
        if "error" in result:
            lines.append(f"| {TITLES[name]} | failed: {result['error']} | | | | |")
            continue
        quarters = statistics.quantiles(result["seconds"], n=4) if len(result["seconds"]) > 1 else result["seconds"] * 3
        ratio = f"{statistics.median(eager) / quarters[1]:.2f}" if eager else ""
        fresh_times = ", ".join(f"{s:.2f}" for s in result.get("fresh", ()))
        gpu = f"{result['busy_ms']:.2f} ({result['kernels']})" if "busy_ms" in result else ""
        peak = f"{result['peak_mib']:.0f}" if "peak_mib" in result else ""
        times = f"{quarters[1] * 1e3:.2f} ({quarters[0] * 1e3:.2f} to {quarters[2] * 1e3:.2f})"
        lines.append(f"| {TITLES[name]} | {times} | {ratio} | {fresh_times} | {gpu} | {peak} |")
    lines.append("")
    lines += [f"losses {name}: {', '.join(f'{v:.5f}' for v in r['losses'])}" for name, r in found.items() if "losses" in r]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="resnet50,bert,gpt2,densenet,vit,llama")
    parser.add_argument("--contenders", help="default: all that the device has")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps in a round")
    parser.add_argument("--no-fresh", action="store_true", help="leave out the first steps of new processes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first:
        print(first(args.rows, args.first, args.device, args.store))
        return 0
    if args.alone:
        names = names_of(args.contenders, TITLES, "contender")
        args.alone.write_text(json.dumps(steady(args.rows, names, args.device, args.rounds, args.steps, args.store)))
        return 0
    usual = [name for name in TITLES if args.device != "cpu" or "graphs" not in name]
    names = names_of(args.contenders, TITLES, "contender") if args.contenders else usual
    chip = torch.cuda.get_device_name() if args.device != "cpu" else platform.processor() or "CPU"
    print(f"## Training steps\n\n{chip}, torch {torch.__version__}, {torch.get_num_threads()} threads\n", flush=True)
    everything = {}
    with tempfile.TemporaryDirectory(prefix="precast-training-") as folder:
        for row in names_of(args.rows, ROWS, "row"):
            times = {} if args.no_fresh else {name: fresh(row, name, args.device, Path(folder)) for name in names}
            found = steady_alone(row, names, args, Path(folder))
            for name, seconds in times.items():
                found[name]["fresh"] = seconds
            everything[row] = found
            print(table(row, found) + "\n", flush=True)
            if args.json:
                args.json.write_text(json.dumps(everything))
    return 1 if any("error" in r for found in everything.values() for r in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
