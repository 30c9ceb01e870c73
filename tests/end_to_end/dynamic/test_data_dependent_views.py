"""Views that are given back and whose place or size depends on data: windows onto the same memory as eager's, from one artifact."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.runtime.api.compile import site_of
from tests.support.processes import cold_then_warm


def narrowed(x: torch.Tensor, i: torch.Tensor) -> Any:
    return torch.narrow(x, 1, i, 2)


def beginning(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[: i.item() % 4]


def selected(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x.transpose(0, 1)[1:].select(1, i.item())


def of_a_result(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x * 2
    return torch.narrow(y, 0, i, 2), y


def two_of_a_selection(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x[x > i]
    return y[1:], y


def parts(x: torch.Tensor, i: torch.Tensor) -> Any:
    n = int((i + 0).item())
    return x[:n], x[n:], x[:, n:4:2], x[n : n + 2].transpose(0, 2), x[n:][:, :n]


def parts_of_a_result(x: torch.Tensor, i: torch.Tensor) -> Any:
    y, n = x * 2, int((i + 0).item())
    return y[n:], y[:n], y


def split(x: torch.Tensor, i: torch.Tensor) -> Any:
    return torch.tensor_split(x, torch.stack([i, i + 1]), 1)


def from_the_largest(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[x[:, 0, 0].argmax().item() :]


def views(result: Any) -> list[tuple[Any, ...]]:
    tensors = result if isinstance(result, tuple) else (result,)
    return [(t.tolist(), t.shape, t.stride(), t.storage_offset()) for t in tensors]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [narrowed, beginning, selected, of_a_result, two_of_a_selection])
def test_the_same_window_for_every_value(fn: Callable[..., Any], dynamic: bool | None, tmp_path: Path) -> None:
    compiled = precast.compile(fn, fullgraph=True, dynamic=dynamic, store=str(tmp_path))
    with torch.no_grad():
        for start in (2, 0, 3, 1, -2, -5):
            x, i = torch.randn(5, 5, 6), torch.tensor(start)
            assert views(compiled(x, i)) == views(fn(x, i)), start
    assert len(site_of(compiled).programs[0].variants) <= 2  # one counts from the front, one from the end


@pytest.mark.parametrize("fn", [parts, parts_of_a_result, split, from_the_largest])
def test_parts_of_computed_lengths(fn: Callable[..., Any], tmp_path: Path) -> None:
    compiled = precast.compile(fn, fullgraph=True, store=str(tmp_path))
    with torch.no_grad():
        for start in (2, 0, 4, -3, 9, -9, 2**40):
            x, i = torch.randn(5, 5, 6), torch.tensor(start)
            assert views(compiled(x, i)) == views(fn(x, i)), start
    assert len(site_of(compiled).programs[0].variants) == 1


def test_writes_through_the_view_reach_the_input(tmp_path: Path) -> None:
    compiled, x = precast.compile(narrowed, fullgraph=True, store=str(tmp_path)), torch.zeros(5, 5, 6)
    with torch.no_grad():
        compiled(x, torch.tensor(3)).fill_(1.0)
        whole = precast.compile(two_of_a_selection, fullgraph=True, store=str(tmp_path))
        part, all_of_it = whole(torch.ones(4), torch.tensor(0))
        part.zero_()
    assert x.sum(dim=(0, 2)).tolist() == [0, 0, 0, 30, 30] and all_of_it.tolist() == [1, 0, 0, 0]


def test_a_place_outside_raises_as_eager_does(tmp_path: Path) -> None:
    compiled, x = precast.compile(narrowed, store=str(tmp_path)), torch.randn(5, 5, 6)
    with torch.no_grad():
        compiled(x, torch.tensor(2))
        for start in (4, -1):
            with pytest.raises(RuntimeError, match="exceeds"):
                compiled(x, torch.tensor(start))
        with pytest.raises(IndexError, match="range"):
            compiled(x, torch.tensor(7))


def test_a_selection_outside_of_a_selection_raises_as_eager_does(tmp_path: Path) -> None:
    def picked(x: torch.Tensor, i: torch.Tensor) -> Any:
        y = x[x[:, 0, 0] > -100]
        return y[(i + 0).item()], y  # type: ignore[index]

    compiled, x = precast.compile(picked, fullgraph=True, store=str(tmp_path)), torch.randn(5, 5, 6)
    with torch.no_grad():
        for inside in (2, -5, 4):
            assert views(compiled(x, torch.tensor(inside))) == views(picked(x, torch.tensor(inside)))
        for outside in (-6, 5, 2**40):
            with pytest.raises(IndexError, match=f"index {outside} is out of bounds for dimension 0 with size 5"):
                compiled(x, torch.tensor(outside))


def test_where_a_view_begins_as_a_number(tmp_path: Path) -> None:
    def begins(x: torch.Tensor, i: torch.Tensor) -> Any:
        y = x[(i + 0).item() :]  # type: ignore[misc]
        return y.storage_offset() + 1, y

    compiled, x = precast.compile(begins, fullgraph=True, store=str(tmp_path)), torch.randn(5, 5, 6)
    with torch.no_grad():
        for start in (2, -1, 9):
            found, wanted = compiled(x, torch.tensor(start)), begins(x, torch.tensor(start))
            assert found[0] == wanted[0] and views(found[1]) == views(wanted[1])


def test_a_view_of_an_input_that_begins_later(tmp_path: Path) -> None:
    compiled, memory = precast.compile(parts, fullgraph=True, store=str(tmp_path), dynamic=True), torch.randn(300)
    with torch.no_grad():
        for x in (memory[7:157].view(5, 5, 6), memory[3:171].view(7, 4, 6), memory[:150].view(5, 6, 5).transpose(1, 2)):
            for start in (2, -3):
                assert views(compiled(x, torch.tensor(start))) == views(parts(x, torch.tensor(start)))


def test_served_by_a_fresh_process(tmp_path: Path) -> None:
    source = """
import sys
import torch
import precast

def narrowed(x, i):
    return torch.narrow(x, 1, i, 2)

compiled, x = precast.compile(narrowed, store=sys.argv[1]), torch.randn(5, 5, 6)
with torch.no_grad():
    same = all(torch.equal(compiled(x, torch.tensor(n)), narrowed(x, torch.tensor(n))) for n in (0, 3, -2))
print(same, "torch._dynamo" in sys.modules)
"""
    assert cold_then_warm(tmp_path, "narrowing", source) == [["True", "True"], ["True", "False"]]


def doubled_in_a_row(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.reshape(-1)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_reshape_of_an_input_that_is_written_and_strided(dynamic: bool | None, tmp_path: Path) -> None:
    """Of some strides the reshape is a view: where sizes vary, such a call runs eagerly, with the reason; others are compiled."""
    compiled = precast.compile(doubled_in_a_row, store=tmp_path, dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (5, 4, 7):
            for whole in (torch.randn(rows, 6), torch.randn(rows, 6)[:, ::2], torch.randn(rows, 6)[1:, ::2], torch.randn(6, rows).t()):
                x, y = whole, _same_layout(whole)
                got, wanted = compiled(x), doubled_in_a_row(y)
                torch.testing.assert_close(got, wanted, rtol=0, atol=0)
                assert got.stride() == wanted.stride() and torch.equal(x, y)
                assert (got.untyped_storage()._cdata == x.untyped_storage()._cdata) is (
                    wanted.untyped_storage()._cdata == y.untyped_storage()._cdata
                )


def _same_layout(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and offset in memory of its own."""
    whole = torch.zeros(x.untyped_storage().nbytes() // x.element_size())
    return whole.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)
