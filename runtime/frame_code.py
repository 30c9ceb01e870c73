"""A FrameRecord -> the rewritten entry function, in any process and without the tracer; and user arguments -> frame locals."""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import itertools
import marshal
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from precast.artifact_store.constants import untag
from precast.artifact_store.records import FrameRecord
from precast.runtime.shims import SHIMS


class FrameCodeError(RuntimeError):
    """The record does not fit this process (other Python, an unknown name): the frame counts as a miss."""


@dataclass(frozen=True)
class Entry:
    """The function that a callable runs and the object bound as its first argument (`bound` is empty for a plain function)."""

    function: types.FunctionType
    bound: tuple[Any, ...] = ()


_counter = itertools.count()


def unwrap_partial(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The callable below any `functools.partial`, with the full arguments of the call."""
    kwargs = dict(kwargs)
    while isinstance(target, functools.partial):
        args = (*target.args, *args)
        kwargs = {**target.keywords, **kwargs}
        target = target.func
    return target, args, kwargs


def entry_of(target: Any) -> Entry:
    """What calling `target` runs: a function's own code, a method's, a module's `forward` (or `__call__` where hooks have to run), an object's `__call__`.

    Raises TypeError for something without Python code.
    """
    if isinstance(target, torch.nn.Module):
        target = target.forward if _plain_module(target) else target._call_impl if type(target).__call__ is torch.nn.Module.__call__ else target.__call__
    if isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        return Entry(target.__func__, (target.__self__,))
    if isinstance(target, types.FunctionType):
        return Entry(target)
    call = getattr(type(target), "__call__", None)
    if isinstance(call, types.FunctionType):
        return Entry(call, (target,))
    raise TypeError(f"{target!r} has no Python code to capture; pass a function, a method, an nn.Module or an object with __call__")


def _plain_module(module: torch.nn.Module) -> bool:
    """Whether calling the module does no more than its forward."""
    hooks = torch.nn.modules.module
    own = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    shared = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
    calls_forward = type(module).__call__ is torch.nn.Module.__call__ and isinstance(module.forward, types.MethodType)
    return calls_forward and not any(getattr(module, h) for h in own) and not any(getattr(hooks, h) for h in shared)


def bind(function: types.FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The frame's locals for a call: arguments with defaults applied, then the contents of closure cells, by name.

    Decorators are not looked through (`__wrapped__` is ignored): it is this function's own frame. Raises TypeError as the call would.
    """
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    return {**bound.arguments, **cells(function)}


def cells(function: types.FunctionType) -> dict[str, Any]:
    """Contents of the function's closure cells by name; an empty cell is left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the cell is empty: reading the variable raises NameError, as it does in the original
            continue
    return found


def build(record: FrameRecord, target: types.FunctionType, graph_callable: Callable[..., Any]) -> types.FunctionType:
    """The rewritten function, to be called with the arguments of `target` (self first for a method).

    `graph_callable` gets the per-call graph inputs in order and returns the sequence that `CapturedFrame.outputs` describes. Names that the
    bytecode needs are put into `target`'s module globals under process-wide unique names and leave with the function.
    Raises FrameCodeError.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if record.python != here:
        raise FrameCodeError(f"the stored bytecode is for Python {record.python}, this is {here}; compile again with this Python")
    renamed = {name: f"{name}_{next(_counter)}" for name, _ in record.names}
    values = {renamed[name]: _supply(supply, graph_callable) for name, supply in record.names}
    side = {tuple(where): tagged for where, tagged in record.constants}
    code = _restore(marshal.loads(record.code), renamed, side, target.__globals__, ())
    target.__globals__.update(values)
    function = types.FunctionType(code, target.__globals__, target.__name__, target.__defaults__, target.__closure__)
    function.__kwdefaults__ = target.__kwdefaults__
    function.__qualname__ = target.__qualname__
    weakref.finalize(function, _forget, target.__globals__, tuple(values))
    return function


def _forget(namespace: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        namespace.pop(name, None)


def _supply(supply: tuple[Any, ...], graph_callable: Callable[..., Any]) -> Any:
    match supply:
        case ("graph",):
            return graph_callable
        case ("builtins",):
            return builtins.__dict__
        case ("module", name):
            return importlib.import_module(name)
        case ("shims", name) if name in SHIMS:
            return SHIMS[name]
    raise FrameCodeError(f"the stored bytecode needs {supply!r}, which this version of precast does not know")


def _restore(code: types.CodeType, renamed: Mapping[str, str], side: Mapping[tuple[int, ...], Any], namespace: dict[str, Any], where: tuple[int, ...]) -> types.CodeType:
    constants = []
    for i, constant in enumerate(code.co_consts):
        place = (*where, i)
        if isinstance(constant, types.CodeType):
            constants.append(_restore(constant, renamed, side, namespace, place))
        elif place in side:
            constants.append(namespace if side[place] == ("globals",) else untag(side[place]))
        else:
            constants.append(constant)
    return code.replace(co_names=tuple(renamed.get(n, n) for n in code.co_names), co_consts=tuple(constants))
