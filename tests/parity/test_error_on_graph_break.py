"""error_on_graph_break in every place where it can stand: it raises where torch's does, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

import precast
from precast.artifact_store import Store
from tests.support.processes import cold_then_warm

pytestmark = pytest.mark.usefixtures("fresh_tracer")


def breaks(x: torch.Tensor) -> torch.Tensor:
    print("", end="")
    return x * 2


def _lax(error_on_graph_break: Any) -> Callable[..., Any]:
    return error_on_graph_break(False)(lambda x: breaks(x + 1))


def _strict(error_on_graph_break: Any) -> Callable[..., Any]:
    return error_on_graph_break(True)(lambda x: breaks(x + 1))


def _calls_lax(error_on_graph_break: Any) -> Callable[..., Any]:
    lax = _lax(error_on_graph_break)
    return lambda x: lax(x) * 3


def _calls_strict(error_on_graph_break: Any) -> Callable[..., Any]:
    strict = _strict(error_on_graph_break)
    return lambda x: strict(x) * 3


def _break_behind(error_on_graph_break: Any) -> Callable[..., Any]:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with error_on_graph_break(True):
            y = y * 2
        print("", end="")
        return y

    return program


def _break_inside(error_on_graph_break: Any) -> Callable[..., Any]:
    def program(x: torch.Tensor) -> torch.Tensor:
        with error_on_graph_break(True):
            y = x + 1
            print("", end="")
        return y

    return program


def _allowed_inside(error_on_graph_break: Any) -> Callable[..., Any]:
    def program(x: torch.Tensor) -> torch.Tensor:
        with error_on_graph_break(False):
            y = x + 1
            print("", end="")
            y = y.cos()
        return y

    return program


def _lax_inside_strict(error_on_graph_break: Any) -> Callable[..., Any]:
    lax = _lax(error_on_graph_break)

    def program(x: torch.Tensor) -> torch.Tensor:
        with error_on_graph_break(True):
            return lax(x) + 1

    return program


def _none(error_on_graph_break: Any) -> Callable[..., Any]:
    return breaks


PROGRAMS = (_lax, _strict, _calls_lax, _calls_strict, _break_behind, _break_inside, _allowed_inside, _lax_inside_strict, _none)


def outcome(compiled: Any, plain: Any, error_on_graph_break: Any, outer: bool | None) -> str:
    x = torch.randn(4)
    try:
        if outer is None:
            found = compiled(x)
        else:
            with error_on_graph_break(outer):
                found = compiled(x)
    except RuntimeError:
        return "raises"
    torch.testing.assert_close(found, plain(x))
    return "runs"


@pytest.mark.parametrize("outer", [None, True, False])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__.strip("_"))
def test_raises_where_torchs_does(make: Callable[[Any], Any], outer: bool | None, store: Store) -> None:
    theirs, ours = make(torch._dynamo.error_on_graph_break), make(precast.error_on_graph_break)
    expected = outcome(torch.compile(theirs, backend="eager"), theirs, torch._dynamo.error_on_graph_break, outer)
    assert outcome(precast.compile(ours, store=store), ours, precast.error_on_graph_break, outer) == expected
    torch._dynamo.reset()
    assert outcome(torch.compile(ours, backend="eager"), ours, torch._dynamo.error_on_graph_break, outer) in (expected, "runs")


def test_the_error_says_where_and_what(store: Store) -> None:
    with pytest.raises(precast.GraphBreakError, match=r"has a graph break, which error_on_graph_break forbids here: .*test_error_on_graph"):
        precast.compile(_break_inside(precast.error_on_graph_break), store=store)(torch.zeros(2))


def test_as_an_option(store: Store) -> None:
    options = {"error_on_graph_break": True}
    with pytest.raises(precast.GraphBreakError):
        precast.compile(breaks, store=store, options=options)(torch.zeros(2))
    lax = _lax(precast.error_on_graph_break)
    x = torch.randn(3)
    torch.testing.assert_close(precast.compile(lax, store=store, options=options)(x), lax(x))
    with precast.error_on_graph_break(False):
        torch.testing.assert_close(precast.compile(breaks, store=store, options=options)(x), breaks(x))


def test_only_a_bool_will_do() -> None:
    with pytest.raises(precast.DirectiveError, match="must be a bool"):
        precast.error_on_graph_break("yes")  # type: ignore[arg-type]


WARM = """
import sys, torch, precast

def program(x):
    with precast.error_on_graph_break(False):
        y = x + 1
        print("printed", end=" ")
        y = y.cos()
    return y * 2

x = torch.randn(4)
with torch.no_grad():
    compiled = precast.compile(program, store=sys.argv[1])
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))
print("warm" if "torch._dynamo" not in sys.modules else "cold")
"""


def test_warm_without_the_tracer(tmp_path: Path) -> None:
    printed = ["printed"] * 4
    assert cold_then_warm(tmp_path, "allowing", WARM) == [[*printed, "cold"], [*printed, "warm"]]
