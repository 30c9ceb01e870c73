"""A variant in this process: one stored artifact, opened; its guards compiled; its frame bound to the objects of a call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from precast.artifact_store import Manifest
from precast.artifact_store.format.errors import RecordError
from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.manifest import guard_rows
from precast.artifact_store.format.packed_guards import GuardRow
from precast.artifact_store.format.records import FrameRecord, GraphInput
from precast.artifact_store.trust.trusted import Trusted, content_of
from precast.runtime.common.errors import LoadError
from precast.runtime.common.locks import Lock
from precast.runtime.common.upward_imports import span
from precast.runtime.executable.blob_source import BlobSource
from precast.runtime.executable.constants import gpu_of
from precast.runtime.executable.graph_call import bound_call, with_draws_as_traced
from precast.runtime.fingerprint.tensor_subclasses import subclass_guards
from precast.runtime.fingerprint.triton_kernels import kernel_guards
from precast.runtime.frames.entry import Entry
from precast.runtime.frames.rewritten_code import FrameCodeError
from precast.runtime.guards.interpreted import LazyChecker
from precast.runtime.loading.open import Executable, open_executable, reading
from precast.runtime.paths.paths import PathError, resolve
from precast.runtime.settings.options import CudaGraphOptions
from precast.runtime.targets.ladder import rules_of
from precast.target_registry import family_of

BINDINGS_LIMIT = 8
_RECORD = "frame record"
BuildFrame = Callable[[Trusted[FrameRecord], Callable[..., Any]], Callable[..., Any]]
"""(record, graph callable) -> the rewritten function. Raises FrameCodeError."""


@dataclass(frozen=True, eq=False, repr=False)
class Artifact:
    """What a variant is opened from: a manifest that is trusted, and where its blobs are.

    `stored`: in the store, and not in this process only. `graph`: the compiled graph where another backend made it.
    """

    document: Trusted[Manifest]
    source: BlobSource
    stored: bool = True
    graph: Callable[..., Any] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class VariantSettings:
    """What the variants of one program have in common. `extra_guards` hold for each of them, beside those that are stored."""

    entry: Entry
    build_frame: BuildFrame
    extra_guards: Sequence[Guard] = ()
    cuda_graphs: CudaGraphOptions | None = None


class Binding:
    """A variant's frame function with the parameters and buffers of particular objects: what a dispatcher calls on a hit."""

    __slots__ = ("bound", "defaults", "frame", "graph", "variant")

    def __init__(
        self, variant: Variant | EagerVariant, frame: Callable[..., Any], graph: Any, bound: tuple[Any, ...], defaults: tuple[Any, Any]
    ) -> None:
        self.variant = variant
        self.frame = frame
        self.graph = graph
        self.bound = bound
        self.defaults = defaults  # of the frame, `__defaults__` and `__kwdefaults__`

    def fits(self, bound: tuple[Any, ...], defaults: tuple[Any, Any]) -> bool:
        """Whether it is made for these very objects."""
        mine, others = (*self.defaults, *self.bound), (*defaults, *bound)
        return len(mine) == len(others) and all(map(operator.is_, mine, others))


