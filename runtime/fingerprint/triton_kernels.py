"""Fingerprints of users' Triton kernels, and finding a kernel by its name.

A compiled graph launches a kernel by name. It depends on which arguments the kernel writes, and on the configurations in its decorators,
for which grids were computed: all of that follows from the source of the kernel and of its callees, and from the constants that they
read. Triton is never imported here: where there is a kernel it is imported already.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.format.import_names import Untaggable, find_object
from precast.artifact_store.format.tagged_constants import tag
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.fingerprint.functions import function_lines
from precast.runtime.fingerprint.module_scope import AllModules, is_versioned, load
from precast.runtime.fingerprint.resolve_names import named

KERNEL = "kernel "
"""The prefix, in the name of a manifest's digest, that says it is of a kernel; the kernel's module follows."""


def find_kernel(name: str) -> Any:
    """The Triton kernel at `module:qualname`, with its decorators; None where there is none.

    The module is imported if it was not, as the traced code had imported it.
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
"""Name -> (kernel, its configurations, its digest) as last found; a kernel that is defined again under the name gets a new digest."""


def kernel_digest(name: str, again: bool = False) -> str:
    """Hex digest of the kernel's source, decorators, callees and constants; "" where there is no kernel of this name.

    It is cached for as long as the name leads to the same kernel object. `again`: compute it now.
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
    """The configurations that the kernel's autotuners choose from; users may replace them while a process runs."""
    return tuple(config for layer in layers(kernel) for config in getattr(layer, "configs", ()))


def forget() -> None:
    """Drops the cached digests: what kernels name may have changed."""
    _digests.clear()


def kernel_guards(digests: Mapping[str, str]) -> tuple[Guard, ...]:
    """One guard for each kernel among an artifact's digests, checked at each call: a kernel may be defined again in a running process."""
    guards = []
    for key, wanted in digests.items():
        home, _, qualname = key.partition("#")[0].partition(":")
        if home.startswith(KERNEL):
            home = home.removeprefix(KERNEL)
            path = (("module", home), *(("attr", part) for part in qualname.split(".")))
            guards.append(Guard(path, Predicate.KERNEL, (f"{home}:{qualname}", wanted)))
    return tuple(guards)


def changed_kernel(home: str, qualname: str, wanted: str) -> str:
    """Why the kernel is not the one that the artifact was compiled for; "" where it is. `home`: its module."""
    found = kernel_digest(f"{home}:{qualname}")
    if found == wanted:
        return ""
    return f"the Triton kernel {qualname} of {home} {'has changed since' if found else 'is not found in this process'}"


def _decorator(layer: Any) -> str:
    """A description of an autotuner or of heuristics that is the same in every process."""
    told = [f"{name}={getattr(layer, name, None)!r}" for name in ("keys", "reset_to_zero", "restore_value", "configs_top_k")]
    told += [str(config) for config in getattr(layer, "configs", ())]
    for name, function in _consulted(layer).items():
        told.append(f"{name}: {' '.join(line.text for line in function_lines(function, AllModules()))}")
    return "; ".join(told)


def _consulted(layer: Any) -> dict[str, Any]:
    """The functions that an autotuner or heuristics call, by their purpose."""
    found = {f"the heuristic {name}": f for name, f in getattr(layer, "values", {}).items()}
    found |= {name: getattr(layer, name, None) for name in ("perf_model", "early_config_prune")}
    return {name: f for name, f in found.items() if f is not None}


def unreadable(kernel: Any) -> str:
    """The part of the kernel's decorators that no digest can cover (a callable that is no plain function); "" without one."""
    found = (name for layer in layers(kernel)[:-1] for name, f in _consulted(layer).items() if not isinstance(f, types.FunctionType))
    return next((f"{name} is no plain function, so that an edit of it could not be noticed" for name in found), "")


def _sources(kernel: Any) -> Iterator[str]:
    """The syntax trees, as text, of the kernel and its callees, with the constants that they read, in order of discovery."""
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
    """The annotations of the parameters (`tl.constexpr`), by name."""
    return {f"{name}:": value for name, value in function.__annotations__.items()}


def _function(value: Any) -> Any:
    """The user's function in a kernel's helper, or the plain function itself; None for other values and for Triton's own functions."""
    kernels = layers(value)
    found = kernels[-1] if kernels else value if isinstance(value, types.FunctionType) else None
    if found is None:
        return None
    return None if is_versioned(getattr(found, "fn", found).__module__) else found


def _described(value: Any) -> str:
    """Text for a value: a constant's value, otherwise the name or type."""
    try:
        return repr(tag(value))
    except (Untaggable, RecursionError):
        kind = value if isinstance(value, type) else type(value)
        return f"{kind.__module__}:{kind.__qualname__}"
