"""Programs whose surroundings change between calls: each call agrees with eager, also on a callable that finds the artifacts stored."""

from __future__ import annotations

import functools
import math
import os
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import precast
from precast.artifact_store import Store
from precast.artifact_store.format.guards import Predicate
from precast.capture import capture
from precast.runtime.fingerprint import validate
from precast.runtime.native import loader

X = torch.arange(6.0).reshape(2, 3) - 2
scale = 2.0


class Base:
    Z = 5.0

    def __init__(self) -> None:
        self.k = 2.0

    @property
    def p(self) -> float:
        return self.k + 1

    def m(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k

    @classmethod
    def cm(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.Z

    @staticmethod
    def sm(x: torch.Tensor) -> torch.Tensor:
        return x + 100

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.k

    def __len__(self) -> int:
        return 3

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, i: int) -> float:
        return i * 2.0

    def __contains__(self, o: object) -> bool:
        return o == 1

    def __iter__(self) -> Iterator[float]:
        return iter((1.0, 2.0))

    def __getattr__(self, name: str) -> float:
        if name == "missing":
            return 4.0
        raise AttributeError(name)


class Sub(Base):
    pass


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.help(self.lin(x))

    def help(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)


class Together:
    """Calls of one function, eager against compiled: the compiled callable three times, then one that finds its artifacts in the store."""

    def __init__(self, function: Callable[..., Any], store: Store) -> None:
        self.function = function
        self.store = store
        self.compiled = precast.compile(function, store=store)

    def check(self, *args: Any) -> None:
        for compiled in (self.compiled, self.compiled, self.compiled, precast.compile(self.function, store=self.store)):
            torch.testing.assert_close(compiled(*args), self.function(*args), equal_nan=True)


@pytest.fixture
def together(tmp_path: Path) -> Callable[[Callable[..., Any]], Together]:
    return lambda function: Together(function, Store.open(tmp_path))


@pytest.fixture(autouse=True)
def _no_fall_back() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


PATCHES = {
    "m": (lambda o, x: o.m(x), lambda self, x: x + self.k),
    "p": (lambda o, x: x * o.p, property(lambda self: self.k + 50)),
    "cm": (lambda o, x: o.cm(x), classmethod(lambda cls, x: x + cls.Z)),
    "sm": (lambda o, x: o.sm(x), staticmethod(lambda x: x - 100)),
    "Z": (lambda o, x: x * o.Z, property(lambda self: 8.0)),
    "missing": (lambda o, x: x * o.missing, 6.0),
    "__call__": (lambda o, x: o(x), lambda self, x: x + 77),
    "__len__": (lambda o, x: x * len(o), lambda self: 5),
    "__bool__": (lambda o, x: x + 1 if o else x - 1, lambda self: False),
    "__getitem__": (lambda o, x: x * o[2], lambda self, i: i * 3.0),
    "__contains__": (lambda o, x: x + 1 if 1 in o else x - 1, lambda self, o: False),
    "__iter__": (lambda o, x: x * sum(o), lambda self: iter((5.0,))),
    "__getattr__": (lambda o, x: x * o.missing, lambda self, name: 9.0),
}


@pytest.mark.parametrize("name", PATCHES)
def test_what_a_class_defines(name: str, together: Callable[[Callable[..., Any]], Together], monkeypatch: pytest.MonkeyPatch) -> None:
    body, patched = PATCHES[name]
    program = together(lambda o, x: body(o, x))
    plain, sub = Base(), Sub()
    sub.k = 3.0
    program.check(plain, X)
    program.check(sub, X)
    for cls in (Base, Sub):  # a redefinition and an override
        with monkeypatch.context() as patch:
            patch.setattr(cls, name, patched, raising=False)
            program.check(sub, X)
        program.check(sub, X)
    program.check(plain, X)


@pytest.mark.parametrize("attribute", ["forward", "help"])
def test_methods_of_a_submodule(
    attribute: str, together: Callable[[Callable[..., Any]], Together], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Sequential(Inner(), Inner()).eval()
    program = together(model)
    program.check(X)
    with monkeypatch.context() as patch:
        patch.setattr(Inner, attribute, lambda self, x: x * 3)
        program.check(X)
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Linear, "forward", lambda self, x: x * 5)
        program.check(X)
    program.check(X)


@pytest.mark.parametrize("native_tables", [True, False])
@pytest.mark.parametrize("calls", [0, 6])
def test_code_replaced_inside_a_method(
    calls: int, native_tables: bool, together: Callable[[Callable[..., Any]], Together], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function stays the same object, so neither the class nor its namespace changes."""
    validate.forget()  # whoever looks first at the store looks while the code is another one
    if not native_tables:
        monkeypatch.setattr(loader._state, "module", None)
        monkeypatch.setattr(loader._state, "tables", False)
    model, base = torch.nn.Sequential(Inner()).eval(), Base()
    program = together(lambda x: base.m(model(x)) * base.p)
    for _ in range(calls):
        program.compiled(X)
    getter = vars(Base)["p"].fget
    for changed, other in ((Inner.help, lambda self, x: x * 3), (Base.m, lambda self, x: x - self.k), (getter, lambda self: self.k + 50)):
        with monkeypatch.context() as patch:
            patch.setattr(changed, "__code__", other.__code__)
            program.check(X)
        program.check(X)


def test_functions_of_libraries_that_are_patched(
    together: Callable[[Callable[..., Any]], Together], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = together(lambda x: F.relu(x) + torch.sin(x) * math.sqrt(4.0))
    program.check(X)
    original = F.relu

    @functools.wraps(original)
    def renamed(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return x + 100  # bears the original's name

    for owner, name, other in ((F, "relu", renamed), (torch, "sin", torch.cos), (math, "sqrt", lambda value: 100.0)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            program.check(X)
        program.check(X)


def test_a_global_that_shadows_a_built_in(together: Callable[[Callable[..., Any]], Together], monkeypatch: pytest.MonkeyPatch) -> None:
    program = together(lambda x: x * max(1, 2))
    program.check(X)
    monkeypatch.setitem(globals(), "max", lambda *values: 99)
    program.check(X)


def test_a_class_of_the_same_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An instance of a class that was replaced is no instance of what stands there now; of another by that name there is no artifact."""

    def make(k: float) -> type:
        body = {"m": lambda self, x: x * k, "k": k, "__module__": __name__, "__qualname__": "Named"}
        return type("Named", (), body)

    first, second = make(2.0), make(3.0)
    monkeypatch.setitem(globals(), "Named", first)

    def function(o: Any, x: torch.Tensor) -> Any:
        return o.m(x) + o.k if isinstance(o, globals_of()["Named"]) else x

    compiled = precast.compile(function, store=Store.open(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a shadowed class has no name that a guard could hold it by: such calls run eagerly
        for standing in (first, second, first):
            monkeypatch.setitem(globals(), "Named", standing)
            for o in (first(), second()):
                for _ in range(3):
                    torch.testing.assert_close(compiled(o, X), function(o, X))


def globals_of() -> dict[str, Any]:
    return {"Named": Named}  # type: ignore[name-defined]  # noqa: F821


def test_the_body_of_the_entry_is_replaced(together: Callable[[Callable[..., Any]], Together]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def other(x: torch.Tensor, by: float = 9.0) -> torch.Tensor:
        return x * by

    program = together(function)
    program.check(X)
    function.__code__, function.__defaults__ = other.__code__, other.__defaults__
    program.check(X)
    program.check(X, 4.0)


@pytest.mark.parametrize("breaks", [False, True])
def test_defaults_are_replaced(breaks: bool, together: Callable[[Callable[..., Any]], Together]) -> None:
    def function(x: torch.Tensor, k: float = 2.0, *, m: float = 3.0) -> torch.Tensor:
        if breaks:
            print(end="")
        return x * k + m

    program = together(function)
    first, second = (2.0,), (5.0,)
    for defaults, keyword_defaults in ((first, {"m": 3.0}), (second, {"m": 3.0}), (first, {"m": 3.0}), (first, {"m": 7.0})):
        function.__defaults__, function.__kwdefaults__ = defaults, keyword_defaults
        program.check(X)
        program.check(X, 4.0)
    function.__kwdefaults__["m"] = 9.0
    program.check(X)


class Defaults(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method(x) + self.static(x) + defaulted(x) + self.of_class(x)

    def method(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x * scale

    @staticmethod
    def static(x: torch.Tensor, scale: float = 3.0) -> torch.Tensor:
        return x * scale

    @classmethod
    def of_class(cls, x: torch.Tensor, scale: float = 11.0) -> torch.Tensor:
        return x * scale


def defaulted(x: torch.Tensor, scale: float = 7.0) -> torch.Tensor:
    return x * scale


@pytest.mark.parametrize("native_tables", [True, False])
@pytest.mark.parametrize(
    "function",
    [Defaults.method, Defaults.static, defaulted, Defaults.__dict__["of_class"].__func__],
    ids=["method", "static", "function", "of_class"],
)
def test_defaults_of_what_is_called_are_replaced(
    function: Any, native_tables: bool, together: Callable[[Callable[..., Any]], Together], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native_tables:
        monkeypatch.setattr(loader._state, "module", None)
        monkeypatch.setattr(loader._state, "tables", False)
    model = Defaults().eval()
    program = together(lambda x: model(x))
    program.check(X)
    with monkeypatch.context() as patch:
        patch.setattr(function, "__defaults__", (5.0,))
        program.check(X)
    program.check(X)


def test_a_partial_changed_in_place(together: Callable[[Callable[..., Any]], Together]) -> None:
    def function(x: torch.Tensor, k: float, *, m: float = 1.0) -> torch.Tensor:
        return x * k + m

    partial = functools.partial(function, k=2.0)
    program = together(partial)
    program.check(X)
    partial.keywords["k"] = 5.0
    program.check(X)
    partial.keywords["m"] = 7.0
    program.check(X)
    partial.__setstate__((function, (X * 3,), {"k": 4.0}, {}))  # type: ignore[attr-defined]
    program.check()


def test_a_key_that_was_not_there(together: Callable[[Callable[..., Any]], Together], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRECAST_TESTS_FLAG", raising=False)
    program = together(lambda x: x * 2 if os.environ.get("PRECAST_TESTS_FLAG", "0") == "1" else x * 3)
    program.check(X)
    for value in ("1", "0"):
        monkeypatch.setenv("PRECAST_TESTS_FLAG", value)
        program.check(X)
    monkeypatch.delenv("PRECAST_TESTS_FLAG")
    program.check(X)


def test_the_sign_of_nan_and_zero(together: Callable[[Callable[..., Any]], Together]) -> None:
    program = together(lambda x, k: x + math.copysign(1.0, k))
    for k in (0.0, -0.0, math.nan, math.copysign(math.nan, -1.0)):
        program.check(X, k)


def test_what_is_not_looked_up_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another method on the class, an edited constructor, a counter: no guard on the classes fails."""
    function = lambda o, x: o.m(x) * o.p  # noqa: E731
    monkeypatch.setattr(Base, "count", 0, raising=False)
    before = capture(function, (Base(), X)).guard_hash
    monkeypatch.setattr(Base, "count", 1)
    monkeypatch.setattr(Base, "unrelated", lambda self: 3, raising=False)
    monkeypatch.setattr(Base, "__init__", types.FunctionType((lambda self: self.__dict__.update(k=2.0)).__code__, globals()))
    assert capture(function, (Base(), X)).guard_hash == before


def test_a_class_that_is_instantiated_is_held_to_its_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    function = lambda x: Sub().m(x)  # noqa: E731
    before = capture(function, (X,))
    assert any(guard.predicate is Predicate.CLASSES for guard in before.guards)
    original = Base.__init__
    monkeypatch.setattr(Sub, "__init__", lambda self: original(self), raising=False)
    assert capture(function, (X,)).guard_hash != before.guard_hash


def test_lazily_conjugated_and_negated_arguments(together: Callable[[Callable[..., Any]], Together]) -> None:
    """Their memory does not hold their values."""
    program = together(lambda x: (x.t() * 2 + x[0, 0], x.clone(), torch.cat([x, x]), x.sum(), x, x[0]))
    numbers = torch.randn(2, 3, dtype=torch.complex64)
    for x in (numbers, numbers.conj(), numbers.conj().imag, numbers.conj().imag.clone(), torch._neg_view(numbers), numbers):
        program.check(x)
