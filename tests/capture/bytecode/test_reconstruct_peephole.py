"""Bytecode that rebuilds objects, shortened: as eager in every respect, and it is shortened."""

from __future__ import annotations

import dis
import gc
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.capture.bytecode import frame_record as capture_code
from precast.capture.bytecode import reconstruct_peephole
from precast.capture.bytecode.editor import Editor, Instructions

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

    def noted(code: types.CodeType, supplies: reconstruct_peephole.Supplies) -> tuple[types.CodeType, dict[str, tuple[object, ...]]]:
        made, more = reconstruct_peephole.with_steps(code, supplies)
        found.extend(i.argval.removeprefix(reconstruct_peephole.PREFIX) for i in dis.get_instructions(made) if i.argval in more)
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

    assert reconstruct_peephole.with_steps(function.__code__, {}) == (function.__code__, {})


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


class Local(threading.local):
    pass


class Deleted:
    def __init__(self) -> None:
        self.k, self.kept = 1, 2


class Ordered(OrderedDict[str, Any]):
    pass


class Bogus(dict[str, Any]):
    def __iter__(self) -> Any:
        return iter(["bogus"])

    def keys(self) -> Any:
        raise AssertionError("its base's passes this by")


class Node:
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


class Child(Node):
    def __init__(self, parent: Any, log: list[Any]) -> None:
        self.parent, self.log = weakref.ref(parent), log

    def __del__(self) -> None:
        if (parent := self.parent()) is not None:
            self.log.append(parent.count)


def _local() -> Any:
    made = Local()
    made.n = 0
    return made


def _turned() -> Any:
    made = Ordered(q=1, r=2)
    made.move_to_end("r", last=False)
    return made


def _bogus() -> Any:
    made = Bogus()
    dict.__setitem__(made, "j", 0)
    dict.__setitem__(made, "i", 9)
    return made


def set_in_local(target: Any, x: torch.Tensor) -> torch.Tensor:
    target.a = x + 1
    target.n = 5
    return x * 2


def deleted(target: Any, x: torch.Tensor) -> torch.Tensor:
    del target.k
    return x * 2


def items_set(target: Any, x: torch.Tensor) -> torch.Tensor:
    target["b"] = x
    target["q"] = x + 1
    return x + 2


def items_set_by_force(target: Any, x: torch.Tensor) -> torch.Tensor:
    target["k"] = x
    target["j"] = 1
    return x + 1


@pytest.mark.parametrize(
    ("make", "function"),
    [(_local, set_in_local), (Deleted, deleted), (_turned, items_set), (_bogus, items_set_by_force)],
    ids=["thread-local", "deleted", "reordered", "overrides-iter"],
)
def test_objects_of_the_caller_change_as_in_eager(make: Any, function: Any, tmp_path: Path) -> None:
    compiled = precast.compile(function, store=tmp_path)

    def changed(call: Any, x: torch.Tensor) -> tuple[Any, ...]:
        target = make()
        result = call(target, x)
        items = (OrderedDict if isinstance(target, OrderedDict) else dict).items(target) if isinstance(target, dict) else ()
        return result, sorted(target.__dict__.items()), list(items)

    with torch.no_grad():
        for x in (torch.ones(1), torch.ones(1), torch.full((1,), 3.0)):
            _same(changed(compiled, x), changed(function, x))


def test_destructors_run_where_they_did(tmp_path: Path) -> None:
    """What is let go of by one attribute that is set is gone before the next is, if the compiled call is what held it last."""

    def function(node: Any, x: torch.Tensor) -> torch.Tensor:
        node.child.x = x + 1
        node.child = None
        node.count = 5
        return x + 1

    def seen(call: Any) -> list[Any]:
        node, log = Node(), list[Any]()
        node.child, node.count = Child(node, log), 0  # type: ignore[attr-defined]
        call(node, torch.ones(2))
        gc.collect()
        return log

    compiled = precast.compile(function, store=tmp_path)
    with torch.no_grad():
        assert seen(function) == [0]
        first, *others = [seen(compiled) for _ in range(5)]
        assert first in ([0], []) and others == [[0]] * 4  # []: the compile may keep what it has traced for a while
