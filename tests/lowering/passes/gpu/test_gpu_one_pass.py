"""Programs on a GPU that pass over their data once, without a library's call or a second kernel. Every pass is checked against eager."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from precast.lowering.build.builder import Builder
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Conv, Kernel, Program, Scan, axis_symbol, walk
from precast.lowering.passes.fusion.join_parts import _reaches, _steps
from tests.lowering.passes.gpu.test_gpu_schedule import scheduled
from tests.lowering.passes.test_schedule_models import count

X = torch.randn(2, 6, 9, 8)


class Plain(nn.Module):
    def __init__(self, fn: Callable[..., object]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.fn(*inputs)


def of(fn: Callable[..., object], *inputs: torch.Tensor) -> Program:
    return scheduled(Plain(fn), *inputs)


def kernel_of(program: Program) -> Kernel:
    (kernel,) = program.steps
    assert isinstance(kernel, Kernel)
    return kernel


ONE_KERNEL: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "reflect": (lambda x: F.pad(x, (3, 1, 2, 3), mode="reflect") * 2, (X,)),
    "replicate": (lambda x: F.pad(x, (3, 1, 2, 3), mode="replicate").relu(), (X,)),
    "scan, then more": (lambda x: (1 - x * 0.1).cumprod(-1) * 2, (torch.randn(30, 40),)),
    "values of a running maximum": (lambda x: x.cummax(-1).values, (torch.randn(30, 40),)),
    "places of a running minimum": (lambda x: x.cummin(0).indices, (torch.randn(30, 40),)),
    "log of sums": (lambda x: x.exp().logcumsumexp(1) * 2, (torch.randn(30, 40),)),
    "stack": (lambda x: torch.stack([x, x + 1, x * 2, x.neg()]), (torch.randn(16, 40),)),
    "stack of columns": (lambda x, y: torch.stack([x, y * 2], -1), (torch.randn(16, 40), torch.randn(16, 40))),
    "cat of equals": (lambda x, y: torch.cat([x, y * 2], -1), (torch.randn(16, 40), torch.randn(16, 40))),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Builder, "on_gpu", name in ("log of sums", "stack of columns"))  # what is traced here lies on the CPU
    fn, inputs = ONE_KERNEL[name]
    program = of(fn, *inputs)
    assert count(program) == {"kernel": 1}
    assert name != "stack of columns" or len(kernel_of(program).stores) == 1  # alternating elements are written side by side


def test_a_scan_stays_where_its_reader_visits_other_elements() -> None:
    for reader in (lambda s: s[:, ::2] * 2, lambda s: s.flip(1) + 1, lambda s: s + s.t(), lambda s: s.sum(1)):
        program = of(lambda x, reader=reader: reader(x.cumsum(1)), torch.randn(24, 24))
        kernels = [s for s in program.steps if isinstance(s, Kernel)]
        assert len(kernels) == 2 and any(isinstance(v, Scan) for v in walk(*(s.value for s in kernels[0].stores)))


def test_parts_that_another_step_reads_in_between_stay_apart() -> None:
    def net(x: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        into = into.slice_scatter(x, 0, 0, 16)
        return into.slice_scatter(into[:16] * 2, 0, 16, 32)

    of(net, torch.randn(16, 40), torch.randn(32, 40))  # the oracle says whether an order was lost


@pytest.mark.parametrize("strides", [(12, 1), (1, 12), (9, 3), (4, 3), (5, 0)])
def test_distances_between_visited_elements(strides: tuple[int, int]) -> None:
    axes = (Axis(axis_symbol("i1"), 3), Axis(axis_symbol("i0"), 4))
    visited = {strides[0] * a + strides[1] * b for a, b in product(range(3), range(4))}
    for distance in range(-40, 41):
        meets = any(v + distance in visited for v in visited)
        assert _reaches(distance, _steps(axes, strides)) or not meets
        assert strides[1] == 0 or _reaches(distance, _steps(axes, strides)) == meets


WINDOWS = {
    "3x3": nn.Conv2d(6, 6, 3, padding=1, groups=6),
    "strided, dilated": nn.Conv2d(6, 6, (3, 2), stride=(2, 1), padding=(0, 2), dilation=(1, 3), groups=6, bias=False),
    "of rows": nn.Conv1d(6, 6, 4, padding=3, groups=6),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_depthwise_convolution_is_a_kernel_with_what_follows(name: str) -> None:
    x = X if name != "of rows" else X[:, :, 0]
    assert count(scheduled(nn.Sequential(WINDOWS[name], nn.Hardswish()), x)) == {"kernel": 1}


def test_a_depthwise_convolution_between_others_reads_channels_last() -> None:
    """There the library's is as fast, without its epilogue."""
    net = nn.Sequential(nn.Conv2d(6, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    convs = [s for s in scheduled(net, X).steps if isinstance(s, Conv)]
    assert len(convs) == 3 and all(c.x.stride[1] == 1 for c in convs)
    assert (convs[1].activation, convs[1].bias) == ("none", None)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_of_pixels_between_planes_copies_nothing(stride: int) -> None:
    program = scheduled(nn.Sequential(nn.Conv2d(6, 4, 1, stride), nn.SiLU()), X)
    assert count(program) == {"kernel": 1, "conv": 1}
    (conv,) = (s for s in program.steps if isinstance(s, Conv))
    assert conv.x.buffer == "in2" and program.buffer(conv.out).stride == ix.contiguous_strides(program.buffer(conv.out).size)


def test_a_convolution_of_pixels_before_another_makes_channels_last() -> None:
    program = scheduled(nn.Sequential(nn.Conv2d(6, 4, 1), nn.SiLU(), nn.Conv2d(4, 4, 3)), X)
    assert all(s.x.stride[1] == 1 for s in program.steps if isinstance(s, Conv))


def test_wide_windows_and_groups_of_several_channels_are_the_librarys() -> None:
    for conv in (nn.Conv2d(6, 6, 7, padding=3, groups=6), nn.Conv2d(6, 12, 3, groups=6), nn.Conv2d(6, 6, 3, groups=3)):
        assert any(isinstance(s, Conv) for s in scheduled(conv, X).steps)


@pytest.mark.parametrize("bias", [False, True])
def test_what_leaves_the_program_in_planes_has_its_epilogue_in_the_kernel_that_lays_it_out(bias: bool) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(6, 6, 3, padding=1, bias=bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.conv(x) + x)

    program = scheduled(Residual(), X)
    (conv,) = (s for s in program.steps if isinstance(s, Conv))
    assert conv.bias is None and conv.activation == "none" and program.buffer(conv.out).stride[1] == 1
    assert program.buffer(program.outputs[0].view.buffer).stride == (432, 72, 8, 1)  # type: ignore[union-attr]
