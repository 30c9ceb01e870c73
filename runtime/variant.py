"""A variant in this process: one stored artifact, opened; its guards compiled; its frame bound to the objects of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from precast.artifact_store import Manifest
from precast.artifact_store.errors import RecordError
from precast.artifact_store.guards import Guard, Path
from precast.artifact_store.manifest import GuardRow, guard_rows
from precast.artifact_store.records import FrameRecord, GraphInput, GraphOutput, TensorConstant
from precast.runtime.entry import Entry
from precast.runtime.errors import LoadError
from precast.runtime.first_check import LazyChecker
from precast.runtime.frame_code import FrameCodeError, build
from precast.runtime.graph import Finish, GraphSpec, bound_call, graph_call, is_plain, raw_kinds
from precast.runtime.graph_outputs import graph_outputs
from precast.runtime.library import Library, load_library, load_parts
from precast.runtime.locks import Lock
from precast.runtime.paths import resolve
from precast.runtime.source import BlobSource

BINDINGS_LIMIT = 8
BuildFrame = Callable[[FrameRecord, Callable[..., Any]], Callable[..., Any]]
"""(record, graph callable) -> the rewritten function. Raises FrameCodeError."""


class Binding:
    """A variant's frame function with the parameters and buffers of particular objects: what a dispatcher calls on a hit."""

    __slots__ = ("bound", "frame", "graph", "variant")

    def __init__(self, variant: Variant | EagerVariant, frame: Callable[..., Any], graph: Any, bound: tuple[Any, ...]) -> None:
        self.variant = variant
        self.frame = frame
        self.graph = graph
        self.bound = bound


class _Planned:
    """What guard tables need of a variant."""

    entry: Entry
    pending = False
    tabled = True  # whether its guards say all, so that a table of them can stand for it
    _plan: Any = None

    def all_guards(self) -> tuple[Guard, ...]:
        """The guards as objects."""
        raise NotImplementedError

    def plan(self, names: Sequence[str]) -> Any:
        """The guards arranged for recording, made on first use."""
        if self._plan is None:
            from precast.runtime.recorder import Plan  # wanted only where there is a native runtime

            self._plan = Plan(self.all_guards(), names, self.entry.function, self.bound_paths)
        return self._plan

    @property
    def bound_paths(self) -> tuple[Path, ...]:
        """Where the graph's bound inputs are found."""
        return ()

    def watched(self, bound: Sequence[Any]) -> tuple[Any, ...]:
        """Of a binding's tensors, those that stand at `bound_paths`."""
        return ()


