"""Names for importable objects: `module:qualname` for what can be imported again, found back in any process.

`object_name` refuses (`Untaggable`) what has no such name.
"""

from __future__ import annotations

import builtins
import itertools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch


class Untaggable(Exception):
    """The value has no portable form; the message says which value and why."""


_MISSING = object()
_TYPES_BY_NAME: dict[str, Any] = {name: getattr(types, name) for name in dir(types) if isinstance(getattr(types, name), type)}
_TYPE_NAMES: dict[type, str] = {}
for _name in sorted(_TYPES_BY_NAME):
    _TYPE_NAMES.setdefault(_TYPES_BY_NAME[_name], _name)
_KINDS: dict[type, str] = {
    type({}.keys()): "dict_keys",
    type({}.values()): "dict_values",
    type({}.items()): "dict_items",
    type(NotImplemented): "NotImplementedType",
}

_OTHERWISE: dict[type, str] = {torch._C._SDPBackend: "torch.nn.attention:SDPBackend"}
"""Classes that are not where their own names say."""


def type_name(cls: type) -> str:
    """`module:qualname` of a class; classes of `types` and other nameless built-in classes get a name under `types:`.

    A class made inside a function keeps `<locals>` in its name: it can be compared by name but not imported.
    """
    if cls in _KINDS:
        return f"types:{_KINDS[cls]}"
    if cls in _OTHERWISE:
        return _OTHERWISE[cls]
    if cls in _TYPE_NAMES and getattr(builtins, cls.__name__, None) is not cls:
        return f"types:{_TYPE_NAMES[cls]}"
    return f"{cls.__module__}:{cls.__qualname__}"


HELD = "<held>"
_held: dict[str, Callable[[], Any]] = {}
_names: dict[int, str] = {}
_numbers = itertools.count()


def hold(value: Any) -> str:
    """A name for an object that has none, good in this process only: `find_object` gives the object back while it lives.

    No name is given twice. What cannot be referred to weakly lives as long as the process.
    """
    name = _names.get(id(value))
    if name is None or _held[name]() is not value:
        name = _names[id(value)] = f"{HELD}:{next(_numbers)}"
        try:
            _held[name] = weakref.ref(value)
        except TypeError:
            _held[name] = lambda: value
    return name


def find_object(name: str) -> Any:
    """The object called `module:qualname` (module alone: the module), or raise LookupError.

    Never imports: an unloaded module holds nothing yet.
    """
    module_name, _, qualname = name.partition(":")
    if module_name == HELD:
        held = _held[name]()
        if held is None:
            raise LookupError(f"the object {name} is gone")
        return held
    if module_name == "types" and qualname in _KINDS.values():
        return next(cls for cls, kind in _KINDS.items() if kind == qualname)
    found: Any = sys.modules.get(module_name, _MISSING)
    if found is _MISSING:
        raise LookupError(f"module {module_name} is not loaded")
    for part in qualname.split(".") if qualname else ():
        found = getattr(found, part, _MISSING)
        if found is _MISSING:
            raise LookupError(f"{name} does not exist")
    return found


def object_name(value: Any) -> str:
    """`module:qualname` under which `find_object` gives this very object back; raises Untaggable otherwise."""
    if isinstance(value, types.ModuleType) and not isinstance(value, torch._ops._OpNamespace):
        if sys.modules.get(value.__name__) is value:
            return value.__name__
        raise Untaggable(f"module {value.__name__} is not in sys.modules")
    for candidate in _candidate_names(value):
        try:
            if same_object(find_object(candidate), value):
                return candidate
        except LookupError:
            continue
    raise Untaggable(f"{_describe(value)} has no importable name")


def named(value: Any, name: str) -> bool:
    """Whether `name` is the name of this object by its own account: what a patch put in another's place is not."""
    if name.startswith(HELD):
        return value is not None and _held[name]() is value
    try:
        return type_name(value) == name if isinstance(value, type) else object_name(value) == name
    except Untaggable:
        return False


