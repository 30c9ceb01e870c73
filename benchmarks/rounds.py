"""Runs the contenders of one row: cold processes, warm processes, and interleaved steady-state rounds (A B C D A B C D …)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from contenders import CONTENDERS, environment

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    rounds: quiet steady rounds wanted; warm: fresh processes for the warm figure; block: seconds per steady block;
    noise: share of its CPUs that other processes may take before a block counts as disturbed; neighbours: CPUs that a process of the
    benchmark's own keeps busy during the steady rounds, which does not count as noise.
    """

    threads: int
    rounds: int = 7
    warm: int = 3
    block: float = 1.0
    noise: float = 0.10
    neighbours: int = 0


@dataclass
class Result:
    """What one contender showed on one row. Seconds and bytes; `error` holds the sentence when it failed, `absent` why it took no part."""

    cold: float | None = None
    cold_peak: int | None = None
    warm: list[float] = field(default_factory=list)
    warm_peak: int | None = None
    steady: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    quiet: list[bool] = field(default_factory=list)
    size: int | None = None
    max_error: float | None = None
    error: str | None = None
    absent: str | None = None


class Failed(RuntimeError):
    """A worker died; the message is the end of its stderr."""


def _why(log: str, status: int) -> str:
    """What ended a worker: the signal, or the error's own line in its stderr (warnings may follow it)."""
    lines = log.strip().splitlines()
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit|Interrupt)\b", line)]
    ended = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
    return f"{ended}: {errors[-1][:300]}" if errors else ended


