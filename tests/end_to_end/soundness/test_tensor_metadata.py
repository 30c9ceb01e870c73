"""Tensors that are given other data, or whose shape and strides change in place, by traced code and between calls: eager's answer.

The programs of metadata_programs.py run by both doors, with static and with symbolic sizes, and again from the store in a fresh process.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast import torch_backend
from precast.artifact_store import Store
from precast.compiling import torch_graphs
from precast.runtime.common.errors import PrecastError
from precast.runtime.targets.versions import torch_minor
from tests.end_to_end.soundness.metadata_programs import CASES

WORKER = Path(__file__).parent / "metadata_worker.py"
SOME = list(CASES)[::3]
Reports = dict[tuple[str, bool], dict[str, Any]]


def work(store: Path, kind: str, names: Iterable[str] = ()) -> Reports:
    """One report per case (all, where none is named) and kind of sizes, all from one child process."""
    command = [sys.executable, str(WORKER), str(store), kind, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and reports, done.stderr[-3000:]
    return {(report["name"], report["dynamic"]): report for report in reports}


@pytest.fixture(scope="module")
def store_of_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metadata")


def asked(often: bool) -> list[str]:
    """What CI asks for, which is a third of the cases with symbolic sizes; or the rest."""
    if often:
        return [name if name in SOME else f"{name}/static" for name in CASES]
    return [f"{name}/dynamic" for name in CASES if name not in SOME]


@pytest.fixture(scope="module")
def cold(store_of_programs: Path) -> Callable[[bool], Reports]:
    return functools.cache(lambda often: work(store_of_programs, "cold", asked(often)))


@pytest.fixture(scope="module")
def warm(store_of_programs: Path, cold: Callable[[bool], Reports]) -> Callable[[bool], Reports]:
    @functools.cache
    def of(often: bool) -> Reports:
        cold(often)
        return work(store_of_programs, "warm", asked(often))

    return of


@pytest.fixture(scope="module")
def by_torch(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Reports]:
    """The reports of a third of the cases, or of the others."""

    @functools.cache
    def of(some: bool) -> Reports:
        return work(tmp_path_factory.mktemp("metadata_torch"), "torch", [name for name in CASES if (name in SOME) == some])

    return of


REFUSED = ("assigned_then_written",)
"""Parts of these run eagerly, with the reason: two tensors share memory by then, and one is written."""

sizes = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def is_often(name: str, dynamic: bool) -> bool:
    """Whether CI runs it."""
    return not dynamic or name in SOME


def case(name: str, dynamic: bool) -> Any:
    marks = [] if is_often(name, dynamic) else [pytest.mark.slow]
    return pytest.param(name, dynamic, id=f"{'dynamic' if dynamic else 'static'}-{name}", marks=marks)


every_program = pytest.mark.parametrize("name, dynamic", [case(name, dynamic) for dynamic in (False, True) for name in CASES])


@every_program
def test_compiled_equals_eager(name: str, dynamic: bool, cold: Callable[[bool], Reports]) -> None:
    report = cold(is_often(name, dynamic))[name, dynamic]
    assert report["failed"] is None, report["failed"]


@every_program
def test_served_from_the_store_equals_eager(name: str, dynamic: bool, warm: Callable[[bool], Reports]) -> None:
    report = warm(is_often(name, dynamic))[name, dynamic]
    if name in REFUSED:
        assert "GuardMiss" in report["failed"], "what is refused is not in the store"
    else:
        assert report["failed"] is None, report["failed"]
    assert report["attempts"] == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in SOME else [pytest.mark.slow]) for name in CASES])
@sizes
def test_by_torchs_door_equals_eager(name: str, dynamic: bool, by_torch: Callable[[bool], Reports]) -> None:
    report = by_torch(name in SOME)[name, dynamic]
    assert report["failed"] is None, report["failed"]


# -- what is refused, and what is not


def turned(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    y.unsqueeze_(0)
    return y + 1, y.shape, y.stride()


def assigning(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    return x + 1, x.shape


def turning_its_argument(x: torch.Tensor) -> Any:
    y = x.mul_(2)
    y.t_()
    return x + 1


def resizing_its_result(x: torch.Tensor) -> Any:
    out = torch.zeros(7)
    torch.mul(x, x, out=out)
    return out


def giving_memory_back(x: torch.Tensor) -> Any:
    x.untyped_storage().resize_(0)
    return x.shape


def test_in_place_views_of_own_tensors_stay_in_one_graph(store: Store) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    got, want = precast.compile(turned, store=store, fullgraph=True)(x), turned(x)
    assert got[1:] == want[1:] == ((1, 3, 2), (3, 1, 3))
    torch.testing.assert_close(got[0], want[0], check_stride=True)
    torch._dynamo.reset()
    assert torch.compile(turned, backend=torch_backend.precast, fullgraph=True)(x)[1:] == want[1:]


ASSIGNED = "set_" if torch_minor() < "2.14" else "`.data =`"
"""How a trace writes that data is assigned."""


@pytest.mark.parametrize(
    ("program", "args", "says"),
    [
        (assigning, lambda: (torch.ones(3), torch.ones(4)), f"other memory, or another amount of it (by {ASSIGNED})"),
        (turning_its_argument, lambda: (torch.ones(2, 3),), "a tensor that the graph is given change in place (by t_)"),
        (resizing_its_result, lambda: (torch.ones(3),), "changes the size of a tensor that it is given (by mul)"),
        (giving_memory_back, lambda: (torch.ones(3),), "(by untyped_storage().resize_)"),
    ],
)
def test_whole_graphs_are_refused_with_the_line(program: Callable[..., Any], args: Callable[[], Any], says: str, store: Store) -> None:
    with pytest.raises(PrecastError) as caught:
        precast.compile(program, store=store, fullgraph=True)(*args())
    assert says in str(caught.value)
    line = program.__code__.co_firstlineno + (2 if program in (turning_its_argument, resizing_its_result) else 1)
    assert f"{Path(__file__).name}:{line}" in str(caught.value)


def test_what_surrounds_an_assignment_is_compiled(store: Store) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = (x + 1).sin()
        x.data = y
        return z, (x * 2).cos(), x.numel()

    report = precast.explain(precast.compile(program, store=store))(torch.ones(3), torch.ones(4))
    assert "2 graphs, 1 graph break" in str(report) and "other memory" in str(report), report


def test_a_backend_around_precasts_runs_such_frames_as_written(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """torch traces for that backend as it does for all others, with the shapes from before."""
    monkeypatch.setattr(torch_graphs, "_warned", set())

    def around(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return torch_backend.precast(gm, example_inputs, store=store)

    torch._dynamo.reset()
    x = torch.arange(6.0).reshape(2, 3)
    with pytest.warns(UserWarning, match="runs as written: t_ changes a tensor's shape"):
        got = torch.compile(turned, backend=around)(x)
    assert got[1:] == turned(x)[1:]


def test_other_backends_trace_as_before() -> None:
    """Not better either: what torch does there is torch's."""
    torch._dynamo.reset()
    x = torch.arange(6.0).reshape(2, 3)
    plain = subprocess.run([sys.executable, "-c", _PLAIN], capture_output=True, text=True, timeout=300, check=True).stdout
    assert str(list(torch.compile(_shape_of_turned, backend="eager")(x))) == plain.strip()


