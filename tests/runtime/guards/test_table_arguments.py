"""Guard tables over what comes fresh with each call (tuples, lists, dicts of tensors), relations, and guards that stay Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Guard, Predicate, Store
from precast.artifact_store.format.guards import Path
from precast.artifact_store.format.import_names import type_name
from precast.runtime.api.compile import site_of
from precast.runtime.frames.entry import LocalsOf, parameters
from precast.runtime.guards.table.plan import Plan
from precast.runtime.guards.table.recorder import record
from precast.runtime.native import loader
from precast.runtime.native.kinds import Kind
from tests.runtime.guards.test_guard_tables import spec

X, Y = torch.zeros(2, 3), torch.zeros(4)


def f(*args: Any, **kwargs: Any) -> None:
    """The frame: its locals are `args` and `kwargs`, as in a decorated forward."""


ARG0 = (("local", "args"), ("item", ("int", 0)))
PAIR = (("local", "kwargs"), ("item", ("str", "pair")))
GUARDS = [
    Guard((("local", "args"),), Predicate.LENGTH, 1),
    Guard(ARG0, Predicate.TENSOR, spec(X)),
    Guard((("local", "kwargs"),), Predicate.KEYS, {"keys": (("str", "pair"), ("str", "scale")), "ordered": False}),
    Guard(PAIR, Predicate.TYPE, "builtins:list"),
    Guard(PAIR, Predicate.LENGTH, 2),
    Guard((*PAIR, ("item", ("int", 1))), Predicate.TENSOR, spec(Y)),
    Guard((("local", "kwargs"), ("item", ("str", "scale"))), Predicate.EQUALS, ("float", (0.5).hex())),
]


def table_for(guards: Sequence[Guard], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """A table for the call, and a function that says whether it holds for another call."""
    names = parameters(function.__code__)
    locals_of = LocalsOf(function)
    table = record(loader.loaded(), Plan(guards, names, function), locals_of(args, kwargs), locals_of.cells)

    def holds(*args: Any, **kwargs: Any) -> bool:
        values = locals_of(args, kwargs)
        return bool(table.check(tuple(values[name] for name in names)))

    return table, holds


CALLS: list[tuple[str, bool, tuple[Any, ...], dict[str, Any]]] = [
    ("fresh equal objects", True, (torch.ones(2, 3),), {"pair": [None, torch.ones(4)], "scale": 0.25 + 0.25}),
    ("unguarded item differs", True, (X,), {"pair": ["anything", Y], "scale": 0.5}),
    ("other shape", False, (torch.ones(3, 2),), {"pair": [None, Y], "scale": 0.5}),
    ("other shape inside", False, (X,), {"pair": [None, torch.ones(5)], "scale": 0.5}),
    ("tuple for a list", False, (X,), {"pair": (None, Y), "scale": 0.5}),
    ("longer list", False, (X,), {"pair": [None, Y, Y], "scale": 0.5}),
    ("more arguments", False, (X, X), {"pair": [None, Y], "scale": 0.5}),
    ("no arguments", False, (), {"pair": [None, Y], "scale": 0.5}),
    ("missing keyword", False, (X,), {"pair": [None, Y]}),
    ("other keyword", False, (X,), {"pair": [None, Y], "scales": 0.5}),
    ("one more keyword", False, (X,), {"pair": [None, Y], "scale": 0.5, "more": 1}),
    ("other scalar", False, (X,), {"pair": [None, Y], "scale": 0.75}),
    ("scalar of another type", False, (X,), {"pair": [None, Y], "scale": "0.5"}),
    ("None for a container", False, (X,), {"pair": None, "scale": 0.5}),
]


@pytest.mark.parametrize("name, expected, args, kwargs", CALLS, ids=[row[0] for row in CALLS])
def test_fresh_containers(native_store: Store, name: str, expected: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    table, holds = table_for(GUARDS, f, (X,), {"pair": [None, Y], "scale": 0.5})
    assert not table.sizes()["python"]
    assert holds(*args, **kwargs) is expected, name


def two(a: torch.Tensor, b: torch.Tensor) -> None:
    """Two tensors."""


A, B = (("local", "a"),), (("local", "b"),)


def test_distinct_and_same_arguments(native_store: Store) -> None:
    distinct = [
        Guard(A, Predicate.TENSOR, spec(X)),
        Guard(B, Predicate.TENSOR, spec(X)),
        Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": (A, B), "mutated": (), "others": ()}),
    ]
    first, second = torch.zeros(2, 3), torch.zeros(2, 3)
    table, holds = table_for(distinct, two, (first, second), {})
    assert not table.sizes()["python"]
    assert holds(second, first) and not holds(first, first)
    same = [*distinct[:2], Guard(A, Predicate.SAME_AS, B)]
    _, holds = table_for(same, two, (first, first), {})
    assert holds(second, second) and not holds(first, second)


def test_overlap_of_a_mutated_argument_is_checked_at_each_call(native_store: Store) -> None:
    guards = [
        Guard(A, Predicate.TENSOR, spec(X)),
        Guard(B, Predicate.TENSOR, spec(X)),
        Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": (A, B), "mutated": (A,), "others": (B,)}),
    ]
    table, holds = table_for(guards, two, (torch.zeros(2, 3), torch.zeros(2, 3)), {})
    assert not table.sizes()["python"]
    base = torch.zeros(12)
    assert holds(torch.zeros(2, 3), torch.zeros(2, 3)) and holds(base[6:].view(2, 3), base[:6].view(2, 3))
    assert not holds(base[:6].view(2, 3), base[5:11].view(2, 3)) and not holds(base[5:11].view(2, 3), base[:6].view(2, 3))


def many(x: torch.Tensor, *given: Any, owner: Any = None) -> None:
    """Any number of containers, and an object that lives on."""


def _items(*numbers: int) -> list[Path]:
    return [(("local", "given"), ("item", ("int", i))) for i in numbers]


OWNED: Path = (("local", "owner"), ("attr", "items"))
COUNT = 20


class Owner:
    def __init__(self) -> None:
        self.items: list[int] = []
        self.more: list[int] = []


def _many_guards(make: Callable[[], Any], relation: list[Guard]) -> tuple[list[Guard], list[Any], Owner]:
    owner = Owner()
    given = [make() for _ in range(COUNT)]
    types = [Guard(path, Predicate.TYPE, type_name(type(make()))) for path in _items(*range(COUNT))]
    lengths = [Guard(path, Predicate.LENGTH, len(make())) for path in _items(*range(COUNT))]
    return [*types, *lengths, Guard(OWNED, Predicate.TYPE, "builtins:list"), *relation], given, owner


@pytest.mark.parametrize("make", [list, lambda: [1, 2], dict, lambda: {"a": 1, "b": 2}], ids=["[]", "[1, 2]", "{}", "{a, b}"])
def test_many_objects_are_compared_natively(native_store: Store, make: Callable[[], Any]) -> None:
    """Twenty of the call among one another, and with those that an object which lives on has."""
    paths = (*_items(*range(COUNT)), OWNED, (("local", "owner"), ("attr", "more")))
    relation = [Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": paths, "mutated": (), "others": ()})]
    guards, given, owner = _many_guards(make, relation)
    table, holds = table_for(guards, many, (X, *given), {"owner": owner})
    assert not table.sizes()["python"]
    assert holds(X, *given, owner=owner) and holds(X, *(make() for _ in given), owner=owner)
    for one, other in [(0, 1), (3, 17), (0, COUNT - 1), (COUNT - 2, COUNT - 1)]:
        twice = list(given)
        twice[other] = twice[one]
        assert not holds(X, *twice, owner=owner), (one, other)
    if type(make()) is list and not make():
        for owned in (owner.items, owner.more):
            assert not holds(X, *given[:5], owned, *given[6:], owner=owner)


@pytest.mark.parametrize("make", [list, lambda: {"a": 1}], ids=["list", "dict"])
def test_one_object_is_compared_natively(native_store: Store, make: Callable[[], Any]) -> None:
    first, last = _items(0, COUNT - 1)
    guards, given, owner = _many_guards(make, [Guard(last, Predicate.SAME_AS, first)])
    given[-1] = given[0]
    table, holds = table_for(guards, many, (X, *given), {"owner": owner})
    assert not table.sizes()["python"]
    another = [make() for _ in given]
    assert holds(X, *given, owner=owner) and not holds(X, *another, owner=owner)
    assert holds(X, *another[:-1], another[0], owner=owner)


def test_what_lives_on_and_what_comes_with_the_call_are_one_object(native_store: Store) -> None:
    (first,) = _items(0)
    guards, given, owner = _many_guards(list, [Guard(first, Predicate.SAME_AS, OWNED)])
    table, holds = table_for(guards, many, (X, owner.items, *given[1:]), {"owner": owner})
    assert not table.sizes()["python"]
    assert holds(X, owner.items, *given[1:], owner=owner)
    assert not holds(X, *given, owner=owner) and not holds(X, owner.more, *given[1:], owner=owner)


@pytest.mark.parametrize("arguments", [((99,), ()), ((-1,), ()), (("a",), ()), ([0], ())], ids=repr)
def test_a_table_takes_the_numbers_of_its_values_only(native_store: Store, arguments: tuple[Any, Any]) -> None:
    table = loader.loaded().Table()
    table.local(0)
    with pytest.raises((ValueError, TypeError)):
        table.distinct(*arguments)
    with pytest.raises((ValueError, TypeError)):
        table.live(0, Kind.SAME, 99)


class Caches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        memory = torch.zeros(40)
        self.register_buffer("written", memory[:6].view(2, 3))
        self.register_buffer("also", memory[12:18].view(2, 3))
        self.register_buffer("read", memory[24:30].view(2, 3))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """`b` is written."""


def _moved(caches: Caches) -> None:
    storage = caches.written.untyped_storage()
    keep = torch.zeros(4096)  # so that what follows it lies elsewhere
    storage.resize_(40 * 4 * 4096)
    del keep


@pytest.mark.parametrize("move", [lambda m: setattr(m.written, "data", torch.zeros(2, 3)), _moved], ids=["data", "storage"])
def test_overlap_with_what_lives_on(native_store: Store, move: Callable[[Caches], None]) -> None:
    """Caches that a module owns and tensors that come with the call, written or not."""
    model = Caches()
    memory = torch.as_strided(model.written, (40,), (1,), 0)
    owner = ("local", "self")
    written, also, read = ((owner, ("buffer", name)) for name in ("written", "also", "read"))
    every = (A, B, written, also, read)
    guards = [Guard(path, Predicate.TENSOR, spec(X)) for path in every]
    guards.append(Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": every, "mutated": (B, written, also), "others": (A, read)}))
    table, holds = table_for(guards, Caches.forward, (model, torch.zeros(2, 3), torch.zeros(2, 3)), {})
    assert not table.sizes()["python"]

    def at(start: int) -> torch.Tensor:
        return memory[start : start + 6].view(2, 3)

    fresh = torch.zeros(2, 3)
    cases = [(6, 1, 1), (1, 0, 0), (7, 0, 0), (17, 0, 0), (18, 1, 1), (24, 1, 0), (29, 1, 0), (30, 1, 1), (11, 0, 0)]
    for start, reading, writing in cases:
        assert holds(model, at(start), fresh) == bool(reading), f"read at {start}"
        assert holds(model, fresh, at(start)) == bool(writing), f"written at {start}"
    assert not holds(model, at(30), at(33)) and not holds(model, model.read, at(24))
    move(model)
    assert not holds(model, fresh, torch.zeros(2, 3)), "what was said of the old place says nothing of the new one"


class Computed:
    level = 1

    @property
    def value(self) -> int:
        return LEVELS[0]

    def __getattr__(self, name: str) -> int:
        if name == "lazy":
            return LEVELS[0]
        raise AttributeError(name)


LEVELS = [1]


@pytest.mark.parametrize("name", ["value", "lazy"])
def test_what_python_code_computes_is_asked_at_each_call(native_store: Store, name: str) -> None:
    target = Computed()
    table, holds = table_for([Guard((*A, ("attr", name)), Predicate.EQUALS, ("int", 1))], two, (target, X), {})
    assert table.sizes()["python"]
    LEVELS[0] = 1
    assert holds(target, X)
    LEVELS[0] = 2
    try:
        assert not holds(target, X)
    finally:
        LEVELS[0] = 1


def test_closure_cells(native_store: Store) -> None:
    amount = 3

    def inside(a: Any) -> Any:
        return a + amount

    table, holds = table_for([Guard((("cell", "amount"),), Predicate.EQUALS, ("int", 3))], inside, (X,), {})
    assert not table.sizes()["python"]
    assert holds(X)
    amount = 4
    assert not holds(X)


def test_dynamic_sizes(native_store: Store) -> None:
    free = {**spec(X), "size": (None, 3), "stride": (3, 1)}
    _, holds = table_for([Guard(A, Predicate.TENSOR, free)], two, (X, Y), {})
    assert holds(torch.zeros(7, 3), Y) and not holds(torch.zeros(7, 4), Y)


def test_inputs_that_overlap_once_leave_later_calls_compiled(store: Store) -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    compiled = precast.compile(write, store=store)
    for start, variants in ((2, 0), (4, 1), (2, 1)):
        base, wanted = torch.arange(12.0), torch.arange(12.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = compiled(base[:4], base[start : start + 4])
        assert torch.equal(got, write(wanted[:4], wanted[start : start + 4])) and torch.equal(base, wanted)
        assert sum(v.stored for v in site_of(compiled).programs[0].variants) == variants
