"""A module's globals while one of its functions is traced: what Dynamo puts there leaves again, what another thread sets stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo import convert_frame

import precast
from precast.artifact_store import Store

X = torch.arange(6.0)


def whole(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x) * 2


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print("between", end="")
    return y + 1


def refused(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.gelu(x)
    print("between", end="")
    return y


def made_meanwhile() -> set[str]:
    return {name for name in globals() if name.startswith("set_meanwhile")}


@pytest.fixture(autouse=True)
def _other_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread that sets a global of this module while Dynamo is at work."""
    original = convert_frame.compile_frame

    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        thread = threading.Thread(target=lambda: globals().update({f"set_meanwhile_{len(made_meanwhile())}": 1}))
        thread.start()
        thread.join()
        return original(*args, **kwargs)

    monkeypatch.setattr(convert_frame, "compile_frame", compile_frame)
    yield
    for name in made_meanwhile():
        del globals()[name]


@pytest.mark.parametrize(("function", "fullgraph"), [(whole, False), (broken, False), (refused, True)])
def test_what_others_set_stays_and_what_dynamo_set_leaves(function: Callable[..., Any], fullgraph: bool, tmp_path: Any) -> None:
    before = set(globals())
    compiled = precast.compile(function, store=Store.open(tmp_path), fullgraph=fullgraph)
    with torch.no_grad():
        if function is refused:
            with pytest.raises(precast.PrecastError):
                compiled(X)
        else:
            torch.testing.assert_close(compiled(X), function(X))
    meanwhile = made_meanwhile()
    assert meanwhile
    assert {name for name in set(globals()) - before - meanwhile if not name.startswith("__precast_")} == set()
