"""All of torch's op_db against eager, on several backends: `python -m tests.ops.opdb --backend precast --out results.json`.
With `--backend precast-modules`, `torch-door-modules` and `inductor-modules`: all of module_db, in train and eval mode, with gradients.

Each backend's operators run in worker processes; a worker that hangs or dies costs one operator its verdict. Results are kept as they
come, so an interrupted run goes on where it stopped. `make test-full` compares with `opdb_pass_list.txt`, the operators stated to pass.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PASS_LIST = Path(__file__).resolve().parent / "opdb_pass_list.txt"
KINDS_ON_GPU = ("cuda", "cuda-bf16", "cuda-f16", "cuda-f64", "cuda-i64")
ON_GPU = tuple(f"{whose}-{kind}" for kind in KINDS_ON_GPU for whose in ("precast", "inductor"))
BACKEND_NAMES = ("lowered", "scheduled", "precast", "inductor", "precast-dynamic", "inductor-dynamic", *ON_GPU)
BACKEND_NAMES += ("precast-backward", "inductor-backward")
MODULES = "-modules"
"""Ends the names of backends that are judged on modules."""
MODULE_BACKENDS = ("precast-modules", "torch-door-modules", "inductor-modules")
Results = dict[str, dict[str, dict[str, Any]]]
"""Backend to operator to verdict."""


class Worker:
    """One process that judges operators, one at a time."""

    def __init__(self, backend: str, samples: int) -> None:
        self.command = [sys.executable, "-m", "tests.ops.opdb", "--serve", backend, "--samples", str(samples)]
        self.process: subprocess.Popen[str] | None = None

    def judge(self, name: str, timeout: float) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else ""
        if line:
            result = json.loads(line)
            assert isinstance(result, dict)
            if result.pop("broken", False):
                self.close()  # the process's device is lost to it: the next operator gets a new one
            return result
        verdict = "crash" if ready else "timeout"
        self.close()
        return {
            "verdict": verdict,
            "reason": f"no answer within {timeout:.0f} s" if verdict == "timeout" else "the process died",
            "samples": 0,
        }

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def run(
    backends: Sequence[str],
    names: Sequence[str],
    samples: int,
    *,
    out: Path | None,
    workers: int = 2,
    timeout: float = 90.0,
    until: float = math.inf,
) -> Results:
    """Judges every name on every backend; `out` keeps the results and is resumed from. Nothing is begun after `until` (time.monotonic)."""
    results: Results = json.loads(out.read_text()) if out is not None and out.exists() else {}
    for backend in backends:
        done = results.setdefault(backend, {})
        queue: Queue[str] = Queue()
        for name in names:
            if name not in done:
                queue.put(name)
        lock = threading.Lock()

        def serve(backend: str = backend, queue: Queue[str] = queue, done: dict[str, dict[str, Any]] = done) -> None:
            worker = Worker(backend, samples)
            while time.monotonic() < until:
                try:
                    name = queue.get_nowait()
                except Empty:
                    break
                start = time.monotonic()
                verdict = worker.judge(name, timeout)
                verdict["seconds"] = round(time.monotonic() - start, 2)
                with lock:  # noqa: B023  (one lock a backend)
                    done[name] = verdict
                    if out is not None:
                        _write(out, results)
            worker.close()

        threads = [threading.Thread(target=serve) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def _write(path: Path, results: Results) -> None:
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(results, indent=0, sort_keys=True))
    temporary.replace(path)


def serve(backend: str, samples: int) -> None:
    """A worker's life: a name a line in, a verdict a line out."""
    from tests.ops import modules_judge
    from tests.ops.opdb_judge import device_lost, judge

    judge = modules_judge.judge if backend.endswith(MODULES) else judge
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is not an answer
    for line in sys.stdin:
        answers.write(json.dumps({**judge(line.strip(), backend, samples), "broken": device_lost(backend)}) + "\n")
        answers.flush()


def summary(results: Results) -> list[str]:
    """One line a backend, then what each got wrong."""
    lines = []
    for backend, verdicts in results.items():
        count = Counter(v["verdict"] for v in verdicts.values())
        lines.append(f"{backend}: {len(verdicts)} operators: " + ", ".join(f"{n} {verdict}" for verdict, n in count.most_common()))
    for backend, verdicts in results.items():
        for name, v in sorted(verdicts.items()):
            if v["verdict"] not in ("pass", "no sample"):
                lines.append(f"  {backend} {v['verdict']} {name}: {v['reason'].splitlines()[0][:160] if v['reason'] else ''}")
    return lines


def behind(ours: dict[str, dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> list[str]:
    """What passes on their side and not on ours, of what both were judged on."""
    return [f"{name}: {ours[name]['verdict']}" for name in passing(theirs) if name in ours and ours[name]["verdict"] != "pass"]


def pass_list() -> list[str]:
    """The operators that are stated to pass."""
    return [line for line in PASS_LIST.read_text().splitlines() if line and not line.startswith("#")]


def passing(verdicts: dict[str, dict[str, Any]]) -> list[str]:
    return sorted(name for name, v in verdicts.items() if v["verdict"] == "pass")


def compare_with_list(verdicts: dict[str, dict[str, Any]]) -> Iterable[str]:
    """What is stated to pass and does not."""
    return (
        f"{name}: {verdicts[name]['verdict']}: {verdicts[name]['reason']}"
        for name in pass_list()
        if name in verdicts and verdicts[name]["verdict"] != "pass"
    )


def judged_by(backend: str) -> list[str]:
    """The names that a backend is judged on."""
    from tests.ops import modules_judge, opdb_judge

    return modules_judge.cases() if backend.endswith(MODULES) else list(opdb_judge.operators(backend))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", action="append", choices=(*BACKEND_NAMES, *MODULE_BACKENDS))
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds for one operator")
    parser.add_argument("--only", help="comma-separated operators")
    parser.add_argument("--write-list", action="store_true", help="write the pass list from the precast results")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.samples)
        return 0
    chosen = options.backend or ["precast", "inductor"]
    if len({name.endswith(MODULES) for name in chosen}) > 1:
        parser.error("operators and modules are judged apart")
    names = options.only.split(",") if options.only else judged_by(chosen[0])
    results = run(
        chosen,
        names,
        options.samples,
        out=options.out,
        workers=options.workers,
        timeout=options.timeout,
    )
    print("\n".join(summary(results)))
    if "precast" not in results:
        return 0
    if options.write_list:
        head = "# Operators of torch's op_db that precast compiles as one graph and that agree with eager in float32 "
        head += f"on their first {options.samples} samples.\n"
        PASS_LIST.write_text(head + "\n".join(passing(results["precast"])) + "\n")
    broken = list(compare_with_list(results["precast"])) if PASS_LIST.exists() else []
    print("\n".join(f"on the list and not passing: {line}" for line in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
