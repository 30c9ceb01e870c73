"""Guards both ways: changing what a frame depends on misses, changing anything else hits; and a miss says why."""

from __future__ import annotations

import builtins
import functools
import gc
import itertools
import os
import platform
import socket
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.format.import_names import Untaggable, find_object, hold, named
from precast.artifact_store.format.tagged_constants import tag, untag
from precast.capture import CaptureRefused, capture
from precast.runtime.guards.evaluate import compile_checker, evaluate, failure, first_failing
from tests.capture import programs
from tests.capture.harness import locals_of
from tests.capture.programs import Block, Callable_, Stack, Tied, make_closure


def x() -> torch.Tensor:
    return torch.linspace(-2, 2, 16).reshape(4, 4)


@dataclass
class Case:
    """`make` gives a fresh call; `change` alters the objects of that call (in place) or returns the new (args, kwargs)."""

    make: Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]
    change: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    hits: bool
    undo: Callable[[], None] = field(default=lambda: None)


def block() -> Any:
    return Block().eval(), (x(),), {}


def stack() -> Any:
    return Stack().eval(), (x(), "one"), {}


def plain() -> Any:
    return programs.plain, (x(), x() + 1), {}


def tree() -> Any:
    return programs.kwargs_tree, ({"x": x(), "more": [x()]},), {"scale": 2.0}


