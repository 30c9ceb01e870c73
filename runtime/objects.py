"""What an attribute read depends on: the object's class, its `__dict__`, and nothing that Python code computes; or that it cannot be said."""

from __future__ import annotations

import types
from typing import Any, Protocol

import torch

ABSENT: Any = object()
"""The attribute does not exist, and this is known for certain."""
_SIMPLE_DESCRIPTORS = (
    types.FunctionType,
    staticmethod,
    classmethod,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_FUNCTION_SLOTS = {"__code__": "code", "__defaults__": "defaults", "__kwdefaults__": "kwdefaults"}


class Opaque(Exception):
    """The read depends on something that cannot be watched (a property, a `__getattr__`, a C getter): Python has to evaluate it at each call."""


class Reads(Protocol):
    """Collects what was read."""

    def slot(self, owner: Any, kind: str) -> None: ...

    def key(self, namespace: dict[Any, Any], name: Any) -> None: ...

    def cls(self, cls: type) -> None: ...


def find_on_class(cls: type, name: str) -> Any:
    """The raw attribute `name` on `cls` or a base, or ABSENT."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return ABSENT


def instance_dict(value: Any, reads: Reads) -> dict[str, Any] | None:
    """The object's own `__dict__`, None where it has none."""
    if type(value).__dictoffset__ == 0:
        return None
    namespace = object.__getattribute__(value, "__dict__")
    reads.slot(value, "dict")
    if not isinstance(namespace, dict):
        raise Opaque
    return namespace


def read_attribute(value: Any, name: str, reads: Reads, hooks: bool = True) -> Any:
    """`getattr(value, name)` (`object.__getattribute__` without `hooks`), or ABSENT; what it depends on goes to `reads`. Raises Opaque."""
    if isinstance(value, type):
        return _of_class(value, name, reads)
    if isinstance(value, types.ModuleType):
        return _of_module(value, name, reads)
    cls = type(value)
    if isinstance(value, torch.Tensor) or (hooks and cls.__getattribute__ is not object.__getattribute__):
        raise Opaque
    reads.slot(value, "type")
    reads.cls(cls)
    on_class = find_on_class(cls, name)
    if on_class is not ABSENT and (hasattr(type(on_class), "__set__") or hasattr(type(on_class), "__delete__")):
        return _of_getter(value, name, reads)
    namespace = instance_dict(value, reads)
    if namespace is not None:
        reads.key(namespace, name)
        if name in namespace:
            return namespace[name]
    if on_class is not ABSENT:
        return _bound(value, name, on_class)
    if hooks and find_on_class(cls, "__getattr__") is not ABSENT:
        return _of_nn_module(value, name, namespace, reads)
    return ABSENT


def _bound(value: Any, name: str, on_class: Any) -> Any:
    if isinstance(on_class, _SIMPLE_DESCRIPTORS):
        return getattr(value, name)
    if hasattr(type(on_class), "__get__"):
        raise Opaque
    return on_class


def _of_getter(value: Any, name: str, reads: Reads) -> Any:
    if isinstance(value, types.FunctionType) and name in _FUNCTION_SLOTS:
        reads.slot(value, _FUNCTION_SLOTS[name])
        return getattr(value, name)
    if name == "__dict__":
        return instance_dict(value, reads)
    if isinstance(value, types.MethodType) and name in ("__func__", "__self__"):
        return getattr(value, name)  # a method's parts never change
    if isinstance(value, types.FunctionType) and name in ("__closure__", "__globals__"):
        return getattr(value, name)  # nor do these of a function
    raise Opaque


def _of_nn_module(value: Any, name: str, namespace: dict[str, Any] | None, reads: Reads) -> Any:
    """torch's own `Module.__getattr__`: parameters, buffers, submodules."""
    if namespace is None or find_on_class(type(value), "__getattr__") is not torch.nn.Module.__dict__["__getattr__"]:
        raise Opaque
    for store in ("_parameters", "_buffers", "_modules"):
        reads.key(namespace, store)
        members = namespace.get(store)
        if not isinstance(members, dict):
            continue
        reads.key(members, name)
        if dict.__contains__(members, name):
            return dict.__getitem__(members, name)
    return ABSENT


def _of_class(cls: type, name: str, reads: Reads) -> Any:
    meta = type(cls)
    if meta.__getattribute__ is not type.__getattribute__ or find_on_class(meta, "__getattr__") is not ABSENT:
        raise Opaque
    reads.slot(cls, "type")
    reads.cls(meta)
    reads.cls(cls)
    if find_on_class(meta, name) is not ABSENT:
        raise Opaque
    found = find_on_class(cls, name)
    if found is ABSENT:
        return ABSENT
    if isinstance(found, _SIMPLE_DESCRIPTORS):
        return getattr(cls, name)
    if hasattr(type(found), "__get__"):
        raise Opaque
    return found


def _of_module(module: types.ModuleType, name: str, reads: Reads) -> Any:
    if type(module).__getattribute__ is not types.ModuleType.__getattribute__ or name not in module.__dict__:
        raise Opaque  # a lazy module computes what it does not have yet
    reads.slot(module, "type")
    reads.cls(type(module))
    on_class = find_on_class(type(module), name)
    if on_class is not ABSENT and hasattr(type(on_class), "__set__"):
        raise Opaque
    reads.key(module.__dict__, name)
    return module.__dict__[name]
