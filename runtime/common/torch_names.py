"""Private names of torch, beside the frame hook, that the runtime uses: where one is missing, programs run as they are written."""

from __future__ import annotations

import importlib
from typing import Any

NAMES: dict[str, tuple[str, ...]] = {
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
    "calls that record gradients": (
        "torch._C._autograd:_top_saved_tensors_default_hooks",
        "torch._C._functions:DelayedError",
        "torch._C:_DisableAutocast",
    ),
    "custom operators": ("torch._library.custom_ops:OPDEFS", "torch._library.simple_registry:SimpleOperatorEntry"),
}
"""What needs them -> "module:attribute"."""


def why_missing(name: str) -> str:
    """Why torch does not have what "module:attribute" names, as a sentence; empty where it has."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:  # a module that is an attribute of a C extension
        parent, _, last = module.rpartition(".")
        found = getattr(importlib.import_module(parent), last, None) if parent else None
        if found is None:
            return str(error)
    return "" if hasattr(found, attribute) else f"there is no {name.replace(':', '.')}"


def missing_names() -> list[str]:
    """Those of `NAMES` that this torch lacks."""
    return [name.replace(":", ".") for names in NAMES.values() for name in names if why_missing(name)]


__all__ = ["NAMES", "missing_names", "why_missing"]
