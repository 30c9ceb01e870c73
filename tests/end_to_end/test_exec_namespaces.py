"""Code whose globals are no module's: made by `exec`, torch.fx's graph modules, exported programs, modules that were replaced."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from tests.support.processes import REFUSE, child

SOURCE = """
def h(x):
    return x * K

def f(x):
    return h(x) + K

class Calls:
    def __call__(self, x):
        return h(x) - K
"""
K = 100.0
X = torch.arange(3.0)
NAMES = [None, __name__, "no_such_module", "json"]


def h(x: torch.Tensor) -> torch.Tensor:
    return x - K


def namespace(name: str | None, k: float) -> dict[str, Any]:
    made: dict[str, Any] = {"K": k} if name is None else {"K": k, "__name__": name}
    exec(compile(SOURCE, "<made here>", "exec"), made)
    return made


def agree(function: Callable[..., Any], store: Store, *args: Any) -> None:
    """One call of a callable that is new, and another when the program is loaded."""
    compiled = precast.compile(function, store=store)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), function(*args))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_globals_of_the_entry(name: str | None, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were taken from the module of that name."""
    made = namespace(name, 2.0)
    compiled = precast.compile(made["f"], store=store)
    for k in (2.0, 3.0, 2.0):
        made["K"] = k
        torch.testing.assert_close(compiled(X), X * k + k)
    made["h"] = torch.neg
    torch.testing.assert_close(compiled(X), 2.0 - X)
    monkeypatch.setattr(sys.modules[__name__], "K", 55.0)
    torch.testing.assert_close(compiled(X), 2.0 - X)
    served = precast.load(namespace(name, 3.0)["f"], store=store, require="hit")
    torch.testing.assert_close(served(X), X * 3 + 3)
    other = namespace(name, 2.0)
    other["h"] = torch.exp
    with pytest.raises(precast.GuardMiss, match="the code's own globals"):
        precast.load(other["f"], store=store, require="hit")(X)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_globals_of_inlined_functions(name: str | None, store: Store) -> None:
    made = namespace(name, 2.0)

    def calls(x: torch.Tensor) -> torch.Tensor:
        return made["f"](x) + 1

    def given(o: Any, x: torch.Tensor) -> torch.Tensor:
        return o(x) + 1  # type: ignore[no-any-return]

    for k in (2.0, 3.0):
        made["K"] = k
        agree(calls, store, X)
        agree(given, store, made["Calls"](), X)
    made = namespace(name, 5.0)
    agree(calls, store, X)
    agree(given, store, made["Calls"](), X)


@torch.no_grad()
def test_a_module_that_was_replaced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions go on with the globals that they have, before their first call and after it."""
    modules = [types.ModuleType("replaced_here") for _ in range(2)]
    for module, k in zip(modules, (2.0, 3.0), strict=True):
        module.__dict__.update(K=k)
        exec(compile(SOURCE, "<made here>", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "replaced_here", modules[0])
    compiled = precast.compile(modules[0].f, store=store)
    torch.testing.assert_close(compiled(X), X * 2 + 2)
    monkeypatch.setitem(sys.modules, "replaced_here", modules[1])
    torch.testing.assert_close(compiled(X), X * 2 + 2)
    agree(modules[0].f, store, X)
    agree(modules[1].f, store, X)


class Wave(torch.nn.Module):
    def __init__(self, wave: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.wave = wave

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wave(self.linear(x))


class Around(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1  # type: ignore[no-any-return]


@torch.no_grad()
def test_graph_modules(store: Store) -> None:
    """All classes of graph modules have one name: what tells them apart is the code."""
    graphs = [torch.fx.symbolic_trace(Wave(wave)) for wave in (torch.sin, torch.relu, lambda x: x.cos())]
    for graph in graphs:
        agree(graph, store, X)
        agree(Around(graph), store, X)
        precast.load(graph, store=store, require="hit")(X)
        precast.load(Around(graph), store=store, require="hit")(X)
    around = Around(graphs[0])
    compiled = precast.compile(around, store=store)
    for graph in graphs:
        around.inner = graph
        torch.testing.assert_close(compiled(X), around(X))
    last = next(iter(reversed(graphs[2].graph.find_nodes(op="call_method", target="cos"))))
    last.target = "tan"
    graphs[2].recompile()
    torch.testing.assert_close(compiled(X), around(X))


EXPORTED = (
    REFUSE
    + """
import sys
import torch
import precast

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return {"out": torch.relu(self.linear(x)) + self.shift}

def run(exported, compile):
    model = exported.module()
    compiled = compile(model)
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            assert torch.allclose(compiled(x)["out"], model(x)["out"])

if sys.argv[2] == "build":
    with torch.no_grad():
        rows = torch.export.Dim("rows", min=2, max=64)
        exported = torch.export.export(Model().eval(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: rows}})
    torch.export.save(exported, sys.argv[1] + "/model.pt2")
    run(exported, lambda model: precast.compile(model, store=sys.argv[1], dynamic=True))
else:
    settings = {"store": sys.argv[1], "require": "hit", "options": {"dynamic": "yes"}}
    run(torch.export.load(sys.argv[1] + "/model.pt2"), lambda model: precast.load(model, **settings))
print("done")
"""
)


def test_exported_programs_are_served(tmp_path: Path) -> None:
    """Saved, loaded in a fresh process and served from the store."""
    for role in ("build", "serve"):
        assert child(tmp_path, EXPORTED, str(tmp_path), role).strip().endswith("done")


@torch.no_grad()
def test_torchscript_runs_as_it_is(store: Store) -> None:
    """There is no Python in it; calls went round in circles."""
    model = Wave(torch.sin).eval()
    scripted = torch.jit.trace(model, (X,))  # type: ignore[no-untyped-call]
    for _ in range(2):
        torch.testing.assert_close(precast.compile(scripted, store=store)(X), model(X))


@torch.no_grad()
def test_a_module_without_parameters_yet(store: Store) -> None:
    """Another one of its class has variants, which name parameters that this one has not made."""
    agree(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).eval(), store, X)
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU()).eval()
    compiled = precast.compile(lazy, store=store)
    first = compiled(X)
    torch.testing.assert_close(first, lazy(X))
    torch.testing.assert_close(compiled(X), first)
