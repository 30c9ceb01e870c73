"""Name resolution: the values in this process that a function reads by global names, its closure, and dotted names through modules,
classes and objects. Fingerprints of code that is called without being traced are made of these values.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precast.runtime.fingerprint.free_names import Import, Name, uses
from precast.runtime.fingerprint.module_scope import MISSING, Modules, is_versioned

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)
_METHODS = (
    *(types.FunctionType, staticmethod, classmethod, property),
    *(functools.partialmethod, functools.cached_property, functools._lru_cache_wrapper),
)

Place = tuple[int, str]
"""Where a value stands: the identity of the namespace or object that holds it, and its name there."""


@dataclass(frozen=True)
class Named:
    """A value with the dotted name that the function reads it by. `places`: the variables and attributes on the way to it.

    `itself`: the value, or a method of it, is used; False where only data attributes of it are read.
    """

    name: str
    value: Any
    places: tuple[Place, ...]
    itself: bool = True


def named(function: types.FunctionType, modules: Modules | None = None) -> list[Named]:
    """The values that the function reads, by plain and dotted names (`helper`, `constants.SCALE`) and as defaults, in the order of names.

    A user's module is not one of them, only what is read from it; a class or another object is, and so is what is read from it.
    """
    modules = modules or Modules()
    found: dict[tuple[str, str], Named] = {}
    for name in sorted(uses(function.__code__).read, key=str):
        start = _start(function, name, modules)
        if start is not None:
            kind = name.root if isinstance(name.root, str) else "import"
            for item in _along(*start, modules):
                known = found.get((item.name, kind))
                if known is None or not known.itself:
                    found[item.name, kind] = item
    for parameter, value in _defaults(function).items():
        found[f"{parameter}=", ""] = Named(f"{parameter}=", value, ((id(function), parameter),))
    return [found[key] for key in sorted(found)]


def imports(code: types.CodeType) -> bool:
    """Whether the code reads names that it imports itself."""
    return any(origin.level or not is_versioned(origin.module) for origin in uses(code).imports)


def written(function: types.FunctionType, modules: Modules | None = None) -> set[Place]:
    """The globals, closure variables and attributes (by dotted names) that the function sets."""
    modules = modules or Modules()
    found: set[Place] = set()
    for name in uses(function.__code__).written:
        start = _start(function, name, modules, must_be=False)
        if start is None:
            continue
        item, rest = start
        if not rest:
            found.update(item.places[-1:])
            continue
        owner = item.value
        for part in rest[:-1]:
            owner = _attribute(owner, part, modules)
        if owner is not MISSING:
            found.add((_identity(owner), rest[-1]))
    return found


def set_on_classes(function: types.FunctionType, first_is_class: bool) -> set[str]:
    """The class attributes that a method sets: `cls.seen += 1`, `type(self).seen = …`. `first_is_class`: it is a class method."""
    code = function.__code__
    if not first_is_class and not {"type", "__class__"}.intersection(code.co_names):
        return set()  # without looking at the bytecode: classes may have very many methods
    first = code.co_varnames[0] if code.co_argcount else ""
    own = {chain[1:] for chain in uses(code).set_on if chain[0] == first}
    through = {chain[1] for chain in own if len(chain) == 2 and chain[0] == "__class__"}
    return through | ({chain[0] for chain in own if len(chain) == 1} if first_is_class else set())


def closure(function: types.FunctionType) -> dict[str, Any]:
    """The contents of the function's closure cells, by name; empty cells are left out."""
    found: dict[str, Any] = {}
    for name, cell in _cells(function).items():
        try:
            found[name] = cell.cell_contents
        except ValueError:  # an empty cell
            continue
    return found


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    given = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return dict(zip(names[len(names) - len(given) :], given, strict=True)) | (function.__kwdefaults__ or {})


def _start(function: types.FunctionType, name: Name, modules: Modules, must_be: bool = True) -> tuple[Named, Sequence[str]] | None:
    """The value that a dotted name begins with, and the attributes that follow. None where there is none although it `must_be` there."""
    if isinstance(name.root, Import):
        return _start_of_import(function, name.root, name.chain, modules)
    first, *rest = name.chain
    space: Mapping[str, Any] = function.__globals__ if name.root == "global" else closure(function)
    if first not in space and (must_be or rest):
        return None
    owner: Any = function.__globals__ if name.root == "global" else _cells(function).get(first)
    return Named(first, space.get(first), ((id(owner), first),)), rest


def _start_of_import(
    function: types.FunctionType, origin: Import, rest: Sequence[str], modules: Modules
) -> tuple[Named, Sequence[str]] | None:
    if not origin.level and is_versioned(origin.module):
        return None
    try:
        name = importlib.util.resolve_name("." * origin.level + origin.module, function.__globals__.get("__package__") or "")
    except ImportError:
        return None
    found = modules.get(name)
    if found is not MISSING and not origin.whole:
        name = name.partition(".")[0]
        found = modules.get(name)
    return None if found is MISSING else (Named(name, found, ((0, name),)), rest)


def _along(item: Named, rest: Sequence[str], modules: Modules) -> Iterator[Named]:
    """Resolves a dotted name, attribute by attribute, as far as that runs no code of the user's."""
    for part in (*rest, None):
        is_module = isinstance(item.value, types.ModuleType)
        ends = is_versioned(item.value.__name__) if is_module else type(item.value) in _SIMPLE
        value = MISSING if ends or part is None else _attribute(item.value, part, modules)
        if ends or not is_module:
            yield replace(item, itself=ends or part is None or isinstance(value, _METHODS))
        if value is MISSING or part is None:
            return
        item = Named(f"{item.name}.{part}", value, (*item.places, (_identity(item.value), part)))


def _attribute(owner: Any, name: str, modules: Modules) -> Any:
    """The attribute of a module, class or object, without running code of its own (but a module's `__getattr__`)."""
    if owner is MISSING:
        return MISSING
    if isinstance(owner, types.ModuleType):
        return modules.part(owner, name)
    try:
        held = inspect.getattr_static(owner, name, MISSING)
        if isinstance(held, types.MemberDescriptorType) and not isinstance(owner, type):  # of `__slots__`
            return held.__get__(owner)
        return held
    except Exception:  # noqa: BLE001 - an empty slot, or an object that does not let itself be looked at
        return MISSING


def _identity(owner: Any) -> int:
    return id(owner.__dict__ if isinstance(owner, types.ModuleType) else owner)
