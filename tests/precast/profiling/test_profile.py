"""`precast profile`: every step of the graphs that ran, with its time, its floor, and the line it comes from."""

from __future__ import annotations

import json
import re
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.building.build_file import Loaded, ProgramSpec
from precast.cli.main import main
from precast.lowering.costs.chips import from_data as chip_from_data
from precast.lowering.costs.chips import to_data
from precast.lowering.costs.records import STEPS, StepRecord, from_json, to_json
from precast.profiling.chip_rates import measured_chip
from precast.profiling.marks import Lost, Recorder
from precast.profiling.peaks import Peaks
from precast.profiling.profiler import Profile, profile
from precast.runtime.common.errors import LoadError
from precast.runtime.executable.library import Library, _loaded, opened
from tests.runtime.hand_made_artifacts import library as hand_made_library
from tests.runtime.hand_made_artifacts import trusted_library


class Net(torch.nn.Module):
    """A product, a slow kernel and a fast one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        x = torch.lgamma(x.abs() + 1)
        return x.softmax(-1)


def loaded(program: Callable[..., Any], *args: Any, **settings: Any) -> Loaded:
    return Loaded(ProgramSpec("app:net", "net", "app", **settings), program, ((args, {}),))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def steps_of(found: Profile) -> list[Any]:
    return [step for graph in found.graphs for step in graph.steps]


def test_steps_sum_up_to_the_call(store: Store) -> None:
    found = profile(loaded(Net().eval(), torch.randn(512, 256)), 1, store, calls=10)
    (graph,) = found.graphs
    assert graph.role == "forward" and graph.runs == 1 and not found.unrecorded
    assert [step.record.kind for step in graph.steps].count("library") == 1
    assert all(step.seconds > 0 and step.least > 0 and step.bound in ("memory", "compute") for step in graph.steps)
    assert 0 < found.in_graphs < 3 * found.recorded and found.outside >= 0
    product = next(step for step in graph.steps if step.record.kind == "library")
    assert product.record.operations == 2 * 512 * 256 * 256 and product.record.products
    assert 0.01 < product.of_peak < 3, "a product runs at a part of what a larger product reaches"


def test_each_step_names_the_line_it_comes_from(store: Store) -> None:
    found = profile(loaded(Net().eval(), torch.randn(64, 256)), 1, store, calls=2)
    lines = "\n".join(line for step in steps_of(found) for line in step.record.sources)
    assert re.search(r"tests/precast/profiling/test_profile\.py:\d+ in forward: x = self\.linear\(x\)", lines), lines
    assert "x = torch.lgamma(x.abs() + 1)" in lines and "return x.softmax(-1)" in lines


def test_the_slowest_step_is_named_by_time(store: Store) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.lgamma(x), y.flip(0).cumsum(0)

    found = profile(loaded(f, torch.rand(400, 1000) + 1, torch.rand(8, 8)), 1, store, calls=6)
    slowest = max(steps_of(found), key=lambda step: step.seconds)
    assert any("lgamma" in name for name in slowest.record.origins)


def test_marks_agree_with_a_clock_outside(store: Store) -> None:
    """The sum of the steps of a graph is the time of the call but for what lies around the graph."""
    compiled = precast.compile(torch.lgamma, store=store)
    x = torch.rand(1000, 1000) + 1
    compiled(x), compiled(x)
    recorder, inside, outside = Recorder(), [], []
    for _ in range(9):
        with recorder.recording() as found:
            began = time.perf_counter()
            compiled(x)
            outside.append(time.perf_counter() - began)
        ((run,),) = found.values()
        inside.append(run.seconds)
    assert statistics.median(inside) == pytest.approx(statistics.median(outside), rel=0.25)


def test_nothing_is_marked_when_nobody_asks(store: Store) -> None:
    compiled = precast.compile(lambda x: x.sin() * 3, store=store)
    x = torch.randn(100)
    recorder = Recorder()
    compiled(x), compiled(x)
    with recorder.recording() as found:
        compiled(x)
        compiled(x)
    assert [len(runs) for runs in found.values()] == [2]
    compiled(x)
    books = recorder._books
    assert sum(book.marks.used for book in books.values()) == 2 * 3, "a run of one step leaves three marks, and only while it is recorded"


def test_more_marks_than_there_is_room_for_are_an_error(store: Store) -> None:
    compiled = precast.compile(lambda x: x.cos() * 3, store=store)
    x = torch.randn(100)
    compiled(x)
    with pytest.raises(Lost, match="there is room for 4"), Recorder(capacity=4).recording():
        compiled(x), compiled(x)
    compiled(x)


def test_libraries_that_leave_no_marks_matter_only_where_they_are_profiled(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have opened what was made by other means, such as by hand."""
    library = Library(trusted_library(tmp_path / "other", hand_made_library()))
    monkeypatch.setitem(_loaded, "other", library)
    found = profile(loaded(Net().eval(), torch.randn(64, 256)), 1, store, calls=3)
    assert found.graphs and not found.unrecorded
    with pytest.raises(LoadError, match="cannot be profiled"), Recorder(needed=frozenset({"other"})).recording():
        pass


