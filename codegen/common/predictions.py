"""The time that each step of a graph is expected to take on a chip, from its record alone."""

from __future__ import annotations

from collections.abc import Sequence

from precast.codegen.common.step_records import StepRecord
from precast.lowering.analysis.chips import Chip
from precast.lowering.analysis.predicted_time import Predicted, predicted, reuse_distances


def predictions(records: Sequence[StepRecord], chip: Chip) -> tuple[Predicted, ...]:
    """Of all steps of one graph, which is called again and again. Buffers at one place of the workspace are the same memory. Convolutions
    in float32 are taken to round to TF32 where the chip has it: so they do by torch's defaults.
    """
    places = {name: ("workspace", offset) for record in records for name, (offset, _) in record.places.items()}
    distances = reuse_distances(records, places)
    return tuple(predicted(record, chip, far, tf32=record.name == "conv") for record, far in zip(records, distances, strict=True))


__all__ = ["predictions"]
