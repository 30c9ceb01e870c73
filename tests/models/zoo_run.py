"""Architectures of zoo_hf.py (`--library timm`: zoo_timm.py) through precast and torch.compile: `python tests/models/zoo_run.py [NAME...]`
prints a table. `--serve`: a fresh process then loads what was stored, without the tracer. `--counts`: torch.compile only traces.
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
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.models import zoo_hf, zoo_timm

LIBRARIES = {"transformers": (zoo_hf.ARCHITECTURES, zoo_hf.build), "timm": (tuple(zoo_timm.FAMILIES), zoo_timm.build)}
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


def judge(name: str, backend: str, folder: Path, library: str = "transformers", device: str = "cpu") -> Judged:
    """Build, run eagerly and compiled ("precast", or a backend of torch.compile), compare."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, kwargs = LIBRARIES[library][1](name)
    model, kwargs = model.to(device), {k: v.to(device) for k, v in kwargs.items()}
    start, breaks = time.perf_counter(), 0
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        want = model(**kwargs)
        try:
            with _breaks(backend) as found:
                got = (_precast(model, folder) if backend == "precast" else torch.compile(model, backend=backend))(**kwargs)
            breaks, problem = len(found), difference(want, got)
            wrong = bool(problem)
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


def _precast(model: torch.nn.Module, folder: Path) -> Any:
    import precast

    return precast.compile(model, store=str(folder))


def _stored_graphs(folder: Path) -> int:
    from precast.artifact_store import Store

    store = Store.open(folder)
    return sum(bool(m.graphs) for place in (folder / "programs").glob("*") for m in store.variants(place.name))


def difference(want: Any, got: Any) -> str:
    """Tensors of the two results, in order, to 1e-4 of the largest value."""
    wants, gots = (_tensors(result) for result in (want, got))
    if len(wants) != len(gots):
        return f"{len(gots)} tensors for {len(wants)}"
    for i, (w, g) in enumerate(zip(wants, gots, strict=True)):
        if w.shape != g.shape or w.dtype != g.dtype:
            return f"tensor {i}: {g.dtype} {list(g.shape)} for {w.dtype} {list(w.shape)}"
        scale = w.double().abs().max().item() if w.numel() else 0.0
        if not torch.allclose(w.double(), g.double(), rtol=1e-4, atol=1e-4 * max(scale, 1e-3), equal_nan=True):
            return f"tensor {i} of {list(w.shape)} is off by {(w.double() - g.double()).abs().max().item():.3g}, largest value {scale:.3g}"
    return ""


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(dict(result) if isinstance(result, dict) else result) if isinstance(leaf, torch.Tensor)]


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


def row(name: str, backends: Sequence[str], library: str, device: str, serve: bool) -> list[Judged]:
    torch.backends.cudnn.allow_tf32 = False  # for a difference to be one
    with tempfile.TemporaryDirectory() as folder:
        ours, *theirs = [judge(name, backend, Path(folder) / name, library, device) for backend in backends]
        if serve and not ours.difference:
            ours = replace(ours, served=_served(name, Path(folder) / name, library, device))
        return [ours, *theirs]


def _served(name: str, store: Path, library: str, device: str) -> str:
    """What a fresh process makes of the store: "" where it agrees with eager, without the tracer."""
    command = [sys.executable, "-m", "tests.models.zoo_served", library, device, f"{name}={store}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    return lines[-1].removeprefix(ANSWER) if lines else f"exit {done.returncode}: {done.stderr[-300:]}"


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
    parser.add_argument("--alone", action="store_true", help="without torch.compile")
    options = parser.parse_args()
    known = LIBRARIES[options.library][0]
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    rows = []
    backends = BACKENDS[:1] if options.alone else TRACED if options.counts else BACKENDS
    one = partial(row, backends=backends, library=options.library, device=options.device, serve=options.serve)
    for judged in rows_of(options.names or known, one, options.jobs):
        rows.append(judged)
        print(next(iter(table([judged]))), flush=True)
    failed = failures(rows)
    print([*table(rows)][-1], "| not as it should be:", ", ".join(failed) or "none")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
