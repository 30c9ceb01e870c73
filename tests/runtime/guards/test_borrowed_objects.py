"""What callers hand to compiled functions stays theirs: nothing of ours keeps it, and what was noted of it goes with it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from precast.runtime.guards.table.recorder import Recording
from precast.runtime.native import loader
from precast.runtime.native.kinds import Kind, Slot

X = torch.ones(4)


class Cache:
    def __init__(self, scale: float = 2.0) -> None:
        self.rows = torch.zeros(4)
        self.scale = scale


class Layered:
    def __init__(self) -> None:
        self.layers = [Cache(), Cache()]
        self.by_name = {"first": Cache()}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) * 2


def add_to(cache: Cache, x: torch.Tensor) -> torch.Tensor:
    cache.rows = cache.rows + x
    return cache.rows * cache.scale


def add_to_layers(layered: Layered, x: torch.Tensor) -> torch.Tensor:
    for cache in (*layered.layers, layered.by_name["first"]):
        cache.rows = cache.rows + x
    return x * 2


def with_list(caches: list[Cache], x: torch.Tensor) -> torch.Tensor:
    return sum((add_to(cache, x) for cache in caches), x)


def with_break(cache: Cache, x: torch.Tensor) -> torch.Tensor:
    y = add_to(cache, x)
    torch._dynamo.graph_break()
    return y + add_to(cache, x)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (add_to, Cache),
        (add_to_layers, Layered),
        (with_list, lambda: [Cache(), Cache()]),
        (with_break, Cache),
        (Model.scaled, Model),
    ],
    ids=["object", "objects within", "list", "break", "method"],
)
def test_arguments_are_let_go_of(function: Callable[..., Any], make: Callable[[], Any], store: Path) -> None:
    compiled, refs = precast.compile(function, store=store), []
    with torch.no_grad():
        for _ in range(20):
            given = make()
            for _ in range(4):
                compiled(given, X)
            refs += [weakref.ref(one) for one in (given if isinstance(given, list) else [given])]
    del given
    gc.collect()
    assert [i for i, ref in enumerate(refs) if ref() is not None] == []


def test_the_next_object_at_the_same_address_is_another_one(store: Path) -> None:
    compiled, addresses = precast.compile(add_to, store=store), []
    with torch.no_grad():
        for i in range(60):
            given = Cache(float(i % 7))
            addresses.append(id(given))
            for k in range(1, 4):
                torch.testing.assert_close(compiled(given, X), X * k * (i % 7))
            del given
    assert len(set(addresses)) < len(addresses), "no address was used again: nothing was tested"


@pytest.fixture
def table(native_store: Store) -> Any:
    if not loader.tables_work():
        pytest.skip("this Python's dicts change unseen: there are no tables")
    return loader.loaded().Table()


def _lent(table: Any, thing: Any) -> Any:
    assert table.lend(thing)
    number = table.local(0)
    table.live(number, Kind.POINTER, thing)
    assert table.slot(thing, Slot.TYPE) and table.slot(thing, Slot.DICT)
    table.dict(thing.__dict__, ("rows", "scale"), False)
    table.tensor(thing.rows)
    table.watch()
    return table


def test_a_table_forgets_everything_when_what_it_was_lent_goes(table: Any) -> None:
    thing = Cache()
    _lent(table, thing)
    assert table.lend(thing), "once more changes nothing"
    rows = weakref.ref(thing.rows)
    assert table.check((thing,)) and not table.check((Cache(),))
    thing.scale = 3.0
    assert not table.check((thing,))
    thing.scale = 2.0
    reference = weakref.getweakrefs(thing)[0]
    del thing
    assert rows() is None and reference() is None
    sizes = table.sizes()
    assert not any(sizes[kind] for kind in sizes if kind not in ("live", "python"))
    assert not table.check((Cache(),)) and not table.check(())


def test_a_weak_reference_that_outlives_the_table(native_store: Store) -> None:
    if not loader.tables_work():
        pytest.skip("this Python's dicts change unseen: there are no tables")
    thing = Cache()
    kept = _lent(loader.loaded().Table(), thing)
    references, callbacks = weakref.getweakrefs(thing), [ref.__callback__ for ref in weakref.getweakrefs(thing)]
    del kept
    gc.collect()
    for callback, reference in zip(callbacks, references, strict=True):
        if callback is not None:
            callback(reference)
    del thing
    assert all(reference() is None for reference in references)


@pytest.mark.parametrize("thing", [None, 3, object(), len, (1,), "text"], ids=lambda thing: type(thing).__name__)
def test_what_knows_no_weak_references_is_kept(table: Any, thing: Any) -> None:
    kept = table.lend(thing)
    assert kept is (thing is len)
    table.live(table.local(0), Kind.POINTER, thing)
    assert table.check((thing,))


def test_what_goes_while_a_checker_runs(table: Any) -> None:
    """The table has then nothing to compare with any more: it does not hold."""
    given, other = Cache(), [Cache()]
    table.lend(other[0])
    table.lend(given)
    number = table.local(0)
    table.live(number, Kind.POINTER, given)
    table.distinct((number,), (other[0],))

    def checker(values: Any) -> bool:
        other.clear()
        return True

    table.python(checker)
    assert not table.check((given,))


def test_objects_that_go_in_other_threads(store: Path) -> None:
    compiled, wrong = precast.compile(add_to, store=store), []

    def work(seed: int) -> None:
        with torch.no_grad():
            for i in range(40):
                given = Cache(float((seed + i) % 5))
                for k in range(1, 4):
                    if not torch.equal(compiled(given, X), X * k * ((seed + i) % 5)):
                        wrong.append((seed, i, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Pair:
    def __init__(self, other: Any) -> None:
        self.other = other


def both(first: Pair, second: Cache, x: torch.Tensor) -> torch.Tensor:
    return x * first.other.scale + second.scale


def test_what_leads_to_an_argument_does_not_keep_it(store: Path) -> None:
    compiled, refs, firsts = precast.compile(both, store=store), [], []
    with torch.no_grad():
        for _ in range(10):
            second = Cache()
            first = Pair(second)
            firsts.append(first)
            for _ in range(4):
                compiled(first, second, X)
            refs.append(weakref.ref(second))
            first.other = None
    del second
    gc.collect()
    assert not any(ref() is not None for ref in refs)


def test_what_a_kept_object_no_longer_has_is_let_go_of(store: Path) -> None:
    """A cache that grows by a row at each step: its rows of before are gone."""
    compiled, kept, refs = precast.compile(add_to, store=store), Cache(), []
    with torch.no_grad():
        for _ in range(30):
            compiled(kept, X)
            refs.append(weakref.ref(kept.rows))
    gc.collect()
    assert [i for i, ref in enumerate(refs) if ref() is not None] == [29]


def test_weights_of_modules_that_are_gone(store: Path) -> None:
    """A few bindings are remembered, whether there are tables or not."""
    compiled, refs = precast.compile(Model.scaled, store=store), []
    with torch.no_grad():
        for _ in range(60):
            model = Model()
            refs.append(weakref.ref(model.lin.weight))
            for _ in range(4):
                compiled(model, X)
    del model
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 10


def of_dict(given: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    return x * given["read"].scale


def of_list(given: list[Any], x: torch.Tensor) -> torch.Tensor:
    return x * given[0].scale


def of_keywords(x: torch.Tensor, **given: Any) -> torch.Tensor:
    return x * given["read"].scale


@pytest.mark.parametrize("function", [of_dict, of_list, of_keywords])
def test_what_no_guard_reads_may_come_and_go(function: Callable[..., Any], store: Path, native_store: Store) -> None:
    """A request's own object, beside a configuration that stays: calls go on without Python."""
    if not loader.tables_work():
        pytest.skip("this Python's dicts change unseen: there are no tables")
    compiled, read = precast.compile(function, store=store), Cache(3.0)
    with torch.no_grad():
        for _ in range(12):
            if function is of_keywords:
                got = compiled(X, read=read, request=Cache())
            else:
                got = compiled({"read": read, "request": Cache()} if function is of_dict else [read, Cache()], X)
            torch.testing.assert_close(got, X * 3)
    (program,) = site_of(compiled).programs
    assert program.hooks.on_binding.__self__.tables.dispatcher.hits >= 8  # type: ignore[union-attr]


