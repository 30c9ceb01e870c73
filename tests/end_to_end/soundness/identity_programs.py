"""Programs that tell one object from two equal ones. Run by identity_worker.py, in processes of their own.

A case gives what is called and with what, for "two" (the objects are different) and for "same" (they are one). Wherever Python's answer
does not depend on that, both calls are here to show that it does not.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
CASES: dict[str, Callable[[bool], Call]] = {}
"""Name -> what makes a call; its argument: whether the objects are one."""
FREEZE: set[str] = set()
"""Cases that run under `options={"freeze": True}`, too."""


def X() -> torch.Tensor:
    return torch.tensor([1.0, 2.0])


def case(name: str, freeze: bool = False) -> Callable[[Callable[[bool], Call]], Callable[[bool], Call]]:
    def add(make: Callable[[bool], Call]) -> Callable[[bool], Call]:
        assert name not in CASES
        CASES[name] = make
        if freeze:
            FREEZE.add(name)
        return make

    return add


class Thing:
    """Compared by identity."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value
        self.items: list[float] = []

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def pair(make: Callable[[], Any], same: bool) -> tuple[Any, Any]:
    one = make()
    return one, one if same else make()


# -- two arguments, written by the one and read by the other, or compared


def list_append(x, a, b):
    a.append(1.0)
    return x * len(b)


def list_item(x, a, b):
    a[0] = 5.0
    return x * b[0]


def dict_item(x, a, b):
    a["n"] = 3
    return x * b.get("n", 7)


def dict_pop(x, a, b):
    a.pop("k")
    return x * len(b)


def set_add(x, a, b):
    a.add(5)
    return x * len(b)


def set_attribute(x, a, b):
    a.value = 3.0
    return x * b.value


def deleted_attribute(x, a, b):
    del a.value
    return x * (2 if hasattr(b, "value") else 3)


def method_appends(x, a, b):
    a.items.append(1.0)
    return x * (len(b.items) + 2)


def compared(x, a, b):
    if a is b:
        return x * 2
    return x * 3


def not_compared(x, a, b):
    return x * 2 if a is not b else x * 3


def equal(x, a, b):
    return x * 2 if a == b else x * 3


def unequal(x, a, b):
    return x * 2 if a != b else x * 3


def ids(x, a, b):
    return x * 2 if id(a) == id(b) else x * 3


def operator_is(x, a, b):
    return x * 2 if operator.is_(a, b) else x * 3


def in_list(x, a, b):
    return x * 2 if a in [None, b] else x * 3


def in_tuple(x, a, b):
    return x * 2 if a not in (b,) else x * 3


def index(x, a, b):
    return x * [b, a, a].index(a)


def count(x, a, b):
    return x * [b, a].count(a)


def keyed(x, a, b):
    return x * {a: 2}.get(b, 3)


def of_set(x, a, b):
    return x * len({a, b})


def of_dict(x, a, b):
    return x * len({a: 1, b: 2})


def max_of(x, a, b):
    return x * len(dict.fromkeys([a, b, a]))


def shallow(x, a, b):
    c = copy.copy(a)
    c.value = 4.0
    a.value += 1
    return x * c.value * b.value


def through_callee(x, a, b):
    _fill(a)
    return x * len(b)


def _fill(a):
    a.extend([1.0, 2.0])


def breaks(x, a, b):
    a.append(1.0)
    torch._dynamo.graph_break()
    return x * len(b)


def breaks_late(x, a, b):
    y = x * len(b)
    torch._dynamo.graph_break()
    a.append(1.0)
    return y * len(b)


def sorts(x, a, b):
    a.sort()
    return x * b[0]


def callables(x, a, b):
    return a(x) * 2 if a is b else b(a(x))


@dataclasses.dataclass
class Fields:
    n: float = 1.0


def fields(x, a, b):
    a.n = 4.0
    return x * b.n


class Pair(NamedTuple):
    first: list[float]
    second: list[float]


def named(x, pair):
    pair.first.append(1.0)
    return x * len(pair.second)


