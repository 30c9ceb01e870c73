"""torch.compile(backend="precast"): torch traces and guards, precast lowers, stores and loads; fresh processes hit."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

from precast import torch_backend
from precast.artifact_store import Store
from precast.artifact_store.maintenance.index import open_index
from precast.compiling import compile_graph

CHILD = Path(__file__).with_name("torch_backend_child.py")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the graphs that were lowered and compiled, and not loaded."""
    found: list[str] = []
    real = compile_graph.compile_graph

    def counted(name: str, *args: Any) -> Any:
        found.append(name)
        return real(name, *args)

    monkeypatch.setattr(compile_graph, "compile_graph", counted)
    return found


def through(store: Store, **given: Any) -> Callable[..., Any]:
    return functools.partial(torch_backend.precast, store=store, **given)


class Net(torch.nn.Module):
    """Weights, a mutated buffer, a literal tensor, views and inputs handed back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 6)
        self.norm = torch.nn.LayerNorm(6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
        self.calls += 1
        y = self.norm(torch.nn.functional.gelu(self.linear(x)))
        return {"y": y * scale + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), "turned": y.t(), "view": x[1:], "same": x, "rows": len(x)}


def test_outputs_views_mutation_and_constants(store: Store, compiles: list[str]) -> None:
    model, twin = Net().eval(), Net().eval()
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=through(store), fullgraph=True, dynamic=False)
    for rows in (3, 3, 5, 3):
        x = torch.randn(rows, 8)
        got, want = compiled(x), twin(x)
        for key in ("y", "turned", "view"):
            torch.testing.assert_close(got[key], want[key])
            assert got[key].stride() == want[key].stride()
        assert got["same"] is x and got["rows"] == rows
        assert got["view"].data_ptr() == x[1:].data_ptr()
    assert torch.equal(model.calls, twin.calls)
    assert compiles == [f"torch.compile:{__name__}.Net.forward"] * 2


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Wrapped(torch.nn.Module):
    @wrapping
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


class Derived(Wrapped):
    """Its forward is another class's."""


class Called:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 5

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * 7


def sevenfold(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 7


def sevenfold_at_once(x: torch.Tensor) -> torch.Tensor:
    return x * 7 + 1


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (lambda: Wrapped(), ["Wrapped.forward"]),
        (lambda: Derived(), ["Derived.forward"]),
        (lambda: torch.nn.Linear(4, 4), ["torch.nn.modules.linear.Linear.forward"]),
        (lambda: torch.nn.Sequential(Wrapped()), ["torch.nn.modules.container.Sequential.forward"]),
        (lambda: Called(), ["Called.__call__"]),
        (lambda: Called().method, ["Called.method"]),
        (lambda: functools.partial(torch.no_grad()(sevenfold)), ["sevenfold", "sevenfold (resumed at line"]),
        (lambda: wrapping(sevenfold_at_once), ["sevenfold_at_once"]),
        (lambda: sevenfold, ["sevenfold", "sevenfold (resumed at line"]),
        (lambda: lambda x: x * 11, ["<lambda>.<locals>.<lambda>"]),
    ],
)
def test_artifacts_are_called_after_the_users_function(
    made: Callable[[], Any], names: list[str], store: Store, compiles: list[str]
) -> None:
    torch.compile(made(), backend=through(store), dynamic=False)(torch.ones(4))
    wanted = [f"torch.compile:{name if name.startswith('torch.') else f'{__name__}.{name}'}" for name in names]
    assert len(compiles) == len(names) and all(found.startswith(name) for found, name in zip(compiles, wanted, strict=True)), compiles
    assert {manifest.program_name for manifest in store.manifests()} == set(compiles)


def test_hits_are_counted(store: Store) -> None:
    for count in (1, 2, 3):
        torch._dynamo.reset()
        torch.compile(sevenfold, backend=through(store), dynamic=False)(torch.ones(4))
        with open_index(store) as index:
            assert [entry.hits for entry in index.entries(store)] == [count, count]


