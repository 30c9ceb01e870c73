"""What each step of a compiled graph is and has to do, for people: the record that is kept beside the code. Reading it needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

STEPS = "steps"
"""The role of the blob in a graph's record."""


@dataclass(frozen=True)
class Work:
    """`read`, `written`: bytes by buffer. `operations`: of a product or a convolution, multiplications and additions; of a kernel, simple
    operations on elements, where a division or a root counts as 3 and a transcendental function as 8; None where it is not known, as of
    an operator that torch has no formula of. `arithmetic`: the dtype of the operands ("bf16"); `products`: whether it is a product of
    matrices or a convolution. Sizes that vary count as they were in the traced call.
    """

    read: Mapping[str, int]
    written: Mapping[str, int]
    operations: int | None
    arithmetic: str
    products: bool = False

    @property
    def bytes(self) -> int:
        return sum(self.read.values()) + sum(self.written.values())


@dataclass(frozen=True, kw_only=True)
class StepRecord(Work):
    """One step with what it has to do, in the order in which they run. `kind`: "kernel" (generated loops), "library" (a product, a
    convolution or attention) or "operator" (any other of torch's, or of a user's). `name`: the kernel's, the operator's, or what the
    library computes. `how`: the library, or the function that a profiler of the device sees; kernels of equal code share one. `function`:
    where code of precast's own stands for a library's and has several functions, the one that is called.
    `origins`: names of the graph's nodes that it computes, `sources` the user's lines that these come from. `places`: offset and bytes in
    the workspace of the buffers that it writes there; what else it writes, the graph hands out.
    """

    kind: str
    name: str
    how: str
    function: str = ""
    origins: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)


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


__all__ = ["STEPS", "StepRecord", "Work", "from_json", "to_json"]
