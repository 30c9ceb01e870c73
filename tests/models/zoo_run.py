"""Architectures of zoo_hf.py through precast and torch.compile: `python tests/models/zoo_run.py [NAME...]` prints a table."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.models.zoo_hf import ARCHITECTURES, build


@dataclass(frozen=True)
class Judged:
    """One architecture on one backend. `difference`: "" where it agrees with eager; `graphs`: how many were compiled, eager ones apart."""

    name: str
    backend: str
    difference: str
    wrong: bool
    graphs: int
    seconds: float


def judge(name: str, backend: str, folder: Path) -> Judged:
    """Build, run eagerly and compiled ("precast" or "inductor"), compare."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, kwargs = build(name)
    start = time.perf_counter()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        want = model(**kwargs)
        try:
            compiled = _precast(model, folder) if backend == "precast" else torch.compile(model)
            problem = _difference(want, compiled(**kwargs))
            wrong = bool(problem)
        except Exception as error:  # noqa: BLE001 - that is the verdict
            problem, wrong = f"{type(error).__name__}: {error}"[:300], False
    graphs = _stored_graphs(folder) if backend == "precast" else torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return Judged(name, backend, problem, wrong, graphs, time.perf_counter() - start)


def _precast(model: torch.nn.Module, folder: Path) -> Any:
    import precast

    return precast.compile(model, store=str(folder))


def _stored_graphs(folder: Path) -> int:
    from precast.artifact_store import Store

    store = Store.open(folder)
    return sum(bool(m.graphs) for place in (folder / "programs").glob("*") for m in store.variants(place.name))


def _difference(want: Any, got: Any) -> str:
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
        cells = [f"{j.backend}: {j.difference or 'agrees'}, {j.graphs} graphs, {j.seconds:.1f} s" for j in row]
        for j in row:
            passed[j.backend] = passed.get(j.backend, 0) + (not j.difference)
        yield f"{row[0].name:24} " + " | ".join(cells)
    yield ", ".join(f"{backend}: {count} agree" for backend, count in passed.items())


def main(names: Sequence[str]) -> None:
    for name in names or ARCHITECTURES:
        with tempfile.TemporaryDirectory() as folder:
            row = judge(name, "precast", Path(folder)), judge(name, "inductor", Path(folder))
        print(next(iter(table([row]))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
