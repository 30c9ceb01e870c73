"""Convolutions over images of few channels: results beside float64 at every edge and in every layout, what follows, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precast
from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.codegen.cpu import library_calls
from precast.codegen.cpu.direct.few_channels import Tile, tile_of
from precast.lowering.analysis.depthwise import few_channels_fits
from precast.lowering.ir.nodes import Buffer, Conv
from precast.lowering.ir.scalars import DType
from tests.codegen.loader import Loaded
from tests.codegen.programs import F32, buffer, program, view

Pair = tuple[int, int]
Case = tuple[tuple[int, ...], int, Pair, Pair, Pair, Pair, Pair | None]


def last(name: str, shape: tuple[int, ...]) -> Buffer:
    n, c, h, w = shape
    return buffer(name, shape, F32, (h * w * c, 1, w * c, c))


def exact(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, case: Case) -> torch.Tensor:
    """The convolution in the type of its operands."""
    _, _, _, stride, padding, dilation, behind = case
    (top, left), (bottom, right) = padding, behind or padding
    return F.conv2d(F.pad(x, (left, right, top, bottom)), w, b, stride, 0, dilation)


def conv(case: Case, activation: str = "none", order: str = "planes") -> tuple[Conv, list[Buffer], Buffer]:
    """One convolution, its inputs and its result."""
    x, filters, window, stride, padding, dilation, behind = case
    out = exact(torch.empty(x), torch.empty(filters, x[1], *window), None, case).shape
    image = buffer("x", x) if order == "planes" else last("x", x)
    inputs = [image, buffer("w", (filters, x[1], *window)), buffer("b", (filters,))]
    arguments = (-0.5, 1.0) if activation == "hardtanh" else ()
    step = Conv(
        view(inputs[0]), view(inputs[1]), view(inputs[2]), "o", stride, padding, dilation, False, (0, 0), 1, activation, arguments,
        padding_behind=behind,
    )  # fmt: skip
    return step, inputs, last("o", tuple(out))


CASES: dict[str, Case] = {
    "a network's first": ((2, 3, 33, 35), 32, (3, 3), (2, 2), (1, 1), (1, 1), None),
    "unequal padding": ((2, 3, 32, 28), 32, (3, 3), (2, 2), (0, 0), (1, 1), (1, 1)),
    "more zeros before": ((1, 2, 10, 17), 48, (3, 3), (1, 1), (2, 1), (1, 1), (0, 2)),
    "large window": ((1, 3, 30, 40), 64, (7, 7), (2, 2), (3, 3), (1, 1), None),
    "odd filters": ((2, 3, 9, 31), 50, (3, 3), (1, 1), (1, 1), (1, 1), None),
    "one vector of filters": ((1, 1, 12, 29), 16, (5, 5), (1, 1), (2, 2), (1, 1), None),
    "one vector and a half": ((1, 4, 12, 29), 24, (3, 3), (1, 2), (1, 1), (1, 1), None),
    "narrower than a block": ((3, 3, 6, 5), 32, (3, 3), (1, 1), (1, 1), (1, 1), None),
    "dilation": ((1, 3, 20, 23), 32, (3, 3), (1, 2), (2, 3), (2, 3), None),
    "window wider than the image": ((2, 3, 3, 2), 32, (7, 7), (1, 1), (3, 3), (1, 1), None),
    "more padding than window": ((1, 3, 4, 11), 32, (3, 3), (1, 1), (4, 5), (1, 1), None),
    "patches": ((1, 3, 32, 32), 96, (4, 4), (4, 4), (0, 0), (1, 1), None),
}
FOLLOWS = {
    "relu": torch.relu, "hardtanh": lambda x: F.hardtanh(x, -0.5, 1.0), "silu": F.silu, "none": lambda x: x,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("target", "freeze", "order"),
    [("cpu:native", True, "planes"), ("cpu:x86-64-v3", False, "planes"), ("cpu:x86-64-v2", False, "last"), ("cpu:native", False, "last")],
)
def test_against_float64(name: str, target: str, freeze: bool, order: str) -> None:
    activation = list(FOLLOWS)[len(name) % 4]
    step, inputs, out = conv(CASES[name], activation, order)
    compiled = compile_program(program(inputs, [out], [step]), target, CodegenOptions(measure=False, freeze=freeze))
    assert "namespace few_channels" in compiled.kernel_source
    data = [torch.empty_strided(b.size, b.stride).copy_(torch.randn(b.size)) for b in inputs]
    data[0][0, 0, 0, 0], data[0][0, -1, -1, -1] = float("nan"), float("inf")
    want = FOLLOWS[activation](exact(data[0].double(), data[1].double(), data[2].double(), CASES[name]))
    loaded = Loaded(compiled.library)
    for _ in range(2):
        (got,) = loaded(*data)
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_the_same_bits_whatever_the_threads() -> None:
    step, inputs, out = conv(((4, 3, 64, 60), 40, (3, 3), (2, 2), (1, 1), (1, 1), None), "relu")
    compiled = compile_program(program(inputs, [out], [step]), "cpu:native", CodegenOptions(measure=False))
    data = [torch.randn(b.size) for b in inputs]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(Loaded(compiled.library)(*data)[0])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found)


def test_blocks_that_cover_a_row_evenly() -> None:
    step, _, out = conv(((1, 3, 224, 224), 32, (3, 3), (2, 2), (1, 1), (1, 1), None))
    assert tile_of(step, out, 16) == Tile(14, 2)
    assert tile_of(step, out, 8) == Tile(6, 2)
    step, _, out = conv(((1, 3, 20, 24), 32, (3, 3), (1, 1), (1, 1), (1, 1), None))
    assert tile_of(step, out, 16) == Tile(12, 1)


def test_which_convolutions_it_takes() -> None:
    step, inputs, out = conv(CASES["a network's first"])
    buffers = {b.name: b for b in [*inputs, out]}
    assert few_channels_fits(step, buffers)
    assert not few_channels_fits(dataclasses.replace(step, transposed=True), buffers)
    assert not few_channels_fits(dataclasses.replace(step, activation="tanh"), buffers)
    assert not few_channels_fits(dataclasses.replace(step, residual=view(out)), buffers)
    assert not few_channels_fits(step, buffers | {"o": dataclasses.replace(out, stride=(9216, 288, 18, 1))})
    assert not few_channels_fits(step, buffers | {"x": dataclasses.replace(inputs[0], dtype=DType.BF16)})
    wide, inputs, out = conv(((1, 5, 9, 9), 32, (3, 3), (1, 1), (1, 1), (1, 1), None))
    assert not few_channels_fits(wide, {b.name: b for b in [*inputs, out]})


class _First(nn.Module):
    """A network's first convolutions: zeros at the right and below, as TensorFlow has them, and an image as it comes from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, 2, bias=False), nn.BatchNorm2d(32)
        self.deep, self.narrow = nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu6(self.norm(self.first(F.pad(x, (0, 1, 0, 1)))))
        return self.narrow(F.relu6(self.deep(x)))


@pytest.mark.parametrize(("freeze", "dynamic"), [(True, False), (False, False), (False, True)])
def test_a_network_reads_its_images_where_they_lie(freeze: bool, dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = _First().eval(), torch.randn(2, 3, 40, 52)
    called: list[Conv] = []
    write = library_calls._few_channels
    monkeypatch.setattr(library_calls, "_few_channels", lambda writer, step, *rest: (called.append(step), write(writer, step, *rest)))
    compiled = precast.compile(model, store=tmp_path, dynamic=dynamic or None, options={"freeze": freeze})
    with torch.no_grad():
        for image in (x, torch.randn(3, 3, 61, 37)) if dynamic else (x,):
            torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
    if dynamic:
        return
    (step,) = called
    assert step.x.stride[3] == 1 and step.padding == (0, 0) and step.padding_behind == (1, 1)
    assert step.activation == "hardtanh"
