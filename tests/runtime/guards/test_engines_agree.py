"""A guard is judged in four places: guard by guard, in the interpreted first check, in the compiled checker, in the native table of reads.

Each row holds guards, the values for which they hold, and values that differ from these in one thing that a guard names. All judges say
the same of each: a judge that overlooks one thing serves an artifact that was made for something else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from precast.artifact_store import Guard, Predicate, Store
from precast.artifact_store.format.tagged_constants import tag
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.guards.aliasing_predicates import joined
from precast.runtime.guards.relation_predicates import strays
from precast.runtime.guards.tensor_spec import spec_of
from precast.runtime.paths.torch_state import global_state
from tests.runtime.guards.guard_examples import (
    BASE,
    JUDGES,
    LOOSE,
    SPEC,
    STATE,
    A,
    B,
    C,
    Holder,
    Values,
    apart,
    frame,
    free,
    loose,
    marked,
    other_code,
    recorded,
    shape,
    view,
)


def complex_view(conj: bool = False) -> torch.Tensor:
    x = torch.ones(3, 2, dtype=torch.complex64)
    return x.conj() if conj else x


def sparse() -> torch.Tensor:
    return torch.eye(2).to_sparse()


def of_a_graph() -> torch.Tensor:
    with torch.enable_grad():
        return view().requires_grad_() * 1


@dataclass(frozen=True)
class Row:
    """`good` makes values anew; `bad` rows are what differs. `native`: no guard of it is left to Python at each call. `fresh`: the table,
    which knows some objects by identity, holds for equal ones as well."""

    guards: Sequence[Guard]
    good: Callable[[], Values]
    bad: Sequence[Callable[[], Values]]
    also_good: Sequence[Callable[[], Values]] = ()
    native: bool = True
    fresh: bool = True


def one(*makes: Callable[[], Any]) -> list[Callable[[], Values]]:
    """Values of which only the first is told."""
    return [lambda make=make: {"a": make(), "b": None, "c": None} for make in makes]  # type: ignore[misc]


def several(*rows: Callable[[], tuple[Any, ...]]) -> list[Callable[[], Values]]:
    """Values told in order."""
    return [lambda make=make: dict(zip("abc", (*make(), None, None), strict=False)) for make in rows]  # type: ignore[misc]


OTHERS = one(
    lambda: view(size=(4, 2)),
    lambda: view(size=(3, 3)),
    lambda: view(stride=(1, 2)),
    lambda: view(stride=(2, 2)),
    lambda: view(size=(3, 2, 1), stride=(2, 1, 1)),
    lambda: view(size=(6,), stride=(1,)),
    lambda: view(size=(3,), stride=(2,)),
    lambda: view(size=(), stride=()),
    lambda: view(dtype=torch.float64),
    lambda: view(dtype=torch.int32),
    lambda: torch.empty_strided((3, 2), (2, 1), device="meta"),
    lambda: view().requires_grad_(),
    of_a_graph,
    lambda: torch.nn.Parameter(view(), requires_grad=False),
    lambda: torch._neg_view(view()),
    lambda: [1.0],
    lambda: None,
)


def numbers(value: Any, *bad: Any, native: bool = True) -> Row:
    """A value that comes with the call and has to be equal, with its type."""
    guards = [Guard(A, Predicate.EQUALS, tag(value))]
    return Row(guards, one(lambda: value)[0], one(*(lambda wrong=wrong: wrong for wrong in bad)), native=native)  # type: ignore[misc]


BYTES = torch.zeros(64, dtype=torch.uint8)
HOLDER = Holder()
FLAT = [loose(path, (4,), (1,)) for path in (A, B, C)]
TABLE: dict[str, Row] = {
    "tensor": Row([Guard(A, Predicate.TENSOR, SPEC)], one(view)[0], [*OTHERS, *one(lambda: view(offset=0), lambda: view(offset=4))]),
    "tensor of any offset": Row([Guard(A, Predicate.TENSOR, LOOSE)], one(view)[0], OTHERS, one(lambda: view(offset=0))),
    "tensor of any size": Row(
        [loose(A, (None, 2), (2, 1))],
        one(view)[0],
        one(
            lambda: view(size=(3, 3)),
            lambda: view(stride=(3, 1)),
            lambda: view(size=(3, 2, 1), stride=(2, 1, 1)),
            lambda: view(size=(3,), stride=(2,)),
        ),
        one(lambda: view(size=(5, 2))),
    ),
    "complex tensor": Row(
        [Guard(A, Predicate.TENSOR, free(spec_of(complex_view()), offset=None))],
        one(complex_view)[0],
        one(lambda: complex_view(True), view),
    ),
    "conjugate tensor": Row(
        [Guard(A, Predicate.TENSOR, free(spec_of(complex_view(True)), offset=None))], one(lambda: complex_view(True))[0], one(complex_view)
    ),
    "requires grad": Row(
        [Guard(A, Predicate.TENSOR, free(LOOSE, requires_grad=True))],
        one(lambda: view().requires_grad_())[0],
        one(view),
        one(of_a_graph),
    ),
    "marks": Row(
        [Guard(A, Predicate.TENSOR, LOOSE), Guard(A, Predicate.MARKS, {"_dynamo_dynamic_indices": (0,)})],
        one(lambda: marked(0))[0],
        one(lambda: marked(1), lambda: marked(0, "_dynamo_static_indices")),
        native=False,
    ),
    "marks that no entry compares": Row(
        [Guard(A, Predicate.TENSOR, spec_of(sparse())), Guard(A, Predicate.UNMARKED)],
        one(sparse)[0],
        one(lambda: marked(0, tensor=sparse())),
        native=False,
    ),
    "own attributes of a tensor": Row(
        [Guard(A, Predicate.LACKS_OWN, {"__dict__": ("there",)}), Guard(A, Predicate.TENSOR, LOOSE)],
        one(view)[0],
        one(lambda: marked(0, "there")),
    ),
    "an own attribute in the place of a mark": Row(
        [
            Guard(A, Predicate.LACKS_OWN, {"__dict__": ("there",)}),
            Guard(A, Predicate.TENSOR, LOOSE),
            Guard(A, Predicate.MARKS, {"_dynamo_dynamic_indices": (0,)}),
        ],
        one(lambda: marked(0))[0],
        one(lambda: marked(0, "there")),
        native=False,
    ),
    "number": numbers(1, True, 1.0, 2, None, "1"),
    "no number": numbers(0, False, 0.0, -0.0, None, ""),
    "boolean": numbers(True, 1, 1.0, False, None),
    "float": numbers(1.5, 2.5, "1.5", None),
    "float that is whole": numbers(2.0, 2, 3.0),
    "zero": numbers(0.0, -0.0, 0, False),
    "string": numbers("ab", "abc", b"ab", None),
    "type alone": Row(
        [Guard(A, Predicate.TYPE, "builtins:int")], one(lambda: 70_001)[0], one(lambda: 1.5, lambda: True), one(lambda: 70_002)
    ),
    "type and value": Row(
        [Guard(A, Predicate.TYPE, "builtins:int"), Guard(A, Predicate.EQUALS, ("int", 70_001))], one(lambda: 70_001)[0], one(lambda: 70_002)
    ),
    "tuple": Row(
        [
            Guard(A, Predicate.TYPE, "builtins:tuple"),
            Guard(A, Predicate.LENGTH, 2),
            Guard((*A, ("item", ("int", 1))), Predicate.EQUALS, ("int", 5)),
        ],
        one(lambda: (4, 5))[0],
        one(lambda: (4, 6), lambda: (4, 5, 6), lambda: [4, 5]),
    ),
    "list": Row(
        [
            Guard(A, Predicate.TYPE, "builtins:list"),
            Guard(A, Predicate.LENGTH, 2),
            Guard((*A, ("item", ("int", 1))), Predicate.EQUALS, ("int", 5)),
        ],
        one(lambda: [4, 5])[0],
        one(lambda: [4, 6], lambda: [4, 5, 6], lambda: (4, 5)),
    ),
    "list as a constant": numbers([1, 2], [1, 2, 3], [1], [2, 1], (1, 2), native=False),
    "dict as a constant": numbers({"x": 1, "y": 2}, {"y": 2, "x": 1}, {"x": 1}, {"x": 1, "y": 3}, {"x": 1, "y": 2, "z": 3}, native=False),
    "keys in order": Row(
        [Guard(A, Predicate.KEYS, {"keys": (("str", "x"), ("str", "y")), "ordered": True})],
        one(lambda: {"x": 1, "y": 2})[0],
        one(lambda: {"y": 2, "x": 1}, lambda: {"x": 1}, lambda: {"x": 1, "z": 2}, lambda: {"x": 1, "y": 2, "z": 3}),
    ),
    "code": Row([Guard(A, Predicate.CODE, digest(frame.__code__))], one(lambda: frame)[0], one(lambda: other_code, lambda: 1)),
    "range": Row(
        [Guard(A, Predicate.ITERATOR, ("range", 1, 4, 1))],
        one(lambda: begun(range(4)))[0],
        one(lambda: iter(range(4)), lambda: begun(range(5)), lambda: begun(begun(range(4)))),
        one(lambda: iter(range(1, 4))),
        native=False,
        fresh=False,
    ),
    "count": Row(
        [Guard(A, Predicate.ITERATOR, ("count", ("int", 3), ("int", 2)))],
        one(lambda: itertools.count(3, 2))[0],
        one(lambda: itertools.count(3, 1), lambda: itertools.count(5, 2)),
        native=False,
        fresh=False,
    ),
    "two tensors": Row(
        [*FLAT[:2], apart((A, B))],
        several(lambda: (BASE[:4], BASE[8:12]))[0],
        several(lambda: (BASE[:4],) * 2),
        several(lambda: (BASE[:4], BASE[2:6])),
    ),
    "three tensors": Row(
        [*FLAT, apart((A, B, C))],
        several(lambda: (BASE[:4], BASE[8:12], BASE[16:20]))[0],
        several(
            lambda: ((x := BASE[:4]), x, BASE[8:12]),
            lambda: ((x := BASE[:4]), BASE[8:12], x),
            lambda: (BASE[8:12], (x := BASE[:4]), x),
        ),
    ),
    "one is written": Row(
        [*FLAT, apart((A, B, C), (C,), (A, B))],
        several(lambda: (BASE[:4], BASE[8:12], BASE[16:20]))[0],
        several(
            lambda: (BASE[:4], BASE[8:12], BASE[11:15]),
            lambda: (BASE[:4], BASE[8:12], BASE[5:9]),
            lambda: (BASE[:4], BASE[8:12], BASE[3:7]),
            lambda: (BASE[19:23], BASE[8:12], BASE[16:20]),
            lambda: (BASE[:4], BASE[19:23], BASE[16:20]),
        ),
        several(lambda: (BASE[:4], BASE[2:6], BASE[6:10]), lambda: (BASE[4:8], BASE[12:16], BASE[8:12])),
    ),
    "two are written": Row(
        [*FLAT, apart((A, B, C), (A, B), (C,))],
        several(lambda: (BASE[:4], BASE[8:12], BASE[16:20]))[0],
        several(lambda: (BASE[:4], BASE[3:7], BASE[16:20]), lambda: (BASE[3:7], BASE[:4], BASE[16:20])),
        several(lambda: (BASE[:4], BASE[4:8], BASE[8:12])),
    ),
    "one inside of another is written": Row(
        [loose(A, (16,), (1,)), *FLAT[1:], apart((A, B, C), (C,), (A, B))],
        several(lambda: (BASE[:16], BASE[20:24], BASE[30:34]))[0],
        several(lambda: (BASE[:16], BASE[2:6], BASE[10:14]), lambda: (BASE[:16], BASE[20:24], BASE[12:16])),
    ),
    "one byte is shared": Row(
        [Guard(path, Predicate.TENSOR, free(spec_of(BYTES[:4]), offset=None)) for path in (A, B)] + [apart((A, B), (A,), (B,))],
        several(lambda: (BYTES[:4], BYTES[8:12]))[0],
        several(lambda: (BYTES[:4], BYTES[3:7]), lambda: (BYTES[3:7], BYTES[:4])),
        several(lambda: (BYTES[:4], BYTES[4:8]), lambda: (BYTES[4:8], BYTES[:4])),
    ),
    "one object": Row(
        [*FLAT[:2], Guard(A, Predicate.SAME_AS, B)],
        several(lambda: (BASE[:4],) * 2)[0],
        several(lambda: (BASE[:4], BASE[:4])),
    ),
    "an argument is no part of an object": Row(
        [
            *FLAT[1:2],
            Guard((*A, ("attr", "own")), Predicate.TENSOR, free(LOOSE, size=(4,), stride=(1,))),
            apart((B, (*A, ("attr", "own")))),
        ],
        several(lambda: (HOLDER, BASE[8:12]))[0],
        several(lambda: (HOLDER, HOLDER.own)),
    ),
    "relation of sizes": Row(
        [loose(A, (None,), (1,)), loose(B, (None,), (1,)), shape(("==", ("size", 0, 0), ("*", 2, ("size", 1, 0))), A, B)],
        several(lambda: (BASE[:8], BASE[:4]))[0],
        several(lambda: (BASE[:8], BASE[:5]), lambda: (BASE[:9], BASE[:4])),
        several(lambda: (BASE[:6], BASE[:3])),
    ),
    "least size": Row(
        [loose(A, (None,), (1,)), shape(("<=", 2, ("size", 0, 0)), A)],
        one(lambda: BASE[:2])[0],
        one(lambda: BASE[:1], lambda: BASE[:0]),
        one(lambda: BASE[:9]),
    ),
    "remainder": Row(
        [loose(A, (None,), (1,)), shape(("==", 1, ("%", ("-", ("size", 0, 0), 9), 4)), A)],
        one(lambda: BASE[:6])[0],
        one(lambda: BASE[:5], lambda: BASE[:8]),
        one(lambda: BASE[:2], lambda: BASE[:10]),
    ),
    "quotient below zero": Row(
        [loose(A, (None,), (1,)), shape(("==", -2, ("//", ("-", ("size", 0, 0), 9), 4)), A)],
        one(lambda: BASE[:4])[0],
        one(lambda: BASE[:5], lambda: BASE[:0]),
        one(lambda: BASE[:1]),
    ),
    "relation with a stride": Row(
        [loose(A, (None,), (None,)), shape(("<", ("stride", 0, 0), ("size", 0, 0)), A)],
        one(lambda: BASE[:12:2])[0],
        one(lambda: BASE[:6:3], lambda: BASE[:4:2]),
    ),
}


def begun(items: Any) -> Any:
    iterator = iter(items)
    next(iterator)
    return iterator


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("name", TABLE)
def test_guards_hold_for_their_values_and_no_others(name: str, judge: str) -> None:
    row = TABLE[name]
    check = JUDGES[judge](row.guards)
    assert row.bad
    for make in (row.good, *row.also_good):
        assert check(make()), "the guards hold for these"
    for number, make in enumerate(row.bad):
        assert not check(make()), f"bad values {number} pass"


@pytest.mark.parametrize("name", TABLE)
def test_the_native_table_says_the_same(native_store: Store, name: str) -> None:
    row = TABLE[name]
    values = row.good()
    table = recorded(row.guards, values)
    assert bool(table.sizes()["python"]) is not row.native
    assert table.check(tuple(values.values()))
    for make in (row.good, *row.also_good) if row.fresh else ():
        assert table.check(tuple(make().values())), "equal values made anew"
    for number, make in enumerate(row.bad):
        assert not table.check(tuple(make().values())), f"bad values {number} pass"


def _precision(name: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(name)


def _device() -> None:
    """As another thread's `set_default_device` leaves it: no mode is on this thread's stack."""
    torch.utils._device.CURRENT_DEVICE = torch.device("meta")


def _deterministic(on: bool, warn_only: bool = False) -> Callable[[], None]:
    return lambda: torch.use_deterministic_algorithms(on, warn_only=warn_only)


def _autocast(on: bool, dtype: torch.dtype = torch.bfloat16, cache: bool = True) -> Callable[[], None]:
    def enter() -> None:
        torch.set_autocast_enabled("cpu", on)
        torch.set_autocast_dtype("cpu", dtype)
        torch.set_autocast_cache_enabled(cache)

    return enter


def _entered(context: Any) -> Any:
    context.__enter__()
    return context


def nothing() -> None:
    """The state that tests run in."""


STATES: dict[str, tuple[Callable[[], None], Callable[[], Any]]] = {
    "grad mode": (nothing, lambda: torch._C._set_grad_enabled(True)),
    "autocast": (nothing, _autocast(True)),
    "autocast is off again": (_autocast(True), _autocast(False)),
    "autocast, another dtype": (_autocast(True), _autocast(True, torch.float16)),
    "autocast, without its cache": (_autocast(True), _autocast(True, cache=False)),
    "deterministic": (nothing, _deterministic(True)),
    "deterministic, warnings only": (_deterministic(True), _deterministic(True, True)),
    "default dtype": (nothing, lambda: torch.set_default_dtype(torch.float64)),
    "default device": (nothing, _device),
    "precision high": (nothing, _precision("high")),
    "precision medium": (_precision("high"), _precision("medium")),
    "torch functions off": (nothing, lambda: _entered(torch._C.DisableTorchFunctionSubclass())),
}


@pytest.fixture
def _state_is_put_back() -> Iterator[None]:
    device, precision, dtype = torch.utils._device.CURRENT_DEVICE, torch.get_float32_matmul_precision(), torch.get_default_dtype()
    autocast = torch.get_autocast_dtype("cpu")
    yield
    torch.utils._device.CURRENT_DEVICE = device
    torch.set_float32_matmul_precision(precision)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(False)
    _autocast(False, autocast)()
    torch.set_grad_enabled(False)


@pytest.mark.parametrize("name", STATES)
def test_torchs_state(native_store: Store, _state_is_put_back: None, name: str) -> None:
    before, change = STATES[name]
    before()
    guard = Guard(STATE, Predicate.GLOBAL_STATE, global_state())
    values: Values = {"a": None, "b": None, "c": None}
    checks = [judge([guard]) for judge in JUDGES.values()]
    table = recorded([guard], values)
    assert not table.sizes()["python"]
    assert table.check(tuple(values.values())) and all(check(values) for check in checks)
    kept = change()
    seen = [check(values) for check in checks], table.check(tuple(values.values()))
    if hasattr(kept, "__exit__"):
        kept.__exit__(None, None, None)
    assert seen == ([False] * len(JUDGES), False)


@pytest.mark.parametrize(
    ("spans", "wanted"),
    [
        ([], ()),
        ([(3, 3)], ()),
        ([(0, 4), (8, 12)], (0, 4, 8, 12)),
        ([(8, 12), (0, 8)], (0, 12)),
        ([(0, 10), (2, 4)], (0, 10)),
        ([(0, 10), (2, 4), (9, 11), (20, 21)], (0, 11, 20, 21)),
    ],
)
def test_spans_are_joined(spans: list[tuple[int, int]], wanted: tuple[int, ...]) -> None:
    assert joined(spans) == wanted


@pytest.mark.parametrize(
    ("indices", "named", "wanted"),
    [((0, 0, 0), None, -1), ((0, 0, 1), None, 2), ((1, 0), None, 1), ((1, 1), None, -1), ((1, 1), 0, 0), ((0, 1), 0, 1), ((2,), 2, -1)],
)
def test_the_first_tensor_on_another_device(indices: tuple[int, ...], named: int | None, wanted: int) -> None:
    tensors: Any = [SimpleNamespace(device=torch.device("cuda", index)) for index in indices]
    assert strays(tensors, named) == wanted
