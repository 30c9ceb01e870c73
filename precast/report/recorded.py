"""What an artifact of a call that records gradients keeps between its forward and its backward graph; the steps of a graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from precast.artifact_store import GraphRecord, Manifest, Store
from precast.artifact_store.format.text import many
from precast.report.units import human_size


@dataclass(frozen=True)
class Kept:
    """What the backward graph takes of the forward pass. `bytes`: of the tensors that the forward graph makes and keeps, but for those
    whose sizes depend on the call (`unsized`); `inputs`: how many of the call's own tensors are kept as they are; `gradients`: how many
    inputs get one.
    """

    bytes: int
    tensors: int
    unsized: int
    inputs: int
    gradients: int

    def __str__(self) -> str:
        unsized = f", {self.unsized} of them of sizes that vary and not counted" if self.unsized else ""
        own = f"; {many(self.inputs, 'input')} of the call" if self.inputs else ""
        made = f"{human_size(self.bytes)} of activations ({many(self.tensors, 'tensor')}{unsized})"
        return f"{made}{own}; for the gradients of {many(self.gradients, 'input')}"


def kept(manifest: Manifest) -> Kept | None:
    """None where the artifact records no gradients."""
    record: Mapping[str, Any] | None = next((frame["autograd"] for frame in manifest.frames if frame.get("autograd")), None)
    if record is None or "forward" not in manifest.graphs:
        return None
    outputs = manifest.graphs["forward"].io["outputs"]
    made = {index for source, index in record["saved"] if source == "raw"}
    sizes = [_bytes(outputs[index]) for index in made]
    inputs = sum(source == "input" for source, _ in record["saved"])
    return Kept(sum(size or 0 for size in sizes), len(sizes), sizes.count(None), inputs, len(record["inputs"]))


def _bytes(tensor: Mapping[str, Any]) -> int | None:
    """Of a raw output; None where its sizes depend on the call."""
    count = 1
    for size in tensor["size"]:
        if not isinstance(size, int):
            return None
        count *= size
    bits = re.search(r"\d+", tensor["dtype"])
    return count * (int(bits[0]) // 8 if bits is not None else 1)


def steps(store: Store, graph: GraphRecord) -> str:
    """How many kernels and library calls the graph runs; empty where its schedule is not there."""
    data = store.blob(graph.blobs["schedule"]) if "schedule" in graph.blobs else None
    if data is None:
        return ""
    lines = list(_steps(data.decode(errors="replace")))
    kernels = sum(line.startswith("kernel ") for line in lines)
    return f"{many(kernels, 'kernel')}, {many(len(lines) - kernels, 'library call')}"


def _steps(schedule: str) -> Iterator[str]:
    below = schedule.partition("\nsteps:\n")[2]
    return (line[2:] for line in below.splitlines() if re.match(r"  \w", line))


__all__ = ["Kept", "kept", "steps"]
