"""`precast tune` without a GPU: an injected measurement answers; records, resuming, builds that use them, artifacts that are outdated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from precast.artifact_store import Store
from precast.building.build_file import Loaded, ProgramSpec
from precast.building.build_job import Job
from precast.building.tune import Captured, Tuned, capture, outdated, rebuild, tune
from precast.codegen.common.measure import Record
from precast.codegen.cuda.benchmarking import Lab, decide
from precast.codegen.cuda.tuning import CudaChooser, Problem, candidates, kernel_key, tiling_name, tiling_of
from precast.codegen.triton.render.render import render
from precast.codegen.triton.render.tiling import Tiling
from precast.compiling.build_graph import keep_choices, known_choices
from precast.lowering.analysis.traits import SM_90
from precast.lowering.ir.nodes import Kernel
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from tests.ops.trace import trace

TARGET = "cuda:sm_90"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.nn.functional.gelu(x) + 1).softmax(0)


def loaded(name: str, rows: int = 24) -> Loaded:
    spec = ProgramSpec("tests.precast.cli.test_tune:Net", name, name, targets=(TARGET,))
    return Loaded(spec, Net().eval(), (((torch.randn(rows, 96),), {}),))


JOBS = (loaded("one"), loaded("same"), loaded("other", rows=40))


class Measure:
    """Says that the last candidate is twice as fast, and notes what it was asked."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.asked: list[str] = []
        self.dies_after = dies_after

    def __call__(self, problem: Problem) -> Record:
        if self.dies_after is not None and len(self.asked) >= self.dies_after:
            raise KeyboardInterrupt
        self.asked.append(problem.key)
        names = [problem.default, *problem.kernels]
        return {"winner": names[-1], "us": {problem.default: 2.0, names[-1]: 1.0}}


def run(store: Store, measure: Any, budget: float = 60, **options: Any) -> Tuned:
    return tune(JOBS, store, TARGET, measure, budget=budget, say=lambda text: None, **options)


@pytest.fixture(scope="module")
def captured() -> tuple[list[Captured], list[str]]:
    """The programs of `JOBS`, captured once for all tests."""
    return capture(JOBS, TARGET, lambda text: None)


