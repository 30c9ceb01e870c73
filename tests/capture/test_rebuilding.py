"""Bytecode that rebuilds objects, shortened: as eager in every respect, and it is shortened."""

from __future__ import annotations

import dis
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.capture import code as capture_code
from precast.capture import rebuilding
from precast.capture.bytecode import Editor, Instructions

X = torch.arange(6.0).reshape(2, 3)


@dataclass
class Output(OrderedDict[str, Any]):
    """As the outputs of Hugging Face's models are: a dict with attributes of the same names."""

    loss: Any = None
    logits: Any = None
    states: Any = None
    caches: Any = None

    def __post_init__(self) -> None:
        for name in ("loss", "logits", "states", "caches"):
            if (value := getattr(self, name)) is not None:
                self[name] = value

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


class Counter:
    def __init__(self) -> None:
        self.calls = 0
        self.last: Any = None


COUNTER = Counter()


def output(x: torch.Tensor) -> Output:
    return Output(logits=x + 1, states=(x * 2, x - 1))


def two_outputs(x: torch.Tensor) -> list[Output]:
    return [Output(logits=x + 1), Output(loss=x.sum(), caches=None)]


def nested(x: torch.Tensor) -> Output:
    return Output(logits=Output(logits=x.relu(), loss=x.mean()), caches={"k": Output(states=x)})


def with_side_effect(x: torch.Tensor) -> Output:
    COUNTER.calls += 1
    COUNTER.last = x * 3
    return Output(logits=x + COUNTER.calls)


def _same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    elif isinstance(want, dict):
        assert list(got) == list(want) and list(reversed(got)) == list(reversed(want))
        for key in want:
            _same(dict.__getitem__(got, key), dict.__getitem__(want, key))
        if hasattr(want, "__dict__"):
            _same(dict(sorted(got.__dict__.items())), dict(sorted(want.__dict__.items())))
    elif isinstance(want, (list, tuple)):
        for part, other in zip(got, want, strict=True):
            _same(part, other)
    else:
        assert got == want


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that captures of this test wrote into bytecode."""
    found: list[str] = []

    def noted(code: types.CodeType, supplies: rebuilding.Supplies) -> tuple[types.CodeType, dict[str, tuple[object, ...]]]:
        made, more = rebuilding.with_steps(code, supplies)
        found.extend(i.argval.removeprefix(rebuilding.PREFIX) for i in dis.get_instructions(made) if i.argval in more)
        return made, more

    monkeypatch.setattr(capture_code, "with_steps", noted)
    return found


@pytest.mark.parametrize("function", [output, two_outputs, nested, with_side_effect])
def test_as_eager(function: Callable[..., Any], tmp_path: Path, steps: list[str]) -> None:
    compiled = precast.compile(function, store=tmp_path, fullgraph=True)
    with torch.no_grad():
        for x in (X, X + 1, X - 5):
            COUNTER.calls, COUNTER.last = 3, None
            want, noted = function(x), (COUNTER.calls, COUNTER.last)
            COUNTER.calls, COUNTER.last = 3, None
            _same(compiled(x), want)
            _same((COUNTER.calls, COUNTER.last), noted)
    if sys.version_info < (3, 13):
        assert "refill" in steps and {"set_attributes", "set_own"} & set(steps)
        attributes = [name for name in steps if name.startswith("set")]
        assert len(attributes) < 4, "one step for the attributes of an object, not one for each"


def test_only_what_looks_as_expected() -> None:
    """What people write as the tracer would, and other things: left as it is."""

    def function(target: Any, values: Any, place: int) -> Any:
        made = object
        made.__setattr__(target, "a", 1)
        made.__setattr__(target, "b", 2)
        return type(target).__mro__[place]

    assert rebuilding.with_steps(function.__code__, {}) == (function.__code__, {})


def test_replaced_instructions_have_to_fit() -> None:
    names = [f"g{i}" for i in range(300)]
    namespace: dict[str, Any] = {name: i for i, name in enumerate(names)}
    exec(f"def function():\n    return [{', '.join(names)}]\n", namespace)
    function = namespace["function"]
    instructions = Instructions(function.__code__)
    loads = {one.argval: i for i, one in enumerate(instructions) if one.opname == "LOAD_GLOBAL"}
    editor = Editor(instructions)
    editor.replace(loads["g299"], loads["g299"] + 1, ("LOAD_GLOBAL", ("another", 0)))
    editor.replace(loads["g7"], loads["g7"] + 1, ("LOAD_CONST", 0))
    with pytest.raises(ValueError, match="do not fit"):
        editor.replace(loads["g5"], loads["g5"] + 1, ("LOAD_GLOBAL", ("third", 0)))
    changed = types.FunctionType(editor.code(), {**namespace, "another": "here"})
    assert changed() == [*range(7), None, *range(8, 299), "here"]
    assert function() == list(range(300))


@pytest.mark.parametrize("calls", [0, 1, 2, 7, 60, 100])
def test_what_is_left_out_is_jumped_over(calls: int) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def function(f):\n    {'; '.join(['f()'] * 100)}\n    return 'end'\n", namespace)
    instructions = Instructions(namespace["function"].__code__)
    ends = [i + 1 for i, one in enumerate(instructions) if one.opname == "POP_TOP"]
    first = next(i for i, one in enumerate(instructions) if one.opname != "RESUME")
    editor = Editor(instructions)
    editor.replace(first, ends[calls - 1] if calls else first)
    seen: list[int] = []
    assert types.FunctionType(editor.code(), {})(lambda: seen.append(1)) == "end"
    assert len(seen) == 100 - calls
