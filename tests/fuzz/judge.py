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


def run(module: types.ModuleType, function: Callable[..., Any], given: list[Call]) -> Outcome:
    """Call `function` once with each of the arguments, which are copied."""
    found = Outcome()
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed), torch.no_grad():
        warnings.simplefilter("always")
        for args in given:
            args = copy.deepcopy(args)
            try:
                found.results.append(("returned", function(*args)))
            except Exception as error:  # noqa: BLE001 - whatever the program raises is part of what it does
                found.results.append(("raised", type(error).__name__, str(error)))
            found.arguments.append(args)
            found.states.append(
                copy.deepcopy((module.SCALE, module.LOG, module.STATE, vars(module.BOX), module.functools_like.__kwdefaults__))
            )
    found.printed = printed.getvalue()
    found.told = [str(w.message) for w in caught]
    return found


def difference(want: Any, got: Any, where: str = "") -> str:
    """Where two results differ first; empty when they agree (numbers and float tensors to 1e-4)."""
    if type(want) is not type(got):
        return f"{where}: {type(want).__name__} {want!r:.80} against {type(got).__name__} {got!r:.80}"
    if isinstance(want, torch.Tensor):
        same = want.shape == got.shape and want.dtype == got.dtype and want.stride() == got.stride()
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


def compare(source: str, name: str, folder: Path, compile_it: Compile, seed: int) -> tuple[str, Outcome]:
    """What the compiled program does differently from the eager one (empty: nothing), and the compiled outcome."""
    given = calls(seed)
    plain = load(source, name, folder)
    want = run(plain, plain.program, given)
    other = sys.modules[name] = load(source, name, folder)  # guards name the module
    got = run(other, compile_it(other.program), given)
    parts = (("results", want.results, got.results), ("globals", want.states, got.states), ("arguments", want.arguments, got.arguments))
    found = next((d for label, a, b in parts if (d := difference(a, b, label))), "")
    if not found and want.printed != got.printed:
        found = f"printed {want.printed!r:.200} against {got.printed!r:.200}"
    return found, got
