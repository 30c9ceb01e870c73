"""functorch's interpreters, the transforms that a call may be under. Private to torch: imported here only."""

from __future__ import annotations

from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack

__all__ = [
    "is_functorch_wrapped_tensor",
    "peek_interpreter_stack",
]
