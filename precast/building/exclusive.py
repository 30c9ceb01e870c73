"""This process's part of the machine: how many compile beside it, and how it has the machine for itself where it measures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass
class Part:
    """`alone()`: what is measured in it no other worker of the build disturbs. `shared_by`: how many processes compile at once."""

    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    shared_by: int = 1


part = Part()
"""The workers of `precast build --jobs` change theirs."""
