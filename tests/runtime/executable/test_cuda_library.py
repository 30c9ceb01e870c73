"""Libraries of GPU graphs as the runtime opens them: images from blobs, the driver's functions, refusals where either is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.format.records import GraphInput
from precast.artifact_store.trust.trusted import Trusted, made_here
from precast.codegen import CompiledGraph
from precast.compiling.subgraphs import build_parts
from precast.runtime.common.errors import LoadError
from precast.runtime.executable import library as libraries
from precast.runtime.executable.blob_source import MemoryBlobs
from precast.runtime.executable.calling_convention import GraphSpec
from precast.runtime.executable.graph_call import PythonGraphCall, graph_call
from precast.runtime.executable.library import graph_library
from precast.runtime.executable.run_errors import raise_run_error
from precast.target_registry import CUDA, family_of_symbol
from tests.codegen.cuda.cuda_stub import CudaStub
from tests.codegen.cuda.test_host import on_stub


def work(x: Any, w: Any) -> Any:
    return torch.softmax(x @ w, -1) * 2


TARGET = "cuda:sm_90"
INPUTS = [torch.randn(3, 4), torch.randn(4, 4)]


@pytest.fixture
def stub() -> CudaStub:
    return on_stub(work, *INPUTS)


@pytest.fixture
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a process that has opened none yet."""
    monkeypatch.setattr(libraries, "_loaded", {})
    yield


def blobs_of(graph: CompiledGraph, prefix: str = "") -> tuple[dict[str, str], dict[str, bytes]]:
    """Roles and bytes of a graph's library and images."""
    data = {"library": graph.library} | {f"image{n}": image.data for n, image in enumerate(graph.images)}
    roles = {role: digest(content) for role, content in data.items()}
    return roles, {digest(content): content for content in data.values()}


SPEC = GraphSpec(tuple(GraphInput(path=(), bound=False, position=n, kind="tensor") for n in range(2)), "t", None)


@pytest.mark.parametrize("call", [PythonGraphCall, graph_call])
def test_a_stored_graph_runs(stub: CudaStub, call: Any, monkeypatch: pytest.MonkeyPatch, no_libraries: None) -> None:
    """From blobs alone, through both kinds of graph callable; the second opening is the same library."""
    monkeypatch.setattr(libraries, "resolve_symbol", lambda name: stub._resolve(name))
    roles, blobs = blobs_of(stub.graph)
    source = MemoryBlobs(blobs)
    library = graph_library(made_here(roles), source, TARGET)
    assert graph_library(made_here(roles), source, TARGET) is library
    run = call(library, SPEC, ())
    stub.expect(*INPUTS)
    (found,) = run(*INPUTS)
    torch.testing.assert_close(found, work(*INPUTS))
    stub.fail["cuLaunchKernel"] = 700
    stub.expect(*INPUTS)
    with pytest.raises(RuntimeError, match=r"the stub fails \(CUDA_ERROR_STUB\) \[launching "):
        run(*INPUTS)


def test_a_machine_without_a_driver_says_so(stub: CudaStub, monkeypatch: pytest.MonkeyPatch, no_libraries: None) -> None:
    for module in ("native.cuda_driver", "executable.cuda_images"):
        monkeypatch.setattr(f"precast.runtime.{module}.driver_library", lambda: None)
    roles, blobs = blobs_of(stub.graph)
    with pytest.raises(LoadError, match=r"runs on an NVIDIA GPU: no NVIDIA driver \(libcuda.so.1\) is installed here"):
        graph_library(made_here(roles), MemoryBlobs(blobs), TARGET)


def test_a_missing_image_is_a_miss(stub: CudaStub, monkeypatch: pytest.MonkeyPatch, no_libraries: None) -> None:
    monkeypatch.setattr(libraries, "resolve_symbol", lambda name: stub._resolve(name))
    roles, blobs = blobs_of(stub.graph)
    del blobs[roles["image0"]]
    with pytest.raises(LoadError, match=r"its kernel image [0-9a-f]+… is missing or damaged"):
        graph_library(made_here(roles), MemoryBlobs(blobs), TARGET)


def test_bodies_of_branches_bring_their_images(stub: CudaStub, monkeypatch: pytest.MonkeyPatch, no_libraries: None, tmp_path: Path) -> None:
    """A part's images are named after it, and reach its library and no other."""
    other = on_stub(lambda x: x.exp(), INPUTS[0])
    roles, blobs = blobs_of(other.graph)
    mine, more = blobs_of(stub.graph)
    found = build_parts(branching(), lambda body, name: Record(mine))  # type: ignore[arg-type, return-value]
    assert found == {"part0": mine["library"], "part0.image0": mine["image0"]}
    opened: list[tuple[str, tuple[bytes, ...]]] = []

    class Opened:
        def __init__(self, file: Trusted[Path], parts: Any, images: Any) -> None:
            opened.append((file.content.name, tuple(image.content for image in images)))

    monkeypatch.setattr(libraries, "Library", Opened)
    graph_library(made_here(roles | found), MemoryBlobs(blobs | more), TARGET)
    assert opened == [
        (mine["library"], tuple(i.data for i in stub.graph.images)),
        (roles["library"], tuple(i.data for i in other.graph.images)),
    ]


def branching() -> torch.fx.GraphModule:
    """A graph that names one body, as a branch does."""
    body = torch.fx.symbolic_trace(torch.nn.Identity())
    for node in body.graph.nodes:
        node.args = ((node.args[0],),) if node.op == "output" else node.args
        node.meta["val"] = torch.zeros(1)
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.relu, (graph.get_attr("body"),)))
    return torch.fx.GraphModule({"body": body}, graph)


class Record:
    """What `build_parts` reads of a graph's record."""

    def __init__(self, blobs: dict[str, str]) -> None:
        self.blobs, self.library = blobs, blobs["library"]


def test_which_symbols_are_the_drivers() -> None:
    assert [family_of_symbol(name) for name in ("cuLaunchKernel", "cublasCreate", "aoti_torch_clone", "")] == [CUDA, None, None, None]


def test_memory_errors_keep_their_class() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        raise_run_error("CUDA out of memory. Tried to allocate 4.00 TiB. [in workspace]")
