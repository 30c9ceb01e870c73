"""Guards on attribute lookup: the tables that Python searches before the one in which the traced code found a name must lack that name.

A module's parameters, buffers and submodules are found only where its own `__dict__`, its class and the earlier registers lack the name; an
entry added there later hides what was found. The same holds for what an object gets from its class: for most of that the tracer guards the
object's `__dict__` itself, name by name (`capture/soundness/attribute_lookup.py` does for the rest).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.runtime.paths.paths import PathError

REGISTERS = {"param": "_parameters", "buffer": "_buffers", "submodule": "_modules"}
"""Steps of paths -> the register that they lead through, in the order in which `torch.nn.Module.__getattr__` searches them."""
_KINDS = {table: kind for kind, table in REGISTERS.items()}
Tables = dict[str, dict[str, None]]


def with_lookups(guards: Iterable[Guard], consumed: Iterable[Any], sources: SourceContext) -> list[Guard]:
    """`guards` with one LACKS_OWN guard per object, which lists all names that its own tables must lack.

    `consumed`: sources of the objects that the traced code accessed.
    """
    guards = tuple(guards)
    lacking: dict[Path, Tables] = {}
    for guard in guards:
        if guard.predicate is Predicate.LACKS_OWN:
            for table, names in guard.constant.items():
                lacking.setdefault(guard.path, {}).setdefault(table, {}).update(dict.fromkeys(names))
    seen: set[Path] = set()
    for path in _paths(guards, consumed, sources):
        for end in range(len(path), 1, -1):
            if path[:end] in seen:
                break
            seen.add(path[:end])
            if (found := _through_register(path[:end])) is not None:
                _asked_before(*found, lacking, sources)
    others = [guard for guard in guards if guard.predicate is not Predicate.LACKS_OWN]
    return [*others, *(Guard(path, Predicate.LACKS_OWN, _constant(tables)) for path, tables in lacking.items())]


def _paths(guards: Iterable[Guard], consumed: Iterable[Any], sources: SourceContext) -> Iterator[Path]:
    for guard in guards:
        yield guard.path
    for source in consumed:
        try:
            yield sources.path(source)
        except NotPortable:
            continue  # such a source exists only while tracing


def _through_register(path: Path) -> tuple[Path, tuple[str, str]] | None:
    """The module, and the step through one of its registers, where the path ends with such a step.

    Of a module whose attributes the traced code sets, the tracer finds registers in its `__dict__`.
    """
    match path:
        case (*owner, (kind, str(name))) if kind in REGISTERS:
            return tuple(owner), (kind, name)
        case (*owner, ("dict",), ("item", ("str", table)), ("item", ("str", str(name)))) if table in _KINDS:
            return tuple(owner), (_KINDS[table], name)
    return None


def _asked_before(owner: Path, step: tuple[str, str], lacking: dict[Path, Tables], sources: SourceContext) -> None:
    """Records the tables of the module at `owner` that are searched before the register that `step` leads through.

    A table that has the name while the call is traced was not searched: the traced code read the register itself, as `parameters()` does.
    """
    try:
        module = sources.value(owner)
    except PathError:
        return  # a module that the traced code makes
    if not isinstance(module, torch.nn.Module):
        return
    kind, name = step
    registers = tuple(REGISTERS.values())
    for table in ("__dict__", *registers[: registers.index(REGISTERS[kind])]):
        held = module.__dict__ if table == "__dict__" else module.__dict__.get(table)
        if isinstance(held, dict) and name not in held:
            lacking.setdefault(owner, {}).setdefault(table, {})[name] = None


def _constant(tables: Tables) -> dict[str, tuple[str, ...]]:
    return {table: tuple(sorted(tables[table])) for table in sorted(tables)}


__all__ = ["REGISTERS", "with_lookups"]
