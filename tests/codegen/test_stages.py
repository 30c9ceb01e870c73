"""From a scheduled program to code: options are read once, stages run in order, memory is planned once, when libraries are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.codegen.common.selection import Selection, library_owned, run_stages
from precast.codegen.cpu import compile as cpu_pipeline
from precast.codegen.cpu.tuning import Chooser
from precast.codegen.cuda import pipeline
from precast.codegen.cuda.tuning import CudaChooser
from precast.compiling.build_graph import options_of
from precast.lowering.analysis.traits import ARCHITECTURES, ASSUMED, BEFORE_HOPPER, SM_90, Traits, traits_of
from precast.lowering.ir.nodes import Gemm, Program
from precast.lowering.lower import lower
from precast.lowering.options import LoweringOptions
from precast.lowering.passes.memory import memory_plan
from precast.lowering.pipeline import planned, schedule, scheduling_of
from precast.runtime.settings.options import merge_options
from tests.ops.trace import trace

TARGETS = ("cpu:x86-64-v3", "cuda:sm_90")
x, w, b, r = torch.randn(64, 96), torch.randn(96, 128), torch.randn(128), torch.randn(64, 128)


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return torch.softmax(nn.functional.gelu(torch.addmm(b, x, w)) + r, -1) @ w.t()


def scheduled(target: str) -> Program:
    return schedule(lower(trace(layer, (x, w, b, r))[0], "layer"), target, check=True)


def test_the_order_of_stages() -> None:
    cpu = [name for name, _ in cpu_pipeline.stages(Chooser(measure=False), frozenset(), 8)]
    cuda = [name for name, _ in pipeline.stages(CudaChooser())]
    assert cuda == ["select libraries", "plan memory", "divide the workspace"]
    assert cpu.index("split epilogues") < cpu.index("fuse again") < cpu.index("select libraries") < cpu.index("plan memory")
    for names in (cpu, cuda):
        assert names.count("plan memory") == 1
    for target in TARGETS:
        passes = [name for name, _ in scheduling_of(target).passes(target, LoweringOptions(), None)]
        assert "plan memory" not in passes and len(set(passes)) == len(passes)


@pytest.mark.parametrize("target", TARGETS)
def test_memory_is_planned_once(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler leaves temporaries without places; code generation gives them one, where no library does."""
    seen: list[set[str]] = []

    def counted(program: Program, *, elsewhere: Any = (), **more: Any) -> Program:
        seen.append(set(elsewhere))
        return memory_plan.plan_memory(program, elsewhere=elsewhere, **more)

    program = scheduled(target)
    assert not program.workspace
    module = cpu_pipeline if target.startswith("cpu") else pipeline
    monkeypatch.setattr(module, "plan_memory", counted)
    stages = module.stages(Chooser(measure=False), frozenset(), 8) if module is cpu_pipeline else module.stages(CudaChooser())  # type: ignore[attr-defined]
    found = run_stages(program, stages)
    assert len(seen) == 1
    assert not seen[0] & {slot.buffer for slot in found.program.workspace}


def test_epilogues_that_are_split_off_are_scheduled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL's product is bare, and what followed it joins its neighbours: no more kernels than there were."""
    program = scheduled("cpu:native")
    monkeypatch.setattr(Chooser, "product_default", lambda self: "mkl")
    stages = cpu_pipeline.stages(Chooser(measure=False), frozenset(), 8)
    at = [name for name, _ in stages].index("select libraries")
    before, after = run_stages(program, stages[:1]), run_stages(program, stages[:at])
    products = [step for step in after.program.steps if isinstance(step, Gemm)]
    assert after.decided and all(after.decided[p.out] == "aten" for p in products if p.out in after.decided)
    assert len(after.program.steps) < len(before.program.steps)
    assert not any(p.residual or p.bias for p in products if p.out in after.decided)


def test_no_stage_runs_for_nothing() -> None:
    program = scheduled("cpu:x86-64-v3")
    stages = dict(cpu_pipeline.stages(Chooser(measure=False), frozenset(), 8))
    untouched = Selection(program)
    assert stages["fuse again"](untouched) is untouched and stages["pack weights"](untouched) is untouched


