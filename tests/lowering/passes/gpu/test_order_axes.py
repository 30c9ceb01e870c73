"""Reductions run along memory innermost, with the values that they had."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from precast.lowering.ir.nodes import Kernel, Load, Program, Reduce, walk
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify
from tests.ops.runners import program_of


def reductions(program: Program) -> list[Reduce]:
    kernels = [s for s in program.steps if isinstance(s, Kernel)]
    return [v for k in kernels for s in k.stores for v in walk(s.value) if isinstance(v, Reduce)]


def last_strides(reduce: Reduce) -> set[int]:
    """Elements between neighbours along the innermost reduced axis."""
    symbol = reduce.axes[-1].symbol
    return {int(v.index.coeff(symbol)) for v in walk(reduce.value) if isinstance(v, Load) and symbol in v.index.free_symbols}


def channels_last(*size: int) -> torch.Tensor:
    return torch.randn(size).to(memory_format=torch.channels_last)


def test_a_group_of_channels_is_reduced_pixel_by_pixel() -> None:
    """What is kept of each point goes with the reduction, so that the row can stay in registers."""

    def program(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = a + b
        return kept, F.group_norm(kept, 4)

    found = program_of(program, (channels_last(2, 48, 6, 5), channels_last(2, 48, 6, 5)), schedule=True, target="cuda:sm_90")[0]
    assert reductions(found) and all(last_strides(r) == {1} for r in reductions(found))
    (kernel,) = (s for s in found.steps if isinstance(s, Kernel) and any(isinstance(v, Reduce) for x in s.stores for v in walk(x.value)))
    assert [a.extent for a in kernel.axes[-2:]] == [a.extent for a in reductions(found)[0].axes]


PROGRAMS: dict[str, Callable[[torch.Tensor], object]] = {
    "group norm": lambda a: F.group_norm(a, 4),
    "sum and largest": lambda a: (a.sum((1, 2)), a.amax((1, 3)), a.prod(1).sum(1)),
    "what is kept": lambda a: ((a + 1).relu(), F.silu(F.group_norm((a + 1).relu(), 2))),
    "place of the largest": lambda a: (a.flatten(1).argmax(1), a.transpose(1, 3).flatten(2).argmin(2)),
    "any": lambda a: (a > 1.5).any(1).any(1),
}


@pytest.mark.parametrize("name", list(PROGRAMS))
@pytest.mark.parametrize("size", [(2, 8, 3, 5), (1, 12, 1, 7)])
def test_values_stay(name: str, size: tuple[int, ...]) -> None:
    a = channels_last(*size)
    found = program_of(PROGRAMS[name], (a,), schedule=True, target="cuda:sm_90")[0]
    got = run(verify(found), [a])
    want = PROGRAMS[name](a.double())
    for mine, theirs in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(mine.to(theirs.dtype), theirs, rtol=1e-5, atol=1e-5)


def test_places_are_counted_in_the_order_of_the_graph() -> None:
    """The first of equals is the first in the order of dimensions, not in that of memory."""
    a = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    a[0, 1, 0, 0] = a[0, 0, 3, 4] = 1.0
    found = program_of(lambda a: a.flatten(1).argmax(1), (a,), schedule=True, target="cuda:sm_90")[0]
    assert run(verify(found), [a])[0].tolist() == [19, 0]