@pytest.fixture
def store(captured: tuple[list[Captured], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store."""
    monkeypatch.setattr("precast.building.tune.capture", lambda *_: captured)
    return Store.open(tmp_path / "store")


def test_what_is_measured_is_kept_and_known_the_next_time(store: Store) -> None:
    measure = Measure()
    first = run(store, measure)
    assert first.count("measured") == len(measure.asked) >= 2 and not first.failures
    assert set(known_choices(store, TARGET)) == set(measure.asked)
    assert store.record_names("tuning") == ["cuda-sm_90"]
    second = run(store, measure)
    assert second.count("known") == first.count("measured") == len(measure.asked)
    assert run(store, measure, again=True).count("measured") == first.count("measured")


def test_an_interrupted_run_goes_on_where_it_stopped(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(store, Measure(dies_after=1))
    assert len(known_choices(store, TARGET)) == 1
    rest = run(store, Measure())
    assert rest.count("known") == 1 and rest.count("measured") >= 1


def test_answers_of_other_runs_stay(store: Store) -> None:
    keep_choices(store, TARGET, {"gemm of another program": {"winner": "split", "us": {}}})
    run(store, Measure())
    assert known_choices(store, TARGET)["gemm of another program"]["winner"] == "split"


def test_without_time_nothing_is_measured(store: Store) -> None:
    measure = Measure()
    tuned = run(store, measure, budget=0)
    assert not measure.asked and tuned.count("left") == len(tuned.questions) > 0


def test_a_problem_that_cannot_be_measured_is_told_and_the_others_go_on(store: Store) -> None:
    plain = Measure()

    def measure(problem: Problem) -> Record:
        if not plain.asked:
            plain.asked.append(problem.key)
            raise RuntimeError("no such instruction")
        return plain(problem)

    tuned = run(store, measure)
    assert tuned.count("failed") == 1 and tuned.count("measured") == len(tuned.questions) - 1
    assert next(q for q in tuned.questions if q.status == "failed").reason == "no such instruction"


def test_equal_kernels_are_asked_once(store: Store) -> None:
    asked = [{name for name, _ in q.asked} for q in run(store, Measure()).questions]
    assert {"one", "same"} in asked and {"other"} in asked and all(("one" in names) == ("same" in names) for names in asked)


def test_builds_use_the_records_and_say_so(store: Store) -> None:
    job = Job(JOBS[0], store)
    before = job.build(1, TARGET)
    assert before.status == "compiled", before.reason
    made = store.get(before.artifact or "")
    assert made is not None and not made.evidence["choices"]
    tuned = run(store, Measure())
    mine = {q.problem.key: q.answer for q in tuned.questions if ("one", 1) in q.asked}
    old = outdated([job.loaded], store, tuned)
    assert [(o.artifact, o.signature) for o in old] == [(before.artifact, 1)] and old[0].choices == len(mine)
    after = rebuild(store, old[0], TARGET)
    assert after.artifact == before.artifact and not outdated([job.loaded], store, tuned)
    again = store.get(after.artifact or "")
    assert again is not None
    assert {k: v["winner"] for k, v in again.evidence["choices"].items()} == mine
    images = [{k: v for k, v in m.graphs["forward"].blobs.items() if k.startswith("image")} for m in (made, again)]
    assert images[0] != images[1], "other tilings are other machine code"


def _kernels(rows: int, dtype: torch.dtype) -> list[tuple[Kernel, Any]]:
    graph, _ = trace(lambda x: x.exp().sum(-1) * 2, (torch.randn(rows, 64).to(dtype),))
    program = schedule(lower(graph, "row"), TARGET)
    return [(s, program.buffers) for s in program.steps if isinstance(s, Kernel)]


def test_keys_tell_sizes_and_types_apart_and_nothing_else() -> None:
    def key(rows: int, dtype: torch.dtype) -> list[str]:
        return [kernel_key(k) for s, b in _kernels(rows, dtype) for k in render(s, b, Tiling(8))]

    assert key(8, torch.float32) == key(8, torch.float32)
    assert len({*key(8, torch.float32), *key(800, torch.float32), *key(8, torch.bfloat16)}) == 3 * len(key(8, torch.float32))


def test_a_record_of_another_version_is_of_no_use() -> None:
    (kernel, buffers), *_ = _kernels(8, torch.float32)
    asked: list[Problem] = []

    def note(problem: Problem) -> None:
        asked.append(problem)

    CudaChooser(measure=note).tilings(kernel, buffers)
    good = tiling_name(candidates(Tiling(4), SM_90)[0])
    for winner, usable in ((good, True), ("xblock=4", False), (good + " more=1", False), (good.replace("=", "=x", 1), False)):
        chooser = CudaChooser({asked[0].key: {"winner": winner, "us": {}}})
        assert (chooser.tilings(kernel, buffers)[0] is not None) == usable == bool(chooser.used)


def test_picking_a_library_call() -> None:
    def never() -> dict[str, Any]:
        raise AssertionError("candidates are made for measuring only")

    record = {"winner": "split", "us": {}}
    assert CudaChooser().pick("k", never, "plain") == "plain"
    chooser = CudaChooser({"k": record})
    assert chooser.pick("k", never, "plain") == "split" and chooser.used == {"k": record}
    assert CudaChooser({"k": record}).pick("k", never, "plain", names=("plain", "padded")) == "plain"
    seen: list[Problem] = []

    def measure(problem: Problem) -> Record:
        seen.append(problem)
        return record

    measuring = CudaChooser(measure=measure)
    assert [measuring.pick("k", never, "plain") for _ in range(2)] == ["split", "split"] and len(seen) == 1


def test_tilings_have_names() -> None:
    for tiling in (Tiling(4), *candidates(Tiling(8, num_warps=2), SM_90)):
        assert tiling_of(tiling_name(tiling)) == tiling


def _variants(fn: Callable[[torch.Tensor], torch.Tensor], width: int) -> dict[str, str]:
    """The sources of all candidates, by name."""
    graph, _ = trace(fn, (torch.randn(64, width),))
    program = schedule(lower(graph, "row"), TARGET)
    asked: list[Problem] = []
    for step in program.steps:
        if isinstance(step, Kernel):
            CudaChooser(measure=asked.append).tilings(step, program.buffers)
    return {name: kernel.source for problem in asked for name, kernel in problem.kernels.items()}


def test_loops_are_tried_with_several_stages() -> None:
    """A long row is read by a loop, whose loads may run ahead; the choice without a record has one stage."""
    variants = _variants(lambda x: x.exp().sum(-1), 40_000)
    stages = {tiling.num_stages for name in variants if (tiling := tiling_of(name)) is not None}
    assert stages == {1, 2, 3, 4}
    for name, source in variants.items():
        tiling = tiling_of(name)
        assert tiling is not None and tiling_name(tiling) == name
        assert ("tl.range(" in source) == (tiling.num_stages > 1) and (
            tiling.num_stages == 1 or f"num_stages={tiling.num_stages})" in source
        )
    assert next(iter(variants)).count("num_stages=1") == 1, "the default"


def test_what_has_no_loop_has_no_stages() -> None:
    names = list(_variants(lambda x: x.exp() + 1, 512))
    assert len(names) > 2 and all("num_stages=1 " in name for name in names)


def test_candidates_are_possible_and_different() -> None:
    found = candidates(Tiling(1024, num_warps=4), SM_90)
    assert len(found) == len(set(found)) and Tiling(1024, num_warps=4) not in found
    assert all(t.xblock & (t.xblock - 1) == 0 and t.xblock > 0 and 1 <= t.num_warps <= 16 for t in found)


@pytest.mark.parametrize(
    ("other", "winner"), [([9.0, 9.0, 9.0], "other"), ([9.9, 9.9, 9.9], "default"), ([9.0, 10.5, 11.0], "default")],
    ids=["clearly faster", "noise", "median counts"],
)  # fmt: skip
def test_the_default_has_to_be_beaten_clearly(other: list[float], winner: str) -> None:
    assert decide({"default": [10.0, 10.0, 10.0], "other": other}, "default")["winner"] == winner


def test_a_kernel_of_two_microseconds_keeps_the_default() -> None:
    assert decide({"default": [2.0, 2.0, 2.0], "other": [1.7, 1.7, 1.7]}, "default")["winner"] == "default"


def test_without_a_gpu_the_command_says_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "precast.cli", "tune", "tests.precast.cli.app:sine", "--store", str(tmp_path / "store")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "this machine has none" in done.stderr, done.stderr


def test_a_build_measures_the_dearest_first_and_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Each answer takes ten seconds of a clock that nobody waits for."""
    asked: list[Problem] = []

    def measured(self: Lab, problem: Problem) -> Record:
        asked.append(problem)
        clock[0] += 10
        return {"winner": problem.default, "us": {problem.default: 1.0}}

    clock = [0.0]
    monkeypatch.setattr("precast.codegen.cuda.benchmarking.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(Lab, "measure", measured)
    monkeypatch.setattr("precast.codegen.cuda.pipeline.lab_for", lambda target, limit: Lab("sm_90", limit=limit))

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return y.exp().cumsum(-1), x.sin().cumsum(-1), z.tanh().cumsum(-1)

    given = (torch.randn(512, 4096), torch.randn(8, 64), torch.randn(64, 256))
    options = {"max_autotune": True, "max_autotune_seconds": 15}
    spec = ProgramSpec("tests:f", "f", "f", targets=(TARGET,), options=options)
    outcome = Job(Loaded(spec, f, ((given, {}),)), store).build(1, TARGET)
    assert outcome.status == "compiled", outcome.reason
    sizes = [max(prod(b.size) for b in problem.buffers) for problem in asked]
    assert sizes == [512 * 4096, 64 * 256], "the second was begun within the time, the third was not"
    manifest = store.get(outcome.artifact or "")
    assert manifest is not None and set(manifest.evidence["choices"]) == {problem.key for problem in asked}
