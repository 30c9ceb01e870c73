"""A library's product or one kernel: asked where something is measured or known, answered by the rule otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import precast
from precast.artifact_store import Store
from precast.building.build_file import Loaded, ProgramSpec
from precast.building.build_job import Job
from precast.building.tune import outdated, tune
from precast.codegen.common.library_steps import LibraryCall
from precast.codegen.common.measure import Record
from precast.codegen.cuda.pipeline import passes_by
from precast.codegen.cuda.torch_calls import library_call
from precast.codegen.cuda.tuning import (
    CANONICAL,
    LIBRARY,
    WITH_LIBRARY,
    CudaChooser,
    Problem,
    candidates,
    kernel_key,
    tiling_name,
    tiling_of,
)
from precast.codegen.triton.render.render import TritonKernel, render
from precast.codegen.triton.render.tiling import Tiling
from precast.compiling import build_graph
from precast.compiling.build_graph import keep_choices, known_choices
from precast.lowering.analysis.traits import SM_90
from precast.lowering.ir.nodes import Conv, Gemm, Kernel, Program
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from tests.codegen.triton.skinny_matmuls import CASES, DEEP, Fn, bottleneck, feed_forward, gated, halved, image, norm, norms, weight
from tests.ops.trace import trace

TARGET = "cuda:sm_90"
Answer = Callable[[Problem], Record | None]


def wide(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return feed_forward(x, w, b)


def bert() -> tuple[Tensor, ...]:
    return halved((torch.randn(2048, 768), torch.randn(3072, 768), torch.randn(3072)), torch.bfloat16)


def kernel_wins(problem: Problem) -> Record | None:
    names = [name for name in problem.kernels if name != problem.default]
    return None if not names else {"winner": names[-1], "us": {problem.default: 2.0, names[-1]: 1.0}}


def library_wins(problem: Problem) -> Record:
    return {"winner": LIBRARY if problem.library else problem.default, "us": {LIBRARY: 1.0}}


def scheduled(fn: Fn, inputs: tuple[Tensor, ...], chooser: CudaChooser) -> Program:
    graph, _ = trace(fn, inputs)
    return schedule(lower(graph, "case"), TARGET, instead=passes_by(chooser), check=True)


def library_steps(program: Program) -> int:
    return sum(isinstance(step, Gemm | Conv) for step in program.steps)


def asked_by(fn: Fn, inputs: tuple[Tensor, ...], answer: Answer) -> tuple[list[Problem], Program]:
    """The questions about products, and the program that the answers make."""
    problems: list[Problem] = []

    def measure(problem: Problem) -> Record | None:
        problems.append(problem)
        return answer(problem)

    program = scheduled(fn, inputs, CudaChooser(measure=measure))
    return [p for p in problems if p.library], program


def test_a_deep_product_is_the_librarys_until_a_kernel_measured_faster() -> None:
    assert library_steps(scheduled(wide, bert(), CudaChooser())) == 1
    for answer, left in ((kernel_wins, 0), (library_wins, 1), (lambda problem: None, 1)):
        (problem,), program = asked_by(wide, bert(), answer)
        assert library_steps(program) == left and len(program.steps) == 1 + left
        assert problem.default == LIBRARY and problem.key.startswith(WITH_LIBRARY)
        assert len(problem.kernels) > 20 and all("tl.dot(" in kernel.source for kernel in problem.kernels.values())


def test_both_ways_are_whole() -> None:
    """The library's way is its call and the kernel behind it, over the same buffers."""
    (problem,), _ = asked_by(wide, bert(), kernel_wins)
    call, kernel = problem.library
    assert isinstance(call, LibraryCall) and isinstance(call.step, Gemm) and isinstance(kernel, TritonKernel)
    ours = {a.buffer for k in problem.kernels.values() for a in k.arguments}
    theirs = {call.step.a.buffer, call.step.b.buffer, call.step.out, *(a.buffer for a in kernel.arguments)}
    bias = {call.step.bias.buffer} if call.step.bias is not None else set()
    assert theirs | bias == ours | {call.step.out} == {b.name for b in problem.buffers}


def test_a_shallow_product_goes_back_to_the_library_that_measured_faster() -> None:
    (problem,), program = asked_by(feed_forward, halved(CASES[feed_forward](), torch.float16), library_wins)
    assert tiling_of(problem.default) is not None and library_steps(program) == 1


def steps_of(problem: Problem) -> list[str]:
    return ["kernel" if isinstance(step, TritonKernel) else step.how for step in problem.library]


