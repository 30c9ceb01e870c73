"""Fingerprints of operators registered through `torch.library`: the part of them that a compiled graph depends on.

A compiled graph calls such an operator by name, so its body may change freely. The graph depends on what was used to trace it: the
schema, the tags, the fake implementation, and the body of an operator that is traced into (`torch.library.triton_op`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._library import custom_ops, simple_registry

from precast.runtime.fingerprint.fingerprint import Account, Line
from precast.runtime.fingerprint.functions import function_lines, reached
from precast.runtime.fingerprint.module_scope import Modules

OPERATOR = "operator "
"""The prefix, in the name of a manifest's digest, that says it is of an operator; the module that registered it follows."""


def find_operator(name: str) -> torch._ops.OpOverload | None:
    """The operator called `namespace::name.overload` (no overload: `default`), where it is registered in this process."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    except AttributeError:
        return None
    return found if isinstance(found, torch._ops.OpOverload) else None


def operator_name(op: torch._ops.OpOverload) -> str:
    """`namespace::name.overload`, the overload always named."""
    return f"{op._schema.name}.{op._schema.overload_name or 'default'}"


def traced_functions(op: torch._ops.OpOverload) -> dict[str, Callable[..., Any]]:
    """The Python functions that run while a graph with this operator is traced, by their purpose."""
    found: dict[str, Callable[..., Any]] = {}
    definition = custom_ops.OPDEFS.get(op._schema.name)
    entry = _registered(op)
    if definition is not None:
        if definition._abstract_fn is not None:
            found["fake"] = definition._abstract_fn
        if entry is not None and entry.torch_dispatch_rules._data:
            found["body"] = definition._init_fn
    elif entry is not None and entry.fake_impl.kernel is not None:
        found["fake"] = entry.fake_impl.kernel.func
    return found


def _registered(op: torch._ops.OpOverload) -> simple_registry.SimpleOperatorEntry | None:
    """What `torch.library` knows about the operator; `find` would add an entry, and torch 2.11's registry has no `get`."""
    return simple_registry.singleton._data.get(op._schema.name)


def operator_home(op: torch._ops.OpOverload) -> str:
    """The module whose import registers the operator, as far as Python knows; "" for one that a shared library registered."""
    definition = custom_ops.OPDEFS.get(op._schema.name)
    functions = [definition._init_fn] if definition is not None else [*traced_functions(op).values()]
    return next((str(f.__module__) for function in functions for f in reached(function)), "")


def operator_account(name: str, modules: Modules | None = None) -> Account | None:
    """The fingerprint of the operator; None where it is not registered in this process."""
    op = find_operator(name)
    if op is None:
        return None
    modules = modules or Modules()
    entry = _registered(op)
    effect = "" if entry is None else str(entry.effect.effect)
    lines = [Line("schema", str(op._schema)), Line("tags", ",".join(sorted(map(str, op.tags)))), Line("effect", effect)]
    for role, function in sorted(traced_functions(op).items()):
        lines += [Line("functions", role), *function_lines(function, modules)]
    return Account.of(lines, modules.used)


def reached_code(op: torch._ops.OpOverload) -> frozenset[types.CodeType]:
    """The code that `operator_account` covers, nested functions included."""
    found: set[types.CodeType] = set()
    codes = [f.__code__ for function in traced_functions(op).values() for f in reached(function)]
    while codes:
        code = codes.pop()
        found.add(code)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return frozenset(found)
