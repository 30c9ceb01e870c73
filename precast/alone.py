"""What a measurement of this process is made in: a place for whoever can keep the machine quiet meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass
class Measuring:
    """`alone()`: what is measured in it has the machine for itself. A worker of `precast build --jobs` has the others hold still."""

    alone: Callable[[], AbstractContextManager[None]] = nullcontext


measuring = Measuring()
"""This process's."""
