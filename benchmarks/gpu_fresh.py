"""Cold compile and warm first call: each in a fresh process that has torch, the contender's modules and the model on the device.

    python benchmarks/gpu_fresh.py --row gpt2 --contender precast --cache DIR      (one process's part: prints one JSON line)

The clock starts when the model is on the device, the device's context exists and the contender's own modules are imported; it stops when
the first answer is there. Device memory is what the process took from then on, by the driver's count (code, workspaces and pools
included); the peak is the caching allocator's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from contenders import environment

HERE = Path(__file__).resolve().parent


class Failed(RuntimeError):
    """A worker died; the message is the end of its story."""


def first_call(row: str, name: str, cache: Path, device: str) -> dict[str, Any]:
    """Body of a worker: seconds to the first answer, then a few calls more for the memory. Bytes are over those of the built model."""
    import torch
    from contenders import import_first
    from gpu_contenders import CONTENDERS, first_answer
    from gpu_measure import synchronize, timed
    from gpu_rows import build

    contender = CONTENDERS[name]
    import_first(contender, cache)
    model, inputs = build(row, device)
    gpu = device != "cpu"
    if gpu:
        (torch.ones(8, device="cuda") + 1).sum().item()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    free, held = (_settled_memory(), torch.cuda.memory_allocated()) if gpu else (0, 0)
    with torch.no_grad():
        synchronize(device)
        start = time.perf_counter()
        call = first_answer(lambda: contender.prepare(model, inputs, cache), lambda call: (call(**inputs), synchronize(device)))
        seconds = time.perf_counter() - start
        later = [timed(call, inputs, device) for _ in range(8)]
    peak = torch.cuda.max_memory_allocated() - held if gpu else 0
    taken = free - torch.cuda.mem_get_info()[0] if gpu else 0
    return {"seconds": seconds, "later": later, "peak": peak, "device": taken}


def _settled_memory() -> int:
    """Free bytes of the device once they no longer change: a process that has just ended gives its memory back late."""
    import torch

    last, since = torch.cuda.mem_get_info()[0], time.monotonic()
    while time.monotonic() - since < 1.0:
        time.sleep(0.05)
        now = torch.cuda.mem_get_info()[0]
        if now != last:
            last, since = now, time.monotonic()
    return last


def run(row: str, name: str, cache: Path, device: str, timeout: float) -> dict[str, Any]:
    """One worker. Raises `Failed` with what ended it."""
    command = [sys.executable, str(HERE / "gpu_fresh.py"), "--row", row, "--contender", name, "--cache", str(cache), "--device", device]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **environment(cache)}, cwd=cache, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"no first answer within {timeout:.0f} s") from late
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        errors = [
            line for line in done.stderr.splitlines() if re.match(r"[\w.]*(Error|Exception|Exit|Miss|Missing|Interrupt|RanEagerly)\b", line)
        ]
        ended = f"killed by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise Failed(f"{ended}: {errors[-1][:300]}" if errors else ended)
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def cold_and_warm(row: str, name: str, cache: Path, device: str, warm: int, timeout: float) -> dict[str, Any]:
    """The figures of `Result` that fresh processes give: one on an empty cache, then `warm` on what it left."""
    cache.mkdir(mode=0o700, parents=True)
    cold = run(row, name, cache, device, timeout)
    size = sum(p.stat().st_size for p in cache.rglob("*") if p.is_file() and not p.is_symlink())
    later = [run(row, name, cache, device, timeout) for _ in range(warm)]
    found: dict[str, Any] = {"cold": cold["seconds"], "cold_peak": cold["peak"], "size": size, "warm": [w["seconds"] for w in later]}
    last = later or [cold]
    return {**found, "warm_peak": max(w["peak"] for w in last), "device_bytes": max(w["device"] for w in last)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", required=True)
    parser.add_argument("--contender", required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    os.environ.update(environment(args.cache))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not mix with the answer
    print(json.dumps(first_call(args.row, args.contender, args.cache, args.device)), file=answers, flush=True)


if __name__ == "__main__":
    main()
