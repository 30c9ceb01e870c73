"""What each step of a compiled graph is and has to do, for people: kept beside the code, read by `precast profile`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from precast.codegen.common.library_steps import LibraryCall, RunStep
from precast.lowering.analysis.work import Work, work_of
from precast.lowering.ir.nodes import Buffer, Extern, Kernel, Program

STEPS = "steps"
"""The role of the blob in a graph's record."""


@dataclass(frozen=True, kw_only=True)
class StepRecord(Work):
    """One step with what it has to do, in the order in which they run. `kind`: "kernel" (generated loops), "library" (a product, a
    convolution or attention) or "operator" (any other of torch's, or of a user's). `name`: the kernel's, the operator's, or what the
    library computes. `how`: the library, or the function that a profiler of the device sees; kernels of equal code share one.
    `origins`: names of the graph's nodes that it computes, `sources` the user's lines that these come from.
    """

    kind: str
    name: str
    how: str
    origins: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def step_records(program: Program, steps: Sequence[RunStep], functions: Mapping[str, str]) -> tuple[StepRecord, ...]:
    """One record for each step that the host program runs. `functions`: of kernels by name, the function that is called."""
    buffers = {b.name: b for b in program.buffers}
    return tuple(_record(step, buffers, functions) for step in steps)


def _record(step: RunStep, buffers: Mapping[str, Buffer], functions: Mapping[str, str]) -> StepRecord:
    inner = step.step if isinstance(step, LibraryCall) else step
    work = work_of(inner, buffers)
    match step:
        case Kernel(name=name):
            kind, how = "kernel", functions[name]
        case Extern(op=name):
            kind, how = "operator", ""
        case LibraryCall(how=how):
            kind, name = "library", type(step.step).__name__.lower()
    return StepRecord(kind=kind, name=name, how=how, origins=inner.origins, **vars(work))


def to_json(records: Sequence[StepRecord]) -> bytes:
    """The blob of a graph's records."""
    return json.dumps([asdict(record) for record in records], separators=(",", ":"), sort_keys=True).encode()


def from_json(data: bytes) -> tuple[StepRecord, ...]:
    """Raises ValueError for what is no such blob."""
    known = {f.name for f in fields(StepRecord)}
    try:
        found: list[Any] = json.loads(data)
        return tuple(
            StepRecord(
                **{**{k: v for k, v in row.items() if k in known}, "origins": tuple(row["origins"]), "sources": tuple(row["sources"])}
            )
            for row in found
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no records of steps: {error}") from error


__all__ = ["STEPS", "StepRecord", "from_json", "step_records", "to_json"]
