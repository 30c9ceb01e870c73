"""Recorded calls: a call that missed is recorded, built the next night, and hits; what is recorded holds no content of tensors."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import precast
from precast.artifact_store import Store
from precast.artifact_store.statistics import recorded_calls
from precast.artifact_store.statistics.recorded_calls import RecordedCall, append, read
from precast.cli.main import main
from precast.runtime.counting import record_calls
from precast.runtime.counting.signatures import from_data, to_data

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, scale=1.0, parts=()):
        y = self.linear(x) * scale
        for part in parts:
            y = y + part
        return y

def net():
    return Net().eval(), []
"""
BUILD = """
store = "store"
path = ["."]
[[program]]
factory = "recorded_net:net"
options = { dynamic = "no" }
recorded = "calls.jsonl"
"""
SECRET = 0.123456789


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "recorded_net.py").write_text(SOURCE)
    (tmp_path / "build.toml").write_text(BUILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    sys.modules.pop("recorded_net", None)
    with torch.no_grad():
        yield tmp_path
    record_calls.stop()
    sys.modules.pop("recorded_net", None)


def test_a_miss_of_today_hits_tomorrow(folder: Path) -> None:
    module = importlib.import_module("recorded_net")
    store, calls = folder / "store", folder / "calls.jsonl"
    Store.open(store).check_writable()
    x, part = torch.full((3, 8), SECRET), torch.full((3, 8), SECRET).t().contiguous().t()
    net = module.Net().eval()
    precast.record(str(calls))
    with pytest.raises(precast.GuardMiss):
        precast.load(net, store=Store.open(store), options={"dynamic": "no"})(x, 2.0, parts=[part])
    record_calls.stop()
    (call,) = read([calls])
    assert not call.hit and call.entry == "recorded_net:Net" and str(call) == "float32[3, 8], 2.0, parts=[float32[3, 8]]"
    assert "0.123" not in calls.read_text() and SECRET.hex() not in calls.read_text()

    assert "1 compiled" in run("build", folder / "build.toml", "--jobs", 1).stderr
    assert "1 of 1 signature hits" in run("check", folder / "build.toml").stderr
    serving = precast.load(module.Net().eval(), store=Store.open(store), options={"dynamic": "no"})
    precast.record(str(calls))
    assert serving(x, 2.0, parts=[part]).shape == (3, 8)
    record_calls.stop()
    assert [call.hit for call in read([calls])] == [False], "a call that was missed once is to be built"
    shown = json.loads(run("record", calls, "--json").stdout)["calls"]
    assert len(shown) == 1 and shown[0]["program"] == "recorded_net:Net" and shown[0]["unknown"] == []
    assert "No calls recorded" not in run("record", calls, "--misses", "-H").stderr


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_kind_of_call_is_recorded_once(folder: Path) -> None:
    f = precast.compile(lambda x, n: x.sin() + 1, store=Store.open(folder / "s"), options={"recompile_limit": 0})
    precast.record(str(folder / "calls.jsonl"))
    for _ in range(5):
        f(torch.ones(2), 1)
    f(torch.ones(3), 1)
    f(torch.ones(2), 1.0)
    f(torch.ones(2, dtype=torch.float64), 1)
    assert [str(call).partition(",")[0] for call in read([folder / "calls.jsonl"])] == [
        "float32[2]",
        "float32[3]",
        "float32[2]",
        "float64[2]",
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_process_records_so_many_kinds_and_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_calls, "MOST_OF_ONE", 3)
    f = precast.compile(lambda x: x.sin() + 1, store=Store.open(folder / "s"), options={"recompile_limit": 0})
    precast.record(str(folder / "calls.jsonl"))
    for size in range(2, 12):
        f(torch.ones(size))
    assert len(read([folder / "calls.jsonl"])) == 3 and "as many kinds of calls are recorded" in caplog.text


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_recording_that_fails_ends_and_the_call_goes_on(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    f = precast.compile(lambda x: x.sin() + 1, store=Store.open(folder / "s"), options={"recompile_limit": 0})
    (folder / "file").write_text("")
    precast.record(str(folder / "file" / "calls.jsonl"))
    assert torch.equal(f(torch.zeros(2)), torch.ones(2))
    assert "recording calls into" in caplog.text and record_calls.writes.record is None


def _record_some(path: str, first: int) -> None:
    for number in range(first, first + 60):
        call = RecordedCall("p", "p", "k", True, False, False, (number % 80,), {})
        append(recorded_calls.file_for(path), call)


@pytest.mark.parametrize("where", ["calls.jsonl", "calls/"])
def test_many_processes_record_at_once(where: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{where}"
    workers = [multiprocessing.get_context("fork").Process(target=_record_some, args=(path, first)) for first in (0, 20, 40)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(call.args[0] for call in read([Path(path)])) == list(range(80))
    assert len(list(Path(path).glob("*"))) == (3 if where.endswith("/") else 0)


def test_a_call_that_cannot_be_made_again_is_said_and_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    of_net = partial(RecordedCall, "recorded_net:Net", "recorded_net:Net", "k", False, False, False, kwargs={})
    x = to_data(torch.ones(2, 8))
    call, good = of_net((x, to_data(object()))), of_net((x,))
    other = RecordedCall("another", "another", "k", False, False, False, (), {})
    for item in (call, good, other):
        append(folder / "calls.jsonl", item)
    with open(folder / "calls.jsonl", "ab") as file:
        file.write(b'{"v":1,"torn')
    from precast.building.build_file import load
    from precast.building.build_file import read as read_build_file

    plan = read_build_file(str(folder / "build.toml"))
    loaded = load(plan.programs[0], plan.path)
    assert [tuple(args[0].shape) for args, _ in loaded.signatures] == [(2, 8)]
    assert (
        "argument 2: builtins:object" in caplog.text
        and "Give it in the factory" in caplog.text
        and "1 lines are no recorded" in caplog.text
    )


def test_nothing_recorded_yet_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = run("build", folder / "build.toml", "--jobs", 1, code=2)
    assert "returned no signatures, and no calls of it are recorded" in result.stderr and "nothing is recorded yet" in caplog.text


def test_a_command_is_run_and_recorded(tmp_path: Path) -> None:
    code = "import os; print(os.environ['PRECAST_RECORD'])"
    result = run("record", tmp_path / "calls.jsonl", "--json", "--", sys.executable, "-c", code)
    assert json.loads(result.stdout) == {"path": str(tmp_path / "calls.jsonl"), "calls": [], "exit_code": 0}
    run("record", tmp_path / "calls.jsonl", "--", sys.executable, "-c", "raise SystemExit(3)", code=1)
    assert "there is no" in run("record", tmp_path / "absent.jsonl", code=1).stderr
    assert "cannot be run" in run("record", tmp_path / "calls.jsonl", "--", str(tmp_path / "absent"), code=1).stderr


TEXTS = st.text("ab'\\\"é\n", max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.complex_numbers()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(TEXTS, inner, max_size=3))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine that others keep busy
@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    assert repr(from_data(json.loads(json.dumps(to_data(value))))) == repr(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3).t(),
        torch.ones(4, 4)[::2, ::3],
        torch.ones(1).expand(3, 5),
        torch.ones(0, 3),
        torch.ones(()),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.int64),
        torch.ones(2, requires_grad=True),
    ],
)
def test_tensors_come_back_with_their_form_and_zeros(tensor: torch.Tensor) -> None:
    made = from_data(json.loads(json.dumps(to_data(tensor))))
    same = ("shape", "dtype", "requires_grad", "device")
    assert all(getattr(made, name) == getattr(tensor, name) for name in same) and made.stride() == tensor.stride()
    assert not made.any()


@pytest.mark.parametrize(
    "data",
    [
        {"tensor": ["float32", [1 << 40], [1], "cpu", False]},
        {"tensor": ["float32", [2], [-1], "cpu", False]},
        {"tensor": ["load", [2], [1], "cpu", False]},
        {"dtype": "nn"},
        {"unknown": "app:Thing"},
        {"what": 1},
    ],
)
def test_what_cannot_be_made_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        from_data(data)
