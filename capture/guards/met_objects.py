"""The paths of the objects that traced code accessed, for guards on identity (capture/guards/identity.py).

Beside the objects themselves these are cells, where the traced code writes free variables, and the `__dict__` of objects whose attributes
it writes: the tracer assumes that no two functions share a cell, and no two objects a `__dict__`.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Sequence
from typing import Any

from precast.artifact_store.format.guards import Path
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.capture.guards.translate import from_dynamo
from precast.runtime.frames import lambda_lift
from precast.runtime.paths.paths import CLOSURE, PathError, describe

_STORES = frozenset(("STORE_DEREF", "DELETE_DEREF"))


def met_paths(met: Iterable[Any], waived: Iterable[Any], kept: Iterable[Any], sources: SourceContext) -> list[Path]:
    """The paths of sources that the traced code accessed, without those whose guards a filter has waived completely."""
    unwanted = {guard.originating_source for guard in waived} - {guard.originating_source for guard in kept}
    found: list[Path] = []
    for source in met:
        try:
            if source not in unwanted and not from_dynamo(path := sources.path(source)):
                found.append(path)
        except (NotPortable, PathError):
            continue  # it exists only while tracing, or its guards have no portable form and the frame is not stored
    return list(dict.fromkeys(found))


def cell_paths(met: Sequence[Path], functions: Sequence[types.FunctionType], sources: SourceContext) -> list[Path]:
    """The cells of all functions accessed and of the entry, if one of `functions` (those traced) writes a free variable.

    The entry's cells are those of its closure, or those passed with the call (`runtime/frames/lambda_lift.py`).
    """
    if not any(_writes(function.__code__) for function in functions):
        return []
    found: list[Path] = []
    for root, name in ((("closure",), CLOSURE), (("local", lambda_lift.CLOSURE), lambda_lift.CLOSURE)):
        if isinstance(closure := sources.local_values.get(name), tuple):
            found += [(root, ("item", ("int", i))) for i in range(len(closure))]
    for path, value in _present(met, sources):
        if isinstance(value, types.FunctionType):
            found += [(*path, ("attr", "__closure__"), ("item", ("int", i))) for i in range(len(value.__closure__ or ()))]
    return found


def _writes(code: types.CodeType) -> bool:
    return bool(code.co_freevars) and any(step.opname in _STORES and step.argval in code.co_freevars for step in dis.get_instructions(code))


def attribute_paths(met: Sequence[Path], side_effects: Any, sources: SourceContext) -> list[Path]:
    """The `__dict__` of every accessed object whose class has an instance whose attributes the traced code writes."""
    written = set()
    for variable in side_effects.store_attr_mutations:
        if (source := getattr(variable, "source", None)) is not None:
            written.update(met_paths((source,), (), (), sources))
    present = _present(met, sources)
    classes = {type(value) for path, value in present if path in written}
    return [(*path, ("dict",)) for path, value in present if type(value) in classes and isinstance(_attributes(value), dict)]


def refusal_of_shared_attributes(paths: Sequence[Path], sources: SourceContext) -> CaptureRefused | None:
    """The refusal where two different objects share a `__dict__`: an attribute written on one is read on the other, which the tracer does
    not know.
    """
    owners: dict[int, tuple[Any, Path]] = {}
    for path, value in _present([path[:-1] for path in paths], sources):
        first, known = owners.setdefault(id(_attributes(value)), (value, path))
        if first is not value:
            return CaptureRefused(
                f"{describe(known)} and {describe(path)} are two objects with one `__dict__`, and the traced code sets attributes of such",
                hint="give each an attribute that holds what they share",
            )
    return None


def _attributes(value: Any) -> Any:
    return getattr(value, "__dict__", None)


def _present(paths: Iterable[Path], sources: SourceContext) -> list[tuple[Path, Any]]:
    found = []
    for path in paths:
        try:
            found.append((path, sources.value(path)))
        except PathError:
            continue  # nothing is there before the call
    return found


__all__ = ["attribute_paths", "cell_paths", "met_paths", "refusal_of_shared_attributes"]
