"""Private names of torch: those that the runtime uses, and those that capture's adapters import."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator

from precast.runtime.common.eval_frame import USED
from precast.torch_facts.fact import EAGER, OK, Answer, Fact, answer_of

HOOK = "torch._C._dynamo.eval_frame"
GUARDS = "torch._C._dynamo.guards"
RUNTIME: dict[str, tuple[str, ...]] = {
    "the global state that guards compare": (
        "torch._C:_len_torch_function_stack",
        "torch._C:_get_function_stack_at",
        "torch._C:_len_torch_dispatch_stack",
        "torch._C:_is_torch_function_enabled",
        "torch._C:_is_torch_function_all_disabled",
        "torch._C:_get_float32_matmul_precision",
        "torch._C._functorch:peek_interpreter_stack",
    ),
    "calls inside another tracer": (
        "torch._C:_get_dispatch_mode",
        "torch._C:_TorchDispatchModeKey",
        "torch._C:_get_tracing_state",
    ),
    "torch-function modes in rewritten bytecode": (
        "torch._C:_pop_torch_function_stack",
        "torch._C:_push_on_torch_function_stack",
    ),
    "tensors that compiled graphs take and give": (
        "torch._C._aoti:unsafe_alloc_void_ptr_from_tensor",
        "torch._C._aoti:alloc_tensor_by_stealing_from_void_ptr",
        "torch._C._aoti:alloc_tensors_by_stealing_from_void_ptrs",
        "torch._C:_increment_version",
        "torch._C:_set_grad_enabled",
    ),
    "custom operators": ("torch._library.custom_ops:OPDEFS", "torch._library.simple_registry:SimpleOperatorEntry"),
}
"""What needs them -> "module:attribute"."""
ADAPTERS = "precast.capture.adapters"


def facts() -> Iterator[Fact]:
    """The frame hook, the C guards, other names of the runtime; then one fact for each adapter."""
    for name in USED:
        yield _name("frame hook", f"{HOOK}:{name}", "every program: calls of what is not compiled itself are intercepted")
    for name in ("RootGuardManager", "GlobalStateGuard"):
        yield _name("frame hook", f"{GUARDS}:{name}", "programs with graph breaks, and guards that only torch's own code can check")
    for needed_for, names in RUNTIME.items():
        for name in names:
            yield _name("runtime", name, needed_for)
    package = importlib.import_module(ADAPTERS)
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        check = functools.partial(_adapter, f"{ADAPTERS}.{module}")
        yield Fact("adapters", f"capture/adapters/{module}.py", "captures", EAGER, check, stops=True)


def _name(group: str, name: str, needed_for: str) -> Fact:
    return Fact(group, name.replace(":", "."), needed_for, EAGER, functools.partial(is_there, name), stops=True, names=(name,))


def is_there(name: str) -> Answer:
    """Whether torch has what "module:attribute" names."""
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        parent, _, last = module.rpartition(".")  # of a module that is an attribute of a C extension
        found = getattr(importlib.import_module(parent), last, None) if parent else None  # type: ignore[assignment]
        if found is None:
            return Answer("fails", str(error))
    return OK if hasattr(found, attribute) else Answer("fails", f"there is no {name.replace(':', '.')}")


def _adapter(module: str) -> Answer:
    try:
        adapter = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - an adapter names what is private to torch, and torch may raise anything
        return Answer("fails", f"{type(error).__name__}: {error}")
    return answer_of([f"there is no {name}" for name in getattr(adapter, "__all__", ()) if not hasattr(adapter, name)])


__all__ = ["facts", "is_there"]
