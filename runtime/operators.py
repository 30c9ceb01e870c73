"""Operators registered through `torch.library`: which part of them a compiled graph depends on, as a digest.

A compiled graph calls such an operator by name, so its body is not part of the graph and may change freely. What was read while the graph
was made is: the schema, the tags, the fake implementation, and the body of an operator that is traced into (`torch.library.triton_op`).
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library import custom_ops, simple_registry

from precast.artifact_store.constants import Untaggable, tag
from precast.runtime.code_digest import digest

OPERATOR = "operator "
"""Begins the module part of a digest's name where it belongs to an operator; what follows is the module that registered it."""
_PLAIN = (bool, int, float, complex, str, bytes, tuple, torch.dtype, torch.device)
_VERSIONED = ("torch", "precast")
"""Packages whose version is part of every artifact's key."""


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
    """The Python functions that run while a graph with this operator is traced, by what they are for."""
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
    return next((str(f.__module__) for function in functions for f in _reached(function)), "")


def operator_digest(name: str) -> str:
    """Hex digest of what a graph that calls this operator depends on; "" where the operator is not registered here."""
    op = find_operator(name)
    if op is None:
        return ""
    entry = _registered(op)
    effect = "" if entry is None else str(entry.effect.effect)
    parts = [str(op._schema), ",".join(sorted(map(str, op.tags))), effect]
    for role, function in sorted(traced_functions(op).items()):
        parts += [role, *function_text(function)]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def reached_code(op: torch._ops.OpOverload) -> frozenset[types.CodeType]:
    """The code that `operator_digest` covers, nested functions included."""
    found: set[types.CodeType] = set()
    codes = [f.__code__ for function in traced_functions(op).values() for f in _reached(function)]
    while codes:
        code = codes.pop()
        found.add(code)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return frozenset(found)


def function_text(function: Callable[..., Any]) -> Iterator[str]:
    """The code of the function and of its helpers, with the constants of their modules and closures that they name."""
    for helper in _reached(function):
        yield digest(helper.__code__)
        for name, value in sorted(_names(helper).items()):
            if type(value) in _PLAIN:
                with contextlib.suppress(Untaggable):  # a tuple of objects
                    yield f"{name}={tag(value)!r}"


def _reached(function: Callable[..., Any]) -> list[types.FunctionType]:
    """The function and the plain functions that it names, outside of torch and the standard library, in order of discovery."""
    found: list[types.FunctionType] = []
    seen: set[types.FunctionType] = set()
    stack: list[Any] = [function]
    while stack:
        item = stack.pop()
        while isinstance(item, functools.partial):
            item = item.func
        if not isinstance(item, types.FunctionType) or item in seen:
            continue
        seen.add(item)
        if _is_versioned(item):  # torch wraps what is registered: the user's function is in the wrapper's closure
            stack += closure(item).values()
            continue
        found.append(item)
        stack += [value for _, value in sorted(_names(item).items(), reverse=True)]
    return found


def _is_versioned(function: types.FunctionType) -> bool:
    root = str(function.__module__).partition(".")[0]
    return root in _VERSIONED or root in sys.stdlib_module_names


def _names(function: types.FunctionType) -> dict[str, Any]:
    """What the function reads from its module's globals and its closure and does not write itself."""
    read: set[str] = set()
    written: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL":
                read.add(instruction.argval)
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                written.add(instruction.argval)
    found = {name: function.__globals__[name] for name in read - written if name in function.__globals__}
    return found | closure(function)


def closure(function: types.FunctionType) -> dict[str, Any]:
    """What the function's closure holds by now, by name."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # an empty cell
            continue
    return found
