"""Programs that launch Triton kernels, each with what it computes in torch's own words: name -> (program, reference, arguments)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SCALE = tl.constexpr(3.0)


@triton.jit
def scaled(x):
    return x * SCALE


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = scaled(tl.load(x_ptr + at, mask=inside)) + tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


@triton.jit
def optional_kernel(
    x_ptr, bias_ptr, out_ptr, n, factor, shift, NEGATE: tl.constexpr, KIND: tl.constexpr, HOW: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside).to(KIND) * factor + shift
    if bias_ptr is not None:
        x += tl.load(bias_ptr + at, mask=inside)
    if NEGATE:
        x = -x
    if HOW == "half":
        x = x / 2
    tl.store(out_ptr + at, x, mask=inside)


@triton.jit
def apply_kernel(x_ptr, out_ptr, n, F: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, F(tl.load(x_ptr + at, mask=at < n)), mask=at < n)


@triton.jit
def increase_kernel(x_ptr, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=inside) + by, mask=inside)


@triton.jit
def rows_kernel(x_ptr, out_ptr, rows, columns, x_row, x_column, out_row, out_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * x_row + at * x_column, mask=inside)
    tl.store(out_ptr + row * out_row + at * out_column, x * 10, mask=inside)


def first_time(call: Callable[[], Any], quantiles: Any = None) -> list[float]:
    """In place of a benchmark: all configurations take as long."""
    call()
    return [1.0, 1.0, 1.0]


_benchmarks = itertools.count()


def last_time(call: Callable[[], Any], quantiles: Any = None) -> list[float]:
    """In place of a benchmark: each configuration is faster than all before it."""
    call()
    return [-1.0 * next(_benchmarks)] * 3


CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 256}, num_warps=4)]


@triton.autotune(CONFIGS, key=["n"], do_bench=first_time)
@triton.jit
def tuned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + 5, mask=at < n)


@triton.autotune([triton.Config({"BLOCK": 64})], key=["n"], do_bench=first_time)
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def guided_kernel(x_ptr, out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    if EVEN:
        x = x * 2
    tl.store(out_ptr + at, x, mask=at < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def chosen_kernel(x_ptr, out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    if EVEN:
        x = x * 2
    tl.store(out_ptr + at, x, mask=at < n)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 64, "PARTS": 2})], key=["n"], do_bench=last_time)
@triton.jit
def parts_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, PARTS: tl.constexpr = 1):
    at = (tl.program_id(0) * PARTS + tl.program_id(1)) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) + 5, mask=at < n)


@triton.jit
def block_kernel(out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, BLOCK + tl.arange(0, BLOCK) * 0.0, mask=at < n)


@triton.jit
def both_kernel(a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(a_ptr + at, tl.load(a_ptr + at, mask=inside) + 1, mask=inside)
    tl.store(b_ptr + at, tl.load(b_ptr + at, mask=inside) * 2, mask=inside)


def given_kernel(x: Tensor, kernel: Any) -> Tensor:
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](out, x.numel())
    return out


def grid_of(n: int) -> Callable[[dict[str, Any]], tuple[int, ...]]:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=128)
    return out


def by_position(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    add_kernel[((x.numel() + 63) // 64,)](x, y, out, x.numel(), 64)
    return out


def with_constants(x: Tensor) -> Tensor:
    out, more = torch.empty_like(x), torch.empty_like(x)
    n = x.numel()
    optional_kernel[(triton.cdiv(n, 64), 1)](x, None, out, n, 0.5, 7, NEGATE=True, KIND=tl.float64, HOW="half", BLOCK=64)
    optional_kernel[(triton.cdiv(n, 64),)](x, x, more, n, n, n * 2, NEGATE=False, KIND=tl.float32, HOW="whole", BLOCK=64)
    return out + more


def several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = by_position(x, y)
    second = by_position(first.relu() + 1, first)
    return second.sin(), first


def input_in_place(x: Tensor, y: Tensor) -> Tensor:
    before = x * 2
    increase_kernel[(triton.cdiv(x.numel(), 64),)](x, x.numel(), 1.5, BLOCK=64)
    increase_kernel[(triton.cdiv(x.numel(), 64),)](x, x.numel(), 2, BLOCK=64)
    return before + x + y


def input_in_place_reference(x: Tensor, y: Tensor) -> Tensor:
    before = x * 2
    x += 3.5
    return before + x + y


def onto_itself(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    n = x.numel()
    made = x + 1
    before = made.sin()
    add_kernel[(triton.cdiv(n, 64),)](made, made, made, n, 64)  # one tensor as three arguments
    add_kernel[(triton.cdiv(n, 64),)](x, y, x, n, 64)
    return made, before


def onto_itself_reference(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    made, before = (x + 1) * 4, (x + 1).sin()
    x.mul_(3).add_(y)
    return made, before


def given_back(x: Tensor) -> Tensor:
    increase_kernel[(triton.cdiv(x.numel(), 64),)](x, x.numel(), 1.5, BLOCK=64)
    return x


def local_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x + 1
    before = made * 2
    increase_kernel[(triton.cdiv(x.numel(), 64),)](made, x.numel(), 4.0, BLOCK=64)
    return made, before


def aliased(x: Tensor) -> tuple[Tensor, Tensor]:
    out = x.clone()
    increase_kernel[(triton.cdiv(x.numel(), 64),)](out, x.numel(), 4.0, BLOCK=64)
    return out, out.view(-1)


def rows(x: Tensor, out: Tensor) -> None:
    rows_kernel[(x.shape[0],)](x, out, *x.shape, *x.stride(), *out.stride(), BLOCK=triton.next_power_of_2(x.shape[1]))


def layouts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.zeros(x.shape[1], 2 * x.shape[0], device=x.device)
    rows(x.t(), wide[:, ::2])  # a transposed operand; every second column of a result
    inner = x + 1
    part = torch.empty(x.shape[0] - 1, x.shape[1] - 1, device=x.device)
    rows(inner[1:, 1:], part)  # a part of what is computed
    old = inner[:, 1].clone()
    rows(inner[:, 1:], inner[:, 1:])  # in place, on a part of it
    return wide, part, inner + old[:, None]


def layouts_reference(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.zeros(x.shape[1], 2 * x.shape[0], device=x.device)
    wide[:, ::2] = x.t() * 10
    inner = x + 1
    part = inner[1:, 1:] * 10
    old = inner[:, 1].clone()
    inner[:, 1:] *= 10
    return wide, part, inner + old[:, None]


def two_views(x: Tensor) -> Tensor:
    made = x + 1
    both_kernel[(triton.cdiv(x.numel(), 64),)](made, made.view(-1), x.numel(), BLOCK=64)
    return made


def two_views_of_an_input(x: Tensor) -> Tensor:
    both_kernel[(1,)](x[1:], x[:-1], 6, BLOCK=64)
    return x + 1


def equal_views(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x + 1
    before = made.sin()
    both_kernel[(triton.cdiv(x.numel(), 64),)](made.view(-1), made.view(-1), x.numel(), BLOCK=64)
    return made, before


def halves(x: Tensor) -> Tensor:
    made = torch.stack([x, x])
    both_kernel[(triton.cdiv(x.numel(), 64),)](made[0], made[1], x.numel(), BLOCK=64)
    return made


def tuned(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    tuned_kernel[grid_of(x.numel())](x, out, x.numel())
    return out


def tuned_for_one_launch(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 128),)](x, x, out, n, BLOCK=128, num_warps=8)
    return out


def in_parts(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    n = x.numel()

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        return triton.cdiv(n, meta["BLOCK"] * meta.get("PARTS", 1)), meta.get("PARTS", 1)

    parts_kernel[grid](x, out, n)
    return out


def columns(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x * 2
    left, right = made[:, :3], made[:, 3:]
    rows(left, right)
    return made, left


def columns_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x * 2
    made[:, 3:] = made[:, :3] * 10
    return made, made[:, :3]


def guided(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    guided_kernel[grid_of(x.numel())](x, out, x.numel())
    return out


def chosen(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    chosen_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


@torch.library.triton_op("precast_kernels::sum_of", mutates_args=())
def sum_of(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    torch.library.wrap_triton(add_kernel)[grid_of(n)](x, y, out, n, BLOCK=128)
    return out


@torch.library.triton_op("precast_kernels::increase_", mutates_args={"x"})
def increase_(x: Tensor) -> None:
    torch.library.wrap_triton(increase_kernel)[(triton.cdiv(x.numel(), 64),)](x, x.numel(), 2.5, BLOCK=64)


@torch.library.triton_op("precast_kernels::applied", mutates_args=())
def applied(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(apply_kernel)[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), F=doubled, BLOCK=64)
    return out


def operators(x: Tensor, y: Tensor) -> Tensor:
    made = applied(sum_of(x.relu(), y))
    increase_(made)
    return made.tanh()


def on_a_branch(x: Tensor, y: Tensor) -> Tensor:
    return torch.cond(x.sum() > 1e6, lambda a, b: a - b, by_position, (x, y))


def one(n: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, 6),)


def two(n: int) -> tuple[Tensor, ...]:
    return torch.randn(n, 6), torch.randn(n, 6)


def added(x: Tensor, y: Tensor) -> Tensor:
    return x * 3 + y


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[int], tuple[Tensor, ...]]]] = {
    "add": (add, added, two),
    "by position": (by_position, added, two),
    "constants": (with_constants, lambda x: (x * 0.5 + 7) / -2 + x * x.numel() + 2 * x.numel() + x, one),
    "several": (several, lambda x, y: (added((added(x, y)).relu() + 1, added(x, y)).sin(), added(x, y)), two),
    "input in place": (input_in_place, input_in_place_reference, two),
    "onto itself": (onto_itself, onto_itself_reference, two),
    "given back": (given_back, lambda x: x.add_(1.5), one),
    "local in place": (local_in_place, lambda x: (x + 5, (x + 1) * 2), one),
    "aliased": (aliased, lambda x: (x + 4, (x + 4).view(-1)), one),
    "layouts": (layouts, layouts_reference, one),
    "equal views": (equal_views, lambda x: ((x + 2) * 2, (x + 1).sin()), one),
    "halves": (halves, lambda x: torch.stack([x + 1, x * 2]), one),
    "tuned": (tuned, lambda x: x + 5, one),
    "tuned for one launch": (tuned_for_one_launch, lambda x: x * 4, one),
    "in parts": (in_parts, lambda x: x + 5, one),
    "columns": (columns, columns_reference, one),
    "guided": (guided, lambda x: x * 2, one),
    "chosen": (chosen, lambda x: x * 2, one),
    "operators": (operators, lambda x, y: (added(x.relu(), y) * 2 + 2.5).tanh(), two),
    "on a branch": (on_a_branch, added, two),
}


def check(name: str, compiled: Callable[..., Any], n: int = 40, device: str = "cpu") -> Any:
    """Calls it and its reference on equal arguments, and compares results and arguments."""
    _, reference, arguments = PROGRAMS[name]
    torch.manual_seed(n)
    given = tuple(t.to(device) for t in arguments(n))
    expected = tuple(t.clone() for t in given)
    result = compiled(*given)
    torch.testing.assert_close(result, reference(*expected))
    torch.testing.assert_close(given, expected)
    return result
