"""The step of an optimiser over the parameters of a BERT: eager (foreach and fused), torch.compile and precast, interleaved.

    python benchmarks/optimizers.py [--layers 12] [--width 768] [--rounds 15] [--optimizer AdamW] [--device cpu] [--no-torch-compile]

Milliseconds a step (median over rounds) and seconds of the first step, with a store and a compiler's cache that are empty.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

CACHES = tempfile.mkdtemp(prefix="optimizers-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(CACHES, "inductor")

import torch  # noqa: E402 - after the environment

import precast  # noqa: E402


def shapes(layers: int, width: int) -> list[tuple[int, ...]]:
    """Of a BERT's parameters."""
    found: list[tuple[int, ...]] = [(30522, width), (512, width), (2, width), (width,), (width,)]
    for _ in range(layers):
        found += [(width, width), (width,)] * 4 + [(width,), (width,)]
        found += [(4 * width, width), (4 * width,), (width, 4 * width), (width,), (width,), (width,)]
    return [*found, (width, width), (width,)]


def optimizer(name: str, sizes: list[tuple[int, ...]], device: str, **options: Any) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(size, device=device) * 0.02) for size in sizes]
    for p in parameters:
        p.grad = torch.randn_like(p) * 0.01
    made: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=1e-4, **options)
    return made


def timed(step: Callable[[], Any], device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    wait()
    begin = time.perf_counter()
    step()
    wait()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-torch-compile", action="store_true")
    given = parser.parse_args()
    sizes = shapes(given.layers, given.width)
    millions = sum(torch.Size(size).numel() for size in sizes) / 1e6
    print(f"{given.optimizer} over {len(sizes)} tensors, {millions:.1f} M parameters, torch {torch.__version__}", flush=True)

    def made(**options: Any) -> torch.optim.Optimizer:
        return optimizer(given.optimizer, sizes, given.device, **options)

    warm = precast.compile(optimizer(given.optimizer, [(8,)], given.device).step, store=os.path.join(CACHES, "warm"))
    warm()  # imports and the native runtime, which are no part of a step's cost
    contenders: dict[str, Callable[[], Any]] = {"eager foreach": made(foreach=True).step}
    if given.optimizer in ("SGD", "Adam", "AdamW", "Adagrad"):
        contenders["eager fused"] = made(fused=True).step
    if not given.no_torch_compile:
        contenders["torch.compile"] = torch.compile(made().step)
    contenders["precast"] = precast.compile(made().step, store=os.path.join(CACHES, "store"))
    first = {name: timed(step, given.device) for name, step in contenders.items()}
    for step in contenders.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(given.rounds):
        names = list(contenders)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(timed(contenders[name], given.device))
    for name, seconds in times.items():
        print(f"{name:15} {statistics.median(seconds) * 1e3:9.3f} ms a step   first step {first[name]:7.2f} s")


if __name__ == "__main__":
    main()