class _Planned:
    """What guard tables need of a variant."""

    entry: Entry
    pending = False
    compiled = True  # its calls run compiled code
    symbolic = False  # it serves more than one size or number
    tabled = True  # whether its guards say all, so that a table of them can stand for it
    _plan: Any = None

    def all_guards(self) -> tuple[Guard, ...]:
        """The guards as objects."""
        raise NotImplementedError

    def plan(self, names: Sequence[str]) -> Any:
        """The guards arranged for recording, made on first use."""
        if self._plan is None:
            from precast.runtime.guards.table.plan import Plan  # wanted only where there is a native runtime

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

    def __init__(self, artifact: Artifact, settings: VariantSettings) -> None:
        manifest = content_of(artifact.document)
        self.stored = artifact.stored
        self._document = artifact.document
        self._graph = artifact.graph
        self._family = family_of(manifest.target)
        self._cuda_graphs = settings.cuda_graphs
        self.manifest = manifest
        self.artifact_id = manifest.artifact_id
        self.target = manifest.target
        self.entry = settings.entry
        self.check = LazyChecker(self._rows)
        self._extra_guards = (
            *settings.extra_guards,
            *self._device_guards(),
            *kernel_guards(manifest.digests),
            *subclass_guards(manifest.digests),
        )
        self._source = artifact.source
        self._build_frame = settings.build_frame
        self._lock = Lock()
        self._executable: Executable | None = None
        self._record: Trusted[FrameRecord] | None = None
        self._bindings: list[Binding] = []
        self.hits = 0

    def _device_guards(self) -> tuple[Guard, ...]:
        """That the device of the call's tensors runs the target, where this machine has GPUs of several kinds."""
        device = self._family.device
        if self._family.on_host or not rules_of(self.target).several_kinds():
            return ()
        rows = self.manifest.guard_rows
        found = next((path for path, name, constant in rows if name == Predicate.TENSOR and constant["device"] == device), None)
        return () if found is None else (Guard(found, Predicate.RUNS_ON, self.target),)

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """All guards as objects: for tables and explanations."""
        return (*self.manifest.guards, *self._extra_guards)

    def all_guards(self) -> tuple[Guard, ...]:
        return self.guards

    @cached_property
    def symbolic(self) -> bool:  # type: ignore[override]
        """Whether its graph takes sizes or numbers as they come."""
        return takes_numbers(self.manifest)

    @cached_property
    def breaks(self) -> bool:
        """Whether its frame ends at a graph break. Of two artifacts that fit a call the whole one is better."""
        return any(frame["code"].get("broken", False) for frame in self.manifest.frames if type(frame.get("code")) is dict)

    def _rows(self) -> tuple[GuardRow, ...]:
        """All guards as rows, decoded when they are first looked at. Raises LoadError."""
        try:
            return (*self.manifest.guard_rows, *guard_rows(self._extra_guards))
        except RecordError as error:
            raise LoadError(f"artifact {self.artifact_id[:12]}: {error}") from error

    @property
    def bound_paths(self) -> tuple[Path, ...]:
        """Where the graph's bound inputs are found."""
        return tuple(item.path for item in self._inputs if item.bound and item.kind != "constant")

    @property
    def _inputs(self) -> tuple[GraphInput, ...]:
        """The graph's inputs, and objects that are bound beside them, once it is open."""
        return (*self._executable.spec.inputs, *self._executable.objects) if self._executable is not None else ()

    def watched(self, bound: Sequence[Any]) -> tuple[Any, ...]:
        """Of a binding's tensors, those that stand at `bound_paths`."""
        if self._executable is None:
            return ()
        kinds = [item.kind for item in self._inputs if item.bound or item.kind == "constant"]
        return tuple(tensor for tensor, kind in zip(bound, kinds, strict=True) if kind != "constant")

    def load(self) -> None:
        """Open the library and read the frame record. Raises LoadError with a reason; done once."""
        with self._lock:
            if self._executable is None:
                with span("load", program=self.manifest.program_name, artifact=self.artifact_id, target=self.target):
                    self._load()

    def _load(self) -> None:
        if len(self.manifest.frames) != 1:
            raise LoadError(
                f"artifact {self.artifact_id[:12]} has {len(self.manifest.frames)} frames, and this precast runs artifacts with one"
            )
        with reading(self.manifest, _RECORD):
            self._record = self._document.part(lambda manifest: FrameRecord.from_data(manifest.frames[0]["code"]))
        tensors = self._record.content.tensors
        self._executable = open_executable(self._document, self._source, tensors, record=_RECORD, cuda_graphs=self._cuda_graphs)

    def warm_up(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
        """Decodes the guards, and binds the graph where these locals hold all that it binds. Raises LoadError."""
        self.check(local_values, cells)
        with suppress(PathError):  # what it binds comes with the call
            self.bind(local_values, cells)

    def bind(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> Binding:
        """The binding for the objects of this call: an existing one where tensors and defaults are the same, else a new one."""
        self.load()
        assert self._executable is not None
        placed = self._executable.constants.placed
        constants = self._executable.constants.on(self._device(local_values, cells) if placed else None)
        kept = [item for item in self._inputs if item.bound or item.kind == "constant"]
        bound = tuple(constants[i.path[0][1]] if i.kind == "constant" else resolve(i.path, local_values, cells) for i in kept)
        defaults = self.entry.defaults
        return self._bound_to(bound, defaults) or self._keep(self._new_binding(bound, defaults))

    def _bound_to(self, bound: tuple[Any, ...], defaults: tuple[Any, Any]) -> Binding | None:
        with self._lock:
            return next((binding for binding in self._bindings if binding.fits(bound, defaults)), None)

    def _keep(self, made: Binding) -> Binding:
        """It, or what another thread made for the same objects meanwhile: a binding is made under no lock, since it may import modules."""
        with self._lock:
            binding = self._bound_to(made.bound, made.defaults)
            if binding is not None:
                return binding
            self._bindings.append(made)
            del self._bindings[:-BINDINGS_LIMIT]
            return made

    def _device(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> torch.device | None:
        """The GPU that the graph's inputs are on."""
        paths = (item.path for item in self._inputs if item.kind == "tensor" and item.path[0][0] != "random")
        return gpu_of(resolve(path, local_values, cells) for path in paths)

    def _new_binding(self, bound: tuple[Any, ...], defaults: tuple[Any, Any]) -> Binding:
        assert self._executable is not None and self._record is not None
        graph: Callable[..., Any] = no_graph
        try:
            if self._executable.library is not None:
                graph = self._executable.bound_to(bound)
            elif self._graph is not None:
                graph = bound_call(self._graph, self._executable.spec, bound)
            frame = self._build_frame(self._record, with_draws_as_traced(graph, self._inputs))
        except (FrameCodeError, LoadError) as error:
            raise LoadError(f"artifact {self.artifact_id[:12]}: {error}") from error
        return Binding(self, frame, graph, bound, defaults)


class EagerVariant(_Planned):
    """A kind of call that has to run eagerly, known by its guards so that it is not captured again: it would need a backward graph, or,
    where `pending`, it is being compiled in the background.
    `unless`: such a call fails one of these.
    """

    stored = compiled = False
    manifest = None
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
        self._binding = Binding(self, entry.function, None, (), entry.defaults)

    def check(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> bool:
        """Whether this is such a call."""
        return self._holds(local_values, cells) and not (self._excluded is not None and self._excluded(local_values, cells))

    def all_guards(self) -> tuple[Guard, ...]:
        return self.guards

    def bind(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> Binding:
        """The original function, whatever the objects."""
        return self._binding


def no_graph(*args: Any) -> tuple[Any, ...]:
    """Stands in where a frame computes no tensor."""
    return ()


def takes_numbers(manifest: Manifest) -> bool:
    """Whether the graphs of an artifact take sizes or numbers as they come."""
    inputs: list[Any] = [item for frame in manifest.frames for item in frame.get("inputs", ())]
    return any(item.get("kind") in ("int", "float") for item in inputs)