def _shape_of_turned(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    return y.shape


_PLAIN = """
import torch
def f(x):
    y = x * 2
    y.t_()
    return y.shape
print(list(torch.compile(f, backend="eager")(torch.zeros(2, 3))))
"""


# -- changed between calls, outside of what is compiled


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.arange(3.0))
        self.weight = torch.nn.Parameter(torch.arange(3.0) + 2, requires_grad=False)

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.buffer + self.weight.sum(), self.weight.shape, self.buffer.stride()


def _swapped(name: str, size: int) -> Callable[[Net], None]:
    def change(net: Net) -> None:
        old = getattr(net, name)
        new = torch.arange(float(size)) + 50
        torch.utils.swap_tensors(old, torch.nn.Parameter(new, requires_grad=False) if isinstance(old, torch.nn.Parameter) else new)

    return change


def _loaded(net: Net) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net.load_state_dict({name: value * 2 + 1 for name, value in net.state_dict().items()})
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def _data(name: str, new: Callable[[], torch.Tensor]) -> Callable[[Net], None]:
    return lambda net: setattr(getattr(net, name), "data", new())


CHANGES: dict[str, Callable[[Net], Any]] = {
    "equal size": _data("buffer", lambda: torch.arange(3.0) + 7),
    "one element": _data("buffer", lambda: torch.full((1,), 5.0)),
    "strided": _data("buffer", lambda: torch.arange(6.0)[::2]),
    "expanded": _data("buffer", lambda: torch.ones(1).expand(3)),
    "dtype": _data("buffer", lambda: torch.arange(3.0).double()),
    "parameter": _data("weight", lambda: torch.arange(5.0)),
    "offset": lambda net: net.buffer.set_(torch.arange(9.0).untyped_storage(), 4, (3,), (1,)),
    "smaller": lambda net: net.weight.resize_(2),
    "larger": lambda net: net.weight.resize_(7).fill_(3),
    "more memory": lambda net: net.buffer.untyped_storage().resize_(4000),
    "another dimension": lambda net: net.buffer.unsqueeze_(0),
    "swapped": _swapped("weight", 4),
    "swapped for an equal one": _swapped("buffer", 3),
    "loaded by swapping": _loaded,
}


@pytest.mark.parametrize("options", [{}, {"dynamic": "yes"}, {"freeze": True}], ids=["static", "dynamic", "freeze"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_between_calls(change: str, options: dict[str, Any], store: Store, native_store: Store) -> None:
    plain, net = Net(), Net()
    compiled = precast.compile(net, store=store, options=options)
    for number in range(7):
        if number == 3:  # by then a guard table decides
            CHANGES[change](plain)
            CHANGES[change](net)
        x = torch.arange(3.0) + number
        got, want = compiled(x), plain(x)
        assert got[1:] == want[1:]
        torch.testing.assert_close(got[0], want[0], rtol=0, atol=0, check_stride=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_argument_changed_between_calls(dynamic: bool | None, store: Store, native_store: Store) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2 + 1, y.sum(), x.shape, x.stride()

    compiled = precast.compile(program, store=store, dynamic=dynamic)
    x, y = torch.arange(6.0).reshape(2, 3), torch.ones(4)
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: None,
        lambda: setattr(x, "data", torch.arange(4.0).reshape(2, 2)),
        lambda: x.t_(),
        lambda: setattr(x, "data", y),
        lambda: y.resize_(2),
        lambda: setattr(y, "data", torch.arange(12.0)[::3]),
        lambda: torch.utils.swap_tensors(x, y),
    ]
    for change in changes:
        change()
        got, want = compiled(x, y), program(x, y)
        assert got[2:] == want[2:]
        for mine, theirs in zip(got[:2], want[:2], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, check_stride=True)
