"""Tagged constants: Python values as data that keeps what `==` forgets.

`tag` refuses (`Untaggable`) what has no stable form: instances by identity, objects without an importable name (`import_names`).
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import math
import operator
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

from precast.artifact_store.format.import_names import Untaggable, find_object, object_name, type_name

Tagged = tuple[Any, ...]

_WRITTEN_IN_PYTHON = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`."""


def _sequence(kind: str) -> Callable[[Any], Tagged]:
    return lambda value: (kind, tuple(tag(v) for v in value))


def _unordered(kind: str) -> Callable[[Any], Tagged]:
    return lambda value: (kind, tuple(sorted((tag(v) for v in value), key=repr)))


def _tag_int(value: int) -> Tagged:
    return ("int", value) if -(2**63) <= value < 2**63 else ("bigint", hex(value))


def _tag_dict(value: Any) -> Tagged:
    return ("dict", tuple((tag(k), tag(v)) for k, v in value.items()))


def _tag_type(value: Any) -> Tagged:
    return ("object", "types:NoneType") if value is type(None) else tag(value)


def _tag_union(value: Any) -> Tagged:
    return ("union", tuple(_tag_type(member) for member in value.__args__))


def _tag_alias(value: Any) -> Tagged:
    """A type with others in brackets: `list[int]`, `typing.Optional[int]`. Raises Untaggable where its parts do not make it again."""
    named = f"typing:{value._name}" if getattr(value, "_name", None) and value._name in vars(typing) else None
    base = "typing:Union" if value.__origin__ is typing.Union else named
    starred = (True,) if getattr(value, "__unpacked__", False) else ()
    arguments = tuple(_tag_type(argument) for argument in value.__args__)
    tagged = ("alias", _tag_type(value.__origin__) if base is None else ("object", base), arguments, *starred)
    try:
        if untag(tagged) == value:
            return tagged
    except (LookupError, TypeError) as error:
        raise Untaggable(f"{value!r} cannot be made again: {error}") from None
    raise Untaggable(f"{value!r} is more than what stands in its brackets")


_ALIASES: tuple[Any, ...] = (
    list[int],
    collections.abc.Callable[[int], int],
    typing.Callable[[int], int],
    typing.Optional[int],  # noqa: UP045
    typing.Sequence[int],
    typing.Literal[1],
)
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
    bytearray: lambda v: ("bytearray", bytes(v)),
    types.GenericAlias: lambda v: ("generic", tag(v.__origin__), tuple(tag(part) for part in v.__args__)),
    tuple: _sequence("tuple"),
    list: _sequence("list"),
    set: _unordered("set"),
    frozenset: _unordered("frozenset"),
    dict: _tag_dict,
    type({}.keys()): _sequence("list"),
    slice: lambda v: ("slice", tag(v.start), tag(v.stop), tag(v.step)),
    range: lambda v: ("range", v.start, v.stop, v.step),
    **dict.fromkeys(map(type, _ALIASES), _tag_alias),
    types.UnionType: _tag_union,
    torch.Size: _sequence("size"),
    torch.dtype: lambda v: ("dtype", str(v).removeprefix("torch.")),
    torch.device: lambda v: ("device", v.type, v.index),
    torch.layout: lambda v: ("layout", str(v).removeprefix("torch.")),
    torch.memory_format: lambda v: ("memory_format", str(v).removeprefix("torch.")),
}


_PLACEMENTS = "torch.distributed.tensor.placement_types"
_PLACED_BY = {"Shard": ("dim",), "Replicate": (), "Partial": ("reduce_op",), "_StridedShard": ("dim", "split_factor")}
"""How a DTensor lies on one dimension of its mesh: classes of that module -> what an instance is made of."""


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
        if type(value).__members__.get(value.name or "") is value:
            return ("enum", type_name(type(value)), value.name)
        return ("flags", type_name(type(value)), value.value)  # several members of a Flag, or none: no member of its own
    if isinstance(value, tuple) and hasattr(value, "_fields") and not getattr(value, "__dict__", None):
        return ("namedtuple", type_name(type(value)), tuple(tag(v) for v in value))
    if type(value).__module__ == _PLACEMENTS:  # some are dataclasses whose bases in C++ hold the rest
        return _tag_placement(value)
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


def _tag_placement(value: Any) -> Tagged:
    name = type(value).__name__
    if name not in _PLACED_BY:
        raise Untaggable(f"the placement {name} of a DTensor has no form of its own")
    return ("placement", name, tuple((held, tag(getattr(value, held))) for held in _PLACED_BY[name]))


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


def _untag_alias(base: Tagged, arguments: Any, starred: bool = False) -> Any:
    origin, held = untag(base), tuple(untag(argument) for argument in arguments)
    if origin in (collections.abc.Callable, typing.Callable):
        return origin[[*held[:-1]], held[-1]]
    return next(iter(origin[held])) if starred else origin[held]


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
    "bytearray": bytearray,
    "generic": lambda origin, parts: types.GenericAlias(untag(origin), tuple(map(untag, parts))),
    "tuple": _untag_all(tuple),
    "list": _untag_all(list),
    "set": _untag_all(set),
    "frozenset": _untag_all(frozenset),
    "dict": lambda items: {untag(k): untag(v) for k, v in items},
    "slice": lambda a, b, c: slice(untag(a), untag(b), untag(c)),
    "range": range,
    "union": _untag_all(functools.partial(functools.reduce, operator.or_)),
    "alias": _untag_alias,
    "size": _untag_all(torch.Size),
    "dtype": lambda name: getattr(torch, name),
    "device": lambda kind, index: torch.device(kind) if index is None else torch.device(kind, index),
    "layout": lambda name: getattr(torch, name),
    "memory_format": lambda name: getattr(torch, name),
    "enum": lambda cls, name: find_object(cls)[name],
    "flags": lambda cls, value: find_object(cls)(value),
    "namedtuple": lambda cls, items: find_object(cls)(*(untag(i) for i in items)),
    "dataclass": _untag_dataclass,
    "numpy": _untag_numpy,
    "numpy_dtype": _untag_numpy_dtype,
    "triton_dtype": lambda name: _triton("dtype")(name),
    "triton_constexpr": lambda value: _triton("constexpr")(untag(value)),
    "placement": lambda name, held: find_object(f"{_PLACEMENTS}:{name}")(**{key: untag(value) for key, value in held}),
    "object": find_object,
}


def equals(value: Any, tagged: Tagged) -> bool:
    """Whether `value` is the tagged constant: same type, same value (0.0 is not -0.0, NaN is NaN)."""
    try:
        return tag(value) == tagged
    except Untaggable:
        return False
