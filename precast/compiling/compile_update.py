"""Compiles the update of an optimiser: traced from its rule once, checked against torch's own function, stored like any other graph."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from precast.artifact_store import Manifest, Store
from precast.capture import patch_rows
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.update_graph import Update, update_graph
from precast.compiling.compile_graph import compile_graph
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.runtime.common.errors import InProcess, Refused
from precast.runtime.optimizers.rules import RULES, Flags
from precast.runtime.optimizers.update import Wanted

patch_rows.require(patch_rows.ATEN)

_STEPS = 7
_TOLERANCE = 1e-9
_SIGNED = frozenset(("params", "grads", "prevs", "exp_avgs", "grad_avgs", "momentum_buffer_list"))


def compile_update(wanted: Wanted, key: str, options: Mapping[str, Any], target: str, store: Store) -> Manifest | InProcess:
    """Compile what is wanted and put it into `store` under `key`. Raises Refused."""
    _as_torch_does(wanted.function, wanted.flags, wanted.options)
    try:
        captured = update_graph(_update(wanted), wanted.tensors, wanted.scalars, wanted.numbers, wanted.device, DECOMPOSITIONS)
    except CaptureRefused as refused:
        raise Refused(str(refused)) from refused
    return compile_graph(wanted.name, key, captured, options, target, store, updates=True)


def _update(wanted: Wanted) -> Update:
    """The update as a function of what the compiled one gets: of the rule's numbers, or of what they are computed from on the device."""
    rule, flags = RULES[wanted.function], wanted.flags
    if not wanted.on_device:
        return lambda tensors, numbers: rule.update(flags, dict(tensors), dict(numbers))

    def update(tensors: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(tensors)
        if "grad_scale" in wanted.scalars:
            given["grads"] = given["grads"] / given["grad_scale"]
        rate = {"lr": given["lr"]} if "lr" in wanted.scalars else {}
        made = rule.update(flags, given, rule.numbers({**numbers, **rate}, given.get("state_steps"), {}))
        if "grad_scale" in wanted.scalars:
            made["grads"] = given["grads"]
        if "found_inf" in wanted.scalars:
            made = {name: torch.where(given["found_inf"] != 0, tensors[name], value) for name, value in made.items()}
        return made

    return update


def _as_torch_does(function: str, flags: Flags, options: Mapping[str, Any]) -> None:
    """Raises Refused where the installed torch's function gives other values than the rule, on a few numbers in double precision."""
    rule = RULES[function]
    theirs = getattr(importlib.import_module(f"torch.optim.{function}"), function)
    generator = torch.Generator().manual_seed(0)
    first = bool(flags.get("first", False))
    step = 0 if first else _STEPS if flags.get("rectified", True) else 1
    mine = {}
    for name in rule.tensors(flags):
        drawn = torch.rand(64, dtype=torch.float64, generator=generator)
        mine[name] = drawn - 0.5 if name in _SIGNED else drawn + 1
    own = {name: 0.25 if flags.get("averaged", True) else 1.0 for name in rule.scalars}
    lists: dict[str, list[Any]] = {name: [tensor.clone()] for name, tensor in mine.items()}
    if first:
        lists["momentum_buffer_list"] = [None]
    lists |= {name: [torch.tensor(value, dtype=torch.float64)] for name, value in own.items()}
    if rule.steps:
        lists["state_steps"] = [torch.tensor(float(step), dtype=torch.float64)]
    code = inspect.unwrap(theirs).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    listed = [name for name in names if str(theirs.__annotations__.get(name, "")).lower().startswith(("list", "typing.list"))]
    named = {name: lists["grads"] if name == "d_p_list" else lists.get(name, []) for name in listed}
    given = {name: value for name, value in options.items() if name in names}
    given |= {name: False for name in ("foreach", "fused", "capturable") if name in names}
    given |= {name: None for name in ("grad_scale", "found_inf") if name in names}
    with torch.no_grad():
        theirs(**named, **given)
        made = rule.update(flags, mine, rule.numbers(options, step + 1, own))
    for name, value in made.items():
        reference = named[name][0]
        if not torch.allclose(value, reference, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise Refused(f"{function} of this torch computes {name} otherwise than precast's rule for it")


__all__ = ["compile_update"]
