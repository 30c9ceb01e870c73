"""Whole programs that nobody tuned for (archetype_rows.py, generator_rows.py): eager, torch.compile's modes and precast's, side by side.

    python benchmarks/archetypes.py [--device cpu|cuda] [--rows REGEX] [--contenders eager,precast] [--rounds 9] [--resume FILE]
                                    [--seconds 500] [--at-once 1] [--cache FOLDER] [--list]

A row has a process of its own. There the contenders are prepared, then called in turns; a time is the median of the rounds, of calls that
do not wait for one another. Peak memory on a GPU is what a call needs besides module and inputs, with what the contender keeps between
calls. `--at-once` prepares so many rows together; one at a time is measured, when all of them are prepared. `--cache` keeps what was
compiled. `--resume` and `--seconds` are those of kernels.py. Exit status 1: a result is further from float64 than it should be, or a row
failed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import archetype_rows
import generator_rows
import torch
from contenders import environment, names_of
from kernels import DIFFERENCE, SLOW, distance, freezing, in_turns, tensors, wide, wide_module

Call = Callable[[], Any]
ROWS = {**generator_rows.ROWS, **archetype_rows.ROWS}
CONTENDERS = {
    "cpu": ("eager", "torch.compile", "freezing", "precast", "precast freeze"),
    "cuda": ("eager", "torch.compile", "reduce-overhead", "precast", "precast reduce-overhead"),
}


def prepared(name: str, module: torch.nn.Module, store: Path) -> Callable[..., Any]:
    """The module as the contender calls it, before its first call."""
    import precast

    match name:
        case "eager":
            return module
        case "torch.compile" | "freezing":
            return torch.compile(module, dynamic=False)
        case "reduce-overhead":
            return torch.compile(module, dynamic=False, mode="reduce-overhead")
        case "precast":
            return precast.compile(module, dynamic=False, store=store)
        case "precast freeze":
            return precast.compile(module, dynamic=False, store=store, options={"freeze": True})
        case "precast reduce-overhead":
            return precast.compile(module, dynamic=False, store=store, mode="reduce-overhead")
    raise ValueError(name)


class Measured:
    """One row in this process: its contenders' calls, their distances from float64, and what a call of each needs of a GPU's memory."""

    def __init__(self, row: archetype_rows.Archetype, device: str, names: Sequence[str], store: Path) -> None:
        self.row, self.device = row, device
        module, inputs = row.built(device)
        self.kind = next((t.dtype for t in module.parameters() if t.dtype in DIFFERENCE), torch.float32)
        self.want = self._exact(module, inputs)
        self.calls: dict[str, Call] = {}
        self.off: dict[str, float] = {}
        self.memory: dict[str, int] = {}
        self.prepared: dict[str, float] = {}
        self.errors: dict[str, str] = {}
        module(*inputs)  # libraries take their workspaces, once for all contenders
        for name in names:
            before = self._reserved()
            torch._dynamo.reset()
            began = time.perf_counter()
            try:
                call = self._call(name, prepared(name, module, store), inputs)
                for _ in range(3):
                    results = call()
                self.off[name] = distance(results, self.want)
            except Exception as error:  # noqa: BLE001 - the row says so
                traceback.print_exc()
                self.errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
                continue
            self.prepared[name] = time.perf_counter() - began
            self.calls[name] = call
            del results
            if device != "cpu":
                kept = max(self._reserved() - before, 0) if "reduce-overhead" in name else 0  # by graphs: other calls keep nothing
                self.memory[name] = kept + self._peak(call)

    def _exact(self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        found = tensors(wide_module(module)(*(wide(t) for t in inputs)))
        self._reserved()
        return found

    @staticmethod
    def _call(name: str, program: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Call:
        if name != "freezing":
            return lambda: program(*inputs)

        def frozen() -> Any:
            with freezing():
                return program(*inputs)

        return frozen

    def _reserved(self) -> int:
        """Bytes that torch holds of the device, after what is free was given back."""
        gc.collect()
        if self.device == "cpu":
            return 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    @staticmethod
    def _peak(call: Call) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def timed(self, rounds: int) -> dict[str, Any]:
        times = in_turns({name: (call, 1) for name, call in self.calls.items()}, self.device, rounds)
        ours = [name for name in self.off if name.startswith("precast")]
        theirs = _rivals(self.off)
        return {
            "row": self.row.name,
            "seconds": {name: statistics.median(own) for name, own in times.items()},
            "spread": {name: [min(own), max(own)] for name, own in times.items()},
            "memory": self.memory,
            "prepared": self.prepared,
            "difference": self.off,
            "errors": self.errors,
            "wrong": [n for n in ours if not self.off[n] <= max(DIFFERENCE[self.kind], 2 * theirs)],
        }


def one_row(given: argparse.Namespace) -> None:
    """A row's own process: says that it is prepared, waits for a line, measures, and writes what it found."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    warnings.simplefilter("ignore")
    with torch.no_grad():
        measured = Measured(ROWS[given.one], given.device, given.contenders, given.cache)
        print("prepared", file=answers, flush=True)
        sys.stdin.readline()
        print(json.dumps(measured.timed(given.rounds)), file=answers, flush=True)


