"""Which sizes and numbers the next capture of a program keeps symbolic, and what happens when symbols cannot be compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.manifest import guard_rows
from precast.artifact_store.format.packed_guards import GuardRow
from precast.capture import CaptureRefused, Dynamic
from precast.runtime.common.errors import Refused, strict
from precast.runtime.common.log import logger
from precast.runtime.paths.paths import resolve
from precast.runtime.programs.automatic_dynamic import Varied, varied
from precast.runtime.programs.program import Program
from precast.runtime.targets.ladder import concerns

T = TypeVar("T")
_WITH_SYMBOLS_ONLY = ("BUILD_STRING type error", "Operator does not support running with fake tensors")
"""Beginnings of the tracer's messages for an f-string with a symbol in it, and for an operator whose sizes torch finds by running it."""


class SymbolsRefused(Refused):
    """Compiling with symbolic sizes was refused; with the sizes of this call it may succeed."""


def dynamic_of(program: Program, local_values: Mapping[str, Any]) -> Dynamic:
    """What to keep symbolic, by the program's options and by the guards of its variants, stored ones included."""
    mode = program.options["dynamic"]
    changed: Varied = {}
    floats = False
    if mode != "no":
        stored = _stored_guards(program)
        here = [guard_rows(variant.all_guards()) for variant in program.variants if not variant.stored]
        cells = program.locals_of.cells()
        changed = varied([*stored, *here, program.first_call], local_values, cells)
        # other backends get torch's own form of a symbolic float, a tensor, which is none of the call's objects
        floats = program.backend is None and any(type(resolve(p, local_values, cells)) is float for p, dims in changed.items() if not dims)
    if mode == "yes":
        changed = {}
    scalars, shapes = program.options["capture_scalar_outputs"], program.options["capture_dynamic_output_shape_ops"]
    return Dynamic(mode, changed, floats, scalars, shapes)


def _stored_guards(program: Program) -> list[tuple[GuardRow, ...]]:
    """The guards of the program's stored artifacts for its target; an artifact whose guards cannot be read is logged and left out."""
    found = []
    for document in program.store.trusted_variants(program.key):
        manifest = document.content
        try:
            if concerns(program.target, manifest.target):
                found.append(manifest.guard_rows)
        except DamagedRecord as error:
            logger("dynamic").info("%s: artifact %s says nothing of sizes: %s", program.name, manifest.artifact_id[:12], error)
    return found


def with_symbols_or_without(name: str, dynamic: Dynamic, compile_with: Callable[[Dynamic], T]) -> T:
    """`compile_with(dynamic)`; where that is refused, again without symbolic floats, and then with static sizes. Each retry is logged."""
    try:
        return compile_with(dynamic)
    except SymbolsRefused as refused:
        say = logger("dynamic").warning if dynamic.mode == "yes" else logger("dynamic").info
        if dynamic.floats:
            say("%s is compiled for the floats of this call only: %s", name, refused.reason)
            return with_symbols_or_without(name, replace(dynamic, floats=False), compile_with)
        say("%s is compiled for the sizes of this call only: %s", name, refused.reason)
        return compile_with(replace(dynamic, mode="no", varied={}))


def due_to_symbols(refused: CaptureRefused, dynamic: Dynamic) -> bool:
    """Whether a capture that was refused may succeed with static sizes and numbers: `"%d" % n` seems to raise where `n` is a symbol."""
    return (refused.symbols or refused.raises or refused.reason.startswith(_WITH_SYMBOLS_ONLY)) and (
        dynamic.mode == "yes" or bool(dynamic.varied)
    )


def symbolic_build(build: Callable[[], T], symbolic: bool) -> T:
    """`build()`; for a graph with symbolic sizes Refused is raised as SymbolsRefused."""
    if not symbolic:
        return build()
    try:
        return build()
    except Refused as refused:
        raise SymbolsRefused(refused.reason, refused.hint) from refused
    except Exception as error:  # an untested combination of symbols; static sizes may still compile, and the reason is logged
        if strict():
            raise
        raise SymbolsRefused(f"compiling it with symbolic sizes failed ({type(error).__name__}: {error})") from error


__all__ = ["SymbolsRefused", "due_to_symbols", "dynamic_of", "symbolic_build", "with_symbols_or_without"]
