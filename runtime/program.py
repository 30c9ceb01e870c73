"""Programs: one callable with its options and its variants. What happens when none of them fits: `misses.py`."""

from __future__ import annotations

import hashlib
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precast.artifact_store import Manifest, Store, StoreError
from precast.artifact_store.guard_table import GuardRow
from precast.artifact_store.guards import Guard
from precast.artifact_store.records import FrameRecord
from precast.runtime import code_digest, region, skips, stance, torch_support, turns
from precast.runtime.backends import Backend
from precast.runtime.compatibility import why_not
from precast.runtime.compiler import compiler, one_at_a_time
from precast.runtime.eagerly import Eagerly
from precast.runtime.entry import Entry, LocalsOf
from precast.runtime.errors import CompilerBroken, Deferred, GuardMiss, InProcess, Refused, StoreUnwritable, Taken
from precast.runtime.frame_code import Resume, build
from precast.runtime.misses import Misses
from precast.runtime.options import CudaGraphOptions, key_options
from precast.runtime.shelf import Shelf
from precast.runtime.targets import ladder_of, rank, resolve, serves
from precast.runtime.variant import Binding, EagerVariant, Variant, takes_numbers


def program_key(name: str, digest: str, options: Mapping[str, Any], label: str | None, backend: str = "", own: bool = False) -> str:
    """The name of a program's folder in the store: readable, and different whenever what is compiled could differ.

    `own`: the code's globals are no module's, so that the paths of its guards are others.
    """
    more = (*((backend,) if backend else ()), *(("own namespace",) if own else ()))
    identity = repr((label or name, digest, sorted(key_options(options).items()), *more))
    readable = re.sub(r"[^A-Za-z0-9_]+", ".", label or name.rpartition(":")[2]).strip(".")[:60]
    return f"{readable or 'program'}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"


def _another_tracer() -> bool:
    """Whether torch.export, make_fx or torch.jit.trace is at work: they take the program as it is written."""
    proxies = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return proxies is not None or torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None


