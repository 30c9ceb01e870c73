"""How guard tables learn that a dict has changed: by its tag, or, from Python 3.12 on, by watching it."""

from __future__ import annotations

import gc
import random
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.native import loader
from tests.support.processes import child

KEYS = tuple(f"k{i}" for i in range(6))
WATCHED = sys.version_info >= (3, 12)


class Thing:
    """Something with a `__dict__`."""


class Sub(dict[Any, Any]):
    """A dict of a class of its own."""


@pytest.fixture
def module(native_store: Store) -> Any:
    if not loader.tables_work():
        pytest.skip("this Python's dicts change unseen: there are no tables")
    return loader.loaded()


def _subjects() -> list[tuple[str, dict[Any, Any], Any]]:
    thing, large, namespace = Thing(), Thing(), types.ModuleType("namespace")
    large.__dict__ = {"k0": 0}  # a dict that shares its keys with no other instance's
    return [
        ("dict", {}, None),
        ("ordered", OrderedDict(), None),
        ("subclass", Sub(), None),
        ("instance", thing.__dict__, thing),
        ("instance with a dict of its own", large.__dict__, large),
        ("module", namespace.__dict__, namespace),
    ]


def _hot_store(owner: Any, value: Any) -> None:
    """As often as this is called, the interpreter has specialised the store."""
    owner.k0 = value


def _write(draw: random.Random, subject: dict[Any, Any], owner: Any) -> None:
    key, value = draw.choice(KEYS), draw.choice([None, 1, object()])
    writes: list[Callable[[], object]] = [
        lambda: subject.__setitem__(key, value),
        lambda: subject.pop(key, None),
        lambda: subject.update({key: value}),
        lambda: subject.update([(key, value)]),
        lambda: subject.update(**{key: value}),
        lambda: subject.setdefault(key, value),
        lambda: subject.__ior__({key: value}),
    ]
    if subject:
        writes += [subject.popitem, subject.clear]
    if key in subject:
        writes += [lambda: subject.__delitem__(key), lambda: subject.__setitem__(key, subject[key])]
    if owner is not None:
        writes += [lambda: setattr(owner, key, value), lambda: _hot_store(owner, value), lambda: _hot_store(owner, value)]
        writes += [lambda: delattr(owner, key)] * (key in subject)
    draw.choice(writes)()


@pytest.mark.parametrize("seed", range(8))
def test_random_writes_are_noticed(module: Any, seed: int) -> None:
    draw, kept = random.Random(seed), []
    for name, subject, owner in _subjects():
        for _ in range(300):
            table, how, some = module.Table(), draw.choice(["keys", "used", "whole"]), tuple(draw.sample(KEYS, 3))

            def seen(how: str = how, some: tuple[str, ...] = some, subject: dict[Any, Any] = subject) -> list[Any]:
                """What the table depends on."""
                return {"keys": [subject.get(k, KEYS) for k in some], "used": [len(subject)], "whole": list(subject.items())}[how]

            if how == "used":
                table.used(subject)
            else:
                table.dict(subject, some if how == "keys" else (), how == "whole")
            assert table.watch() == WATCHED
            before = seen()
            assert table.check(())
            for _ in range(draw.randrange(3)):
                _write(draw, subject, owner)
            holds = table.check(())
            assert table.check(()) == holds, "looking does not change the answer"
            assert not holds or seen() == before, f"{name}, {how}: a change went unseen"
            assert holds or how == "whole" or seen() != before, f"{name}, {how}: nothing that counts has changed"
            kept += [table] * draw.randrange(2)


def test_tables_share_a_dict_and_leave_it(module: Any) -> None:
    subject = {"a": 1}
    tables = [module.Table() for _ in range(3)]
    for table in tables:
        table.dict(subject, ("a",), False)
        table.used(subject)
        table.watch()
    del tables[1]
    subject["a"] = 2
    assert not any(table.check(()) for table in tables)
    subject["a"] = 1
    assert all(table.check(()) for table in tables), "as it was"
    if WATCHED:
        before = module.dict_changes()
        subject["a"] = 3
        assert module.dict_changes() == before + 1
        before += 1
        tables.clear()
        del table
        subject["a"] = 4
        {}["x"] = subject
        assert module.dict_changes() == before, "nobody asks any more"


def test_garbage_of_tables_and_dicts_in_cycles(module: Any) -> None:
    for i in range(2000):
        subject: dict[str, Any] = {}
        table = module.Table()
        table.dict(subject, ("a",), False)
        table.used(subject)
        table.watch()
        subject["table"] = table
        if i % 3 == 0:
            subject["a"] = 1
        del subject, table
    gc.collect()
    test_tables_share_a_dict_and_leave_it(module)


