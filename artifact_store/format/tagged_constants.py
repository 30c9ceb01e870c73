"""Tagged constants: Python values as data that keeps what `==` forgets, and names for importable objects.

`tag` refuses (`Untaggable`) what has no stable form: instances by identity, objects without an importable name.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import itertools
import math
import sys
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch

Tagged = tuple[Any, ...]


class Untaggable(Exception):
    """The value has no portable form; the message says which value and why."""


_MISSING = object()
_WRITTEN_IN_PYTHON = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`."""
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


def _sequence(kind: str) -> Callable[[Any], Tagged]:
    return lambda value: (kind, tuple(tag(v) for v in value))


def _unordered(kind: str) -> Callable[[Any], Tagged]:
    return lambda value: (kind, tuple(sorted((tag(v) for v in value), key=repr)))


def _tag_int(value: int) -> Tagged:
    return ("int", value) if -(2**63) <= value < 2**63 else ("bigint", hex(value))


def _tag_dict(value: Any) -> Tagged:
    return ("dict", tuple((tag(k), tag(v)) for k, v in value.items()))


_TAGGERS: dict[type, Callable[[Any], Tagged]] = {
    type(None): lambda v: ("none",),
    type(...): lambda v: ("ellipsis",),
    type(NotImplemented): lambda v: ("notimplemented",),
    bool: lambda v: ("bool", v),
    int: _tag_int,
    float: lambda v: ("float", v.hex() if v == v or math.copysign(1, v) > 0 else "-nan"),
    complex: lambda v: ("complex", v.real.hex(), v.imag.hex()),
    str: lambda v: ("str", v) if v.isprintable() or _utf8(v) else ("surrogates", v.encode("utf-8", "surrogatepass")),
    bytes: lambda v: ("bytes", v),
    tuple: _sequence("tuple"),
    list: _sequence("list"),
    set: _unordered("set"),
    frozenset: _unordered("frozenset"),
    dict: _tag_dict,
    type({}.keys()): _sequence("list"),
    slice: lambda v: ("slice", tag(v.start), tag(v.stop), tag(v.step)),
    range: lambda v: ("range", v.start, v.stop, v.step),
    torch.Size: _sequence("size"),
    torch.dtype: lambda v: ("dtype", str(v).removeprefix("torch.")),
    torch.device: lambda v: ("device", v.type, v.index),
    torch.layout: lambda v: ("layout", str(v).removeprefix("torch.")),
    torch.memory_format: lambda v: ("memory_format", str(v).removeprefix("torch.")),
}


def _utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def tag(value: Any) -> Tagged:
    """The tagged form of a constant. Raises Untaggable."""
    tagger = _TAGGERS.get(type(value))
    if tagger is not None:
        return tagger(value)
    if isinstance(value, enum.Enum):
        return ("enum", type_name(type(value)), value.name)
    if isinstance(value, tuple) and hasattr(value, "_fields") and not getattr(value, "__dict__", None):
        return ("namedtuple", type_name(type(value)), tuple(tag(v) for v in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and (held := _fields(value)) is not None:
        return ("dataclass", object_name(type(value)), tuple((name, tag(v)) for name, v in held.items()))
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        return ("numpy", str(value.dtype), value.tobytes())
    if type(value).__module__ == "triton.language.core" and type(value).__name__ == "dtype":
        return ("triton_dtype", str(value.name))
    if type(value).__module__ == "triton.language.core" and type(value).__name__ == "constexpr":
        return ("triton_constexpr", tag(value.value))
    if type(value).__name__ == "dtype" or type(value).__module__.startswith("numpy.dtypes"):
        return ("numpy_dtype", value.str)
    return ("object", object_name(value))


def _fields(value: Any) -> dict[str, Any] | None:
    """What a dataclass's instance holds, by field; None where it holds anything else: more attributes, or what a base is that is none."""
    names = [field.name for field in dataclasses.fields(value)]
    if not all("__dataclass_fields__" in vars(base) or _holds_nothing(base) for base in type(value).__mro__[:-1]):
        return None
    if getattr(value, "__dict__", {}).keys() - set(names) or not all(hasattr(value, name) for name in names):
        return None
    return {name: getattr(value, name) for name in names}


def _holds_nothing(base: type) -> bool:
    """Whether instances have no state of this base but what is in their `__dict__`: a class written in Python, without slots."""
    return bool(base.__flags__ & _WRITTEN_IN_PYTHON) and not vars(base).get("__slots__", ())


def _untag_dataclass(name: str, held: Any) -> Any:
    cls = find_object(name)
    made = object.__new__(cls)
    for field, value in held:
        object.__setattr__(made, field, untag(value))
    return made


def untag(tagged: Tagged) -> Any:
    """Inverse of `tag`. Raises LookupError where an importable object is gone, ValueError on an unknown tag."""
    kind, *rest = tagged
    simple = _UNTAGGERS.get(kind)
    if simple is None:
        raise ValueError(f"unknown constant tag {kind!r}")
    return simple(*rest)


def _untag_all(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda items: make([untag(i) for i in items])


def _untag_numpy(dtype: str, data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(data, dtype=dtype)[0]


def _untag_numpy_dtype(text: str) -> Any:
    import numpy

    return numpy.dtype(text)


def _triton(name: str) -> Any:
    return find_object(f"triton.language.core:{name}")


_UNTAGGERS: dict[str, Callable[..., Any]] = {
    "none": lambda: None,
    "ellipsis": lambda: ...,
    "notimplemented": lambda: NotImplemented,
    "bool": bool,
    "int": int,
    "bigint": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda re, im: complex(float.fromhex(re), float.fromhex(im)),
    "str": str,
    "surrogates": lambda data: data.decode("utf-8", "surrogatepass"),
    "bytes": bytes,
    "tuple": _untag_all(tuple),
    "list": _untag_all(list),
    "set": _untag_all(set),
    "frozenset": _untag_all(frozenset),
    "dict": lambda items: {untag(k): untag(v) for k, v in items},
    "slice": lambda a, b, c: slice(untag(a), untag(b), untag(c)),
    "range": range,
    "size": _untag_all(torch.Size),
    "dtype": lambda name: getattr(torch, name),
    "device": lambda kind, index: torch.device(kind) if index is None else torch.device(kind, index),
    "layout": lambda name: getattr(torch, name),
    "memory_format": lambda name: getattr(torch, name),
    "enum": lambda cls, name: find_object(cls)[name],
    "namedtuple": lambda cls, items: find_object(cls)(*(untag(i) for i in items)),
    "dataclass": _untag_dataclass,
    "numpy": _untag_numpy,
    "numpy_dtype": _untag_numpy_dtype,
    "triton_dtype": lambda name: _triton("dtype")(name),
    "triton_constexpr": lambda value: _triton("constexpr")(untag(value)),
    "object": find_object,
}


def equals(value: Any, tagged: Tagged) -> bool:
    """Whether `value` is the tagged constant: same type, same value (0.0 is not -0.0, NaN is NaN)."""
    try:
        return tag(value) == tagged
    except Untaggable:
        return False


def is_hashable_tag(value: Any) -> bool:
    """Whether the value can be a key of a dict."""
    return isinstance(value, Hashable)