class Variant(_Planned):
    """Opened lazily: guards first; the library and the bytecode on the first call that passes them."""

    def __init__(
        self,
        manifest: Manifest,
        source: BlobSource,
        entry: Entry,
        extra_guards: Sequence[Guard] = (),
        stored: bool = True,
        build_frame: BuildFrame | None = None,
        graph: Callable[..., Any] | None = None,
    ) -> None:
        self.stored = stored
        self._graph = graph
        self.manifest = manifest
        self.artifact_id = manifest.artifact_id
        self.target = manifest.target
        self.entry = entry
        self.check = LazyChecker(self._rows)
        self._extra_guards = tuple(extra_guards)
        self._source = source
        self._build_frame: BuildFrame = build_frame or (lambda record, graph: build(record, entry.function, graph))
        self._lock = Lock()
        self._spec: GraphSpec | None = None
        self._library: Library | None = None
        self._record: FrameRecord | None = None
        self._constants: tuple[Any, ...] = ()
        self._bindings: list[Binding] = []
        self.hits = 0

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """All guards as objects: for tables and explanations."""
        return (*self.manifest.guards, *self._extra_guards)

    def all_guards(self) -> tuple[Guard, ...]:
        return self.guards

    def _rows(self) -> tuple[GuardRow, ...]:
        """All guards as rows, decoded when they are first looked at. Raises LoadError."""
        try:
            return (*self.manifest.guard_rows, *guard_rows(self._extra_guards))
        except RecordError as error:
            raise LoadError(f"artifact {self.artifact_id[:12]}: {error}") from error

    @property
    def bound_paths(self) -> tuple[Path, ...]:
        """Where the graph's bound inputs are found."""
        return tuple(item.path for item in self._spec.inputs if item.bound and item.kind != "constant") if self._spec is not None else ()

    def watched(self, bound: Sequence[Any]) -> tuple[Any, ...]:
        """Of a binding's tensors, those that stand at `bound_paths`."""
        if self._spec is None:
            return ()
        kinds = [item.kind for item in self._spec.inputs if item.bound or item.kind == "constant"]
        return tuple(tensor for tensor, kind in zip(bound, kinds, strict=True) if kind != "constant")

    def load(self) -> None:
        """Open the library and read the frame record. Raises LoadError with a reason; done once."""
        with self._lock:
            if self._spec is None:
                self._load()

    def _load(self) -> None:
        if len(self.manifest.frames) != 1:
            raise LoadError(
                f"artifact {self.artifact_id[:12]} has {len(self.manifest.frames)} frames, and this precast runs artifacts with one"
            )
        frame = self.manifest.frames[0]
        try:
            self._record = FrameRecord.from_data(frame["code"])
            self._constants = tuple(tensor_constant(item) for item in self._record.tensors)
            inputs = tuple(GraphInput.from_data(item) for item in frame["inputs"])
            outputs = tuple(GraphOutput.from_data(item) for item in frame["outputs"])
        except (KeyError, TypeError, ValueError) as error:
            raise LoadError(f"artifact {self.artifact_id[:12]}: its frame record cannot be read ({error})") from error
        graph = self.manifest.graphs.get("forward")
        if graph is not None:
            path = self._source.blob_path(graph.library)
            if path is None:
                raise LoadError(f"artifact {self.artifact_id[:12]}: its library {graph.library[:12]}… is missing or damaged")
            self._library = load_library(graph.library, path, load_parts(graph.blobs, self._source.blob_path))
        io = graph.io if graph is not None else {}
        finish = None if is_plain(outputs) else _finisher(outputs)
        self._spec = GraphSpec(inputs, raw_kinds(outputs, io), finish)

    def bind(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> Binding:
        """The binding for the objects of this call: an existing one where the bound tensors are the same objects, else a new one."""
        self.load()
        assert self._spec is not None and self._record is not None
        bound = tuple(self._fetch(item, local_values, cells) for item in self._spec.inputs if item.bound or item.kind == "constant")
        with self._lock:
            for binding in self._bindings:
                if len(binding.bound) == len(bound) and all(a is b for a, b in zip(binding.bound, bound, strict=True)):
                    return binding
            binding = self._new_binding(bound)
            self._bindings.append(binding)
            del self._bindings[:-BINDINGS_LIMIT]
        return binding

    def _fetch(self, item: GraphInput, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> Any:
        assert self._record is not None
        if item.kind == "constant":
            return self._constants[item.path[0][1]]
        return resolve(item.path, local_values, cells)

    def _new_binding(self, bound: tuple[Any, ...]) -> Binding:
        assert self._spec is not None and self._record is not None
        graph = no_graph
        if self._library is not None:
            graph = graph_call(self._library, self._spec, bound)
        elif self._graph is not None:
            graph = bound_call(self._graph, self._spec, bound)
        try:
            frame = self._build_frame(self._record, graph)
        except FrameCodeError as error:
            raise LoadError(f"artifact {self.artifact_id[:12]}: {error}") from error
        return Binding(self, frame, graph, bound)


class EagerVariant(_Planned):
    """A kind of call that has to run eagerly, known by its guards so that it is not captured again: it would need a backward graph, or,
    where `pending`, it is being compiled in the background.
    `unless`: such a call fails one of these.
    """

    stored = False
    artifact_id = ""
    target = ""

    def __init__(self, entry: Entry, guards: Sequence[Guard], unless: Sequence[Guard] = (), pending: bool = False) -> None:
        self.pending = pending
        self.entry = entry
        self.guards = tuple(guards)
        self.tabled = not unless
        self._holds = LazyChecker(lambda: guard_rows(self.guards))
        self._excluded = LazyChecker(lambda: guard_rows(unless)) if unless else None
        self.hits = 0
        self._binding = Binding(self, entry.function, None, ())

    def check(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> bool:
        """Whether this is such a call."""
        return self._holds(local_values, cells) and not (self._excluded is not None and self._excluded(local_values, cells))

    def all_guards(self) -> tuple[Guard, ...]:
        return self.guards

    def bind(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> Binding:
        """The original function, whatever the objects."""
        return self._binding


def _finisher(outputs: tuple[GraphOutput, ...]) -> Finish:
    return lambda raw, inputs: graph_outputs(outputs, raw, inputs)


def no_graph(*args: Any) -> tuple[Any, ...]:
    """Stands in where a frame computes no tensor."""
    return ()


def tensor_constant(constant: TensorConstant) -> torch.Tensor:
    """The tensor that a record carries."""
    dtype = getattr(torch, constant.dtype)
    if not constant.data:
        return torch.empty(constant.size, dtype=dtype, device=constant.device)
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.size).to(constant.device)
