"""Updates at run-time indices that threads share: each place in the order of one thread, whatever their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import precast
from precast.codegen.cpp.kernel import render_kernel
from precast.lowering.ir.nodes import Kernel
from tests.ops.runners import program_of

Fn = Callable[..., Tensor]


def rows(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.index_add(0, i, s)


def halves(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.bfloat16().index_add(0, i, s.bfloat16(), alpha=3)


def largest(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.scatter_reduce(0, i[:, None].expand_as(s), s, "amax")


def pairs(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.view(-1, 5, x.shape[1]).index_put((i % 10 - 10, i % 5), s, accumulate=True)


def columns(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.t().contiguous().index_add(1, i, s.t())


def within(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return s.scatter_add(1, i[: len(s), None].expand_as(s) % s.shape[1], s * 2)


def fed(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    """A row's value is an average of others."""
    return x.index_add(0, i, s * s.mean(-1, keepdim=True))


FUNCTIONS: tuple[Fn, ...] = (rows, halves, largest, pairs, columns, within, fed)
OWNED = (rows, halves, largest, pairs)


def inputs(updates: int = 3001, width: int = 70) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    s = torch.randn(updates, width)
    s[3, 1], s[5, 0] = float("nan"), float("inf")
    return torch.randn(50, width), torch.randint(0, 50, (updates,)), s


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def texts(fn: Fn) -> str:
    program, _ = program_of(fn, inputs(), schedule=True)
    return "\n".join(render_kernel(s, {b.name: b for b in program.buffers}).source for s in program.steps if isinstance(s, Kernel))


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_any_number_of_threads_gives_the_results_of_one(fn: Fn, threads: Callable[[int], None], tmp_path: Path) -> None:
    compiled = precast.compile(fn, store=tmp_path, fullgraph=True)
    arguments = inputs()
    threads(1)
    one = compiled(*arguments)
    wide = [(a.bfloat16() if fn is halves else a).double() if a.is_floating_point() else a for a in arguments]
    want = wide[0].index_add(0, wide[1], wide[2], alpha=3) if fn is halves else fn(*wide)
    tolerance = 2e-2 if fn is halves else 1e-4
    torch.testing.assert_close(one.double(), want.double(), rtol=tolerance, atol=tolerance * 20, equal_nan=True)
    for number in (2, 3):
        threads(number)
        torch.testing.assert_close(compiled(*arguments), one, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fn", OWNED)
def test_threads_own_ranges_of_positions(fn: Fn) -> None:
    assert "own_0" in texts(fn)


def test_rows_that_are_apart_are_shared_out_themselves() -> None:
    for fn in (within, columns):
        source = texts(fn)
        assert "own_0" not in source
        before, _, _ = source.partition("bad_index")
        assert before.rstrip().count("#pragma omp parallel") >= 1


def test_short_rows_are_not_shared() -> None:
    source = ""
    program, _ = program_of(rows, inputs(3000, 4), schedule=True)
    for step in program.steps:
        if isinstance(step, Kernel):
            source += render_kernel(step, {b.name: b for b in program.buffers}).source
    assert "own_0" not in source


def test_an_index_out_of_range_is_reported(threads: Callable[[int], None], tmp_path: Path) -> None:
    x, i, s = inputs()
    i[1234] = 50
    threads(2)
    with pytest.raises(RuntimeError, match="index 50 is out of bounds"):
        precast.compile(rows, store=tmp_path)(x, i, s)


def test_sizes_of_the_run_time(threads: Callable[[int], None], tmp_path: Path) -> None:
    compiled = precast.compile(rows, store=tmp_path, dynamic=True, fullgraph=True)
    threads(5)
    for updates in (3001, 7, 0, 512):
        x, i, s = inputs(max(updates, 8))
        i, s = i[:updates], s[:updates]
        torch.testing.assert_close(compiled(x, i, s), rows(x, i, s), equal_nan=True)
