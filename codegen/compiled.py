"""What code generation hands out: one shared object with everything that is needed to explain and rebuild it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CompiledGraph:
    """A compiled `Program`.

    `inputs` and `outputs` are plain data: `{"kind": "tensor", "dtype", "size", "stride"}` (sizes as ints or expression text) or
    `{"kind": "int", "symbol"}` / `{"kind": "none"}`. `evidence` records compiler, target features and measured library choices.
    """

    library: bytes
    kernel_source: str
    host_source: str
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    workspace_bytes: int | str
    evidence: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    python_calls: tuple[str, ...] = ()  # operators that the graph calls back into Python for