def with_args(*args: Any, **kwargs: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda fn, old_args, old_kwargs: (args, kwargs)


def set_attribute(path: str, value: Any) -> Callable[[Any, Any, Any], None]:
    def change(fn: Any, args: Any, kwargs: Any) -> None:
        *places, last = path.split(".")
        place = fn
        for part in places:
            place = getattr(place, part)
        setattr(place, last, value)

    return change


def set_global(name: str, value: Any) -> Callable[[Any, Any, Any], None]:
    return lambda fn, args, kwargs: programs.__dict__.__setitem__(name, value)


def restore(name: str) -> Callable[[], None]:
    value = programs.__dict__[name]
    return lambda: programs.__dict__.__setitem__(name, value)


def marked(fn: Any, args: Any, kwargs: Any) -> None:
    torch._dynamo.mark_dynamic(args[0], 0)


def helper_edited(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: torch.tanh(t) * factor * 2


def subclassed(fn: Any, args: Any, kwargs: Any) -> Any:
    class Special(torch.Tensor):
        pass

    return (args[0].as_subclass(Special), *args[1:]), kwargs


CASES: dict[str, Case] = {
    # tensors
    "same again": Case(plain, with_args(x() * 3, x() - 7), True),
    "other size": Case(plain, with_args(x()[:2], x()[:2]), False),
    "other stride": Case(plain, with_args(x().t(), x()), False),
    "other offset": Case(plain, with_args(torch.zeros(5, 4)[1:], x()), True),
    "other offset, counted from the storage": Case(lambda: (programs.storage_offsets, (x(),), {}), with_args(torch.zeros(5, 4)[1:]), False),
    "other dtype": Case(plain, with_args(x().double(), x()), False),
    "other device": Case(plain, with_args(x().to("meta"), x().to("meta")), False),
    "requires grad": Case(plain, with_args(x().requires_grad_(), x()), False),
    "a parameter": Case(plain, with_args(nn.Parameter(x(), requires_grad=False), x()), False),
    "a subclass": Case(plain, subclassed, False),
    "conjugated": Case(lambda: (programs.plain, (x().to(torch.complex64), x()), {}), with_args(x().to(torch.complex64).conj(), x()), False),
    "sparse": Case(plain, with_args(x().to_sparse(), x()), False),
    "marked dynamic": Case(plain, marked, False),
    "now the same object": Case(plain, lambda f, a, k: ((a[0], a[0]), k), False),
    "no longer the same object": Case(lambda: (programs.plain, (t := x(), t), {}), with_args(x(), x()), False),
    "written input overlaps": Case(
        lambda: (programs.mutates_input, (x()[:2], x()[2:]), {}), lambda f, a, k: ((a[0], a[0].view(2, 4)), k), False
    ),
    "read-only inputs overlap": Case(lambda: (programs.plain, (x()[:2], x()[2:]), {}), lambda f, a, k: ((a[0], a[0].view(2, 4)), k), True),
    # constants and containers
    "other int": Case(plain, lambda f, a, k: (a, {"k": 3}), False),
    "int becomes float": Case(plain, lambda f, a, k: (a, {"k": 2.0}), False),
    "int becomes bool": Case(lambda: (programs.plain, (x(), x()), {"k": 1}), lambda f, a, k: (a, {"k": True}), False),
    "other string": Case(lambda: (programs.string_switch, (x(), "relu"), {}), with_args(x(), "tanh"), False),
    "list grows": Case(tree, lambda f, a, k: a[0]["more"].append(x()), False),
    "dict gets a key": Case(tree, lambda f, a, k: a[0].__setitem__("unused", 1), True),
    "iterated dict gets a key": Case(lambda: (programs.ordered, ({"a": x()},), {}), lambda f, a, k: a[0].__setitem__("b", x()), False),
    "iterated dict in another order": Case(lambda: (programs.ordered, ({"a": x(), "b": x()},), {}), with_args({"b": x(), "a": x()}), False),
    "list becomes tuple": Case(lambda: (programs.comprehension, ([x(), x()],), {}), with_args((x(), x())), False),
    "-0.0 for 0.0": Case(lambda: (programs.plain, (x(), x()), {"k": 0.0}), lambda f, a, k: (a, {"k": -0.0}), False),
    "nan stays nan": Case(lambda: (programs.plain, (x(), x()), {"k": float("nan")}), lambda f, a, k: (a, {"k": float("nan")}), True),
    "argument not given": Case(tree, lambda f, a, k: (a, {}), False),
    # modules
    "new weights": Case(block, lambda f, a, k: f.load_state_dict({n: t + 1 for n, t in f.state_dict().items()}), True),
    "new parameter object": Case(block, set_attribute("linear.weight", nn.Parameter(torch.ones(4, 4))), True),
    "parameter of another size": Case(block, set_attribute("linear.weight", nn.Parameter(torch.ones(8, 4))), False),
    "training mode": Case(stack, lambda f, a, k: f.train() and None, True),
    "training mode read": Case(lambda: (nn.Sequential(nn.Dropout()).eval(), (x(),), {}), lambda f, a, k: f.train() and None, False),
    "attribute that was read": Case(lambda: (Block().eval(), (x(),), {"double": True}), set_attribute("flag", False), False),
    "attribute that was not read": Case(block, set_attribute("flag", False), True),
    "new attribute": Case(block, set_attribute("unrelated", 5), True),
    "forward replaced": Case(block, set_attribute("linear.forward", lambda t: t), False),
    "submodule replaced, same kind": Case(block, set_attribute("linear", nn.Linear(4, 4)), True),
    "submodule replaced, other kind": Case(block, set_attribute("norm", nn.Identity()), False),
    "a hook on a submodule": Case(block, lambda f, a, k: f.linear.register_forward_hook(lambda m, i, o: o + 1) and None, False),
    "another list length": Case(stack, lambda f, a, k: f.blocks.append(Block()) and None, False),
    "another head": Case(stack, lambda f, a, k: ((a[0], "two"), k), False),
    "eps of layer norm": Case(block, set_attribute("norm.eps", 1e-3), False),
    "weights untied": Case(lambda: (Tied(), (x(),), {}), set_attribute("b.weight", nn.Parameter(torch.ones(4, 4))), False),
    "tensor attribute replaced": Case(block, set_attribute("extra", torch.zeros(4)), True),
    # globals, closures, defaults, code
    "global constant": Case(plain, set_global("SCALE", 4.0), False, restore("SCALE")),
    "unrelated global": Case(plain, set_global("COUNTER", {}), True, restore("COUNTER")),
    "global tensor replaced": Case(
        lambda: (programs.global_tensor, (x(),), {}), set_global("WEIGHT", torch.ones(4)), True, restore("WEIGHT")
    ),
    "helper replaced": Case(lambda: (programs.uses_helper, (x(),), {}), set_global("helper", helper_edited(2.0)), False, restore("helper")),
    "closure constant": Case(
        lambda: (make_closure(1.5, torch.ones(4)), (x(),), {}), lambda f, a, k: setattr(f.__closure__[0], "cell_contents", 2.5), False
    ),
    "closure tensor": Case(
        lambda: (make_closure(1.5, torch.ones(4)), (x(),), {}),
        lambda f, a, k: setattr(f.__closure__[1], "cell_contents", torch.zeros(4)),
        True,
    ),
    "object's tensor": Case(lambda: (Callable_(), (x(),), {}), set_attribute("weight", torch.ones(4)), True),
}


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    case = CASES[name]
    fn, args, kwargs = case.make()
    with torch.no_grad():
        frame = capture(fn, args, kwargs)
        assert frame.uncacheable == ()
        check = compile_checker(frame.guards)
        values = locals_of(fn, args, kwargs)
        assert check(values, values) and first_failing(frame.guards, values) == -1
        try:
            args, kwargs = _changed(case, fn, args, kwargs)
            values = locals_of(fn, args, kwargs)
            failures = [text for guard in frame.guards if (text := failure(guard, values))]
            assert check(values, values) == (not failures), (check.source, failures)
        finally:
            case.undo()
    assert (not failures) == case.hits, failures


def _changed(case: Case, fn: Any, args: Any, kwargs: Any) -> Any:
    result = case.change(fn, args, kwargs)
    return result if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict) else (args, kwargs)


STATES: dict[str, tuple[Callable[[], Any], bool]] = {
    "grad mode": (torch.enable_grad, False),
    "no grad": (torch.no_grad, True),
    "inference mode": (torch.inference_mode, False),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), False),
    "device context": (lambda: torch.device("meta"), False),
    "function disabled": (torch._C.DisableTorchFunctionSubclass, False),
    "threads": (lambda: _setting(torch.set_num_threads, torch.get_num_threads(), 1), True),
    "deterministic": (lambda: _setting(torch.use_deterministic_algorithms, False, True), False),
    "default dtype": (lambda: _setting(torch.set_default_dtype, torch.float32, torch.float64), False),
    "default device": (lambda: _setting(torch.set_default_device, None, "meta"), False),
}


