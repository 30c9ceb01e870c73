"""One process that holds one contender on one row and does as told: JSON commands on stdin, JSON answers on stdout.

Commands: {"do": "first"} prepares and makes the first call; {"do": "block", "calls": n} times n calls; {"do": "answer", "path": p}
saves the answer as .npy; {"do": "quit"}. Times are seconds, memory bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import numpy
import torch
from contenders import CONTENDERS, import_first
from rows import build, first_tensor


def _status(key: str) -> int:
    """A memory figure of this process (VmRSS, VmHWM), in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> bool:
    """Start the kernel's high-water mark anew; False where that is not allowed (then ru_maxrss, never lower, is used)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak() -> int:
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu() -> float:
    """CPU seconds of this process and its finished children."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


class Worker:
    """State of one contender on one row."""

    def __init__(self, row: str, contender: str, cache: Path) -> None:
        self.contender = CONTENDERS[contender]
        self.cache = cache
        import_first(self.contender, cache)
        self.model, self.inputs = build(row)
        self.call: Any = None
        self.baseline = 0

    def first(self) -> dict[str, Any]:
        """Prepare and call once: the seconds that a user waits, and the peak memory over the built model."""
        exact = _reset_peak()
        self.baseline = _status("VmRSS")
        start = time.perf_counter()
        self.call = self.contender.prepare(self.model, self.inputs, self.cache)
        self.call(**self.inputs)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "peak": _peak() - self.baseline, "peak_exact": exact}

    def block(self, calls: int) -> dict[str, Any]:
        """Times of `calls` consecutive calls after one untimed call, with this process's CPU seconds and the peak so far."""
        cpu, begin = _cpu(), time.perf_counter()
        self.call(**self.inputs)
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            self.call(**self.inputs)
            times.append(time.perf_counter() - start)
        return {"times": times, "cpu": _cpu() - cpu, "wall": time.perf_counter() - begin, "peak": _peak() - self.baseline}

    def answer(self, path: str) -> dict[str, Any]:
        """Save the answer (first tensor of the output) for comparison with float64."""
        numpy.save(path, first_tensor(self.call(**self.inputs)).double().numpy(), allow_pickle=False)
        return {}


def reference(row: str, path: str) -> None:
    """Save the row's answer from eager in float64."""
    model, inputs = build(row)
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        numpy.save(path, first_tensor(model.double()(**inputs)).numpy(), allow_pickle=False)


def serve(worker: Worker, commands: TextIO, answers: TextIO) -> None:
    """Answer commands until told to quit."""
    verbs = {"first": worker.first, "block": worker.block, "answer": worker.answer}
    for line in commands:
        command = json.loads(line)
        verb = command.pop("do")
        if verb == "quit":
            return
        with torch.no_grad():
            result = verbs[verb](**command)
        print(json.dumps(result), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", required=True)
    parser.add_argument("--contender")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--reference", help="save the float64 answer here and stop")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not mix with the answers
    if args.reference:
        reference(args.row, args.reference)
        return
    worker = Worker(args.row, args.contender, args.cache)
    print(json.dumps({"ready": True, "torch": torch.__version__}), file=answers, flush=True)
    serve(worker, sys.stdin, answers)


if __name__ == "__main__":
    main()
