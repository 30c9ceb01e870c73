"""What a function names outside of itself: globals, what its closure holds, and dotted names through modules, classes and objects.

Read off its bytecode, with the values that stand there now. So it is found what code that no tracer reads depends on.
"""

from __future__ import annotations

import dis
import functools
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

VERSIONED = frozenset(sys.stdlib_module_names) | {"torch", "torchgen", "functorch", "precast", "triton", "numpy", "sympy", "mpmath"}
"""Packages whose functions and constants are not followed: users do not edit them."""
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_FREE = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_PADDING = ("EXTENDED_ARG", "NOP", "PUSH_NULL", "CACHE")
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)
_MISSING = object()

Chain = tuple[str, ...]
"""The parts of a dotted name."""
Place = tuple[int, str]
"""Where a value stands: the identity of the namespace or object that holds it, and its name there."""


@dataclass(frozen=True)
class Named:
    """A value under the name that the function calls it by."""

    name: str
    value: Any
    place: Place


@dataclass(frozen=True)
class _Uses:
    """Of code, nested code included: what it reads as globals, of its closure, of its own imports (level, module); what it sets."""

    globals: frozenset[Chain]
    free: frozenset[Chain]
    imported: frozenset[tuple[int, str, Chain]]
    written: frozenset[Chain]


def is_versioned(module: Any) -> bool:
    """Whether a module of this name belongs to a package that is not followed."""
    root = str(module or "").partition(".")[0]
    return root in VERSIONED and root != "__main__"


def named(function: types.FunctionType) -> list[Named]:
    """What the function reads, by plain and dotted names (`helper`, `constants.SCALE`), its defaults too, in the order of the names.

    A user's module is not among it, but what is read of it is; classes and other objects are, beside what is read of them.
    """
    uses = _uses(function.__code__)
    found: dict[str, Named] = {}
    for chains, space in ((uses.globals, function.__globals__), (uses.free, closure(function))):
        for first, *rest in chains:
            if first in space:
                _note(found, Named(first, space[first], (id(space), first)), rest)
    for level, module, chain in uses.imported:
        place = _imported(level, module, function.__globals__)
        if place is not None:
            _note(found, Named(place.__name__, place, (0, place.__name__)), chain)
    for name, value in _defaults(function).items():
        found[f"{name}="] = Named(f"{name}=", value, (id(function), name))
    return [found[name] for name in sorted(found)]


def imports(code: types.CodeType) -> bool:
    """Whether the code imports some of what it reads."""
    return any(level or not is_versioned(module) for level, module, _ in _uses(code).imported)


def written(function: types.FunctionType) -> set[Place]:
    """The globals, and the attributes by dotted names, that the function sets."""
    found: set[Place] = set()
    for first, *rest in _uses(function.__code__).written:
        owner: Any = closure(function).get(first, function.__globals__.get(first))
        for part in rest[:-1]:
            owner = _attribute(owner, part)
        found.add((_identity(owner), rest[-1]) if rest else (id(function.__globals__), first))
    return found


