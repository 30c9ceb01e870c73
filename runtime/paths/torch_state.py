"""torch's global state as one flat record: what a captured frame depends on besides its arguments. num_threads is no part of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._device


def global_state() -> dict[str, Any]:
    """The state now, as plain data, key by key comparable.

    `default_device` names the device type and index set by `torch.set_default_device` (not by a plain process default), or None.
    `function_modes` lists the classes on the torch-function mode stack, without the one that a default device installs.
    """
    stack = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    contexts = [
        mode.device for mode in stack if isinstance(mode, torch.utils._device.DeviceContext)
    ]  # `with torch.device(…)` sets nothing else
    device = contexts[-1] if contexts else torch.utils._device.CURRENT_DEVICE
    modes = [type(mode) for mode in stack]
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": {
            kind: str(torch.get_autocast_dtype(kind)).removeprefix("torch.") for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
        },
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default_device": None if device is None else str(device),
        "torch_function": torch._C._is_torch_function_enabled(),
        "torch_function_all_disabled": torch._C._is_torch_function_all_disabled(),
        "function_modes": tuple(f"{c.__module__}:{c.__qualname__}" for c in modes if c is not torch.utils._device.DeviceContext),
        "dispatch_modes": torch._C._len_torch_dispatch_stack(),
        "functorch": torch._C._functorch.peek_interpreter_stack() is not None,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
