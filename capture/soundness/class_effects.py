"""Replay of side effects through classes and functions: closures of methods, attributes of classes and functions, cached results."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from precast.capture.adapters.dynamo import utils
from precast.capture.adapters.guards import (
    AttrSource,
    DictGetItemSource,
    GetItemSource,
    GuardBuilder,
    TypeDictSource,
    TypeMROSource,
    TypeSource,
    install_guard,
)
from precast.capture.adapters.variables import (
    GETATTR,
    AttributeMutationExisting,
    ConstantVariable,
    SideEffects,
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
    UserFunctionVariable,
    VariableBuilder,
    VariableTracker,
    functions,
    variables,
)
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.common.patching import patched
from precast.capture.soundness.container_effects import refuse

# -- closures of methods


_FIXED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
"""What may stand in a closure that has no path: it is held by the digest of the code, or by name."""


@contextlib.contextmanager
def closures_of_methods() -> Iterator[None]:
    """A method of an object that the traced code made, or that Python's syntax calls, is found in its class: so are its closure's contents.
    The tracer takes a copy of them, without a guard, and what the method writes to it is lost.
    """
    bind: Any = UserFunctionVariable.bind_args
    wrap: Any = VariableBuilder._wrap
    classes: dict[type, Any] = {}

    def _wrap(self: VariableBuilder, value: Any) -> Any:
        if self.source is not None:
            if isinstance(value, type):
                classes.setdefault(value, self.source)
            elif "<locals>" in type(value).__qualname__:
                classes.setdefault(type(value), TypeSource(self.source))
        return wrap(self, value)

    def bind_args(self: UserFunctionVariable, parent: Any, args: Any, kwargs: Any) -> Any:
        function: Any = self.fn
        source, closure = self.get_source(), function.__closure__
        if source is None and closure and not _of_torch(function) and any(cell not in parent.output.side_effects for cell in closure):
            found = _source_in_classes(function, classes)
            if found is None and not all(isinstance(_contents(cell), _FIXED) for cell in closure):
                refuse(
                    f"{function.__qualname__} has a closure, and the tracer does not know where the function is from",
                    "define its class or the function at the top of a module, or pass what it uses as arguments",
                )
            if found is not None:
                with patched(type(self), "get_source", lambda _: found):
                    return bind(self, parent, args, kwargs)
        return bind(self, parent, args, kwargs)

    with patched(VariableBuilder, "_wrap", _wrap), patched(UserFunctionVariable, "bind_args", bind_args):
        yield


def _of_torch(function: Any) -> bool:
    return str(function.__module__).partition(".")[0] in ("torch", "contextlib", "functools", "dataclasses", "collections", "enum")


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _source_in_classes(function: types.FunctionType, classes: dict[type, Any]) -> Any:
    """Where a function stands in one of the classes that the traced code looked at, or in one of their bases."""
    for cls, source in classes.items():
        for place, base in enumerate(cls.__mro__):
            for name, member in vars(base).items():
                way = _way(function, member)
                if way is not None:
                    owner = source if place == 0 else GetItemSource(TypeMROSource(source), place)
                    found: Any = DictGetItemSource(TypeDictSource(owner), name)
                    for step in way:
                        found = AttrSource(found, step)
                    return found
    return None


def _way(function: types.FunctionType, member: Any) -> tuple[str, ...] | None:
    """The attributes that lead from what stands in a class to the function."""
    if member is function:
        return ()
    for step in ("__func__", "fget", "fset", "fdel", "func"):
        if isinstance(member, _WRAPPERS) and getattr(member, step, None) is function:
            return (step,)
    return None


_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property, functools.partialmethod)


# -- attributes of classes


@contextlib.contextmanager
def attributes_of_classes() -> Iterator[None]:
    """What the traced code has written to a class is what its instances and subclasses find there. Where a class is asked, the
    function runs as plain Python: the tracer passes over a graph break there, and asks the class as it was.
    """
    of_object: Any = getattr(UserDefinedObjectVariable, GETATTR)
    of_class: Any = getattr(UserDefinedClassVariable, GETATTR)
    has: Any = UserDefinedClassVariable.call_obj_hasattr
    store: Any = SideEffects.store_attr
    written: set[str] = set()

    def store_attr(self: SideEffects, item: VariableTracker, name: str, *args: Any, **kwargs: Any) -> None:
        if isinstance(item, UserDefinedClassVariable):
            written.add(name)
        store(self, item, name, *args, **kwargs)

    def object_getattr(self: UserDefinedObjectVariable, tx: Any, name: str) -> Any:
        if name in written and (owner := _written_in(tx, type(self.value).__mro__, name)):
            refuse(f"{owner.__qualname__}.{name} is read through an instance after the class got another one", _FROM_THE_CLASS)
        return of_object(self, tx, name)

    def class_getattr(self: UserDefinedClassVariable, tx: Any, name: str) -> Any:
        _check_class(self, tx, name)
        return of_class(self, tx, name)

    def call_obj_hasattr(self: UserDefinedClassVariable, tx: Any, name: str) -> Any:
        _check_class(self, tx, name)
        return has(self, tx, name)

    def _check_class(self: UserDefinedClassVariable, tx: Any, name: str) -> None:
        if name in written and (owner := _written_in(tx, self.value.__mro__[1:], name)):
            _left_to_python(tx, f"{owner.__qualname__}.{name} is read through a subclass after the class got another one")
        if name == "__dict__" and written and _written_in(tx, (self.value,), None):
            _left_to_python(tx, f"{self.value.__qualname__}.__dict__ is read after the class got another attribute")

    with (
        patched(SideEffects, "store_attr", store_attr),
        patched(UserDefinedObjectVariable, GETATTR, object_getattr),
        patched(UserDefinedClassVariable, GETATTR, class_getattr),
        patched(UserDefinedClassVariable, "call_obj_hasattr", call_obj_hasattr),
    ):
        yield


_FROM_THE_CLASS = "read it from the class that it was written to"


def _written_in(tx: Any, classes: tuple[type, ...], name: str | None) -> type | None:
    """The first of `classes` to which the traced code has written `name`; anything, if that is None."""
    for written, changes in tx.output.side_effects.store_attr_mutations.items():
        if isinstance(written, UserDefinedClassVariable) and written.value in classes and (name in changes if name else changes):
            return written.value
    return None


def _left_to_python(tx: Any, what: str) -> None:
    line = tx.frame_summary()
    raise CaptureRefused(what, f"{line.filename}:{line.lineno}", _FROM_THE_CLASS, skipped=True)


# -- attributes of functions and objects


@contextlib.contextmanager
def absent_attributes_of_functions() -> Iterator[None]:
    """That a function lacks an attribute, or has it, is guarded (`getattr(f, "calls", 0)`), and what the traced code did to it counts."""
    read: Any = functions.fn_var_getattr
    ask: Any = UserFunctionVariable.call_obj_hasattr

    def fn_var_getattr(tx: Any, fn: Any, source: Any, name: str) -> Any:
        if inspect.getattr_static(fn, name, _ABSENT) is _ABSENT:
            _guard_presence(source, name)
        return read(tx, fn, source, name)

    def call_obj_hasattr(self: UserFunctionVariable, tx: Any, name: str) -> Any:
        pending = tx.output.side_effects.store_attr_mutations.get(self, {}).get(name)
        if pending is not None:
            return ConstantVariable.create(not isinstance(pending, variables.DeletedVariable))
        if not name.startswith("__"):
            _guard_presence(self.get_source(), name)
        return ask(self, tx, name)

    with (
        patched(functions, "fn_var_getattr", fn_var_getattr),
        patched(UserFunctionVariable, "call_obj_hasattr", call_obj_hasattr),
    ):
        yield


def _guard_presence(source: Any, name: str) -> None:
    if source is not None:
        install_guard(source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))


_ABSENT = object()


@contextlib.contextmanager
def attributes_set_again() -> Iterator[None]:
    """An attribute that is deleted and then set comes last in the object's `__dict__`. The tracer only sets it. Whoever has the `__dict__`
    that an object had before it got another one still has that: the tracer knows of one only.
    """
    original: Any = SideEffects.store_attr

    def store_attr(self: SideEffects, item: VariableTracker, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        pending = self.store_attr_mutations.get(item, {})
        if name == "__dict__" and isinstance(item, UserDefinedObjectVariable) and isinstance(item.mutation_type, AttributeMutationExisting):
            refuse("the __dict__ of an object is replaced", "update it")
        if isinstance(pending.get(name), variables.DeletedVariable) and not isinstance(value, variables.DeletedVariable):
            _refuse_set_again(item, name, value)
            del pending[name]
        original(self, item, name, value, *args, **kwargs)

    with patched(SideEffects, "store_attr", store_attr):
        yield


def own_attributes_set_again() -> contextlib.AbstractContextManager[Any]:
    """The same where torch forgets the deletion before it stores: from torch 2.14 on, which gets the order of new objects right."""
    original: Any = SideEffects.store_instance_dict_attr

    def store_instance_dict_attr(self: SideEffects, item: VariableTracker, name: str, value: VariableTracker) -> None:
        if isinstance(self.store_attr_mutations.get(item, {}).get(name), variables.DeletedVariable):
            _refuse_set_again(item, name, value)
        original(self, item, name, value)

    return patched(SideEffects, "store_instance_dict_attr", store_instance_dict_attr)


def _refuse_set_again(item: VariableTracker, name: str, value: VariableTracker) -> None:
    if isinstance(item.mutation_type, AttributeMutationExisting) and not isinstance(value, variables.DeletedVariable):
        refuse(f"the attribute {name} is deleted and set again", "set it without deleting it")


@contextlib.contextmanager
def finalizers() -> Iterator[None]:
    """A function that makes an object with a `__del__` runs as plain Python, which says when the object goes. After a graph break it would
    live until the whole function has ended.
    """
    call: Any = UserDefinedClassVariable.call_function

    def call_function(self: UserDefinedClassVariable, tx: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(self.value, type) and hasattr(self.value, "__del__"):
            line = tx.frame_summary()
            what = f"an object of {self.value.__qualname__} is made, whose __del__ runs when it goes: that is when plain Python lets it go"
            raise CaptureRefused(what, f"{line.filename}:{line.lineno}", "make the object outside", skipped=True)
        return call(self, tx, args, kwargs)

    with patched(UserDefinedClassVariable, "call_function", call_function):
        yield


# -- functions that cache


@contextlib.contextmanager
def cached_functions() -> Iterator[None]:
    """A function behind `functools.lru_cache` is traced as if it were called each time: that is the same where it returns a constant of
    its arguments and does nothing else. Any other is called by Python, cache and all.
    """
    call: Any = functions.WrapperUserFunctionVariable.call_function
    wrap: Any = VariableBuilder._wrap
    change: Any = SideEffects.mutation
    store: Any = SideEffects.store_attr
    inside: list[str] = []

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(self.wrapper_obj, functools._lru_cache_wrapper) or _of_torch(self.wrapper_obj.__wrapped__):
            return call(self, tx, args, kwargs)
        given = [*self.self_args(), *args, *kwargs.values()]
        name = self.wrapper_obj.__qualname__
        if not all(argument.realize().is_python_constant() for argument in given):
            _refuse_cached(name, "its cache tells arguments apart that are no constants")
        inside.append(name)
        try:
            result = call(self, tx, args, kwargs)
        finally:
            inside.pop()
        if not (result.is_python_constant() and _is_constant(result.as_python_constant())):
            _refuse_cached(name, "each call returns the same object")
        return result

    def _wrap(self: VariableBuilder, value: Any) -> Any:
        if inside and not _is_constant(value) and not callable(value) and not isinstance(value, types.ModuleType):
            _refuse_cached(inside[-1], f"it reads {self.source.name if self.source else 'an object'}, which may change")
        return wrap(self, value)

    def mutation(self: SideEffects, variable: VariableTracker) -> None:
        if inside and variable.source is not None:
            _refuse_cached(inside[-1], "it changes what is not its own")
        change(self, variable)

    def store_attr(self: SideEffects, item: VariableTracker, *args: Any, **kwargs: Any) -> None:
        if inside and item.source is not None:
            _refuse_cached(inside[-1], "it changes what is not its own")
        store(self, item, *args, **kwargs)

    with (
        patched(functions.WrapperUserFunctionVariable, "call_function", call_function),
        patched(VariableBuilder, "_wrap", _wrap),
        patched(SideEffects, "mutation", mutation),
        patched(SideEffects, "store_attr", store_attr),
    ):
        yield


def caches_without_warning() -> contextlib.AbstractContextManager[Any]:
    """The tracer warns that it ignores caches."""
    return patched(functions, "is_lru_cache_wrapper_trace_without_warning_allowed", lambda value: True)


def no_warning_of_caches() -> contextlib.AbstractContextManager[Any]:
    """The same, before torch 2.13."""
    warn: Any = utils.warn_once

    def warn_once(message: str, *args: Any, **kwargs: Any) -> None:
        if "lru_cache" not in message:
            warn(message, *args, **kwargs)

    return patched(utils, "warn_once", warn_once)


def _refuse_cached(name: str, why: str) -> None:
    refuse(f"{name} caches its results, and {why}", "call it outside, or drop the cache")


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, type))


__all__ = [
    "absent_attributes_of_functions",
    "attributes_of_classes",
    "attributes_set_again",
    "cached_functions",
    "caches_without_warning",
    "closures_of_methods",
    "finalizers",
    "no_warning_of_caches",
    "own_attributes_set_again",
]