def test_lending_many_objects_takes_time_by_their_number(table: Any) -> None:
    things = [Cache() for _ in range(16000)]
    start = time.perf_counter()
    for thing in things[:2000]:
        assert table.lend(thing) and table.slot(thing, Slot.TYPE)
    few = time.perf_counter() - start
    for thing in things:
        assert table.lend(thing) and table.slot(thing, Slot.TYPE)
    assert time.perf_counter() - start < 40 * few, "eight times as many; by looking at each it were sixty-four"


def test_nothing_is_noted_for_what_is_gone(table: Any) -> None:
    table.lend(gone := Cache())
    del gone
    assert table.forgotten
    for note in (
        lambda: table.slot(Cache(), Slot.TYPE),
        lambda: table.dict({}, ("k",), False),
        lambda: table.live(table.local(0), Kind.POINTER, X),
    ):
        with pytest.raises(ValueError, match="gone"):
            note()
    assert not table.check((X,))


def test_an_argument_that_goes_while_it_is_noted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread may do it."""
    root, gone = Recording._root, [0]

    def dropping(walk: Recording, path: Any) -> Any:
        given[:] = [Cache(), Cache()]
        gone[0] += walk.table.forgotten
        return root(walk, path)

    compiled = precast.compile(with_list, store=store)
    monkeypatch.setattr(Recording, "_root", dropping)
    with torch.no_grad():
        for _ in range(6):
            given = [Cache(), Cache()]
            torch.testing.assert_close(compiled(given, X), X * 5)
    assert gone[0] or not loader.tables_work()


class Emptying:
    """A key that is like no other; comparing it runs code."""

    def __init__(self, like: str, act: Callable[[], Any]) -> None:
        self.hash, self.act = hash(like), act

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        self.act()
        return False


def _with_one_lent(table: Any) -> list[Any]:
    """A list with the only object that the table was lent: the argument of its checks."""
    given = [Cache()]
    table.lend(given[0])
    number = table.local(0)
    table.live(number, Kind.LIST, 1)
    table.live(table.item(number, 0), Kind.POINTER, given[0])
    table.slot(given[0], Slot.DICT)
    return given


@pytest.mark.parametrize("when", ["probe", "comparison", "checker"])
def test_what_goes_in_the_middle_of_a_check(table: Any, when: str) -> None:
    """It is not looked at any more, nothing that the check goes on with is let go of before its end, and the table does not hold."""
    given, armed = _with_one_lent(table), [False]

    def drop() -> bool:
        if armed[0]:
            given.clear()
            gc.collect()
        return True

    names: dict[Any, int] = {Emptying("k1", drop): 1}
    names["k1"] = 5
    if when == "comparison":
        table.dict(names, ("".join(["k", "1"]), "absent", "k2"), False)
    elif when == "probe":
        table.probe(drop, True)
        table.probe(bool, False)
    else:
        table.python(lambda values: drop())
    table.watch()
    assert table.check((given,))
    names["other"] = 1
    armed[0] = True
    assert not table.check((given,)) and table.forgotten and not given


def _emptied_by_a_collection(more: int, threshold: tuple[int, int, int]) -> bool:
    """Whether a collection that starts after `more` allocations of a check emptied the list that the check was given; it must notice
    that.
    """
    table = loader.loaded().Table()
    given = _with_one_lent(table)
    table.python(bool)

    class Cyclic:
        def __del__(self, given: list[Any] = given) -> None:
            given.clear()

    try:
        gc.disable()
        gc.collect()
        cyclic = Cyclic()
        cyclic.me = cyclic  # type: ignore[attr-defined]
        del cyclic
        gc.set_threshold(more)
        gc.enable()
        held = table.check((given,))
    finally:
        gc.disable()
        gc.set_threshold(*threshold)
        gc.enable()
    assert not table.check((given,)) if not given else held
    return not given


def test_a_collection_in_the_middle_of_a_check(native_store: Store) -> None:
    """Allocations of a check may start one, which runs destructors: up to Python 3.11 right there."""
    if not loader.tables_work():
        pytest.skip("this Python's dicts change unseen: there are no tables")
    emptied, threshold = 0, gc.get_threshold()
    gc.freeze()  # each collection looks at what this test makes, and not at all of torch's objects (2 s)
    try:
        for more in range(1, 40):
            emptied += _emptied_by_a_collection(more, threshold)
    finally:
        gc.unfreeze()
    assert emptied


class Varying(dict[str, Any]):
    pass


def test_a_dict_subclass_of_another_length(store: Path) -> None:
    def function(named: Varying, x: torch.Tensor) -> torch.Tensor:
        return sum((value * x for value in named.values()), x)

    compiled = precast.compile(function, store=store)
    with torch.no_grad():
        for count in (3, 2, 1, 0, 3):
            named = Varying({f"k{i}": i for i in range(count)})
            torch.testing.assert_close(compiled(named, X), function(named, X))