class Program:
    """One entry function with options. Called through a dispatcher; `call` is what a dispatcher does when its fast checks find nothing.

    `args` always include the entry's prefix (`self`, a partial's arguments).
    """

    def __init__(
        self,
        entry: Entry,
        options: Mapping[str, Any],
        store: Store,
        label: str | None = None,
        require_hit: bool = False,
        extra_guards: Sequence[Guard] = (),
        backend: Backend | None = None,
    ) -> None:
        self.entry = entry
        self.function = entry.function
        self.name = label or entry.name
        self.options = dict(options)
        self.target = resolve(options["target"])
        self.store = store
        self.require_hit = require_hit
        self.backend = backend
        self.code = self.function.__code__
        self.digest = code_digest.digest(self.code)
        self._cuda_graphs = CudaGraphOptions.of(options)
        self.locals_of = LocalsOf(self.function)
        identity = backend.identity if backend is not None else ""
        self.key = program_key(entry.name, self.digest, options, label, identity, self.locals_of.own_namespace)
        self.extra_guards = tuple(extra_guards)
        self.on_binding: Callable[[Binding, Mapping[str, Any]], None] | None = None
        self.on_compile: Callable[[], Callable[[], None]] | None = None
        self.on_reset: list[Callable[[], None]] = []
        self.parts: list[Callable[[], Sequence[Program]]] = []
        self.on_build: list[Callable[[], None]] = []
        self.around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None  # makes what it calls between graphs programs, too
        self.resume: Resume | None = None  # makes what continues a frame of this program after a graph break
        self._shelf = Shelf(self)
        self._misses = Misses(self, self._shelf)
        self.eagerly = Eagerly(self)

    @property
    def variants(self) -> Sequence[Variant | EagerVariant]:
        """What this process has loaded or compiled, in the order in which calls try it."""
        return self._shelf.variants

    @property
    def first_call(self) -> tuple[GuardRow, ...]:
        """What is known of the call that a stance left uncompiled, to learn from it what varies; empty where there was none."""
        return self._misses.first_call

    def __repr__(self) -> str:
        return f"<Program {self.name} {self.key}: {len(self.variants)} variants>"

    def family(self) -> list[Program]:
        """This program, those that continue it, and those that it calls between graphs, as far as they were reached."""
        return [self, *(member for part in self.parts for program in part() for member in program.family())]

    def traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[types.FunctionType, tuple[Any, ...], Mapping[str, Any]]:
        """The function to trace for this call, and its arguments."""
        return self.function, args, kwargs

    @property
    def free_as_locals(self) -> bool:
        """Whether the contents of the traced function's free variables are among the program's locals."""
        return False

    @property
    def is_part(self) -> bool:
        """Whether it is a part of another program: it runs eagerly where it cannot be stored, and a warm process does not miss it."""
        return False

    def build_frame(self, record: FrameRecord, graph: Callable[..., Any]) -> Callable[..., Any]:
        """The rewritten frame, taking the program's arguments. Raises FrameCodeError."""
        self.built()
        frame = build(record, self.function, graph, self.resume)
        return self.around(frame) if record.broken and self.around is not None else frame

    def built(self) -> None:
        """Tell who asked that code of this program is about to run for the first time."""
        for notice in self.on_build:
            notice()

    # -- calling

    @stance.enters_region
    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Find, load or compile the variant for this call, and run it; the original function where nothing fits."""
        if reason := torch_support.unsupported():
            run = self._as_written(reason)
        else:
            with region.paused():
                run = self._choose(args, kwargs)
        return run(*args, **kwargs)

    def _choose(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What this call runs."""
        if stance.state.force_eager or _another_tracer():
            return self.function
        if sys.is_finalizing() and not self.require_hit:
            return self.function  # called by a destructor while the interpreter ends: no file can be opened any more
        if self.eagerly.reason and not self.variants:
            return self._plain()
        try:
            local_values = self.locals_of(args, kwargs)
        except TypeError:
            return self.function  # raises what the call itself raises
        binding = self.find(local_values)
        if binding is None:
            binding = self._misses.serve(args, kwargs, local_values)
        if binding is None:
            return self._plain()
        if self.on_binding is not None and not binding.variant.pending:
            self.on_binding(binding, local_values)
        return binding.frame

    def _as_written(self, reason: str) -> Callable[..., Any]:
        """The original function, where nothing works with this torch. Raises what was asked for in place of running eagerly."""
        if stance.state.force_eager:
            return self.function
        if self.require_hit:
            raise GuardMiss(f"{self.name} was loaded with require='hit', and {reason}")
        if self.options["fullgraph"]:
            raise CompilerBroken(f"{self.name} cannot be compiled, and fullgraph=True forbids running eagerly: {reason}")
        torch_support.tell(reason)
        return self.function

    def _plain(self) -> Callable[..., Any]:
        """The original function; where it is not compiled itself, what it calls is."""
        return self.around(self.function) if self.eagerly.skipped and self.around is not None else self.function

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], here: bool = True) -> tuple[str, str, str]:
        """Make sure that a stored artifact serves this call, without running it: (outcome, artifact id, reason), see SignatureReport.

        A target that this machine cannot run is compiled for all the same; such an artifact is only stored. `here`: the call's tensors are
        on a device of this machine, and no stand-ins. Raises StoreUnwritable before it compiles what could not be kept, and CompilerBroken
        where nothing can be compiled.
        """
        if reason := torch_support.unsupported():
            raise CompilerBroken(f"{self.name} cannot be compiled: {reason}")
        local_values = self.locals_of(args, kwargs)
        runs_here = here and rank(self.target) is not None

        def known() -> str:
            return self._known_here(local_values) if runs_here else self.stored(local_values)

        if found := known():
            return "hit", found, ""
        if self.eagerly.skipped:
            return "skipped", "", self.eagerly.reason
        if self.options["store_results"] and not skips.recall(self.store, self.key, compiles=False):
            self._check_store()
        turn = turns.begin(self, local_values)
        turns.wait(turn, lambda: bool(known()) or self.eagerly.skipped)
        with turns.within(turn), one_at_a_time:
            if found := known():
                return "taken", found, ""
            return ("skipped", "", self.eagerly.reason) if self.eagerly.skipped else self._compile_for(args, kwargs)

    def _compile_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str, str]:
        """Compile for a call that nothing stored serves: as `prepare`."""
        compiled = self.begin()
        try:
            outcome = compiler()(self, args, kwargs)
            if isinstance(outcome, Deferred):
                outcome = outcome.finish()  # whoever prepares waits
        except Refused as refusal:
            if not refusal.skipped or refusal.raises or self.options["fullgraph"]:
                return "eager", "", refusal.text
            self.eagerly.skip(refusal.text)
            self.eagerly.remember(refusal.text)
            return "skipped", "", self.eagerly.reason
        finally:
            if compiled is not None:
                compiled()
        if isinstance(outcome, InProcess):
            return "eager", "", f"cannot be stored: {outcome.reason}"
        return "taken" if isinstance(outcome, Taken) else "compiled", outcome, ""

    def _check_store(self) -> None:
        try:
            self.store.check_writable()
        except StoreError as error:
            raise StoreUnwritable(f"{error}. Nothing was compiled for {self.name}") from error

    def begin(self) -> Callable[[], None] | None:
        """Tell who waits for it that a compile begins; what to call when it ends."""
        notice = self.on_compile  # which another thread may take away
        return notice() if notice is not None else None

    def _known_here(self, local_values: Mapping[str, Any]) -> str:
        binding = self.find(local_values, counts=False)
        stored = binding is not None and binding.variant.stored and serves(self.target, binding.variant.target)
        return binding.variant.artifact_id if binding is not None and stored else ""

    def stored(self, local_values: Mapping[str, Any], fits: Callable[[str, str], bool] = serves) -> str:
        """The id of the stored artifact that serves the call on a machine of the program's target, found without loading it; else empty.

        `fits(target, found)`: whether an artifact for `found` counts.
        """
        from precast.runtime.explain import first_failure

        cells = self.locals_of.cells()
        steps = {target: step for step, target in enumerate(ladder_of(self.target))}
        best_first = sorted(self.store.variants(self.key), key=lambda m: (steps.get(m.target, len(steps)), takes_numbers(m)))
        for manifest in best_first:
            if not fits(self.target, manifest.target) or why_not(manifest, self, elsewhere=True):
                continue
            if not first_failure((*manifest.guards, *self.extra_guards), local_values, cells) and self.store.complete(manifest):
                return manifest.artifact_id
        return ""

    def find(self, local_values: Mapping[str, Any], counts: bool = True) -> Binding | None:
        """The binding of the first variant whose guards hold; looks into the store when none that is loaded does. `counts`: for a call."""
        binding = self._shelf.find(local_values, self.locals_of.cells(), look=not self.eagerly.reason, counts=counts)
        if binding is None and not self.variants and not self.eagerly.reason:
            self.eagerly.recall()
        return binding

    def open_variant(self, manifest: Manifest, source: Any, stored: bool, graph: Callable[..., Any] | None) -> Variant:
        """A variant of this program, from where its blobs are. Raises what it cannot be read with."""
        return Variant(manifest, source, self.entry, self.extra_guards, stored, self.build_frame, graph, self._cuda_graphs)

    def useless(self, manifest: Manifest) -> str:
        """Why an artifact of the store cannot serve here; "" where it can."""
        return why_not(manifest, self)

    # -- forgetting

    def reset(self) -> None:
        """Forget loaded variants, compile counts and refusals; the store keeps what it has."""
        self._shelf.clear()
        self._misses.clear()
        self.eagerly.clear()
        for forget in self.on_reset:
            forget()
