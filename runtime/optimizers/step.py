"""`precast.compile(optimizer.step)`: torch's own step, hooks and closure included, with compiled updates in place of its functions."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from precast.runtime.optimizers.group_update import GroupUpdate
from precast.runtime.optimizers.rules import RULES
from precast.runtime.programs.identity import Settings

_PACKAGE = "torch.optim."
_SETTINGS = "_precast_settings"


def compiled_step(step: Any, settings: Settings) -> Any:
    """The compiled form of an optimiser's bound `step`; None where `step` is none, or none of an optimiser that has rules."""
    compiled = step_with(step, lambda name, eager: GroupUpdate(name, eager, settings))
    if compiled is not None:
        setattr(getattr(compiled, "__func__", compiled), _SETTINGS, settings)
    return compiled


def settings_of(step: Any) -> Settings | None:
    """Those that a step was compiled with; None for one that was not compiled."""
    found: Settings | None = getattr(step, _SETTINGS, None)
    return found


def step_with(step: Any, update: Callable[[str, types.FunctionType], Callable[..., Any]]) -> Any:
    """The step with `update(name, function)` in place of torch's function of that name; None as for `compiled_step`."""
    optimizer, found = optimizer_of(step), own_step(step)
    if optimizer is None or found is None:
        return None
    function = getattr(step, "__func__", step)
    name, own, eager = found
    changed = with_globals(own, {**own.__globals__, name: update(name, eager)})

    def stepping(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._opt_called = True  # schedulers ask whether a step came before them
        return changed(self, *args, **kwargs)

    outer = _rebuilt(function, own, stepping)
    return types.MethodType(outer, optimizer) if isinstance(step, types.MethodType) else outer


def own_step(step: Any) -> tuple[str, types.FunctionType, types.FunctionType] | None:
    """The name of torch's function behind a bound step, the step without wrappers, and the function; None where it has no rule."""
    function = getattr(step, "__func__", step)
    own = _unwrapped(function) if isinstance(function, types.FunctionType) else None
    name = "" if own is None else own.__module__.removeprefix(_PACKAGE)
    if own is None or name not in RULES or name not in own.__code__.co_names:
        return None
    eager = own.__globals__[name]
    return (name, own, eager) if isinstance(eager, types.FunctionType) else None


def optimizer_of(step: Any) -> torch.optim.Optimizer | None:
    """The optimiser whose `step` it is, bound; also where a scheduler wrapped it."""
    owner = getattr(step, "__self__", None)
    if owner is None and getattr(step, "_wrapped_by_lr_sched", False) and isinstance(step, types.FunctionType):
        references = [c.cell_contents for c in step.__closure__ or () if isinstance(c.cell_contents, weakref.ref)]
        owner = references[0]() if len(references) == 1 else None
    named = getattr(step, "__name__", "") == "step"
    return owner if named and isinstance(owner, torch.optim.Optimizer) else None


def _unwrapped(function: Any) -> types.FunctionType | None:
    """The innermost of torch's wrappers around a step that torch.optim defines."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    fits = isinstance(function, types.FunctionType) and function.__module__.startswith(_PACKAGE) and function.__closure__ is None
    return function if fits else None


def _rebuilt(function: types.FunctionType, old: types.FunctionType, new: Callable[..., Any]) -> Any:
    """A copy of a chain of wrappers with another function inside."""
    if function is old:
        return new
    cells = tuple(
        types.CellType(_rebuilt(c.cell_contents, old, new)) if isinstance(c.cell_contents, types.FunctionType) else c
        for c in function.__closure__ or ()
    )
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells or None)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__qualname__, copy.__doc__, copy.__module__ = function.__qualname__, function.__doc__, function.__module__
    return copy


def with_globals(function: types.FunctionType, namespace: dict[str, Any]) -> types.FunctionType:
    copy = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


__all__ = ["compiled_step", "optimizer_of", "own_step", "settings_of", "step_with", "with_globals"]
