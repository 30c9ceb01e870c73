"""torch's frame evaluation hook and C guards, as far as the runtime uses them: private to torch, imported here only.

Where this torch lacks some of it, `MISSING` says what, the runtime runs every program as it is written, and what stands here in its place
changes nothing.
"""

from __future__ import annotations

import types
from typing import Any

USED = (
    "_FrameAction",
    "_FrameExecStrategy",
    "_debug_get_cache_entry_list",
    "_load_precompile_entry",
    "_reset_precompile_entries",
    "get_eval_frame_callback",
    "reset_code",
    "set_code_exec_strategy",
    "set_eval_frame",
)
"""Of `torch._C._dynamo.eval_frame`."""

eval_frame: Any
RootGuardManager: Any
GlobalStateGuard: Any
try:
    from torch._C._dynamo import eval_frame
    from torch._C._dynamo.guards import GlobalStateGuard, RootGuardManager

    MISSING = ", ".join(f"torch._C._dynamo.eval_frame.{name}" for name in USED if not hasattr(eval_frame, name))
except (ImportError, AttributeError) as error:
    MISSING = str(error)
if MISSING:
    eval_frame = types.SimpleNamespace(
        _FrameAction=types.SimpleNamespace(DEFAULT=None, SKIP=None),
        _FrameExecStrategy=lambda *actions: None,
        get_eval_frame_callback=lambda: None,
        set_code_exec_strategy=lambda code, strategy: None,
        set_eval_frame=lambda callback: None,
    )
    RootGuardManager = GlobalStateGuard = None

__all__ = ["GlobalStateGuard", "MISSING", "RootGuardManager", "eval_frame"]
