"""Errors of compiled graphs: the text that C code leaves becomes the exception that the caller of the graph gets."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence

from precast.artifact_store.format.records import GraphInput
from precast.runtime.paths.paths import describe

ERROR_CAPACITY = 4096
"""Bytes that a graph has for its message, with the zero at its end."""
PENDING = "P:"
"""Begins a message whose exception itself waits in this thread: C carries text only, the caller gets what the op raised."""
INDEX_ERRORS = re.compile(
    r"index out of range in self|out of range: tried to access index|Target -?\d+ is out of bounds"
    r"|index_copy_\(\): index -?\d+ is out of bounds"
    r"|\w+\(\): Expected reduction dim -?\d+ to have non-zero size|Dimension out of range \(expected"
)
"""How messages of torch's IndexErrors begin: a library call that fails hands out its text, without its type."""
_pending = threading.local()


def take_exception() -> BaseException | None:
    """What the last failed call of this thread raised; once."""
    problem: BaseException | None = getattr(_pending, "problem", None)
    _pending.problem = None
    return problem


def leave_exception(problem: BaseException, error: int, capacity: int) -> None:
    """Keep `problem` for the caller of this thread, and write a text that stands for it into `capacity` bytes at the address `error`."""
    _pending.problem = problem
    data = f"{PENDING} {problem}".encode(errors="replace")[: capacity - 1] + b"\0"
    ctypes.memmove(error, data, len(data))


def raise_run_error(message: str, inputs: Sequence[GraphInput] = ()) -> None:
    """Turn the text that `precast_run` or `precast_prepare` left into an exception; `inputs`: those of the graph.

    "I:" marks an index error, "E:" the number of an input without memory, `PENDING` what an op raised in Python; an allocator's
    complaint becomes torch's own class, and a library call's words of an index its IndexError.
    """
    if message.startswith(PENDING) and (problem := take_exception()) is not None:
        raise problem
    if message.startswith("I:"):
        raise IndexError(message[2:].strip())
    if message.startswith("E:"):
        number = int(message[2:])
        name = describe(inputs[number].path) if number < len(inputs) else f"input {number} of a compiled graph"
        raise RuntimeError(
            f"{name} has elements but no memory: its storage was resized to 0 bytes, as FSDP does with parameters between their uses; "
            "give it its memory back before the call (with FSDP: unshard the module first)"
        )
    if "CUDA out of memory" in message:
        import torch

        raise torch.OutOfMemoryError(message)
    if INDEX_ERRORS.match(message):
        raise IndexError(message)
    raise RuntimeError(message or "the compiled graph failed without a message")
