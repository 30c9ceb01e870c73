"""What each step of a compiled graph is and has to do, for people: kept beside the code, read by `precast profile`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from precast.codegen.common.library_steps import LibraryCall, RunStep
from precast.lowering.costs.work import Work, work_of
from precast.lowering.ir.nodes import Buffer, Extern, Kernel, Program
from precast.lowering.ir.sizes import hint

STEPS = "steps"
"""The role of the blob in a graph's record."""


@dataclass(frozen=True, kw_only=True)
class StepRecord(Work):
    """One step with what it has to do, in the order in which they run. `kind`: "kernel" (generated loops), "library" (a product, a
    convolution or attention) or "operator" (any other of torch's, or of a user's). `name`: the kernel's, the operator's, or what the
    library computes. `how`: the library, or the function that a profiler of the device sees; kernels of equal code share one.
    `origins`: names of the graph's nodes that it computes, `sources` the user's lines that these come from. `places`: offset and bytes in
    the workspace of the buffers that it writes there; what else it writes, the graph hands out.
    """

    kind: str
    name: str
    how: str
    origins: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def step_records(program: Program, steps: Sequence[RunStep], functions: Mapping[str, str]) -> tuple[StepRecord, ...]:
    """One record for each step that the host program runs. `functions`: of kernels by name, the function that is called."""
    buffers = {b.name: b for b in program.buffers}
    places = {slot.buffer: (hint(slot.offset), hint(slot.nbytes)) for slot in program.workspace}
    return tuple(_record(step, buffers, functions, places) for step in steps)


def _record(
    step: RunStep, buffers: Mapping[str, Buffer], functions: Mapping[str, str], places: Mapping[str, tuple[int, int]]
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
    return StepRecord(kind=kind, name=name, how=how, origins=inner.origins, places=own, **vars(work))


def to_json(records: Sequence[StepRecord]) -> bytes:
    """The blob of a graph's records."""
    return json.dumps([asdict(record) for record in records], separators=(",", ":"), sort_keys=True).encode()


def from_json(data: bytes) -> tuple[StepRecord, ...]:
    """Raises ValueError for what is no such blob."""
    known = {f.name for f in fields(StepRecord)}
    try:
        found: list[Any] = json.loads(data)
        return tuple(_read({k: v for k, v in row.items() if k in known}) for row in found)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no records of steps: {error}") from error


def _read(row: Mapping[str, Any]) -> StepRecord:
    places = {name: (offset, nbytes) for name, (offset, nbytes) in row.get("places", {}).items()}
    return StepRecord(**{**row, "origins": tuple(row["origins"]), "sources": tuple(row["sources"]), "places": places})


__all__ = ["STEPS", "StepRecord", "from_json", "step_records", "to_json"]
