"""All that a page says of one artifact, as plain data: what the store has of it, and how long its steps took where that was measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from precast.artifact_store import GraphRecord, Manifest, Store
from precast.lowering.costs.chips import Chip
from precast.lowering.costs.predicted_time import Predicted, predictions
from precast.lowering.costs.records import STEPS, StepRecord, from_json
from precast.report.page.code_parts import functions_called, functions_of, host_lines
from precast.report.page.graphs import drawings, title
from precast.report.page.guard_words import guard_kinds
from precast.report.page.memory import Memory, over_time
from precast.report.page.program_lines import files_of, sources_of
from precast.report.page.schedule_parts import Schedule, parsed, shape_of
from precast.report.recorded import kept
from precast.report.signers import signers_text


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, the least that the roofline model allows, and what bounds it ("memory", "compute")."""

    seconds: float
    least: float
    bound: str


@dataclass(frozen=True)
class GraphTimes:
    """`runs`: how often a call runs the graph; `entry`: seconds before its first step."""

    runs: float
    entry: float
    steps: tuple[StepTime, ...]


@dataclass(frozen=True)
class Measured:
    """A call whose steps were timed: seconds compiled and eager, of them in compiled graphs; the machine's rates; times by artifact and
    role.
    """

    call: float
    eager: float
    recorded: float
    in_graphs: float
    bytes_rate: float
    elementwise_rate: float
    product_rates: Mapping[str, float]
    graphs: Mapping[tuple[str, str], GraphTimes] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """One artifact of a page. `label`: what to call it beside others ("encoder, signature 1"). `chip`: the one that times are predicted
    for; None where none is known.
    """

    manifest: Manifest
    label: str
    measured: Measured | None = None
    chip: Chip | None = None


def facts(store: Store, shown: Shown) -> dict[str, Any]:
    """Raises LayoutMissing, ValueError for records that cannot be read, and OSError where the artifact is gone."""
    manifest, measured = shown.manifest, shown.measured
    timed = measured if measured is not None and any(key[0] == manifest.artifact_id for key in measured.graphs) else None
    roles = sorted(manifest.graphs, reverse=True)  # forward, then backward
    return {
        "id": manifest.artifact_id,
        "label": shown.label,
        "program": manifest.program_name,
        "target": manifest.target,
        "made": time.strftime("%Y-%m-%d %H:%M", time.localtime(store.made_at(manifest))),
        "signed": signers_text(store, manifest),
        "versions": {
            **{name: value for name, value in asdict(manifest.versions).items() if value},
            "precast": manifest.precast_version,
        },
        "options": dict(manifest.options),
        "key": manifest.program_key,
        "guard_hash": manifest.guard_hash,
        "guards": [asdict(kind) for kind in guard_kinds(manifest)],
        "waived": list(manifest.waived),
        "digests": {name: digest.partition(" ")[0] for name, digest in sorted(manifest.digests.items())},
        "kept": str(recorded) if (recorded := kept(manifest)) is not None else "",
        "frames": [str(frame.get("name", "?")) for frame in manifest.frames],
        "evidence": _plain(manifest.evidence),
        "provenance": _plain(manifest.provenance),
        "measured": _measured(timed),
        "prediction": {"chip": shown.chip.name, "source": shown.chip.source} if shown.chip is not None else None,
        "graphs": [
            _graph(store, role, manifest.graphs[role], timed.graphs.get((manifest.artifact_id, role)) if timed else None, shown.chip)
            for role in roles
        ],
    }


def _measured(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {name: value for name, value in vars(measured).items() if name != "graphs"}


def _graph(store: Store, role: str, graph: GraphRecord, times: GraphTimes | None, chip: Chip | None) -> dict[str, Any]:
    data = store.blob(graph.blobs[STEPS]) if STEPS in graph.blobs else None
    steps = from_json(data) if data is not None else ()
    schedule = parsed(_text(store, graph, "schedule"), steps)
    functions = functions_of(_text(store, graph, "kernel_source"))
    called = functions_called(steps, functions)
    sources = sources_of(steps)
    drawing = drawings(steps) if steps else {"layers": (), "folded": None, "full": None}
    memory = over_time(steps, schedule.inputs, schedule.results)
    place = {source: number for number, source in enumerate(sources)}
    expected = predictions(steps, chip) if chip is not None else [None] * len(steps)
    return {
        "role": role,
        "steps": [
            _step(
                step, own, [place[source] for source in step.sources], times.steps[number] if times is not None else None, expected[number]
            )
            for number, (step, own) in enumerate(zip(steps, called, strict=True))
        ],
        "runs": times.runs if times is not None else None,
        "entry": times.entry if times is not None else None,
        "sources": sources,
        "files": [{"name": file.name, "rows": [[row.number, row.text, row.source] for row in file.rows]} for file in files_of(sources)],
        "functions": [{"name": function.name, "tokens": function.tokens} for function in functions],
        "host": host_lines(_text(store, graph, "host_source"), steps),
        "loops": schedule.lines,
        "notes": schedule.notes,
        "memory": _memory(memory, schedule, graph),
        "inputs": _plain(graph.io.get("inputs", ())),
        "outputs": _plain(graph.io.get("outputs", ())),
        **{name: _plain(value) for name, value in drawing.items()},
    }


def _text(store: Store, graph: GraphRecord, role: str) -> str:
    data = store.blob(graph.blobs[role]) if role in graph.blobs else None
    return data.decode(errors="replace") if data is not None else ""


def _step(
    step: StepRecord, functions: Sequence[int], sources: Sequence[int], took: StepTime | None, expected: Predicted | None
) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "name": step.name,
        "how": step.how,
        "title": title(step),
        "origins": step.origins,
        "sources": sources,
        "read": list(step.read.items()),
        "written": list(step.written.items()),
        "bytes": step.bytes,
        "operations": step.operations,
        "arithmetic": step.arithmetic,
        "products": step.products,
        "functions": functions,
        **({"predicted": round(expected.seconds, 10), "limit": expected.bound} if expected is not None else {}),
        **({"seconds": round(took.seconds, 10), "least": round(took.least, 10), "bound": took.bound} if took is not None else {}),
    }


def _memory(memory: Memory, schedule: Schedule, graph: GraphRecord) -> dict[str, Any]:
    return {
        "buffers": [[b.name, b.nbytes, b.first, b.last, b.offset, b.result, shape_of(b.name, schedule)] for b in memory.buffers],
        "placed": memory.placed,
        "apart": memory.apart,
        "results": memory.results,
        "peak": memory.peak,
        "workspace": graph.io.get("workspace_bytes", graph.io.get("workspace")),
        "shapes": {name: shape for name, shape in schedule.buffers.items() if name in schedule.inputs},
    }


def _plain(value: Any) -> Any:
    """As JSON can hold it, without empty parts."""
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


__all__ = ["GraphTimes", "Measured", "Shown", "StepTime", "facts"]
