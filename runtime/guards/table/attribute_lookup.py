"""Attribute lookup for guard tables: what the read of an attribute depends on, if that is the object's class and `__dict__` only."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from precast.runtime.guards.rule import Opaque, Reads
from precast.runtime.guards.table.known_getattribute import known_kind
from precast.runtime.native.kinds import Slot

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
_FUNCTION_SLOTS = {"__code__": Slot.CODE, "__defaults__": Slot.DEFAULTS, "__kwdefaults__": Slot.KWDEFAULTS}


def find_on_class(cls: type, name: str) -> Any:
    """The raw attribute `name` on `cls` or a base, or ABSENT."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return ABSENT


def plain_lookup(cls: type) -> bool:
    """Whether attributes of instances are looked up as `object` does it (a `__getattr__` apart)."""
    own: Any = cls.__getattribute__
    return own is object.__getattribute__


def instance_dict(value: Any, reads: Reads) -> dict[str, Any] | None:
    """The object's own `__dict__`, None where it has none."""
    if type(value).__dictoffset__ == 0:
        return None
    namespace = object.__getattribute__(value, "__dict__")
    reads.slot(value, Slot.DICT)
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
    if isinstance(value, torch.Tensor) and (type(value) is torch.Tensor or find_on_class(cls, name) is not ABSENT):
        raise Opaque  # what torch's getters say is no attribute of an object of Python; what a subclass holds in its `__dict__` is
    if cls is property and name in ("fget", "fset", "fdel"):
        return getattr(value, name)  # a property's parts never change
    reads.slot(value, Slot.TYPE)
    reads.cls(cls)
    if hooks and not plain_lookup(cls):
        name = _through_getters(value, name, reads)
    on_class = find_on_class(cls, name)
    if on_class is not ABSENT and (hasattr(type(on_class), "__set__") or hasattr(type(on_class), "__delete__")):
        if type(on_class) is property:
            return _of_property(value, on_class, reads)
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


def _through_getters(value: Any, name: str, reads: Reads) -> str:
    """The name that the class's own `__getattribute__` methods end up looking up; Opaque unless all are known ones."""
    for base in type(value).__mro__:
        getter = base.__dict__.get("__getattribute__")
        if getter is None or base is object:
            continue
        kind = known_kind(getter)
        if kind is None:
            raise Opaque
        reads.slot(getter, Slot.CODE)
        if kind == "aliasing":
            name = _alias(value, name, reads)
        else:
            namespace = instance_dict(value, reads)
            if namespace is None:
                raise Opaque
            reads.key(namespace, "_heterogeneity_spec")
            if namespace.get("_heterogeneity_spec") is not None:
                raise Opaque
    return name


def _alias(value: Any, name: str, reads: Reads) -> str:
    if name == "attribute_map":
        return name
    aliases = read_attribute(value, "attribute_map", reads, hooks=False)
    if type(aliases) is not dict:
        raise Opaque
    reads.key(aliases, name)
    alias = aliases.get(name, name)
    if type(alias) is not str:
        raise Opaque
    return alias


def _bound(value: Any, name: str, on_class: Any) -> Any:
    if isinstance(on_class, _SIMPLE_DESCRIPTORS):
        return getattr(value, name)
    if hasattr(type(on_class), "__get__"):
        raise Opaque
    return on_class


def _of_property(value: Any, found: property, reads: Reads) -> Any:
    """A property whose getter is `return self.other`, recognised by its bytecode."""
    getter = found.fget
    if not isinstance(getter, types.FunctionType) or len(getter.__code__.co_names) != 1:
        raise Opaque
    reads.slot(getter, Slot.CODE)
    target = getter.__code__.co_names[0]
    if getter.__code__.co_code != _forwarding_code(target) or getter.__code__.co_argcount != 1:
        raise Opaque
    return read_attribute(value, target, reads)


@functools.cache
def _forwarding_code(name: str) -> bytes:
    """Bytecode of `return self.<name>`; it names one attribute and loads no constant."""
    namespace: dict[str, Any] = {}
    exec(compile(f"def get(self):\n    return self.{name}\n", "<forwarding>", "exec"), namespace)
    code: bytes = namespace["get"].__code__.co_code
    return code


def _of_getter(value: Any, name: str, reads: Reads) -> Any:
    if isinstance(value, types.FunctionType) and name in _FUNCTION_SLOTS:
        reads.slot(value, _FUNCTION_SLOTS[name])
        return getattr(value, name)
    if name == "__dict__":
        return instance_dict(value, reads)
    if name == "__class__" and find_on_class(type(value), name) is object.__dict__["__class__"]:
        return type(value)  # its slot is among the reads
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
    reads.slot(cls, Slot.TYPE)
    reads.cls(meta)
    reads.cls(cls)
    if name == "__mro__":
        return cls.__mro__
    on_meta = find_on_class(meta, name)
    found = find_on_class(cls, name)
    if on_meta is not ABSENT and (found is ABSENT or hasattr(type(on_meta), "__set__") or hasattr(type(on_meta), "__delete__")):
        raise Opaque
    if found is ABSENT:
        return ABSENT
    if isinstance(found, _SIMPLE_DESCRIPTORS):
        return getattr(cls, name)
    if hasattr(type(found), "__get__"):
        raise Opaque
    return found


def lacks_on_class(cls: type, name: str, reads: Reads) -> bool:
    """Whether no instance of `cls` without attributes of its own has an attribute `name`."""
    reads.cls(cls)
    if not plain_lookup(cls) or find_on_class(cls, "__getattr__") is not ABSENT:
        raise Opaque
    return find_on_class(cls, name) is ABSENT


def _of_module(module: types.ModuleType, name: str, reads: Reads) -> Any:
    own = module.__dict__
    if type(module).__getattribute__ is not types.ModuleType.__getattribute__ or (name not in own and "__getattr__" in own):
        raise Opaque  # a lazy module computes what it does not have yet
    reads.slot(module, Slot.TYPE)
    reads.cls(type(module))
    on_class = find_on_class(type(module), name)
    if on_class is not ABSENT and hasattr(type(on_class), "__set__"):
        raise Opaque
    reads.key(own, name)
    if name in own:
        return own[name]
    reads.key(own, "__getattr__")
    if on_class is not ABSENT or find_on_class(type(module), "__getattr__") is not ABSENT:
        raise Opaque
    return ABSENT
