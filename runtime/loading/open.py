"""Opening a graph of an artifact: its record read, its library loaded. Bound to tensors, it can be called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from precast.artifact_store import Manifest
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.guards import freeze
from precast.artifact_store.format.records import GraphInput, GraphOutput, TensorConstant, Wrap
from precast.artifact_store.trust.trusted import Trusted
from precast.runtime.common.errors import LoadError
from precast.runtime.executable.blob_source import BlobSource
from precast.runtime.executable.calling_convention import Finish, GraphSpec, graph_outputs, is_plain, raw_kinds
from precast.runtime.executable.constants import Constants
from precast.runtime.executable.library import Library, graph_library
from precast.runtime.executable.subclasses import wrapped_call
from precast.runtime.loading.launcher import library_call
from precast.runtime.settings.options import CudaGraphOptions
from precast.target_registry import family_of

FORWARD = "forward"
"""The role of the graph that computes a call's outputs."""


@dataclass(frozen=True, eq=False, repr=False)
class Executable:
    """A graph that can be bound. `library`: None where the artifact has no graph of the role: its frame computes no tensor.

    `wraps`: what the bytecode gets, where the graph's outputs are not it.
    """

    name: str
    spec: GraphSpec
    constants: Constants
    wraps: tuple[Wrap, ...] | None
    library: Library | None
    cuda_graphs: CudaGraphOptions | None

    def bound_to(self, tensors: Sequence[Any]) -> Callable[..., Any]:
        """A callable of the graph's per-call inputs: `tensors` are the others, in order. Raises LoadError."""
        assert self.library is not None
        call = partial(library_call, self.name, self.library, bound=tuple(tensors), cuda_graphs=self.cuda_graphs)
        return wrapped_call(call, self.spec, self.wraps)


def trusted_document(manifest: Manifest, source: BlobSource) -> Trusted[Manifest]:
    """The manifest, from which code may be loaded. Raises LoadError where the source does not trust it."""
    try:
        return source.trust(manifest)
    except Untrusted as error:
        raise LoadError(f"artifact {manifest.artifact_id[:12]}: {error}") from error


@contextmanager
def reading(manifest: Manifest, record: str) -> Iterator[None]:
    """Within, whatever is wrong with the manifest's `record` becomes a LoadError."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LoadError(f"artifact {manifest.artifact_id[:12]}: its {record} cannot be read ({error})") from error


def open_executable(
    document: Trusted[Manifest],
    source: BlobSource,
    constants: Iterable[TensorConstant],
    *,
    role: str = FORWARD,
    record: str,
    cuda_graphs: CudaGraphOptions | None = None,
) -> Executable:
    """Open the graph with this role of an artifact with one frame. Raises LoadError.

    `constants`: the tensors that the frame's record carries; `record`: what messages call that record; `cuda_graphs`: replay CUDA graphs
    where the artifact is for a GPU.
    """
    manifest = document.content
    with reading(manifest, record):
        (frame,) = manifest.frames
        inputs = tuple(GraphInput.from_data(item) for item in frame["inputs"])
        outputs = tuple(GraphOutput.from_data(item) for item in frame["outputs"])
        wraps = freeze(frame.get("wraps"))
        made = Constants(constants)
        graph = manifest.graphs.get(role)
        io = dict(graph.io) if graph is not None else {}
        kinds = raw_kinds(outputs, io)
        taken = len(io.get("inputs", inputs))
        if taken != len(inputs):  # the library reads as many as it was made for
            raise ValueError(f"it gives {len(inputs)} inputs to a graph that takes {taken}")
    library = None
    if graph is not None:
        try:
            library = graph_library(document.part(lambda manifest: _blobs(manifest, role)), source, manifest.target)
        except LoadError as error:
            raise LoadError(f"artifact {manifest.artifact_id[:12]}: {error}") from error
    spec = GraphSpec(inputs, kinds, None if is_plain(outputs) else _finisher(outputs))
    wanted = cuda_graphs if family_of(manifest.target).cuda_graphs else None
    return Executable(manifest.program_name, spec, made, wraps, library, wanted)


def _blobs(manifest: Manifest, role: str) -> Mapping[str, str]:
    return manifest.graphs[role].blobs


def _finisher(outputs: tuple[GraphOutput, ...]) -> Finish:
    return lambda raw, inputs: graph_outputs(outputs, raw, inputs)