class Process:
    """A worker process and its conversation."""

    def __init__(self, row: str, contender: str, cache: Path, plan: Plan) -> None:
        command = [sys.executable, str(HERE / "worker.py"), "--row", row, "--contender", contender, "--cache", str(cache)]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*command, "--threads", str(plan.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=cache,
            env={**os.environ, **environment(cache)},
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.log.seek(0)
            raise Failed(_why(self.log.read(), status))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the worker."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.write('{"do": "quit"}\n')
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def busy_seconds(stat: str, cpus: set[int]) -> float:
    """Seconds that `cpus` have spent working since boot, by the text of /proc/stat (proc(5): user, nice, system, irq, softirq, steal).

    Raises RuntimeError where it does not tell of each: other load would go unseen.
    """
    ticks = {}
    for line in stat.splitlines():
        name, *fields = line.split()
        number = name.removeprefix("cpu")
        if name != number and number.isdigit() and int(number) in cpus:
            ticks[int(number)] = sum(map(int, fields[:3])) + sum(map(int, fields[5:8]))
    if unknown := cpus - ticks.keys():
        raise RuntimeError(f"/proc/stat does not tell how busy the CPUs {sorted(unknown)} are; use others (taskset -c)")
    return sum(ticks.values()) / os.sysconf("SC_CLK_TCK")


def _busy(cpus: set[int]) -> float:
    return busy_seconds(Path("/proc/stat").read_text(), cpus)


@contextlib.contextmanager
def busy_neighbours(number: int) -> Iterator[list[int]]:
    """Processes that each keep one of our CPUs busy; their ids."""
    spin = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    cpus = sorted(os.sched_getaffinity(0))[:number]
    started = [subprocess.Popen([sys.executable, "-c", spin, str(cpu)], stdin=subprocess.DEVNULL) for cpu in cpus]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def _cpu_seconds(processes: list[int]) -> float:
    """What they have spent in user and system mode (proc(5): utime and stime, the 14th and 15th field)."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in processes]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def _folder_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _cold(row: str, name: str, cache: Path, plan: Plan, result: Result) -> None:
    """One fresh process on an empty cache: compile and first call."""
    process = Process(row, name, cache, plan)
    try:
        first = process.ask("first")
        result.cold, result.cold_peak = first["seconds"], first["peak"]
    finally:
        process.close()
    result.size = _folder_bytes(cache)


def _warm(row: str, name: str, cache: Path, plan: Plan, result: Result) -> Process:
    """Fresh processes on the filled cache; the last one is kept for the steady rounds."""
    for i in range(plan.warm):
        process = Process(row, name, cache, plan)
        try:
            first = process.ask("first")
        except Failed:
            process.close()
            raise
        result.warm.append(first["seconds"])
        result.warm_peak = first["peak"] if result.warm_peak is None else min(result.warm_peak, first["peak"])
        if i + 1 < plan.warm:
            process.close()
    return process


def steady_rounds(processes: dict[str, Process], results: dict[str, Result], plan: Plan) -> None:
    """Interleaved blocks until enough rounds were quiet, or twice as many were run."""
    with busy_neighbours(plan.neighbours) as neighbours:
        _steady_rounds(processes, results, plan, neighbours)


def _steady_rounds(processes: dict[str, Process], results: dict[str, Result], plan: Plan, neighbours: list[int]) -> None:
    calls = {}
    for name, process in processes.items():
        once = min(process.ask("block", calls=2)["times"])
        calls[name] = max(3, min(200, int(plan.block / max(once, 1e-6))))
    quiet, cpus = 0, os.sched_getaffinity(0)
    for _ in range(2 * plan.rounds):
        round_quiet = True
        for name, process in processes.items():
            busy, start = _busy(cpus) - _cpu_seconds(neighbours), time.perf_counter()
            block = process.ask("block", calls=calls[name])
            wall = time.perf_counter() - start
            foreign = (_busy(cpus) - _cpu_seconds(neighbours) - busy - block["cpu"]) / (wall * len(cpus))
            result = results[name]
            result.steady += block["times"]
            result.blocks.append(statistics.median(block["times"]))
            result.quiet.append(foreign <= plan.noise)
            result.warm_peak = max(result.warm_peak or 0, block["peak"])
            round_quiet = round_quiet and foreign <= plan.noise
        quiet += round_quiet
        if quiet >= plan.rounds:
            break


def _errors(row: str, processes: dict[str, Process], results: dict[str, Result], folder: Path, plan: Plan) -> None:
    """Largest difference of each answer from float64 eager."""
    path = folder / "reference.npy"
    command = [sys.executable, str(HERE / "worker.py"), "--row", row, "--threads", str(plan.threads), "--reference", str(path)]
    subprocess.run(command, check=True, env={**os.environ, **environment(folder)}, stderr=subprocess.DEVNULL)
    want = numpy.load(path, allow_pickle=False)
    for name, process in processes.items():
        got_path = folder / f"{name}.npy"
        process.ask("answer", path=str(got_path))
        results[name].max_error = float(numpy.abs(numpy.load(got_path, allow_pickle=False) - want).max())


def measure(row: str, contenders: list[str], plan: Plan) -> dict[str, Result]:
    """Everything about one row; a contender that fails keeps its sentence in `error` and the others go on."""
    _busy(os.sched_getaffinity(0))  # where that cannot be told, better said before minutes of compiling
    results = {name: Result(absent=CONTENDERS[name].absent) for name in contenders}
    processes: dict[str, Process] = {}
    folder = Path(tempfile.mkdtemp(prefix="precast-bench-"))
    try:
        for name in (n for n in contenders if results[n].absent is None):
            cache = folder / name
            cache.mkdir(mode=0o700)
            try:
                _say(f"{row}: {name}: cold, then warm")
                if name != "eager":
                    _cold(row, name, cache, plan, results[name])
                processes[name] = _warm(row, name, cache, plan, results[name])
            except Failed as failure:
                results[name].error = str(failure)
                _say(f"{row}: {name} failed: {failure}")
        _say(f"{row}: steady rounds of {', '.join(processes)}")
        steady_rounds(processes, results, plan)
        _errors(row, processes, results, folder, plan)
    finally:
        for process in processes.values():
            process.close()
        shutil.rmtree(folder, ignore_errors=True)
    return results
