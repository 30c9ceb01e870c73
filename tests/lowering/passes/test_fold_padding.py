"""Zeros around an image as the padding of convolutions: what is folded, what is not, and the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv2d, pad, relu6

import precast
from precast.lowering.ir.nodes import Conv, Program
from precast.lowering.lower import lower
from precast.lowering.passes.layout.fold_padding import fold_padding, pad_again
from precast.lowering.passes.simplify.algebra import simplify
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify
from tests.ops.trace import trace

T = torch.Tensor
X, DEEP, DENSE = torch.randn(2, 16, 9, 12), torch.randn(16, 1, 3, 3), torch.randn(8, 16, 3, 3)


def behind(x: T, deep: T, dense: T) -> T:
    return conv2d(pad(relu6(x), (0, 1, 0, 1)), deep, stride=2, groups=16)


def unequal_rows(x: T, deep: T, dense: T) -> T:
    return conv2d(pad(x, (2, 1, 0, 3)), deep, groups=16, dilation=2)


def around(x: T, deep: T, dense: T) -> T:
    return conv2d(pad(x * 2, (1, 1, 1, 1)), dense, padding=1)


def columns(x: T, deep: T, dense: T) -> T:
    return conv2d(pad(x, (2, 2)), dense)


def two_readers(x: T, deep: T, dense: T) -> T:
    y = pad(x.sin(), (1, 1, 1, 1))
    return conv2d(y, deep, groups=16).sum() + conv2d(y, dense).sum()


FOLDED: list[tuple[Callable[..., T], tuple[int, ...], tuple[int, ...] | None]] = [
    (behind, (0, 0), (1, 1)), (unequal_rows, (0, 2), (3, 1)), (around, (2, 2), None), (columns, (0, 2), None), (two_readers, (1, 1), None),
]  # fmt: skip


def ones(x: T, deep: T, dense: T) -> T:
    return conv2d(pad(x, (1, 1, 1, 1), value=1.0), dense)


def dense_and_unequal(x: T, deep: T, dense: T) -> T:
    return conv2d(pad(x, (0, 1, 0, 1)), dense, stride=2)


def channels(x: T, deep: T, dense: T) -> T:
    return conv2d(pad(x[:, :14], (1, 1, 1, 1, 1, 1)), dense)


def cropped(x: T, deep: T, dense: T) -> T:
    return conv2d(pad(x, (-1, 1, 1, 1)), dense)


def returned(x: T, deep: T, dense: T) -> tuple[T, T]:
    y = pad(x, (1, 1, 1, 1))
    return y, conv2d(y, dense)


def read_by_a_kernel(x: T, deep: T, dense: T) -> T:
    y = pad(x.sin(), (1, 1, 1, 1))
    return conv2d(y, dense) + y[:, :8, 1:-1, 1:-1]


def as_weight(x: T, deep: T, dense: T) -> T:
    return conv2d(x, pad(dense, (1, 1, 1, 1)), padding=2)


LEFT = [ones, dense_and_unequal, channels, returned, read_by_a_kernel, as_weight]


def folded(fn: Callable[..., object]) -> Program:
    program = fold_padding(simplify(lower(trace(fn, [X, DEEP, DENSE])[0], "test")))
    verify(program, "fold padding")
    return program


def same(program: Program, fn: Callable[..., object]) -> None:
    found, wanted = run(program, [X, DEEP, DENSE]), fn(X, DEEP, DENSE)
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("fn", "before", "after"), FOLDED, ids=lambda v: getattr(v, "__name__", None))
def test_zeros_are_padding(fn: Callable[..., T], before: tuple[int, ...], after: tuple[int, ...] | None) -> None:
    program = folded(fn)
    convs = [s for s in program.steps if isinstance(s, Conv)]
    assert all((c.padding, c.padding_behind) == (before, after) for c in convs)
    same(program, fn)
    again = pad_again(program)
    verify(again, "pad again")
    assert all(c.padding_behind is None for c in again.steps if isinstance(c, Conv))  # these images are contiguous
    same(again, fn)


@pytest.mark.parametrize("fn", LEFT, ids=lambda v: v.__name__)
def test_what_is_left(fn: Callable[..., object]) -> None:
    before = simplify(lower(trace(fn, [X, DEEP, DENSE])[0], "test"))
    assert fold_padding(before) is before


def test_cropping_is_no_padding() -> None:
    same(folded(cropped), cropped)


class Net(torch.nn.Module):
    """As TensorFlow's: zeros by the size of the image, in front of strided and other convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 24, 3, 2)
        self.deep = torch.nn.Conv2d(24, 24, 3, 2, groups=24)
        self.next = torch.nn.Conv2d(24, 24, 3, groups=24)
        self.last = torch.nn.Conv2d(24, 8, 1)

    def forward(self, x: T) -> T:
        x = relu6(self.stem(pad(x, (0, 1, 0, 1))))
        x = relu6(self.deep(pad(x, (0, 1, 0, 1))))
        return self.last(torch.tanh(self.next(pad(x, (1, 1, 1, 1)))))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("freeze", [False, True])
def test_a_compiled_net(freeze: bool, dynamic: bool | None, tmp_path: Path) -> None:
    model = Net().eval()
    compiled = precast.compile(model, dynamic=dynamic, options={"freeze": freeze}, store=tmp_path)
    sizes = [(2, 3, 33, 40), (1, 3, 24, 19)] if dynamic else [(2, 3, 33, 40)]
    with torch.no_grad():
        for size in sizes:
            x = torch.randn(size)
            x[0, 1, 4, 4], x[0, 2, -1, -1] = float("nan"), float("inf")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_gradients_through_zeros(tmp_path: Path) -> None:
    model = Net()
    compiled = precast.compile(model, store=tmp_path)
    x = torch.randn(2, 3, 17, 18, requires_grad=True)
    (wanted,) = torch.autograd.grad(model(x).square().sum(), x)
    (found,) = torch.autograd.grad(compiled(x).square().sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
