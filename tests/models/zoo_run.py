"""Architectures of zoo_hf.py (`--library timm`, `vision`: zoo_timm.py, zoo_vision.py) through precast and torch.compile:
`python tests/models/zoo_run.py [NAME...]` prints a table. `--train`: a training step of each, with its gradients.
`--serve`: a fresh process then loads what was stored, without the tracer. `--counts`: torch.compile only traces.
Exit status 1: a wrong result; one that precast does not reach and torch.compile does; more graphs or graph breaks than torch.compile's; one
that the fresh process does not serve."""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.models import zoo_hf, zoo_timm, zoo_vision
from tests.models.zoo_subjects import Answer, Step, Subject

LIBRARIES = {
    "transformers": (zoo_hf.ARCHITECTURES, zoo_hf.build),
    "timm": (tuple(zoo_timm.FAMILIES), zoo_timm.build),
    "vision": (tuple(zoo_vision.MODELS), zoo_vision.build),
}
BACKENDS = ("precast", "inductor")
TRACED = ("precast", "eager")
"""With torch.compile's graphs and breaks only: what it traces does not depend on what compiles it."""
ROOT = Path(__file__).parents[2]
ANSWER = "served: "


@dataclass(frozen=True)
class Judged:
    """One architecture on one backend. `difference`: "" where it agrees with eager; `graphs`: how many were compiled, eager ones apart.
    `served`: what a fresh process made of the store; "" where it agrees too, or was not asked."""

    name: str
    backend: str
    difference: str
    wrong: bool
    graphs: int
    seconds: float
    breaks: int = 0
    served: str = ""


def subject(name: str, library: str, device: str, train: bool) -> Subject:
    """What is compared of the architecture."""
    model, kwargs = LIBRARIES[library][1](name)
    return (Step if train else Answer)(model.to(device), {k: v.to(device) for k, v in kwargs.items()})


def judge(name: str, backend: str, folder: Path, library: str = "transformers", device: str = "cpu", train: bool = False) -> Judged:
    """Build, run eagerly and compiled ("precast", or a backend of torch.compile), compare."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    judged = subject(name, library, device, train)
    start, breaks = time.perf_counter(), 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        want = judged.of(lambda model: model)
        try:
            with _breaks(backend) as found:
                got = judged.of(lambda model: _precast(model, folder) if backend == "precast" else _torch_compiled(model, backend))
            breaks, problem = len(found), judged.difference(want, got)
            wrong = bool(problem)
            eagerly = [str(w.message) for w in said if "precast:" in str(w.message) and "eagerly" in str(w.message)]
            problem = problem or " ".join(eagerly[:1])
        except Exception as error:  # noqa: BLE001 - that is the verdict
            problem, wrong = f"{type(error).__name__}: {error}"[:300], False
    graphs = _stored_graphs(folder) if backend == "precast" else torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return Judged(name, backend, problem, wrong, graphs, time.perf_counter() - start, breaks)


@contextmanager
def _breaks(backend: str) -> Iterator[list[str]]:
    """Collects the reasons of the graph breaks that are met inside."""
    found: list[str] = []
    if backend != "precast":
        yield found
        found += torch._dynamo.utils.counters["graph_break"].elements()
        return
    from precast.compiling.observers import captures

    def look(_: Any, outcome: Any) -> None:
        if (broke := getattr(outcome, "broke", None)) is not None:
            found.append(broke.reason)

    with captures.watch(look):
        yield found


def _torch_compiled(model: torch.nn.Module, backend: str) -> Any:
    if backend == "inductor":
        torch._inductor.config.fallback_random = True  # dropout draws eager's numbers
    return torch.compile(model, backend=backend)


def _precast(model: torch.nn.Module, folder: Path) -> Any:
    import precast

    return precast.compile(model, store=str(folder))


def _stored_graphs(folder: Path) -> int:
    from precast.artifact_store import Store

    store = Store.open(folder)
    return sum(bool(m.graphs) for place in (folder / "programs").glob("*") for m in store.variants(place.name))


def table(rows: Iterable[Sequence[Judged]]) -> Iterator[str]:
    """One line per architecture, then the counts."""
    passed: dict[str, int] = {}
    for row in rows:
        cells = [f"{j.backend}: {j.difference or 'agrees'}, {j.graphs} graphs, {j.breaks} breaks, {j.seconds:.1f} s" for j in row]
        cells += [f"fresh process: {j.served}" for j in row if j.served]
        for j in row:
            passed[j.backend] = passed.get(j.backend, 0) + (not j.difference)
        yield f"{row[0].name:24} " + " | ".join(cells)
    yield ", ".join(f"{backend}: {count} agree" for backend, count in passed.items())


def row(name: str, backends: Sequence[str], library: str, device: str, serve: bool, train: bool = False) -> list[Judged]:
    torch.backends.cudnn.allow_tf32 = False  # for a difference to be one
    with tempfile.TemporaryDirectory() as folder:
        ours, *theirs = [judge(name, backend, Path(folder) / name, library, device, train) for backend in backends]
        if serve and not ours.difference:
            ours = replace(ours, served=served([name], Path(folder), library, device, train)[0])
        return [ours, *theirs]


def served(names: Sequence[str], stores: Path, library: str, device: str, train: bool) -> list[str]:
    """What one fresh process makes of each store, by name in a folder: "" where it agrees with eager, without the tracer."""
    places = [f"{name}={stores / name}" for name in names]
    command = [sys.executable, "-m", "tests.models.zoo_served", library, device, "train" if train else "answer", *places]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [line.removeprefix(ANSWER) for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    return found + [f"exit {done.returncode}: {done.stderr[-300:]}"] * (len(names) - len(found))


def _one_thread() -> None:
    torch.set_num_threads(1)


def rows_of(names: Sequence[str], row: Any, jobs: int) -> Iterator[list[Judged]]:
    """In the order of `names`; more than one job: each a process, with one thread."""
    if jobs == 1:
        yield from map(row, names)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _one_thread) as pool:
        yield from pool.map(row, names)


def failures(rows: Iterable[Sequence[Judged]]) -> list[str]:
    """Names where precast is wrong, or has no result where torch.compile agrees, or needs more graphs or breaks than torch.compile, or
    where a fresh process does not serve what it stored."""
    failed = []
    for ours, *theirs in rows:
        reached = [found for found in theirs if not found.difference]
        more = any(ours.graphs > found.graphs or ours.breaks > found.breaks for found in reached)
        if ours.wrong or ours.difference and (reached or not theirs) or ours.served or more:
            failed.append(ours.name)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="ARCHITECTURE", help="default: all")
    parser.add_argument("--library", choices=LIBRARIES, default="transformers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="architectures at a time (default: 1)")
    parser.add_argument("--serve", action="store_true", help="load each from its store in a fresh process, without the tracer")
    parser.add_argument("--counts", action="store_true", help="torch.compile traces and does not compile: graphs and breaks, in seconds")
    parser.add_argument("--train", action="store_true", help="compare a training step, with all gradients and buffers")
    parser.add_argument("--alone", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    known = LIBRARIES[options.library][0]
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    rows = []
    backends = BACKENDS[:1] if options.alone else TRACED if options.counts else BACKENDS
    one = partial(row, backends=backends, library=options.library, device=options.device, serve=options.serve, train=options.train)
    for judged in rows_of(options.names or known, one, options.jobs):
        rows.append(judged)
        print(next(iter(table([judged]))), flush=True)
    failed = failures(rows)
    print([*table(rows)][-1], "| not as it should be:", ", ".join(failed) or "none")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
