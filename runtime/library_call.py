"""A library -> what calls it: by CUDA graph where that is wanted, and with the version counters of what it writes moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from precast.artifact_store.records import GraphInput
from precast.runtime.calling_convention import GraphSpec
from precast.runtime.graph import graph_call
from precast.runtime.library import Library
from precast.runtime.options import CudaGraphOptions

Call = Callable[..., Any]


def library_call(name: str, library: Library, spec: GraphSpec, bound: Sequence[torch.Tensor], cuda_graphs: CudaGraphOptions | None) -> Call:
    """A callable of the per-call graph inputs. `name`: of the program, for the logs; `cuda_graphs`: None for none."""
    if cuda_graphs is None:
        call = graph_call(library, spec, bound)
    else:
        from precast.runtime.cuda_call import cuda_graph_call  # most programs never need it

        call = cuda_graph_call(name, library, spec, bound, cuda_graphs)
    return _with_versions(call, spec.inputs, bound)


def _with_versions(call: Call, inputs: Sequence[GraphInput], bound: Sequence[torch.Tensor]) -> Call:
    """`call`, after which the version counters of what it writes have moved, as an operator's in place do, also where it raises midway:
    autograd and prepared weights go by them.
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
