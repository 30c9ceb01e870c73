"""The records of a graph's steps (`lowering/costs/records.py`), from its program and from what its host program runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from precast.codegen.common.library_steps import LibraryCall, RunStep
from precast.lowering.costs.records import StepRecord
from precast.lowering.costs.work import work_of
from precast.lowering.ir.nodes import Buffer, Conv, Extern, Gemm, Kernel, Program
from precast.lowering.ir.sizes import hint


def step_records(
    program: Program, steps: Sequence[RunStep], functions: Mapping[str, str], own: Mapping[str, str] | None = None
) -> tuple[StepRecord, ...]:
    """One record for each step that the host program runs. `functions`: of kernels by name, the function that is called; `own`: of library
    calls that are code of our own, by the buffer of the result.
    """
    buffers = {b.name: b for b in program.buffers}
    places = {slot.buffer: (hint(slot.offset), hint(slot.nbytes)) for slot in program.workspace}
    return tuple(_record(step, buffers, functions, places, own or {}) for step in steps)


def _record(
    step: RunStep,
    buffers: Mapping[str, Buffer],
    functions: Mapping[str, str],
    places: Mapping[str, tuple[int, int]],
    library: Mapping[str, str],
) -> StepRecord:
    inner = step.step if isinstance(step, LibraryCall) else step
    work = work_of(inner, buffers)
    own = {name: places[name] for name in work.written if name in places}
    match step:
        case Kernel(name=name):
            kind, how = "kernel", functions[name]
        case Extern(op=name):
            kind, how = "operator", ""
        case LibraryCall(how=how):
            kind, name = "library", type(step.step).__name__.lower()
    function = library.get(inner.out, "") if isinstance(inner, Conv | Gemm) else ""
    return StepRecord(kind=kind, name=name, how=how, function=function, origins=inner.origins, places=own, **vars(work))
