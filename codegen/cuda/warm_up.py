"""Warms up cuBLAS and cuDNN while a graph is compiled: their first call takes a tenth of a second and more.

A thread makes one small call of each kind that the captured graph will make. torch returns a library's handles to a pool when a thread
ends, and the first computation takes them from there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import torch
import torch.fx

log = logging.getLogger("precast.compile")

Kind = tuple[str, torch.dtype, torch.device]


def start_libraries(graph: torch.fx.GraphModule) -> threading.Thread | None:
    """Starts a thread that warms up the libraries that `graph` calls. None where it calls none, where this process has not initialised the
    device, while a CUDA graph is being captured, or where no thread can be started."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    kinds = dict.fromkeys(_kinds(graph))
    if not kinds or torch.cuda.is_current_stream_capturing():
        return None
    streams = {device: torch.cuda.current_stream(device) for _, _, device in kinds}

    def start() -> None:
        for name, dtype, device in kinds:
            try:
                with torch.no_grad(), torch.cuda.stream(streams[device]):
                    _CALLS[name](dtype, device)
            except RuntimeError as error:  # out of memory, say: the computation itself will tell
                log.info("%s could not be started ahead: %s", name, error)

    thread = threading.Thread(target=start, name="precast-libraries", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the limit of threads: the first computation starts them
        log.info("the device's libraries are not started ahead: %s", error)
        return None
    return thread


def _kinds(graph: torch.fx.GraphModule) -> Iterator[Kind]:
    count = torch.cuda.device_count()
    for node in graph.graph.nodes:
        name = _NAMES.get(node.target)
        value = node.meta.get("val")
        if name and isinstance(value, torch.Tensor) and value.is_cuda and (value.device.index or 0) < count:
            yield name, value.dtype, value.device


def _product(dtype: torch.dtype, device: torch.device) -> None:
    square = torch.ones(64, 64, dtype=dtype, device=device)
    torch.addmm(square[0], square, square)
    torch.mm(square, square)


def _convolution(dtype: torch.dtype, device: torch.device) -> None:
    image = torch.ones(1, 8, 16, 16, dtype=dtype, device=device).to(memory_format=torch.channels_last)
    torch.conv2d(image, torch.ones(8, 8, 3, 3, dtype=dtype, device=device))


_CALLS: dict[str, Callable[[torch.dtype, torch.device], None]] = {"cuBLAS": _product, "cuDNN": _convolution}
_NAMES = {
    **{getattr(torch.ops.aten, name).default: "cuBLAS" for name in ("mm", "addmm", "bmm", "baddbmm")},
    torch.ops.aten.convolution.default: "cuDNN",
}
