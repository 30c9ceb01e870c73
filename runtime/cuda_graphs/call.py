"""Graph callables that replay CUDA graphs: for compiled graphs on a GPU whose program asked for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from precast.artifact_store.format.records import AutogradRecord
from precast.runtime.cuda_graphs.device import device_of, unfit
from precast.runtime.cuda_graphs.graphs import Capturable, CudaGraphs
from precast.runtime.cuda_graphs.native_replay import NativePlayer
from precast.runtime.cuda_graphs.recorded import Keeps, Kept, keeps_of, kept_of
from precast.runtime.executable.calling_convention import GraphSpec
from precast.runtime.executable.graph_call import graph_call, weights_stamp
from precast.runtime.executable.library import Library
from precast.runtime.native import loader as native_runtime
from precast.runtime.settings.options import CudaGraphOptions

Call = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, eq=False, repr=False)
class Bound:
    """A compiled graph with the tensors that are bound to it."""

    library: Library
    spec: GraphSpec
    tensors: Sequence[torch.Tensor]


def cuda_graph_call(name: str, graph: Bound, options: CudaGraphOptions) -> Call:
    """As `graph.graph_call`, with CUDA graphs. `name`: of the program, for the logs."""
    return _captured(name, graph, options)[0]


def recorded_cuda_graph_calls(
    name: str, record: AutogradRecord, forward: Bound, backward: Bound, options: CudaGraphOptions
) -> tuple[Call, Call]:
    """The same of both graphs of a call that records gradients."""
    call, graphs = _captured(f"{name} (forward)", forward, options, keeps=keeps_of(record))
    gradients, _ = _captured(f"{name} (backward)", backward, options, kept=kept_of(record, forward.spec, graphs.homes))
    return call, gradients


def _captured(
    name: str, of: Bound, options: CudaGraphOptions, keeps: Keeps | None = None, kept: Kept | None = None
) -> tuple[Call, CudaGraphs]:
    library, spec, bound = of.library, of.spec, of.tensors
    run = graph_call(library, replace(spec, finish=None), bound)
    weights = spec.lasting(bound)
    prepared = (lambda: weights_stamp(weights)) if library.prepare else (lambda: None)

    def into(homes: Sequence[torch.Tensor | None], *args: Any) -> tuple[Any, ...]:
        given = tuple(home if i in library.lent else None for i, home in enumerate(homes))
        raw: tuple[Any, ...] = run.into(given, *args)  # type: ignore[attr-defined]
        return raw

    why_not = unfit(library.externs.operators)
    graph = Capturable(name, run, spec, bound, into, library.lent, library.may_draw, why_not, prepared, keeps, kept or Kept())
    graphs = CudaGraphs(graph, options, device_of)
    native = native_runtime.loaded()
    if native is None:
        return graphs, graphs
    graphs.player = player = NativePlayer(native, run, spec.finish, graphs, bool(library.prepare))
    call: Call = player.call
    return call, graphs
