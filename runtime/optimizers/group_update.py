"""What stands in for torch's `adam(params, grads, …)` in a compiled step: the tensors of a group, in the compiled updates that fit them."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.runtime.common.errors import GuardMiss, Refused, failure_level, failure_text, strict
from precast.runtime.common.log import logger, warn
from precast.runtime.frames import call_interception
from precast.runtime.optimizers.rules import RULES, Rule
from precast.runtime.optimizers.update import Wanted, launch, opened
from precast.runtime.programs.identity import Settings
from precast.runtime.settings import stance

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a group that one update serves."""

    rows: list[int]
    names: tuple[str, ...]
    step: float
    own: Mapping[str, float]
    flags: dict[str, bool]
    numbers: dict[str, float]
    call: Any


class GroupUpdate:
    """Called as torch's function of that name is; what it cannot do the function itself does, with one warning."""

    def __init__(self, name: str, eager: Callable[..., Any], settings: Settings) -> None:
        self._name = name
        self._rule: Rule = RULES[name]
        self._eager = eager
        self._settings = settings
        self._refused = ""
        self._warned: set[str] = set()
        self._opened: dict[tuple[Any, ...], Callable[..., Any]] = {}
        code = inspect.unwrap(eager).__code__
        self._parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self._names = tuple("grads" if n == "d_p_list" else n for n in code.co_varnames[: code.co_argcount])

    def __call__(self, *args: Any, **options: Any) -> None:
        if stance.state.force_eager or not args or not args[0]:
            self._eager(*args, **options)
            return
        with call_interception.paused():
            reason = self._compiled(dict(zip(self._names, args, strict=False)), options)
        if reason:
            if reason not in self._warned:
                self._warned.add(reason)
                warn(f"precast: the step of torch.optim's {self._name} runs eagerly: {reason}")
            self._eager(*args, **options)

    def _compiled(self, lists: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Updates the tensors; where that cannot be done, why, with nothing changed."""
        reason = self._refused or self._why_not(lists, options)
        if reason:
            return reason
        try:
            values = _numbers(options)
            if _overflowed(options):
                return ""
            parts = self._parts(lists, values)
        except GuardMiss:
            raise
        except Refused as refused:
            self._refused = str(refused)
            return self._refused
        except Exception as error:
            if strict():
                raise
            logger("runtime").log(failure_level(error), "torch.optim:%s: compiling failed", self._name, exc_info=True)
            self._refused = f"compiling it failed{failure_text(error)}"[:500]
            return self._refused
        self._run(lists, values, parts)
        return ""

    def received(self, cells: Any, *values: Any) -> None:
        """The same, called by a trampoline: with a value for each parameter, in order."""
        count = len(self._names)
        lists = [value for value in values[:count] if isinstance(value, list)]
        self(*lists, **dict(zip(self._parameters[len(lists) :], values[len(lists) :], strict=True)))

    def _why_not(self, lists: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> str:
        """Why this call is not one for compiled updates; empty where it is."""
        if options.get("differentiable"):
            return "differentiable=True records gradients through the step"
        if options.get("has_sparse_grad") or options.get("has_complex"):
            return "its gradients are sparse" if options.get("has_sparse_grad") else "its parameters are complex"
        for name, column in lists.items():
            element = name not in ("state_steps", *self._rule.scalars)
            for t in column:
                if t is None:
                    continue
                if type(t) not in _PLAIN or t.layout is not torch.strided:
                    return f"{name} holds a {type(t).__name__}" if type(t) not in _PLAIN else f"{name} holds a tensor that is not dense"
                if not element and t.device.type != "cpu":
                    return "its step counts lie on a device (capturable=True or fused=True)"
                if element and t.dtype not in _DTYPES:
                    return f"{name} holds a tensor of {t.dtype}"
                if element and (t.is_neg() or t.is_inference() and not torch.is_inference_mode_enabled()):
                    return f"{name} holds a tensor that cannot be written as it lies"
        for name, value in options.items():
            if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.numel() != 1):
                return f"{name} is a tensor on {value.device}"
        return ""

    def _parts(self, lists: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> list[Part]:
        """The rows, by what an update is compiled for and what it is given. Nothing has been written yet. Raises Refused, GuardMiss."""
        rule = self._rule
        flags = rule.flags(options)
        plain = rule.tensors(flags)
        starts = [False] * len(lists["params"])
        if "momentum_buffer_list" in plain and "first" in flags:
            starts = [buffer is None for buffer in lists["momentum_buffer_list"]]
        steps = [t.item() + 1 for t in lists["state_steps"]] if rule.steps else [0.0] * len(starts)
        scalars = [[t.item() for t in lists[name]] for name in rule.scalars]
        groups: dict[tuple[Any, ...], list[int]] = {}
        columns = [lists[name] for name in plain]
        for i, row in enumerate(zip(*columns, strict=True)):
            kind = tuple([None if t is None else t.dtype for t in row])
            groups.setdefault((row[0].device, kind, starts[i], steps[i], *[values[i] for values in scalars]), []).append(i)
        found = []
        for (device, kind, first, step, *values), rows in groups.items():
            own = dict(zip(rule.scalars, values, strict=True))
            chosen = {**flags, **({"first": first} if "first" in flags else {})}
            if rule.chosen is not None:
                chosen |= rule.chosen(options, step, own)
            if any(lists[name][i].device != device for name in plain for i in rows if lists[name][i] is not None):
                raise Refused("a parameter and its state lie on different devices")
            numbers = rule.numbers(options, step, own)
            dtypes = dict(zip(plain, (dtype or kind[1] for dtype in kind), strict=True))
            kept = (device, kind, tuple(chosen.values()))
            call = self._opened.get(kept)
            if call is None:
                wanted = Wanted(self._name, chosen, dtypes, tuple(numbers), device.type, options)
                call = self._opened.setdefault(kept, opened(wanted, self._settings, device))
            found.append(Part(rows, plain, step, own, chosen, numbers, call))
        return found

    def _run(self, lists: Mapping[str, Any], options: Mapping[str, Any], parts: Sequence[Part]) -> None:
        rule = self._rule
        with torch.no_grad():
            if options.get("grad_scale") is not None:
                torch._foreach_div_(lists["grads"], options["grad_scale"])
            if rule.steps:
                torch._foreach_add_(lists["state_steps"], 1)
            for part in parts:
                if part.flags.get("first"):
                    for i in part.rows:
                        lists["momentum_buffer_list"][i] = torch.empty_like(lists["grads"][i])
                everything = len(part.rows) == len(lists["params"])
                columns = [lists[name] if everything else [lists[name][i] for i in part.rows] for name in part.names]
                written = [k for k, name in enumerate(part.names) if name != "grads"]
                launch(part.call, columns, written, tuple(part.numbers.values()))
                if rule.after is not None:
                    for name, value in rule.after(options, part.step, part.own).items():
                        for i in part.rows:
                            lists[name][i].fill_(value)


def update_for(code: types.CodeType, settings: Settings) -> GroupUpdate | None:
    """What a call of this code is replaced by, where it is one of torch's functions; it runs a copy of the code where it does nothing."""
    name = _functions().get(code) if code.co_filename.endswith(f"{code.co_name}.py") and code.co_name in RULES else None
    if name is None:
        return None
    function = inspect.unwrap(getattr(sys.modules[f"torch.optim.{name}"], name))
    copy = types.FunctionType(code.replace(), function.__globals__, name, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return GroupUpdate(name, copy, settings)


@functools.cache
def _functions() -> dict[types.CodeType, str]:
    found = ((name, getattr(sys.modules.get(f"torch.optim.{name}"), name, None)) for name in RULES)
    return {inspect.unwrap(function).__code__: name for name, function in found if function is not None}


def _numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with tensors as the numbers that they hold."""
    kept = ("grad_scale", "found_inf")
    return {name: value.item() if isinstance(value, torch.Tensor) and name not in kept else value for name, value in options.items()}


def _overflowed(options: Mapping[str, Any]) -> bool:
    """Whether a gradient scaler found infinities, so that the step does nothing."""
    found = options.get("found_inf")
    return found is not None and bool(found.item())


__all__ = ["GroupUpdate", "update_for"]
