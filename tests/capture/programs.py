"""A table of callables that capture must handle: name -> (callable, args, kwargs). Each row makes its objects anew: some mutate."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

SCALE = 3.0
WEIGHT = torch.linspace(-1, 1, 4)
TABLE = {"a": 2.0, "b": torch.full((4,), 0.5)}
COUNTER = {"calls": 0}
Pair = namedtuple("Pair", "left right")


@dataclass
class Result:
    logits: torch.Tensor
    label: str


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * SCALE


def plain(x: Any, y: Any, k: int = 2) -> Any:
    return torch.relu(x) * k + y * SCALE


def uses_helper(x: Any) -> Any:
    return helper(x) + helper(x + 1)


def nested_results(x: Any) -> Any:
    return {"a": [x + 1, (x * 2, None)], "p": Pair(x - 1, 3), "s": "text"}


def kwargs_tree(batch: Any, *, scale: float = 1.0, mode: str = "sum") -> Any:
    out = batch["x"] * scale + batch["more"][0]
    return out.sum() if mode == "sum" else out


def varargs(*xs: Any, **named: Any) -> Any:
    return sum(xs) + named["bias"]


def mutates_input(x: Any, y: Any) -> Any:
    x.add_(y)
    return x * 2


def mutates_and_returns(x: Any) -> Any:
    return x.mul_(2)


def mutates_view(x: Any) -> Any:
    x[0].zero_()
    return x.sum()


def returns_input(x: Any, y: Any) -> Any:
    return x, x + y


def returns_view(x: Any) -> Any:
    return x[1:], x.t(), x.view(-1)


def view_of_mutated(x: Any) -> Any:
    x.add_(1)
    return x[0], x.t()


def outputs_share(x: Any) -> Any:
    y = x + 1
    return y, y[0], y.t()


def shared_intermediate(x: Any) -> Any:
    y = x * 2
    return y[0], y[1]


def same_output_twice(x: Any) -> Any:
    y = x + 1
    return y, y


def dtype_view(x: Any) -> Any:
    return x.view(torch.int32)


def split_parts(x: Any) -> Any:
    return (x * 2).split(2)[1:], torch.unsafe_chunk(x + 1, 2), torch.unsafe_split(x, 2)


def dropout_off(x: Any) -> Any:
    return nn.functional.dropout(x, 0.5, False), x + 1


def captured_arguments(x: Any, w: Any, b: Any) -> Any:
    return (lambda h: (h, nn.functional.layer_norm(h, (4,), w, b)))(x + 1)


def storage_offsets(x: Any) -> Any:
    return (
        x.as_strided((2, 2), (4, 1), 5) + 1,
        x[1:].as_strided((2, 2), (4, 1), 6) * 2,
        x.as_strided((2, 2), (4, 1)),
        x.as_strided((2,), (1,), 6),
    )


def inverse(x: Any) -> Any:
    return torch.linalg.inv(x + 5 * torch.eye(4))


def global_tensor(x: Any) -> Any:
    return x * WEIGHT + TABLE["b"] * TABLE["a"]


def literal_tensor(x: Any) -> Any:
    return x + torch.tensor([1.0, 2.0, 3.0, 4.0])


def constants(x: Any) -> Any:
    return x * math.pi + x.shape[0] + float("inf") * 0 if x.dim() > 5 else x * math.pi + x.shape[0]


def writes_global(x: Any) -> Any:
    COUNTER["calls"] += 1
    return x + COUNTER["calls"]


def appends(x: Any, sink: list[Any]) -> Any:
    sink.append(x + 1)
    return len(sink)


def no_grad_inside(x: Any) -> Any:
    with torch.no_grad():
        return x * 2


def enum_like(x: Any, dtype: torch.dtype, device: torch.device) -> Any:
    return x.to(dtype).to(device)


def string_switch(x: Any, how: str) -> Any:
    return {"relu": torch.relu, "tanh": torch.tanh}[how](x)


def nothing_but_numbers(n: int) -> int:
    return n + 1


def integer_result(x: Any) -> Any:
    return x.shape[0] * 2, x + 1


def ordered(d: Any) -> Any:
    return OrderedDict((k, v + 1) for k, v in d.items())


def dataclass_result(x: Any) -> Result:
    return Result(x * 2, "two")


def inner_function(x: Any) -> Any:
    def inner(y: Any) -> Any:
        return y + x

    return inner(x * 2)


def returns_function(x: Any) -> Any:
    y = x + 1

    def later(z: Any) -> Any:
        return y + z

    return later


def comprehension(xs: Any) -> Any:
    return [x * i for i, x in enumerate(xs)]


def dropout_eval(x: Any) -> Any:
    return nn.functional.dropout(x, 0.5, False) + 0, nn.functional.layer_norm(x, (4,))


def softmax_attention(q: Any, k: Any, v: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def default_tensor(x: Any, bias: torch.Tensor = WEIGHT) -> Any:
    return x + bias


def strided_mutation(x: Any) -> Any:
    x.mul_(3)
    return x.view(-1) if x.is_contiguous() else x.t()


def make_closure(factor: float, weight: torch.Tensor) -> Callable[..., Any]:
    def closure(x: Any) -> Any:
        return x * factor + weight

    return closure


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("steps", torch.zeros(4))
        self.extra = torch.ones(4)
        self.flag = True

    def forward(self, x: Any, *, double: bool = False) -> Any:
        y = self.norm(torch.relu(self.linear(x))) + self.extra
        return y * 2 if double and self.flag else y

    def other(self, x: Any) -> Any:
        return self.linear(x) - self.steps


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        self.steps += 1
        return self.bn(x) * self.steps


class Reassigning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.state = self.state * 0.9 + x
        return self.state.sum()


class Callable_:
    def __init__(self) -> None:
        self.weight = torch.full((4,), 2.0)

    def __call__(self, x: Any) -> Any:
        return x * self.weight

    def method(self, x: Any, *, plus: float) -> Any:
        return x + plus


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.heads = nn.ModuleDict({"one": nn.Linear(4, 2), "two": nn.Linear(4, 3)})
        self.scales = nn.ParameterList([torch.ones(4), torch.full((4,), 2.0)])

    def forward(self, x: Any, head: str) -> Any:
        for block in self.blocks:
            x = block(x) * self.scales[0]
        return self.heads[head](x)


def hooked() -> nn.Module:
    module = Block().eval()
    module.register_forward_hook(lambda m, a, out: out + 100)
    return module


def _x() -> torch.Tensor:
    return torch.linspace(-2, 2, 16).reshape(4, 4)


Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _same(x: torch.Tensor) -> Made:
    return plain, (x, x), {}


PROGRAMS: dict[str, Callable[[], Made]] = {
    "plain": lambda: (plain, (_x(), _x() + 1), {}),
    "default overridden": lambda: (plain, (_x(), _x()), {"k": 5}),
    "uses helper": lambda: (uses_helper, (_x(),), {}),
    "nested results": lambda: (nested_results, (_x(),), {}),
    "kwargs tree": lambda: (kwargs_tree, ({"x": _x(), "more": [_x()]},), {"scale": 2.5, "mode": "none"}),
    "varargs": lambda: (varargs, (_x(), _x()), {"bias": _x()}),
    "mutates input": lambda: (mutates_input, (_x(), _x()), {}),
    "mutates and returns": lambda: (mutates_and_returns, (_x(),), {}),
    "mutates view": lambda: (mutates_view, (_x(),), {}),
    "returns input": lambda: (returns_input, (_x(), _x()), {}),
    "returns view": lambda: (returns_view, (_x(),), {}),
    "view of mutated": lambda: (view_of_mutated, (_x(),), {}),
    "view of mutated, strided": lambda: (view_of_mutated, (_x().t(),), {}),
    "view of mutated, sliced": lambda: (view_of_mutated, (_x()[:, 1:3],), {}),
    "offset input": lambda: (returns_view, (_x()[1:],), {}),
    "outputs share": lambda: (outputs_share, (_x(),), {}),
    "shared intermediate": lambda: (shared_intermediate, (_x(),), {}),
    "same output twice": lambda: (same_output_twice, (_x(),), {}),
    "dtype view": lambda: (dtype_view, (_x()[1:],), {}),
    "duplicated input": lambda: _same(_x()),
    "parts of a split": lambda: (split_parts, (_x(),), {}),
    "dropout that is off": lambda: (dropout_off, (_x(),), {}),
    "arguments captured by a closure": lambda: (captured_arguments, (_x(), _x()[0], _x()[1]), {}),
    "storage offsets": lambda: (storage_offsets, (_x(),), {}),
    "storage offsets, offset input": lambda: (storage_offsets, (_x()[1:],), {}),
    "linear algebra": lambda: (inverse, (_x(),), {}),
    "global tensor": lambda: (global_tensor, (_x(),), {}),
    "literal tensor": lambda: (literal_tensor, (_x(),), {}),
    "constants": lambda: (constants, (_x(),), {}),
    "writes global": lambda: (writes_global, (_x(),), {}),
    "appends to argument": lambda: (appends, (_x(), []), {}),
    "no_grad inside": lambda: (no_grad_inside, (_x(),), {}),
    "dtype and device": lambda: (enum_like, (_x(), torch.float64, torch.device("cpu")), {}),
    "string switch": lambda: (string_switch, (_x(), "tanh"), {}),
    "integer result": lambda: (integer_result, (_x(),), {}),
    "ordered dict": lambda: (ordered, (OrderedDict(b=_x(), a=_x()),), {}),
    "dataclass result": lambda: (dataclass_result, (_x(),), {}),
    "inner function": lambda: (inner_function, (_x(),), {}),
    "comprehension": lambda: (comprehension, ([_x(), _x(), _x()],), {}),
    "dropout and layer norm": lambda: (dropout_eval, (_x(),), {}),
    "attention": lambda: (softmax_attention, tuple(torch.linspace(-1, 1, 64).reshape(1, 2, 8, 4) * s for s in (1, 2, 3)), {}),
    "default tensor": lambda: (default_tensor, (_x(),), {}),
    "strided mutation": lambda: (strided_mutation, (_x().t(),), {}),
    "bf16": lambda: (plain, (_x().bfloat16(), _x().bfloat16()), {}),
    "empty": lambda: (plain, (torch.empty(0, 4), torch.empty(0, 4)), {}),
    "0-d": lambda: (plain, (torch.tensor(2.0), torch.tensor(3.0)), {}),
    "closure": lambda: (make_closure(1.5, torch.ones(4)), (_x(),), {}),
    "lambda": lambda: (lambda x: x.sin() + 1, (_x(),), {}),
    "partial": lambda: (functools.partial(plain, k=7), (_x(), _x()), {}),
    "partial of partial": lambda: (functools.partial(functools.partial(plain, _x()), k=7), (_x(),), {}),
    "module": lambda: (Block().eval(), (_x(),), {}),
    "module with keyword": lambda: (Block().eval(), (_x(),), {"double": True}),
    "module method": lambda: (Block().eval().other, (_x(),), {}),
    "module.forward": lambda: (Block().eval().forward, (_x(),), {}),
    "buffers written": lambda: (Counting().train(), (_x(),), {}),
    "buffer reassigned": lambda: (Reassigning(), (_x()[0],), {}),
    "tied weights": lambda: (Tied(), (_x(),), {}),
    "nested modules": lambda: (Stack().eval(), (_x(), "two"), {}),
    "hooked module": lambda: (hooked(), (_x(),), {}),
    "callable object": lambda: (Callable_(), (_x(),), {}),
    "bound method": lambda: (Callable_().method, (_x(),), {"plus": 2.0}),
    "sequential": lambda: (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval(), (_x(),), {}),
}