def test_what_libraries_own() -> None:
    found = run_stages(scheduled("cuda:sm_90"), pipeline.stages(CudaChooser())[:1])
    assert library_owned(found.steps, lambda call: True) == set()
    calls = {step.out for step in found.program.steps if isinstance(step, Gemm)}
    assert library_owned(found.steps, lambda call: False) == calls


def test_measured_passes_take_the_place_of_passes_that_there_are() -> None:
    measuring = pipeline.passes_by(CudaChooser(measure=lambda problem: None))
    names = {name for name, _ in scheduling_of("cuda:sm_90").passes("cuda:sm_90", LoweringOptions(), None)}
    assert measuring and measuring.keys() <= names
    assert pipeline.passes_by(CudaChooser()) == {}
    without = {name for name, _ in scheduling_of("cuda:sm_90").passes("cuda:sm_90", LoweringOptions(epilogue_fusion=False), None)}
    assert measuring.keys() & without == {"gpu reductions"}, "an option switches the pass of products off, whoever brings it"


def test_a_pass_that_stands_in_runs_in_its_place() -> None:
    order: list[str] = []

    def mine(program: Program) -> Program:
        order.append("mine")
        return program

    lowered = lower(trace(layer, (x, w, b, r))[0], "layer")
    schedule(lowered, "cuda:sm_90", instead={"order": mine}, trace=lambda name, _: order.append(name))
    assert order.count("order") == order.count("mine") == 1 and order.index("mine") == order.index("order") - 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_for_reports_places_every_temporary(target: str) -> None:
    program = planned(scheduled(target), target)
    assert program.workspace and all(int(slot.offset) % scheduling_of(target).alignment == 0 for slot in program.workspace)


OPTIONS: dict[str, tuple[Any, Callable[[LoweringOptions, CodegenOptions], Any]]] = {
    "freeze": (True, lambda lowering, codegen: lowering.freeze and codegen.freeze),
    "epilogue_fusion": (False, lambda lowering, codegen: not lowering.epilogue_fusion),
    "fallback_random": (False, lambda lowering, codegen: not lowering.fallback_random),
    "memory_growth": (0.5, lambda lowering, codegen: lowering.memory_growth == 0.5),
    "max_autotune": (True, lambda lowering, codegen: codegen.max_autotune),
}


def test_options_are_read_at_one_door() -> None:
    """Each option of a compile changes its field, and nothing else is different from the defaults."""
    given = merge_options(None, {"fallback_random": True})
    assert options_of(given) == (LoweringOptions(), CodegenOptions())
    for name, (value, changed) in OPTIONS.items():
        lowering, codegen = options_of({**given, name: value})
        assert changed(lowering, codegen), name
        differing = [f.name for f in fields(lowering) if getattr(lowering, f.name) != getattr(LoweringOptions(), f.name)]
        differing += [f.name for f in fields(codegen) if getattr(codegen, f.name) != getattr(CodegenOptions(), f.name)]
        assert set(differing) == {name}
    assert options_of({**given, "sanitize": "address"})[1].sanitize == "address"


def test_traits_by_target() -> None:
    assert traits_of("cuda:sm_90") is SM_90 is ARCHITECTURES["sm_90"]
    assert traits_of("cuda:sm_80") is traits_of("cuda:ptx_80") is BEFORE_HOPPER
    assert BEFORE_HOPPER == replace(ASSUMED, vector_updates=False), "updates of several floats at once came with Hopper"
    assert traits_of("cuda:sm_100") is ASSUMED
    assert ASSUMED == SM_90, "no other architecture was measured: their code is Hopper's"


def test_a_threshold_of_the_architecture_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(x: Any, w: Any) -> Any:
        return x @ w.t()

    lowered = lower(trace(row, (torch.randn(1, 300).bfloat16(), torch.randn(64, 300).bfloat16()))[0], "row")

    def products(traits: Traits) -> int:
        monkeypatch.setitem(ARCHITECTURES, "sm_90", traits)
        return sum(isinstance(step, Gemm) for step in schedule(lowered, "cuda:sm_90").steps)

    assert products(SM_90) == 0 and products(Traits(vector_depth=301)) == 1


def test_a_compile_takes_what_is_measured_from_its_context() -> None:
    compiled = compile_program(scheduled("cpu:x86-64-v3"), "cpu:x86-64-v3", CodegenOptions(measure=False))
    assert compiled.evidence["choices"] == {} and compiled.evidence["target_level"] == "x86-64-v3"
