"""Depthwise convolutions over channels-last images: results beside float64 at every edge, what follows them, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import precast
from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.codegen.cpu.depthwise import row_form
from precast.lowering.analysis.depthwise import depthwise_fits
from precast.lowering.ir.nodes import Buffer, Conv
from precast.lowering.ir.scalars import DType
from tests.codegen.loader import Loaded
from tests.codegen.programs import F32, buffer, program, view

Case = tuple[tuple[int, ...], tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]


def conv(case: Case, activation: str = "none", residual: str = "") -> tuple[Conv, list[Buffer], Buffer]:
    """One depthwise convolution, its inputs and its result."""
    x, window, stride, padding, dilation = case
    out = torch.nn.functional.conv2d(torch.empty(x), torch.empty(x[1], 1, *window), None, stride, padding, dilation, x[1]).shape

    def last(name: str, shape: tuple[int, ...]) -> Buffer:
        n, c, h, w = shape
        return buffer(name, shape, F32, (h * w * c, 1, w * c, c))

    inputs = [last("x", x), buffer("w", (x[1], 1, *window)), buffer("b", (x[1],)), last("r", tuple(out))]
    arguments = (0.0, 6.0) if activation == "hardtanh" else ()
    step = Conv(
        view(inputs[0]), view(inputs[1]), view(inputs[2]), "o", stride, padding, dilation, False, (0, 0), x[1],
        activation, arguments, view(inputs[3]) if residual else None, residual or "before",
    )  # fmt: skip
    return step, inputs, last("o", tuple(out))


CASES: dict[str, Case] = {
    "blocks of eight": ((2, 32, 9, 33), (3, 3), (1, 1), (1, 1), (1, 1)),
    "one block": ((3, 24, 7, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    "stride two": ((2, 33, 13, 28), (3, 3), (2, 2), (1, 1), (1, 1)),
    "five by five": ((1, 48, 14, 14), (5, 5), (2, 2), (2, 2), (1, 1)),
    "dilation": ((1, 16, 20, 23), (3, 3), (1, 2), (2, 3), (2, 3)),
    "window wider than the image": ((2, 20, 3, 2), (7, 7), (1, 1), (3, 3), (1, 1)),
    "more padding than window": ((1, 16, 4, 11), (3, 3), (1, 1), (4, 5), (1, 1)),
    "a pixel": ((1, 40, 1, 1), (3, 3), (1, 1), (1, 1), (1, 1)),
    "a row": ((1, 64, 1, 19), (1, 5), (1, 1), (0, 2), (1, 1)),
}
FOLLOWS = {
    "relu": torch.relu, "hardtanh": torch.nn.functional.relu6, "silu": torch.nn.functional.silu, "none": lambda x: x,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("target", "freeze"), [("cpu:native", True), ("cpu:x86-64-v3", False), ("cpu:x86-64-v2", False)])
def test_against_float64(name: str, target: str, freeze: bool) -> None:
    _, window, stride, padding, dilation = CASES[name]
    activation, residual = list(FOLLOWS)[len(name) % 4], ("", "before", "after")[len(name) % 3]
    step, inputs, out = conv(CASES[name], activation, residual)
    compiled = compile_program(program(inputs, [out], [step]), target, CodegenOptions(measure=False, freeze=freeze))
    assert "namespace depthwise" in compiled.kernel_source
    data = [torch.empty_strided(b.size, b.stride).copy_(torch.randn(b.size)) for b in inputs]
    data[0][0, 3, 0, 0], data[0][0, 5, -1, -1] = float("nan"), float("inf")
    want = torch.nn.functional.conv2d(data[0].double(), data[1].double(), data[2].double(), stride, padding, dilation, len(data[2]))
    want = want + data[3] if residual == "before" else want
    want = FOLLOWS[activation](want)
    want = want + data[3] if residual == "after" else want
    loaded = Loaded(compiled.library)
    for _ in range(2):
        (got,) = loaded(*data)
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["blocks of eight", "stride two"])
def test_the_same_bits_whatever_the_threads(name: str) -> None:
    """Each thread begins with rows of its own, those that the product behind it reads, and helps with the others' rows then."""
    (images, channels, height, width), *rest = CASES[name]
    step, inputs, out = conv(((8 * images, channels, height, width), *rest))
    compiled = compile_program(program(inputs, [out], [step]), "cpu:native", CodegenOptions(measure=False, freeze=True))
    assert "Share share(shares)" in compiled.kernel_source and "schedule(dynamic" not in compiled.kernel_source
    data = [torch.empty_strided(b.size, b.stride).copy_(torch.randn(b.size)) for b in inputs]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(Loaded(compiled.library)(*data)[0])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("width", range(1, 40))
@pytest.mark.parametrize("shape", [((3, 3, 1, 1, 1, 1), 1), ((3, 3, 2, 2, 1, 1), 1), ((3, 3, 2, 2, 1, 1), 0), ((5, 5, 1, 1, 1, 1), 2)])
def test_blocks_cover_a_row(width: int, shape: tuple[tuple[int, ...], int]) -> None:
    """No block reads a column outside of the image, and none leaves out one that is inside."""
    taps, padding = shape
    wide = (width + 2 * padding - taps[1]) // taps[3] + 1
    form = row_form(taps, width, wide, padding) if wide > 0 else None
    if form is None or form.pixels == 0:
        return
    columns = (form.pixels - 1) * taps[3] + taps[1]
    starts = list(range(0, wide - form.pixels, form.pixels))
    for number, start in enumerate([*starts, wide - form.pixels]):
        first, end = form.first if start == 0 else 0, form.end if number == len(starts) else columns
        read = range(start * taps[3] - padding + first, start * taps[3] - padding + end)
        inside = [c for c in range(start * taps[3] - padding, start * taps[3] - padding + columns) if 0 <= c < width]
        assert list(read) == inside


def test_which_convolutions_it_takes() -> None:
    step, inputs, out = conv(CASES["one block"])
    buffers = {b.name: b for b in [*inputs, out]}
    assert depthwise_fits(step, buffers)
    assert not depthwise_fits(dataclasses.replace(step, groups=12), buffers)
    assert not depthwise_fits(dataclasses.replace(step, transposed=True), buffers)
    assert not depthwise_fits(dataclasses.replace(step, activation="tanh"), buffers)
    planes = dataclasses.replace(out, stride=(1176, 49, 7, 1))
    assert not depthwise_fits(step, buffers | {"o": planes})
    assert not depthwise_fits(step, buffers | {"x": dataclasses.replace(inputs[0], dtype=DType.BF16)})


class Block(torch.nn.Module):
    """Two 1x1 convolutions with a depthwise one between them."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.wide = torch.nn.Conv2d(16, channels, 1)
        self.deep = torch.nn.Conv2d(channels, channels, 3, stride, 1, groups=channels)
        self.narrow = torch.nn.Conv2d(channels, 24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        six = torch.nn.functional.relu6
        return self.narrow(six(self.deep(six(self.wide(x)))))


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_program_with_sizes_of_the_run_time(freeze: bool, stride: int, tmp_path: object) -> None:
    model = Block(40, stride).eval()
    compiled = precast.compile(model, dynamic=True, options={"freeze": freeze}, store=tmp_path)
    with torch.no_grad():
        for size in ((2, 16, 9, 11), (3, 16, 17, 40), (5, 16, 5, 4)):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
