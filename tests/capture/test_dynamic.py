"""Frames with symbolic sizes and numbers: one capture, checked and run at many sizes; expressions; what the guards refuse."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from precast.artifact_store.format import expressions
from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.format.records import GraphInput, GraphOutput
from precast.capture import CapturedFrame, CaptureOptions, Dynamic, capture
from precast.runtime.guards.compiled import compile_checker
from precast.runtime.guards.evaluate import evaluate, failure
from tests.capture import harness

Made = tuple[Any, ...]
SIZES = (3, 4, 5, 8, 13, 64)


@pytest.fixture(autouse=True)
def _inference() -> Any:
    with torch.no_grad():
        yield


def views(x: Any) -> Any:
    y = x * 2
    return y, y[1:], y.t(), x[:, 1:], x.view(-1), x.size(0) * x.size(1) - 1


def mutation(x: Any, n: int) -> Any:
    x.add_(n)
    return x, x[0], x.sum()


def branches(x: Any, y: Any) -> Any:
    if x.size(0) > 4:
        return x @ y
    return y @ x


def numbers(x: Any, n: int, k: int) -> Any:
    return x.repeat(n, 1)[: n + k], n * k, n // k, (n + 1) % k


def strided(x: Any) -> Any:
    return x.t().contiguous() + 1, x.t()[1:]


def nested(d: Any, pair: Any) -> Any:
    return d["a"] + pair[0], torch.cat([d["a"], pair[1]])


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Made]]] = {
    "views": (views, lambda n: (torch.randn(n, n + 1),)),
    "mutation": (mutation, lambda n: (torch.randn(n, 3), n)),
    "branches": (branches, lambda n: (torch.randn(n + 5, n + 6), torch.randn(n + 6, n + 5))),
    "numbers": (numbers, lambda n: (torch.randn(n, 3), n + 1, n)),
    "strided": (strided, lambda n: (torch.randn(n, n + 3),)),
    "nested": (nested, lambda n: ({"a": torch.randn(n)}, [torch.randn(n), torch.randn(n + 7)])),
}


def symbolic(fn: Any, *args: Any, **options: Any) -> CapturedFrame:
    frame = capture(fn, args, options=CaptureOptions(dynamic=Dynamic("yes", **options)))
    assert not frame.uncacheable
    return frame


def copied(value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, value)


def same(got: Any, want: Any) -> None:
    got, want = (torch.utils._pytree.tree_leaves(v) for v in (got, want))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
        else:
            assert type(a) is type(b) and a == b


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_capture_serves_every_size(name: str) -> None:
    fn, make = PROGRAMS[name]
    frame = symbolic(fn, *make(6))
    assert frame.symbolic
    check = compile_checker(frame.guards)
    for n in SIZES:
        args = make(n)
        values = harness.locals_of(fn, args, {})
        assert not [text for guard in frame.guards if (text := failure(guard, values))]
        assert check(values, values)
        again = copied(args)
        same(harness.run_frame(frame, fn, args, {}), fn(*again))
        same(args, again)


def test_views_of_inputs_and_of_results_stay_views() -> None:
    frame = symbolic(views, torch.randn(6, 7))
    x = torch.randn(9, 4)
    y, rows, turned, columns, flat, count = harness.run_frame(frame, views, (x,), {})
    assert rows.untyped_storage()._cdata == turned.untyped_storage()._cdata == y.untyped_storage()._cdata
    assert columns.untyped_storage()._cdata == flat.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert (rows.shape, turned.shape, columns.shape, count) == ((8, 4), (4, 9), (9, 3), 35)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((torch.zeros(6, 1), torch.zeros(1, 6)), "2 <= x.size(1)"),
        ((torch.zeros(6, 0), torch.zeros(0, 6)), "2 <= x.size(1)"),
        ((torch.zeros(3, 6), torch.zeros(6, 3)), "5 <= x.size(0)"),
        ((torch.zeros(6, 5).t()[:, :5], torch.zeros(6, 5)), "stride"),
        ((torch.zeros(5, 6), torch.zeros(7, 5)), "y.size(0) == x.size(1)"),
    ],
)
def test_what_the_guards_refuse(args: Any, why: str) -> None:
    frame = symbolic(branches, torch.randn(9, 7), torch.randn(7, 9))
    values = harness.locals_of(branches, args, {})
    failures = [text for guard in frame.guards if (text := failure(guard, values))]
    assert any(why in text for text in failures), failures
    assert not compile_checker(frame.guards)(values, values)


def test_sizes_are_read_off_the_tensors() -> None:
    frame = symbolic(numbers, torch.randn(6, 3), 7, 6)
    kinds = [(item.kind, item.read is not None, item.position) for item in frame.inputs]
    assert ("int", True, None) in kinds and sum(item.position is not None for item in frame.inputs) == 3
    assert all(GraphInput.from_data(item.to_data()) == item for item in frame.inputs)
    assert all(GraphOutput.from_data(item.to_data()) == item for item in frame.outputs)


def test_only_what_varies_is_symbolic() -> None:
    varied = {(("local", "x"),): (("size", 0),), (("local", "n"),): ()}
    frame = capture(numbers, (torch.randn(6, 3), 4, 5), options=CaptureOptions(dynamic=Dynamic("auto", varied)))
    spec = next(g.constant for g in frame.guards if g.predicate is Predicate.TENSOR)
    assert spec["size"] == (None, 3)
    found = {g.path[0][1]: g.predicate for g in frame.guards if g.path in ((("local", "n"),), (("local", "k"),)) and g.predicate != "type"}
    assert found == {"k": Predicate.EQUALS}
    static = capture(numbers, (torch.randn(6, 3), 4, 5), options=CaptureOptions(dynamic=Dynamic("auto")))
    assert not static.symbolic, "nothing leaks from one capture to the next"


def test_guards_do_not_depend_on_the_process() -> None:
    frames = [symbolic(branches, torch.randn(9, 7), torch.randn(7, 9)) for _ in range(2)]
    assert frames[0].guard_hash == frames[1].guard_hash
    assert all(Guard.from_data(guard.to_data()) == guard for guard in frames[0].guards)


class Tensor:
    """What a leaf reads, without torch."""

    def __init__(self, size: list[int], stride: list[int], offset: int) -> None:
        self._size, self._stride, self._offset = size, stride, offset

    def size(self, dim: int) -> int:
        return self._size[dim]

    def stride(self, dim: int) -> int:
        return self._stride[dim]

    def storage_offset(self) -> int:
        return self._offset


def random_expression(draw: random.Random, depth: int) -> Any:
    if depth == 0 or draw.random() < 0.2:
        return draw.choice([draw.randint(-9, 9), ("size", 0, 1), ("stride", 0, 0), ("offset", 0), ("int", 1)])
    operator = draw.choice(sorted(set(expressions.OPERATORS) - {"**"}))
    count = {"neg": 1, "not": 1, "abs": 1, "if": 3}.get(operator, 2)
    operands = [random_expression(draw, depth - 1) for _ in range(count)]
    return (operator, *((("<", -2, v) for v in operands) if operator in ("and", "or") else operands))


def test_interpreted_and_generated_expressions_agree() -> None:
    """The native evaluation is compared in tests/end_to_end/dynamic/test_dynamic.py."""
    draw = random.Random(torch.randint(2**31, ()).item())
    objects = [Tensor([3, 5], [7, 1], 11), 6]
    for _ in range(400):
        expression = random_expression(draw, 3)
        code = expressions.source(expression, lambda leaf: expressions.show_leaf(leaf, ["a", "b"]), lambda n: f"f[{n!r}]")
        namespace = {"a": objects[0], "b": objects[1], "f": {n: expressions.function_of(n) for n in expressions.KNOWN}}
        interpreted = outcome(lambda e=expression: expressions.evaluate(e, objects))
        generated = outcome(lambda c=code, n=namespace: eval(c, n))
        # Python's `and` and `or` need not see an operand that divides by zero.
        assert interpreted == generated or (interpreted == "division" and ("and" in str(expression) or "or" in str(expression))), expression


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return int(action())
    except ZeroDivisionError:
        return "division"


def test_an_unknown_operator_does_not_hold() -> None:
    guard = Guard((("state",),), Predicate.SHAPE, {"expr": ("sin", ("int", 0)), "paths": ((("local", "n"),),)})
    assert not evaluate(guard, {"n": 1}).holds
    assert list(itertools.islice(expressions.leaves(("+", 1, ("int", 0), ("size", 1, 0))), 9)) == [("int", 0), ("size", 1, 0)]
