"""The launcher of a loaded executable: replays a CUDA graph where that was asked for, and bumps the version counters of mutated inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from precast.artifact_store.format.records import AutogradRecord, GraphInput
from precast.runtime.executable.calling_convention import GraphSpec
from precast.runtime.executable.graph_call import graph_call
from precast.runtime.executable.library import Library
from precast.runtime.settings.options import CudaGraphOptions

Call = Callable[..., Any]


def library_call(name: str, library: Library, spec: GraphSpec, bound: Sequence[torch.Tensor], cuda_graphs: CudaGraphOptions | None) -> Call:
    """A callable that takes the graph inputs of one call. `name`: the program's, for logs. `cuda_graphs`: None to launch without them."""
    if cuda_graphs is None:
        call = graph_call(library, spec, bound)
    else:
        from precast.runtime.cuda_graphs.call import Bound, cuda_graph_call  # most programs have no CUDA graphs

        call = cuda_graph_call(name, Bound(library, spec, bound), cuda_graphs)
    return _with_versions(call, spec.inputs, bound)


Graph = tuple[Library, GraphSpec, Sequence[torch.Tensor]]
"""A graph's library, its calling convention, and the tensors that are bound to it."""


def recorded_calls(
    name: str, record: AutogradRecord, forward: Graph, backward: Graph, cuda_graphs: CudaGraphOptions | None
) -> tuple[Call, Call]:
    """The same of the forward and the backward graph of a call that records gradients."""
    if cuda_graphs is None:
        calls = graph_call(*forward), graph_call(*backward)
    else:
        from precast.runtime.cuda_graphs.call import Bound, recorded_cuda_graph_calls

        calls = recorded_cuda_graph_calls(name, record, Bound(*forward), Bound(*backward), cuda_graphs)
    (_, spec, bound), (_, gradients, constants) = forward, backward
    return _with_versions(calls[0], spec.inputs, bound), _with_versions(calls[1], gradients.inputs, constants)


def _with_versions(call: Call, inputs: Sequence[GraphInput], bound: Sequence[torch.Tensor]) -> Call:
    """`call`, and then a bump of the version counter of each input that it writes, as an in-place operator makes, even where it raises:
    autograd and packed copies of weights compare these counters.
    """
    if not any(item.mutated for item in inputs):
        return call
    left = iter(bound)
    own = [next(left) if item.bound or item.kind == "constant" else None for item in inputs]
    kept = [tensor for tensor, item in zip(own, inputs, strict=True) if item.mutated and tensor is not None]
    places = [item.position for item in inputs if item.mutated and item.position is not None]
    moved = torch._C._increment_version

    def run(*args: Any) -> Any:
        try:
            return call(*args)
        finally:
            moved([*kept, *[args[place] for place in places]])

    return run
