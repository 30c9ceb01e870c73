"""Directives of torch.compiler that are no functions of precast's: each by precast.compile and by torch.compile(backend="precast"), beside
what they do under torch.compile with a backend that changes nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

import precast
from precast.artifact_store import Store
from precast.capture.dynamo import directives as told
from precast.runtime.api.compile import site_of
from precast.torch_backend import precast as backend

pytestmark = pytest.mark.usefixtures("fresh_tracer")
X = torch.randn(4, 4)


@pytest.fixture
def doors(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[[Any], Any]]]:
    """How a program is compiled by precast: its own door, and torch's."""
    monkeypatch.setenv("PRECAST_STORE", str(store.root))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="precast: .* runs eagerly")
        yield {
            "precast": lambda program: precast.compile(program, store=store, fullgraph=True),
            "torch": lambda program: torch.compile(program, backend=backend, fullgraph=True),
        }


def needs(name: str) -> Any:
    """The directive, or a skip where this torch has none of the name."""
    found = getattr(torch.compiler, name, None) or getattr(torch._dynamo, name, None)
    return found if found is not None else pytest.skip(f"this torch has no {name}")


def eager(program: Any) -> Any:
    return torch.compile(program, backend="aot_eager", fullgraph=True)


# -- nested_compile_region


class Block(torch.nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.linear, self.by = torch.nn.Linear(4, 4), by

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * self.by


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(by) for by in (2.0, 2.0, 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) + x
        return x


@torch.no_grad()
@pytest.mark.parametrize("door", ["precast", "torch"])
def test_nested_compile_region(door: str, doors: dict[str, Callable[[Any], Any]]) -> None:
    """The regions are parts of the graph, each with its own weights and constants. A constant that changes in one of them counts; where
    torch traces, it does or does not, as with any backend: torch guards the first of equal regions.
    """
    model = Stack()
    compiled, reference = doors[door](model), eager(model)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), model(X))
    torch.testing.assert_close(reference(X), model(X))
    model.blocks[1].by = 5.0
    torch.testing.assert_close(compiled(X), model(X) if door == "precast" else reference(X))


# -- wrap_numpy, nonstrict_trace


def squares(a: Any) -> Any:
    return numpy.sum(a * a, axis=0) + 1


@torch.no_grad()
@pytest.mark.parametrize("door", ["precast", "torch"])
def test_wrap_numpy(door: str, doors: dict[str, Callable[[Any], Any]]) -> None:
    wrapped = needs("wrap_numpy")(squares)
    expected = eager(wrapped)(X)
    assert isinstance(expected, torch.Tensor)
    compiled = doors[door](wrapped)
    for x in (X, X + 1):
        torch.testing.assert_close(compiled(x), (x * x).sum(0) + 1)
    torch.testing.assert_close(compiled(X), expected)


@torch.no_grad()
@pytest.mark.parametrize("door", ["precast", "torch"])
def test_nonstrict_trace(door: str, doors: dict[str, Callable[[Any], Any]], store: Store) -> None:
    """One graph with what the function does. It runs unread, so that the artifact of a frame could not tell when it is edited: none is
    stored; a graph that torch traced is known by its operators.
    """

    @needs("nonstrict_trace")
    def unread(x: torch.Tensor, by: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
        torch._dynamo.graph_break()
        return x * by["by"], x + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        first, second = unread(x.sin(), {"by": 3})
        return first + second

    counter = CompileCounter()
    torch.testing.assert_close(torch.compile(program, backend=counter, fullgraph=True)(X), program(X))
    assert counter.frame_count == 1
    compiled = doors[door](program)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), program(X))
    assert len([*store.manifests()]) == (door == "torch")


# -- set_default_backend


@torch.no_grad()
def test_set_default_backend(doors: dict[str, Callable[[Any], Any]], store: Store) -> None:
    """torch.compile without a backend is compiled by precast then; precast.compile is by precast whatever torch's default is."""
    set_default, get_default = needs("set_default_backend"), needs("get_default_backend")
    before = get_default()
    graphs: list[Any] = []

    def noted(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return backend(gm, inputs)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu()

    try:
        set_default(noted)
        torch.testing.assert_close(torch.compile(program)(X), program(X))
        assert len(graphs) == 1
        compiled = precast.compile(program, store=store)
        torch.testing.assert_close(compiled(X), program(X))
        assert len(graphs) == 1 and len(site_of(compiled).programs[0].variants) == 1
        with pytest.raises(Exception, match="nonexistent"):
            set_default("nonexistent")
            torch.compile(lambda x: x - 1)(X)
    finally:
        set_default(None if before == "inductor" else before)
    assert get_default() == before


# -- set_enable_guard_collectives


@torch.no_grad()
def test_guard_collectives_are_torchs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """precast.compile says once that it does not act on them; the answers are right, and torch's switch stays as it is."""
    switch = needs("set_enable_guard_collectives")
    monkeypatch.setattr(told, "_told_of_collectives", [])
    assert switch(True) is False
    try:
        with pytest.warns(UserWarning, match="set_enable_guard_collectives is on") as said:
            for size in (2, 3):
                x = torch.randn(size)
                torch.testing.assert_close(precast.compile(lambda x: x * 3, store=store, dynamic=False)(x), x * 3)
        assert len([w for w in said if "guard_collectives" in str(w.message)]) == 1
        assert switch(True) is True
    finally:
        switch(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(precast.compile(lambda x: x * 5, store=store)(X), X * 5)


# -- all of it, warm

WARM = """
import sys, torch, precast

@torch.compiler.nested_compile_region
def part(x):
    return torch.relu(x) * 2

brought = "torch._dynamo" in sys.modules

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return part(self.linear(x))

with torch.no_grad():
    net, x = Net(), torch.randn(2, 4)
    wanted = part(net.linear(x))
    torch.testing.assert_close(precast.compile(net, store=sys.argv[1], fullgraph=True)(x), wanted)
print("brought" if brought else "cold" if "torch._dynamo" in sys.modules else "warm")
"""


def test_a_region_is_served_by_a_process_without_the_tracer(tmp_path: Path) -> None:
    """`nested_compile_region` imports the tracer in some versions of torch; then all that can be said is that the artifact is served."""
    (tmp_path / "regions.py").write_text(WARM)
    where, said = {**os.environ, "PYTHONPATH": str(tmp_path)}, []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", "import regions", str(tmp_path / "store")], capture_output=True, text=True, env=where, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said.append(done.stdout.strip())
    assert said in (["cold", "warm"], ["brought", "brought"])
