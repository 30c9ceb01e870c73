"""What the native runtime does with memory: numbers that name nothing are refused, many values fit, nothing is left behind.

None of it compiles a program, so that all of it runs under AddressSanitizer in little time, too (`tests/ops/native_asan.py`).
"""

from __future__ import annotations

import gc
import threading
import tracemalloc
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from precast.artifact_store import Guard, Predicate, Store
from precast.runtime.guards.table import arguments as live_values
from precast.runtime.guards.table.plan import Plan
from precast.runtime.guards.table.recorder import record
from precast.runtime.native import kinds, loader
from precast.runtime.native.kinds import Kind, Slot

X = torch.ones(3)


class Owner:
    """An object that a table depends on."""

    def __init__(self) -> None:
        self.weight = torch.zeros(2)
        self.items = [1, "two"]
        self.entries = {"a": 1}


def function(x: Any, y: Any = 1) -> Any:
    return x


@pytest.fixture
def module(native_store: Store) -> Any:
    if not loader.tables_work():
        pytest.skip("this Python's dicts change unseen: there are no tables")
    return loader.loaded()


@pytest.fixture
def table(module: Any) -> Any:
    """A table that knows one value, the first local."""
    made = module.Table()
    made.local(0)
    return made


def test_python_names_the_kinds_as_they_are_numbered(module: Any) -> None:
    kinds.verify(module)
    assert module.KIND_TENSOR == Kind.TENSOR and module.SLOT_CELL == Slot.CELL
    others = types.SimpleNamespace(**{name: value for name, value in vars(module).items() if name != "KIND_TENSOR"}, KIND_TENSOR=0)
    with pytest.raises(ImportError, match="KIND_TENSOR"):
        kinds.verify(others)


@pytest.mark.parametrize(
    "kind", [-1, 99, *(kind for kind in Kind if kind.name in ("LOCAL", "ITEM", "DICT", "TENSOR", "DISTINCT", "SHAPE", "APART"))]
)
def test_what_is_no_kind_is_an_error(table: Any, kind: int) -> None:
    with pytest.raises(SystemError, match="no kind of check"):
        table.live(0, kind, X)
    with pytest.raises(SystemError, match="no kind of slot"):
        table.slot(X, 99)
    with pytest.raises(SystemError, match="no kind of slot"):
        table.slot(X, -1)


