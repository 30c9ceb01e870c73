"""Digests of Python code that do not depend on its position: file names and line numbers are left out."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any


@functools.lru_cache(maxsize=16384)
def digest(code: types.CodeType) -> str:
    """Hex digest of a code object: instructions, constants (nested code too), names, flags; no file names, no line numbers."""
    return hashlib.sha256(_text(code).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _text(code: types.CodeType) -> str:
    constants = ";".join(_constant(c) for c in code.co_consts)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return f"{code.co_code.hex()}|{constants}|{names}|{counts}|{code.co_exceptiontable.hex()}"


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return f"<{_text(value)}>"
    if isinstance(value, tuple):
        return "(" + ",".join(map(_constant, value)) + ")"
    if isinstance(value, frozenset):
        return "{" + ",".join(sorted(map(_constant, value))) + "}"
    if isinstance(value, float):
        return value.hex()
    return f"{type(value).__name__}:{value!r}"


def find_code(module: str, qualname: str) -> list[types.CodeType]:
    """Every code object with this qualified name in `module`: found by name, or inside decorators, closures and enclosing functions.

    Nothing is imported; a module that is not imported has none.
    """
    place = sys.modules.get(module)
    if place is None:
        return []
    direct = direct_code(place, qualname)
    return direct + [c for c, _ in _index(place).get(qualname, []) if c not in direct]


def find_functions(module: str, qualname: str) -> list[types.FunctionType]:
    """Functions with the code that `find_code` finds. Code nested in another function has no function object: where it has no free
    variables one is made for it, otherwise it is left out.
    """
    place = sys.modules.get(module)
    if place is None:
        return []
    found = dict.fromkeys(direct_functions(place, qualname))
    for code, function in _index(place).get(qualname, []):
        if function is not None:
            found[function] = None
        elif not code.co_freevars:
            found[types.FunctionType(code, place.__dict__)] = None
    return list(found)


def filed_code(module: str, qualname: str) -> list[types.CodeType]:
    """Every code object of this name that the file of `module` defines, also of functions that cannot be reached by name any more, such as
    one whose name a decorator has rebound to the operator that it registered.
    """
    return [code for code in codes_of_file(module) if code.co_qualname == qualname]


def codes_of_file(module: str) -> list[types.CodeType]:
    """Every code object that the file of `module` defines."""
    whole = _code_of_file(module)
    stack, found = [] if whole is None else [whole], []
    while stack:
        code = stack.pop()
        found.append(code)
        stack += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found


@functools.cache
def file_digest(module: str) -> str:
    """The digest of all code in the file of `module`, which includes the defaults of its functions. "" where there is no file."""
    code = _code_of_file(module)
    return "" if code is None else digest(code)


def _code_of_file(module: str) -> types.CodeType | None:
    place = sys.modules.get(module)
    spec = getattr(place, "__spec__", None)  # a script has none
    loader = getattr(place, "__loader__", None) if spec is None else spec.loader
    read: Callable[[str], types.CodeType | None] = getattr(loader, "get_code", lambda name: None)
    try:
        return read(module if spec is None else spec.name)
    except (ImportError, OSError, SyntaxError):  # the file is gone, or is none of Python's any more
        return None


def filed_functions(module: str, qualname: str) -> list[types.FunctionType]:
    """Functions made of the code that `filed_code` finds, as far as it has no free variables. They have no defaults."""
    return [types.FunctionType(code, sys.modules[module].__dict__) for code in filed_code(module, qualname) if not code.co_freevars]


def direct_code(module: types.ModuleType, qualname: str) -> list[types.CodeType]:
    """The code of the object at `qualname` in `module`, and of the functions that it wraps."""
    return [f.__code__ for f in direct_functions(module, qualname)]


def direct_functions(module: types.ModuleType, qualname: str) -> list[types.FunctionType]:
    """The function at `qualname` in `module`, and the functions that it wraps."""
    found: Any = module
    for part in qualname.split("."):
        found = inspect.getattr_static(found, part, None)
        if found is None:
            return []
    return list(functions_within(found))


def functions_within(value: Any, seen: set[int] | None = None) -> Iterator[types.FunctionType]:
    """The plain functions inside a function-like object: those that it wraps and those in its closure. `seen`: ids of objects to skip."""
    stack = [value]
    seen = set() if seen is None else seen
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, types.FunctionType) and "_torchdynamo_disable" in item.__dict__:
            continue  # marked by `disable`: it is not traced into, so an artifact that was compiled before the mark has to miss
        if isinstance(item, types.FunctionType):
            yield item
            stack += [c for cell in item.__closure__ or () if isinstance(c := _content(cell), _FUNCTION_LIKE)]
            stack.append(item.__dict__.get("__wrapped__"))
        elif isinstance(item, property):
            stack += [item.fget, item.fset]
        elif isinstance(item, _CACHED):
            stack.append(item.__wrapped__)
        elif isinstance(item, (functools.partial, functools.cached_property)):
            stack.append(item.func)
        elif isinstance(item, (staticmethod, classmethod, types.MethodType)):
            stack.append(item.__func__)
        elif type(item).__module__.startswith("triton.runtime."):
            stack += kernel_functions(item)


def kernel_functions(layer: Any) -> list[Any]:
    """The functions of a Triton kernel or of a decorator of one: the function or kernel inside, and those that choose its configuration."""
    held = layer.__dict__
    values = held.get("values")
    return [held.get("fn"), held.get("perf_model"), held.get("early_config_prune"), *(values.values() if isinstance(values, dict) else ())]


_CACHED = type(functools.lru_cache(len))
_FUNCTION_LIKE = (
    *(types.FunctionType, types.MethodType, property, staticmethod, classmethod),
    *(functools.partial, functools.cached_property, _CACHED),
)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


_Found = list[tuple[types.CodeType, types.FunctionType | None]]
_indexes: weakref.WeakKeyDictionary[types.ModuleType, tuple[int, dict[str, _Found]]] = weakref.WeakKeyDictionary()


def _index(module: types.ModuleType) -> dict[str, _Found]:
    """qualname -> code objects of all functions in the module's namespace and in its classes. Cached until the namespace grows."""
    if not isinstance(module, types.ModuleType):  # what a module has put in its place
        return {}
    known = _indexes.get(module)
    if known is not None and known[0] == len(module.__dict__):
        return known[1]
    table: dict[str, _Found] = {}
    seen: set[int] = set()
    for value in [*module.__dict__.values()]:
        places = [value]
        if isinstance(value, type) and value.__module__ == module.__name__:
            places = [*value.__dict__.values()]
        for place in places:
            for function in functions_within(place, seen):
                if function.__module__ == module.__name__:
                    _add_codes(function.__code__, function, table)
    _indexes[module] = (len(module.__dict__), table)
    return table


def forget_code() -> None:
    """Drops the caches of modules."""
    _indexes.clear()
    file_digest.cache_clear()


def _add_codes(code: types.CodeType, function: types.FunctionType | None, table: dict[str, _Found]) -> None:
    table.setdefault(code.co_qualname, []).append((code, function))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_codes(constant, None, table)
