"""Graph callables that replay CUDA graphs: for compiled graphs on a GPU whose program asked for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from precast.runtime.cuda_graphs.device import device_of, unfit
from precast.runtime.cuda_graphs.graphs import Capturable, CudaGraphs
from precast.runtime.cuda_graphs.native_replay import NativePlayer
from precast.runtime.executable.calling_convention import GraphSpec
from precast.runtime.executable.graph_call import graph_call, weights_stamp
from precast.runtime.executable.library import Library
from precast.runtime.native import loader as native_runtime
from precast.runtime.settings.options import CudaGraphOptions


def cuda_graph_call(
    name: str, library: Library, spec: GraphSpec, bound: Sequence[torch.Tensor], options: CudaGraphOptions
) -> Callable[..., tuple[Any, ...]]:
    """As `graph.graph_call`, with CUDA graphs. `name`: of the program, for the logs."""
    run = graph_call(library, replace(spec, finish=None), bound)
    weights = spec.lasting(bound)
    prepared = (lambda: weights_stamp(weights)) if library.prepare else (lambda: None)

    def into(homes: Sequence[torch.Tensor | None], *args: Any) -> tuple[Any, ...]:
        given = tuple(home if i in library.lent else None for i, home in enumerate(homes))
        raw: tuple[Any, ...] = run.into(given, *args)  # type: ignore[attr-defined]
        return raw

    why_not = unfit(library.externs.operators)
    graph = Capturable(name, run, spec, bound, into, library.lent, library.may_draw, why_not, prepared)
    graphs = CudaGraphs(graph, options, device_of)
    native = native_runtime.loaded()
    if native is None:
        return graphs
    graphs.player = player = NativePlayer(native, run, spec.finish, graphs, bool(library.prepare))
    call: Callable[..., tuple[Any, ...]] = player.call
    return call
