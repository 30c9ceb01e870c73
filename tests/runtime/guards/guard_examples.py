"""Examples of guards for each predicate, and the engines that judge them.

An example is a guard, values for which it holds, and a change of them after which it does not. A predicate without an example fails
`test_predicates.py`.
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.artifact_store import Guard, Predicate
from precast.artifact_store.format.manifest import guard_rows
from precast.artifact_store.format.tagged_constants import tag
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.fingerprint.classes import class_digest, looked_up
from precast.runtime.fingerprint.triton_kernels import kernel_digest
from precast.runtime.guards.evaluate import compile_checker, failure
from precast.runtime.guards.interpreted import INTERPRETED_CALLS, LazyChecker
from precast.runtime.guards.table.plan import Plan
from precast.runtime.guards.table.recorder import record
from precast.runtime.guards.tensor_spec import spec_of
from precast.runtime.native import loader as native
from precast.runtime.paths.torch_state import global_state

Values = dict[str, Any]
A, B, C = ((("local", name),) for name in "abc")
STATE = (("state",),)
HERE = sys.modules[__name__]

# -- the engines


def frame(a: Any, b: Any = None, c: Any = None) -> None:
    """Whose locals the guards are about."""


def other_code(a: Any, b: Any = None, c: Any = None) -> None:
    """Of the same signature."""
    a()


def evaluated(guards: Sequence[Guard]) -> Callable[[Values], bool]:
    return lambda values: not any(failure(guard, values, {}) for guard in guards)


def first_checked(guards: Sequence[Guard]) -> Callable[[Values], bool]:
    return lambda values: LazyChecker(lambda: guard_rows(guards))(values, {})


def checked_often(guards: Sequence[Guard]) -> Callable[[Values], bool]:
    """The lazy checker after the calls that it interprets."""

    def check(values: Values) -> bool:
        lazy = LazyChecker(lambda: guard_rows(guards))
        lazy._calls = INTERPRETED_CALLS
        return lazy(values, {})

    return check


def compiled(guards: Sequence[Guard]) -> Callable[[Values], bool]:
    check = compile_checker(guards)
    return lambda values: check(values, {})


JUDGES = {judge.__name__: judge for judge in (evaluated, first_checked, checked_often, compiled)}


def recorded(guards: Sequence[Guard], values: Values) -> Any:
    """The native table for a call with these values."""
    return record(native.loaded(), Plan(guards, ("a", "b", "c"), frame), values, dict)


# -- what the guards are about


def view(offset: int = 3, size: Sequence[int] = (3, 2), stride: Sequence[int] = (2, 1), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(40).to(dtype).as_strided(size, stride, offset)


def free(spec: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**spec, **changes}


def marked(dim: int, name: str = "_dynamo_dynamic_indices", tensor: torch.Tensor | None = None) -> torch.Tensor:
    tensor = view() if tensor is None else tensor
    setattr(tensor, name, {dim})
    return tensor


BASE = torch.zeros(64)
SPEC = free(spec_of(view()), offset=3)
LOOSE = free(spec_of(view()), offset=None)


def loose(path: Any, size: tuple[int | None, ...], stride: tuple[int | None, ...]) -> Guard:
    return Guard(path, Predicate.TENSOR, free(LOOSE, size=size, stride=stride))


def apart(distinct: Sequence[Any], mutated: Sequence[Any] = (), others: Sequence[Any] = ()) -> Guard:
    return Guard(STATE, Predicate.NOT_ALIASED, {"distinct": tuple(distinct), "mutated": tuple(mutated), "others": tuple(others)})


def shape(expression: Any, *paths: Any) -> Guard:
    return Guard(STATE, Predicate.SHAPE, {"expr": expression, "paths": paths})


class Level(int):
    """A number of a class of its own."""


class OnGpu:
    """What guards on devices read of a tensor."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)