def test_forward_and_backward(store: Store) -> None:
    found = profile(loaded(Net().train(), torch.randn(64, 256), train=True), 1, store, calls=3)
    assert sorted(graph.role for graph in found.graphs) == ["backward", "forward"]
    lines = [line for graph in found.graphs if graph.role == "backward" for step in graph.steps for line in step.record.sources]
    assert any("softmax" in line for line in lines), lines


def test_graphs_around_a_break_are_counted_apart(store: Store) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.exp() * 2
        torch._dynamo.graph_break()
        return y.tanh() + 1

    found = profile(loaded(f, torch.randn(50, 50)), 1, store, calls=3)
    assert len(found.graphs) == 2 and {graph.runs for graph in found.graphs} == {1}


def step(operations: int, products: bool) -> StepRecord:
    work = {"read": {"a": 10**6}, "written": {"b": 10**6}, "operations": operations, "arithmetic": "f32", "products": products}
    return StepRecord(kind="kernel", name="k", how="", **work)  # type: ignore[arg-type]


def test_the_least_time_is_of_the_tighter_bound() -> None:
    peaks = Peaks("cpu", bytes=1e9, operations={"f32": 1e10})
    much_data = step(10**6, products=False)
    much_work = step(10**9, products=True)
    assert peaks.least(much_data) == (pytest.approx(2e-3), "memory")
    assert peaks.least(much_work) == (pytest.approx(0.1), "compute")


def test_records_survive_the_blob(store: Store) -> None:
    compiled = precast.compile(lambda x: (x @ x).relu(), store=store)
    compiled(torch.randn(8, 8))
    ((manifest,),) = [store.variants(key) for key in store.programs()]
    data = store.blob(manifest.graphs["forward"].blobs[STEPS])
    assert data is not None
    records = from_json(data)
    assert to_json(records) == data and records and records[0].bytes and records[0].origins
    assert manifest.graphs["forward"].blobs["library"] in opened()
    for wrong in (b"[{}]", b"[1]", b"{", b'{"a": 1}'):
        with pytest.raises(ValueError):
            from_json(wrong)


def test_an_artifact_without_records_is_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    program = loaded(lambda x: x.sin() + x.cos(), torch.randn(10))
    profile(program, 1, store, calls=1)
    monkeypatch.setattr("precast.profiling.profiler.STEPS", "of another precast")
    found = profile(program, 1, store, calls=1)
    assert not found.graphs and found.unrecorded == 1


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "tests.precast.cli.app:net", "--store", str(tmp_path / "store"), "--calls", "2", "--signature", "1"]

    def said(*more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words, *more], prog_name="precast")
        assert ended.value.code == 0
        return capsys.readouterr().out

    text = said("-H", "--top", "0", "--by", "time")
    assert "a call, eager" in text and "GB/s in a copy" in text and "app.py" in text and "OF PEAK" in text, text
    (answer,) = json.loads(said("--json"))
    assert (
        answer["signature"] == 1
        and answer["graphs"][0]["steps"]
        and set(answer["seconds"]) == {"call", "eager", "recorded", "graphs", "outside"}
    )
    rows = [line.split("\t") for line in said("--top", "1").splitlines() if "\t" in line]
    assert len(rows) == 1 and len(rows[0]) == 8
    (foretold,) = json.loads(said("--json", "--chip", "a100"))
    assert foretold["prediction"]["chip"] == "NVIDIA A100" and foretold["prediction"]["median_of_measured"] > 0
    assert foretold["prediction"]["seconds"] == pytest.approx(sum(step["predicted_seconds"] for step in foretold["graphs"][0]["steps"]))
    assert "were to be expected of NVIDIA A100" in said("--chip", "a100")


def test_a_signature_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "tests.precast.cli.app:sine", "--signature", "3", "--store", str(tmp_path)], prog_name="precast")
    assert ended.value.code == 2 and "has 1 signature; there is no 3" in capsys.readouterr().err


