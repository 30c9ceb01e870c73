"""Opening a graph of an artifact: its record read, its library loaded. Bound to tensors, it can be called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from precast.artifact_store import Manifest
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.guards import freeze
from precast.artifact_store.format.records import AutogradRecord, GraphInput, GraphOutput, TensorConstant, Wrap
from precast.artifact_store.trust.trusted import Trusted
from precast.runtime.common.errors import LoadError
from precast.runtime.executable.blob_source import BlobSource
from precast.runtime.executable.calling_convention import Finish, GraphSpec, graph_outputs, is_plain, raw_kinds
from precast.runtime.executable.constants import Constants, gpu_of
from precast.runtime.executable.library import Library, graph_library
from precast.runtime.executable.subclasses import wrapped_call
from precast.runtime.loading.launcher import library_call, recorded_calls
from precast.runtime.settings.options import CudaGraphOptions
from precast.target_registry import family_of

FORWARD = "forward"
"""The role of the graph that computes a call's outputs."""
BACKWARD = "backward"
"""The role of the graph that computes the gradients of its inputs."""


@dataclass(frozen=True, eq=False, repr=False)
class Backward:
    """The opened backward graph of a call that records gradients."""

    record: AutogradRecord
    spec: GraphSpec
    library: Library
    constants: Constants

    def recorded(
        self, name: str, library: Library, spec: GraphSpec, bound: Sequence[Any], cuda_graphs: CudaGraphOptions | None
    ) -> Callable[..., Any]:
        """The callable of both graphs; `library`, `spec` and `bound` are the forward graph's. Raises LoadError."""
        from precast.runtime.executable.recorded_call import Gradients, RecordedCall  # servers have no use for it

        constants = self.constants.on(gpu_of(bound) if self.constants.placed else None)
        graphs = (library, replace(spec, finish=None), bound), (self.library, replace(self.spec, finish=None), constants)
        forward, backward = recorded_calls(name, self.record, *graphs, cuda_graphs)
        run = backward.consume if cuda_graphs is None else lambda given: backward(*given)  # type: ignore[attr-defined]
        return RecordedCall(self.record, spec, forward, Gradients(self.record, self.spec.finish, run, constants), bound)


@dataclass(frozen=True, eq=False, repr=False)
class Executable:
    """A graph that can be bound. `library`: None where the artifact has no graph of the role: its frame computes no tensor.

    `wraps`: what the bytecode gets, where the graph's outputs are not it; `objects`: what these hold besides. `backward`: of calls that
    record gradients.
    """

    name: str
    spec: GraphSpec
    constants: Constants
    wraps: tuple[Wrap, ...] | None
    library: Library | None
    cuda_graphs: CudaGraphOptions | None
    backward: Backward | None = None
    objects: tuple[GraphInput, ...] = ()

    def bound_to(self, values: Sequence[Any]) -> Callable[..., Any]:
        """A callable of the graph's per-call inputs: `values` are the others, in order, and then `objects`. Raises LoadError."""
        tensors = tuple(values[: len(values) - len(self.objects)])
        return wrapped_call(partial(self._call, tensors), self.spec, self.wraps, values[len(tensors) :])

    def _call(self, tensors: tuple[Any, ...], spec: GraphSpec) -> Callable[..., Any]:
        assert self.library is not None
        if self.backward is None:
            return library_call(self.name, self.library, spec, tensors, self.cuda_graphs)
        return self.backward.recorded(self.name, self.library, spec, tensors, self.cuda_graphs)


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
        objects = tuple(GraphInput.from_data(item) for item in frame.get("objects", ()))
        made = Constants(constants)
        autograd = AutogradRecord.from_data(frame["autograd"]) if frame.get("autograd") is not None else None
        graph = manifest.graphs.get(role)
        io = dict(graph.io) if graph is not None else {}
        kinds = raw_kinds(outputs, io, () if autograd is None else autograd.numbers)
        taken = len(io.get("inputs", inputs))
        if taken != len(inputs):  # the library reads as many as it was made for
            raise ValueError(f"it gives {len(inputs)} inputs to a graph that takes {taken}")
    library = _library(document, source, role) if graph is not None else None
    spec = GraphSpec(inputs, kinds, None if is_plain(outputs) and autograd is None else _finisher(outputs))
    wanted = cuda_graphs if family_of(manifest.target).cuda_graphs else None
    backward = None if autograd is None else _open_backward(document, source, autograd, record)
    return Executable(manifest.program_name, spec, made, wraps, library, wanted, backward, objects)


def _open_backward(document: Trusted[Manifest], source: BlobSource, autograd: AutogradRecord, record: str) -> Backward:
    manifest = document.content
    with reading(manifest, record):
        graph = manifest.graphs[BACKWARD]
        io = dict(graph.io)
        if len(io["inputs"]) != len(autograd.backward):
            raise ValueError(f"it gives {len(autograd.backward)} inputs to a backward graph that takes {len(io['inputs'])}")
        kinds = raw_kinds(autograd.gradients, io)
        spec = GraphSpec(autograd.backward, kinds, None if is_plain(autograd.gradients) else _finisher(autograd.gradients))
    return Backward(autograd, spec, _library(document, source, BACKWARD), Constants(autograd.constants))


def _library(document: Trusted[Manifest], source: BlobSource, role: str) -> Library:
    try:
        return graph_library(document.part(lambda manifest: _blobs(manifest, role)), source, document.content.target)
    except LoadError as error:
        raise LoadError(f"artifact {document.content.artifact_id[:12]}: {error}") from error


def _blobs(manifest: Manifest, role: str) -> Mapping[str, str]:
    return manifest.graphs[role].blobs


def _finisher(outputs: tuple[GraphOutput, ...]) -> Finish:
    return lambda raw, inputs: graph_outputs(outputs, raw, inputs)
