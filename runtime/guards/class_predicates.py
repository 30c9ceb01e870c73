"""Predicates about how attributes are found and what functions do: an object's own attributes, its class's, digests of code."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from precast.artifact_store.format.guards import Path, Predicate
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.fingerprint.classes import ClassCheck, failing_class, functions_described
from precast.runtime.fingerprint.triton_kernels import kernel_digest, layers
from precast.runtime.guards.rule import (
    DIGESTS,
    SEVERAL_OBJECTS,
    Constant,
    Covered,
    Finding,
    Live,
    Opaque,
    Places,
    Recorder,
    RelationRule,
    Rule,
    ValueRule,
    Writer,
)
from precast.runtime.guards.value_predicates import shown
from precast.runtime.native.kinds import Slot
from precast.runtime.paths.paths import describe

Tables = Mapping[str, Sequence[str]]
"""The constant of LACKS_OWN: names by the table of the object's `__dict__` that must not hold them."""

# -- HAS_ATTR, LACKS_ATTR


def _attribute_record(recorder: Recorder, value: Any, name: str) -> None:
    recorder.attribute(value, name)


def _lacks_attribute_of_tensor(recorder: Recorder, place: Live, path: Path, name: str) -> None:
    """The entry for the tensor's metadata allows no attributes of its own where it has none now: its class decides."""
    value = place.value
    if not recorder.compares_tensor(path) or value.__dict__ or not recorder.lacks_on_class(type(value), name):
        raise Opaque


# -- LACKS_OWN


def _holder(value: Any, tables: Tables) -> tuple[str, str] | None:
    """The first of the object's own tables that holds one of the names, and the name."""
    own = value.__dict__
    for table, names in tables.items():
        held = own if table == "__dict__" else own[table]
        for name in names:
            if name in held:
                return table, name
    return None


def _lacks_own(value: Any, tables: Tables) -> Finding:
    found = _holder(value, tables)
    if found is None:
        return True, f"no entries {dict(tables)}", ""
    table, name = found
    return False, f"the attribute {name} not to be in its {table}, which is asked first", "it there: the name means another object"


def _lacks_own_emit(writer: Writer, path: Path, tables: Tables) -> Iterator[str]:
    """One condition per table: the keys of a dict look up each of the names."""
    own = writer.place((*path, ("dict",)))
    for table, names in tables.items():
        held = own if table == "__dict__" else f"{own}[{table!r}]"
        yield f"{names[0]!r} in {held}" if len(names) == 1 else f"not {held}.keys().isdisjoint({writer.name(tuple(names))})"


def _lacks_own_record(recorder: Recorder, value: Any, tables: Tables) -> None:
    own = recorder.own(value)
    for table, names in tables.items():
        if table != "__dict__":
            recorder.key(own, table)
        held = own if table == "__dict__" else recorder.a_dict(own[table])
        for name in names:
            recorder.key(held, name)


# -- CODE, KERNEL


def _code(value: Any, wanted: str) -> Finding:
    code = value if isinstance(value, types.CodeType) else getattr(value, "__code__", None)
    if not isinstance(code, types.CodeType):
        return False, f"a Python function with code {wanted[:12]}", shown(value)
    found = digest(code)
    return found == wanted, f"code {wanted[:12]}", f"code {found[:12]} ({code.co_qualname}, {code.co_filename}:{code.co_firstlineno})"


def _code_record(recorder: Recorder, value: Any, _: Constant) -> None:
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        recorder.slot(value, Slot.CODE)
    elif not isinstance(value, types.CodeType):
        raise Opaque


def _kernel(value: Any, constant: tuple[str, str]) -> Finding:
    name, wanted = constant
    found = kernel_digest(name)
    return found == wanted, f"the Triton kernel {name} with digest {wanted[:12]}", f"digest {found[:12]}" if found else shown(value)


def _kernel_record(recorder: Recorder, kernel: Any, _: Constant) -> None:
    """What the digest of a kernel reads that may be replaced in place: the lists of its autotuners."""
    for layer in layers(kernel):
        if "configs" in layer.__dict__:
            recorder.key(recorder.own(layer), "configs")
            if type(layer.configs) is not list:
                raise Opaque
            recorder.once("items", layer.configs)


# -- CLASSES


def _classes(path: Path, constant: Mapping[str, Any], places: Places) -> Finding:
    paths = [path for path, _, _ in constant["classes"]]
    failing = failing_class(constant, places.all(paths))
    if failing < 0:
        return True, "", ""
    return False, f"the class {describe(paths[failing])} to define what it defined when it was traced", "other definitions"


def _classes_emit(writer: Writer, path: Path, constant: Mapping[str, Any]) -> Iterator[str]:
    places = ", ".join(writer.place(path) for path, _, _ in constant["classes"])
    yield f"not {writer.name(ClassCheck(constant))}([{places}])"


def _classes_record(recorder: Recorder, path: Path, constant: Mapping[str, Any]) -> None:
    """A class's version covers what it and its bases define, but not the code in a function that stays the same object."""
    classes = [recorder.place(path) for path, _, _ in constant["classes"]]
    if not all(isinstance(cls, type) for cls in classes):
        raise Opaque
    for cls in classes:
        recorder.slot(cls, Slot.TYPE)  # whose attributes the class's own are looked up on
        recorder.cls(cls)
    for function in functions_described(constant, classes):
        recorder.slot(function, Slot.CODE)


RULES: dict[Predicate, Rule] = {
    Predicate.HAS_ATTR: ValueRule(
        evaluate=lambda value, name: (hasattr(value, name), f"an attribute {name}", "none"), record=_attribute_record
    ),
    Predicate.LACKS_ATTR: ValueRule(
        evaluate=lambda value, name: (not hasattr(value, name), f"no attribute {name}", "one"),
        record=_attribute_record,
        record_tensor=_lacks_attribute_of_tensor,
    ),
    Predicate.LACKS_OWN: ValueRule(
        evaluate=_lacks_own,
        quick=lambda value, tables: _holder(value, tables) is None,
        emit=_lacks_own_emit,
        record=_lacks_own_record,
        covered=Covered.SCALAR | Covered.TENSOR,
    ),
    Predicate.CODE: ValueRule(evaluate=_code, record=_code_record, order=DIGESTS),
    Predicate.KERNEL: ValueRule(evaluate=_kernel, record=_kernel_record, order=DIGESTS),
    Predicate.CLASSES: RelationRule(
        evaluate=_classes,
        emit=_classes_emit,
        record=_classes_record,
        order=SEVERAL_OBJECTS + 1,
        words=lambda constant: ", ".join(describe(path) for path, _, _ in constant["classes"]),
    ),
}