def test_what_makes_the_rows_is_asked_after_the_product() -> None:
    """First the product with its reader; then what makes its rows as well, against the best that was found so far."""
    inputs = halved(CASES[bottleneck](), torch.bfloat16)
    problems, program = asked_by(bottleneck, inputs, kernel_wins)
    assert [steps_of(p) for p in problems] == [["product", "kernel"], ["kernel", "kernel"]] and library_steps(program) == 0
    inner = problems[1].library[1]
    assert isinstance(inner, TritonKernel) and tiling_name(inner.tiling) == (kernel_wins(problems[0]) or {})["winner"]
    problems, program = asked_by(bottleneck, inputs, library_wins)
    assert [steps_of(p) for p in problems] == [["product", "kernel"], ["kernel", "product", "kernel"]] and library_steps(program) == 1
    problems, program = asked_by(bottleneck, inputs, lambda problem: None)
    assert [steps_of(p) for p in problems] == [["product", "kernel"]], "the second waits for the first"
    assert library_steps(program) == 0, "the rule"
    problems, program = asked_by(bottleneck, halved(DEEP[bottleneck](), torch.bfloat16), lambda problem: None)
    assert [steps_of(p) for p in problems] == [["product", "kernel"]] and library_steps(program) == 1


def test_the_librarys_way_is_measured_in_its_best_form() -> None:
    """The kernel behind the library's call is asked about first, and has the tiling that was found."""
    seen: list[Problem] = []

    def measure(problem: Problem) -> Record | None:
        seen.append(problem)
        return kernel_wins(problem)

    scheduled(wide, bert(), CudaChooser(measure=measure))
    behind, product = seen
    kernel = product.library[1]
    assert not behind.library and isinstance(kernel, TritonKernel)
    assert tiling_name(kernel.tiling) == (kernel_wins(behind) or {})["winner"] != behind.default


def test_its_answer_is_the_kernels_tiling_too() -> None:
    """The kernel's tilings stood beside the library: they are not asked for a second time."""
    problems: list[Problem] = []

    def measure(problem: Problem) -> Record | None:
        problems.append(problem)
        return kernel_wins(problem)

    chooser = CudaChooser(measure=measure)
    program = scheduled(wide, bert(), chooser)
    (kernel,) = (step for step in program.steps if isinstance(step, Kernel))
    count = len(problems)
    (tiling,) = chooser.tilings(kernel, program.buffers)
    (problem,) = (p for p in problems if p.library)
    record = kernel_wins(problem)
    assert record is not None and len(problems) == count and tiling is not None and tiling_name(tiling) == record["winner"]
    again = CudaChooser({problem.key: record})
    same = scheduled(wide, bert(), again)
    assert library_steps(same) == 0 and again.tilings(kernel, program.buffers) == (tiling,)
    assert [r["winner"] for r in again.used.values()] == [tiling_name(tiling)]


def test_a_kernels_own_record_counts_where_no_library_was_beside_it() -> None:
    """Stores that were tuned before products were asked about keep what they know, whatever is asked about other products."""
    inputs = halved(CASES[feed_forward](), torch.float16)
    program = scheduled(feed_forward, inputs, CudaChooser())
    (kernel,) = (step for step in program.steps if isinstance(step, Kernel))
    (plain,) = render(kernel, program.buffers, CANONICAL)
    (default,) = render(kernel, program.buffers)
    own = tiling_name(candidates(default.tiling, SM_90)[0])
    chooser = CudaChooser({kernel_key(plain): {"winner": own, "us": {}}, WITH_LIBRARY + "another": {"winner": LIBRARY, "us": {}}})
    same = scheduled(feed_forward, inputs, chooser)
    (tiling,) = chooser.tilings(next(s for s in same.steps if isinstance(s, Kernel)), same.buffers)
    assert tiling is not None and tiling_name(tiling) == own


