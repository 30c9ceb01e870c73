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
from precast.runtime.native import loader
from precast.runtime.optimizers.rules import RULES, Rule
from precast.runtime.optimizers.update import Wanted, is_dense, launch, opened
from precast.runtime.programs.identity import Settings
from precast.runtime.settings import stance

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_DTYPES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_SCALARS = ("lr", "grad_scale", "found_inf")
"""Options that may be tensors on the device."""
_KEPT = 16
"""Layouts of groups that are remembered: groups alternate, and so do parameters without gradients."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a group whose tensors are alike but for their sizes. `sizes`: elements of each; None where they do not lie alike."""

    rows: tuple[int, ...]
    device: torch.device
    dtypes: tuple[torch.dtype, ...]
    first: bool
    sizes: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class Part:
    """Rows that one launch of an update serves. `sizes`: as in Rows."""

    rows: Sequence[int]
    sizes: tuple[int, ...] | None
    step: float
    own: Mapping[str, float]
    flags: dict[str, bool]
    more: tuple[Any, ...]
    """Scalars and numbers; a tuple has one for each row."""
    call: Any


@dataclass(frozen=True, eq=False)
class Given:
    """One call of torch's function: its lists of tensors and its options, the rule's flags and lists for these, and how the rows lie."""

    lists: Mapping[str, list[Any]]
    options: Mapping[str, Any]
    flags: Mapping[str, bool]
    names: Sequence[str]
    layout: Sequence[Rows]

    def flags_of(self, rows: Rows) -> dict[str, bool]:
        return {**self.flags, "first": rows.first} if "first" in self.flags else dict(self.flags)

    def dtypes_of(self, rows: Rows) -> dict[str, torch.dtype]:
        return dict(zip(self.names, rows.dtypes, strict=True))


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
        self._layouts: dict[tuple[Any, ...], tuple[Rows, ...]] = {}
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
        there = self._rule.on_device and lies_on_device(lists, options)
        reason = self._refused or _why_not_with(options, there)
        if reason:
            return reason
        try:
            values = options if there else _numbers(options)
            if not there and _overflowed(options):
                return ""
            flags = self._rule.flags(values)
            names = self._rule.tensors(flags)
            layout = self._layout(lists, flags, names)
            given = Given(lists, values, flags, names, layout)
            parts = self._parts_on_device(given) if there else self._parts(given)
        except GuardMiss:
            raise
        except _NotNow as refused:
            return str(refused)
        except Refused as refused:
            self._refused = str(refused)
            return self._refused
        except Exception as error:
            if strict():
                raise
            logger("runtime").log(failure_level(error), "torch.optim:%s: compiling failed", self._name, exc_info=True)
            self._refused = f"compiling it failed{failure_text(error)}"[:500]
            return self._refused
        self._run(given, parts, there)
        return ""

    def received(self, cells: Any, *values: Any) -> None:
        """The same, called by a trampoline: with a value for each parameter, in order."""
        count = len(self._names)
        lists = [value for value in values[:count] if isinstance(value, list)]
        self(*lists, **dict(zip(self._parameters[len(lists) :], values[len(lists) :], strict=True)))

    def _layout(self, lists: Mapping[str, list[Any]], flags: Mapping[str, bool], names: Sequence[str]) -> tuple[Rows, ...]:
        """The rows by what their tensors are. Raises _NotNow."""
        native = loader.loaded()
        if native is None:
            return self._looked_at(lists, flags, names)
        facts = native.tensor_facts(tuple([lists[name] for name in names]))
        key = (facts, *flags.values(), torch.is_inference_mode_enabled())
        known = self._layouts.get(key)
        if known is None:
            if len(self._layouts) >= _KEPT:
                self._layouts.clear()
            known = self._layouts[key] = self._looked_at(lists, flags, names)
        return known

    def _looked_at(self, lists: Mapping[str, list[Any]], flags: Mapping[str, bool], names: Sequence[str]) -> tuple[Rows, ...]:
        columns = [lists[name] for name in names]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for i, row in enumerate(zip(*columns, strict=True)):
            present = [t for t in row if t is not None]
            for name, t in zip(names, row, strict=True):
                if t is not None and (reason := _why_not(name, t)):
                    raise _NotNow(reason)
            if any(t.device != row[0].device for t in present):
                raise _NotNow("a parameter and its state lie on different devices")
            dtypes = tuple([row[1].dtype if t is None else t.dtype for t in row])
            groups.setdefault((row[0].device, dtypes, len(present) < len(row), _lie_alike(present)), []).append(i)
        return tuple(
            Rows(tuple(rows), device, dtypes, first, tuple([columns[0][i].numel() for i in rows]) if alike else None)
            for (device, dtypes, first, alike), rows in groups.items()
        )

    def _parts(self, given: Given) -> list[Part]:
        """The launches of this step. Nothing has been written yet. Raises _NotNow, Refused, GuardMiss."""
        rule, lists, options = self._rule, given.lists, given.options
        count = len(lists["params"])
        columns = [_values(lists["state_steps"]) if rule.steps else [0.0] * count, *[_values(lists[name]) for name in rule.scalars]]
        found = []
        for rows in given.layout:
            for chosen, (before, *values) in _by_values(rows.rows, columns):
                step, own = before + 1, dict(zip(rule.scalars, values, strict=True))
                all_flags = given.flags_of(rows)
                if rule.chosen is not None:
                    all_flags |= rule.chosen(options, step, own)
                numbers = rule.numbers(options, step, own)
                make = functools.partial(Wanted, self._name, all_flags, given.dtypes_of(rows), tuple(numbers), rows.device.type, options)
                call = self._update((rows.device, rows.dtypes, *all_flags.values()), rows.device, make)
                sizes = rows.sizes
                if sizes is not None and len(chosen) != len(rows.rows):
                    places = {row: place for place, row in enumerate(rows.rows)}
                    sizes = tuple([sizes[places[row]] for row in chosen])
                found.append(Part(chosen, sizes, step, own, all_flags, tuple(numbers.values()), call))
        return found

    def _parts_on_device(self, given: Given) -> list[Part]:
        """The same, where the step is known on the device only. Raises _NotNow, Refused, GuardMiss."""
        rule, lists, options = self._rule, given.lists, given.options
        device = lists["params"][0].device
        shared = {name: value for name in _SCALARS if isinstance(value := options.get(name), torch.Tensor) and value.device == device}
        left = _numbers({name: value for name, value in options.items() if name not in shared})
        numbers = {name: float(value) for name, value in sorted(left.items()) if type(value) in (int, float)}
        found = []
        for rows in given.layout:
            steps = [lists["state_steps"][i] for i in rows.rows] if rule.steps else []
            scalars = {**({"state_steps": steps[0]} if steps else {}), **shared}
            apart = any(t.device != rows.device or t.dim() for t in (*steps, *shared.values())) or any(
                t.dtype != steps[0].dtype for t in steps
            )
            if apart or any(isinstance(value, torch.Tensor) for value in left.values()):
                raise _NotNow("its step counts, its rate or its scale lie on another device")
            all_flags, kinds = given.flags_of(rows), {name: t.dtype for name, t in scalars.items()}

            def make(rows: Rows = rows, all_flags: dict[str, bool] = all_flags, kinds: dict[str, torch.dtype] = kinds) -> Wanted:
                plain = {name: None if name in ("grad_scale", "found_inf") else value for name, value in _numbers(options).items()}
                return Wanted(self._name, all_flags, given.dtypes_of(rows), tuple(numbers), rows.device.type, plain, True, kinds)

            call = self._update((rows.device, rows.dtypes, *all_flags.values(), *kinds.items(), *numbers), rows.device, make)
            more = (*((tuple(steps),) if steps else ()), *shared.values(), *numbers.values())
            found.append(Part(rows.rows, rows.sizes, 0.0, {}, all_flags, more, call))
        return found

    def _update(self, key: tuple[Any, ...], device: torch.device, make: Callable[[], Wanted]) -> Callable[..., Any]:
        """The compiled update under this key, opened or compiled where it is first wanted."""
        call = self._opened.get(key)
        if call is None:
            call = self._opened.setdefault(key, opened(make(), self._settings, device))
        return call

    def _run(self, given: Given, parts: Sequence[Part], there: bool) -> None:
        """`there`: the step is counted on the device."""
        rule, lists, options, names = self._rule, given.lists, given.options, given.names
        count = len(lists["params"])
        read = ("grads",) if not there or options.get("grad_scale") is None else ()
        with torch.no_grad():
            if options.get("grad_scale") is not None and not there:
                torch._foreach_div_(lists["grads"], options["grad_scale"])
            if rule.steps and there:
                torch._foreach_add_(lists["state_steps"], 1)
                if options.get("found_inf") is not None:
                    torch._foreach_sub_(lists["state_steps"], [options["found_inf"]] * count)
            elif rule.steps:
                _count(lists["state_steps"])
            for part in parts:
                if part.flags.get("first"):
                    for i in part.rows:
                        lists["momentum_buffer_list"][i] = torch.empty_like(lists["grads"][i])
                columns = [lists[name] if len(part.rows) == count else [lists[name][i] for i in part.rows] for name in names]
                launch(part.call, columns, part.sizes, [k for k, name in enumerate(names) if name not in read], part.more)
                if rule.after is not None:
                    for name, value in rule.after(options, part.step, part.own).items():
                        for i in part.rows:
                            lists[name][i].fill_(value)


