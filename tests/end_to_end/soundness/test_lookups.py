"""What an attribute means: each program of lookup_programs.py agrees with eager before, during and after a change, however it is served."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast import torch_backend
from precast.artifact_store import Store
from precast.artifact_store.format.guards import Guard, Predicate
from precast.capture import capture
from tests.end_to_end.soundness.lookup_programs import CASES, Inner, inputs, less

WORKER = Path(__file__).parent / "lookup_worker.py"
Reports = dict[str, dict[str, Any]]
DYNAMIC = [name for name in CASES if name.startswith("a ") or "method" in name]
OF_TORCH = [name for name, case in CASES.items() if case.torch_serves]


def work(store: Path, kind: str, sizes: str, names: list[str]) -> Reports:
    """One report per case, all from one child process."""
    command = [sys.executable, str(WORKER), str(store), kind, sizes, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and len(reports) == len(names), done.stderr[-3000:]
    return {report["name"]: report for report in reports}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lookups")


@pytest.fixture(scope="module")
def cold(stores: Path) -> Reports:
    return work(stores, "cold", "static", list(CASES))


@pytest.fixture(scope="module")
def warm(stores: Path, cold: Reports) -> Reports:
    return work(stores, "warm", "static", list(CASES))


@pytest.fixture(scope="module")
def halves(stores: Path) -> Callable[..., Reports]:
    """The reports of every other of the names, the first with them, or of those between."""

    @functools.cache
    def of(kind: str, sizes: str, first: bool) -> Reports:
        names = DYNAMIC if sizes == "dynamic" else OF_TORCH
        return work(stores, kind, sizes, names[::2] if first else names[1::2])

    return of


def every_other(names: list[str]) -> Any:
    """CI runs every other of them."""
    return pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if n % 2 else []) for n, name in enumerate(names)])


def _judge(name: str, report: dict[str, Any]) -> None:
    assert "failed" not in report, report["failed"]
    if CASES[name].misses is not None:
        assert report["then"] == 0, "what was compiled before the change serves after it"


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name: str, cold: Reports) -> None:
    report, misses = cold[name], CASES[name].misses
    _judge(name, report)
    if misses is not None:
        assert report["compiled"] == 1 + misses
        assert ("fits (" not in report["said"]) == misses
        assert CASES[name].says in report["said"]


@pytest.mark.parametrize("name", CASES)
def test_a_change_before_the_first_call_of_another_process(name: str, cold: Reports, warm: Reports) -> None:
    _judge(name, warm[name])
    if (misses := CASES[name].misses) is not None:
        assert warm[name]["compiled"] == misses


@every_other(DYNAMIC)
def test_a_change_is_noticed_where_sizes_vary(name: str, halves: Callable[..., Reports]) -> None:
    _judge(name, halves("cold", "dynamic", name in DYNAMIC[::2])[name])


@every_other(OF_TORCH)
def test_a_change_is_noticed_at_torchs_own_door(name: str, halves: Callable[..., Reports]) -> None:
    report = halves("torch", "static", name in OF_TORCH[::2])[name]
    assert "failed" not in report, report["failed"]


def lacking(net: torch.nn.Module, x: torch.Tensor) -> dict[Any, Any]:
    """What objects have to lack, by the last steps of their paths."""
    return {guard.path[-1][-1]: guard.constant for guard in capture(net, (x,)).guards if guard.predicate is Predicate.LACKS_OWN}


class Reads(torch.nn.Module):
    """Looks all up that an Inner has; reads its registers themselves for more."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.helper(self.inner.act(x)) * self.inner.scale * self.inner.w


def test_one_guard_an_object_says_what_it_has_to_lack() -> None:
    net = Reads()
    found = lacking(net, inputs()[0])
    assert found["self"] == {"__dict__": ("inner",), "_buffers": ("inner",), "_parameters": ("inner",)}
    assert found["inner"] == {"__dict__": ("act", "helper", "scale", "w"), "_buffers": ("act",), "_parameters": ("act", "scale")}
    assert found["act"] == {"__dict__": ("forward",)}


def test_what_was_not_asked_need_not_be_lacking(store: Store) -> None:
    """A table that holds the name as the call is traced is not what answered: here the registers are read directly."""

    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))
            vars(self)["w"] = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w + next(self.parameters())

    net = Sums()
    assert "w" not in lacking(net, inputs()[0]).get("self", {}).get("__dict__", ())
    compiled = precast.compile(net, store=store)
    for _ in range(3):
        torch.testing.assert_close(compiled(inputs()[0]), net.forward(inputs()[0]))


@pytest.mark.parametrize("door", ["precast", "torch"])
def test_a_name_among_buffers_and_submodules_is_the_buffer(door: str, store: Store, fresh_tracer: None) -> None:
    """As `nn.Module.__getattr__` has it. The tracer takes the submodule, and at torch's own door such a frame is left to eager."""
    net = Reads()
    net.inner._buffers["act"] = torch.tensor(7.0)

    def program(x: torch.Tensor) -> torch.Tensor:
        found = net.inner.act
        return x * found if isinstance(found, torch.Tensor) else found(x) * 2

    x = inputs()[0]
    if door == "precast":
        compiled = precast.compile(program, store=store)
        torch.testing.assert_close(compiled(x), x * 7)
    else:
        compiled = torch.compile(program, backend=functools.partial(torch_backend.precast, store=store))
        with pytest.warns(UserWarning, match="a buffer and a submodule of the name act"):
            torch.testing.assert_close(compiled(x), x * 7)
    del net.inner._buffers["act"]
    torch.testing.assert_close(compiled(x), torch.relu(x) * 2)


def test_kept_weights_are_not_those_that_something_hides(store: Store) -> None:
    """`freeze` packs what the look-up finds."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4)).eval()
    x = inputs()[0]
    compiled = precast.compile(net, store=store, options={"freeze": True})
    for change in (None, ("weight", torch.ones(4, 3)), ("bias", torch.full((4,), 3.0)), None):
        for name in ("weight", "bias"):
            vars(net[0]).pop(name, None)
        if change is not None:
            vars(net[0])[change[0]] = change[1]
        for _ in range(3):
            torch.testing.assert_close(compiled(x), torch.nn.Sequential.forward(net, x))


def test_a_partials_own_attribute_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracer takes a partial for one without any."""
    monkeypatch.delenv("PRECAST_STRICT")
    held = functools.partial(less)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 if hasattr(held, "h") else 3.0)

    x = inputs()[0]
    compiled = precast.compile(program, store=store)
    torch.testing.assert_close(compiled(x), x * 3)
    held.h = 1  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="a functools.partial may have an attribute h"):
        torch.testing.assert_close(compiled(x), x * 2)
    torch.testing.assert_close(compiled(x), x * 2)
    del held.h  # type: ignore[attr-defined]
    torch.testing.assert_close(compiled(x), x * 3)


def test_guard_sets_are_the_same_in_every_order() -> None:
    """Names come sorted, whatever the order of look-ups."""
    (guard,) = (g for g in capture(Reads(), (inputs()[0],)).guards if g.predicate is Predicate.LACKS_OWN and g.path[-1][-1] == "inner")
    assert Guard.from_data(guard.to_data()) == guard
    assert list(guard.constant) == sorted(guard.constant)
    assert all(list(names) == sorted(names) for names in guard.constant.values())
