"""What callers hand to compiled functions stays theirs: nothing of ours keeps it, and what was noted of it goes with it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime import native

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
    if not native.tables_work():
        pytest.skip("this Python's dicts change unseen: there are no tables")
    return native.loaded().Table()


def _lent(table: Any, thing: Any) -> Any:
    assert table.lend(thing)
    number = table.local(0)
    table.live(number, "pointer", thing)
    assert table.slot(thing, "type") and table.slot(thing, "dict")
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
    if not native.tables_work():
        pytest.skip("this Python's dicts change unseen: there are no tables")
    thing = Cache()
    kept = _lent(native.loaded().Table(), thing)
    references, callbacks = weakref.getweakrefs(thing), [ref.__callback__ for ref in weakref.getweakrefs(thing)]
    del kept
    gc.collect()
    for callback, reference in zip(callbacks, references, strict=True):
        if callback is not None:
            callback(reference)
    del thing
    assert all(reference() is None for reference in references)


@pytest.mark.parametrize("thing", [None, 3, object(), len, (1,), "text"], ids=repr)
def test_what_knows_no_weak_references_is_kept(table: Any, thing: Any) -> None:
    kept = table.lend(thing)
    assert kept is (thing is len)
    table.live(table.local(0), "pointer", thing)
    assert table.check((thing,))


def test_what_goes_while_a_checker_runs(table: Any) -> None:
    """The table has then nothing to compare with any more: it does not hold."""
    given, other = Cache(), [Cache()]
    table.lend(other[0])
    table.lend(given)
    number = table.local(0)
    table.live(number, "pointer", given)
    table.live(number, "other", other[0])

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