def same_object(a: Any, b: Any) -> bool:
    """Identity, except for what is made anew when it is looked up: a bound method, and an operator that was registered again."""
    if isinstance(a, types.MethodType) and isinstance(b, types.MethodType):
        return a.__func__ is b.__func__ and a.__self__ is b.__self__
    if is_method_of_object(a) and is_method_of_object(b):
        return a.__self__ is b.__self__ and a.__name__ == b.__name__
    if isinstance(a, torch._ops.OpOverload) and isinstance(b, torch._ops.OpOverload):
        return (a._schema.name, str(a._schema)) == (b._schema.name, str(b._schema))
    return a is b


def is_method_of_object(value: Any) -> bool:
    """Whether this is a method in C (or Cython) of an object other than a class or a module, whose functions are such methods too."""
    in_c = isinstance(value, types.BuiltinMethodType) or (
        isinstance(value, types.MethodType) and not isinstance(value.__func__, types.FunctionType)
    )
    return in_c and not isinstance(value.__self__, (type, types.ModuleType, type(None)))


def _names_through_owner(method: Any) -> list[str]:
    """`random.random` is the method `random` of `random._inst`: named through the object, in whose class's module it has to stand.

    Whatever is put under `random.random` for a while, another generator's method say, has not this name.
    """
    module = type(method.__self__).__module__
    held = vars(sys.modules[module]) if module in sys.modules else {}
    return [f"{module}:{name}.{method.__name__}" for name, value in list(held.items()) if value is method.__self__]


def _candidate_names(value: Any) -> list[str]:
    if isinstance(value, type):
        return [type_name(value)]
    if type(value) in _OTHERWISE:
        return [f"{type_name(type(value))}.{value.name}"]
    if isinstance(value, torch._ops._OpNamespace):
        return ["torch:ops." + value.__name__.rpartition(".")[2]]
    if type(value).__module__.startswith("triton.") and (function := _innermost(value)) is not None:
        name = f"{function.__module__}:{function.__qualname__}"  # an autotuner has no name of its own, nor the kernel in it
        return [name, f"{name}.fn", f"{name}.fn.fn"]
    if is_method_of_object(value) and (names := _names_through_owner(value)):
        return names
    if isinstance(value, types.MethodType):
        return [f"{type_name(value.__self__)}.{value.__func__.__name__}"] if isinstance(value.__self__, type) else []
    module = getattr(value, "__module__", None)
    qualname = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    names = []
    if isinstance(qualname, str):
        if isinstance(module, str):
            names.append(f"{module}:{qualname}")
        owner = getattr(value, "__objclass__", None)
        if isinstance(owner, type):
            names.append(f"{type_name(owner)}.{getattr(value, '__name__', qualname)}")
        bare = getattr(value, "__name__", qualname)
        if isinstance(module, str) and bare != qualname:  # functions of C++ modules carry their record's name in front
            names.append(f"{module}:{bare}")
        names += [f"builtins:{qualname}", *(f"{place}:{bare}" for place in _TORCH_NAMESPACES)]
    op = _op_name(value)
    return names + ([op] if op else [])


def _innermost(kernel: Any) -> types.FunctionType | None:
    """The function inside of a Triton kernel and its decorators."""
    while not isinstance(kernel, types.FunctionType) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel if isinstance(kernel, types.FunctionType) else None


_TORCH_NAMESPACES = tuple(
    "torch torch._C torch._C._nn torch._C._VariableFunctions torch._C._linalg torch._C._fft torch._C._special torch.nn.functional "
    "torch.Tensor math operator _operator".split()
)


def _op_name(value: Any) -> str | None:
    if isinstance(value, torch._ops.OpOverload):
        return "torch:ops." + str(value)
    if isinstance(value, torch._ops.OpOverloadPacket):
        return "torch:ops." + str(value)
    return None


def _describe(value: Any) -> str:
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"
