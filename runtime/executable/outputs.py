"""Raw outputs of a compiled graph -> what the rewritten bytecode expects from the graph callable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from precast.artifact_store.format.expressions import evaluate
from precast.artifact_store.format.records import GraphOutput


def graph_outputs(outputs: Sequence[GraphOutput], raw: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """One object per position; `inputs` are all graph inputs, bound ones included. A grad mode that stays is the last, and set then."""
    if not outputs or outputs[-1].kind != "grad_mode":
        return tuple([_one(output, raw, inputs) for output in outputs])
    made = tuple([_one(output, raw, inputs) for output in outputs[:-1]])
    torch._C._set_grad_enabled(bool(outputs[-1].value))
    return made


def _one(output: GraphOutput, raw: Sequence[Any], inputs: Sequence[Any]) -> Any:
    index = output.index if output.index is not None else -1
    match output.kind:
        case "raw":
            return raw[index]
        case "input":
            return inputs[index]
        case "view":
            return _view(output, inputs[index], inputs, raw)
        case "output_view":
            return _view(output, raw[index], inputs, raw)
        case "int":
            return raw[index] if output.value is None else evaluate(output.value, inputs, raw)
        case "none" | "grad_mode":
            return None


def _view(output: GraphOutput, base: torch.Tensor, inputs: Sequence[Any], raw: Sequence[Any]) -> torch.Tensor:
    size, stride = ([n if isinstance(n, int) else evaluate(n, inputs, raw) for n in numbers] for numbers in (output.size, output.stride))
    offset = evaluate(output.offset, inputs, raw)
    if output.dtype is None:
        view = base.as_strided(size, stride, base.storage_offset() + offset)
    else:
        view = torch.empty(0, dtype=getattr(torch, output.dtype), device=base.device)
        start = base.storage_offset() * base.element_size() // view.element_size()
        view.set_(base.untyped_storage(), start + offset, size, stride)
    return view.detach() if output.detach else view
