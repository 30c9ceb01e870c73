"""The interpreted first check says what the compiled checker and the guard-by-guard evaluation say, whatever the order of the paths."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from precast.artifact_store.format.guards import Guard, Predicate, canonical_order
from precast.artifact_store.format.manifest import guard_rows
from precast.runtime.guards import tensor_predicates, value_predicates
from precast.runtime.guards.compiled import compile_checker
from precast.runtime.guards.evaluate import failure
from precast.runtime.guards.interpreted import INTERPRETED_CALLS, LazyChecker
from precast.runtime.guards.tensor_spec import spec_of


class Node:
    def __init__(self, value: int, **children: Any) -> None:
        self.value = value
        self.__dict__.update(children)


def tree() -> Node:
    return Node(0, left=Node(1, left=Node(3), hooks={}), right=Node(2, left=Node(4), items=[Node(5), Node(6)]), name="root")


ROOT = ("local", "self")


def equals(value: int, *steps: Any) -> Guard:
    return Guard((ROOT, *steps, ("attr", "value")), Predicate.EQUALS, ("int", value))


def attr(name: str) -> tuple[str, str]:
    return ("attr", name)


GUARDS = (
    equals(0),
    equals(1, attr("left")),
    equals(3, attr("left"), attr("left")),
    Guard((ROOT, attr("left"), attr("hooks")), Predicate.EMPTY),
    Guard((ROOT, attr("left"), attr("left")), Predicate.LACKS_OWN, {"__dict__": ("forward",)}),
    equals(2, attr("right")),
    equals(4, attr("right"), attr("left")),
    equals(5, attr("right"), attr("items"), ("item", ("int", 0))),
    equals(6, attr("right"), attr("items"), ("item", ("int", 1))),
    Guard((ROOT, attr("right"), attr("items")), Predicate.LENGTH, 2),
    Guard((ROOT, attr("name")), Predicate.EQUALS, ("str", "root")),
    Guard((ROOT, attr("right"), attr("left")), Predicate.SAME_AS, (ROOT, attr("right"), ("dict",), ("item", ("str", "left")))),
)


def _break(root: Node, number: int) -> None:
    changes = (
        lambda: setattr(root, "value", 9),
        lambda: setattr(root.left, "value", True),
        lambda: setattr(root.left.left, "value", 9),
        lambda: root.left.hooks.update(a=1),
        lambda: setattr(root.left.left, "forward", None),
        lambda: delattr(root.right, "value"),
        lambda: setattr(root.right.left, "value", 4.0),
        lambda: root.right.items.reverse(),
        lambda: setattr(root.right.items[1], "value", 9),
        lambda: root.right.items.append(None),
        lambda: setattr(root, "name", None),
        lambda: delattr(root, "right"),
    )
    changes[number]()


@pytest.mark.parametrize("order", ["canonical", "shuffled"])
@pytest.mark.parametrize("broken", [None, *range(12)])
def test_interpreted_and_compiled_agree(order: str, broken: int | None) -> None:
    guards = list(canonical_order(GUARDS))
    if order == "shuffled":
        random.Random(broken).shuffle(guards)
    check = LazyChecker(lambda: guard_rows(guards))
    root = tree()
    values = {"self": root}
    assert check(values, {}) and not any(failure(g, values) for g in guards)
    if broken is not None:
        _break(root, broken)
    wanted = broken is None
    assert all(not failure(g, values) for g in guards) is wanted
    for _ in range(INTERPRETED_CALLS + 2):  # the last ones are compiled
        assert check(values, {}) is wanted
    assert compile_checker(guards)(values, {}) is wanted


def test_guards_are_decoded_once_and_only_when_checked() -> None:
    asked = []

    def rows() -> Any:
        asked.append(1)
        return guard_rows(GUARDS)

    check = LazyChecker(rows)
    assert not asked
    for _ in range(6):
        assert check({"self": tree()}, {})
    assert asked == [1]


def test_a_check_that_holds_describes_no_tensor_and_finds_each_class_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of guards stand between a server's start and its first answer."""
    found: list[str] = []
    find = value_predicates.find_object
    monkeypatch.setattr(value_predicates, "find_object", lambda name: found.append(name) or find(name))
    for module in (tensor_predicates, value_predicates):
        monkeypatch.setattr(module, "describe_tensor", lambda *_: pytest.fail("a tensor was described"))
    weights = [torch.nn.Parameter(torch.randn(2, 3)) for _ in range(4)]
    spec = spec_of(weights[0])
    guards = [
        guard
        for i in range(4)
        for path in [((("local", "weights")), ("item", ("int", i)))]
        for guard in (Guard(path, Predicate.TENSOR, spec), Guard(path, Predicate.TYPE, "torch.nn.parameter:Parameter"))
    ]
    check = LazyChecker(lambda: guard_rows(guards))
    assert check({"weights": weights}, {})
    assert found == ["torch.nn.parameter:Parameter"]
    assert not check({"weights": [*weights[:3], torch.randn(2, 3)]}, {})
    assert not check({"weights": [*weights[:3], torch.nn.Parameter(torch.randn(3, 2))]}, {})


def test_an_argument_without_sizes_is_told_of_in_words() -> None:
    shape = Guard((("state",),), Predicate.SHAPE, {"expr": ("<=", 2, ("size", 0, 0)), "paths": ((("local", "x"),),)})
    told = failure(shape, {"x": None})
    assert "2 <= x.size(0)" in told and "NoneType" in told and "expr" not in told


def test_a_class_that_was_shadowed_is_another() -> None:
    guards = [Guard((("local", name),), Predicate.TYPE, f"{__name__}:Node") for name in ("a", "b")]
    other = type("Node", (), {"__module__": __name__})
    for second, wanted in ((Node(1), True), (other(), False)):
        assert LazyChecker(lambda: guard_rows(guards))({"a": Node(0), "b": second}, {}) is wanted
