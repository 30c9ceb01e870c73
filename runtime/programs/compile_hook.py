"""The callable that compiles on a miss: registered by name, imported at the first miss only, and run by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precast.runtime.common import torch_support
from precast.runtime.common.errors import CompilerBroken, Deferred, InProcess
from precast.runtime.common.locks import Lock
from precast.runtime.common.upward_imports import COMPILE_VARIANT, load
from precast.runtime.programs.interfaces import Compilable

Outcome = str | InProcess | Deferred
"""An artifact's id, what stays in this process, or what a background thread is to finish."""
Compile = Callable[[Compilable, tuple[Any, ...], Mapping[str, Any]], Outcome]
_compiler: str | Compile = COMPILE_VARIANT.name
one_at_a_time = Lock()
"""The tracer is not thread-safe."""


def set_compiler(compiler: str | Compile) -> None:
    """Register what compiles on a miss: a callable, or "module:name", which is imported on the first miss only.

    It gets `(program, args, kwargs)`, args with `self` first, puts an artifact into `program.store` and returns its id; it returns
    `InProcess` for what cannot be stored and raises `Refused` for what has to run eagerly.
    """
    global _compiler
    _compiler = compiler


def compiler() -> Compile:
    """What `set_compiler` registered. Raises CompilerBroken where it cannot be imported."""
    if isinstance(_compiler, str):
        try:
            found: Compile = load(_compiler)
        except Exception as error:  # adapters name what is private to torch: another torch may lack some of it
            raise CompilerBroken(torch_support.note_broken(error)) from error
        return found
    return _compiler


def is_free() -> bool:
    """Whether nobody compiles just now."""
    free = one_at_a_time.try_enter()
    if free:
        one_at_a_time.__exit__()
    return free


__all__ = ["Compile", "Outcome", "compiler", "is_free", "one_at_a_time", "set_compiler"]
