"""Tuning on the device: kernels are really timed, the winner agrees with the default, and what the records decide still computes right."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.building.build_file import Loaded, ProgramSpec
from precast.building.tune import tune
from precast.codegen.common.measure import Record
from precast.codegen.cuda.benchmarking import Lab, lab_for
from precast.codegen.cuda.pipeline import choose_all
from precast.codegen.cuda.tuning import LIBRARY, CudaChooser, Problem, tiling_of
from precast.compiling.build_graph import known_choices
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from precast.runtime.targets.cuda import native_cuda
from tests.codegen.cuda.test_fusion_choice import CALLS, asked_by, library_wins
from tests.codegen.cuda.test_split_choice import asked as asked_about_chunks
from tests.codegen.triton.skinny_matmuls import Fn, halved
from tests.gpu.device import DEVICE
from tests.gpu.test_streams import near
from tests.ops.trace import trace

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="tests/precast/cli/test_tune.py is the CPU's")]


@pytest.fixture
def lab() -> Lab:
    return dataclasses.replace(lab_for(native_cuda(torch.cuda.get_device_capability())), seconds=0.05)


def problems() -> list[Problem]:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2).softmax(-1), x.sum(0), x.t() + 1

    graph, _ = trace(program, (torch.randn(512, 1024),))
    found: list[Problem] = []
    choose_all(schedule(lower(graph, "row"), "cuda:sm_90"), CudaChooser(measure=found.append), "cuda:sm_90")
    return found


def test_every_problem_is_answered_from_several_candidates(lab: Lab) -> None:
    found = problems()
    assert found
    for problem in found:
        record = lab.measure(problem)
        assert record is not None and tiling_of(record["winner"]) is not None
        assert len(record["us"]) >= 2 and all(0 < us < 1e5 for us in record["us"].values())


def test_chunks_of_a_reduction_agree_whatever_their_number(lab: Lab) -> None:
    """Each way has partial results in memory of its own, which is there for as long as its kernels may be launched."""
    for problem in asked_about_chunks(torch.randn(4, 1 << 20)):
        ways = lab.sequences(problem)
        assert set(ways) == set(problem.ways) and len(ways) > 2
        record = lab.measure(problem)
        assert record is not None and record["winner"] in problem.ways and record["default"] == problem.default


def test_a_candidate_that_computes_something_else_is_left_out(lab: Lab) -> None:
    problem = problems()[0]
    name, kernel = next((n, k) for n, k in problem.kernels.items() if n != problem.default)
    store = next(line for line in kernel.source.splitlines() if "tl.store(" in line)
    broken = dataclasses.replace(kernel, source=kernel.source.replace(store, store.split("tl.store(")[0] + "pass"))
    damaged = dataclasses.replace(problem, kernels={problem.default: problem.kernels[problem.default], name: broken})
    assert set(lab.launches(damaged)) == {problem.default}


def test_a_candidate_that_cannot_be_compiled_is_left_out(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    problem = problems()[0]
    name, kernel = next((n, k) for n, k in problem.kernels.items() if n != problem.default)
    source = kernel.source.replace("tl.store(", "tl.store(1, ", 1).replace(kernel.entry, "bad")
    broken = dataclasses.replace(kernel, entry="bad", source=source)
    damaged = dataclasses.replace(problem, kernels={**problem.kernels, name: broken})
    record = lab.measure(damaged)
    assert record is not None and len(record["us"]) >= 2 and name not in record["us"]
    assert f"{name} is left out: it cannot be compiled for {problem.key}: " in caplog.text
    with pytest.raises(RuntimeError, match="does not run on this device"):
        lab.measure(dataclasses.replace(damaged, kernels={problem.default: broken}))


def test_a_library_call_that_computes_something_else_is_left_out(lab: Lab) -> None:
    a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    calls = {"default": lambda: [a @ b for _ in range(3)][0], "wrong": lambda: a.t() @ b, "right": lambda: a @ b}
    record = lab.measure(Problem("k", "default", calls=lambda: dict(calls)))
    assert record is not None and record["winner"] == "right" and "wrong" not in record["us"]


def test_library_calls_are_timed_and_refusals_left_out(lab: Lab) -> None:
    def calls() -> dict[str, object]:
        a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))

        def refuses() -> object:
            raise RuntimeError("not supported")

        return {"slow": lambda: [a @ b for _ in range(3)][0], "fast": lambda: a @ b, "none": refuses}

    record = lab.measure(Problem("k", "slow", calls=calls))  # type: ignore[arg-type]
    assert record is not None and record["winner"] == "fast" and "none" not in record["us"]


@pytest.mark.parametrize("case", CALLS, ids=lambda fn: fn.__name__)
def test_a_library_and_one_kernel_are_two_ways_to_the_same(case: Fn, lab: Lab) -> None:
    """All candidates that the device takes agree with the library's product and the kernel behind it, and are timed beside it."""
    problems, _ = asked_by(case, halved(CALLS[case](), torch.bfloat16), library_wins)
    assert problems
    for problem in problems:
        found = lab.launches(problem)
        assert LIBRARY in found and len(found) > len(problem.kernels) / 2, f"{len(found)} of {len(problem.kernels)} kernels agree"
        record = lab.measure(problem)
        assert record is not None and problem.default in record["us"] and len(record["us"]) > 1


