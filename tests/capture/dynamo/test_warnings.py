"""What a person reads when torch's tracer fails, warns or logs: whose fault it is, at which line of theirs, once."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from typing import Any

import pytest
import torch
from torch._dynamo.output_graph import OutputGraph

import precast
from precast.artifact_store import Store
from precast.runtime.common.errors import failure_text


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + 1


def test_a_signature_that_does_not_fit_is_one_line(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    report = str(precast.precompile(Net(), [((torch.ones(2, 5),), {})], store=store))
    (line,) = [line for line in report.splitlines() if "signature 1" in line]
    row = inspect.getsourcelines(Net.forward)[1] + 1
    assert "linear given tensors of sizes (2, 5), (4, 4), (4,) raises RuntimeError: " in line
    assert "[2, 5] X [4, 4]" in line and line.endswith(f"(at {__file__}:{row})")
    written = capfd.readouterr()
    assert "failed while attempting" not in written.err + written.out


@pytest.mark.parametrize("change", ["pop", "insert", "times"])
def test_a_size_that_varies_is_a_place_in_a_list(change: str, store: Store) -> None:
    def function(x: torch.Tensor, items: list[int]) -> Any:
        if change == "pop":
            return x + items.pop(x.shape[0])
        if change == "insert":
            items.insert(x.shape[0], 9)
        else:
            items *= x.shape[0]
        return x + len(items)

    compiled = precast.compile(function, store=store, dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (2, 3, 2):
            given, wanted = [1, 2, 3, 4], [1, 2, 3, 4]
            torch.testing.assert_close(compiled(torch.ones(n), given), function(torch.ones(n), wanted))
            assert given == wanted


def test_a_fault_of_torchs_tracer_is_called_torchs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STRICT", "0")

    def broken(*args: Any, **kwargs: Any) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(OutputGraph, "compile_subgraph", broken)
    with pytest.warns(UserWarning, match=r"which is a fault of torch .* \(at torch/_dynamo/symbolic_convert.py:\d+; .* KeyError: 'lost'"):
        assert precast.compile(lambda x: x + 1, store=store)(torch.ones(2)).tolist() == [2, 2]


def test_a_fault_of_precasts_own_is_called_precasts() -> None:
    try:
        precast.runtime.paths.paths.walk(None, ("no such step",))  # type: ignore[attr-defined]
    except ValueError as error:
        assert "a bug of precast" in failure_text(error)
    else:
        pytest.fail("an unknown step is an error")


@functools.lru_cache
def doubled(n: int) -> int:
    return n * 2


def test_a_cached_helper_that_returns_a_constant_warns_of_nothing(store: Store) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + doubled(3)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert precast.compile(function, store=store)(torch.ones(2)).tolist() == [7, 7]


def test_no_warning_names_a_line_of_precasts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning of torch's whose `stacklevel` leads to a frame of precast's shows the line that called the compiled function."""
    original = OutputGraph.compile_subgraph

    def warning(*args: Any, **kwargs: Any) -> Any:
        level, frame = 1, inspect.currentframe()
        while frame is not None and not frame.f_globals["__name__"].startswith("precast."):
            level, frame = level + 1, frame.f_back
        assert frame is not None
        warnings.warn("what torch says", stacklevel=level)
        return original(*args, **kwargs)

    of_torch = types.FunctionType(warning.__code__, {**globals(), "__name__": "torch.pretended"}, closure=warning.__closure__)
    monkeypatch.setattr(OutputGraph, "compile_subgraph", of_torch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert precast.compile(lambda x: x + 1, store=store)(torch.ones(2)).tolist() == [2, 2]
    (said,) = [w for w in caught if "what torch says" in str(w.message)]
    here = inspect.getsourcelines(test_no_warning_names_a_line_of_precasts)[1]
    assert said.filename == __file__ and said.lineno == here + 16
