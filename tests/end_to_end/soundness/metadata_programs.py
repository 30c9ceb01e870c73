"""Programs that give tensors other data, or change their shape and strides in place. Run by metadata_worker.py, eagerly and compiled.

Each case: `make()` gives a fresh callable, a module where it holds on to tensors; `calls()` the arguments of each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Calls = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Callable[..., Any]]
    calls: Callable[[], Calls]


CASES: dict[str, Case] = {}


def numbers(*shape: int, start: float = 0.0) -> torch.Tensor:
    count = 1
    for n in shape:
        count *= n
    return torch.arange(start, start + count).reshape(shape)


def pairs(*sizes: tuple[int, int]) -> Callable[[], Calls]:
    return lambda: [(numbers(a), numbers(b, start=10.0)) for a, b in sizes]


EQUAL_THEN_OTHERS = pairs((3, 3), (5, 2), (2, 5))


def matrices() -> Calls:
    return [(numbers(2, 3),), (numbers(2, 3, start=5.0),), (numbers(4, 3),)]


def case(calls: Callable[[], Calls]) -> Any:
    def add(made: Any) -> Any:
        CASES[made.__name__] = Case(made.__name__, made if isinstance(made, type) else lambda: made, calls)
        return made

    return add


# -- data assigned


@case(EQUAL_THEN_OTHERS)
def assigned(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    return x + 1, x.shape


@case(EQUAL_THEN_OTHERS)
def swapped(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data, y.data = y.data, x.data
    return x + 1, y.numel()


@case(lambda: [(numbers(3), numbers(b), numbers(c, start=20.0)) for b, c in ((3, 3), (2, 4), (4, 2))])
def chained(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    x.data = y
    y.data = z
    return x * 2, y * 2, x.shape, y.stride()


@case(EQUAL_THEN_OTHERS)
def assigned_and_restored(x: torch.Tensor, y: torch.Tensor) -> Any:
    saved = x.data
    x.data = y.data
    z = x * 3
    x.data = saved
    return z, x + 1


@case(EQUAL_THEN_OTHERS)
def assigned_then_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    x.add_(1)
    return y * 1


@case(EQUAL_THEN_OTHERS)
def assigned_then_viewed(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    return x.view(-1), x[1:], x


@case(lambda: [(numbers(2, 3), numbers(3, 2)), (numbers(2, 3), numbers(4, 2).t()), (numbers(2, 3), numbers(2, 3))])
def strides_assigned(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y.t()
    return x.stride(), x.is_contiguous(), x.reshape(-1) * 2, x.dim()


@case(lambda: [(numbers(3), numbers(3).double()), (numbers(3), numbers(4).to(torch.int64))])
def another_dtype_assigned(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    return x + 1, x.dtype


@case(EQUAL_THEN_OTHERS)
def part_assigned(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y[1:]
    return x + x.storage_offset(), x.shape


@case(lambda: [(numbers(3), numbers(2)), (numbers(4), numbers(5))])
def view_before(x: torch.Tensor, y: torch.Tensor) -> Any:
    v = x[1:]
    x.data = y
    v.add_(100)
    return v, x * 2


@case(lambda: [(numbers(3), numbers(2)), (numbers(4), numbers(5))])
def data_of_a_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    v = x[1:]
    v.data = y
    v.mul_(2)
    return v, x + 1


@case(EQUAL_THEN_OTHERS)
def own_set_to_an_argument(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * 2
    z.set_(y)
    z.add_(1)
    return z, z.shape


@case(EQUAL_THEN_OTHERS)
def set_with_sizes(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.set_(y.untyped_storage(), 1, (y.numel() - 1,), (1,))
    return x * 2, x.storage_offset()


@case(EQUAL_THEN_OTHERS)
def set_by_the_operator(x: torch.Tensor, y: torch.Tensor) -> Any:
    torch.ops.aten.set_.source_Tensor(x, y)
    return x + 1, x.shape


@case(EQUAL_THEN_OTHERS)
def tensors_swapped(x: torch.Tensor, y: torch.Tensor) -> Any:
    torch.utils.swap_tensors(x, y)
    return x + 1, y * 2, x.shape


@case(lambda: [(numbers(2, 3),), (numbers(4, 2),)])
def own_resized(x: torch.Tensor) -> Any:
    y = x * 2
    y.resize_(2, 2)
    return y + 1, y.stride(), y.numel()


@case(EQUAL_THEN_OTHERS)
def memory_resized(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.untyped_storage().resize_(40)
    return x + 1, x.untyped_storage().nbytes()


@case(lambda: [(numbers(3), torch.zeros(0)), (numbers(3), torch.zeros(3)), (numbers(4), torch.zeros(0))])
def given_out_of_another_size(x: torch.Tensor, out: torch.Tensor) -> Any:
    torch.mul(x, 2, out=out)
    return out.shape, out + 1


class _Buffers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(3))
        self.register_buffer("average", numbers(3))
        self.scale = torch.nn.Parameter(numbers(3, start=2.0), requires_grad=False)


def vectors() -> Calls:
    return [(numbers(3, start=i),) for i in (0.0, 1.0, 2.0)]


@case(vectors)
class averaged(_Buffers):
    def forward(self, x: torch.Tensor) -> Any:
        saved = self.weight.data
        self.weight.data = self.average.data
        y = x * self.weight
        self.weight.data = saved
        return y


@case(lambda: [(numbers(4),), (numbers(4),), (numbers(2),)])
class hot_swapped(_Buffers):
    def forward(self, new: torch.Tensor) -> Any:
        self.weight.data = new
        return self.weight * 2, self.weight.numel(), self.weight.shape


@case(lambda: [(numbers(4),), (numbers(4),), (numbers(2),)])
class parameter_assigned(_Buffers):
    def forward(self, new: torch.Tensor) -> Any:
        self.scale.data = new
        return self.scale * 2, self.scale.numel()


@case(lambda: [(numbers(4),), (numbers(4),), (numbers(2),)])
class buffer_resized(_Buffers):
    def forward(self, new: torch.Tensor) -> Any:
        self.weight.resize_(new.shape[0]).copy_(new)
        return self.weight * 2, self.weight.numel()


@case(lambda: [(numbers(4),), (numbers(4),), (numbers(2),)])
class written_into_the_register(_Buffers):
    def forward(self, new: torch.Tensor) -> Any:
        self._buffers["weight"] = new
        return self.weight + 1, self.weight.shape


@case(lambda: [(numbers(2, 3),), (numbers(2, 3),), (numbers(4, 3),)])
class buffer_transposed(_Buffers):
    def forward(self, new: torch.Tensor) -> Any:
        self.weight.data = new
        self.weight.t_()
        return self.weight + 1, self.weight.shape, self.weight.stride()


# -- in-place views


@case(matrices)
def transposed(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    return y.shape, y.stride(), y.is_contiguous()


@case(matrices)
def widened(x: torch.Tensor) -> Any:
    y = x * 2
    y.unsqueeze_(0)
    return torch.zeros(y.shape), y.dim()


@case(lambda: [(numbers(2, 3),), (numbers(2, 3),), (numbers(4, 3),)])
def strided(x: torch.Tensor) -> Any:
    y = x * 2
    y.as_strided_((2,), (3,))
    return y / y.numel(), y


@case(lambda: [(numbers(2, 1, 3),), (numbers(1, 1, 4),), (numbers(1, 2, 1),)])
def squeezed(x: torch.Tensor) -> Any:
    y = x + 1
    y.squeeze_()
    return y.shape, y.ndim, len(y.shape), y * 2


@case(matrices)
def axes_swapped(x: torch.Tensor) -> Any:
    y = x + 1
    y.swapaxes_(0, 1)
    return y.shape, y.stride(0), [row.sum() for row in y], y.numel()


@case(matrices)
def result_is_the_operand(x: torch.Tensor) -> Any:
    y = x + 1
    z = y.mul_(2)
    z.t_()
    return y.shape, z.shape, y.stride(), y + 1


@case(matrices)
def argument_through_its_own_result(x: torch.Tensor) -> Any:
    x.mul_(2).t_()
    return x.shape, x.stride(), x + 1


@case(matrices)
def argument_that_was_contiguous(x: torch.Tensor) -> Any:
    y = x.contiguous()
    y.unsqueeze_(0)
    return x.shape, y.shape, x.dim()


@case(matrices)
def by_the_operator(x: torch.Tensor) -> Any:
    y = x * 2
    torch.ops.aten.transpose_(y, 0, 1)
    torch.ops.aten.unsqueeze_.default(y, 0)
    return y.shape, y.dim(), y.is_contiguous()


@case(matrices)
def argument_by_the_operator(x: torch.Tensor) -> Any:
    torch.ops.aten.t_.default(x)
    return x.shape, x.dim(), x + 1


@case(matrices)
def through_a_bound_method(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    f = y.unsqueeze_
    f(-1)
    return y.shape, y.stride(), y.sum(0)


@case(matrices)
def view_of_an_argument(x: torch.Tensor) -> Any:
    v = x.view(-1)
    v.unsqueeze_(0)
    v.add_(1)
    return v, v.shape, x


@case(matrices)
def view_of_an_argument_transposed(x: torch.Tensor) -> Any:
    v = x[:, 1:]
    v.t_()
    return v, v.shape, v.stride(), v.is_contiguous(), v.storage_offset()


@case(matrices)
def view_taken_before(x: torch.Tensor) -> Any:
    y = x * 2
    v = y[0]
    y.t_()
    v.add_(10)
    return y, v, y.shape, v.shape


@case(matrices)
def written_after(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    y.add_(numbers_like(y))
    return y, y.reshape(-1), y.flatten().shape


def numbers_like(y: torch.Tensor) -> torch.Tensor:
    return torch.ones(y.shape)


@case(matrices)
def branch_on_the_shape(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    if y.shape[0] > y.shape[1]:
        return y + 100
    return y - 100


@case(matrices)
def loop_over_rows(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    total = torch.zeros(y.shape[1])
    for row in y:
        total = total + row
    a, *b = y.unbind(0)
    return total, len(b), a


@case(matrices)
def indexed_and_assigned(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    y[0] = 5
    y[1:, :1] = 7
    return y, y.size(-1), y.T.shape


@case(matrices)
def broken_after(x: torch.Tensor) -> Any:
    y = x * 2
    y.t_()
    print(end="")
    return y + 1, y.shape, y.stride()


@case(matrices)
def in_a_helper(x: torch.Tensor) -> Any:
    y = x * 2
    _widen(y)
    return y.shape, y.numel(), y.ndimension()


def _widen(t: torch.Tensor) -> None:
    t.unsqueeze_(0)
    t.transpose_(1, 2)


@case(matrices)
def argument_in_a_helper(x: torch.Tensor) -> Any:
    _widen(x)
    return x.shape, x + 1


@case(lambda: [(torch.ones(2, 3, requires_grad=True),), (torch.zeros(4, 3, requires_grad=True),)])
def argument_detached(x: torch.Tensor) -> Any:
    y = x * 2
    x.detach_()
    return y, x.requires_grad, x + 1


@case(matrices)
def requirement_set_on_own(x: torch.Tensor) -> Any:
    y = x * 2
    y.requires_grad_()
    return y.requires_grad, y.detach() + 1


@case(matrices)
def both_names(x: torch.Tensor) -> Any:
    y = z = x * 2
    y.t_()
    return z.shape, z.stride(), z.is_contiguous(), z.numel(), z.nelement(), z.size()


@case(lambda: [(numbers(2, 3, 4, 5),), (numbers(2, 3, 2, 2),)])
def memory_formats(x: torch.Tensor) -> Any:
    y = x * 2
    y.transpose_(1, 3)
    y.transpose_(2, 3)
    return y.is_contiguous(memory_format=torch.channels_last), y.is_contiguous(), y.contiguous().stride()


@case(lambda: [(numbers(2, 3, 4),), (numbers(5, 3, 4),)])
def in_vmap(x: torch.Tensor) -> Any:
    def f(m: torch.Tensor) -> Any:
        z = m * 2
        z.t_()
        return z * z.shape[0], z.sum(0)

    return torch.vmap(f)(x)


@case(lambda: [(numbers(4),), (numbers(4),), (numbers(2),)])
class method_assigns(_Buffers):
    def put(self, new: torch.Tensor) -> Any:
        self.weight.data = new
        return self.weight.numel()

    def forward(self, new: torch.Tensor) -> Any:
        n = self.put(new)
        return self.weight * 2, n, self.weight.shape


@case(lambda: [(numbers(3),), (numbers(3),), (numbers(3),)])
class ema_context(_Buffers):
    @contextlib.contextmanager
    def averages(self) -> Iterator[None]:
        saved = self.weight.data
        self.weight.data = self.average.data
        try:
            yield
        finally:
            self.weight.data = saved

    def forward(self, x: torch.Tensor) -> Any:
        with self.averages():
            y = x * self.weight
        return y + 1


@case(EQUAL_THEN_OTHERS)
def descriptor_set(x: torch.Tensor, y: torch.Tensor) -> Any:
    torch.Tensor.data.__set__(x, y)
    return x + 1, x.shape


@case(lambda: [(numbers(6), torch.zeros(6)), (numbers(6), torch.zeros(4)), (numbers(6), torch.zeros(0))])
def cat_out(x: torch.Tensor, y: torch.Tensor) -> Any:
    torch.cat([x, x], out=y)
    return y.shape, y + 1, y.numel()


@case(lambda: [(numbers(6),), (numbers(4),)])
def own_out_smaller(x: torch.Tensor) -> Any:
    out = torch.zeros(9)
    v = out[2:]
    torch.add(x, 1, out=out)
    return out.shape, out, v


@case(matrices)
def unbound_then_viewed(x: torch.Tensor) -> Any:
    y = x * 2
    rows = y.unbind(0)
    rows[0].unsqueeze_(0)
    return [r.shape for r in rows], rows[0].dim()


@case(matrices)
def closure_cell(x: torch.Tensor) -> Any:
    y = x * 2

    def turn() -> Any:
        y.t_()
        return y.shape

    s = turn()
    return s, y.shape, y


class Holder:
    pass


@case(matrices)
def list_of_arguments(x: torch.Tensor) -> Any:
    xs = [x, x + 1]
    for t in xs:
        t.unsqueeze_(0)
    return x.shape, xs[1].shape, xs[0] + xs[1]


@case(matrices)
def rank_zero(x: torch.Tensor) -> Any:
    y = x.sum()
    y.unsqueeze_(0)
    y.t_()
    return y.shape, y.dim(), y, float(y.shape[0])
