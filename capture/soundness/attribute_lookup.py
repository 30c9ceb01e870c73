"""Where Dynamo looks an attribute up otherwise than Python does, or without a guard on what was asked before the answer was found."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precast.capture.adapters.dynamo import get_custom_getattr
from precast.capture.adapters.guards import AttrSource, GuardBuilder, install_guard
from precast.capture.adapters.variables import (
    GETATTR,
    PythonModuleVariable,
    TensorVariable,
    UnspecializedNNModuleVariable,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    VariableTracker,
    functions,
)
from precast.capture.common.patching import patched
from precast.runtime.fingerprint.classes import is_versioned
from precast.runtime.guards.table.attribute_lookup import ABSENT, find_on_class

Context = contextlib.AbstractContextManager[Any]


def absence_from_instances() -> Context:
    """While tracing, what an object has of its class is guarded to be absent from its own `__dict__`."""
    return _around(UserDefinedObjectVariable, GETATTR, _absent_from_instance)


def values_of_metaclasses() -> Context:
    """While tracing, plain data that a class has of its metaclass is guarded."""
    return _around(UserDefinedClassVariable, GETATTR, _value_of_metaclass)


def methods_of_tensors() -> Context:
    """While tracing, methods of tensors are guarded to be absent from the tensor's own `__dict__`."""
    return _around(TensorVariable, GETATTR, _method_of_tensor)


@contextlib.contextmanager
def presence_on_functions() -> Iterator[None]:
    """While tracing, that a function, partial or module of Python has or lacks an attribute is guarded. From torch 2.14 on some of them are
    asked as any object is.
    """
    inheriting = (functions.UserFunctionVariable, PythonModuleVariable)
    with contextlib.ExitStack() as stack:
        for cls in (*vars(functions).values(), PythonModuleVariable):
            for name, asked in (("call_obj_hasattr", _presence_guarded), (GETATTR, _absence_from_function)):
                if isinstance(cls, type) and cls is not VariableTracker and (name in cls.__dict__ or cls in inheriting):
                    stack.enter_context(_around(cls, name, asked))
        yield


def buffers_before_modules() -> Context:
    """While tracing, a name among a module's buffers and submodules is the buffer."""
    return _around(UnspecializedNNModuleVariable, "manually_trace_nn_module_getattr", _buffer_before_module)


def _around(cls: type, name: str, asked: Callable[[Any, Any, str], Any]) -> Context:
    """The method `name` of `cls`, of which `asked` answers first, if it has an answer."""
    original: Any = getattr(cls, name)

    def method(self: Any, tx: Any, attribute: str) -> Any:
        answer = asked(self, tx, attribute)
        return original(self, tx, attribute) if answer is None else answer

    return patched(cls, name, method)


def _absent_from_instance(self: UserDefinedObjectVariable, tx: Any, name: str) -> None:
    """What an object has of its class, or of the class's own `__getattr__`, it has as long as its own `__dict__` does not say otherwise."""
    if (
        self.source is not None
        and name not in getattr(self.value, "__dict__", (name,))
        and _asks_instance_first(self.value, name)
        and not tx.output.side_effects.has_pending_mutation_of_attr(self, name)
    ):
        install_guard(self.source.make_guard(functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)))


def _asks_instance_first(value: Any, name: str) -> bool:
    """Whether what answers is asked after the instance's `__dict__`; registers of modules are another matter
    (capture/guards/lookup_guards.py).
    """
    found = find_on_class(type(value), name)
    if found is not ABSENT:
        return not (hasattr(type(found), "__set__") or hasattr(type(found), "__delete__"))
    fallback = get_custom_getattr(value)
    return isinstance(fallback, types.FunctionType) and fallback is not torch.nn.Module.__getattr__


def _value_of_metaclass(self: UserDefinedClassVariable, tx: Any, name: str) -> Any:
    """Plain data that a class has of its metaclass is guarded: the tracer takes it as it is."""
    cls = self.value
    if self.source is None or type(cls) is type or find_on_class(cls, name) is not ABSENT:
        return None
    found = find_on_class(type(cls), name)
    if found is ABSENT or hasattr(type(found), "__get__") or tx.output.side_effects.has_pending_mutation_of_attr(self, name):
        return None
    return VariableTracker.build(tx, found, AttrSource(self.source, name))


def _presence_guarded(self: Any, tx: Any, name: str) -> None:
    """Whether a function, partial or module of Python has an attribute: the tracer asks the one at hand, and guards nothing."""
    if self.source is not None and not is_versioned(getattr(getattr(self, "value", None), "__name__", None)):
        install_guard(self.source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))


def _absence_from_function(self: Any, tx: Any, name: str) -> None:
    """The AttributeError of a function that lacks an attribute, which the traced code may catch, depends on that."""
    function = getattr(self, "fn", None)
    if isinstance(function, types.FunctionType) and not hasattr(function, name):
        _presence_guarded(self, tx, name)


def _method_of_tensor(self: TensorVariable, tx: Any, name: str) -> None:
    """A method that an argument or weight has of its class. The value is not at hand here: that it has an attribute of its own instead
    is seen when guards are translated (capture/guards/translate.py).
    """
    found = find_on_class(torch.Tensor, name)
    if self.source is not None and found is not ABSENT and not hasattr(type(found), "__set__"):
        install_guard(self.source.make_guard(functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)))


def _buffer_before_module(self: Any, tx: Any, name: str) -> Any:
    """A name that stands among a module's buffers and among its submodules is the buffer: the tracer asks the submodules first."""
    own = self.value.__dict__
    if name in own["_parameters"] or name not in own["_buffers"] or name not in own["_modules"]:
        return None
    return self.getattr_helper(tx, "_buffers", VariableTracker.build(tx, name))


@contextlib.contextmanager
def bound_methods_of_instances() -> Iterator[None]:
    """A bound method in a module's own `__dict__` (`module.forward = types.MethodType(...)`) is guarded: before torch 2.13 the
    tracer takes it as it is.
    """
    original: Any = getattr(UserDefinedObjectVariable, GETATTR)

    def var_getattr(self: UserDefinedObjectVariable, tx: Any, name: str) -> Any:
        held = self.value.__dict__.get(name) if isinstance(self.value, torch.nn.Module) else None
        if self.source is not None and type(held) is types.MethodType and isinstance(held.__func__, types.FunctionType):
            source = AttrSource(self.source, name)
            install_guard(
                source.make_guard(GuardBuilder.TYPE_MATCH),
                AttrSource(source, "__func__").make_guard(GuardBuilder.CLOSURE_MATCH),
            )
            if held.__self__ is self.value:
                same = functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=AttrSource(source, "__self__"))
                install_guard(self.source.make_guard(same))
        return original(self, tx, name)

    with patched(UserDefinedObjectVariable, GETATTR, var_getattr):
        yield


__all__ = [
    "absence_from_instances",
    "bound_methods_of_instances",
    "buffers_before_modules",
    "methods_of_tensors",
    "presence_on_functions",
    "values_of_metaclasses",
]