def closure(function: types.FunctionType) -> dict[str, Any]:
    """What the function's closure holds by now, by name."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # an empty cell
            continue
    return found


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    given = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return dict(zip(names[len(names) - len(given) :], given, strict=True)) | (function.__kwdefaults__ or {})


def _note(found: dict[str, Named], item: Named, rest: Sequence[str]) -> None:
    """Follows a dotted name from its first part as far as it leads to something that can be told."""
    for part in (*rest, None):
        is_module = isinstance(item.value, types.ModuleType)
        ends = is_versioned(item.value.__name__) if is_module else type(item.value) in _SIMPLE
        if ends or not is_module:
            found[item.name] = item
        if ends or part is None:
            return
        value = _attribute(item.value, part)
        if value is _MISSING:
            return
        item = Named(f"{item.name}.{part}", value, (_identity(item.value), part))


def _attribute(owner: Any, name: str) -> Any:
    """What a module, class or object holds under this name, without running code of its own (a module's `__getattr__` aside)."""
    try:
        return getattr(owner, name, _MISSING) if isinstance(owner, types.ModuleType) else inspect.getattr_static(owner, name, _MISSING)
    except Exception:  # noqa: BLE001 - a lazy module may raise anything
        return _MISSING


def _identity(owner: Any) -> int:
    return id(owner.__dict__ if isinstance(owner, types.ModuleType) else owner)


def _imported(level: int, module: str, namespace: dict[str, Any]) -> types.ModuleType | None:
    """The module that an import inside of the function gives; imported here where that has not happened yet, as the function did."""
    if not level and is_versioned(module):
        return None
    try:
        name = importlib.util.resolve_name("." * level + module, namespace.get("__package__") or "")
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001 - a user's module runs here
        return None


@functools.lru_cache(maxsize=8192)
def _uses(code: types.CodeType) -> _Uses:
    read: dict[str, set[Any]] = {"global": set(), "free": set(), "import": set(), "written": set()}
    local: dict[str, tuple[int, str]] = {}
    codes = [code]
    while codes:
        nested = codes.pop(0)
        codes += [c for c in nested.co_consts if isinstance(c, types.CodeType)]
        _read_code(nested, local, read)
    return _Uses(*map(frozenset, read.values()))


def _read_code(code: types.CodeType, local: dict[str, tuple[int, str]], read: dict[str, set[Any]]) -> None:
    """Notes into `read` what the code names. `local`: variables that hold modules which it imported."""
    steps = [i for i in dis.get_instructions(code) if i.opname not in _PADDING]
    module: tuple[int, str] = (0, "")
    for at, step in enumerate(steps):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            read["written"].add((step.argval,))
        elif step.opname == "IMPORT_NAME":
            level = steps[at - 2].argval if at > 1 else 0
            module = (level if isinstance(level, int) else 0, step.argval)
            _bind(steps, at, module, local)
        elif step.opname == "IMPORT_FROM":
            read["import"].add((*module, (step.argval,)))
        name = _loaded(step)
        kind = "global" if step.opname in _GLOBAL else "import" if name in local else "free" if step.opname in _FREE else ""
        if not name or not kind:
            continue
        chain, is_set = _chain(steps, at + 1)
        if is_set:
            read["written"].add((name, *chain))
        elif kind == "import":
            read["import"].add((*local[name], chain))
        else:
            read[kind].add((name, *chain))


def _bind(steps: Sequence[dis.Instruction], at: int, module: tuple[int, str], local: dict[str, tuple[int, str]]) -> None:
    """Notes which variable `import a`, `import a.b` (which gives `a`) or `import a.b as c` at this place sets."""
    after = steps[at + 1 : at + 8]
    stored = next((step for step in after if step.opname.startswith("STORE_")), None)
    if stored is None or steps[at - 1].argval:
        return  # `from a import b`
    level, name = module
    variable = stored.argval[0] if isinstance(stored.argval, tuple) else stored.argval
    deep = after[0].opname == "IMPORT_FROM"
    local[variable] = (level, name if deep else name.partition(".")[0])


def _loaded(step: dis.Instruction) -> str:
    """The variable that the instruction puts on top of the stack."""
    if step.opname not in (*_GLOBAL, *_FREE) and "LOAD_FAST" not in step.opname:
        return ""
    return str(step.argval[-1] if isinstance(step.argval, tuple) else step.argval)


def _chain(steps: Sequence[dis.Instruction], at: int) -> tuple[Chain, bool]:
    """The attributes that are read one after another, and whether the last one is set: `a.b = …`, `a.b += …`."""
    chain: list[str] = []
    while at < len(steps) and steps[at].opname in _ATTRIBUTE:
        chain.append(steps[at].argval)
        at += 1
    rest = [(step.opname, step.argval) for step in steps[at : at + 2]]
    if rest and rest[0][0] in ("STORE_ATTR", "DELETE_ATTR"):
        return (*chain, rest[0][1]), True
    if len(rest) == 2 and rest[0][0] == "COPY" and rest[1][0] in _ATTRIBUTE:
        return (*chain, rest[1][1]), True
    return tuple(chain), False
