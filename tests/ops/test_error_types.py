"""Run-time positions out of bounds raise the exception that eager raises on a CPU: an IndexError, or of some operators a RuntimeError.

Each case is compiled with its sizes as constants and as symbols, and called with positions beyond the end and before the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.compiled import compiled

Fn = Callable[[Tensor, Tensor], Tensor]
ONES = torch.ones(2, 4)

CASES: dict[str, Fn] = {
    "x[i]": lambda x, i: x[i] * 2,
    "x[:, i]": lambda x, i: x[:, i] * 2,
    "x[i, i]": lambda x, i: x[i, i] * 2,
    "index_select": lambda x, i: x.index_select(0, i) * 2,
    "index_select/vector": lambda x, i: x[:, 0].index_select(0, i) * 2,
    "index_select/columns": lambda x, i: x.index_select(1, i) * 2,
    "index_select/last of three": lambda x, i: x[None].index_select(-1, i) * 2,
    "index_select/transposed": lambda x, i: x.t().index_select(1, i) * 2,
    "index_select/complex": lambda x, i: x.to(torch.complex64).index_select(0, i) * 2,
    "gather": lambda x, i: x.gather(0, i[:, None]) * 2,
    "gather/columns": lambda x, i: x.gather(1, i[None]) * 2,
    "gather/halves": lambda x, i: x.half().gather(0, i[:, None].expand(2, 4)) * 2,
    "take_along_dim/flat": lambda x, i: torch.take_along_dim(x, i) * 2,
    "take": lambda x, i: torch.take(x, i) * 2,
    "embedding": lambda x, i: F.embedding(i, x) * 2,
    "scatter": lambda x, i: x.scatter(0, i[:, None], ONES) * 2,
    "scatter/value": lambda x, i: x.scatter(0, i[:, None], 1.0) * 2,
    "scatter/reduce": lambda x, i: x.scatter(0, i[:, None], 2.0, reduce="multiply") * 2,
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(2, 4), ONES) * 2,
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], ONES, "amax") * 2,
    "scatter_reduce/mean": lambda x, i: x.scatter_reduce(0, i[:, None], ONES, "mean", include_self=False) * 2,
    "scatter_": lambda x, i: x.clone().scatter_(0, i[:, None], 1.0) * 2,
    "index_add": lambda x, i: x.index_add(0, i, ONES) * 2,
    "index_add/columns": lambda x, i: x.index_add(1, i, torch.ones(5, 2)) * 2,
    "index_add/vector": lambda x, i: x[:, 0].index_add(0, i, torch.ones(2)) * 2,
    "index_copy": lambda x, i: x.index_copy(0, i, ONES) * 2,
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0) * 2,
    "index_reduce": lambda x, i: x.index_reduce(0, i, ONES, "amax") * 2,
    "index_put": lambda x, i: x.index_put((i,), ONES) * 2,
    "index_put/sum": lambda x, i: x.index_put((i,), ONES, accumulate=True) * 2,
    "put": lambda x, i: x.put(i, torch.ones(2)) * 2,
    "nll_loss": lambda x, i: F.nll_loss(x[:2], i) * 2,
    "nll_loss/weight": lambda x, i: F.nll_loss(x[:2], i, x[0], reduction="sum") * 2,
    "nll_loss/pixels": lambda x, i: F.nll_loss(x[None, :, :2, None], i[None, :, None], reduction="none") * 2,
    "cross_entropy": lambda x, i: F.cross_entropy(x[:2], i) * 2,
    "max_unpool1d": lambda x, i: F.max_unpool1d(x[None, :1, :2], i[None, None], 2) * 2,
    "max_unpool2d": lambda x, i: F.max_unpool2d(x[None, :2, None, :2], i[None, None, None].expand(1, 2, 1, 2), 2) * 2,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_positions_out_of_bounds_raise_what_eager_raises(name: str, dynamic: bool, tmp_path: Path) -> None:
    fn, x = CASES[name], torch.randn(5, 4)
    ours = compiled(fn, tmp_path, dynamic=dynamic)
    good = torch.tensor([0, 3])
    torch.testing.assert_close(ours(x, good), fn(x, good))
    for wrong in (99, -99):
        with pytest.raises((IndexError, RuntimeError)) as theirs:
            fn(x, torch.tensor([0, wrong]))
        with pytest.raises(type(theirs.value)) as found:
            ours(x, torch.tensor([0, wrong]))
        assert type(found.value) is type(theirs.value)


def both(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] + parts[1]


USED: dict[str, tuple[Fn, bool]] = {
    "other dimension": (lambda x, i: x[i][:, :1] * 2, True),
    "all parts": (lambda x, i: both(x[i].chunk(2)), True),
    "columns of gather": (lambda x, i: x.gather(0, i[:, None].expand(2, 4))[:, 1] * 2, True),
    "written": (lambda x, i: x.index_add(0, i, ONES)[:1] * 2, True),
    "first": (lambda x, i: x[i][:1] * 2, False),
    "first of embedding": (lambda x, i: F.embedding(i, x)[0] * 2, False),
    "unused": (lambda x, i: (x[i], x + 1)[1], False),
}
"""Uses of a part of what lies at the positions, and whether the second position is among those that are looked at."""


@pytest.mark.parametrize("name", USED)
def test_positions_are_checked_where_their_elements_are_needed(name: str, tmp_path: Path) -> None:
    fn, checked = USED[name]
    x, ours = torch.randn(5, 4), compiled(fn, tmp_path)
    torch.testing.assert_close(ours(x, torch.tensor([3, 0])), fn(x, torch.tensor([3, 0])))
    if checked:
        with pytest.raises((IndexError, RuntimeError)):
            ours(x, torch.tensor([3, 99]))
    else:
        torch.testing.assert_close(ours(x, torch.tensor([3, 99])), fn(x, torch.tensor([3, 0])))


def test_a_place_in_the_next_plane_is_out_of_bounds(tmp_path: Path) -> None:
    """Planes lie behind one another: 5 is the second pixel of the next one."""
    x, places = torch.randn(1, 2, 1, 2), torch.tensor([0, 5, 1, 2]).view(1, 2, 1, 2)
    for fn in (lambda x, i: F.max_unpool2d(x, i, (1, 2)), lambda x, i: F.max_unpool2d(x, i, (2, 2), output_size=(2, 4))):
        ours = compiled(fn, tmp_path)
        torch.testing.assert_close(ours(x, places % 2), fn(x, places % 2))
    with pytest.raises(RuntimeError):
        F.max_unpool2d(x, places, (1, 2))
    with pytest.raises(RuntimeError):
        compiled(lambda x, i: F.max_unpool2d(x, i, (1, 2)), tmp_path)(x, places)


def test_words_of_library_calls_that_mean_an_index() -> None:
    from precast.runtime.executable.run_errors import raise_run_error

    with pytest.raises(IndexError, match="on a tensor of 20 elements"):
        raise_run_error("out of range: tried to access index 129 on a tensor of 20 elements. [in step 1: aten::put]")
    with pytest.raises(IndexError):
        torch.median(torch.zeros(0, 3), 0)
    with pytest.raises(IndexError):
        raise_run_error("median(): Expected reduction dim 0 to have non-zero size. [in step 0: aten::median.dim]")
    with pytest.raises(RuntimeError, match="the library call failed"):
        raise_run_error("the library call failed: index out of range in self is not what it says first")