def test_graph_breaks_are_torchs_and_each_graph_is_stored(store: Store, compiles: list[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        if y.sum() > 0:
            return y * 2
        return y.cos()

    compiled = torch.compile(function, backend=through(store), dynamic=False)
    for x in (torch.ones(4), -9 * torch.ones(4), torch.zeros(4)):
        torch.testing.assert_close(compiled(x), function(x))
    assert len(store.programs()) == len(compiles) >= 2
    torch._dynamo.reset()
    again = torch.compile(function, backend=through(store), dynamic=False)
    torch.testing.assert_close(again(torch.ones(4)), function(torch.ones(4)))
    assert len(store.programs()) == len(compiles)


@pytest.mark.parametrize(
    ("other", "hits"),
    [
        ("renamed", True),
        ("other_number", False),
        ("other_operator", False),
        ("other_constant", False),
    ],
)
def test_the_key_is_the_content(other: str, hits: bool, store: Store, compiles: list[str]) -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2 + torch.tensor([1.0, 2.0])

    def renamed(another: torch.Tensor) -> torch.Tensor:
        clipped = torch.relu(another)
        return clipped * 2 + torch.tensor([1.0, 2.0])

    def other_number(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 3 + torch.tensor([1.0, 2.0])

    def other_operator(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2 + torch.tensor([1.0, 2.0])

    def other_constant(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2 + torch.tensor([1.0, 3.0])

    x = torch.randn(2)
    torch.testing.assert_close(torch.compile(first, backend=through(store))(x), first(x))
    second = locals()[other]
    torch.testing.assert_close(torch.compile(second, backend=through(store))(x), second(x))
    assert len(compiles) == (1 if hits else 2)


def test_options_are_in_the_key_and_change_the_code(store: Store, compiles: list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).eval()
    x = torch.randn(32, 64)
    for options in (None, {"epilogue_fusion": False}, {"epilogue_fusion": True}):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=through(store), options=options)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(compiles) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"epilogue_fusio": False}}, "did you mean 'epilogue_fusion'"),
        ({"options": {"freeze": True}}, "use precast.compile"),
        ({"options": {"fullgraph": True}}, r"torch.compile\(fullgraph=True\)"),
        ({"mode": "fastest"}, "unknown mode 'fastest'"),
    ],
)
def test_options_that_do_not_exist_here_are_named(given: dict[str, Any], message: str, store: Store) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        torch.compile(lambda x: x + 1, backend=through(store), **given)(torch.ones(2))


def test_gradients_are_compiled(store: Store) -> None:
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=through(store), dynamic=False)
    with warnings.catch_warnings(record=True) as found, torch.enable_grad():
        warnings.simplefilter("always")
        for rows in (3, 4):
            x = torch.randn(rows, 8)
            compiled(x)["y"].sum().backward()
            twin(x)["y"].sum().backward()
    torch.testing.assert_close(model.linear.weight.grad, twin.linear.weight.grad)
    assert not [w for w in found if "precast" in str(w.message)]
    assert len(store.programs()) == 2
    torch.testing.assert_close(compiled(x)["y"], twin(x)["y"])  # under no_grad: a graph of its own
    assert len(store.programs()) == 3


@pytest.mark.parametrize(("dynamic", "times"), [(True, 1), (None, 2), (False, 4)])
def test_dynamic_shapes_are_as_torch_traces_them(dynamic: bool | None, times: int, store: Store, compiles: list[str]) -> None:
    def function(x: torch.Tensor, n: int) -> tuple[Any, ...]:
        return torch.softmax(x * x.shape[0] + n, dim=-1), x[1:], x.t(), x.shape[0] * 2

    for _ in range(2):  # the second time, as in another process: all of it is in the store
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=through(store), dynamic=dynamic)
        for rows in (3, 4, 5, 9):
            x = torch.randn(rows, 7)
            for got, want in zip(compiled(x, rows), function(x, rows), strict=True):
                torch.testing.assert_close(got, want)
                assert isinstance(got, int) or got.stride() == want.stride()
        assert len(compiles) == len(store.programs()) == times


FLOATS: list[tuple[str, Callable[..., Any], list[tuple[Any, ...]]]] = [
    ("factor", lambda x, a: x * a, [(3.0,), (4.5,), (-0.25,)]),
    ("two", lambda x, a, b: (x + a) * b, [(3.0, 2.0), (1.5, -2.0)]),
    ("in a list", lambda x, a: x * a[0] + a[1], [([3.0, 2.0],), ([4.0, 0.5],)]),
    ("and an int", lambda x, a, n: x * a + n, [(3.0, 2), (4.0, 7)]),
    ("of Python", lambda x, a: x * (a * 2 + 1), [(3.0,), (0.5,)]),
    ("as a fill", lambda x, a: torch.full_like(x, a) + x, [(3.0,), (0.5,)]),
    ("written", lambda x, a: x.mul_(a), [(3.0,), (0.5,)]),
    ("special", lambda x, a: x * a, [(2.5,), (float("inf"),), (float("nan"),), (0.0,)]),
]