class WantedUpdates(GroupUpdate):
    """Notes the updates that it would launch, in `found` by their keys, and launches none; `instead` gets each call with the reason why it
    would run eagerly, empty where it would not.
    """

    def __init__(self, name: str, eager: Callable[..., Any], settings: Settings, found: dict[str, Wanted]) -> None:
        super().__init__(name, eager, settings)
        self._found = found

    def __call__(self, *args: Any, **options: Any) -> None:
        if not args or not args[0]:
            return
        with call_interception.paused():
            reason = self._compiled(dict(zip(self._names, args, strict=False)), options)
        self.instead(reason, args, options)

    def instead(self, reason: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """What is done in place of a step."""

    def _update(self, key: tuple[Any, ...], device: torch.device, make: Callable[[], Wanted]) -> Callable[..., Any]:
        wanted = make()
        self._found.setdefault(wanted.key(self._settings), wanted)
        return self._eager

    def _run(self, *args: Any) -> None:
        """Nothing."""


class _NotNow(Exception):
    """Why a call is not one for compiled updates; others of the same optimiser may be."""


def lies_on_device(lists: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> bool:
    """Whether the step, the rate or a scaler's verdict lies where only the device reads it without a wait."""
    steps = lists.get("state_steps")
    if steps and isinstance(steps[0], torch.Tensor) and steps[0].device.type != "cpu":
        return True
    return any(isinstance(value := options.get(name), torch.Tensor) and value.device.type != "cpu" for name in _SCALARS)


def _why_not_with(options: Mapping[str, Any], on_device: bool) -> str:
    if options.get("differentiable") or torch.is_grad_enabled():
        return "differentiable=True records gradients through the step"
    if options.get("has_sparse_grad") or options.get("has_complex"):
        return "its gradients are sparse" if options.get("has_sparse_grad") else "its parameters are complex"
    for name, value in options.items():
        if isinstance(value, torch.Tensor) and not (on_device and name in _SCALARS) and (value.device.type != "cpu" or value.numel() != 1):
            return f"{name} is a tensor on {value.device}"
    return ""


def _why_not(name: str, t: Any) -> str:
    if type(t) not in _PLAIN:
        return f"{name} holds a {type(t).__name__}"
    if t.layout is not torch.strided:
        return f"{name} holds a tensor that is not dense"
    if t.dtype not in _DTYPES:
        return f"{name} holds a tensor of {t.dtype}"
    if t.is_neg() or t.is_inference() and not torch.is_inference_mode_enabled():
        return f"{name} holds a tensor that cannot be written as it lies"
    return ""


def _lie_alike(row: Sequence[torch.Tensor]) -> bool:
    """Whether tensors have one order in memory, without gaps, so that each may be taken as a flat one."""
    first = row[0]
    if all([t.is_contiguous() for t in row]):
        return all([t.shape == first.shape for t in row])
    return is_dense(first) and all(t.shape == first.shape and t.stride() == first.stride() for t in row)


def _values(scalars: list[torch.Tensor]) -> list[float]:
    """Of scalar tensors on the CPU. Raises _NotNow for others."""
    native = loader.loaded()
    raw = None if native is None else native.scalar_values(scalars)
    if raw is not None:
        return list(map(float, memoryview(raw).cast("d")))
    if any(t.device.type != "cpu" for t in scalars):
        raise _NotNow("its step counts lie on a device (capturable=True or fused=True)")
    return [float(t.item()) for t in scalars]


def _by_values(rows: Sequence[int], columns: Sequence[list[float]]) -> list[tuple[Sequence[int], tuple[float, ...]]]:
    """The rows by what each column holds for them: mostly the same for all."""
    if all(column.count(column[rows[0]]) == len(column) for column in columns):
        return [(rows, tuple([column[rows[0]] for column in columns]))]
    found: dict[tuple[float, ...], list[int]] = {}
    for row in rows:
        found.setdefault(tuple([column[row] for column in columns]), []).append(row)
    return [(chosen, values) for values, chosen in found.items()]


def _count(steps: list[torch.Tensor]) -> None:
    """One step more for each parameter."""
    native = loader.loaded()
    if native is None or native.scalar_values(steps) is None:
        torch._foreach_add_(steps, 1)
    else:
        native.scalar_add(steps, 1.0)
        torch._C._increment_version(steps)


def update_for(code: types.CodeType, settings: Settings) -> GroupUpdate | None:
    """What a call of this code is replaced by, where it is one of torch's functions; it runs a copy of the code where it does nothing."""
    name = _functions().get(code) if code.co_name in RULES else None
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
    """The options with tensors as the numbers that they hold, but for those of a gradient scaler."""
    kept = ("grad_scale", "found_inf")
    return {name: value.item() if isinstance(value, torch.Tensor) and name not in kept else value for name, value in options.items()}


def _overflowed(options: Mapping[str, Any]) -> bool:
    """Whether a gradient scaler found infinities, so that the step does nothing."""
    found = options.get("found_inf")
    return found is not None and bool(found.item())


__all__ = ["GroupUpdate", "WantedUpdates", "update_for"]
