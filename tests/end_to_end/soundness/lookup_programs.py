"""Programs, and changes of what an attribute in them means: something that Python asks before what the traced code found.

A case makes a callable and the object that is changed, changes it (`put`), and changes it back (`away`).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.arange(6.0).reshape(2, 3) - 2, torch.arange(15.0).reshape(5, 3) / 4 - 2


def less(x: torch.Tensor) -> torch.Tensor:
    return x - 1


@dataclasses.dataclass(frozen=True)
class Case:
    make: Callable[[], tuple[Callable[..., Any], Any]]
    put: Callable[[Any], Any]
    away: Callable[[Any], Any]
    says: str = ""
    """Words in the explanation of the miss."""
    misses: bool | None = True
    """Whether the change means something to the program; None where running it makes such a change by itself."""
    torch_serves: bool = False
    """Whether torch.compile's own door notices, too."""


CASES: dict[str, Case] = {}
Change = tuple[Callable[[Any], Any], Callable[[Any], Any]]


# -- changes


def own(name: str, value: Any, at: Callable[[Any], Any] = lambda o: o) -> Change:
    """An entry of the object's own `__dict__`."""
    return lambda o: object.__setattr__(at(o), name, value), lambda o: object.__delattr__(at(o), name)


def entry(table: Callable[[Any], Any], name: str, value: Any) -> Change:
    return lambda o: table(o).__setitem__(name, value), lambda o: table(o).__delitem__(name)


def of_class(cls: type, name: str, value: Any) -> Change:
    had, before = name in vars(cls), vars(cls).get(name)
    return lambda o: setattr(cls, name, value), lambda o: setattr(cls, name, before) if had else delattr(cls, name)


def of_type(cls: Any, other: Any, name: str = "__class__") -> Change:
    before = getattr(cls, name)
    return lambda o: setattr(cls, name, other), lambda o: setattr(cls, name, before)


# -- modules


