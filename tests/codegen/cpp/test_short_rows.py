"""Rows of a few elements, run over as one range: whatever repeats with each row, or differs from row to row, and at any size."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from tests.codegen.loader import Loaded
from tests.ops.runners import program_of

Fn = Callable[..., Tensor]


def whole(*size: int) -> Tensor:
    return torch.randn(size)


PROGRAMS: dict[str, tuple[Fn, Callable[[int], tuple[Tensor, ...]]]] = {
    "a scale of channels": (lambda a, b: (a * b).relu(), lambda n: (whole(n, 3), whole(3))),
    "a scale of rows": (lambda a, b: a * b + 1, lambda n: (whole(n, 3), whole(n, 1))),
    "both": (lambda a, b, c: (a - b) * c, lambda n: (whole(n, 5), whole(5), whole(n, 1))),
    "computed of the channel": (lambda a, b: a * torch.exp(b) + torch.arange(7), lambda n: (whole(n, 7), whole(7))),
    "computed of the row": (lambda a, b: a * torch.sigmoid(b), lambda n: (whole(n, 4), whole(n, 1))),
    "two short axes": (lambda a, b, c: a * b + c, lambda n: (whole(n, 2, 3), whole(2, 1), whole(3))),
    "batches": (lambda a, b: a * b, lambda n: (whole(4, n, 3), whole(4, 1, 3))),
    "a slice": (lambda a: a[:, :3] * 2, lambda n: (whole(n, 8),)),
    "planes to pixels": (lambda a: (a.permute(1, 2, 0) * 2).contiguous(), lambda n: (whole(3, n, 5),)),
    "half types": (lambda a, b: a * b, lambda n: (whole(n, 6).bfloat16(), whole(6).half())),
    "bytes": (lambda a, b: (a.float() - b).to(torch.int16), lambda n: (torch.randint(0, 256, (n, 3), dtype=torch.uint8), whole(3) * 9)),
    "a choice of rows": (lambda a, b, c: torch.where(b, a, c), lambda n: (whole(n, 3), torch.rand(n, 1) < 0.5, whole(3))),
    "a choice of channels": (lambda a, b: torch.where(b, a, -a), lambda n: (whole(n, 9), torch.rand(9) < 0.5)),
    "padded": (lambda a, b: F.pad(a, (1, 1)) * b, lambda n: (whole(n, 3), whole(5))),
    "joined": (lambda a, b: torch.cat([a, b], 1).relu(), lambda n: (whole(n, 2), whole(n, 3))),
    "repeated": (lambda a: F.interpolate(a, scale_factor=2) * 0.5, lambda n: (whole(2, 3, n, 9),)),
    "doubles": (lambda a, b: a / b, lambda n: (whole(n, 3).double(), whole(3).double())),
    "one of a row": (lambda a: a - a[:1], lambda n: (whole(n, 3),)),
}
LOOP = re.compile(r"\brepeat_row\(|\brow\d+\[\(")


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, target: str) -> None:
    fn, make = PROGRAMS[name]
    for rows in (1, 2, 170, 171, 1000):
        inputs = make(rows)
        inputs[0].view(-1)[0] = 0 if not inputs[0].is_floating_point() else float("nan")
        program, rebuild = program_of(fn, inputs, schedule=True, target=target)
        compiled = compile_program(program, target, CodegenOptions(measure=False))
        torch.testing.assert_close(rebuild(Loaded(compiled.library)(*inputs)), fn(*inputs), equal_nan=True)


@pytest.mark.parametrize("name", ["a scale of channels", "a scale of rows", "two short axes", "bytes", "a choice of rows"])
def test_short_rows_are_one_range(name: str) -> None:
    fn, make = PROGRAMS[name]
    program, _ = program_of(fn, make(1000), schedule=True)
    compiled = compile_program(program, "cpu:x86-64-v3", CodegenOptions(measure=False))
    assert LOOP.search(compiled.kernel_source), compiled.kernel_source


@pytest.mark.parametrize("columns", [12, 64, 100])
def test_long_rows_keep_their_loops(columns: int) -> None:
    program, _ = program_of(lambda a, b: a * b, (whole(500, columns), whole(columns)), schedule=True)
    compiled = compile_program(program, "cpu:x86-64-v3", CodegenOptions(measure=False))
    assert not LOOP.search(compiled.kernel_source), compiled.kernel_source


@pytest.mark.parametrize("name", ["a scale of channels", "a scale of rows", "two short axes", "batches", "one of a row"])
def test_numbers_of_rows_that_vary(name: str) -> None:
    fn, make = PROGRAMS[name]
    import precast

    compiled = precast.compile(fn, dynamic=True)
    for rows in (5, 0, 1, 300, 2048):
        inputs = make(rows)
        torch.testing.assert_close(compiled(*inputs), fn(*inputs))