def test_rates_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By fewer and shorter runs than a real measurement has."""
    short = {"_LONG": 0.0, "_MOVED_ON_HOST": (1 << 12, 1 << 20), "_SIDES_ON_HOST": (16, 64)}
    for name, value in {**short, "TYPES": {"f32": torch.float32, "f64": torch.float64}}.items():
        monkeypatch.setattr(f"precast.profiling.chip_rates.{name}", value)
    chip = measured_chip("cpu")
    assert chip_from_data(json.loads(json.dumps(to_data(chip)))) == chip and chip.units == torch.get_num_threads()
    assert 0 < chip.call < 1e-3 and 1e7 < chip.memory(1 << 20) < 1e13 and 1e5 < chip.product_rate("f32", 2 * 64**3) < 1e14
    assert all(1e7 < rate < 1e14 for rate in chip.loops.values())


def raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("boom")


def leaves(x: torch.Tensor) -> torch.Tensor:
    raise SystemExit(7)


def factory_of_raises() -> tuple[Callable[..., Any], list[Any]]:
    return raises, [((torch.ones(3),), {})]


def factory_of_leaves() -> tuple[Callable[..., Any], list[Any]]:
    return leaves, [((torch.ones(3),), {})]


@pytest.mark.parametrize(("name", "said"), [("raises", "ValueError: boom"), ("leaves", "SystemExit: 7")])
def test_what_the_program_raises_is_said(name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", f"{__name__}:factory_of_{name}", "--store", str(tmp_path / "s"), "--json"], prog_name="precast")
    assert ended.value.code == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert said in error and f"in {name}" in error and "error of precast" not in error


def test_a_store_that_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "tests.precast.cli.app:sine", "--store", "/proc/x", "--calls", "1", "--json"], prog_name="precast")
    assert ended.value.code == 1 and "/proc" in json.loads(capsys.readouterr().out)["error"]


def first(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 + 1).sum()


def second(y: torch.Tensor) -> torch.Tensor:
    z = y * 3
    return (z + 1).sum()


def test_equal_code_of_two_programs_keeps_its_own_lines(store: Store) -> None:
    for program, line in ((first, "return (x * 3 + 1).sum()"), (second, "return (z + 1).sum()"), (first, "return (x * 3 + 1).sum()")):
        found = profile(loaded(program, torch.rand(64, 64)), 1, store, calls=1)
        lines = [source for step in steps_of(found) for source in step.record.sources]
        assert any(line in source for source in lines) and all(program.__name__ in source for source in lines), lines


def test_neither_arguments_nor_gradients_are_left_changed(store: Store) -> None:
    inner = torch.nn.Linear(8, 8)
    before = torch.ones(8, 8)
    inner.weight.grad = before

    def closes_over(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return inner(x)

    x = torch.zeros(4, 8)
    found = profile(loaded(closes_over, x, train=True), 1, store, calls=2)
    assert [graph.role for graph in found.graphs].count("backward") == 1
    assert x.count_nonzero() == 0 and inner.weight.grad is before and torch.equal(before, torch.ones(8, 8)) and inner.bias.grad is None


class Locked(Net):
    """What cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_what_has_no_copy_is_used_as_it_is(store: Store) -> None:
    computed = torch.randn(16, 256, requires_grad=True).clone()
    found = profile(loaded(Locked().train(), computed, train=True), 1, store, calls=1)
    assert sorted(graph.role for graph in found.graphs) == ["backward", "forward"]


@pytest.mark.slow
def test_the_slowest_five_are_the_slowest_for_torchs_profiler(store: Store) -> None:
    """Of operators that torch's profiler sees one by one, of sizes from thousands of elements to a million."""

    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ordered, top, histogram, spectrum = a.sort(-1)[0], b.topk(5)[0], torch.histc(a, 50), torch.fft.rfft(b)
        return ordered, top, histogram, spectrum, torch.linalg.qr(c)[0], torch.bucketize(b, d[0]), d.kthvalue(7)[0], c.mode(-1)[0]

    args = (torch.randn(512, 2048), torch.randn(128, 1024), torch.randn(64, 64), torch.randn(128, 16).sort(-1)[0])
    found = profile(loaded(f, *args), 1, store, calls=30)
    steps = {step.record.name.partition(".")[0]: step.seconds for step in steps_of(found) if step.record.kind == "operator"}
    assert len(steps) >= 7, steps
    compiled = precast.compile(f, store=store)
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in range(30):
            compiled(*args)
    torchs: dict[str, list[float]] = {name: [] for name in steps}
    for event in seen.events():
        if event.name in torchs:
            torchs[event.name].append(event.time_range.elapsed_us())
    assert all(torchs.values()), "each operator is seen"
    theirs = {name: statistics.median(times) for name, times in torchs.items()}
    fifth = sorted(theirs.values())[-5]
    slowest = sorted(steps, key=lambda name: -steps[name])[:5]
    assert all(theirs[name] >= fifth / 1.5 for name in slowest), (steps, theirs)
