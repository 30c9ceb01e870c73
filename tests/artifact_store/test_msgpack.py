"""Canonical msgpack: same value, same bytes; nothing but plain data."""

from __future__ import annotations

import enum
import pickle

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.msgpack import pack, unpack

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_round_trip_keeps_value_and_types(value: object) -> None:
    again = unpack(pack(value))
    assert again == value
    assert repr(again) == repr(value) or "{" in repr(value)  # repr: True is not 1, 0.0 is not -0.0; dicts come back sorted
    assert pack(again) == pack(value)


def test_order_of_filling_a_dict_does_not_matter() -> None:
    assert pack({"a": 1, "b": {"d": 2, "c": 3}}) == pack({"b": {"c": 3, "d": 2}, "a": 1})


def test_near_values_differ() -> None:
    values = [1, 1.0, True, "1", b"1", [1], None, 0.0, -0.0]
    assert len({pack(value) for value in values}) == len(values)


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    THREE = 3


@pytest.mark.parametrize(("value", "same_as"), [(Colour.RED, "red"), (Number.THREE, 3), ([Colour.RED], ["red"]), ((1, 2), [1, 2])])
def test_enums_and_tuples_are_stored_plain(value: object, same_as: object) -> None:
    assert pack(value) == pack(same_as)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "builtins.object is not plain data"),
        ({1, 2}, "builtins.set is not plain data"),
        ({"a": {"b": 1j}}, "value.a.b: builtins.complex"),
        ({1: 2}, "map key 1 is not a string"),
        (2**64, "does not fit in 64 bits"),
    ],
)
def test_what_is_not_plain_data_is_refused_by_place(value: object, words: str) -> None:
    with pytest.raises(TypeError, match=words.replace("(", r"\(")):
        pack(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack([1, 2])[:-1],
        pack(1) + b"x",
        msgpack.packb(msgpack.ExtType(5, b"x")),
        msgpack.packb({1: 2}),
        b"\xa1\xff",
        pickle.dumps({"a": 1}),
        b"\x91" * 2000 + b"\x01",
        b"\xdd\xff\xff\xff\xff",
    ],
    ids=["empty", "reserved", "cut", "longer", "extension", "int key", "not utf-8", "pickle", "deep", "claims 4 billion items"],
)
def test_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedRecord):
        unpack(data)
