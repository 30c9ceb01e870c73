"""What is compiled, and one call of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Program:
    """A module or a function with the arguments of one call. `dynamic`: the first dimension of the first argument varies."""

    model: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: bool = False