class Kernel:
    """A Triton kernel, as far as its digest goes."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn


KERNEL = Kernel(frame)


class Holder:
    """An object that lives on."""

    def __init__(self) -> None:
        self.own = BASE[:4]
        self.twin = self.own
        self.items = [1, 2]
        self.table = {"x": 1, "y": 2}
        self.moved = OrderedDict(x=1, y=2)
        self.hooks: dict[str, int] = {}
        self.mode = "fast"
        self.level = Level(3)
        self.act = frame
        self.made = types.FunctionType(frame.__code__, {})
        self.left, self.right = OnGpu(0), OnGpu(0)


def machine() -> Any:
    """An object of a class that is made anew, and so may be changed."""
    return type("Machine", (), {"__module__": __name__, "run": frame})()


def with_kernel() -> Holder:
    HERE.KERNEL = Kernel(frame)  # type: ignore[attr-defined]
    return Holder()


def at(*names: str) -> Any:
    return (*A, *(("attr", name) for name in names))


# -- the examples


@dataclass(frozen=True)
class Example:
    """`guard` holds for the value that `make` makes, as the local `a`, and no longer after `spoil` has changed it or the locals; those
    `beside` it hold before and after. `native`: the table checks it without Python."""

    guard: Guard
    spoil: Callable[[Any], Any]
    make: Callable[[], Any] = Holder
    beside: Sequence[Guard] = ()
    native: bool = True

    def values(self) -> Values:
        """The locals, for which all guards hold."""
        made = self.make()
        return {"a": None, "b": None, "c": None, **(made if type(made) is dict else {"a": made})}

    def spoiled(self, values: Values) -> None:
        """Change them so that the guard does not hold."""
        self.spoil(values if type(self.make()) is dict else values["a"])


def of(predicate: Predicate, constant: Any = None, *names: str) -> Guard:
    return Guard(at(*names), predicate, constant)


def _next(values: Values) -> None:
    next(values["a"])


def _iterator() -> Values:
    return {"a": iter(range(1, 4))}


ITEMS, ENTRIES = {"keys": (("str", "x"), ("str", "y")), "ordered": True}, {"keys": (("str", "x"), ("str", "y")), "ordered": False}
RUN = {"names": ("run",), "classes": (((*A, ("type",)), False, class_digest(type(machine()), looked_up(("run",)), False, {})),)}
ONE_GPU = {"paths": (at("left"), at("right")), "index": None}
TENSOR = Guard(A, Predicate.TENSOR, SPEC)
EXAMPLES: dict[str, Example] = {
    "own attribute": Example(of(Predicate.LACKS_OWN, {"__dict__": ("there",)}), lambda h: setattr(h, "there", 1)),
    "attribute gone": Example(of(Predicate.HAS_ATTR, "mode"), lambda h: delattr(h, "mode")),
    "attribute new": Example(of(Predicate.LACKS_ATTR, "there"), lambda h: setattr(h, "there", 1)),
    "key gone": Example(of(Predicate.HAS_KEY, ("str", "x"), "table"), lambda h: h.table.pop("x")),
    "key new": Example(of(Predicate.LACKS_KEY, ("str", "z"), "table"), lambda h: h.table.update(z=3)),
    "order of keys": Example(of(Predicate.KEYS, ITEMS, "table"), lambda h: h.table.update(x=h.table.pop("x"))),
    "order of an OrderedDict": Example(of(Predicate.KEYS, ITEMS, "moved"), lambda h: h.moved.move_to_end("x"), native=False),
    "keys": Example(of(Predicate.KEYS, ENTRIES, "table"), lambda h: h.table.update(z=h.table.pop("x"))),
    "length of a list": Example(of(Predicate.LENGTH, 2, "items"), lambda h: h.items.append(3)),
    "length of a dict": Example(of(Predicate.LENGTH, 2, "table"), lambda h: h.table.update(z=3)),
    "hooks": Example(of(Predicate.EMPTY, None, "hooks"), lambda h: h.hooks.update(z=3)),
    "list as a constant": Example(of(Predicate.EQUALS, tag([1, 2]), "items"), lambda h: h.items.reverse()),
    "dict as a constant": Example(of(Predicate.EQUALS, tag({"x": 1, "y": 2}), "table"), lambda h: h.table.update(x=2)),
    "value": Example(of(Predicate.EQUALS, ("str", "fast"), "mode"), lambda h: setattr(h, "mode", "slow")),
    "value of a subclass": Example(of(Predicate.BASE_EQUALS, ("int", 3), "level"), lambda h: setattr(h, "level", Level(4))),
    "not none": Example(of(Predicate.NOT_NONE, None, "mode"), lambda h: setattr(h, "mode", None)),
    "type": Example(of(Predicate.TYPE, f"{__name__}:Holder"), lambda h: setattr(h, "__class__", type("Other", (Holder,), {}))),
    "object by its name": Example(of(Predicate.IS, f"{__name__}:frame", "act"), lambda h: setattr(h, "act", other_code)),
    "two names of one object": Example(Guard(at("own"), Predicate.SAME_AS, at("twin")), lambda h: setattr(h, "twin", BASE[:4])),
    "two objects": Example(apart((at("own"), at("items"))), lambda h: setattr(h, "items", h.own)),
    "memory that is written": Example(apart((), (at("own"),), (at("twin"),)), lambda h: setattr(h, "twin", BASE[2:6]), lambda: _apart()),
    "code of a function": Example(
        of(Predicate.CODE, digest(frame.__code__), "made"), lambda h: setattr(h.made, "__code__", other_code.__code__)
    ),
    "code of a class": Example(Guard(STATE, Predicate.CLASSES, RUN), lambda m: setattr(type(m), "run", other_code), machine),
    "kernel": Example(
        Guard((("module", __name__), ("attr", "KERNEL")), Predicate.KERNEL, (f"{__name__}:KERNEL", kernel_digest(f"{__name__}:KERNEL"))),
        lambda _: setattr(HERE, "KERNEL", Kernel(other_code)),
        with_kernel,
    ),
    "one GPU": Example(Guard(STATE, Predicate.SAME_DEVICE, ONE_GPU), lambda h: setattr(h, "right", OnGpu(1)), native=False),
    "kind of GPU": Example(of(Predicate.RUNS_ON, "cuda:sm_90", "own"), lambda h: setattr(h, "own", torch.empty(4, device="meta"))),
    "tensor": Example(TENSOR, lambda values: values.update(a=view(offset=4)), lambda: {"a": view()}),
    "tensor of an object": Example(loose(at("own"), (4,), (1,)), lambda h: h.own.resize_(3), lambda: _resizable()),
    "tensor without marks": Example(of(Predicate.UNMARKED), lambda x: setattr(x, "_dynamo_dynamic_indices", {0}), view, (TENSOR,)),
    "tensor with a mark": Example(
        of(Predicate.MARKS, {"_dynamo_dynamic_indices": (0,)}),
        lambda x: setattr(x, "_dynamo_dynamic_indices", {0, 1}),
        lambda: marked(0),
        (TENSOR,),
        native=False,
    ),
    "iterator": Example(of(Predicate.ITERATOR, ("range", 1, 4, 1)), _next, _iterator, native=False),
    "torch's state": Example(
        Guard(STATE, Predicate.GLOBAL_STATE, {**global_state(), "grad": False}),
        lambda _: torch.set_default_dtype(torch.float64),
        lambda: {"a": None},
    ),
    "size": Example(
        shape(("<=", 2, ("size", 0, 0)), A), lambda values: values.update(a=BASE[:1]), lambda: {"a": BASE[:2]}, (loose(A, (None,), (1,)),)
    ),
}


def _apart() -> Holder:
    made = Holder()
    made.twin = BASE[8:12]
    return made


def _resizable() -> Holder:
    made = Holder()
    made.own = torch.zeros(4)
    return made


__all__ = [
    "BASE",
    "EXAMPLES",
    "JUDGES",
    "LOOSE",
    "SPEC",
    "STATE",
    "A",
    "B",
    "C",
    "Example",
    "Holder",
    "Values",
    "apart",
    "frame",
    "free",
    "loose",
    "marked",
    "other_code",
    "recorded",
    "shape",
    "view",
]