@pytest.mark.parametrize("name, program, calls", FLOATS, ids=[row[0] for row in FLOATS])
def test_floats_that_vary(name: str, program: Callable[..., Any], calls: list[tuple[Any, ...]], store: Store) -> None:
    """torch hands the graph a tensor of no dimension for each."""
    x = torch.tensor([1.0, -2.0, 3.0])
    for _ in range(2):  # the second time from the store
        torch._dynamo.reset()
        run = torch.compile(program, backend=through(store), dynamic=True)
        with torch.no_grad():
            for given in calls:
                torch.testing.assert_close(run(x.clone(), *given), program(x.clone(), *given), rtol=0, atol=0, equal_nan=True)


SCALE = 2.0


def test_numbers_that_vary_are_taken_as_they_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch passes a float that varies, of a global or a closure too, as a tensor."""

    def function(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * SCALE + by

    compiled = torch.compile(function, backend=through(store))
    x = torch.randn(3)
    for scale, by in ((2.0, 1.0), (5.0, 1.0), (8.5, 3.0), (-0.25, 1e3)):
        monkeypatch.setitem(globals(), "SCALE", scale)
        torch.testing.assert_close(compiled(x, by), function(x, by))


def test_branches_inside_the_graph(store: Store, compiles: list[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))

    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 3, (x,))

    for called in (function, other):
        compiled = torch.compile(called, backend=through(store))
        for x in (torch.ones(5), -torch.ones(5)):
            torch.testing.assert_close(compiled(x), called(x))
    assert len(compiles) == len(store.programs()) == 2, "what is in the branches is in the key"


def test_a_damaged_library_is_compiled_again_or_runs_as_traced(store: Store, compiles: list[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 3

    x = torch.randn(5)
    torch.compile(function, backend=through(store))(x)
    (key,) = store.programs()
    (manifest,) = store.variants(key)
    library = store.blob_path(manifest.graphs["forward"].library)
    assert library is not None
    damaged = library.read_bytes()[:-1] + b"?"
    library.unlink()  # this process has the file mapped: writing into it would take its relocated pages away
    library.write_bytes(damaged)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.compile(function, backend=through(Store.open(store.root)))(x), function(x))
    assert len(compiles) == 2, "what is damaged is not loaded"


def test_store_results_off_stores_nothing(store: Store) -> None:
    compiled = torch.compile(lambda x: x.cos(), backend=through(store), options={"store_results": False})
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), x.cos())
    assert store.programs() == []


def test_a_fresh_process_hits_by_name_and_compiles_nothing(tmp_path: Path) -> None:
    """Through the registered name, in two processes; the second may import neither code generation nor the compiler's driver."""
    outcomes = [_child(tmp_path, refuse) for refuse in (False, True)]
    cold, warm = (json.loads(outcome) for outcome in outcomes)
    assert cold["compiled"] > 0 and warm["compiled"] == 0
    assert warm["graphs"] == cold["graphs"] > 1, "torch traced in both"
    assert cold["values"] == pytest.approx(warm["values"], rel=1e-6)


def _child(store: Path, refuse: bool) -> str:
    environment = {**os.environ, "PRECAST_STORE": str(store), "PRECAST_STRICT": "1", "REFUSE": str(int(refuse))}
    done = subprocess.run([sys.executable, str(CHILD)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_the_entry_point_is_declared_and_names_the_backend() -> None:
    import tomllib

    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"precast": "precast.torch_backend:precast"}
    installed = [e for e in entry_points(group="torch_dynamo_backends") if e.name == "precast"]
    for entry in installed:
        assert entry.load() is torch_backend.precast


@pytest.mark.parametrize("dynamic", [True, None])
def test_floats_that_vary_are_numbers(dynamic: bool | None, store: Store, compiles: list[str]) -> None:
    """torch hands a graph its symbolic floats as tensors; the compiled graph takes the numbers."""

    def program(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
        return (x * a + b) / (a - b)

    x, times = torch.randn(3, 4), []
    given = [(2.0, 3.0), (6.5, -1.25), (7.0, 1e30), (1e-40, 0.5), (float("inf"), 1.0), (float("nan"), 1.0), (0.0, -2.0), (-0.0, 2.0)]
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(program, backend=through(store), dynamic=dynamic)
        for a, b in given:
            torch.testing.assert_close(compiled(x, a, b), program(x, a, b), equal_nan=True)
        times.append(len(compiles))
    assert times[0] == times[1] > 0, "found in the store the second time"