def test_what_has_no_answer_is_asked_once() -> None:
    """Equal layers are one question, also where it cannot be measured."""
    asked: list[str] = []

    def measure(problem: Problem) -> None:
        asked.append(problem.key)

    def layers(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        for _ in range(4):
            x = feed_forward(x, w, b)
        return x

    inputs = halved((torch.randn(128, 256), torch.randn(256, 256), torch.randn(256)), torch.bfloat16)
    scheduled(layers, inputs, CudaChooser(measure=measure))
    assert len(asked) == len(set(asked)) > 0


IMPOSSIBLE = [
    tiling_name(Tiling(48, rblock=64, depth=64)),
    tiling_name(Tiling(0, depth=64)),
    tiling_name(Tiling(64, num_warps=3, depth=64)),
]


@pytest.mark.parametrize("winner", ["xblock=4", "onednn", tiling_name(CANONICAL), *IMPOSSIBLE])
def test_a_record_that_says_nothing_is_of_no_use(winner: str) -> None:
    (problem,), _ = asked_by(wide, bert(), kernel_wins)
    chooser = CudaChooser({problem.key: {"winner": winner, "us": {}}})
    assert library_steps(scheduled(wide, bert(), chooser)) == 1 and not chooser.used and not problem.accepts(winner)
    assert problem.accepts(LIBRARY) and all(map(problem.accepts, problem.kernels))


def small(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return feed_forward(x[:40], w, b)


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, w, b)


@pytest.mark.parametrize("fn", [small, plain], ids=lambda fn: fn.__name__)
def test_what_cannot_gain_is_not_asked(fn: Fn) -> None:
    assert asked_by(fn, bert(), kernel_wins)[0] == []


def test_a_number_of_a_product_alone_is_the_librarys() -> None:
    """A kernel without axes is no product."""
    problems, program = asked_by(lambda x, w: (x @ w)[3, 5] * 2, bert()[:1] + (torch.randn(768, 64).bfloat16(),), kernel_wins)
    assert not problems and library_steps(program) == 1


def activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(torch.nn.functional.linear(x, w, b)) * 1.5


def tanh_activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b), approximate="tanh") * 1.5


