"""Operators that cannot be part of a graph: Dynamo breaks the graph at them, so that Python calls them between two graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from precast.capture.adapters.dynamo import unimplemented
from precast.capture.adapters.operators import custom_ops, utils
from precast.capture.adapters.variables import TorchInGraphFunctionVariable
from precast.capture.common.patching import patched

_TORCH = ("aten", "prim", "prims", "higher_order", "profiler", "inductor", "quantized")


def _reason(value: Any) -> tuple[str, str]:
    """Why no graph can hold a call of this, and what to do about it; empty where one can."""
    if isinstance(value, torch._ops.OpOverloadPacket):
        overloads = (getattr(value, name) for name in value._overload_names)
        return next((found for overload in overloads if (found := _reason(overload))[0]), ("", ""))
    if not isinstance(value, torch._ops.OpOverload) or value.namespace in _TORCH:
        return "", ""
    name = value._schema.name
    if any(r.alias_info is not None for r in value._schema.returns) and not value._can_decompose():
        return (
            f"the operator {name} returns an alias of its argument, by its schema {value._schema}",
            "return nothing and use the argument, or return a copy and drop the annotation",
        )
    definition = custom_ops.OPDEFS.get(name)
    if definition is not None and definition._abstract_fn is None and not utils.can_generate_trivial_fake_impl(value):
        return f"the operator {name} has no fake implementation, so its result's shape is not known", f"register one: @{name}.register_fake"
    return "", ""


@contextlib.contextmanager
def broken_at_operators() -> Iterator[None]:
    """While a frame is traced: a call of such an operator is a graph break (an error under fullgraph)."""
    original = TorchInGraphFunctionVariable.call_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        reason, hint = _reason(self.value)
        if reason:
            unimplemented(gb_type=reason, context=str(self.value), explanation="only functional operators stand in graphs", hints=[hint])
        return original(self, tx, args, kwargs)

    with patched(TorchInGraphFunctionVariable, "call_function", call_function):
        yield
