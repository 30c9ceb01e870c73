"""Winograd convolutions: results beside float64, every epilogue and edge, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from precast.codegen import compile_program
from precast.codegen.common.library_steps import LibraryCall
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.cpu.select_library import expand
from precast.codegen.cpu.tuning import Chooser
from precast.codegen.cpu.winograd import winograd_shape
from precast.lowering.ir.nodes import Buffer, Conv, View
from tests.codegen.loader import Loaded
from tests.codegen.programs import F32, buffer, program, view


def conv(
    x: tuple[int, ...], filters: int, padding: tuple[int, int], relu: bool, bias: bool, residual: bool, last_weight: bool = False
) -> tuple[Conv, list[Buffer], Buffer]:
    """One convolution over channels-last data, its inputs and its result."""
    n, c, h, w = x
    size = (n, filters, h + 2 * padding[0] - 2, w + 2 * padding[1] - 2)

    def last(name: str, shape: tuple[int, ...]) -> Buffer:
        return buffer(name, shape, F32, torch.empty(shape).to(memory_format=torch.channels_last).stride())

    weight = (last if last_weight else buffer)("w", (filters, c, 3, 3))
    inputs = [last("x", x), weight, buffer("b", (filters,)), last("r", size)]
    out = last("o", size)
    step = Conv(
        view(inputs[0]), view(inputs[1]), view(inputs[2]) if bias else None, "o", (1, 1), padding, (1, 1), False, (0, 0), 1,
        "relu" if relu else "none", (), view(inputs[3]) if residual else None,
    )  # fmt: skip
    return step, inputs, out


CASES = {
    "whole tiles": ((1, 64, 8, 8), 64, (1, 1), True, True, True),
    "ragged tiles": ((3, 64, 13, 7), 96, (1, 1), True, True, False),
    "no padding": ((2, 80, 9, 11), 64, (0, 0), False, True, False),
    "one side padded": ((1, 64, 5, 12), 64, (0, 1), False, False, True),
    "smaller than a tile": ((2, 128, 3, 2), 64, (1, 1), True, False, False),
    "many blocks of tiles": ((4, 64, 57, 57), 64, (1, 1), True, True, True),
    "deep": ((1, 512, 7, 7), 128, (1, 1), False, True, False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("target", "freeze", "last_weight"), [("cpu:native", True, False), ("cpu:x86-64-v3", True, True), ("cpu:native", False, True)]
)
def test_against_float64(name: str, target: str, freeze: bool, last_weight: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    size, filters, padding, relu, bias, residual = CASES[name]
    step, inputs, out = conv(*CASES[name], last_weight)
    monkeypatch.setattr(Chooser, "pick", lambda self, key, candidates, default: "winograd")
    compiled = compile_program(program(inputs, [out], [step]), target, CodegenOptions(measure=False, freeze=freeze))
    assert "winograd(" in compiled.host_source
    data = [torch.empty_strided(b.size, b.stride).copy_(torch.randn(b.size)) for b in inputs]
    data[1] /= (9 * size[1]) ** 0.5
    want = torch.nn.functional.conv2d(data[0].double(), data[1].double(), data[2].double() if bias else None, padding=padding)
    want = want + data[3] if residual else want
    want = want.relu() if relu else want
    loaded = Loaded(compiled.library)
    for _ in range(2):
        (got,) = loaded(*data)
        assert got.stride() == tuple(out.stride)
        assert (got - want).abs().max() < 1e-5 * want.abs().max()


def test_not_a_number_spreads_no_further_than_its_tiles_and_is_kept_by_relu() -> None:
    step, inputs, out = conv((1, 64, 24, 24), 64, (1, 1), True, True, False)
    loaded = Loaded(compile_program(program(inputs, [out], [step]), "cpu:native", CodegenOptions(measure=False, freeze=True)).library)
    data = [torch.empty_strided(b.size, b.stride).copy_(torch.randn(b.size)) for b in inputs]
    data[0][0, 5, 10, 10] = float("nan")
    (got,) = loaded(*data)
    want = torch.nn.functional.conv2d(data[0], data[1], data[2], padding=1).relu()
    assert got.isnan()[want.isnan()].all()
    assert not got[:, :, :4].isnan().any() and not got[:, :, 16:].isnan().any()


def test_a_changed_weight_is_transformed_again() -> None:
    step, inputs, out = conv((1, 64, 8, 8), 64, (1, 1), False, False, False)
    loaded = Loaded(compile_program(program(inputs, [out], [step]), "cpu:native", CodegenOptions(measure=False, freeze=True)).library)
    data = [torch.empty_strided(b.size, b.stride).copy_(torch.randn(b.size)) for b in inputs]
    (first,) = loaded(*data)
    data[1] *= 2
    loaded.forget()
    (second,) = loaded(*data)
    torch.testing.assert_close(second, 2 * first)


@pytest.mark.parametrize(
    "change",
    [
        {"stride": (2, 2)}, {"dilation": (2, 2)}, {"groups": 2}, {"padding": (2, 2)}, {"activation": "gelu"}, {"transposed": True},
        {"x": View("x", (1, 64, 8, 8), (4096, 64, 8, 1))}, {"weight": View("w", (64, 64, 1, 3), (576, 9, 3, 1))},
    ],
    ids=str,
)  # fmt: skip
def test_other_convolutions_are_left_to_the_library(change: dict[str, object]) -> None:
    step, inputs, out = conv((1, 64, 8, 8), 64, (1, 1), True, True, False)
    buffers = {b.name: b for b in [*inputs, out]}
    assert winograd_shape(step, buffers, 16) is not None
    assert winograd_shape(dataclasses.replace(step, **change), buffers, 16) is None


def test_unmeasured_with_prepared_weights_only() -> None:
    """Unmeasured, the library's convolution stays without `freeze`, and for a weight that is not bound."""
    step, inputs, out = conv((1, 64, 8, 8), 64, (1, 1), True, True, False)
    for freeze, bound in ((False, None), (True, ("b",))):
        options = CodegenOptions(measure=False, freeze=freeze)
        compiled = compile_program(program(inputs, [out], [step]), "cpu:native", options, CompileContext(bound=bound))
        assert "winograd" not in compiled.host_source


def test_the_choice_is_measured_and_recorded() -> None:
    step, inputs, out = conv((1, 64, 8, 8), 64, (1, 1), True, True, True)
    chooser = Chooser()
    call, *relu = expand(program(inputs, [out], [step]), [step], chooser, weights={"w"}, lanes=16)
    assert isinstance(call, LibraryCall) and len(relu) == (call.how == "onednn")  # oneDNN's own relu loses NaN
    (record,) = chooser.used.values()
    assert call.how == record["winner"]
    assert set(record["us"]) == {"onednn", "winograd"}


def test_the_same_bytes_each_time() -> None:
    step, inputs, out = conv((1, 64, 8, 8), 64, (1, 1), True, True, True)
    first, second = (
        compile_program(program(inputs, [out], [step]), "cpu:x86-64-v3", CodegenOptions(measure=False, freeze=True)).library
        for _ in range(2)
    )
    assert first == second
