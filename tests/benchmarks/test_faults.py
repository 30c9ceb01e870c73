"""The fault table in small: a few cycles of every row that is quick, and that what must not happen would be counted."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from precast.artifact_store import Store
from precast.artifact_store.remote import index_update

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "remote"
CYCLES = {
    "fault_rows_local": {
        "writer killed": 2,
        "two writers, one killed": 1,
        "full disk (file size limit)": 2,
        "full filesystem (tmpfs)": 1,
        "bit flip in any file": 8,
        "truncation of any file": 6,
        "clock skew": 3,
        "read-only": 1,
        "no permission": 2,
        "pruned under load": 1,
    },
    "fault_rows_remote": {
        "remote hangs": 1,
        "remote answers 500": 2,
        "remote answers 403": 1,
        "remote answers garbage": 2,
        "remote sends half an object": 2,
        "remote sends another bit": 3,
        "remote is slow (1 KB/s)": 1,
        "remote forgets what is put": 2,
        "remote loses objects": 4,
        "remote's content is damaged": 4,
        "sender killed": 2,
        "three machines' writers, one killed": 1,
        "shared folder: writer killed, then a file damaged": 2,
    },
}


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The folder of the benchmark, from which its modules are imported, and what its rows share."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(index_update, "DAMAGED_PAUSES", (0.1, 0.3, 0.6))
    yield importlib.import_module("fault_tools")


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, rows in CYCLES.items() for name in rows])
def test_nothing_wrong_nothing_raised_nothing_lost(module: str, name: str, modules: ModuleType) -> None:
    row, _ = importlib.import_module(module).ROWS[name]
    tally = modules.run_row(row, CYCLES[module][name], seed=3)
    assert tally.good, tally.why
    assert tally.cycles == CYCLES[module][name] and (tally.served or tally.events)


def test_a_wrong_answer_would_be_counted(tmp_path: Path, modules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not compare digests."""
    cycle = modules.Cycle(tmp_path, random.Random(1), modules.Tally())
    store = Store.open(cycle.root, remote=[])
    cycle.put(store, range(2))
    blob = next(path for path in (cycle.root / "objects").rglob("*") if path.is_file() and path.stat().st_size == modules.SIZE)
    blob.chmod(0o600)
    blob.write_bytes(b"wrong" * 4000)
    monkeypatch.setattr(store, "blob_path", lambda digest: store.path(f"objects/{digest[:2]}/{digest}"))
    cycle.read(store)
    assert cycle.tally.wrong == 1 and not cycle.tally.good


def test_what_is_lost_and_what_is_raised_would_be_counted(tmp_path: Path, modules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cycle = modules.Cycle(tmp_path, random.Random(1), modules.Tally())
    store = Store.open(cycle.root, remote=[])
    reported = cycle.put(store, range(3))
    store.remove(modules.artifact(1)[0].artifact_id)
    cycle.expect(Store.open(cycle.root, remote=[]), reported, "after a removal")
    assert (cycle.tally.lost, cycle.tally.crashed) == (1, 0)
    monkeypatch.setattr(store, "trusted_variants", lambda key: 1 / 0)
    cycle.read(store)
    child = modules.start(modules.write_many, 5, 0, 1)  # no path: it raises
    child.end(cycle)
    assert cycle.tally.crashed == 2 and not cycle.tally.good