ARGUMENTS: list[tuple[str, Callable[..., Any], Callable[[], Any]]] = [
    ("list append", list_append, list),
    ("list item", list_item, lambda: [1.0, 2.0]),
    ("list sort", sorts, lambda: [3.0, 2.0]),
    ("list compared", compared, list),
    ("list ids", ids, list),
    ("dict item", dict_item, dict),
    ("dict pop", dict_pop, lambda: {"k": 1}),
    ("dict compared", not_compared, dict),
    ("ordered dict", dict_item, collections.OrderedDict),
    ("default dict", dict_item, lambda: collections.defaultdict(int)),
    ("set add", set_add, set),
    ("set compared", compared, set),
    ("deque append", list_append, collections.deque),
    ("object set", set_attribute, Thing),
    ("object deleted", deleted_attribute, Thing),
    ("object's list", method_appends, Thing),
    ("object compared", compared, Thing),
    ("object equal", equal, Thing),
    ("object unequal", unequal, Thing),
    ("object ids", ids, Thing),
    ("object by operator", operator_is, Thing),
    ("object in list", in_list, Thing),
    ("object not in tuple", in_tuple, Thing),
    ("object index", index, Thing),
    ("object count", count, Thing),
    ("object as key", keyed, Thing),
    ("object in set", of_set, Thing),
    ("object in dict", of_dict, Thing),
    ("object in fromkeys", max_of, Thing),
    ("object copied", shallow, Thing),
    ("module compared", compared, Scale),
    ("module in list", in_list, Scale),
    ("module as key", keyed, Scale),
    ("module called", lambda x, a, b: b(a(x)), Scale),
    ("dataclass", fields, Fields),
    ("callee", through_callee, list),
    ("break", breaks, list),
    ("late break", breaks_late, list),
    ("tuple of lists", compared, lambda: ([], 1)),
    ("closure", callables, lambda: _closure(2.0)),
    ("partial", callables, lambda: functools.partial(torch.mul, other=2.0)),
    ("bound method", callables, lambda: Thing(2.0).method),
]


