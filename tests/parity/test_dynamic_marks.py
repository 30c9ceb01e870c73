"""mark_dynamic and its kin, and dynamic_shapes: with torch.compile's meaning, counted in compiles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import precast
from precast.artifact_store import Store
from precast.runtime.counting import tallies


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    tallies._all.clear()
    yield
    torch._dynamo.reset()


def scale(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + 1)


def picky(x: torch.Tensor) -> torch.Tensor:
    assert x.size(0) == 5
    return x + 1


Mark = Callable[[Any, torch.Tensor], None]
ROWS: dict[str, tuple[bool | None, list[tuple[int, Mark | None]]]] = {
    "marked, then not": (None, [(3, lambda m, t: m.mark_dynamic(t, 0)), (4, None), (5, None)]),
    "not, then marked": (None, [(3, None), (3, lambda m, t: m.mark_dynamic(t, 0)), (9, lambda m, t: m.mark_dynamic(t, 0))]),
    "marked more": (None, [(3, lambda m, t: m.mark_dynamic(t, 0)), (3, lambda m, t: m.mark_dynamic(t, [0, 1])), (4, None)]),
    "weakly": (None, [(3, lambda m, t: m.maybe_mark_dynamic(t, 0)), (4, None)]),
    "static under dynamic": (True, [(3, lambda m, t: m.mark_static(t)), (4, lambda m, t: m.mark_static(t)), (5, None)]),
    "static under automatic": (None, [(n, lambda m, t: m.mark_static(t, 0)) for n in (3, 4, 5)]),
    "marked and dynamic=False": (False, [(3, lambda m, t: m.mark_dynamic(t, 0)), (4, lambda m, t: m.mark_dynamic(t, 0))]),
    "bounded": (None, [(3, lambda m, t: m.mark_dynamic(t, 0, min=2, max=8)), (8, None), (9, None)]),
}


@pytest.mark.parametrize("name", ROWS)
def test_marks_compile_as_often_as_torchs(store: Store, name: str) -> None:
    dynamic, calls = ROWS[name]
    counter = CompileCounter()
    theirs, ours = torch.compile(scale, backend=counter, dynamic=dynamic), precast.compile(scale, store=store, dynamic=dynamic)
    counts = []
    with torch.no_grad():
        for size, mark in calls:
            x, y = torch.randn(size, 4), torch.randn(size, 4)
            if mark is not None:
                mark(precast, x)
                mark(torch._dynamo, y)
            torch.testing.assert_close(ours(x), scale(x))
            theirs(y)
            counts.append((sum(tallies._all.values()), counter.frame_count))
    assert [a for a, _ in counts] == [b for _, b in counts]


@torch.no_grad()
def test_a_mark_that_cannot_be_kept_is_an_error(store: Store) -> None:
    x = torch.randn(5, 4)
    precast.mark_dynamic(x, 0)
    with pytest.raises(precast.MarkError, match="marked"):
        precast.compile(picky, store=store)(x)
    y = torch.randn(5, 4)
    precast.maybe_mark_dynamic(y, 0)
    torch.testing.assert_close(precast.compile(picky, store=store)(y), y + 1)


UNBACKED: dict[str, Callable[..., Any]] = {
    "elementwise": scale,
    "reduction": lambda x: x.sum(0) * x.shape[0],
    "softmax": lambda x: x.softmax(0),
    "product": lambda x: x @ torch.ones(4, 3),
    "joined": lambda x: torch.cat([x, x * 2])[1:],
}


@pytest.mark.parametrize("name", UNBACKED)
@pytest.mark.parametrize("rows", [1, 5])
@torch.no_grad()
def test_a_size_of_which_nothing_is_known(store: Store, name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STRICT", "1")
    function, x = UNBACKED[name], torch.randn(rows, 4)
    precast.mark_unbacked(x, 0)
    compiled = precast.compile(function, store=store)
    for y in (x, torch.randn(2, 4), torch.randn(1, 4), torch.randn(7, 4)):
        torch.testing.assert_close(compiled(y), function(y))
    assert sum(tallies._all.values()) == 1
    torch.testing.assert_close(precast.load(function, store=store)(torch.ones(9, 4)), function(torch.ones(9, 4)))


@torch.no_grad()
def test_what_is_said_of_an_unknown_size_holds_at_each_call(store: Store) -> None:
    def in_fours(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] % 4 == 0)
        return x.view(-1, 4, 4).sum(1)

    x, y = torch.randn(8, 4), torch.randn(5, 4)
    precast.mark_unbacked(x, 0)
    precast.mark_unbacked(y, 0, min=2, max=8)
    checked, bounded = precast.compile(in_fours, store=store), precast.compile(scale, store=store)
    for size in (8, 4, 12):
        z = x if size == 8 else torch.randn(size, 4)
        torch.testing.assert_close(checked(z), in_fours(z))
    for size in (6, 7):
        with pytest.raises(RuntimeError):
            checked(torch.randn(size, 4))
    for z in (y, y[:2], torch.randn(9, 4), y[:1]):
        torch.testing.assert_close(bounded(z), scale(z))


def test_wrong_marks_are_refused() -> None:
    with pytest.raises(IndexError, match="dimension 2 of a tensor with 2 dimensions"):
        precast.mark_dynamic(torch.zeros(2, 3), 2)
    with pytest.raises(TypeError, match="not for a int"):
        precast.mark_static(3)  # type: ignore[arg-type]


def test_marks_import_no_tracer() -> None:
    code = """
import sys, torch, precast
x = torch.zeros(3, 4)
precast.mark_dynamic(x, 0, min=2, max=9); precast.maybe_mark_dynamic(x, 1); precast.mark_static(x); precast.mark_unbacked(x, 1)
print([m for m in sys.modules if m.startswith(("torch._dynamo", "sympy"))])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": {0: "rows"}},
        {"x": {0: torch.export.Dim("rows", min=2, max=64)}},
        {"x": (torch.export.Dim.DYNAMIC, None)},
        ({0: {"min": 2, "max": 64}},),
        {"x": {"0": torch.export.Dim.AUTO}},
        [["auto", torch.export.Dim.STATIC]],
    ],
)
@torch.no_grad()
def test_precompile_with_dynamic_shapes_serves_other_sizes(store: Store, shapes: Any) -> None:
    x = torch.randn(5, 4)
    report = precast.precompile(scale, [((x,), {})], dynamic_shapes=shapes, store=store)
    assert report.ok and report.signatures[0].outcome == "compiled"
    assert not vars(x), "the example is as it was"
    loaded = precast.load(scale, store=store)
    for size in (3, 5, 64):
        y = torch.randn(size, 4)
        torch.testing.assert_close(loaded(y), scale(y))
    with pytest.raises(precast.GuardMiss):
        loaded(torch.randn(5, 6))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": {0: "rows"}}, "no argument 'z'; the arguments are x"),
        ({"x": "rows"}, "give a dict of dimension -> mark"),
        ({"x": {0: 2.5}}, "is no mark"),
        (("a", "b"), "2 entries for 1 arguments"),
        (3, "a dict by argument name"),
    ],
)
def test_wrong_dynamic_shapes_are_refused(store: Store, shapes: Any, message: str) -> None:
    with pytest.raises(precast.OptionError, match=message):
        precast.precompile(scale, [((torch.randn(5, 4),), {})], dynamic_shapes=shapes, store=store)