def convolved(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(torch.nn.functional.conv2d(x, w, b)) * 1.5


def norm_behind(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
    return norm(torch.nn.functional.conv2d(x, w, stride=2), p).sigmoid()


CALLS: dict[Fn, Callable[[], tuple[Tensor, ...]]] = {
    wide: lambda: (torch.randn(128, 64), torch.randn(192, 64), torch.randn(192)),
    gated: lambda: (torch.randn(80, 64), torch.randn(64, 256) / 8, torch.randn(256)),
    bottleneck: lambda: (image(64, 9), norms(64), weight(192, 64), norms(192), image(192, 9)),
    norm_behind: lambda: (image(64, 17), weight(192, 64), norms(192)),
    activated: lambda: (torch.randn(128, 64), torch.randn(192, 64), torch.randn(192)),
    tanh_activated: lambda: (torch.randn(128, 64), torch.randn(192, 64) / 8, torch.randn(192)),
    convolved: lambda: (image(64, 9), weight(192, 64), torch.randn(192)),
}


@pytest.mark.parametrize("fn", CALLS, ids=lambda fn: fn.__name__)
def test_the_librarys_way_is_what_the_program_says(fn: Fn) -> None:
    """The calls that a tuner times, on CPU tensors, against the definition of a product."""
    problems, _ = asked_by(fn, halved(CALLS[fn](), torch.bfloat16), library_wins)
    assert problems
    for problem in problems:
        (call,) = (step for step in problem.library if isinstance(step, LibraryCall))
        buffers = {b.name: b for b in problem.buffers}
        memory = {
            b.name: torch.randn(1 + sum((int(n) - 1) * int(s) for n, s in zip(b.size, b.stride, strict=True))).bfloat16()
            for b in problem.buffers
        }

        def seen(view: Any, memory: dict[str, Tensor] = memory) -> Tensor:
            return memory[view.buffer].as_strided(view.size, view.stride, int(view.offset)).double()

        library_call(call, memory, buffers).answer()
        own, step = buffers[call.step.out], call.step
        got = memory[own.name].as_strided(own.size, own.stride)
        if isinstance(step, Gemm):
            want = seen(step.a) @ seen(step.b)
        else:
            assert isinstance(step, Conv)
            want = torch.conv2d(seen(step.x), seen(step.weight), stride=list(step.stride))
        if step.bias is not None:
            want = want + (seen(step.bias) if isinstance(step, Gemm) else seen(step.bias)[:, None, None])
        if step.activation != "none":
            want = torch.relu(want) if step.activation == "relu" else torch.nn.functional.gelu(want, approximate="tanh")
        torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(640, 256)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(self.first(x))


def job() -> Loaded:
    spec = ProgramSpec("tests.codegen.cuda.test_fusion_choice:Net", "net", "net", targets=(TARGET,))
    return Loaded(spec, Net().eval().bfloat16(), (((torch.randn(128, 640).bfloat16(),), {}),))


def run(store: Store, measure: Answer, **options: Any) -> Any:
    return tune([job()], store, TARGET, measure, say=lambda text: None, **{"budget": 60, **options})


def test_tuning_asks_what_the_answers_lead_to(tmp_path: Path) -> None:
    """The library's product has a kernel behind it; one kernel for both is another question, and what only the other way asks is none."""
    store = Store.open(tmp_path)
    tuned = run(store, kernel_wins)
    assert tuned.count("measured") == len(tuned.questions) == len(known_choices(store, TARGET)) == 2 and not tuned.failures
    assert [bool(q.problem.library) for q in tuned.questions] == [False, True], "the library's kernel is measured before"
    assert run(store, kernel_wins).count("known") == 2
    back = run(store, library_wins, again=True)
    assert {q.answer for q in back.questions if q.problem.library} == {LIBRARY} and back.count("measured") == 2


class Strided(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(64, 128, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x)) * 1.5 + 0.25


def test_an_answer_about_a_library_leads_to_questions_too(tmp_path: Path) -> None:
    """A convolution that cuDNN fuses is no call that a tuner could time beside a kernel; by ATen it is."""

    def by_aten(problem: Problem) -> Record | None:
        return {"winner": "aten", "us": {"aten": 1.0, problem.default: 2.0}} if problem.key.startswith("conv") else kernel_wins(problem)

    spec = ProgramSpec("tests.codegen.cuda.test_fusion_choice:Strided", "strided", "strided", targets=(TARGET,))
    x = torch.randn(8, 64, 56, 56).to(torch.bfloat16, memory_format=torch.channels_last)
    model = Strided().eval().to(torch.bfloat16).to(memory_format=torch.channels_last)
    loaded, store = Loaded(spec, model, (((x,), {}),)), Store.open(tmp_path)
    tuned = tune([loaded], store, TARGET, by_aten, budget=60, say=lambda text: None)
    assert sum(bool(q.problem.library) for q in tuned.questions) == 1 and not tuned.count("left")
    again = tune([loaded], store, TARGET, by_aten, budget=60, say=lambda text: None)
    assert again.count("known") == len(again.questions) == len(tuned.questions)


def test_what_the_budget_left_is_told(tmp_path: Path) -> None:
    def slow(problem: Problem) -> Record | None:
        time.sleep(0.3)
        return kernel_wins(problem)

    store = Store.open(tmp_path)
    first = run(store, slow, budget=0.2)
    assert (first.count("measured"), first.count("left")) == (1, 1)
    second = run(store, slow, budget=60)
    assert (second.count("known"), second.count("measured"), second.count("left")) == (1, 1, 0)


def test_a_record_that_answers_nothing_is_measured_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    key = next(q.problem.key for q in run(store, kernel_wins).questions if q.problem.library)
    keep_choices(store, TARGET, {key: {"winner": IMPOSSIBLE[0], "us": {}}})
    assert run(store, kernel_wins).count("measured") == 1


def test_a_failing_measurement_leaves_the_record(tmp_path: Path) -> None:
    def fails(problem: Problem) -> Record | None:
        raise RuntimeError("no device")

    store = Store.open(tmp_path)
    before = {q.problem.key: q.answer for q in run(store, kernel_wins).questions}
    tuned = run(store, fails, again=True)
    assert tuned.count("failed") == 2 and {q.problem.key: q.answer for q in tuned.questions} == before


def test_a_build_without_a_device_takes_the_records(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    first = Job(job(), store).build(1, TARGET)
    assert first.status == "compiled", first.reason
    tuned = run(store, kernel_wins)
    (old,) = outdated([job()], store, tuned)
    store.remove(old.artifact, old.program_key)
    second = Job(job(), store).build(1, TARGET)
    made = store.get(second.artifact or "")
    assert made is not None and not outdated([job()], store, tuned)
    (record,) = (r for key, r in made.evidence["choices"].items() if key.startswith(WITH_LIBRARY))
    assert tiling_of(record["winner"]) is not None
    assert list(made.evidence["kernels"]) == [name for name in made.evidence["kernels"] if name.startswith("product_")]


def test_builds_without_records_ask_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are made into kernels twice only where an answer may come of it."""
    seen: list[Any] = []

    def watched(program: Program, *given: Any, instead: Any) -> Program:
        seen.append(instead)
        return schedule(program, *given, instead=instead)

    monkeypatch.setattr(build_graph, "schedule", watched)
    keep_choices(Store.open(tmp_path), TARGET, {"gemm of another program": {"winner": "aten", "us": {}}})
    with torch.no_grad():
        report = precast.precompile(Net().eval().bfloat16(), [((torch.randn(128, 640).bfloat16(),), {})], targets=[TARGET], store=tmp_path)
    assert report.ok, report
    assert seen == [{}], "the rule of the scheduler decides"


def test_keys_are_those_of_the_kernel() -> None:
    (problem,), program = asked_by(wide, bert(), kernel_wins)
    (kernel,) = (step for step in program.steps if isinstance(step, Kernel))
    (rendered,) = render(kernel, program.buffers, CANONICAL)
    assert problem.key == WITH_LIBRARY + kernel_key(rendered)
