"""The one table from ATen overloads to lowering rules, and the decorator that fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor

Result = Tensor | tuple[Tensor | None, ...] | list[Tensor] | None
"""What a rule gives: a tensor, one per return, or None where it declines (the op then runs as an extern call)."""

Rule = Callable[..., Result]
"""`rule(builder, *args, **kwargs)` with the op's own arguments: tensors as `Tensor`, integers as `Size`."""

LOWERINGS: dict[torch._ops.OpOverload, Rule] = {}

VIEWS: set[torch._ops.OpOverload] = set()
"""Rules that only move indices: they take any dtype, complex included."""


def overloads(name: str) -> list[torch._ops.OpOverload]:
    """The overloads that `name` means: `"add.Tensor"` is one, `"add.*"` are all functional ones. Unknown ops give none."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None:
        return []
    if overload == "*":
        found = [getattr(packet, o) for o in packet.overloads()]
        return [o for o in found if not o._schema.is_mutable and "out" not in o._overloadname]
    return [getattr(packet, overload or "default")] if (overload or "default") in packet.overloads() else []


def lowering(*names: str, view: bool = False) -> Callable[[Rule], Rule]:
    """Registers the rule for the named ATen overloads (`"name"` means `name.default`)."""

    def register(rule: Rule) -> Rule:
        for name in names:
            for op in overloads(name):
                LOWERINGS[op] = rule
                if view:
                    VIEWS.add(op)
        return rule

    return register


def call(builder: Builder, name: str, *args: Any, **kwargs: Any) -> Any:
    """Applies another op's rule."""
    return LOWERINGS[overloads(name)[0]](builder, *args, **kwargs)
