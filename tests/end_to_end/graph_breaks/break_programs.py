"""Programs that torch.compile cannot capture as one graph, with what calls them. Run by break_worker.py, eagerly and compiled.

Each case: `make()` gives a fresh callable, its state reset; `calls()` the arguments of each call; `state(f)` what a side effect shows in.
`graphs`: how many precast compiles where that is not torch.compile's number, with the reason.
"""

from __future__ import annotations

import functools
import logging
import operator
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft
import torch

Calls = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    make: Callable[[], Callable[..., Any]]
    calls: Callable[[], Calls]
    state: Callable[[Any], Any] = lambda f: None
    graphs: int | None = None
    tolerance: float = 1e-4


CASES: dict[str, Case] = {}


def case(calls: Callable[[], Calls], **more: Any) -> Any:
    def add(make: Callable[[], Callable[..., Any]]) -> Callable[[], Callable[..., Any]]:
        CASES[make.__name__] = Case(make, calls, **more)
        return make

    return add


def vectors(count: int = 3, *shape: int) -> Callable[[], Calls]:
    return lambda: [(torch.randn(shape or (6,)),) for _ in range(count)]


def both_signs() -> Calls:
    return [(torch.randn(5), torch.rand(5) * sign) for sign in (1, -1, 1, -1)]


# -- data-dependent control flow