class Finalised:
    """Runs `last` when it is let go of."""

    def __init__(self, last: Callable[[], object]) -> None:
        self.last = last

    def __del__(self) -> None:
        self.last()


def test_a_table_that_is_made_while_a_value_is_let_go_of(module: Any) -> None:
    """Python 3.12's specialised store puts the dict's watchers back as they were before the destructor of the old value ran."""
    thing, tables = Thing(), []
    thing.__dict__ = {"k0": 0, "other": 0}
    for i in range(100):
        _hot_store(thing, i)

    def record() -> None:
        table = module.Table()
        table.dict(thing.__dict__, ("other",), False)
        table.watch()
        tables.append(table)

    _hot_store(thing, Finalised(record))
    _hot_store(thing, None)
    record()  # when the store is over; what was lost is not taken for there
    early, late = tables
    assert early.check(()) and late.check(())
    thing.__dict__["other"] = 1
    assert not early.check(()) and not late.check(())


def test_a_table_that_is_asked_while_a_value_is_let_go_of(module: Any) -> None:
    """In the middle of the specialised store the dict's tag is still the old one."""
    thing, answers = Thing(), []
    thing.__dict__ = {"k0": 0, "other": 0}
    for i in range(100):
        _hot_store(thing, i)
    _hot_store(thing, Finalised(lambda: answers.append(table.check(()))))
    table = module.Table()
    table.dict(thing.__dict__, (), True)
    table.watch()
    assert table.check(())
    _hot_store(thing, "another")
    assert len(answers) == 1 and not table.check(())


def test_a_compiled_call_in_a_destructor(module: Any, tmp_path: Path) -> None:
    settings = Thing()
    settings.__dict__ = {"k0": 0, "scale": 1.0}
    compiled = precast.compile(lambda x: x * settings.scale, store=tmp_path)  # type: ignore[attr-defined]
    x = torch.ones(4)
    compiled(x)
    for i in range(100):
        _hot_store(settings, i)
    _hot_store(settings, Finalised(lambda: [compiled(x) for _ in range(4)]))
    _hot_store(settings, None)
    settings.scale = 7.0  # type: ignore[attr-defined]
    torch.testing.assert_close(compiled(x), x * 7)


def test_a_table_that_another_thread_makes_while_a_value_is_let_go_of(module: Any) -> None:
    thing, tables = Thing(), []
    thing.__dict__ = {"k0": 0, "other": 0}
    for i in range(100):
        _hot_store(thing, i)
    begun, made = threading.Event(), threading.Event()

    def record() -> None:
        begun.wait(60)
        table = module.Table()
        table.dict(thing.__dict__, ("other",), False)
        table.watch()
        tables.append(table)
        made.set()

    thread = threading.Thread(target=record)
    thread.start()
    _hot_store(thing, Finalised(lambda: (begun.set(), made.wait(60))))
    _hot_store(thing, None)
    thread.join()
    (table,) = tables
    assert table.check(())
    thing.__dict__["other"] = 1
    assert not table.check(())


def test_a_key_that_cannot_be_compared(module: Any) -> None:
    class Strange:
        def __hash__(self) -> int:
            return hash("a")

        def __eq__(self, other: object) -> bool:
            raise ValueError("not to be compared")

    subject: dict[Any, Any] = {}
    table = module.Table()
    table.dict(subject, ("a",), False)
    table.watch()
    subject[Strange()] = 1
    assert not table.check(())


TAKEN = """
import ctypes, sys
from precast.artifact_store import Store
from precast.runtime.native import loader as native

watch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 0)
while True:
    try:
        ctypes.pythonapi.PyDict_AddWatcher(watch)
    except RuntimeError as error:
        break
module = native.ensure(Store.open(sys.argv[1]))
assert module.dict_changes() is None
assert not module.Table().watch()
subject, table = {"a": 1}, module.Table()
if native.tables_work():
    table.dict(subject, ("a",), False)
    assert table.check(())
    subject["a"] = 2
    assert not table.check(())
print("tables work:", native.tables_work())
"""


@pytest.mark.skipif(not WATCHED, reason="dicts are watched from Python 3.12 on")
def test_when_others_watch_as_much_as_can_be_watched(module: Any, tmp_path: Path) -> None:
    assert "tables work:" in child(tmp_path, TAKEN, str(tmp_path / "store"))
