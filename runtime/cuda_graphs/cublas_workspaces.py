"""Workspaces of cuBLAS around the capture of a CUDA graph: torch keeps one for each stream, 32 MiB on a Hopper.

That of the caller's stream is made by a warm-up's first product, idle until the next one's, and not needed in a capture. That of the
capture lies in its memory pool, where replays find it whoever uses this memory between them. So both can be given back.

torch gives back those of all streams or none. A thread may have just looked up its own and not have launched yet, and a CUDA graph of
somebody else's may read one in memory that others would get. Where there is another thread, or a pool of somebody else's graphs, they stay.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

_ORDINARY = (0, 0)
_CALL_NOTHING = ("precast-triton-", "tqdm_monitor")
"""Begin the names of threads that mind the compiler's processes, and progress bars."""
_own: set[Any] = {_ORDINARY}


def own_pool() -> Any:
    """A new memory pool for captures of ours."""
    pool = torch.cuda.graph_pool_handle()
    _own.add(pool)
    return pool


def give_back_workspaces() -> None:
    """Of all streams, where nobody else may be about to use them."""
    snapshot: Any = torch.cuda.memory_snapshot
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith(_CALL_NOTHING)]
    if len(threads) == 1 and all(tuple(segment["segment_pool_id"]) in _own for segment in snapshot()):
        torch._C._cuda_clearCublasWorkspaces()


__all__ = ["give_back_workspaces", "own_pool"]
