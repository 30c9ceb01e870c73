"""torch.compile's own door: guards on what Python asks before a module's registers, added to torch's own while it waits for the backend.

As capture/guards/lookup_guards.py, with Dynamo's sources in the place of paths. torch has no guard that says how a class resolves
names, so the classes of the module are held to lack each name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from precast.capture.adapters.dynamo import InstructionTranslator, exc
from precast.capture.adapters.guards import (
    AttrSource,
    DictGetItemSource,
    GetItemSource,
    GuardBuilder,
    TracingContext,
    TypeDictSource,
    TypeMROSource,
    TypeSource,
    install_guard,
)
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.guards.lookup_guards import REGISTERS
from precast.runtime.paths.paths import PathError

_ORDER = tuple(REGISTERS.values())


def guard_registers() -> None:
    """To be called by a backend: what torch traced looks at modules' registers, and depends on what is asked before them.

    Raises CaptureRefused where torch traced another program than the one that was written.
    """
    context = TracingContext.try_get()
    if context is None:
        return  # called by hand
    known: set[tuple[int, str]] = set()
    for source in _reached(guard.originating_source for guard in tuple(context.guards_context.dynamo_guards)):
        if isinstance(source, DictGetItemSource) and (register := _register(source.base)) is not None:
            install_guard(*_asked_before(register, source.index, known))


def _register(source: Any) -> AttrSource | None:
    """The source of a register; of a module whose attributes the traced code sets, the tracer finds it in the module's `__dict__`."""
    if isinstance(source, AttrSource):
        return source if source.member in _ORDER else None
    own = getattr(source, "base", None)
    if isinstance(source, DictGetItemSource) and source.index in _ORDER and isinstance(own, AttrSource) and own.member == "__dict__":
        return AttrSource(own.base, source.index)
    return None


def _reached(sources: Iterable[Any]) -> Iterator[Any]:
    """Each source and all that it leads through, once."""
    seen: dict[Any, None] = {}
    for source in sources:
        while source is not None and source not in seen:
            seen[source] = None
            yield source
            source = getattr(source, "base", None)


def skipped(refused: CaptureRefused) -> Exception:
    """What a backend raises for torch to run the frame as it is written."""
    return exc.SkipFrame(str(refused))


def _asked_before(register: AttrSource, name: Any, known: set[tuple[int, str]]) -> Iterator[Any]:
    """`known`: classes, by their ids, and names for which there is a guard."""
    owner = register.base
    try:
        module = _value(owner)
    except PathError:
        return  # a module that the traced code makes
    if not isinstance(module, torch.nn.Module) or not isinstance(name, str):
        return
    own = module.__dict__
    if register.member == "_modules" and name in own["_buffers"] and name not in own["_parameters"] and name not in own:
        raise CaptureRefused(
            f"{type(module).__qualname__} has a buffer and a submodule of the name {name}, of which torch's tracer takes the wrong one",
            hint="precast.compile takes the buffer, as Python does",
        )
    if name not in own:
        yield owner.make_guard(functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name))
    for table in _ORDER[: _ORDER.index(register.member)]:
        if isinstance(own.get(table), dict) and name not in own[table]:
            yield type(register)(owner, table).make_guard(_lacks(name))
    for position, cls in enumerate(type(module).__mro__):
        if cls is torch.nn.Module:
            break  # what stands behind it is object's
        if name not in cls.__dict__ and (id(cls), name) not in known:
            known.add((id(cls), name))
            yield TypeDictSource(GetItemSource(TypeMROSource(TypeSource(owner)), position)).make_guard(_lacks(name))


def _lacks(name: str) -> Any:
    if hasattr(GuardBuilder, "DICT_NOT_CONTAINS"):
        return functools.partial(GuardBuilder.DICT_NOT_CONTAINS, key=name)
    return functools.partial(GuardBuilder.DICT_CONTAINS, key=name, invert=True)  # before torch 2.13


def _value(source: Any) -> Any:
    """What the source is in the call that is traced. Raises PathError."""
    output = InstructionTranslator.current_tx().output
    try:
        return eval(source.name, {"L": output.local_scope, "G": output.global_scope})  # as torch's guards find it
    except (NameError, LookupError, AttributeError, TypeError) as error:
        raise PathError(str(error)) from None


__all__ = ["guard_registers", "skipped"]
