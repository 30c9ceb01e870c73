"""Choices between two computed values by the place along an outer axis: each part of a concatenation has loops of its own."""

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
PARTS: dict[str, tuple[Fn, list[tuple[int, ...]]]] = {
    "two": (lambda a, b: torch.cat([a, b], 1).relu(), [(4, 3, 50), (4, 5, 50)]),
    "computed": (lambda a, b: torch.cat([a * 2, b.exp()], 1).relu(), [(4, 3, 50), (4, 5, 50)]),
    "along the first": (lambda a, b: torch.cat([a, b]) * 0.5, [(3, 7, 30), (9, 7, 30)]),
    "few long rows": (lambda a, b: torch.cat([a, b], 1) + 1, [(2, 1, 40_000), (2, 2, 40_000)]),
    "of a sum": (lambda a, b, c: torch.cat([a, b], 1) + c, [(4, 3, 50), (4, 5, 50), (4, 8, 50)]),
    "padded too": (lambda a, b: F.pad(torch.cat([a, b], 1).relu(), (1, 1)), [(4, 3, 50), (4, 5, 50)]),
    "turned": (lambda a, b: torch.cat([a.transpose(1, 2), b], 1).relu(), [(4, 40, 33), (4, 20, 40)]),
}


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:native"])
@pytest.mark.parametrize("name", PARTS)
def test_as_eager(name: str, target: str) -> None:
    fn, sizes = PARTS[name]
    inputs = tuple(torch.randn(size) for size in sizes)
    inputs[0].view(-1)[3] = float("nan")
    inputs[1].view(-1)[0] = -0.0
    program, rebuild = program_of(fn, inputs, schedule=True, target=target)
    compiled = compile_program(program, target, CodegenOptions(measure=False))
    torch.testing.assert_close(rebuild(Loaded(compiled.library)(*inputs)), fn(*inputs), equal_nan=True)


@pytest.mark.parametrize("name", ["two", "computed", "along the first", "few long rows", "of a sum"])
def test_each_part_is_read_in_its_own_loop(name: str) -> None:
    fn, sizes = PARTS[name]
    program, _ = program_of(fn, tuple(torch.randn(size) for size in sizes), schedule=True)
    source = compile_program(program, "cpu:x86-64-v3", CodegenOptions(measure=False)).kernel_source
    bodies = re.findall(r"#pragma omp simd\n.*?\n( *)for [^\n]*\{\n(.*?)\n\1\}", source, re.S) or re.findall(
        r"#pragma omp simd\n( *)for [^\n]*\{\n(.*?)\n\1\}", source, re.S
    )
    assert bodies and "pick(" not in source
    assert all(not ("p1[" in body and "p2[" in body) for _, body in bodies)