class _setting:
    def __init__(self, change: Callable[[Any], None], old: Any, new: Any) -> None:
        self.change, self.old, self.new = change, old, new

    def __enter__(self) -> None:
        self.change(self.new)

    def __exit__(self, *_: Any) -> None:
        self.change(self.old)


@pytest.mark.parametrize("name", STATES)
def test_global_state(name: str) -> None:
    enter, hits = STATES[name]
    with torch.no_grad():
        frame = capture(programs.plain, (x(), x()))
        values = locals_of(programs.plain, (x(), x()), {})
        check = compile_checker(frame.guards)
        with enter():
            assert check(values, values) == hits
            assert (first_failing(frame.guards, values) == -1) == hits
        assert check(values, values)


def test_the_guard_hash_knows_no_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        here = capture(programs.plain, (x(), x()))
        system, kernel = platform.uname(), os.uname()
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        monkeypatch.setattr(socket, "getfqdn", lambda name="": "elsewhere.example")
        monkeypatch.setattr(os, "uname", lambda: type(kernel)((kernel.sysname, "elsewhere", "0.0", "#0", kernel.machine)))
        monkeypatch.setattr(platform, "node", lambda: "elsewhere")
        monkeypatch.setattr(platform, "uname", lambda: system._replace(node="elsewhere", release="0.0", version="#0"))
        monkeypatch.setenv("HOSTNAME", "elsewhere")
        there = capture(programs.plain, (x(), x()))
    assert there.guard_hash == here.guard_hash
    assert [guard.to_data() for guard in there.guards] == [guard.to_data() for guard in here.guards]


def test_a_miss_is_explained() -> None:
    with torch.no_grad():
        frame = capture(programs.plain, (x(), x()))
    values = locals_of(programs.plain, (x()[:2], x()), {"k": 9})
    with torch.no_grad():
        texts = [text for guard in frame.guards if (text := failure(guard, values))]
    assert "k: expected 2, found 9" in texts
    assert any("x: expected a tensor float32[4, 4] stride (4, 1) on cpu, found a tensor float32[2, 4]" in text for text in texts)
    texts = [text for guard in frame.guards if (text := failure(guard, {}))]
    assert any("x does not exist" in text for text in texts)


def calling(function: Any) -> Any:
    def call(t: torch.Tensor) -> Any:
        return function(t)

    return call


def module_function(module: str) -> Any:
    """The code of `programs.helper` in another module, where its global means something else."""
    namespace = {"__name__": module, "__builtins__": builtins.__dict__, "torch": torch, "SCALE": 7.0}
    return types.FunctionType(programs.helper.__code__, namespace)


CALLABLES: dict[str, tuple[Any, Any]] = {
    "method descriptors": (torch.Tensor.cfloat, torch.Tensor.cdouble),
    "method descriptor and builtin": (torch.Tensor.neg, torch.neg),
    "builtins of torch": (torch.sum, torch.prod),
    "builtins": (len, max),
    "Python functions of torch": (nn.functional.relu, nn.functional.silu),
    "partial objects": (functools.partial(torch.sum, dim=0), functools.partial(torch.sum, dim=1)),
    "partials of others": (functools.partial(torch.sum, dim=0), functools.partial(torch.prod, dim=0)),
    "functions of the program": (programs.helper, programs.uses_helper),
    "operators": (torch.ops.aten.sin.default, torch.ops.aten.cos.default),
    "one code, two modules": (programs.helper, module_function("elsewhere")),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CALLABLES)
