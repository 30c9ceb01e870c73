"""Guards on attribute resolution: on classes of the objects that the traced code accessed, and on built-in functions in its modules.

Dynamo guards the type of an object and the values read through it, and assumes that the class itself does not change: a method patched on a
base class, an override in a subclass or a global that shadows a built-in would go unnoticed.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.import_names import Untaggable, object_name
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.capture.guards.lookup_guards import REGISTERS
from precast.runtime.fingerprint.classes import Known, can_change, class_digest, is_versioned, looked_up
from precast.runtime.paths.fake_tensors import class_of
from precast.runtime.paths.paths import PathError

_OF_ONE_CLASS = (Predicate.TYPE, Predicate.TENSOR, Predicate.BASE_EQUALS, Predicate.EQUALS)
"""Predicates that hold for instances of one class only."""
_LOOKED_UP = frozenset(("attr", "raw", *REGISTERS))


def resolution_guards(
    guards: Iterable[Guard],
    consumed: Iterable[Any],
    codes: Iterable[types.CodeType],
    functions: Iterable[types.FunctionType],
    sources: SourceContext,
) -> list[Guard]:
    """`guards`: those of the frame so far; `consumed`: sources of what was looked at; `codes`, `functions`: what was traced."""
    guards, functions = tuple(guards), tuple(functions)
    found = _shadows(functions)
    names = frozenset(name for code in (*codes, *(f.__code__ for f in functions)) for name in _names(code)).union(_names_found(guards))
    classes: dict[type, tuple[Path, bool]] = {}
    for cls, path, constructs in sorted(_classes(guards, consumed, sources), key=lambda item: repr(item[1:])):
        known = classes.setdefault(cls, (_importable(cls) or path, constructs))
        classes[cls] = (known[0], known[1] or constructs)
    seen: Known = {}
    written = looked_up(names)
    rows = sorted(
        ((path, constructs, class_digest(cls, written, constructs, seen)) for cls, (path, constructs) in classes.items()), key=repr
    )
    if rows:
        found.append(Guard((("state",),), Predicate.CLASSES, {"names": tuple(sorted(names)), "classes": tuple(rows)}))
    return found


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that the code may look up: written as attributes, or as strings for `getattr`."""
    stack: list[Any] = [code]
    while stack:
        item = stack.pop()
        if isinstance(item, types.CodeType):
            yield from item.co_names
            stack += item.co_consts
        elif isinstance(item, (tuple, frozenset)):
            stack += item
        elif isinstance(item, str) and item.isidentifier():
            yield item


def _names_found(guards: Iterable[Guard]) -> Iterator[str]:
    """Names that were looked up, which the code may have put together: as attributes that were found, or past an object's own tables."""
    for guard in guards:
        yield from (str(step[1]) for step in guard.path[1:] if step[0] in _LOOKED_UP)
        if guard.predicate is Predicate.LACKS_OWN:
            for names in guard.constant.values():
                yield from names


def _classes(guards: Iterable[Guard], consumed: Iterable[Any], sources: SourceContext) -> Iterator[tuple[type, Path, bool]]:
    """Classes whose attributes the traced code may have looked up, where they are found, and whether it may have made instances."""
    for path in dict.fromkeys(g.path for g in guards if g.predicate in _OF_ONE_CLASS):
        yield from _with_metaclass(class_of(sources.value(path)), (*path, ("type",)), False)
    for source in consumed:
        try:
            path = sources.path(source)
            value = sources.value(path)
        except (NotPortable, PathError):
            continue  # such a source exists only while tracing
        if isinstance(value, type):
            yield from _with_metaclass(value, path, True)


def _with_metaclass(cls: type, path: Path, constructs: bool) -> Iterator[tuple[type, Path, bool]]:
    """The class, and those that its own attributes are looked up on: each where it can change."""
    while can_change(cls):
        yield cls, path, constructs
        cls, path, constructs = type(cls), (*path, ("type",)), False


def _importable(cls: type) -> Path | None:
    try:
        module, _, qualname = object_name(cls).partition(":")
    except Untaggable:
        return None
    first, *rest = qualname.split(".")
    return (("global", module, first), *(("attr", name) for name in rest))


def _shadows(functions: tuple[types.FunctionType, ...]) -> list[Guard]:
    """Guards that no global of a traced function's module shadows a built-in function that it calls."""
    wanted: dict[str, set[str]] = {}
    for function in functions:
        module = function.__globals__.get("__name__")
        if not isinstance(module, str) or is_versioned(module):
            continue
        if getattr(sys.modules.get(module), "__dict__", None) is not function.__globals__:
            continue
        stack = [function.__code__]
        while stack:
            code = stack.pop()
            wanted.setdefault(module, set()).update(n for n in code.co_names if n in builtins.__dict__ and n not in function.__globals__)
            stack += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [
        Guard((("module", module), ("dict",)), Predicate.LACKS_KEY, tag(name))
        for module in sorted(wanted)
        for name in sorted(wanted[module])
    ]
