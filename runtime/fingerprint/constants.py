"""Canonical text of a constant: equal in two processes exactly when the values are equal. Values may be nested to any depth.

Numbers, strings, tuples, enum members, NumPy's scalars; types, functions and methods written in C by name.
Inside of a tuple other objects count by their type.
"""

from __future__ import annotations

import enum
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from precast.artifact_store.format.import_names import Untaggable, object_name, type_name
from precast.artifact_store.format.tagged_constants import tag

_BASES = (int, float, complex, str, bytes)
_LEAVES = (type(None), bool, *_BASES, range, slice, type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)
_BY_NAME = (
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type),
    *(types.MethodDescriptorType, types.WrapperDescriptorType),  # `torch.Tensor.add`, `float.__add__`
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket),
)
_PRINTED = {("decimal", "Decimal"), ("fractions", "Fraction"), ("numpy", "ufunc")}
_LONG = 64
_END = object()


def constant_text(value: Any) -> str | None:
    """The text of the value; None for an object that may change at any time."""
    if not _is_constant(value):
        return None
    known: dict[int, str] = {}  # of tuples that stand in several places
    open_: list[tuple[Any, str, Iterator[Any], list[str]]] = [(None, "", iter((value,)), [])]
    while True:
        holder, kind, rest, texts = open_[-1]
        item = next(rest, _END)
        if item is _END:
            if len(open_) == 1:
                return texts[0]
            open_.pop()
            text = f"{kind}({','.join(sorted(texts) if isinstance(holder, frozenset) else texts)})"
            text = text if len(text) <= _LONG else f"{kind}:{_hashed(text)}"
            known[id(holder)] = text
            open_[-1][3].append(text)
        elif id(item) in known:
            texts.append(known[id(item)])
        elif (parts := _parts(item)) is not None:
            open_.append((item, *parts, []))
        else:
            texts.append(_leaf(item))


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _is_constant(value: Any) -> bool:
    if _is(value, (*_LEAVES, *_BY_NAME, tuple, frozenset, enum.Enum)) or _is_numpy(value) or _kind(value) in _PRINTED:
        return True
    return _kind(value) in (("triton.language.core", "constexpr"), ("triton.language.core", "dtype"))


def _is(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """`isinstance` by the object's type alone: the `__class__` of a lazy proxy may raise."""
    return issubclass(type(value), kinds)


def _kind(value: Any) -> tuple[str, str]:
    return type(value).__module__, type(value).__name__


def _is_numpy(value: Any) -> bool:
    """Whether the value is a scalar or a dtype of NumPy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and _is(value, (numpy.generic, numpy.dtype))


def _parts(value: Any) -> tuple[str, Iterator[Any]] | None:
    """The kind of a container and its items, without itself; None where the value is no container."""
    if _is(value, enum.Enum):
        held: Iterable[Any] = (value.__dict__.get("_value_"),)
        return f"{type_name(type(value))}.{value._name_}", iter(held)
    if _is(value, tuple):
        return type_name(type(value)), tuple.__iter__(value)
    if _is(value, frozenset):
        return type_name(type(value)), frozenset.__iter__(value)
    if _kind(value) == ("triton.language.core", "constexpr"):
        return "constexpr", iter((value.value,))
    return None


def _leaf(value: Any) -> str:
    if _is(value, _BY_NAME):
        return _name(value)
    if _is_numpy(value) and getattr(getattr(value, "dtype", None), "hasobject", False):
        return _type(value)
    if type(value) in _LEAVES or _is_numpy(value) or _kind(value) == ("triton.language.core", "dtype"):
        try:
            return repr(tag(value))
        except Untaggable:
            return _type(value)
    if _kind(value) in _PRINTED:
        return repr(value)
    for base in _BASES:
        if _is(value, base):
            return f"{_type(value)}({tag(_as(base, value))!r})"
    return _type(value)


def _as(base: type, value: Any) -> Any:
    """An instance of a subclass of number or string as a plain one, without running code of the subclass."""
    if base is str:
        return str.__str__(value)
    if base is bytes:
        return bytes.__getitem__(value, slice(None))
    return getattr(base, {int: "__int__", float: "__float__", complex: "__complex__"}[base])(value)


def _name(value: Any) -> str:
    try:
        return object_name(value)
    except Untaggable:
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', getattr(value, '__name__', ''))}"


def _type(value: Any) -> str:
    return f"<{type_name(type(value))}>"
