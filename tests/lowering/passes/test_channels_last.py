"""Channels-last temporaries around convolutions: the layout is torch's, values and the strides of what is given back are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from precast.lowering.analysis.effects import reads
from precast.lowering.ir.nodes import Conv
from precast.lowering.lower import lower
from precast.lowering.passes.layout.channels_last import channels_last, last_strides
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify
from tests.ops.runners import program_of
from tests.ops.trace import trace

X, W, V = torch.randn(2, 3, 7, 5), torch.randn(4, 3, 3, 3), torch.randn(4, 4, 3, 3)


@pytest.mark.parametrize("size", [(2, 3, 7, 5), (1, 4, 2, 3), (3, 8, 1, 6), (2, 2, 4, 4)])
def test_strides_are_torchs(size: tuple[int, ...]) -> None:
    assert last_strides(size) == torch.empty(size, memory_format=torch.channels_last).stride()


def chain(x: Any, w: Any, v: Any) -> Any:
    return F.conv2d(F.relu(F.conv2d(x, w)), v) * 2


def both_are_returned(x: Any, w: Any, v: Any) -> Any:
    y = F.conv2d(x, w)
    return y, F.conv2d(y + 1, v)


def the_middle_is_returned(x: Any, w: Any, v: Any) -> Any:
    y = F.conv2d(x, w).sin()
    return y, F.conv2d(y, v).cos()


def a_library_reads_a_part(x: Any, w: Any, v: Any) -> Any:
    y = F.conv2d(x, w).sin()
    return torch.sort(y[:, 1:3], dim=1, stable=True)[0], F.conv2d(y, v)


def a_convolution_reads_a_part(x: Any, w: Any, v: Any) -> Any:
    return F.conv2d(F.conv2d(x, w)[:, 1:3], v[:, :2])


def flattened_between(x: Any, w: Any, v: Any) -> Any:
    y = F.conv2d(x, w).tanh()
    return F.conv2d(y, v).sum((2, 3)) @ y.flatten(2).mean(2).t()


def transposed_between(x: Any, w: Any, v: Any) -> Any:
    y = F.conv2d(x, w)
    return F.conv2d(y.transpose(2, 3).exp(), v)


def transposed_convolution(x: Any, w: Any, v: Any) -> Any:
    return F.conv_transpose2d(F.conv2d(x, w).relu(), w, stride=2, padding=1, output_padding=1) * 2


PROGRAMS = (
    chain,
    transposed_convolution,
    both_are_returned,
    the_middle_is_returned,
    a_library_reads_a_part,
    a_convolution_reads_a_part,
    flattened_between,
    transposed_between,
)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_values_and_strides(fn: Callable[..., Any]) -> None:
    lowered = lower(trace(fn, [X, W, V])[0], "test")
    program = verify(channels_last(lowered))
    assert sum(isinstance(step, Conv) for step in program.steps) == 2
    found, want = run(program, [X, W, V]), fn(X, W, V)
    for got, wanted in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    for output, before in zip(program.outputs, lowered.outputs, strict=True):
        assert output.view is not None and before.view is not None
        assert (output.view.size, output.view.stride, output.view.offset) == (before.view.size, before.view.stride, before.view.offset)


def test_what_lies_between_two_convolutions_is_channels_last() -> None:
    program = channels_last(lower(trace(chain, [X, W, V])[0], "test"))
    first, second = (step for step in program.steps if isinstance(step, Conv))
    for name in (first.x.buffer, first.out, second.x.buffer):
        assert program.buffer(name).stride == last_strides(program.buffer(name).size)


def product(x: Any, w: Any) -> Any:
    return torch.bmm(x.sin().unsqueeze(0), w.t().exp().unsqueeze(0))


def test_what_is_computed_of_a_transposed_weight_lies_as_the_weight() -> None:
    """Products take it so, and nothing is moved across the memory."""
    x, w = torch.randn(4, 6), torch.randn(5, 6)
    program = lower(trace(product, [x, w])[0], "test")
    strides = {b.size: b.stride for b in program.buffers}
    assert strides[1, 6, 5][1:] == w.t().exp().stride() == (1, 6) and strides[1, 4, 6][1:] == (6, 1)
    torch.testing.assert_close(run(program, [x, w])[0], product(x, w))


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90"])
def test_what_follows_a_transposed_convolution_passes_over_its_result_once(target: str) -> None:
    """No library has its bias and its activation: they belong to the reduction that reads the result, which is channels-last."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.conv_transpose2d(x, w, b, stride=2, padding=1).relu().mean((2, 3))

    x, w, b = torch.randn(2, 16, 24, 24), torch.randn(16, 16, 4, 4), torch.randn(16)
    program, rebuild = program_of(fn, (x, w, b), schedule=True, target=target)
    (conv,) = (s for s in program.steps if isinstance(s, Conv))
    result = next(b for b in program.buffers if b.name == conv.out)
    assert conv.activation == "none" and (conv.bias is None) == target.startswith("cuda")
    assert conv.x.stride == last_strides(conv.x.size) and result.stride == last_strides(result.size)
    assert sum(conv.out in reads(s) for s in program.steps) == 1
    torch.testing.assert_close(rebuild(run(program, [x, w, b])), fn(x, w, b), rtol=1e-4, atol=1e-4)
