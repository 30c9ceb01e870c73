"""This process's share of the machine: how many processes compile at once, and exclusive use of the machine for measurements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass
class Part:
    """`alone()`: a context in which the other workers of a build stand still. `shared_by`: how many processes compile at once."""

    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    shared_by: int = 1


part = Part()
"""The share of this process; the workers of `precast build --jobs` replace it."""