def bar(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


@case(both_signs)
def data_dependent_bar() -> Callable[..., Any]:
    return bar


@case(vectors())
def item_and_arithmetic() -> Callable[..., Any]:
    def item_and_arithmetic(x: torch.Tensor) -> Any:
        y = x.sin()
        n = int((y > 5).sum().item())
        return y * (n + 1), n

    return item_and_arithmetic


# -- calls out of the graph


@case(vectors())
def print_and_logging() -> Callable[..., Any]:
    def print_and_logging(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("in between", tuple(y.shape))
        z = y.cos() + x
        logging.getLogger("break_programs").info("logged %s", tuple(z.shape))
        return z * y

    return print_and_logging


@case(vectors(3, 8))
def f1_f2_f3_scipy_dct() -> Callable[..., Any]:
    return f1


def f1(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    return f2(y) + y


def f2(x: torch.Tensor) -> torch.Tensor:
    z = f3(x * 2)
    return z.cos() * x


def f3(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y = torch.from_numpy(scipy.fft.dct(y.numpy()))
    return y * 0.5 + x


@case(vectors(3, 4))
def numpy_call() -> Callable[..., Any]:
    def numpy_call(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        norm = np.linalg.norm(y.numpy())
        return torch.from_numpy(np.asarray(norm)) * y.cos()

    return numpy_call


@case(vectors())
def a_warning() -> Callable[..., Any]:
    def a_warning(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        warnings.warn("between graphs", stacklevel=1)
        return y.sin() * x

    return a_warning


@torch.compiler.disable(recursive=False)
def complex_conjugate(z: torch.Tensor) -> torch.Tensor:
    return torch.conj(z)


@case(lambda: [(torch.randn(4),) for _ in range(3)])
def complex_function() -> Callable[..., Any]:
    def complex_function(real: torch.Tensor) -> torch.Tensor:
        z = torch.complex(real * 2, real.cos())
        c = complex_conjugate(z)
        return (c * z).real + real

    return complex_function


@case(vectors())
def disabled_callee() -> Callable[..., Any]:
    @torch.compiler.disable
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    def disabled_callee(x: torch.Tensor) -> torch.Tensor:
        return opaque(x.sin()).cos()

    return disabled_callee


# -- nested calls


def leaf(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    print("leaf")
    return y * 2


def middle(x: torch.Tensor) -> torch.Tensor:
    return leaf(x + 1) - x


@case(vectors())
def nested_calls() -> Callable[..., Any]:
    def nested_calls(x: torch.Tensor) -> torch.Tensor:
        return middle(x.sin()).cos()

    return nested_calls


class InnerModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 6))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        print("inner")
        return y.sin() + self.weight


class OuterModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = InnerModule()
        self.linear = torch.nn.Linear(6, 6)
        with torch.no_grad():
            self.linear.weight.copy_(torch.eye(6) * 0.5)
            self.linear.bias.fill_(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.inner(x.cos())).tanh()


@case(vectors())
def outer_module() -> Callable[..., Any]:
    return OuterModule().eval()


class BreakInForward(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(()))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(0.125)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        self.seen += 1
        print("between the layers")
        x = self.second(x) + self.first.bias
        self.seen += x.sum() * 0 + 1
        return x


@case(vectors(), state=lambda f: f.seen.item())
def module_with_a_break() -> Callable[..., Any]:
    return BreakInForward().eval()


@case(vectors())
def closures_and_nonlocal() -> Callable[..., Any]:
    def closures_and_nonlocal(x: torch.Tensor) -> Any:
        n = 3
        y = x * 2

        def inner(z: torch.Tensor) -> torch.Tensor:
            nonlocal n
            n += 1
            return z * n + y

        print("first")
        r = inner(x).sin()
        print("second")
        return r + inner(x), n

    return closures_and_nonlocal


@case(vectors(), state=lambda f: f.__closure__[0].cell_contents)
def a_counter_in_a_closure() -> Callable[..., Any]:
    seen: list[int] = []

    def a_counter_in_a_closure(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        seen.append(len("xx"))
        print("counted")
        return y + 1

    return a_counter_in_a_closure


@case(vectors())
def a_function_made_between() -> Callable[..., Any]:
    def a_function_made_between(x: torch.Tensor) -> torch.Tensor:
        y = x + 1

        def add(z: torch.Tensor, by: int = 2, *, scale: float = 0.5) -> torch.Tensor:
            return z * scale + by + y

        print(add.__name__)
        return add(y.sin())

    return a_function_made_between


# -- side effects


class Holder:
    def __init__(self) -> None:
        self.total = 0
        self.log: list[str] = []
        self.table: dict[str, Any] = {"a": 1}


@case(vectors(), state=lambda f: (f.keywords["holder"].log, f.keywords["holder"].table["a"], f.keywords["holder"].last.shape))
def attribute_list_and_dict() -> Callable[..., Any]:
    return functools.partial(_attribute_list_and_dict, holder=Holder())


def _attribute_list_and_dict(x: torch.Tensor, holder: Holder) -> torch.Tensor:
    y = x.sin()
    holder.log.append("before")
    holder.last = y
    print(len(holder.log))
    holder.table["a"] = "seen"
    z = holder.last + 1
    holder.log.append("after")
    del holder.log[0]
    return z * y


COUNT = 0
REGISTRY: dict[str, Any] = {}


@case(vectors(), state=lambda f: (COUNT, sorted(REGISTRY)))
def mutated_globals() -> Callable[..., Any]:
    global COUNT
    COUNT = 0
    REGISTRY.clear()
    return _mutated_globals


def _mutated_globals(x: torch.Tensor) -> torch.Tensor:
    global COUNT
    y = x * 2
    COUNT = 7
    print("global is", COUNT)
    REGISTRY["seen"] = y
    return y.sin() + COUNT


@case(vectors(4), state=lambda f: [(k.shape, v.shape) for k, v in f.keywords["cache"]])
def a_cache_that_grows() -> Callable[..., Any]:
    return functools.partial(_a_cache_that_grows, cache=[])


def _a_cache_that_grows(x: torch.Tensor, cache: list[Any]) -> torch.Tensor:
    k, v = x * 2, x + 1
    print("cache", len(cache) >= 0)
    cache.append((k, v))
    keys = torch.stack([pair[0] for pair in cache])
    return (keys @ x).softmax(0) @ torch.stack([pair[1] for pair in cache])


@case(vectors())
def random_state() -> Callable[..., Any]:
    random.seed(5)

    def random_state(x: torch.Tensor) -> Any:
        y = x * 2
        n = random.randint(0, 3)
        print("drawn")
        return y + n, random.randint(0, 100)

    return random_state


@case(vectors())
def drawn_in_the_graph() -> Callable[..., Any]:
    random.seed(6)

    def drawn_in_the_graph(x: torch.Tensor) -> torch.Tensor:
        return x * random.uniform(2, 3) + random.randrange(5)

    return drawn_in_the_graph


@case(vectors())
def generator_method() -> Callable[..., Any]:
    random.seed(7)

    def generator_method(x: torch.Tensor) -> torch.Tensor:
        return (x + 1) * random.random()  # a method in C of an object without a name of its own

    return generator_method


@case(vectors())
def numpy_rand() -> Callable[..., Any]:
    np.random.seed(8)

    def numpy_rand(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("drawn")
        return y * float(np.random.rand())

    return numpy_rand


@case(vectors())
def numpy_randint() -> Callable[..., Any]:
    np.random.seed(9)

    def numpy_randint(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        return y * int(np.random.randint(1, 9))

    return numpy_randint


DIGIT = re.compile(r"a(\d)")


@case(vectors())
def compiled_pattern() -> Callable[..., Any]:
    def compiled_pattern(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if DIGIT.match("a1") else x - 1

    return compiled_pattern


@case(vectors())
def torch_random_state() -> Callable[..., Any]:
    torch.manual_seed(3)

    def torch_random_state(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.rand(6)
        print("drawn")
        return y * torch.randn(6)

    return torch_random_state


# -- context managers, generators, polyfills, exceptions


@case(vectors(), tolerance=0.02)  # bfloat16 has 8 bits
def no_grad_and_autocast() -> Callable[..., Any]:
    def no_grad_and_autocast(x: torch.Tensor) -> Any:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.outer(x, x) @ x
            print("inside", torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
            z = torch.outer(x, x) @ y.float()
        print("outside", torch.is_autocast_enabled("cpu"))
        return y.float(), z.float() + x

    return no_grad_and_autocast


class Note:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __enter__(self) -> None:
        self.log.append("in")

    def __exit__(self, *exc: object) -> None:
        self.log.append("out")


@case(vectors(), state=lambda f: f.keywords["log"])
def a_context_manager_of_the_user() -> Callable[..., Any]:
    return functools.partial(_a_context_manager_of_the_user, log=[])


def _a_context_manager_of_the_user(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    y = x.sin()
    with Note(log):
        print("inside")
        y = scale(y)
    return y + 1


def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 3 + x.cos()


def halves(x: torch.Tensor) -> Any:
    yield x[:3] * 2
    print("second half")
    yield x[3:] * 3


@case(vectors())
def a_generator() -> Callable[..., Any]:
    def a_generator(x: torch.Tensor) -> torch.Tensor:
        first, second = halves(x.sin())
        return first + second.cos()

    return a_generator


@case(vectors())
def index_of() -> Callable[..., Any]:
    def index_of(x: torch.Tensor) -> torch.Tensor:
        position = operator.indexOf([1, 2, 3, 4], 3)
        print("at", position)
        return x.sin() + operator.indexOf((position, 5), 5)

    return index_of


@case(vectors())
def a_loop_with_a_break_inside() -> Callable[..., Any]:
    def a_loop_with_a_break_inside(x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            x = scale(x).sin()
            print("turn", i)
        return x + 1

    return a_loop_with_a_break_inside


@case(both_signs)
def try_and_except() -> Callable[..., Any]:
    def try_and_except(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = scale(a)
        try:
            if b.sum() < 0:
                raise ValueError("negative")
            y = scale(y)
        except ValueError as error:
            print("caught", error)
            y = y - scale(b)
        return y

    return try_and_except


@case(vectors())
def an_exception_out_of_a_break() -> Callable[..., Any]:
    def an_exception_out_of_a_break(x: torch.Tensor) -> Any:
        y = x.sin()
        try:
            return int("no number") + y
        except ValueError:
            return y.cos()

    return an_exception_out_of_a_break


@case(vectors())
def sorted_with_a_key() -> Callable[..., Any]:
    def sorted_with_a_key(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        order = sorted(y.numpy().tolist(), key=lambda v: -v)
        return y * 2 + len(order)

    return sorted_with_a_key


class Positions(torch.nn.Module):
    """Of whose decorated methods each holds a method of its decorator."""

    @torch.no_grad()
    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)

    @torch.set_grad_enabled(False)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(x) * 0.5


class BrokenInside(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + self.positions(x)
        if y.sum() > 100:
            y = y * 2
        return y


@case(vectors())
def methods_decorated_with_a_grad_mode() -> Callable[..., Any]:
    inner = BrokenInside()

    def methods_decorated_with_a_grad_mode(x: torch.Tensor) -> torch.Tensor:
        return inner(x) * 2 + x.cos()

    return methods_decorated_with_a_grad_mode
