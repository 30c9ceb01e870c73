"""Whether objects are one or two: every program of identity_programs.py, against eager, in both orders, and again from the store."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Guard, Predicate, Store
from precast.artifact_store.format.guards import Path as ObjectPath
from precast.artifact_store.format.manifest import guard_rows
from precast.runtime.api.compile import site_of
from precast.runtime.guards.evaluate import compile_checker, evaluate
from precast.runtime.guards.interpreted import LazyChecker
from tests.end_to_end.soundness.identity_programs import CASES, FREEZE, Thing, compared, list_append

WORKER = Path(__file__).with_name("identity_worker.py")
Reports = dict[str, dict[str, Any]]

NOT_STORED = {"set of objects", "dict of objects"}
"""A container with a key that has no name: its guards hold for this process only."""
REFUSED = {"shared __dict__"}
"""Served eagerly where the objects are one, with the reason."""
TORCHS_OWN = {
    "tuple of lists",  # traced as two
    "cell of two functions",  # not guarded
    "cell of the program",
    "shared __dict__",  # traced as two
    "global and argument",  # torch does not guard that what is local and what is global are one
    "class attribute and argument",
}
"""What torch.compile gets wrong with any backend."""
AS_TRACED = {("torch.compile and dynamic", "partial")}
"""Refused by precast with a reason (a float of the call is used as a tensor), and run as torch traced it."""
PORTABLE = [name for name in CASES if name not in NOT_STORED | REFUSED]
SOME = PORTABLE[::4]
FROZEN = sorted(FREEZE)
BY_TORCH = [name for name in CASES if name not in TORCHS_OWN]
RUNS: dict[str, tuple[str, str, str, str, list[str]]] = {  # store, kind, order, how, cases: in the order in which they run
    "cold": ("static", "cold", "two,same", "static", list(CASES)),
    "warm": ("static", "warm", "same,two", "static", PORTABLE),
    "cold and dynamic": ("dynamic", "cold", "same,two", "dynamic", SOME),
    "warm and dynamic": ("dynamic", "warm", "two,same", "dynamic", SOME),
    "cold and frozen": ("frozen", "cold", "two,same", "freeze", FROZEN),
    "warm and frozen": ("frozen", "warm", "same,two", "freeze", FROZEN),
    "torch.compile": ("torch", "torch", "two,same", "static", BY_TORCH[2::4]),
    "torch.compile, others": ("torch", "torch", "two,same", "static", [name for name in BY_TORCH if name not in BY_TORCH[2::4]]),
    "torch.compile and dynamic": ("torch dynamic", "torch", "same,two", "dynamic", [name for name in SOME if name not in TORCHS_OWN]),
}
SLOW = {"torch.compile, others", "torch.compile and dynamic", "cold and frozen", "warm and frozen"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reports]:
    """Of a run, one report per case; each run is one process, and what runs warm needs what ran cold."""
    folder = tmp_path_factory.mktemp("identity")

    @functools.cache
    def of(run: str) -> Reports:
        store, kind, order, how, names = RUNS[run]
        if kind == "warm":
            of(run.replace("warm", "cold"))
        command = [sys.executable, str(WORKER), str(folder / store), kind, order, how, *names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert done.returncode == 0, done.stderr[-3000:]
        return {report["name"]: report for report in lines}

    return of


ALL = [
    pytest.param(run, name, id=f"{run.removesuffix(', others')}-{name}", marks=[pytest.mark.slow] if run in SLOW else [])
    for run, (*_, names) in RUNS.items()
    for name in names
]


@pytest.mark.parametrize("run, name", ALL)
def test_equals_eager(reports: Callable[[str], Reports], run: str, name: str) -> None:
    report = reports(run)[name]
    assert "failed" not in report, report["failed"]
    assert report["wrong"] == []
    assert report["attempts"] == []
    stored = name not in NOT_STORED or run.startswith("torch.compile")  # there the graph is stored, and torch's guards are not
    assert (report["served"] > 0) == (stored and (run, name) not in AS_TRACED)


@pytest.mark.parametrize(
    "program, make, traced, called, said",
    [
        (list_append, list, "two", "same", "expected a and b to be two objects, found that they are one; the artifact was made for two"),
        (list_append, list, "same", "two", "b: expected the same object as a, found another; the artifact was made for one object"),
        (compared, Thing, "two", "same", "expected a and b to be two objects, found that they are one; the artifact was made for two"),
        (compared, lambda: torch.ones(3), "two", "same", "expected a and b to be two objects"),
    ],
    ids=["list, two", "list, one", "object", "tensor"],
)
def test_a_miss_is_explained(tmp_path: Path, program: Any, make: Any, traced: str, called: str, said: str) -> None:
    compiled = precast.compile(program, store=Store(tmp_path))
    one = make()
    calls = {"two": (make(), make()), "same": (one, one)}
    compiled(torch.ones(2), *calls[traced])
    assert said in str(precast.explain_miss(compiled, torch.ones(2), *calls[called]))


def variants(compiled: Any) -> list[Any]:
    return [variant for program in site_of(compiled).all_programs for variant in program.variants]


def test_objects_that_share_their_attributes_are_refused(tmp_path: Path) -> None:
    def program(x: torch.Tensor, a: Thing, b: Thing) -> torch.Tensor:
        a.value = 3.0
        return x * b.value

    one, other, apart = Thing(), Thing(), Thing()
    other.__dict__ = one.__dict__
    compiled = precast.compile(program, store=tmp_path)
    with pytest.warns(UserWarning, match=r"a and b are two objects with one `__dict__`"):
        assert torch.equal(compiled(torch.ones(2), one, other), torch.full((2,), 3.0))
    assert torch.equal(compiled(torch.ones(2), apart, Thing()), torch.ones(2)), "others are compiled"
    assert torch.equal(compiled(torch.ones(2), one, other), torch.full((2,), 3.0))
    assert sum(variant.stored for variant in variants(compiled)) == 1


def test_constants_are_not_told_apart(tmp_path: Path) -> None:
    """Equal numbers, strings and tuples of them are one variant, however many objects they are."""

    def program(x: torch.Tensor, a: Any, b: Any) -> torch.Tensor:
        return x * a[0] * len(b)

    compiled = precast.compile(program, store=tmp_path)
    one, other = tuple([2000, "ab"]), tuple([2000, "ab"])
    assert one is not other
    for call in ((one, other), (one, one), (other, one)):
        assert torch.equal(compiled(torch.ones(2), *call), torch.full((2,), 4000.0))
    assert len(variants(compiled)) == 1


def test_one_and_two_tuples_of_constants_where_the_program_asks(tmp_path: Path) -> None:
    compiled = precast.compile(compared, store=tmp_path)
    one, other = tuple([2000, "ab"]), tuple([2000, "ab"])
    x = torch.ones(2)
    for call in ((one, other), (one, one), (other, one)) * 2:
        if torch.__version__ >= "2.13":  # before, it is not known which tuples are compared
            assert torch.equal(compiled(x, *call), compared(x, *call))


STATE: ObjectPath = (("state",),)
PLACES: tuple[ObjectPath, ...] = tuple((("local", "a"), ("attr", name)) for name in ("first", "second", "third"))
RELATIONS = [
    ("two", Guard(STATE, Predicate.NOT_ALIASED, {"distinct": PLACES[:2], "mutated": (), "others": ()})),
    ("three", Guard(STATE, Predicate.NOT_ALIASED, {"distinct": PLACES, "mutated": (), "others": ()})),
    ("three beside memory", Guard(STATE, Predicate.NOT_ALIASED, {"distinct": PLACES, "mutated": ((("local", "x"),),), "others": ()})),
    ("one", Guard(PLACES[0], Predicate.SAME_AS, PLACES[1])),
]


@pytest.mark.parametrize("name, guard", RELATIONS, ids=[row[0] for row in RELATIONS])
def test_all_checkers_agree(name: str, guard: Guard) -> None:
    """One by one, generated, and interpreted: of different objects, of the same, and where one is missing."""
    things = SimpleNamespace(first=[], second=[], third=[])
    double = SimpleNamespace(first=things.first, second=things.first, third=[])
    missing = SimpleNamespace(first=things.first, third=[])
    compiled = compile_checker([guard])
    for a, holds in ((things, name != "one"), (double, name == "one"), (missing, False)):
        values = {"a": a, "x": torch.ones(2)}
        assert evaluate(guard, values).holds is holds
        assert compiled(values, {}) is holds
        assert LazyChecker(lambda: guard_rows([guard]))(values, {}) is holds


def test_a_place_that_is_missing_is_named() -> None:
    guard = RELATIONS[1][1]
    found = evaluate(guard, {"a": SimpleNamespace(first=[], third=[])})
    assert not found.holds and "a.second does not exist" in found.found