def test_a_callable_in_a_closure_is_guarded(name: str) -> None:
    def values(function: Any) -> dict[str, Any]:
        return locals_of(calling(function), (x(),), {})

    pair = CALLABLES[name]
    for first, second in (pair, pair[::-1]):
        try:
            frame = capture(calling(first), (x(),))
        except (CaptureRefused, ModuleNotFoundError):
            assert first in (max, CALLABLES["one code, two modules"][1]), "only these have nothing to compile"
            continue
        again, other = values(first), values(second)
        check = compile_checker(frame.guards)
        assert frame.uncacheable == () and check(again, again) and first_failing(frame.guards, again) == -1
        assert not check(other, other) and first_failing(frame.guards, other) != -1


LOCAL = (("local", "v"),)


class Point:
    def __init__(self) -> None:
        self.here = 1

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare me")


def code_of(function: Any) -> str:
    from precast.runtime.fingerprint.bytecode import digest

    return digest(function.__code__)


def marked_tensor() -> torch.Tensor:
    tensor = torch.ones(2)
    torch._dynamo.mark_dynamic(tensor, 0)
    return tensor


def twice_registered() -> nn.Module:
    """Its buffers, too, have an entry `weight`."""
    module = nn.Linear(1, 1)
    module._buffers["weight"] = torch.ones(1, 1)
    return module


