"""What is loaded under a mask is read only where the mask holds: elsewhere its index may lie outside of the buffer."""

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

EAGER_ARGUMENT = re.compile(r"pick\([^;]*\bp\d+\[")
"""A load as an argument of a function is made whatever the mask says."""

PADDED: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: F.pad(x, (0, 0, 1, 1)) * 2,
    "squares": lambda x: F.pad(x * x, (0, 0, 1, 1)),
    "flipped": lambda x: F.pad(x.flip(1), (0, 0, 1, 1)) + 1,
    "joined": lambda x: torch.cat([x, x.flip(1) * 2, x + 1], 0),
    "response": lambda x: F.local_response_norm(x[None], 3),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", PADDED)
def test_nothing_is_read_outside(name: str, symbolic: bool) -> None:
    fn, x = PADDED[name], torch.randn(5, 7)
    program, _ = program_of(fn, (x,), schedule=True, symbolic=symbolic)
    compiled = compile_program(program, "cpu:x86-64-v3", CodegenOptions(measure=False))
    assert not EAGER_ARGUMENT.search(compiled.kernel_source), compiled.kernel_source
    if not symbolic:
        torch.testing.assert_close(Loaded(compiled.library)(x)[0].reshape(fn(x).shape), fn(x))


def test_the_pattern_sees_what_it_is_about() -> None:
    assert EAGER_ARGUMENT.search("const float v7 = pick(v6, p1[(x6 + -1*s0)], 0.0f);")
    assert not EAGER_ARGUMENT.search("const float v7 = pick(v6, u3, 0.0f); p0[x1] = v7;")