class Child:
    """That process from outside."""

    def __init__(self, name: str, given: argparse.Namespace, cache: Path) -> None:
        own = cache / name.replace(" ", "_")
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        options = ["--device", given.device, "--rounds", str(given.rounds), "--contenders", ",".join(given.contenders), "--cache", str(own)]
        command = [sys.executable, __file__, "--one", name, *options]
        self.name, self.errors = name, (own / "errors.txt").open("w+")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **environment(own)},
            start_new_session=True,
        )

    def ready(self, seconds: float) -> bool:
        """Waits until the row is prepared; False where its process ended, or took longer than that."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], max(seconds, 0.0))[0]:
            return False
        return self.process.stdout.readline() == "prepared\n"

    def result(self) -> dict[str, Any] | None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer.strip() else None

    def end(self) -> None:
        """Ends the process and the compilers that it started, which would otherwise hold it up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def said(self, late: bool) -> str:
        """How far it came."""
        self.errors.seek(0)
        said = self.errors.read().strip().splitlines() or [""]
        return "was not prepared in time" if late else f"failed: {said[-1][:200]}"


def best(found: Mapping[str, Any], ours: bool) -> float:
    times = [t for name, t in found["seconds"].items() if name.startswith("precast") == ours]
    return min(times, default=math.inf)


def ratio(found: Mapping[str, Any]) -> float:
    """The best rival's time over precast's best."""
    return best(found, False) / best(found, True) if math.isfinite(best(found, True)) else 0.0


def _rivals(off: Mapping[str, float]) -> float:
    """How far eager is from float64, or the furthest of the rivals where eager does not take part."""
    return off.get("eager", max((n for name, n in off.items() if not name.startswith("precast")), default=0.0))


def line(found: Mapping[str, Any], names: Sequence[str]) -> str:
    cells = []
    for name in names:
        if name not in found["seconds"]:
            cells.append(f"{'-':>24}")
            continue
        low, high = found["spread"][name]
        memory = f" {found['memory'][name] / 2**20:.0f}M" if name in found["memory"] else ""
        cell = f"{found['seconds'][name] * 1e3:.2f} ({low * 1e3:.1f}-{high * 1e3:.1f}){memory}"
        cells.append(f"{cell:>24}")
    end = "".join(f"  WRONG {n}: {found['difference'][n]:.1e}, others {_rivals(found['difference']):.1e}" for n in found["wrong"])
    end += "".join(f"  {name}: {text}" for name, text in found["errors"].items())
    return f"{found['row']:22}{''.join(cells)}{ratio(found):7.2f}{end}"


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    both = [f for f in found if math.isfinite(best(f, True)) and math.isfinite(best(f, False))]
    geomean = math.exp(statistics.fmean(math.log(ratio(f)) for f in both)) if both else math.nan
    slow = sorted((ratio(f), f["row"]) for f in both if ratio(f) < SLOW)
    return "\n".join(
        [f"{len(both)} rows; best rival over best of precast {geomean:.2f}", *(f"  slow {value:.2f}  {name}" for value, name in slow)]
    )


def run(given: argparse.Namespace, wanted: Sequence[str], found: list[dict[str, Any]], cache: Path) -> list[str]:
    """Measures rows, and prints each; those that failed are returned."""
    failed: list[str] = []
    began = time.perf_counter()
    for first in range(0, len(wanted), given.at_once):
        left = given.seconds - (time.perf_counter() - began)
        if left < 0:
            print(f"ended after {given.seconds:.0f} s: --resume goes on", flush=True)
            break
        children = [Child(name, given, cache) for name in wanted[first : first + given.at_once]]
        prepared = {c.name: c.ready(given.seconds - (time.perf_counter() - began)) for c in children}
        late = time.perf_counter() - began >= given.seconds
        for child in children:
            one = child.result() if prepared[child.name] else None
            child.end()
            if one is None:
                failed.append(child.name)
                print(f"{child.name:22} {child.said(late)}", flush=True)
                continue
            found.append(one)
            print(line(one, given.contenders), flush=True)
            if given.resume:
                with given.resume.open("a") as file:
                    file.write(json.dumps(one) + "\n")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=list(CONTENDERS))
    parser.add_argument("--rows", default="")
    parser.add_argument("--contenders", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    known = CONTENDERS[given.device]
    given.contenders = names_of(given.contenders, dict.fromkeys(known), "contender") or list(known)
    if given.one:
        one_row(given)
        return 0
    wanted = [name for name in ROWS if re.search(given.rows, name)]
    if given.list:
        print("\n".join(f"{name:22} {ROWS[name].title}" for name in wanted))
        return 0
    found = [json.loads(text) for text in given.resume.read_text().splitlines()] if given.resume and given.resume.exists() else []
    done = {f["row"] for f in found}
    chip = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{chip}, torch {torch.__version__}; milliseconds (least-most){', MiB over the model' if given.device == 'cuda' else ''}")
    print(f"{'row':22}{''.join(f'{name:>24}' for name in given.contenders)}  best rival/best of precast", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        failed = run(given, [name for name in wanted if name not in done], found, given.cache or Path(folder))
    print(summary(found))
    return 1 if failed or any(f["wrong"] for f in found) else 0


if __name__ == "__main__":
    sys.exit(main())