@pytest.mark.parametrize(
    ("predicate", "constant", "good", "bad"),
    [
        (Predicate.TYPE, "builtins:int", 3, True),
        (Predicate.TYPE, "types:FunctionType", code_of, print),
        (Predicate.EQUALS, ("int", 1), 1, True),
        (Predicate.EQUALS, ("float", "0x0.0p+0"), 0.0, -0.0),
        (Predicate.EQUALS, ("tuple", (("int", 1), ("str", "a"))), (1, "a"), [1, "a"]),
        (Predicate.EQUALS, ("dtype", "float32"), torch.float32, torch.float64),
        (Predicate.EQUALS, ("slice", ("int", 1), ("none",), ("none",)), slice(1, None), slice(2, None)),
        (Predicate.EQUALS, ("frozenset", (("int", 1), ("int", 2))), frozenset((2, 1)), frozenset((1,))),
        (Predicate.EQUALS, ("int", 1), 1, Point()),
        (Predicate.BASE_EQUALS, ("int", 3), type("Number", (int,), {})(3), 4),
        (Predicate.IS, "torch:relu", torch.relu, torch.tanh),
        (Predicate.IS, "math", __import__("math"), torch),
        (Predicate.LENGTH, 2, [1, 2], [1]),
        (Predicate.KEYS, {"keys": (("str", "a"), ("str", "b")), "ordered": True}, {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Predicate.KEYS, {"keys": (("str", "a"), ("str", "b")), "ordered": False}, {"b": 1, "a": 2}, {"a": 2}),
        (Predicate.HAS_KEY, ("str", "a"), {"a": 1}, {}),
        (Predicate.HAS_KEY, ("int", 1), {1, 2}, {2}),
        (Predicate.LACKS_KEY, ("str", "a"), {}, {"a": 1}),
        (Predicate.LACKS_OWN, {"__dict__": ("there",)}, Point(), types.SimpleNamespace(there=1)),
        (Predicate.LACKS_OWN, {"__dict__": ("z", "there")}, Point(), types.SimpleNamespace(there=1)),
        (Predicate.LACKS_OWN, {"_buffers": ("weight",), "__dict__": ("weight",)}, nn.Linear(1, 1), twice_registered()),
        (Predicate.HAS_ATTR, "here", Point(), object()),
        (Predicate.LACKS_ATTR, "there", Point(), types.SimpleNamespace(there=1)),
        (Predicate.NOT_NONE, None, 0, None),
        (Predicate.CODE, code_of(code_of), code_of, x),
        (Predicate.EMPTY, None, {}, {1: 2}),
        (Predicate.ITERATOR, ("tuple", 2), iter((1, 2)), iter((1,))),
        (Predicate.ITERATOR, ("range", 0, 4, 1), iter(range(4)), iter(range(5))),
        (Predicate.ITERATOR, ("count", ("int", 3), ("int", 1)), itertools.count(3), itertools.count(4)),
        (Predicate.UNMARKED, None, torch.ones(2), marked_tensor()),
    ],
)
def test_predicate(predicate: Predicate, constant: Any, good: Any, bad: Any) -> None:
    guard = Guard(LOCAL, predicate, constant)
    check = compile_checker([guard])
    for value, expected in ((good, True), (bad, False)):
        assert evaluate(guard, {"v": value}).holds == expected
        assert check({"v": value}, {}) == expected
    verdict = evaluate(guard, {"v": bad})
    assert verdict.expected and verdict.found
    assert not evaluate(guard, {}).holds and not check({}, {})


@dataclass(frozen=True)
class Setting:
    axis: int
    how: tuple[str, ...] = ()


@dataclass
class Loose:
    held: Any


@dataclass(frozen=True)
class Slotted:
    __slots__ = ("axis",)
    axis: int


VALUES: tuple[Any, ...] = (
    *([], (), {}, None, 0, 0.0, -0.0, False, "", "a", b"a", float("nan"), float("inf"), 1, True, 1.0, (1,), [1], [True], [1.0]),
    *([1, [2, ("a", 3.5)]], [1, [2, ("a", 3.0)]], {"a": 1}, {"a": True}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {1: 2}, {(1, "a"): [2]}),
    *({"size": [1, 64], "dtype": torch.float32, "none": None}, {"size": (1, 64), "dtype": torch.float32, "none": None}),
    *({"size": [1, 64], "dtype": torch.float64, "none": None}, {"size": [1, 65], "dtype": torch.float32, "none": None}),
    *(torch.float32, torch.bfloat16, torch.device("cpu"), torch.strided, torch.Size((2,)), (2,), slice(1, 2), range(3), frozenset((1,))),
    *(
        Setting(1),
        Setting(2),
        Setting(True),
        Setting(1, ("a",)),
        [Setting(1)],
        Loose(1),
        Loose([1]),
        Loose([Setting(1)]),
        Slotted(1),
        Slotted(2),
    ),
    *(
        Predicate.EQUALS,
        [Predicate.EQUALS],
        [Predicate.IS],
        {"how": {"more": [{"deep": (None, -1)}]}},
        {"how": {"more": [{"deep": (None, 1)}]}},
    ),
    *(int | None, int | str, list[int], list[int | None], dict[str, int], tuple[int, ...], *tuple[int, ...], Callable[[int], str]),
    *(typing.Optional[str], typing.Callable[..., int], typing.Callable[[int], int]),  # noqa: UP045
    *(typing.Literal[1], typing.Literal[True], typing.Sequence[int]),
)
UNTOLD = (typing.Annotated[int, 3], typing.ClassVar[int], typing.Final[int])
"""Types that are more than what stands in their brackets."""


def test_what_cannot_be_made_again_is_no_constant() -> None:
    for value in UNTOLD:
        with pytest.raises(Untaggable):
            tag(value)


def test_a_constant_equals_itself_and_nothing_else() -> None:
    """Types count, and the order of a dict; the generated code says the same as the rule; what is read back says the same again."""
    for wanted in VALUES:
        guard = Guard(LOCAL, Predicate.EQUALS, tag(wanted))
        check = compile_checker([guard])
        for value in VALUES:
            assert evaluate(guard, {"v": value}).holds == check({"v": value}, {}) == (value is wanted), (wanted, value)
        read = untag(tag(wanted))
        assert tag(read) == tag(wanted) and type(read) is type(wanted) and check({"v": read}, {})


def test_a_dataclass_that_holds_more_than_its_fields_has_no_portable_form() -> None:
    value = Loose(1)
    assert tag(value) == ("dataclass", f"{__name__}:Loose", (("held", ("int", 1)),))
    value.more = 2  # type: ignore[attr-defined]
    with pytest.raises(Untaggable):
        tag(value)
    with pytest.raises(Untaggable):
        tag(Loose(object()))


def test_every_predicate_has_a_rule() -> None:
    from precast.runtime.guards.predicates import RULES

    assert set(RULES) == set(Predicate)


def test_a_held_object_has_one_name_that_dies_with_it() -> None:
    def nameless() -> None: ...

    name = hold(nameless)
    assert name == hold(nameless) and find_object(name) is nameless and named(nameless, name)
    other = types.FunctionType(nameless.__code__, {})
    assert not named(other, name) and hold(other) != name
    del nameless
    gc.collect()
    assert not named(other, name)
    with pytest.raises(LookupError, match="is gone"):
        find_object(name)
