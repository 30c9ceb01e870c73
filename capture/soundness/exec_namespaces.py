"""Code whose globals are no module's: made by `exec` (torch.fx's graph modules, for one), or of a module that another one has replaced."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator
from typing import Any

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.import_names import Untaggable, object_name
from precast.capture.adapters.dynamo import InliningInstructionTranslator
from precast.capture.adapters.guards import DictGetItemSource, GlobalSource
from precast.capture.adapters.variables import VariableBuilder
from precast.capture.common.patching import patched
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.frames.entry import is_own_namespace
from precast.runtime.paths.paths import PathError

_GLOBALS = ("attr", "__globals__")


@contextlib.contextmanager
def looked_up_where_they_are() -> Iterator[None]:
    """Globals of an inlined function are those that it has. The tracer takes them from the module of the name that is among them."""
    original: Any = InliningInstructionTranslator.get_globals_source_and_value

    def get_globals_source_and_value(self: InliningInstructionTranslator, name: str) -> tuple[Any, Any, Any]:
        if not isinstance(self.f_globals.get("__name__"), str) or not is_own_namespace(self.f_globals):
            found: tuple[Any, Any, Any] = original(self, name)
            return found
        held = GlobalSource(self.output.install_global_by_id("___unnamed_scope", self.f_globals))
        return self.f_globals, VariableBuilder(self, held)(self.f_globals), DictGetItemSource(held, name)

    with patched(InliningInstructionTranslator, "get_globals_source_and_value", get_globals_source_and_value):
        yield


def path_of(identity: int, functions: Iterable[types.FunctionType], seen: Iterable[Any], sources: SourceContext) -> Path | None:
    """Where another process finds the namespace with this id: as the globals of one of `functions`, which were inlined."""
    for function in functions:
        if id(function.__globals__) == identity and (path := _importable(function) or _found(function, seen, sources)):
            return (*path, _GLOBALS)
    return None


def code_guards(functions: Iterable[types.FunctionType], seen: Iterable[Any], sources: SourceContext) -> list[Guard]:
    """What holds those of the inlined functions to their code that have no name to be found by."""
    own = [function for function in functions if is_own_namespace(function.__globals__) and _importable(function) is None]
    found = ((function, _found(function, seen, sources)) for function in own)
    return [Guard(path, Predicate.CODE, digest(function.__code__)) for function, path in found if path is not None]


def _importable(function: types.FunctionType) -> Path | None:
    try:
        module, _, qualname = object_name(function).partition(":")
    except Untaggable:
        return None
    first, *rest = qualname.split(".")
    return (("global", module, first), *(("attr", part) for part in rest))


def _found(function: types.FunctionType, seen: Iterable[Any], sources: SourceContext) -> Path | None:
    """The path of a function that the traced code looked at (`seen`: Dynamo's sources), or of a method of such an object's class."""
    for source in seen:
        try:
            path = sources.path(source)
            value = sources.value(path)
        except (NotPortable, PathError):
            continue
        if value is function:
            return path
        if isinstance(value, types.MethodType) and value.__func__ is function:
            return (*path, ("attr", "__func__"))
        for name, method in _methods(value):
            if method is function:
                return (*path, ("type",), ("attr", name))
    return None


def _methods(value: Any) -> Iterator[tuple[str, types.FunctionType]]:
    for cls in type(value).__mro__:
        for name, member in tuple(vars(cls).items()):
            reached: Any = getattr(type(value), name, None)  # unless a nearer class hides it
            if isinstance(member, types.FunctionType) and member is reached:
                yield name, member


__all__ = ["code_guards", "looked_up_where_they_are", "path_of"]
