"""The device's libraries are started beside the compiler, by the calls that the graph will make, and only where a device is at work."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from precast.codegen.cuda import warm_up


def _graph(device: str = "cuda:0") -> torch.fx.GraphModule:
    def f(x: Any, w: Any) -> Any:
        y = torch.ops.aten.convolution.default(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        flat = y.reshape(-1, 4)
        return torch.relu(flat @ flat.t()) @ flat, x + 1

    with FakeTensorMode():
        return make_fx(f)(torch.empty(1, 4, 8, 8, device=device), torch.empty(4, 4, 1, 1, device=device))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if one GPU were at work."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream", device))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


def _made(monkeypatch: pytest.MonkeyPatch, graph: torch.fx.GraphModule) -> list[Any]:
    made: list[Any] = []
    calls = {name: lambda dtype, device, name=name: made.append((name, dtype, device)) for name in ("cuBLAS", "cuDNN")}
    monkeypatch.setattr(warm_up, "_CALLS", calls)
    thread = warm_up.start_libraries(graph)
    if thread is not None:
        thread.join()
    return made


@pytest.mark.usefixtures("device")
def test_one_call_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    assert _made(monkeypatch, _graph()) == [("cuDNN", torch.float32, gpu), ("cuBLAS", torch.float32, gpu)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["cpu", "cuda:1"])
def test_none_for_what_lies_elsewhere(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert _made(monkeypatch, _graph(name)) == []


@pytest.mark.usefixtures("device")
def test_none_while_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert warm_up.start_libraries(_graph()) is None


def test_none_without_a_device() -> None:
    assert not torch.cuda.is_initialized()
    assert warm_up.start_libraries(_graph()) is None


@pytest.mark.usefixtures("device")
def test_what_fails_is_logged_and_left_to_the_computation(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(dtype: torch.dtype, device: torch.device) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(warm_up, "_CALLS", {"cuBLAS": fails, "cuDNN": fails})
    with caplog.at_level(logging.INFO, "precast.compile"):
        thread = warm_up.start_libraries(_graph())
        assert thread is not None
        thread.join()
    assert "cuBLAS could not be started ahead: no room" in caplog.text


@pytest.mark.usefixtures("device")
def test_a_machine_without_room_for_a_thread_compiles_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    with caplog.at_level(logging.INFO, "precast.compile"):
        assert warm_up.start_libraries(_graph()) is None
    assert "can't start new thread" in caplog.text
