"""Raw outputs of a compiled graph -> what the rewritten bytecode expects from the graph callable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from precast.artifact_store.records import GraphOutput


def graph_outputs(outputs: Sequence[GraphOutput], raw: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """One object per position; `inputs` are all graph inputs, bound ones included."""
    return tuple([_one(output, raw, inputs) for output in outputs])


def _one(output: GraphOutput, raw: Sequence[Any], inputs: Sequence[Any]) -> Any:
    index = output.index if output.index is not None else -1
    match output.kind:
        case "raw":
            return raw[index]
        case "input":
            return inputs[index]
        case "view":
            return _view(output, inputs[index])
        case "output_view":
            return _view(output, raw[index])
        case "int":
            return raw[index] if output.value is None else output.value
        case "none":
            return None


def _view(output: GraphOutput, base: torch.Tensor) -> torch.Tensor:
    if output.dtype is None:
        view = base.as_strided(output.size, output.stride, base.storage_offset() + output.offset)
    else:
        view = torch.empty(0, dtype=getattr(torch, output.dtype), device=base.device)
        start = base.storage_offset() * base.element_size() // view.element_size()
        view.set_(base.untyped_storage(), start + output.offset, output.size, output.stride)
    return view.detach() if output.detach else view