class Inner(nn.Module):
    gain = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.act = nn.ReLU()
        self.layer0 = nn.Tanh()
        self.register_buffer("scale", torch.tensor(2.0))
        self.w = nn.Parameter(torch.full((3,), 3.0))
        self.plain = torch.tensor(4.0)
        self.number = 5.0
        self.register_parameter("off", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(self.lin(x)) * self.scale * self.w
        return y

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x + 10

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 20

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + 30

    @functools.cached_property
    def cached(self) -> float:
        return 8.0

    @functools.lru_cache  # noqa: B019 - it is what is tested
    def remembered(self) -> float:
        return 9.0


class Sub(Inner):
    pass


class Other(Inner):
    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x - 10


class Late(Inner):
    pass


class SubLate(Late):
    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return super().helper(x) * 2


class NewBase(Inner):
    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x - 44


class Net(nn.Module):
    def __init__(self, program: Callable[..., Any], cls: type[Inner]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.program = program
        self.inner = cls()
        self.items_ = nn.ModuleList([cls()])
        self.named = nn.ModuleDict({"a": cls()})
        self.parts = nn.Sequential(cls())
        self.params = nn.ParameterList([nn.Parameter(torch.full((3,), 6.0))])

    def forward(self, x: torch.Tensor) -> Any:
        return self.program(self, x)


def module(name: str, program: Callable[..., Any], change: Change, cls: type[Inner] = Sub, **facts: Any) -> None:
    def make() -> tuple[Any, Any]:
        net = Net(program, cls).eval()
        return net, net

    CASES[name] = Case(make, *change, **facts)


def inner(net: Any) -> Any:
    return net.inner


def act(net: Any, x: torch.Tensor) -> Any:
    return net.inner.act(x) * 2


def or_tensor(net: Any, x: torch.Tensor) -> Any:
    return x * net.inner.act if isinstance(net.inner.act, torch.Tensor) else net.inner.act(x) * 2


def scaled(net: Any, x: torch.Tensor) -> Any:
    return x * net.inner.scale


def by_w(net: Any, x: torch.Tensor) -> Any:
    return x * net.inner.w


def made_name(net: Any, x: torch.Tensor) -> Any:
    return getattr(net.inner, f"layer{0}")(x) * 2


HIDES = "not to be in its __dict__"


def counted(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program, by code that sets an attribute of the inner module before."""

    def run(net: Any, x: torch.Tensor) -> Any:
        net.inner.calls = 5
        return program(net, x)

    return run


served = {"torch_serves": True, "says": HIDES}
module("a submodule", act, own("act", nn.Identity(), inner), **served)
module("a buffer", scaled, own("scale", torch.tensor(7.0), inner), **served)
module("a buffer by a number", scaled, own("scale", 7.0, inner), **served)
module("a parameter", by_w, own("w", nn.Parameter(torch.full((3,), 9.0)), inner), **served)
module("a parameter by a tensor in vars()", by_w, entry(lambda n: vars(n.inner), "w", torch.full((3,), 9.0)), **served)
module("a weight of a library's module", lambda n, x: n.inner.lin(x), own("weight", torch.ones(3, 3), lambda n: n.inner.lin), **served)
module("a bias by None", lambda n, x: n.inner.lin(x), own("bias", None, lambda n: n.inner.lin), **served)
module("a parameter that is None", lambda n, x: x + (1 if n.inner.off is None else 2), own("off", 3, inner), **served)
written = {"says": HIDES}
module("a buffer, of a module that is written", counted(scaled), own("scale", torch.tensor(7.0), inner), **written)
module("a parameter, of a module that is written", counted(by_w), own("w", nn.Parameter(torch.full((3,), 9.0)), inner), **written)
module("a submodule, of a module that is written", counted(act), own("act", nn.Identity(), inner), **written)
module(
    "a buffer behind a parameter, of a module that is written",
    counted(scaled),
    entry(lambda n: n.inner._parameters, "scale", nn.Parameter(torch.tensor(7.0))),
    says="not to be in its _parameters",
)
module("a name that the code makes", made_name, own("layer0", nn.Identity(), inner), **served)
module("in a ModuleList", lambda n, x: n.items_[0].act(x) * 2, own("act", nn.Identity(), lambda n: n.items_[0]), **served)
module("in a ModuleDict", lambda n, x: n.named["a"].act(x) * 2, own("act", nn.Identity(), lambda n: n.named["a"]), **served)
module("a key of a ModuleDict", lambda n, x: n.named.a.act(x), own("a", types.SimpleNamespace(act=less), lambda n: n.named), **served)
module("in a Sequential", lambda n, x: n.parts(x), own("act", nn.Identity(), lambda n: n.parts[0]), **served)
module("in a ParameterList", lambda n, x: x * n.params[0], own("0", nn.Parameter(torch.full((3,), 8.0)), lambda n: n.params), **served)
module("of the module itself", lambda n, x: n.inner(x) * 2, own("inner", nn.Identity()), **served)
module("a method", lambda n, x: n.inner.helper(x), own("helper", less, inner), **served)
module("a static method", lambda n, x: n.inner.static(x), own("static", less, inner), **served)
module("a class method", lambda n, x: n.inner.of_class(x), own("of_class", less, inner), **served)
module("a remembered method", lambda n, x: x + n.inner.remembered(), own("remembered", lambda: 1.0, inner), misses=None)
module("a cached property", lambda n, x: x * n.inner.cached, own("cached", 3.0, inner), misses=None)
module("forward, called by its name", lambda n, x: n.inner.forward(x), own("forward", less, inner), **served)
module("a number of the class", lambda n, x: x * n.inner.gain, own("gain", 9.0, inner), **served)
module(
    "a buffer behind a parameter",
    scaled,
    entry(lambda n: n.inner._parameters, "scale", nn.Parameter(torch.tensor(7.0))),
    says="not to be in its _parameters",
    torch_serves=True,
)
module(
    "a submodule behind a parameter",
    or_tensor,
    entry(lambda n: n.inner._parameters, "act", nn.Parameter(torch.tensor(7.0))),
    says="not to be in its _parameters",
    torch_serves=True,
)
module(
    "a submodule behind a buffer",
    or_tensor,
    entry(lambda n: n.inner._buffers, "act", torch.tensor(7.0)),
    says="not to be in its _buffers",
    torch_serves=True,
)
DEFINES = "to define what it defined when it was traced"
module("the class over a submodule", act, of_class(Sub, "act", staticmethod(less)), says=DEFINES, torch_serves=True)
module("a base over a submodule", act, of_class(Inner, "act", staticmethod(less)), says=DEFINES, torch_serves=True)
module("the class over a parameter", by_w, of_class(Sub, "w", 9.0), says=DEFINES, torch_serves=True)
module("a property over a buffer", scaled, of_class(Sub, "scale", property(lambda s: 9.0)), says=DEFINES, torch_serves=True)
module("the class over a name that the code makes", made_name, of_class(Sub, "layer0", staticmethod(less)), says=DEFINES, torch_serves=True)
module(
    "a library's class over its parameter",
    lambda n, x: n.inner.lin(x),
    of_class(nn.Linear, "weight", property(lambda s: torch.ones(3, 3))),
    says=DEFINES,
    torch_serves=True,
)
module("a property over a tensor", lambda n, x: x * n.inner.plain, of_class(Sub, "plain", property(lambda s: torch.tensor(11.0))))
module("a property over a number", lambda n, x: x * n.inner.number, of_class(Sub, "number", property(lambda s: 11.0)))
module(
    "__getattribute__ added",
    lambda n, x: x * n.inner.number,
    of_class(Sub, "__getattribute__", lambda s, name: 12.0 if name == "number" else object.__getattribute__(s, name)),
)
module(
    "__getattr__ added",
    act,
    of_class(Sub, "__getattr__", lambda s, name: less if name == "act" else nn.Module.__getattr__(s, name)),
)
module(
    "__class__ assigned",
    lambda n, x: n.inner.helper(x),
    (lambda n: setattr(n.inner, "__class__", Other), lambda n: setattr(n.inner, "__class__", Sub)),
)
module("__bases__ assigned", lambda n, x: n.inner.helper(x), of_type(SubLate, (NewBase,), "__bases__"), SubLate)
module("what super() finds", lambda n, x: n.inner.helper(x), of_class(Late, "helper", lambda s, x: x - 5), SubLate)


class Around(nn.Module):
    """Has what its model has, as adapters do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Inner()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)

    def forward(self, x: torch.Tensor) -> Any:
        return self.helper(x) * self.scale


def around(name: str, change: Change) -> None:
    def make() -> tuple[Any, Any]:
        net = Around()
        return net, net

    CASES[f"around: {name}"] = Case(make, *change)


around("its own entry", own("scale", torch.tensor(9.0)))
around("its own buffer", entry(lambda n: n._buffers, "scale", torch.tensor(9.0)))
around("the model's entry", own("scale", torch.tensor(9.0), lambda n: n.model))
around("the model", own("model", types.SimpleNamespace(scale=3.0, helper=less)))


# -- plain objects


class Constant:
    def __get__(self, instance: Any, owner: Any) -> float:
        return 5.0


class Base:
    k = 2.0
    fives = Constant()
    t = torch.tensor(4.0)

    def __init__(self) -> None:
        self.a = 3.0

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.a

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 20

    @functools.cached_property
    def cached(self) -> float:
        return 8.0


class Thing(Base):
    pass


@dataclasses.dataclass
class Record:
    a: float = 2.0

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.a


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: float = 2.0

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.a


class Slots:
    __slots__ = ("__dict__", "a")
    k = 4.0

    def __init__(self) -> None:
        self.a = 3.0


class Meta(type):
    level = 6.0

    def lifted(cls, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class OtherMeta(Meta):
    level = 66.0


class Made(metaclass=Meta):
    z = 2.0


class Color(enum.Enum):
    RED = 1

    def weight(self) -> float:
        return float(self.value)


class Pair(collections.namedtuple("Pair", "a b")):
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.a


class Table(dict):  # type: ignore[type-arg]
    k = 3.0


class Row(list):  # type: ignore[type-arg]
    k = 3.0


class Answers:
    def __getattr__(self, name: str) -> float:
        if name == "q":
            return 6.0
        raise AttributeError(name)


class Called:
    k = 3.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k


class ModuleWithProperty(types.ModuleType):
    @property
    def value(self) -> float:
        return 12.0


namespace = types.ModuleType("lookup_namespace")
namespace.value = 2.0  # type: ignore[attr-defined]
sys.modules["lookup_namespace"] = namespace


def function(x: torch.Tensor) -> torch.Tensor:
    return x


def caught(o: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return x * o.missing
    except AttributeError:
        return x * 2.0


def plain(name: str, make_object: Callable[[], Any], program: Callable[..., Any], change: Change, **facts: Any) -> None:
    def make() -> tuple[Any, Any]:
        held = make_object()
        return lambda x: program(held, x), held

    CASES[f"object: {name}"] = Case(make, *change, **facts)


plain("a number of the class", Thing, lambda o, x: x * o.k, own("k", 9.0), **served)
plain("a tensor of the class", Thing, lambda o, x: x * o.t, own("t", torch.tensor(9.0)), **served)
plain("a method", Thing, lambda o, x: o.method(x), own("method", less), **served)
plain("a static method", Thing, lambda o, x: o.static(x), own("static", less), **served)
plain("a cached property", Thing, lambda o, x: x * o.cached, own("cached", 1.0), misses=None)
plain("a descriptor", Thing, lambda o, x: x * o.fives, own("fives", 1.0), says=HIDES)
plain(
    "its dict replaced",
    Thing,
    lambda o, x: x * o.k,
    (lambda o: setattr(o, "__dict__", {**vars(o), "k": 8.0}), lambda o: vars(o).pop("k")),
    **served,
)
plain("a method of a dataclass", Record, lambda o, x: o.method(x), own("method", less), **served)
plain("a field of a dataclass", Record, lambda o, x: o.method(x), (lambda o: vars(o).update(a=6.0), lambda o: vars(o).update(a=2.0)))
plain("a method of a frozen dataclass", Frozen, lambda o, x: o.method(x), own("method", less), **served)
plain("beside slots", Slots, lambda o, x: x * o.k, own("k", 9.0), **served)
plain("behind a slot", Slots, lambda o, x: x * o.a, entry(vars, "a", 9.0), misses=False)
plain("a property over a slot", Slots, lambda o, x: x * o.a, of_class(Slots, "a", property(lambda s: 12.0)))
plain("a property over an entry", Thing, lambda o, x: x * o.a, of_class(Thing, "a", property(lambda s: 12.0)))
plain("the class over its base", Thing, lambda o, x: x * o.k, of_class(Thing, "k", 12.0))
plain("a default of getattr", types.SimpleNamespace, lambda o, x: x * getattr(o, "b", 3.0), own("b", 9.0))
plain("what __getattr__ answers", Answers, lambda o, x: x * o.q, own("q", 9.0), says=HIDES)
plain("the class over what __getattr__ answers", Answers, lambda o, x: x * o.q, of_class(Answers, "q", 9.0))
plain("of what is called", Called, lambda o, x: o(x), own("k", 9.0), **served)
plain("a method of a dict", lambda: Table(a=2.0), lambda o, x: x * o.get("a"), own("get", lambda key: 9.0), says=HIDES)
plain("a method of a list", lambda: Row([1, 2]), lambda o, x: x * o.index(2), own("index", lambda value: 9.0), says=HIDES)
plain("a number of a list's class", lambda: Row([1]), lambda o, x: x * o.k, own("k", 9.0), says=HIDES)
plain("a method of a tuple", lambda: Pair(1.0, 2.0), lambda o, x: o.method(x), own("method", less))
plain("a field of a tuple", lambda: Pair(1.0, 2.0), lambda o, x: o.method(x), of_class(Pair, "a", property(lambda s: 12.0)))
plain("a method of an enum", lambda: Color.RED, lambda o, x: x * o.weight(), own("weight", lambda: 12.0))
plain(
    "a method of an enum's class", lambda: Color.RED, lambda o, x: x * o.weight(), of_class(Color, "weight", lambda s: 12.0), says=DEFINES
)
plain(
    "a method of the metaclass", lambda: Made, lambda o, x: o.lifted(x), of_class(Meta, "lifted", lambda cls, x: x - 1), says="Meta.lifted"
)
plain("data of the metaclass", lambda: Made, lambda o, x: x * o.level, of_class(Meta, "level", 12.0))
plain("the class over its metaclass", lambda: Made, lambda o, x: o.lifted(x), of_class(Made, "lifted", staticmethod(less)), says=DEFINES)
plain("a property of the metaclass", lambda: Made, lambda o, x: x * o.z, of_class(Meta, "z", property(lambda c: 12.0)))
plain("the metaclass assigned", lambda: Made, lambda o, x: x * o.level, of_type(Made, OtherMeta))
plain("the type of an instance", Made, lambda o, x: x * type(o).z, of_class(Meta, "z", property(lambda c: 12.0)))
plain("a method of a tensor", lambda: torch.ones(3), lambda o, x: x + o.cos(), own("cos", lambda: 12.0), says=HIDES)
plain("an attribute of a function", lambda: function, lambda o, x: x * getattr(o, "k", 2.0), own("k", 9.0))
plain("whether a function has one", lambda: function, lambda o, x: x * (2.0 if hasattr(o, "h") else 3.0), own("h", 9.0))
plain("an AttributeError of a function", lambda: function, caught, own("missing", 9.0))
plain("whether a module of Python has one", lambda: namespace, lambda o, x: x * (2.0 if hasattr(namespace, "h") else 3.0), own("h", 9.0))
plain("the class of a module of Python", lambda: namespace, lambda o, x: x * namespace.value, of_type(namespace, ModuleWithProperty))  # type: ignore[attr-defined]
