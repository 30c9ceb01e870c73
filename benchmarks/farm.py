"""What a build farm costs: small jobs on dask and on ray, with a worker killed half-way, beside the same jobs in one process.

    python benchmarks/farm.py                            1,000 jobs on each, then larger farms by simulation with what was measured
    python benchmarks/farm.py --jobs 100 --engine dask   less of it
    python benchmarks/farm.py --simulate FILE.json       the simulation alone, with measurements that an earlier run wrote (--json)

One process compiles a sample of the jobs before and after each farm, so that the machine's load counts for both. Overhead of a job is what
a worker's time from its first job to its last has beyond what it needed for jobs by its own clock: transport, the engine, the client.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from farm_simulation import Costs, simulate

MODULE = """
import os
import torch

def job(n, fatal=False):
    if fatal and not os.path.exists("MARK"):
        open("MARK", "w").close()
        os.kill(os.getpid(), 9)

    def f(x):
        return x.sin() * n + 1
    return f, [((torch.ones(8),), {})]
"""
WORKERS = 2
SAMPLE = 100
SIZES = (10, 30, 100, 300, 1000)


def plan(folder: Path, jobs: int, fatal: bool) -> Any:
    """A build file of so many programs with one signature each; the one in the middle kills the first worker that gets it."""
    from precast.building.build_file import read

    folder.mkdir()
    (folder / "small_jobs.py").write_text(MODULE.replace("MARK", str(folder / "killed")))
    row = '[[program]]\nfactory = "small_jobs:job"\nname = "p{n}"\narguments = {{ n = {n}.5{fatal} }}\n'
    rows = (row.format(n=n, fatal=", fatal = true" if fatal and n == jobs // 2 else "") for n in range(jobs))
    (folder / "farm.toml").write_text('targets = ["cpu:x86-64-v3"]\n' + "".join(rows))
    return read(str(folder / "farm.toml"))


def alone(folder: Path, jobs: int) -> list[float]:
    """Seconds of each job, factory included, in one fresh process that has compiled one program before."""
    from precast.artifact_store import Store
    from precast.building.build_file import load
    from precast.building.build_job import Job

    build, store, found = plan(folder, jobs + 1, fatal=False), Store.open(folder / "store"), []
    for spec in build.programs:
        begin = time.perf_counter()
        outcome = Job(load(spec, build.path), store).build(1, spec.targets[0])
        found.append(time.perf_counter() - begin)
        assert outcome.status == "compiled", outcome
    return found[1:]


def in_one_process(folder: Path, jobs: int) -> list[float]:
    done = subprocess.run(
        [sys.executable, __file__, "--alone", str(folder), "--jobs", str(jobs)], check=True, capture_output=True, text=True
    )
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def on_farm(engine: str, folder: Path, jobs: int) -> dict[str, Any]:
    """One build on two workers of the engine, of which one is killed half-way."""
    from precast.artifact_store import Store
    from precast.building.build_order import Lines
    from precast.building.farm.engines import connect
    from precast.building.farm.executor import place_of
    from precast.building.farm.farm import Farm
    from precast.building.ledger import Ledger

    build, store = plan(folder, jobs, fatal=True), Store.open(folder / "store")
    lines = Lines(build.programs)
    begin = time.perf_counter()
    with closing(connect(place_of(f"{engine}://local?workers={WORKERS}"))) as executor:
        started = time.perf_counter() - begin
        farm = Farm(build.programs, build.path, store, executor, Ledger(build.programs, lines, Quiet()), lines)
        idle = idle_cpu(executor)
        cpu = time.process_time()
        outcomes = farm.run()
        cpu = max(0.0, time.process_time() - cpu - idle * farm.summary().seconds)
    workers = [worker for worker in farm.workers() if worker.jobs]
    spans = sum(worker.last - worker.first for worker in workers if worker.first is not None and worker.state == "fit")
    own = sum(worker.own for worker in workers if worker.state == "fit")
    done = sum(worker.jobs for worker in workers if worker.state == "fit")
    sizes = [manifest_bytes(store, manifest) for manifest in list(store.manifests())[:50]]
    return {
        "engine": engine,
        "jobs": jobs,
        "load_average": os.getloadavg()[1],
        "good": sum(outcome.good for outcome in outcomes),
        "artifacts": len({outcome.artifact for outcome in outcomes}),
        "lost": sum(worker.state == "lost" for worker in farm.workers()),
        "again": farm.summary().again,
        "start_s": round(started, 2),
        "seconds": farm.summary().seconds,
        "worker_seconds_per_job": own / done,
        "overhead_ms_per_job": 1000 * (spans - own) / done,
        "client_cpu_ms_per_job": 1000 * cpu / jobs,
        "compile_seconds": [outcome.seconds for outcome in outcomes],
        "bytes_per_job": statistics.mean(sizes),
    }


def idle_cpu(executor: Any, seconds: float = 5.0) -> float:
    """Seconds of this process a second while it waits: looking for workers, and the engine's own threads, dask's scheduler among them."""
    begin, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        executor.workers()
        executor.hear(0.2)
    return (time.process_time() - cpu) / (time.perf_counter() - begin)


def manifest_bytes(store: Any, manifest: Any) -> int:
    return len(manifest.to_bytes()) + sum(manifest.blobs.values())


class Quiet:
    """A display that shows each tenth of the way."""

    def __init__(self) -> None:
        self._shown = 0

    def note(self, line: str) -> None: ...

    def warn(self, line: str) -> None:
        print(f"  {line}", file=sys.stderr)

    def show(self, tally: Any) -> None:
        if tally.done * 10 // max(1, tally.total) > self._shown:
            self._shown = tally.done * 10 // tally.total
            print(f"  {tally}", file=sys.stderr)


def measure(engines: list[str], jobs: int, sample: int) -> dict[str, Any]:
    rows, base = [], []
    with tempfile.TemporaryDirectory(prefix="precast-farm-") as name:
        folder = Path(name)
        base.append(in_one_process(folder / "alone", sample))
        for engine in engines:
            rows.append(on_farm(engine, folder / engine, jobs))
            base.append(in_one_process(folder / f"after-{engine}", sample))
    return {"alone": base, "rows": rows}


def report(found: dict[str, Any]) -> None:
    base = found["alone"]
    print("| | one process before and after | a worker's own seconds a job | overhead a job | in all | lost | run again | good | load |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row, before, after in zip(found["rows"], base, base[1:], strict=False):
        around = f"{statistics.median(before):.3f} to {statistics.median(after):.3f} s"
        print(
            f"| {row['engine']}, {WORKERS} workers, {row['jobs']} jobs | {around} | {row['worker_seconds_per_job']:.3f} s | "
            f"{row['overhead_ms_per_job']:.1f} ms | {row['seconds']:.0f} s | {row['lost']} | {row['again']} | {row['good']} | "
            f"{row['load_average']:.0f} |"
        )
    print()
    for row in found["rows"]:
        simulated(row)


def simulated(row: dict[str, Any]) -> None:
    """10,000 jobs with this engine's costs, for compiles as measured and eight times as long (a model's)."""
    print(
        f"10,000 jobs by simulation, with {row['engine']}'s costs: {row['client_cpu_ms_per_job']:.1f} ms of the client and "
        f"{row['overhead_ms_per_job']:.1f} ms of way a job, {row['bytes_per_job'] / 1000:.0f} kB an artifact, a tier of 100 MB/s"
    )
    print("| workers | " + " | ".join(str(size) for size in SIZES) + " |")
    print("|---|" + "---|" * len(SIZES))
    for factor in (1.0, 8.0):
        costs = Costs(
            compiles=tuple(factor * seconds for seconds in row["compile_seconds"] if seconds > 0),
            client=row["client_cpu_ms_per_job"] / 1000,
            way=row["overhead_ms_per_job"] / 1000,
            size=row["bytes_per_job"] * factor,
            bandwidth=100e6,
            start=10.0,
        )
        results = [simulate(costs, 10_000, size, random.Random(1)) for size in SIZES]
        print(f"| compiles of {statistics.mean(costs.compiles):.2f} s: seconds | " + " | ".join(f"{r.seconds:.0f}" for r in results) + " |")
        print("| workers busy compiling | " + " | ".join(f"{100 * r.busy:.0f} %" for r in results) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("--engine", action="append", choices=("dask", "ray"))
    parser.add_argument("--json", type=Path, help="write what was measured into this file")
    parser.add_argument("--simulate", type=Path, help="the simulation alone, with such a file")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.alone is not None:
        print(json.dumps(alone(given.alone, given.jobs)))
        return
    if given.simulate is not None:
        found = json.loads(given.simulate.read_text())
    else:
        found = measure(given.engine or ["dask", "ray"], given.jobs, given.sample)
        if given.json is not None:
            given.json.write_text(json.dumps(found))
    report(found)


if __name__ == "__main__":
    main()
