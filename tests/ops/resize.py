"""Traces at sizes other than their own: which symbols there are, other values that the guards allow, inputs of those sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import GraphModule


def shape_env_of(graph: GraphModule) -> Any:
    """The shape environment of a symbolic trace, or None where nothing in it is symbolic."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for size in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def other_values(env: Any, tries: int = 8) -> dict[Any, int] | None:
    """Greater values for as many of the trace's symbols as its guards allow; None where they fix every size."""
    traced = {s: int(v) for s, v in dict(env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val).items()}
    chosen = dict(traced)
    for symbol in sorted(traced, key=str):
        for step in range(1, tries + 1):
            attempt = {**chosen, symbol: traced[symbol] + step}
            if holds(env, attempt):
                chosen = attempt
                break
    if chosen == traced:
        for step in range(1, tries + 1):  # sizes that only change together
            together = {s: v + step for s, v in traced.items()}
            if holds(env, together):
                return together
    return chosen if chosen != traced else None


def holds(env: Any, values: dict[Any, int]) -> bool:
    """Whether every guard and range of the trace admits these sizes."""
    numbers = {s: sympy.Integer(v) for s, v in values.items()}
    for symbol, bounds in env.var_to_range.items():
        if symbol in values and not (bounds.lower <= values[symbol] <= bounds.upper):
            return False
    expressions = [g.expr for g in env.guards] + [sympy.Eq(s, e) for s, e in env.replacements.items() if s in values]
    return all(e.xreplace(numbers) in (True, sympy.true) for e in expressions)


def resized(graph: GraphModule, tensors: Sequence[torch.Tensor], values: dict[Any, int], generator: torch.Generator) -> list[torch.Tensor]:
    """Tensors of the traced placeholders' sizes under `values`, drawn from the elements of `tensors`, with their order of strides."""
    result = []
    places = (n for n in graph.graph.nodes if n.op == "placeholder")
    numbers = {s: sympy.Integer(v) for s, v in values.items()}
    for node, tensor in zip(places, tensors, strict=True):
        shape = [int(s.node.expr.xreplace(numbers)) if isinstance(s, torch.SymInt) else int(s) for s in node.meta["val"].shape]
        strides = [int(s.node.expr.xreplace(numbers)) if isinstance(s, torch.SymInt) else int(s) for s in node.meta["val"].stride()]
        if shape == list(tensor.shape):
            result.append(tensor.clone(memory_format=torch.preserve_format) if tensor.is_contiguous() else tensor)
            continue
        span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
        flat = tensor.flatten()
        picks = torch.randint(0, flat.numel(), (span,), generator=generator) if flat.numel() else torch.zeros(0, dtype=torch.int64)
        result.append(flat[picks].as_strided(shape, strides))
    return result
