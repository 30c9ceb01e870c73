"""What code generation depends on besides the program and the target: options of the compile, and what is found out on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from precast.codegen.common.measure import Record


@dataclass(frozen=True)
class CodegenOptions:
    """Options that are read once, from those that are part of an artifact's key."""

    freeze: bool = False
    """Weights may be packed once per binding, in a library's own layout."""
    max_autotune: bool = False
    """Every choice is measured anew."""
    max_autotune_seconds: float = math.inf
    """How long that may take for one graph; what it leaves takes the default."""
    sanitize: str = ""
    """Sanitizers for generated C++ ("address,undefined")."""
    measure: bool = True
    """Library calls may be timed where code for this machine's own CPU is made; else the defaults are taken."""


@dataclass(frozen=True)
class CompileContext:
    """What is known of one program by the time it is compiled."""

    bound: Collection[str] | None = None
    """The inputs that are weights, which last from call to call (None: every input)."""
    inference: bool = False
    """Whether calls may be made in inference mode."""
    frees_inputs: bool = False
    """Whether callers hand their inputs over: each tensor is freed after its last use."""
    tuning: Mapping[str, Record] = field(default_factory=dict)
    """Choices that were measured before, by key."""
    alone: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes the context in which library calls are timed: nothing else that this build runs takes the cores meanwhile."""
    shared_by: int = 1
    """How many builds share this machine's cores."""
    missing: frozenset[str] = frozenset()
    """C functions of torch's that host programs call and that the torch at hand lacks."""


OPTIONS, CONTEXT = CodegenOptions(), CompileContext()
"""The defaults."""
