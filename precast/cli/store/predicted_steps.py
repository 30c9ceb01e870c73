"""`precast show ID --steps`: the steps of an artifact's graphs, with the time that each is to be expected to take on a chip."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from precast.artifact_store import Manifest, Store
from precast.artifact_store.format.text import many
from precast.cli.output import Failure, Output
from precast.cli.programs.chips import chip_for, chip_named
from precast.lowering.costs.predicted_time import Predicted, predictions
from precast.lowering.costs.records import STEPS, StepRecord, from_json
from precast.report.units import human_size


def print_steps(out: Output, store: Store, manifest: Manifest, chip_name: str | None) -> None:
    """Each graph's steps, the dearest first. Raises Failure where there are no records, or no chip is known."""
    chip = chip_named(chip_name) or chip_for(manifest.target, here=False)
    if chip is None:
        raise Failure(f"what a chip of {manifest.target} does is not known: --chip names one, or a file of `precast rates`")
    found: dict[str, Any] = {}
    for role, graph in sorted(manifest.graphs.items(), reverse=True):  # forward, then backward
        data = store.blob(graph.blobs[STEPS]) if STEPS in graph.blobs else None
        if data is None:
            raise Failure(f"the store has no records of the steps of {manifest.artifact_id[:12]}")
        try:
            records = from_json(data)
        except ValueError as error:
            raise Failure(f"{error}; `precast verify --repair` sets the artifact aside") from error
        expected = predictions(records, chip)
        total = sum(own.seconds for own in expected)
        found[role] = {
            "seconds": total,
            "steps": [
                {**asdict(r), "predicted_seconds": own.seconds, "bound": own.bound} for r, own in zip(records, expected, strict=True)
            ],
        }
        out.text(f"{role}: {many(len(records), 'step')}, {_us(total)} to be expected of {chip.name} ({chip.source})")
        order = sorted(range(len(records)), key=lambda number: -expected[number].seconds)
        rows = [_row(f"{role}.{number}", records[number], expected[number], total) for number in order]
        out.table(
            ("PREDICTED", "SHARE", "BOUND", "BYTES", "OPERATIONS", "STEP", "WHAT"), [raw for raw, _ in rows], [text for _, text in rows]
        )
    out.data({"id": manifest.artifact_id, "target": manifest.target, "chip": chip.name, "source": chip.source, "graphs": found})


def _row(place: str, record: StepRecord, expected: Predicted, total: float) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """For a pipe, and for people."""
    name = f"{record.name} by {record.how}" if record.kind == "library" else record.name
    what = f"{name}: {', '.join(record.origins[:4])}{' …' if len(record.origins) > 4 else ''}" if record.origins else name
    share = expected.seconds / total
    raw = (f"{expected.seconds:.9f}", f"{share:.4f}", expected.bound, record.bytes, record.operations or 0, place, what)
    count = f"{record.operations:.2g}" if record.operations else ""
    return raw, (_us(expected.seconds), f"{share:.1%}", expected.bound, human_size(record.bytes), count, place, what)


def _us(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


__all__ = ["print_steps"]
