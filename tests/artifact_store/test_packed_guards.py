"""The guards section: what goes in comes out, shared, in either form; anything else is a damaged record."""

from __future__ import annotations

from typing import Any

import pytest

from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.guards import Guard, Predicate, canonical_order, guard_hash
from precast.artifact_store.format.manifest import guard_rows
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.format.packed_guards import count_guards, hash_of_packed, pack_guards, unpack_guards

LAYER = (("local", "self"), ("submodule", "layers"), ("submodule", "0"))
ROWS = (
    ((*LAYER, ("attr", "hooks")), "empty", None),
    (LAYER, "type", "app:Layer"),
    ((*LAYER, ("attr", "hooks")), "lacks_own", {"__dict__": ("forward",)}),
    ((("state",),), "global_state", {"grad": True, "threads": 1}),
    ((("local", "x"), ("item", ("int", 1))), "equals", 1),
    ((("local", "x"), ("item", ("int", True))), "equals", True),
    ((("local", "x"), ("item", ("int", 1.0))), "equals", 1.0),
    ((("local", "x"), ("item", ("int", 0.0))), "equals", 0.0),
    ((("local", "x"), ("item", ("int", -0.0))), "equals", -0.0),
)


def test_round_trip() -> None:
    assert repr(unpack_guards(pack_guards(ROWS))) == repr(ROWS)  # repr: 1 is not True, 0.0 is not -0.0
    assert unpack_guards(pack_guards(())) == ()


def test_rows_in_full_are_read() -> None:
    assert repr(unpack_guards(pack(ROWS))) == repr(ROWS)


def test_what_rows_share_is_stored_and_read_once() -> None:
    many = [((*LAYER, ("attr", f"name{i % 10}")), "equals", ("str", "x" * 100)) for i in range(1000)]
    assert len(pack_guards(many)) < len(pack(many)) / 20
    rows = unpack_guards(pack_guards(many))
    assert rows[3][0] is rows[13][0] and rows[3][2] is rows[4][2]
    assert rows[3][0][0] is rows[4][0][0]


PLACES = [(*LAYER, ("attr", f"part{i}")) for i in (3, 1, 2)]
OVER_PATHS = (
    (PLACES[1], "type", "app:Part"),
    (PLACES[0], "same_as", PLACES[2]),
    ((("state",),), "not_aliased", {"distinct": tuple(PLACES), "mutated": (), "others": ()}),
    ((("state",),), "not_aliased", {"distinct": (), "mutated": (LAYER, PLACES[1]), "others": ((("local", "x"),),)}),
)


def test_paths_in_constants_are_numbers() -> None:
    assert repr(unpack_guards(pack_guards(OVER_PATHS))) == repr(OVER_PATHS)
    many = tuple((*LAYER, ("attr", f"part{i}")) for i in range(500))
    typed = [(path, "type", "app:Part") for path in many]
    distinct = ((("state",),), "not_aliased", {"distinct": many, "mutated": (), "others": ()})
    assert len(pack_guards([*typed, distinct])) < len(pack_guards(typed)) + 500 * 2, "two bytes for each"


def test_paths_that_stand_in_constants_are_read() -> None:
    """As earlier versions wrote them."""
    table: dict[str, Any] = unpack(pack_guards(OVER_PATHS[:1]), "guards")
    for predicate, constant in (("same_as", LAYER), ("not_aliased", {"distinct": (LAYER,), "mutated": (), "others": ()})):
        rows = unpack_guards(pack({**table, "predicates": [predicate], "constants": [constant]}))
        assert repr(rows) == repr(((PLACES[1], predicate, constant),))


@pytest.mark.parametrize(
    "predicate, constant", [("same_as", {}), ("same_as", [99]), ("not_aliased", [1]), ("not_aliased", {"distinct": [-5]})]
)
def test_paths_that_are_not_there_are_damage(predicate: str, constant: Any) -> None:
    with pytest.raises(DamagedRecord, match="guards"):
        unpack_guards(pack({**TABLE, "predicates": [predicate], "constants": [constant]}))


TABLE: dict[str, Any] = {"steps": [["local", "x"]], "predicates": ["empty"], "constants": [None], "paths": [-1, 0], "rows": [0, 0, 0]}


@pytest.mark.parametrize(
    "change",
    [
        {"paths": [0, 0]},
        {"paths": [-2, 0]},
        {"paths": [-1]},
        {"paths": [-1, 1]},
        {"paths": [-1, -1]},
        {"paths": None},
        {"rows": [0, 0]},
        {"rows": [0, 1, 0]},
        {"rows": [0, 0, -1]},
        {"rows": [0, False, 0]},
        {"rows": "abc"},
        {"steps": 3},
    ],
    ids=repr,
)
def test_a_table_that_does_not_hold_together_is_damaged(change: dict[str, Any]) -> None:
    assert unpack_guards(pack(TABLE)) == (((("local", "x"),), "empty", None),)
    with pytest.raises(DamagedRecord, match="guards"):
        unpack_guards(pack({**TABLE, **change}))


@pytest.mark.parametrize("data", [pack(3), pack([[1, 2]]), pack({"rows": []}), b"", b"\xc1"], ids=repr)
def test_anything_else_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedRecord, match="guards"):
        unpack_guards(data)


@pytest.mark.parametrize("written", [pack_guards, pack])
def test_a_predicate_that_nobody_knows_is_a_damaged_record(written: Any) -> None:
    with pytest.raises(DamagedRecord, match="unknown predicate 'sessalc'"):
        unpack_guards(written(((LAYER, "sessalc", None),)))


def test_the_hash_of_the_table_is_that_of_the_guards() -> None:
    """Whatever paths and constants they share; 1, True and 1.0 are three constants, and two guards that are equal are one."""
    places = [(("local", name), *steps) for name in ("a", "b") for steps in ((), (("attr", "x"),), (("attr", "x"), ("item", ("int", 1))))]
    constants = [("int", 1), ("bool", True), ("float", 1.0), 1, True, 1.0, None, {"b": 1, "a": True}, {"a": True, "b": 1}, b"x", "x", ()]
    guards = [Guard(place, Predicate.EQUALS, constant) for place in places for constant in constants]
    guards += [Guard(places[0], Predicate.SAME_AS, places[3]), guards[0], Guard(places[1], Predicate.TYPE, "x")]
    guards.append(Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": tuple(places[:3]), "mutated": (), "others": (places[4],)}))
    ordered = canonical_order(guards)
    data = pack_guards(guard_rows(ordered))
    rows = unpack_guards(data)
    assert hash_of_packed(data, rows) == guard_hash(guards) and count_guards(data) == len(ordered)
    full = pack([list(row) for row in rows])  # as earlier versions wrote it
    assert hash_of_packed(full, unpack_guards(full)) == guard_hash(guards) and count_guards(full) == len(ordered)
    assert hash_of_packed(data, rows) != guard_hash(guards[1:-1])


@pytest.mark.parametrize("data", [b"", b"\xc1", pack(3), pack({"steps": []}), pack({"rows": 3}), pack({"rows": []})[:-1]], ids=repr)
def test_a_section_that_is_none_has_no_count(data: bytes) -> None:
    with pytest.raises(DamagedRecord):
        count_guards(data)