def test_a_wrong_kind_ends_the_recording(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for something that the table cannot express, which would be left to Python at each call."""
    plan = Plan([Guard((("local", "x"),), Predicate.EQUALS, ("int", 1))], ("x", "y"), function)  # type: ignore[arg-type]
    assert record(module, plan, {"x": 1, "y": 1}, dict).check((1, 1))
    monkeypatch.setattr(live_values, "Kind", types.SimpleNamespace(EQUAL=99))
    with pytest.raises(SystemError, match="99 is no kind"):
        record(module, plan, {"x": 1, "y": 1}, dict)


@pytest.mark.parametrize("number", [-1, 1, 7])
def test_numbers_of_values_that_are_not_there(table: Any, number: int) -> None:
    sizes = ((3,), (1,))
    for call in (
        lambda: table.live(number, Kind.POINTER, X),
        lambda: table.live(number, Kind.TUPLE, 2),
        lambda: table.live(0, Kind.SAME, number),
        lambda: table.item(number, 0),
        lambda: table.own(number),
        lambda: table.fields(number, ("a",)),
        lambda: table.live_tensor(number, X, False, 0, *sizes),
        lambda: table.apart(number, (4,)),
        lambda: table.disjoint((0, number), (4, 4), 1),
        lambda: table.distinct((0, number), ()),
        lambda: table.shape((1, number, 0)),
    ):
        with pytest.raises(ValueError, match="no value|malformed shape"):
            call()
    assert table.sizes()["live"] == 1, "nothing was added"


def test_items_are_taken_of_what_was_found_long_enough(table: Any) -> None:
    for position in (-1, 0):
        with pytest.raises(ValueError, match="not checked to have an item"):
            table.item(0, position)
    table.live(0, Kind.LIST, 2)
    with pytest.raises(ValueError, match="item 2"):
        table.item(0, 2)
    table.live(table.item(0, 1), Kind.EQUAL, "b")
    assert table.check((["a", "b"],))
    assert not any(table.check((other,)) for other in (["a"], ["a", "c"], ["a", "b", "c"], ("a", "b"), [], None))


def test_malformed_arguments_are_errors(table: Any) -> None:
    for error, call in (
        (ValueError, lambda: table.local(-1)),
        (ValueError, lambda: table.live(0, Kind.LIST, -2)),
        (TypeError, lambda: table.live(0, Kind.LIST, "two")),
        (TypeError, lambda: table.fields(0, (1,))),
        (ValueError, lambda: table.live_tensor(0, X, False, 0, (3,), (1, 1))),
        (TypeError, lambda: table.live_tensor(0, X, False, 0, ("3",), (1,))),
        (ValueError, lambda: table.apart(0, (4, 4))),
        (ValueError, lambda: table.disjoint((0, 0), (4,), 1)),
        (ValueError, lambda: table.disjoint((0, 0), (4, 4), 3)),
        (TypeError, lambda: table.disjoint((0, 0), (4, "4"), 1)),
        (ValueError, lambda: table.shape((99, 0, 0))),
        (ValueError, lambda: table.shape(())),
        (TypeError, lambda: table.check([1])),
        (TypeError, lambda: table.dict({}, (["unhashable"],), False)),
    ):
        with pytest.raises(error):
            call()
    assert not table.live_tensor(0, "no tensor", False, 0, (3,), (1,))
    assert not any(table.slot(3, kind) for kind in (Slot.CELL, Slot.CODE, Slot.DEFAULTS, Slot.KWDEFAULTS))


@pytest.mark.parametrize("count", [1, 16, 17, 300])
def test_many_values_are_told_apart(module: Any, count: int) -> None:
    """Few are compared pair by pair, more by a set."""
    table, fixed = module.Table(), [object() for _ in range(5)]
    table.live(table.local(0), Kind.LIST, count)
    table.distinct(tuple(table.item(0, i) for i in range(count)), tuple(fixed))
    values = [object() for _ in range(count)]
    assert table.check((values,)) and table.check((values[::-1],))
    for at in range(0, count, 7):
        assert not table.check(([*values[:at], fixed[at % 5], *values[at + 1 :]],))
        if at:
            assert not table.check(([*values[:at], values[at - 1], *values[at + 1 :]],))
    assert not table.check((values[:-1],))


@pytest.mark.parametrize("written", [0, 1, 2, 9, 40])
def test_tensors_that_share_memory(module: Any, written: int) -> None:
    """The first ones are written: none of them may lie in the memory of another; those that are read may."""
    table, count, memory = module.Table(), 40, torch.zeros(41 * 4)
    table.live(table.local(0), Kind.LIST, count)
    table.disjoint(tuple(table.item(0, i) for i in range(count)), (4,) * count, written)
    given = [memory[4 * i : 4 * i + 4] for i in range(count)][::-1]
    assert table.check((given,)), "side by side"
    assert table.check(([*given[:-1], torch.zeros(0)],)) and not (written and table.check(([None, *given[1:]],)))
    for at, among in ((0, 1), (0, 39), (1, 20), (8, 9), (38, 39), (39, 8)):
        start = given[among].storage_offset()
        for inside in (memory[start + 1 : start + 2], memory[start + 3 : start + 5], memory[start - 1 : start + 1], memory):
            changed = [*given[:at], inside, *given[at + 1 :]]
            places = [(t.storage_offset(), t.storage_offset() + t.numel()) for t in changed]
            clash = any(a[0] < b[1] and b[0] < a[1] for i, a in enumerate(places[:written]) for b in (*places[:i], *places[i + 1 :]))
            assert table.check((changed,)) is not clash, (at, among, inside.storage_offset())


def test_a_call_of_many_values_is_checked_without_python(module: Any) -> None:
    """Tensors that are guarded to be different objects, and numbers: all is recorded, nothing is left to a checker in Python."""
    items = [(("local", "x"), ("item", ("int", i))) for i in range(300)]
    guards = [
        Guard((("local", "x"),), Predicate.LENGTH, 600),
        Guard(items[0], Predicate.NOT_ALIASED, {"distinct": tuple(items), "mutated": (), "others": ()}),
        *(Guard((("local", "x"), ("item", ("int", i))), Predicate.EQUALS, ("int", i)) for i in range(300, 600)),
    ]
    given = [torch.zeros(1) for _ in range(300)] + list(range(300, 600))
    table = record(module, Plan(guards, ("x", "y"), function), {"x": given, "y": 1}, dict)  # type: ignore[arg-type]
    assert not table.sizes()["python"] and table.sizes()["live"] > 900
    assert table.check((given, 1))
    assert not table.check(([given[1], *given[1:]], 1)) and not table.check(([*given[:-1], 0], 1)) and not table.check((given[1:], 1))


def many(**defaults: Any) -> types.FunctionType:
    """A function of 300 parameters, of which those with defaults come last."""
    names = [f"p{i}" for i in range(300)]
    namespace: dict[str, Any] = {}
    exec(f"def f({', '.join(names)}): pass", namespace)
    made: types.FunctionType = namespace["f"]
    made.__defaults__ = tuple(defaults.values()) or None
    return made


def test_a_function_of_many_parameters_is_dispatched_natively(module: Any) -> None:
    taker, names = many(last=7), tuple(f"p{i}" for i in range(300))
    slow: list[Any] = []
    dispatcher = module.Dispatcher(taker, (), names, (300, 0, 0, False, False), lambda args, kwargs: slow.append((args, kwargs)), 4)
    table = module.Table()
    for i in range(300):
        table.live(table.local(i), Kind.EQUAL, 7 if i == 299 else i)
    dispatcher.add(table, lambda *args, **kwargs: (args, kwargs))
    assert dispatcher(*range(299)) == (tuple(range(299)), {})
    assert dispatcher(*range(200), **{f"p{i}": i for i in range(200, 299)}) == (tuple(range(200)), {f"p{i}": i for i in range(200, 299)})
    assert dispatcher.hits == 2 and not slow
    dispatcher(*range(300))
    dispatcher(1, 2)
    assert [len(args) for args, _ in slow] == [300, 2] and dispatcher.hits == 2
    for wrong in ((299, 0, 0, False, False), (301, 0, -1, False, False), (-1, 0, 301, False, False)):
        with pytest.raises(ValueError, match="do not match"):
            module.Dispatcher(taker, (), names, wrong, print, 4)


# -- memory


def full(module: Any, owner: Owner) -> Any:
    """A table with an entry in each of its arrays."""
    table = module.Table()
    first = table.local(0)
    assert table.live_tensor(first, X, False, 0, (3,), (1,))
    table.live(table.local(1), Kind.TUPLE, 2)
    items = [table.item(1, i) for i in range(2)]
    table.distinct((first, *items), (owner, owner.weight))
    table.shape((2, first, 0))
    table.apart(first, (4, 8, 16))
    table.disjoint((first,), (4,), 1)
    table.live(table.fields(table.local(2), ("k", "l")), Kind.EQUAL, 1)
    table.lend(owner)
    assert all(table.slot(owner, kind) for kind in (Slot.TYPE, Slot.DICT)) and table.slot(function, Slot.CODE)
    assert table.type(Owner) and table.items(owner.items) and table.items([]) and table.used(owner.entries)
    table.dict(owner.__dict__, ("weight", "items", "missing"), False)
    table.dict(owner.entries, (), True)
    assert table.tensor(owner.weight) and table.data(owner.weight)
    table.probe(torch.is_grad_enabled, False)
    table.python(lambda values: True)
    table.watch()
    assert table.check(arguments())
    return table


def arguments() -> tuple[Any, ...]:
    return torch.zeros(3), ("a", "b"), {"k": 1, "l": 2}


def record_and_drop(module: Any) -> None:
    full(module, Owner())  # the owner goes first, and the table drops what it holds


def record_and_keep_the_owner(module: Any) -> None:
    owner = Owner()
    table = full(module, owner)
    owner.weight = torch.zeros(2)
    assert not table.check(arguments())


def in_a_cycle(module: Any) -> None:
    owner = Owner()
    table = full(module, owner)
    owner.table = table  # type: ignore[attr-defined]
    table.python(lambda values, owner=owner: owner is None)
    del table, owner
    gc.collect()


def fail(module: Any) -> None:
    """Errors in the middle of recording."""
    table = module.Table()
    table.local(0)
    for call in (
        lambda: table.distinct((0, 5), (X,)),
        lambda: table.distinct((0, "x"), (X,)),
        lambda: table.shape((0, 1, 0, "x")),
        lambda: table.shape((0, 1)),
        lambda: table.apart(5, (4,)),
        lambda: table.apart(0, (4, "x", 5)),
        lambda: table.disjoint((0, 5), (4, 4), 1),
        lambda: table.disjoint((0, 0), (4, "x"), 1),
        lambda: table.live_tensor(5, X, False, 0, (3,), (1,)),
        lambda: table.live_tensor(0, X, False, 0, ("x",), (1,)),
        lambda: table.fields(5, ("a",)),
        lambda: table.dict({}, ("a", []), False),
        lambda: module.GraphCall(0, 0, 0, 0, (0, ("size", 5, 0)), "ti", "t", (), 0, None, None, (), ()),
        lambda: module.GraphCall(0, 0, 0, 0, (0, -1), "tt", "t", (), 0, None, None, (), ()),
        lambda: module.GraphCall(0, 0, 0, 0, (0,), "t", "t", ("no tensor",), 0, None, None, (), ()),
        lambda: module.GraphCall(0, 0, 0, 0, (0,), "t", "t", (), 0, None, None, (), (1,)),
        lambda: module.Dispatcher(function, (), ("x",), (2, 0, 0, False, False), print, 4),
    ):
        with pytest.raises((ValueError, TypeError)):
            call()


def a_check_that_fails(module: Any) -> None:
    def broken(values: Any) -> bool:
        raise LookupError

    table = module.Table()
    table.probe(broken, True)
    with pytest.raises(TypeError):
        table.check(())
    table = module.Table()
    table.python(broken)
    with pytest.raises(LookupError):
        table.check((1, 2))
    dispatcher = module.Dispatcher(function, (), ("x", "y"), (2, 0, 0, False, False), print, 4)
    dispatcher.add(table, print)
    with pytest.raises(LookupError):
        dispatcher(1, y=2)


def dispatch(module: Any) -> None:
    def taker(x: Any, *more: Any, y: Any = 2, **named: Any) -> None: ...

    owner = Owner()
    dispatcher = module.Dispatcher(taker, (owner,), ("x", "y", "more", "named"), (1, 0, 1, True, True), lambda args, kwargs: None, 2)
    for _ in range(4):
        table = module.Table()
        table.live(table.local(1), Kind.EQUAL, 2)
        table.live(table.local(2), Kind.TUPLE, 1)
        dispatcher.add(table, lambda *args, **kwargs: 1)
    assert dispatcher(1) == 1 and dispatcher.entries == 2
    assert dispatcher(1, 2, z=3) is None and dispatcher(1, y=4) is None and dispatcher() is None
    dispatcher.remove(table)


def a_check_within_a_check(module: Any) -> None:
    """The object that the table depends on is freed while its checker runs, and the checker asks the table."""
    table, owners, answers, runs = module.Table(), [Owner()], [], []
    table.lend(owners[0])
    table.slot(owners[0], Slot.TYPE)

    def checker(values: Any) -> bool:
        runs.append(values)
        if owners:
            owners.clear()
            answers.append(table.check(values))
        return True

    table.python(checker)
    assert not table.check(()) and answers == [False] and table.forgotten
    assert len(runs) == 1, "the inner check compared what was freed, found it equal and went on"


WORK: list[Callable[[Any], None]] = [
    record_and_drop,
    record_and_keep_the_owner,
    in_a_cycle,
    fail,
    a_check_that_fails,
    a_check_within_a_check,
    dispatch,
]


@pytest.fixture
def quick_collections() -> Iterator[None]:
    """What is there before a test is not looked through at each of its collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_nothing_stays_behind(module: Any, quick_collections: None, traced: None, work: Callable[[Any], None]) -> None:
    for _ in range(5):
        work(module)
    gc.collect()
    before, rounds = tracemalloc.get_traced_memory()[0], 40
    for _ in range(rounds):
        work(module)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    assert grown < 16 * rounds, f"{grown / rounds:.0f} bytes a round"


def test_threads_record_and_check_while_others_collect(module: Any, quick_collections: None) -> None:
    wrong: list[BaseException] = []

    def run(work: Callable[[Any], None]) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    work(module)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in (*WORK, record_and_drop)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        gc.collect()
    assert not wrong, wrong