def _closure(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def scaled(x):
        return x * factor

    return scaled


for _name, _program, _make in ARGUMENTS:
    CASES[_name] = lambda same, program=_program, make=_make: (program, (X(), *pair(make, same)), {})


# -- ways to an object


@case("nested in arguments")
def _(same: bool) -> Call:
    def program(x, a, b):
        a["deep"][0].append(1.0)
        return x * len(b[1])

    one, other = pair(list, same)
    return program, (X(), {"deep": [one]}, (0, other)), {}


@case("attribute and argument")
def _(same: bool) -> Call:
    def program(x, a, b):
        a.items.append(1.0)
        return x * len(b)

    thing = Thing()
    return program, (X(), thing, thing.items if same else []), {}


@case("attributes of two objects")
def _(same: bool) -> Call:
    def program(x, a, b):
        a.items.append(1.0)
        return x * len(b.items)

    one, other = Thing(), Thing()
    if same:
        other.items = one.items
    return program, (X(), one, other), {}


@case("keyword arguments")
def _(same: bool) -> Call:
    def program(x, *, p, q):
        p.append(1.0)
        return x * len(q)

    p, q = pair(list, same)
    return program, (X(),), {"q": q, "p": p}


@case("*args")
def _(same: bool) -> Call:
    def program(x, *given):
        given[0].append(1.0)
        return x * len(given[-1])

    return program, (X(), *pair(list, same)), {}


@case("**kwargs")
def _(same: bool) -> Call:
    def program(x, **given):
        given["p"]["n"] = 2
        return x * len(given["q"])

    p, q = pair(dict, same)
    return program, (X(),), {"p": p, "q": q}


@case("free variable and argument")
def _(same: bool) -> Call:
    seen: list[float] = []

    def program(x, a):
        seen.append(1.0)
        return x * len(a)

    return program, (X(), seen if same else []), {}


@case("two free variables")
def _(same: bool) -> Call:
    one, other = pair(Thing, same)

    def program(x):
        one.value += 1.0
        return x * other.value

    return program, (X(),), {}


SHARED: list[float] = []
ALSO: list[float] = []


def with_global(x, a):
    a.append(1.0)
    return x * len(SHARED)


def two_globals(x):
    SHARED.append(1.0)
    return x * len(ALSO)


@case("global and argument")
def _(same: bool) -> Call:
    SHARED.clear()
    return with_global, (X(), SHARED if same else []), {}


@case("two globals")
def _(same: bool) -> Call:
    SHARED.clear()
    globals()["ALSO"] = SHARED if same else []
    return two_globals, (X(),), {}


@case("a default")
def _(same: bool) -> Call:
    def program(x, a, seen=[]):  # noqa: B006 - it is the case
        seen.append(1.0)
        return x * len(a)

    return program, (X(), program.__defaults__[0] if same else []), {}


class Holder:
    shared: list[float] = []
    also: list[float] = []


@case("class attribute and argument")
def _(same: bool) -> Call:
    def program(x, a):
        Holder.shared.append(1.0)
        return x * len(a)

    Holder.shared = []
    return program, (X(), Holder.shared if same else []), {}


@case("class attribute of an object")
def _(same: bool) -> Call:
    def program(x, holder, a):
        holder.shared.append(1.0)
        return x * len(a)

    Holder.shared = []
    return program, (X(), Holder(), Holder.shared if same else []), {}


@case("two class attributes")
def _(same: bool) -> Call:
    def program(x, holder):
        holder.shared.append(1.0)
        return x * len(holder.also)

    Holder.shared, Holder.also = pair(list, same)
    return program, (X(), Holder()), {}


@case("container that holds it twice")
def _(same: bool) -> Call:
    def program(x, things):
        things[0].value = 5.0
        return x * things[1].value * things[2].value

    one, other = pair(Thing, same)
    return program, (X(), [one, other, Thing(2.0)]), {}


@case("values of a dict")
def _(same: bool) -> Call:
    def program(x, things):
        return x * (2 if things["a"] is things["b"] else 3)

    one, other = pair(Thing, same)
    return program, (X(), {"a": one, "b": other}), {}


@case("named tuple")
def _(same: bool) -> Call:
    return named, (X(), Pair(*pair(list, same))), {}


@case("parent or another")
def _(same: bool) -> Call:
    def program(x, a):
        a.parent.value = 3.0
        return x * a.value

    thing = Thing()
    thing.parent = thing if same else Thing()
    return program, (X(), thing), {}


@case("class made in a function")
def _(same: bool) -> Call:
    def program(x, a, b):
        return x * (2 if type(a) is type(b) else 3)

    def make() -> Any:
        class Local:
            pass

        return Local

    one, other = pair(make, same)
    return program, (X(), one(), other()), {}


@case("cell of two functions")
def _(same: bool) -> Call:
    def program(x, add, get):
        add()
        return x * get()

    def make() -> Any:
        n = 1

        def add():
            nonlocal n
            n += 1

        def get():
            return n

        return add, get

    one, other = pair(make, same)
    return program, (X(), one[0], other[1]), {}


@case("cell of the program")
def _(same: bool) -> Call:
    def make() -> Any:
        n = 1

        def add():
            nonlocal n
            n += 1

        def program(x, add):
            add()
            return x * n

        return program, add

    one, other = pair(make, same)
    return one[0], (X(), other[1]), {}


@case("set of objects")
def _(same: bool) -> Call:
    def program(x, a, things):
        return x * (2 if a in things else 3)

    one, other = pair(Thing, same)
    return program, (X(), one, {other}), {}


@case("dict of objects")
def _(same: bool) -> Call:
    def program(x, a, things):
        return x * things.get(a, 3)

    one, other = pair(Thing, same)
    return program, (X(), one, {other: 2}), {}


@case("iterator")
def _(same: bool) -> Call:
    def program(x, a, b):
        next(a)
        return x * next(b)

    return program, (X(), *pair(lambda: iter(range(2, 9)), same)), {}


@case("shared __dict__")
def _(same: bool) -> Call:
    def program(x, a, b):
        a.value = 3.0
        return x * b.value

    one, other = Thing(), Thing()
    if same:
        other.__dict__ = one.__dict__
    return program, (X(), one, other), {}


# -- modules


class Attributes(torch.nn.Module):
    def __init__(self, same: bool) -> None:
        super().__init__()
        self.a, self.b = pair(list, same)

    def forward(self, x):
        self.a.append(1.0)
        return x * len(self.b)


class Layers(torch.nn.Module):
    def __init__(self, same: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(pair(Scale, same))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class ComparedLayers(Layers):
    def forward(self, x):
        return x * (2 if self.layers[0] is self.layers[1] else 3)


class CountedModules(Layers):
    def forward(self, x):
        return x * len(list(self.modules()))


class Registers(torch.nn.Module):
    def __init__(self, same: bool) -> None:
        super().__init__()
        self.config = Thing()
        self.layer = Scale()
        self.layer.config = self.config if same else Thing()

    def forward(self, x):
        self.config.value = 6.0
        return x * self.layer.config.value


for _module in (Attributes, Layers, ComparedLayers, CountedModules, Registers):
    CASES[f"module {_module.__name__}"] = lambda same, module=_module: (module(same).eval(), (X(),), {})


# -- weights


def whole(layer: torch.nn.Linear, start: int) -> torch.nn.Linear:
    """The layer with small whole numbers as its weights: sums of them are exact in any order."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((torch.arange(parameter.numel()) % 5 + start).view(parameter.shape))
    return layer


class Weights(torch.nn.Module):
    def __init__(self, same: bool) -> None:
        super().__init__()
        self.inp, self.out = whole(torch.nn.Linear(2, 2, bias=False), 1), whole(torch.nn.Linear(2, 2, bias=False), 3)
        if same:
            self.out.weight = self.inp.weight
        self.register_buffer("one", torch.tensor([1.0, 4.0]))
        self.register_buffer("two", self.one if same else torch.tensor([1.0, 4.0]))

    def forward(self, x):
        y = self.out(self.inp(x))
        return y if self.out.weight is self.inp.weight else y * 100


class WeightsUsed(Weights):
    def forward(self, x):
        return self.out(self.inp(x)) + self.inp(x)


class WeightsSummed(Weights):
    def forward(self, x):
        total = x
        for weight in self.parameters():
            total = total + weight.sum()
        return total


class WeightsCounted(Weights):
    def forward(self, x):
        return x * (len(list(self.parameters())) + 10 * len(list(self.buffers())))


class WeightsNamed(Weights):
    def forward(self, x):
        return x * len(dict(self.named_parameters(remove_duplicate=False))) + len(dict(self.named_parameters()))


class WeightsAsKeys(Weights):
    def forward(self, x):
        return x * len({self.inp.weight: 1, self.out.weight: 2})


class WeightsById(Weights):
    def forward(self, x):
        return x * (2 if id(self.inp.weight) == id(self.out.weight) else 3)


class WeightsInList(Weights):
    def forward(self, x):
        return x * (2 if any(self.inp.weight is other for other in (self.one, self.out.weight)) else 3)


class BuffersCompared(Weights):
    def forward(self, x):
        return x * (2 if self.one is not self.two else 3)


class BuffersWritten(Weights):
    def forward(self, x):
        self.one.add_(1.0)
        return x * self.two


class BuffersReplaced(Weights):
    def forward(self, x):
        self.one = self.one + 1.0
        return x * self.two + self.one


class ModulesCompared(Weights):
    def __init__(self, same: bool) -> None:
        super().__init__(same)
        if same:
            self.out = self.inp

    def forward(self, x):
        y = self.out(self.inp(x))
        return y if self.out is self.inp else y * 100


class WeightIsView(Weights):
    def __init__(self, same: bool) -> None:
        super().__init__(False)
        weight = self.inp.weight.detach()
        self.out.weight = torch.nn.Parameter(weight[:] if same else weight.clone())

    def forward(self, x):
        return self.out(self.inp(x)) + self.out.weight.sum() + self.inp.weight.sum()


class Merged(torch.nn.Module):
    """Two products of one matrix: `freeze` lays their weights side by side."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.q, self.k = whole(torch.nn.Linear(8, 8), 1), whole(torch.nn.Linear(8, 8), 2)
        if same:
            self.k.weight, self.k.bias = self.q.weight, self.q.bias

    def forward(self, x):
        x = x.repeat(3, 4)
        same = self.q.bias is self.k.bias
        return self.q(x) * (2 if same else 3) + self.k(x)


WEIGHTS = (Weights, WeightsUsed, WeightsSummed, WeightsCounted, WeightsNamed, WeightsAsKeys, WeightsById, WeightsInList, BuffersCompared)
for _module in (*WEIGHTS, BuffersWritten, BuffersReplaced, ModulesCompared, WeightIsView, Merged):
    case(_module.__name__, freeze=True)(lambda same, module=_module: (module(same).eval(), (X(),), {}))


@case("unused tensors compared")
def _(same: bool) -> Call:
    return compared, (X(), *pair(X, same)), {}


@case("used tensors compared")
def _(same: bool) -> Call:
    def program(x, a, b):
        return a * b + (2 if a is b else 3)

    return program, (X(), *pair(X, same)), {}


@case("tensors of a dict compared")
def _(same: bool) -> Call:
    def program(x, given):
        return x * (2 if given["a"] is given["b"] else 3)

    a, b = pair(X, same)
    return program, (X(), {"a": a, "b": b}), {}


@case("tensor and weight compared", freeze=True)
def _(same: bool) -> Call:
    class Owner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", X())

        def forward(self, x, y):
            return x * (2 if y is self.held else 3)

    owner = Owner()
    return owner, (X(), owner.held if same else X()), {}


@case("parameters as arguments")
def _(same: bool) -> Call:
    def program(x, a, b):
        return x * (2 if a is b else 3)

    return program, (X(), *pair(lambda: torch.nn.Parameter(X()), same)), {}


@case("global tensors")
def _(same: bool) -> Call:
    Holder.first, Holder.second = pair(X, same)

    def program(x):
        return x * (2 if Holder.first is Holder.second else 3)

    return program, (X(),), {}


@case("tensor with an attribute")
def _(same: bool) -> Call:
    def program(x, a, b):
        a.note = 5.0
        return x * getattr(b, "note", 3.0)

    return program, (X(), *pair(X, same)), {}
