"""The result of capture: one frame with its graph, guards, inputs, outputs and rewritten bytecode. See docs/internals.md."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch.fx

from precast.artifact_store.format.guards import Guard, Predicate, guard_hash
from precast.artifact_store.format.records import AutogradRecord, CodeDigest, FrameRecord, GraphInput, GraphOutput, Wrap
from precast.runtime.common.notebook import Shown

__all__ = ["CaptureRefused", "CapturedFrame", "CodeDigest", "FrameRecord", "GraphBreak", "GraphInput", "GraphOutput", "MarkViolated"]


class CaptureRefused(Exception):
    """The callable cannot be captured as one graph; it has to run eagerly.

    `reason`: what stopped it; `where`: the user's `file:line` or ""; `hint`: what to do about it, or "".
    `skipped`: the frame as such runs as plain Python, which is no fault: what it calls may still be compiled.
    `symbols`: plain sizes and numbers in place of symbolic ones may do. `raises`: the code seems to raise an exception for this very call.
    `shared_memory`: it is because inputs of this call share memory. `guards`: where known, what calls of this kind have in
    common, and `unless`: guards of which such a call fails one; other calls may be captured.
    """

    forbidden = False  # a graph break that `error_on_graph_break` forbids
    raises = False
    symbols = False
    guards: tuple[Guard, ...] | None = None
    unless: tuple[Guard, ...] = ()
    parts: tuple[Any, ...] | None = None  # as in `AotGraph`

    def __init__(self, reason: str, where: str = "", hint: str = "", skipped: bool = False, shared_memory: bool = False) -> None:
        super().__init__(": ".join(part for part in (where, reason) if part) + (f" ({hint})" if hint else ""))
        self.reason = reason
        self.where = where
        self.hint = hint
        self.skipped = skipped
        self.shared_memory = shared_memory


class MarkViolated(CaptureRefused):
    """The user's mark_dynamic (or dynamic_shapes) asks for what the code does not allow: an error, as in torch.compile."""


@dataclass(frozen=True)
class GraphBreak(Shown):
    """Where and why a frame ends before its function does. `stack`: the user's lines, outermost first."""

    reason: str
    hint: str
    stack: tuple[str, ...]

    def __str__(self) -> str:
        where = f"{self.stack[-1]}: " if self.stack else ""
        return f"{where}{self.reason}" + (f" ({self.hint})" if self.hint else "")

    def without_folders(self) -> str:
        """The same without folders, for artifacts, which must not depend on the machine that built them."""
        if not self.stack:
            return str(self)
        file, line, rest = self.stack[-1].partition(":")
        return str(replace(self, stack=(f"{os.path.basename(file)}{line}{rest}",)))


@dataclass(frozen=True)
class CapturedFrame:
    """One captured frame.

    `graph` holds functional ATen ops with fake tensors in `node.meta["val"]`; its placeholders follow `inputs`; its outputs are the raw
    outputs that `outputs` refer to; mutated inputs are written by trailing `aten.copy_(placeholder, value)` nodes. It is None where there
    is nothing to compute. `backward`, `autograd`: of a call that records gradients, the graph that computes them and how both fit together.
    `uncacheable`: why it cannot be stored. `unchecked`, a part of that: guards that nothing of precast's can check, so that the calls
    that `guards` hold for have to run eagerly.
    """

    name: str
    guards: tuple[Guard, ...]
    uncacheable: tuple[str, ...]
    unchecked: tuple[str, ...]
    digests: tuple[CodeDigest, ...]
    code: FrameRecord | None
    graph: torch.fx.GraphModule | None
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    waived: tuple[str, ...] = field(default=())
    broke: GraphBreak | None = None
    symbols: tuple[str, ...] = ()  # for people: what is symbolic, and what fixed the rest
    compiled: Callable[..., Any] | None = None  # what another backend made of Dynamo's graph; `graph` is None then
    wraps: tuple[Wrap, ...] | None = None  # what the bytecode gets, where `outputs` are not it
    objects: tuple[GraphInput, ...] = ()  # bound objects that `wraps` speak of, and no graph takes
    backward: torch.fx.GraphModule | None = None
    autograd: AutogradRecord | None = None

    @property
    def symbolic(self) -> bool:
        """Whether the frame serves more than one size or number."""
        return any(guard.predicate is Predicate.SHAPE for guard in self.guards) or any(item.kind == "int" for item in self.inputs)

    @property
    def guard_hash(self) -> str:
        return guard_hash(self.guards)
