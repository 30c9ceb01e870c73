"""Entries: which Python function a callable runs, and how its call arguments become that frame's locals."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from precast.runtime.common.errors import PrecastError
from precast.runtime.paths.paths import CLOSURE, NAMESPACE


@dataclass(frozen=True)
class Entry:
    """The entry of a callable: `function(*prefix, *args, **{**keywords, **kwargs})` does what calling the original does, without the hooks
    of a module."""

    function: types.FunctionType
    prefix: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`module:qualname` of what was compiled; for a module, of its class."""
        if self.prefix and isinstance(self.prefix[0], torch.nn.Module):
            cls = type(self.prefix[0])
            return f"{cls.__module__}:{cls.__qualname__}" + ("" if self.function.__name__ == "forward" else f".{self.function.__name__}")
        return f"{self.function.__module__ or '(no module)'}:{self.function.__qualname__}"

    @property
    def defaults(self) -> tuple[Any, Any]:
        """`__defaults__` and `__kwdefaults__` as they are now: either may be reassigned."""
        return self.function.__defaults__, self.function.__kwdefaults__


def entry_of(target: Any) -> Entry:
    """The entry of a function, bound method, partial, `nn.Module` or callable object. Raises PrecastError for what has no Python code."""
    if isinstance(target, functools.partial):
        inner = entry_of(target.func)
        return Entry(inner.function, (*inner.prefix, *target.args), {**inner.keywords, **target.keywords})
    if isinstance(target, types.FunctionType):
        return Entry(target)
    if isinstance(target, types.MethodType):
        inner = entry_of(target.__func__)
        return Entry(inner.function, (*inner.prefix, target.__self__), inner.keywords)
    if isinstance(target, type):
        raise PrecastError(f"cannot compile the class {target.__qualname__}: compile an instance of it, or a function that uses it")
    if isinstance(target, torch.nn.Module):
        return _module_entry(target)
    if isinstance(target, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        return Entry(_python_function(target))
    call = getattr(type(target), "__call__", None)  # noqa: B004 - the attribute itself is wanted
    if isinstance(call, types.FunctionType):
        return Entry(call, (target,))
    if callable(target):
        return Entry(_python_function(target))
    raise PrecastError(
        f"a program is a function, a bound method, a functools.partial or an nn.Module, not {type(target).__name__}: {_short(target)}"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def own_call(cls: type) -> types.FunctionType | None:
    """The `__call__` that a module's class, and no class of torch's, defines over that of `nn.Module`.

    Raises PrecastError for one that is no plain function (a static method, say): there is no frame with the module in it.
    """
    home = next(base for base in cls.__mro__ if "__call__" in vars(base))
    call = vars(home)["__call__"]
    plain = isinstance(call, types.FunctionType)
    if _is_torchs(call.__module__ if plain else home.__module__) or _is_torchs(home.__module__):
        return None
    if not plain:
        where = f"{home.__module__}:{home.__qualname__}.__call__"
        raise PrecastError(
            f"cannot compile a {cls.__qualname__}: {where} is a {type(call).__name__}, which precast does not call; "
            "make it a method, or compile a function that calls the module"
        )
    assert isinstance(call, types.FunctionType)
    return call


def _is_torchs(module: str | None) -> bool:
    return (module or "").partition(".")[0] in ("torch", "precast")


def _module_entry(module: torch.nn.Module) -> Entry:
    call = own_call(type(module))
    return called_entry(module) if call is None else Entry(call, (module,))


def called_entry(module: torch.nn.Module) -> Entry:
    """The entry of the function that `nn.Module.__call__` calls: `forward`, or `_call_impl` where that is replaced on the instance or no
    Python.
    """
    if "forward" in module.__dict__:  # replaced on the instance: guards can say so where the frame has the module
        return Entry(torch.nn.Module._call_impl, (module,))  # type: ignore[arg-type]
    forward = inspect.getattr_static(type(module), "forward", None)
    if isinstance(forward, types.FunctionType):
        return Entry(forward, (module,))
    bound = module.forward
    if not isinstance(bound, types.MethodType | types.FunctionType):  # of a ScriptModule, say: there is no Python code to capture
        return Entry(torch.nn.Module._call_impl, (module,))  # type: ignore[arg-type]
    return entry_of(bound)


def _python_function(target: Callable[..., Any]) -> types.FunctionType:
    """A Python function that calls something written in C, so that there is bytecode to capture."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    name = getattr(target, "__name__", type(target).__name__)
    call.__name__, call.__qualname__ = name, getattr(target, "__qualname__", name)
    call.__module__ = getattr(target, "__module__", None) or "builtins"
    assert isinstance(call, types.FunctionType)
    return call


def is_own_namespace(namespace: Mapping[str, Any]) -> bool:
    """Whether these globals are no module's: of code made by `exec`, or of a module that another one has replaced."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return getattr(module, "__dict__", None) is not namespace


def has_own_namespace(function: types.FunctionType) -> bool:
    """Whether the function's globals are no module's."""
    return is_own_namespace(function.__globals__)


class LocalsOf:
    """Turns call arguments into the frame's locals, as the interpreter would. Raises TypeError as the call itself would."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self.own_namespace = has_own_namespace(function)
        self._collect = _collector(function)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        collect = self._collect
        collect.__defaults__ = self._function.__defaults__  # as they are now: defaults may be reassigned
        collect.__kwdefaults__ = self._function.__kwdefaults__
        values: dict[str, Any] = collect(*args, **kwargs)
        return values

    def cells(self) -> dict[str, Any]:
        """The closure cells with their contents, where they are filled, and a namespace of the function's own."""
        function = self._function
        found: dict[str, Any] = {NAMESPACE: function.__globals__} if self.own_namespace else {}
        if function.__closure__:
            found[CLOSURE] = function.__closure__
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:
                continue  # not assigned yet: a guard on it finds nothing and misses
        return found


def parameters(code: types.CodeType) -> tuple[str, ...]:
    """Names of the frame's locals that the call fills, in `co_varnames` order: arguments, keyword-only ones, `*args`, `**kwargs`."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def _collector(function: types.FunctionType) -> types.FunctionType:
    """A function with the parameters of `function` that returns them as a dict."""
    code = function.__code__
    names = parameters(code)
    positional = code.co_argcount
    keyword_only = names[positional : positional + code.co_kwonlyargcount]
    rest = list(names[positional + code.co_kwonlyargcount :])
    parts = [f"{name}, /" if i + 1 == code.co_posonlyargcount else name for i, name in enumerate(names[:positional])]
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{rest.pop(0)}")
    elif keyword_only:
        parts.append("*")
    parts += keyword_only
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{rest.pop(0)}")
    body = ", ".join(f"{name!r}: {name}" for name in names)
    namespace: dict[str, Any] = {}
    source = f"def collect({', '.join(parts)}):\n    return {{{body}}}\n"
    exec(compile(source, "<precast locals>", "exec"), namespace)  # names come from a code object, so they are identifiers
    collect = namespace["collect"]
    assert isinstance(collect, types.FunctionType)
    named = collect.__code__.replace(co_qualname=function.__qualname__)  # a TypeError names it
    return types.FunctionType(named, {}, function.__name__)
