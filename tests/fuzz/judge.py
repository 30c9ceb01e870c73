"""Runs a program twice, eagerly and compiled, each with a module of its own, and says in what they differ."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

OPTIONS = {"recompile_limit": 64}
"""Globals change at each call of most programs: the limit is not what is tested."""
Compile = Callable[[Any], Callable[..., Any]]
Call = tuple[Any, ...]


def calls(seed: int) -> list[Call]:
    """Seven calls: a first one three times, then others in n, flag, containers and length, then the first again."""
    generator = torch.Generator().manual_seed(seed)

    def one(rows: int, n: int, flag: bool, items: list[float], options: dict[str, float]) -> Call:
        return torch.randn(rows, 4, generator=generator), torch.randn(4, generator=generator), n, flag, items, options

    first = one(3, 2, True, [0.5, 2.0], {"gain": 1.5})
    others = (
        one(3, 1, False, [3.0, -1.0, 0.25], {}),
        one(5, 2, True, [0.5, 2.0], {"gain": 1.5}),
        one(3, 0, True, [1.0], {"gain": 2.0, "z": 1.0}),
    )
    return [first, first, first, *others, first]


@dataclass
class Outcome:
    """What can be seen of a sequence of calls."""

    results: list[Any] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    printed: str = ""
    told: list[str] = field(default_factory=list)  # warnings, which are not compared


def load(source: str, name: str, folder: Path) -> types.ModuleType:
    """The module with this source; not entered into sys.modules."""
    file = folder / f"{name}.py"
    file.write_text(source)
    module = types.ModuleType(name)
    module.__file__ = str(file)
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


def run(module: types.ModuleType, function: Callable[..., Any], given: list[Call], recorded: bool = False) -> Outcome:
    """Call `function` once with each of the arguments, which are copied. `recorded`: with the backward pass of each call."""
    found = Outcome()
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed), torch.set_grad_enabled(recorded):
        warnings.simplefilter("always")
        for args in given:
            args, leaves = recording(copy.deepcopy(args), module) if recorded else (copy.deepcopy(args), [])
            try:
                result = function(*args)
                if recorded:
                    found.gradients.append(gradients((result, args), leaves))
                found.results.append(("returned", result))
            except Exception as error:  # noqa: BLE001 - whatever the program raises is part of what it does
                found.results.append(("raised", type(error).__name__, str(error)))
            found.arguments.append(args)
            found.states.append(
                copy.deepcopy((module.SCALE, module.LOG, module.STATE, vars(module.BOX), module.functools_like.__kwdefaults__))
                if not recorded
                else [b.clone() for b in module.NET.buffers()]
            )
    found.printed = printed.getvalue()
    found.told = [str(w.message) for w in caught]
    return found


def recording(args: Call, module: types.ModuleType) -> tuple[Call, list[torch.Tensor]]:
    """Arguments in double precision: the first is computed from a leaf, the second is one; and the leaves, with the module's parameters."""
    x, y, *others = args
    leaves = [x.double().requires_grad_(), y.double().requires_grad_()]
    return (leaves[0] * 1, leaves[1], *others), [*leaves, *module.NET.parameters()]


def gradients(seen: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Those of the leaves, after the backward pass from all tensors that are seen, each with weights of its own."""
    tensors = list(dict.fromkeys(t for t in tree_leaves(seen) if isinstance(t, torch.Tensor) and t.grad_fn is not None))
    for leaf in leaves:
        leaf.grad = None
    if tensors:
        sums = [(t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).reshape(t.shape)).sum() for t in tensors]
        torch.stack(sums).sum().backward()
    return [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def difference(want: Any, got: Any, where: str = "") -> str:
    """Where two results differ first; empty when they agree (numbers and float tensors to 1e-4)."""
    if type(want) is not type(got):
        return f"{where}: {type(want).__name__} {want!r:.80} against {type(got).__name__} {got!r:.80}"
    if isinstance(want, torch.Tensor):
        same = want.shape == got.shape and want.dtype == got.dtype and want.stride() == got.stride()
        same = same and want.requires_grad == got.requires_grad
        return (
            ""
            if same and torch.allclose(want, got, rtol=1e-4, atol=1e-4, equal_nan=True)
            else f"{where}: {want!r:.120} against {got!r:.120}"
        )
    if isinstance(want, dict):
        if list(want) != list(got):
            return f"{where}: keys {list(want)} against {list(got)}"
        return next((d for k in want if (d := difference(want[k], got[k], f"{where}[{k!r}]"))), "")
    if isinstance(want, (list, tuple)):
        if len(want) != len(got):
            return f"{where}: length {len(want)} against {len(got)}: {want!r:.200} against {got!r:.1500}"
        return next((d for i, pair in enumerate(zip(want, got, strict=True)) if (d := difference(*pair, f"{where}[{i}]"))), "")
    if isinstance(want, float):
        return (
            ""
            if math.isclose(want, got, rel_tol=1e-4, abs_tol=1e-4) or (math.isnan(want) and math.isnan(got))
            else f"{where}: {want} against {got}"
        )
    return "" if want == got else f"{where}: {want!r:.80} against {got!r:.80}"


def compare(source: str, name: str, folder: Path, compile_it: Compile, seed: int, recorded: bool = False) -> tuple[str, Outcome]:
    """What the compiled program does differently from the eager one (empty: nothing), and the compiled outcome.

    `recorded`: with gradients, of a source that has a module NET; calls from the first one on at which eager raises are left out.
    """
    given = calls(seed)
    plain = load(source, name, folder)
    want = run(plain, plain.program, given, recorded)
    if recorded:
        fine = next((i for i, (kind, *_) in enumerate(want.results) if kind == "raised"), len(given))
        given = given[:fine]
        plain = load(source, name, folder)
        want = run(plain, plain.program, given, recorded)
    other = sys.modules[name] = load(source, name, folder)  # guards name the module
    got = run(other, compile_it(other.program), given, recorded)
    parts = (
        ("results", want.results, got.results),
        ("globals", want.states, got.states),
        ("arguments", want.arguments, got.arguments),
        ("gradients", want.gradients, got.gradients),
    )
    found = next((d for label, a, b in parts if (d := difference(a, b, label))), "")
    if not found and want.printed != got.printed:
        found = f"printed {want.printed!r:.200} against {got.printed!r:.200}"
    return found, got
