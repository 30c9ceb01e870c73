"""Users' Triton kernels: finding them by name, and what a compiled graph that launches one depends on, as a digest.

A graph launches a kernel by name. What was read while the graph was made is which arguments the kernel writes, and, of its decorators, the
configurations, for which grids were computed. All of it follows from the source of the kernel, of the functions that it names, and from
the constants that they read. Triton is never imported here: it is there wherever a kernel is.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

from precast.artifact_store.constants import tag
from precast.artifact_store.guards import Guard, Predicate
from precast.artifact_store.import_names import Untaggable, find_object
from precast.runtime.code_digest import digest
from precast.runtime.function_text import function_lines
from precast.runtime.modules import AllModules, is_versioned, load
from precast.runtime.named import named

KERNEL = "kernel "
"""Begins the module part of a digest's name where it belongs to a kernel; its module follows."""


def find_kernel(name: str) -> Any:
    """What stands under `module:qualname`, if that is a Triton kernel or one with decorators of Triton's; None otherwise.

    The traced code had imported the module, so it is imported here where that has not happened yet.
    """
    module = name.partition(":")[0]
    load(module)
    try:
        found = find_object(name)
        return found if layers(found) else None
    except Exception:  # noqa: BLE001 - a lazy module may raise anything: then there is no kernel
        return None


def layers(kernel: Any) -> list[Any]:
    """The kernel's decorators (autotuner, heuristics) from the outside in, and last the kernel itself, which holds a plain function."""
    found: list[Any] = []
    while isinstance(inner := getattr(kernel, "__dict__", {}).get("fn"), types.FunctionType) or hasattr(inner, "fn"):
        found.append(kernel)
        kernel = inner
    return found if isinstance(kernel, types.FunctionType) else []


_digests: dict[str, tuple[Any, tuple[Any, ...], str]] = {}
"""The kernel last found under a name, its configurations, its digest: one that is defined anew under the same name is another."""


def kernel_digest(name: str, again: bool = False) -> str:
    """Hex digest of the kernel's source, decorators, helpers and constants; "" where it is not found by this name.

    `again`: read them now. Otherwise they are read once for each kernel that comes to stand under the name.
    """
    found = find_kernel(name)
    if found is None:
        return ""
    known = _digests.get(name)
    configs = configurations(found)
    if again or known is None or known[0] is not found or known[1] != configs:
        text = "\n".join([*(_decorator(layer) for layer in layers(found)[:-1]), *_sources(layers(found)[-1])])
        known = _digests[name] = found, configs, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return known[2]


def configurations(kernel: Any) -> tuple[Any, ...]:
    """The configurations that the kernel's autotuners choose from now; people replace them while a process runs."""
    return tuple(config for layer in layers(kernel) for config in getattr(layer, "configs", ()))


def forget() -> None:
    """Look at all kernels again (what they name may have changed)."""
    _digests.clear()


def kernel_guards(digests: Mapping[str, str]) -> tuple[Guard, ...]:
    """One guard for each kernel among an artifact's digests, asked at each call: a kernel may be defined anew while the process runs."""
    guards = []
    for key, wanted in digests.items():
        home, _, qualname = key.partition("#")[0].partition(":")
        if home.startswith(KERNEL):
            home = home.removeprefix(KERNEL)
            path = (("module", home), *(("attr", part) for part in qualname.split(".")))
            guards.append(Guard(path, Predicate.KERNEL, (f"{home}:{qualname}", wanted)))
    return tuple(guards)


def changed_kernel(home: str, qualname: str, wanted: str) -> str:
    """Why the kernel is not the one that was compiled with; empty where it is."""
    found = kernel_digest(f"{home}:{qualname}")
    if found == wanted:
        return ""
    return f"the Triton kernel {qualname} of {home} {'has changed since' if found else 'is not found in this process'}"


def _decorator(layer: Any) -> str:
    """What an autotuner or heuristics say, in words that do not depend on the process."""
    told = [f"{name}={getattr(layer, name, None)!r}" for name in ("keys", "reset_to_zero", "restore_value", "configs_top_k")]
    told += [str(config) for config in getattr(layer, "configs", ())]
    for name, function in _consulted(layer).items():
        told.append(f"{name}: {' '.join(line.text for line in function_lines(function, AllModules()))}")
    return "; ".join(told)


def _consulted(layer: Any) -> dict[str, Any]:
    """What an autotuner or heuristics ask, by what it is for."""
    found = {f"the heuristic {name}": f for name, f in getattr(layer, "values", {}).items()}
    found |= {name: getattr(layer, name, None) for name in ("perf_model", "early_config_prune")}
    return {name: f for name, f in found.items() if f is not None}


def unreadable(kernel: Any) -> str:
    """What of the kernel's decorators no digest can cover; empty where there is nothing: all that they ask are plain functions."""
    found = (name for layer in layers(kernel)[:-1] for name, f in _consulted(layer).items() if not isinstance(f, types.FunctionType))
    return next((f"{name} is no plain function, so that an edit of it could not be noticed" for name in found), "")


def _sources(kernel: Any) -> Iterator[str]:
    """The kernel's syntax and that of the functions that it names, with the constants that they read, in order of discovery."""
    seen: set[types.FunctionType] = set()
    stack = [kernel]
    while stack:
        item = stack.pop()
        function = item if isinstance(item, types.FunctionType) else item.fn
        if function in seen:
            continue
        seen.add(function)
        tree = _syntax(item, function)
        yield f"{function.__qualname__}: {digest(function.__code__) if tree is None else ast.dump(tree)}"
        told = {item.name: item.value for item in named(function, AllModules())} | _annotations(function)
        for name, value in told.items():
            if (helper := _function(value)) is not None:
                stack.append(helper)
            else:
                yield f"{name}={_described(value)}"


def _syntax(item: Any, function: types.FunctionType) -> ast.FunctionDef | None:
    """The function's source as Triton compiles it, without decorators; None where there is none."""
    text = getattr(item, "src", None)
    try:
        parsed = ast.parse(textwrap.dedent(text if isinstance(text, str) else inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(parsed, ast.FunctionDef):
        return None
    parsed.decorator_list = []
    return parsed


def _annotations(function: types.FunctionType) -> dict[str, Any]:
    """What stands at the parameters (`tl.constexpr`), by name."""
    return {f"{name}:": value for name, value in function.__annotations__.items()}


def _function(value: Any) -> Any:
    """The user's function that this is, a kernel's helper or a plain one; None for all else and for functions of Triton's own."""
    kernels = layers(value)
    found = kernels[-1] if kernels else value if isinstance(value, types.FunctionType) else None
    if found is None:
        return None
    return None if is_versioned(getattr(found, "fn", found).__module__) else found


def _described(value: Any) -> str:
    """A constant by its value; other things by their names or types."""
    try:
        return repr(tag(value))
    except (Untaggable, RecursionError):
        kind = value if isinstance(value, type) else type(value)
        return f"{kind.__module__}:{kind.__qualname__}"
