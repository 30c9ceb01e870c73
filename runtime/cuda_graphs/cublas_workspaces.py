"""Gives back cuBLAS's workspaces around the capture of a CUDA graph: torch keeps one per stream, 32 MiB on a Hopper.

The workspace of the caller's stream is allocated by a warm-up's first matrix product, idle afterwards, and not needed in a capture. That
of the capture stream lies in the captures' memory pool, where replays may use it whatever else uses that memory between them.

torch gives back the workspaces of all streams or none. Another thread may have looked up its workspace and not have launched yet, and a
CUDA graph made by other code may still read one in ordinary memory. So where there are other threads, or pools of other CUDA graphs, they
stay. Autograd's thread of a GPU works while the thread that called it waits: from there, they are given back where one GPU is in use.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

_ORDINARY = (0, 0)
_CALL_NOTHING = ("precast-triton-", "tqdm_monitor")
"""Prefixes of the names of threads that never launch work on a GPU: those of the compiler's worker processes, and progress bars."""
_own: set[Any] = {_ORDINARY}


def own_pool() -> Any:
    """A new memory pool for precast's captures."""
    pool = torch.cuda.graph_pool_handle()
    _own.add(pool)
    return pool


def give_back_workspaces() -> None:
    """Gives back the workspaces of all streams, unless other code may be about to use one."""
    segments: Any = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith(_CALL_NOTHING)]
    alone = threading.get_ident() == threading.main_thread().ident or len({segment["device"] for segment in segments}) <= 1
    if alone and len(threads) == 1 and all(tuple(segment["segment_pool_id"]) in _own for segment in segments):
        torch._C._cuda_clearCublasWorkspaces()


__all__ = ["give_back_workspaces", "own_pool"]
