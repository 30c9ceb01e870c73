"""Predicates about containers: how many parts they have, which keys, how far an iterator is."""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from precast.artifact_store.format.guards import Path, Predicate
from precast.artifact_store.format.import_names import type_name
from precast.artifact_store.format.tagged_constants import tag, untag
from precast.runtime.guards.rule import Constant, Covered, Finding, Opaque, Recorder, ValueRule, Writer
from precast.runtime.paths.paths import describe_constant

# -- LENGTH, EMPTY


def _length(value: Any, size: int) -> Finding:
    found = dict.__len__(value) if isinstance(value, dict) else len(value)
    return found == size, f"length {size}", f"length {found}"


def _length_emit(writer: Writer, path: Path, size: int | None) -> Iterator[str]:
    yield f"len({writer.place(path)}) != {size or 0}"


def _length_record(recorder: Recorder, value: Any, _: Constant) -> None:
    if isinstance(value, dict):
        recorder.once("used", value)
    elif isinstance(value, list):
        recorder.once("items", value)
    elif not isinstance(value, (tuple, str, bytes, range)):
        raise Opaque


# -- KEYS, HAS_KEY, LACKS_KEY


def keys_of(value: Any) -> dict[str, Any]:
    """The keys in their order. An OrderedDict keeps an order of its own beside that of the dict which it is; where the two differ both are
    part of the result, since Dynamo's bytecode indexes keys in the dict's order.
    """
    beneath = tuple(tag(k) for k in (dict.keys(value) if isinstance(value, dict) else value.keys()))
    keys = tuple(tag(k) for k in OrderedDict.keys(value)) if isinstance(value, OrderedDict) else beneath
    return {"keys": keys, "ordered": True, **({} if keys == beneath else {"beneath": beneath})}


def _keys(value: Any, constant: dict[str, Any]) -> Finding:
    found = keys_of(value)
    keys = found["keys"] if constant["ordered"] else tuple(sorted(found["keys"], key=repr))
    if constant["ordered"] and found.get("beneath") != constant.get("beneath"):
        return False, "an OrderedDict whose keys were moved, or not, as before", "one whose keys were moved otherwise"
    shown = [describe_constant(("list", k)) for k in (constant["keys"], keys)]
    return keys == constant["keys"], f"keys {shown[0]}" + " in this order" * constant["ordered"], f"keys {shown[1]}"


def _keys_record(recorder: Recorder, value: Any, constant: dict[str, Any]) -> None:
    if isinstance(value, OrderedDict) and constant["ordered"]:
        raise Opaque  # its own order changes without a change of the dict beneath
    recorder.whole(recorder.a_dict(value))


def _contains(value: Any, key: Constant) -> bool:
    plain = untag(key)
    return dict.__contains__(value, plain) if isinstance(value, dict) else plain in value


def _key_record(recorder: Recorder, value: Any, key: Constant) -> None:
    recorder.key(recorder.a_dict(value), untag(key))


# -- ITERATOR


def _iterator(value: Any, constant: Constant) -> Finding:
    kind = constant[0]
    if kind == "tuple":
        found: tuple[Any, ...] = ("tuple", operator.length_hint(value)) if type(value) is type(iter(())) else ("other",)
    elif kind == "reversed":
        found = ("reversed", operator.length_hint(value)) if type(value) is type(reversed([])) else ("other",)
    elif kind == "range" and type(value) in (type(iter(range(0))), type(iter(range(1 << 70)))):
        _, (source,), consumed = value.__reduce__()
        found = ("range", source.start + (consumed or 0) * source.step, source.stop, source.step)
    elif kind == "count" and type(value) is itertools.count:
        parts = value.__reduce__()[1]
        found = ("count", tag(parts[0]), tag(parts[1] if len(parts) > 1 else 1))
    else:
        found = ("other",)
    return found == constant, f"an iterator {constant}", f"{type_name(type(value))} {found}"


_SIZED = Covered.SCALAR | Covered.SEQUENCE | Covered.MAPPING
_KEYED = Covered.SCALAR | Covered.MAPPING | Covered.CLASS_DICT
RULES: dict[Predicate, ValueRule] = {
    Predicate.LENGTH: ValueRule(evaluate=_length, emit=_length_emit, record=_length_record, covered=_SIZED, order=3),
    Predicate.EMPTY: ValueRule(
        evaluate=lambda value, _: (len(value) == 0, "no hooks", f"{len(value)} of them"),
        quick=lambda value, _: len(value) == 0,
        emit=_length_emit,
        record=_length_record,
        covered=_SIZED,
    ),
    Predicate.KEYS: ValueRule(evaluate=_keys, record=_keys_record, covered=Covered.SCALAR | Covered.MAPPING),
    Predicate.HAS_KEY: ValueRule(
        evaluate=lambda value, key: (_contains(value, key), f"the key {describe_constant(key)}", "no such key"),
        record=_key_record,
        covered=_KEYED,
        words=describe_constant,
    ),
    Predicate.LACKS_KEY: ValueRule(
        evaluate=lambda value, key: (not _contains(value, key), f"no key {describe_constant(key)}", "that key"),
        record=_key_record,
        covered=_KEYED,
        words=describe_constant,
    ),
    Predicate.ITERATOR: ValueRule(evaluate=_iterator),
}