def test_a_kernel_in_the_place_of_a_library_computes_the_same(lab: Lab, tmp_path: Path) -> None:
    """A deep product with the fastest kernel, whether or not it beats the library here."""
    model = torch.nn.Sequential(torch.nn.Linear(768, 3072), torch.nn.GELU()).cuda().bfloat16().eval().requires_grad_(False)
    x = torch.randn(2048, 768, device="cuda", dtype=torch.bfloat16)
    target = native_cuda(torch.cuda.get_device_capability())

    def fastest(problem: Problem) -> Record | None:
        record = lab.measure(problem)
        if record is None or not problem.library:
            return record
        ours = {name: us for name, us in record["us"].items() if name != LIBRARY}
        return {**record, "winner": min(ours, key=lambda name: ours[name])}

    spec = ProgramSpec("tests:model", "model", "model", targets=(target,))
    tuned = tune([Loaded(spec, model, (((x,), {}),))], Store.open(tmp_path), target, fastest, budget=60, say=print)
    assert sum(bool(q.problem.library) for q in tuned.questions) == 1
    with torch.no_grad():
        call = precast.compile(model, store=tmp_path)
        got, want, exact = call(x), model(x), copy.deepcopy(model).double()(x.double())
    assert (got - exact).norm() <= 1.05 * (want - exact).norm()
    stored = [m for place in (tmp_path / "programs").glob("*") for m in Store.open(tmp_path).variants(place.name)]
    assert [name.split("_")[0] for name in stored[0].evidence["kernels"]] == ["product"]


def test_tuned_programs_compute_the_same(lab: Lab, tmp_path: Path) -> None:
    """The whole way: questions of a build, answers into the store, a compile that uses them."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 1000), torch.nn.GELU(), torch.nn.LayerNorm(1000), torch.nn.Softmax(-1)).cuda().eval()
    model.requires_grad_(False)
    x = torch.randn(64, 256, device="cuda")
    target = native_cuda(torch.cuda.get_device_capability())
    spec = ProgramSpec("tests:model", "model", "model", targets=(target,))
    store = Store.open(tmp_path)
    tuned = tune([Loaded(spec, model, (((x,), {}),))], store, target, lab.measure, budget=60, say=print)
    assert not tuned.failures and tuned.count("measured") == len(tuned.questions) > 0
    assert set(known_choices(store, target)) == {q.problem.key for q in tuned.questions}
    with torch.no_grad():
        near(precast.compile(model, store=tmp_path)(x), model(x))
    stored = [m for place in (tmp_path / "programs").glob("*") for m in store.variants(place.name)]
    assert set(stored[0].evidence["choices"]) == set(known_choices(store, target))
