"""Backends other than precast's own behind precast's capture, guards and dispatch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.compiling import foreign_backend
from precast.runtime.api.compile import site_of
from precast.runtime.settings import backends

pytestmark = pytest.mark.filterwarnings("ignore:precast. what the backend")


class Net(torch.nn.Module):
    """A parameter, a mutated buffer, an input handed back, a float argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"y": torch.relu(self.linear(x)) * scale, "same": x}


@pytest.mark.parametrize("name", ["eager", "aot_eager", "inductor", "cudagraphs"])
def test_torch_backends_by_name(name: str, store: Store) -> None:
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    compiled = precast.compile(model, backend=name, store=store, fullgraph=True, dynamic=False)
    with torch.enable_grad():
        for rows in (3, 3, 5, 3, 5):
            x = torch.randn(rows, 8)
            got, want = compiled(x), twin(x)
            torch.testing.assert_close(got["y"], want["y"])
            assert got["same"] is x
        got["y"].sum().backward()
        want["y"].sum().backward()
    torch.testing.assert_close(model.linear.weight.grad, twin.linear.weight.grad)
    assert torch.equal(model.calls, twin.calls)
    torch.testing.assert_close(compiled(x, scale=3.0)["y"], twin(x, scale=3.0)["y"])
    (program,) = site_of(compiled).programs
    assert len(program.variants) == 3, "two shapes with gradients, one call without"
    assert store.programs() == [], "nothing of another backend is stored"


def test_a_callable_gets_the_graph_once_per_guard_set_and_its_result_is_called(store: Store) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def plus_hundred(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        assert len(example_inputs) == len([n for n in gm.graph.nodes if n.op == "placeholder"])
        return lambda *args: [out + 100 for out in gm(*args)]

    weight = torch.randn(4)
    compiled = precast.compile(lambda x: x * weight, backend=plus_hundred, store=store, dynamic=False)
    for rows in (2, 2, 3, 2, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), x * weight + 100)
    assert len(graphs) == 2


def test_mode_and_options_go_to_the_backend_and_limits_stay(store: Store) -> None:
    seen: list[dict[str, Any]] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any], **given: Any) -> Callable[..., Any]:
        seen.append(given)
        return gm.forward

    x = torch.ones(2)
    compiled = precast.compile(lambda x: x + 1, backend=backend, options={"colour": "red", "recompile_limit": 3}, store=store)
    assert compiled(x).tolist() == [2, 2]
    precast.compile(lambda x: x + 2, backend=backend, mode="max-autotune", store=store)(x)
    assert seen == [{"options": {"colour": "red"}}, {"mode": "max-autotune"}]
    assert site_of(compiled).programs[0].options["recompile_limit"] == 3


@pytest.mark.parametrize(("dynamic", "times"), [(True, 1), (None, 2)])
def test_dynamic_shapes(dynamic: bool | None, times: int, store: Store) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    weight = torch.randn(7)
    compiled = precast.compile(lambda x: (x * x.shape[0] + weight)[1:], backend=backend, store=store, dynamic=dynamic)
    for rows in (3, 4, 5, 9, 3):
        x = torch.randn(rows, 7)
        torch.testing.assert_close(compiled(x), (x * rows + weight)[1:])
    assert len(graphs) == times


def test_two_backends_of_one_function_do_not_share_variants(store: Store) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def wrong(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *args: [torch.zeros(1)]

    x = torch.randn(3)
    torch.testing.assert_close(precast.compile(function, store=store)(x), x.sin())
    assert precast.compile(function, backend=wrong, store=store)(x).tolist() == [0.0]
    torch.testing.assert_close(precast.compile(function, backend="eager", store=store)(x), x.sin())
    assert len(store.programs()) == 1


def test_it_says_once_that_nothing_is_stored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_backend, "_told", set())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            compiled = precast.compile(lambda x: x + 1, backend="eager", store=store, dynamic=False)
            compiled(torch.ones(2))
            compiled(torch.ones(3))
    (told,) = [str(w.message) for w in found if "this process only" in str(w.message)]
    assert "'eager'" in told


def test_register_and_list(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr(backends, "_registered", {})

    @precast.register_backend
    def tripled(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *args: [out * 3 for out in gm(*args)]

    @precast.register_backend(name="hidden", tags=("debug",))
    def other(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return gm.forward

    assert {"precast", "inductor", "cudagraphs", "tripled"} <= set(precast.list_backends())
    assert "hidden" not in precast.list_backends() and "eager" not in precast.list_backends()
    assert {"hidden", "eager", "aot_eager"} <= set(precast.list_backends(exclude_tags=()))
    assert precast.compile(lambda x: x + 1, backend="tripled", store=store)(torch.ones(2)).tolist() == [6, 6]
    with pytest.raises(precast.OptionError, match="taken"):
        precast.register_backend(lambda gm, inputs: gm, name="precast")
    with pytest.raises(precast.OptionError, match="taken"):
        precast.register_backend(lambda gm, inputs: gm, name="tripled")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "indutcor"}, "did you mean 'inductor'"),
        ({"backend": "zzz"}, "known here: .*precast"),
        ({"backend": 3}, "wants a name or a callable"),
        ({"backend": "inductor", "options": {"epilogue_fusio": True}}, "did you mean 'epilogue_fusion'"),
        ({"backend": "inductor", "mode": "fastest"}, "fastest"),
        ({"backend": "eager", "mode": "default", "options": {"a": 1}}, "either mode= or options="),
    ],
)
def test_errors_name_what_is_near(given: dict[str, Any], message: str) -> None:
    with pytest.raises(precast.OptionError, match=message):
        precast.compile(lambda x: x, **given)


def test_a_backend_that_fails_raises_as_with_torch_compile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STRICT", "0")

    def broken(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        raise ValueError("no such accelerator")

    with pytest.raises(precast.PrecastError, match="the backend 'broken' failed: ValueError: no such accelerator"):
        precast.compile(lambda x: x + 1, backend=broken, store=store)(torch.ones(2))


def test_inputs_that_share_written_memory(store: Store) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    memory = torch.arange(8.0)
    twin = copy.deepcopy(memory)
    compiled = precast.compile(function, backend="aot_eager", store=store)
    got = compiled(memory[:6], memory[2:])
    torch.testing.assert_close(got, function(twin[:6], twin[2:]))
    assert torch.equal(memory, twin)


def test_what_follows_a_graph_break_goes_to_the_backend_too(store: Store) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("between")
        return y + 1

    compiled = precast.compile(function, backend=backend, store=store)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), function(x))
    assert len(graphs) == 2 and store.programs() == []
