"""Operators registered through torch.library, of each kind, and programs that call them: name -> program of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "precast_test_ops"


@torch.library.custom_op(f"{NAMESPACE}::scale", mutates_args=())
def scale(x: Tensor, k: float, name: str = "a", n: int = 1) -> Tensor:
    assert name in ("a", "q")
    return x * k * n


@scale.register_fake
def _(x, k, name="a", n=1):
    return torch.empty_like(x)


@torch.library.custom_op(f"{NAMESPACE}::increase", mutates_args=("x",))
def increase(x: Tensor, by: Tensor | None = None) -> None:
    x.add_(1 if by is None else by)


@torch.library.custom_op(f"{NAMESPACE}::pair", mutates_args=())
def pair(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return x.sum(dim), x.amax(dim)


@pair.register_fake
def _(x, dim):
    return x.sum(dim), x.amax(dim)


@torch.library.custom_op(f"{NAMESPACE}::parts", mutates_args=())
def parts(xs: list[Tensor], k: Sequence[int]) -> list[Tensor]:
    return [x * i for x, i in zip(xs, k, strict=True)]


@parts.register_fake
def _(xs, k):
    return [torch.empty_like(x) for x in xs]


@torch.library.custom_op(f"{NAMESPACE}::onto", mutates_args=())
def onto(x: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return x.to(device=device, dtype=dtype, copy=True)


@onto.register_fake
def _(x, device, dtype):
    return torch.empty_like(x, dtype=dtype, device=device)


@torch.library.custom_op(f"{NAMESPACE}::write_both", mutates_args=("xs",))
def write_both(xs: list[Tensor]) -> Tensor:
    for x in xs:
        x.mul_(2)
    return xs[0] + 1


@write_both.register_fake
def _(xs):
    return torch.empty_like(xs[0])


@torch.library.custom_op(f"{NAMESPACE}::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x.sin()


@torch.library.custom_op(f"{NAMESPACE}::count", mutates_args=())
def count(x: Tensor) -> int:
    return x.numel()


@count.register_fake
def _(x):
    return x.numel()


@torch.library.custom_op(f"{NAMESPACE}::transposed", mutates_args=())
def transposed(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


@transposed.register_fake
def _(x):
    return torch.empty_strided(x.shape, (1, x.shape[0]), dtype=x.dtype)


@torch.library.custom_op(f"{NAMESPACE}::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    """Data-dependent: the positive elements."""
    return x[x > 0]


@positive.register_fake
def _(x):
    return x.new_empty([torch.library.get_ctx().new_dynamic_size()])


KEPT: list[Tensor] = []


@torch.library.custom_op(f"{NAMESPACE}::keep", mutates_args=())
def keep(x: Tensor) -> Tensor:
    KEPT.append(x)
    return x + 0


@keep.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op(f"{NAMESPACE}::refuse", mutates_args=())
def refuse(x: Tensor, limit: float) -> Tensor:
    if float(x.max()) > limit:
        raise NotADirectoryError(f"more than {limit}")
    return x.clone()


@refuse.register_fake
def _(x, limit):
    return torch.empty_like(x)


@torch.library.custom_op(f"{NAMESPACE}::liar", mutates_args=())
def liar(x: Tensor) -> Tensor:
    return x.double() if bool(x[0, 0] > 0) else x[:1].clone()


@liar.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.triton_op(f"{NAMESPACE}::traced", mutates_args=())
def traced(x: Tensor) -> Tensor:
    return x * 3


_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define("half(Tensor x) -> Tensor")
_library.impl("half", lambda x: x / 2, "CompositeExplicitAutograd")
torch.library.register_fake(f"{NAMESPACE}::half", torch.empty_like, lib=_library)
_library.define("turned(Tensor(a) x) -> Tensor(a)")
_library.impl("turned", lambda x: x.t(), "CompositeExplicitAutograd")
torch.library.register_fake(f"{NAMESPACE}::turned", lambda x: x.t(), lib=_library)
_library.define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
_library.impl("add_", lambda x, y: x.add_(y), "CompositeExplicitAutograd")
torch.library.register_fake(f"{NAMESPACE}::add_", lambda x, y: x, lib=_library)
_library.define("composite(Tensor x) -> Tensor")


def composite(x):
    return scale(x.relu(), 3.0) + 1


_library.impl("composite", composite, "CompositeImplicitAutograd")
ops = getattr(torch.ops, NAMESPACE)


def arguments(x):
    return scale(x + 1, 2.5, name="q", n=3).relu()


def in_place_on_input(x):
    increase(x)
    y = x * 2
    increase(y, x)
    return y


def in_place_only(x):
    increase(x)


def in_place_on_view(x):
    y = x.clone()
    increase(y[0])
    increase(y[:, 1:3], torch.ones(()))
    return y


def in_place_keeps_the_old(x):
    y = x * 2
    old = y.view(-1) + 1
    z = y.clone()
    increase(y)
    return old, y, z


def two_results(x):
    a, b = pair(x, 1)
    return a - b


def lists(x):
    return parts([x, x + 1], [2, 3])


def types(x):
    return onto(x, torch.device("cpu"), torch.float64) + 1


def mutated_list(x):
    y, z = x + 1, x * 2
    r = write_both([y, z])
    return r, y, z


def no_fake(x):
    return without_fake(x + 1) + 1


def integer(x):
    return x + count(x)


def odd_strides(x):
    return transposed(x + 1), transposed(x).relu()


def dynamic_size(x):
    return positive(x).numel() + x


def defined_by_library(x):
    return ops.half(x) + 1


def view_result(x):
    turned = ops.turned(x)
    turned.add_(1)
    return turned * 2


def in_place_result(x):
    y = x * 1
    return ops.add_(y, x) + y


def composed(x):
    return ops.composite(x)


def traced_into(x):
    return traced(x) + 1


PROGRAMS: dict[str, Any] = {
    f.__name__: f
    for f in (
        arguments, in_place_on_input, in_place_only, in_place_on_view, in_place_keeps_the_old, two_results, lists, types, mutated_list,
        no_fake, integer, odd_strides, dynamic_size, defined_by_library, view_result, in_place_result, composed, traced_into,
    )
}  # fmt: skip


def keeping(x):
    return keep(x * 2) + keep(x * 3).sum()


INTERRUPTS: list[type[BaseException]] = []


@torch.library.custom_op("precast_custom::stop", mutates_args=())
def stop(x: torch.Tensor) -> torch.Tensor:
    if INTERRUPTS:
        raise INTERRUPTS.pop()
    return x + 1


@stop.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("precast_custom::stop_", mutates_args={"x"})
def stop_(x: torch.Tensor) -> None:
    if INTERRUPTS:
        raise INTERRUPTS.pop()
    x.add_(1)


def stopping(x):
    return stop(x * 2) + 0.5


def stopping_in_place(x):
    y = x * 2
    stop_(y)
    return y + 0.5


def refusing(x):
    return refuse(x * 2, 1.0) + 1


def lying(x):
    return liar(x + 0) + 1


def check(name: str, compiled: Any) -> None:
    """Values, strides, dtypes and what happened to the input are eager's, on fresh inputs."""
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(3, 4)
        mine, theirs = x.clone(), x.clone()
        got, want = compiled(mine), PROGRAMS[name](theirs)
        torch.testing.assert_close(got, want, check_stride=True)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
