"""Programs: one callable with its options, its variants, and what happens when none of them fits."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precast.artifact_store import Manifest, Store, StoreError
from precast.artifact_store.guard_table import GuardRow
from precast.artifact_store.guards import Guard
from precast.artifact_store.records import FrameRecord
from precast.runtime import code_digest, region, skips, stance
from precast.runtime.backends import Backend
from precast.runtime.compatibility import why_not
from precast.runtime.entry import Entry, LocalsOf
from precast.runtime.errors import (
    BackendError,
    Deferred,
    DirectiveError,
    GraphBreakError,
    GuardMiss,
    InProcess,
    LoadError,
    MarkError,
    PrecastError,
    RecompileForbidden,
    Refused,
    RegionError,
    StoreUnwritable,
    failure_level,
    failure_text,
)
from precast.runtime.frame_code import Resume, build
from precast.runtime.limits import Compiles, Shared
from precast.runtime.locks import Lock
from precast.runtime.log import logger, warn
from precast.runtime.options import CudaGraphOptions, key_options
from precast.runtime.shelf import Shelf
from precast.runtime.source import MemoryBlobs
from precast.runtime.targets import PTX, rank, resolve, serves, why_unfit
from precast.runtime.variant import Binding, EagerVariant, Variant, takes_numbers
from precast.runtime.varied import example

Compile = Callable[["Program", tuple[Any, ...], Mapping[str, Any]], "str | InProcess | Deferred"]
_compiler: str | Compile = "precast.driver:compile_variant"
_compile_lock = Lock()  # the tracer is not thread-safe: one compile at a time in a process


def set_compiler(compiler: str | Compile) -> None:
    """Register what compiles on a miss: a callable, or "module:name", which is imported on the first miss only.

    It gets `(program, args, kwargs)`, args with `self` first, puts an artifact into `program.store` and returns its id; it returns
    `InProcess` for what cannot be stored and raises `Refused` for what has to run eagerly.
    """
    global _compiler
    _compiler = compiler


def _compile_callable() -> Compile:
    if isinstance(_compiler, str):
        module, _, name = _compiler.partition(":")
        found: Compile = getattr(importlib.import_module(module), name)
        return found
    return _compiler


def strict() -> bool:
    """Whether an unexpected error while compiling is raised (PRECAST_STRICT=1) instead of running eagerly with a warning."""
    return os.environ.get("PRECAST_STRICT", "") not in ("", "0")


def program_key(name: str, digest: str, options: Mapping[str, Any], label: str | None, backend: str = "") -> str:
    """The name of a program's folder in the store: readable, and different whenever what is compiled could differ."""
    identity = repr((label or name, digest, sorted(key_options(options).items()), *((backend,) if backend else ())))
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
        self.key = program_key(entry.name, self.digest, options, label, backend.identity if backend is not None else "")
        self.locals_of = LocalsOf(self.function)
        self.extra_guards = tuple(extra_guards)
        self.on_binding: Callable[[Binding, Mapping[str, Any]], None] | None = None
        self.on_compile: Callable[[], Callable[[], None]] | None = None
        self.on_reset: list[Callable[[], None]] = []
        self.parts: list[Callable[[], Sequence[Program]]] = []
        self.on_build: list[Callable[[], None]] = []
        self.around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None  # makes what it calls between graphs programs, too
        self.resume: Resume | None = None  # makes what continues a frame of this program after a graph break
        self._shelf = Shelf(self)
        self._compiles = Compiles()
        self._missed = False
        self.first_call: tuple[GuardRow, ...] = ()  # that a stance left uncompiled, to learn from it what varies
        self._eager_reason = ""
        self._skipped = False
        self._failures: Counter[str] = Counter()
        self._warned: set[str] = set()

    @property
    def variants(self) -> Sequence[Variant | EagerVariant]:
        """What this process has loaded or compiled, in the order in which calls try it."""
        return self._shelf.variants

    @property
    def _shared(self) -> Shared:
        return str(self.store.root), self.key

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
        with region.paused():
            run = self._choose(args, kwargs)
        return run(*args, **kwargs)

    def _choose(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What this call runs."""
        if stance.state.force_eager or _another_tracer():
            return self.function
        if self._eager_reason and not self.variants:
            return self._plain()
        try:
            local_values = self.locals_of(args, kwargs)
        except TypeError:
            return self.function  # raises what the call itself raises
        binding = self.find(local_values)
        if binding is None:
            binding = self._miss(args, kwargs, local_values)
        if binding is None:
            return self._plain()
        if self.on_binding is not None and not binding.variant.pending:
            self.on_binding(binding, local_values)
        return binding.frame

    def _plain(self) -> Callable[..., Any]:
        """The original function; where it is not compiled itself, what it calls is."""
        return self.around(self.function) if self._skipped and self.around is not None else self.function

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], here: bool = True) -> tuple[str, str, str]:
        """Make sure that a stored artifact serves this call, without running it: (outcome, artifact id, reason), see SignatureReport.

        A target that this machine cannot run is compiled for all the same; such an artifact is only stored. `here`: the call's tensors are
        on a device of this machine, and no stand-ins. Raises StoreUnwritable before it compiles what could not be kept.
        """
        local_values = self.locals_of(args, kwargs)
        known = self._known_here(local_values) if here and rank(self.target) is not None else self.stored(local_values)
        if known:
            return "hit", known, ""
        if self._skipped:
            return "skipped", "", self._eager_reason
        if self.options["store_results"] and not skips.recall(self.store, self.key, compiles=False):
            self._check_store()
        with _compile_lock:
            compiled = self._begin()
            try:
                outcome = _compile_callable()(self, args, kwargs)
                if isinstance(outcome, Deferred):
                    outcome = outcome.finish()  # whoever prepares waits
            except Refused as refusal:
                text = refusal.reason + (f" ({refusal.hint})" if refusal.hint else "")
                if refusal.skipped and not refusal.raises and not self.options["fullgraph"]:
                    self._skip(text)
                    self._keep_skip(text)
                    return "skipped", "", self._eager_reason
                return "eager", "", text
            finally:
                if compiled is not None:
                    compiled()
        if isinstance(outcome, InProcess):
            return "eager", "", f"cannot be stored: {outcome.reason}"
        return "compiled", outcome, ""

    def _check_store(self) -> None:
        try:
            self.store.check_writable()
        except StoreError as error:
            raise StoreUnwritable(f"{error}. Nothing was compiled for {self.name}") from error

    def _begin(self) -> Callable[[], None] | None:
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
        for manifest in sorted(self.store.variants(self.key), key=lambda m: (m.target != self.target, m.target == PTX, takes_numbers(m))):
            if not fits(self.target, manifest.target) or why_not(manifest, self, elsewhere=True):
                continue
            if not first_failure((*manifest.guards, *self.extra_guards), local_values, cells) and self.store.complete(manifest):
                return manifest.artifact_id
        return ""

    def find(self, local_values: Mapping[str, Any], counts: bool = True) -> Binding | None:
        """The binding of the first variant whose guards hold; looks into the store when none that is loaded does. `counts`: for a call."""
        binding = self._shelf.find(local_values, self.locals_of.cells(), look=not self._eager_reason, counts=counts)
        if binding is None and not self.variants and not self._eager_reason:
            reason = skips.recall(self.store, self.key, compiles=not self.require_hit)
            if reason:
                self._skip(reason)
        return binding

    def open_variant(self, manifest: Manifest, source: Any, stored: bool, graph: Callable[..., Any] | None) -> Variant:
        """A variant of this program, from where its blobs are. Raises what it cannot be read with."""
        return Variant(manifest, source, self.entry, self.extra_guards, stored, self.build_frame, graph, self._cuda_graphs)

    def useless(self, manifest: Manifest) -> str:
        """Why an artifact of the store cannot serve here; "" where it can."""
        return why_not(manifest, self)

    # -- missing

    def _miss(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], local_values: Mapping[str, Any]) -> Binding | None:
        if self._eager_reason:
            return None  # `find` may just have learnt it from the store
        position = stance.current()
        if position == "eager_on_recompile" and not self.require_hit:
            return None
        if self.require_hit or position == "fail_on_recompile":
            self._raise_miss(args, kwargs)
        if position in stance.FIRST_CALL_EAGER and self._first_miss(local_values):
            return None
        if self.options["background_compile"] and not self._compiler_is_free():
            return None  # it is not waited for: this call runs eagerly, and the next one looks again
        with _compile_lock:
            binding = self.find(local_values)  # another thread may have compiled it while this one waited
            if binding is not None:
                return binding
            if self._eager_reason or not self._may_compile(local_values):
                return None
            return self._compile(args, kwargs, local_values)

    @staticmethod
    def _compiler_is_free() -> bool:
        free = _compile_lock.try_enter()
        if free:
            _compile_lock.__exit__()
        return free

    def _first_miss(self, local_values: Mapping[str, Any]) -> bool:
        """Whether no call has missed before; noted for the stances that compile from the second one on, with the call's sizes."""
        first, self._missed = not self._missed, True
        if first:
            self.first_call = example(local_values)
        return first

    def _raise_miss(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        from precast.runtime.explain import explain  # a miss is rare: keep the text out of the warm path

        explanation = explain(self, args, kwargs)
        if self.require_hit:
            raise GuardMiss(
                f"no stored artifact of {self.name} fits this call, and it was loaded with require='hit'\n{explanation}", explanation
            )
        raise RecompileForbidden(
            f"{self.name} would compile for this call, and the stance is fail_on_recompile\n{explanation}", explanation
        )

    def _may_compile(self, local_values: Mapping[str, Any]) -> bool:
        if self.variants:
            failing = self._first_failures(local_values)
            self._failures.update(failing)
            self._log_recompile(failing)
        limit, accumulated = self.options["recompile_limit"], self.options["accumulated_recompile_limit"]
        which = self._compiles.reached(self._shared, limit, accumulated, self.options["isolate_recompiles"])
        if not which:
            return True
        reached = f"reached {which}; the guard that kept failing: {self._worst_guard()}."
        if self.options["fullgraph"]:
            raise PrecastError(f"{self.name} {reached} fullgraph=True forbids running eagerly: raise the limit, or use dynamic=True")
        if not limit:
            reached = "compiles nothing (recompile_limit 0), and no stored artifact fits this call: precast.explain_miss says why."
        self._run_eagerly(f"{reached} Further calls that fit no variant run eagerly")
        return False

    def _log_recompile(self, failing: Sequence[str]) -> None:
        log, known = logger("recompiles"), len(self.variants)
        limit = self.options["recompile_limit"]
        log.info("%s: none of %d variants fits this call, so another is compiled (recompile_limit %d)", self.name, known, limit)
        for text in failing:
            log.info("%s:   %s", self.name, text)

    def _first_failures(self, local_values: Mapping[str, Any]) -> list[str]:
        from precast.runtime.explain import first_failure

        cells = self.locals_of.cells()
        texts = [first_failure(variant.guards, local_values, cells) for variant in self.variants]
        return [text for text in texts if text]

    def _worst_guard(self) -> str:
        worst = self._failures.most_common(1)
        return worst[0][0] if worst else "none (the variants were made for other targets or versions)"

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], local_values: Mapping[str, Any]) -> Binding | None:
        compiled: Callable[[], None] | None = None
        outcome: str | InProcess | Deferred = ""
        in_vain = False
        try:
            compiled = self._begin()
            outcome = _compile_callable()(self, args, kwargs)
        except Refused as refusal:
            if refusal.raises and not refusal.forbidden and not self.options["fullgraph"]:
                in_vain = not self.is_part  # a part may raise as a matter of course: that has to end
                return self._try_it(refusal, local_values)
            return self._refused(refusal, local_values)
        except (RegionError, DirectiveError, BackendError, MarkError):
            raise  # what the user chose (a backend, a filter, a mark) failed: as with torch.compile, that is for the user to see
        except Exception as error:
            if self.options["fullgraph"] or strict():
                raise
            self._failed(error)
            return None
        finally:
            if compiled is not None and not isinstance(outcome, Deferred):
                compiled()
            self._compiles.count(self._shared, isinstance(outcome, str) and outcome != "", self.options["isolate_recompiles"], in_vain)
        if isinstance(outcome, Deferred):
            return self._defer(outcome, compiled).bind(local_values, self.locals_of.cells())
        try:
            return self._bind_new(self._adopt(outcome), local_values)
        except LoadError as error:
            self._unloadable(error)
            return None

    def _failed(self, error: Exception) -> None:
        logger("runtime").log(failure_level(error), "%s: compiling failed", self.name, exc_info=error)
        self._run_eagerly(f"runs eagerly, because compiling it failed{failure_text(error)}"[:500])

    def _defer(self, deferred: Deferred, compiled: Callable[[], None] | None) -> EagerVariant:
        """What serves such calls until the background thread has finished."""
        pending = EagerVariant(self.entry, (*deferred.guards, *self.extra_guards), pending=True)

        def run() -> None:
            try:
                with _compile_lock:
                    outcome = deferred.finish()
                if pending in self.variants:  # not forgotten meanwhile
                    self._adopt(outcome)
                    logger("compile").info("%s: compiled in the background; in use from the next call on", self.name)
            except Refused as refusal:
                self._run_eagerly(f"runs eagerly: {refusal}")
            except LoadError as error:
                self._run_eagerly(f"runs eagerly: what was compiled for it cannot be loaded: {error}")
            except Exception as error:  # noqa: BLE001 - reported, and nobody is there to catch it
                self._failed(error)
            finally:
                abandon()
                if compiled is not None:
                    compiled()

        def abandon() -> None:
            self._shelf.remove(pending)

        self._shelf.put_eager(pending)
        from precast.runtime import background  # not on the warm path

        background.submit(background.Job(run, abandon))
        return pending

    def _bind_new(self, variant: Variant, local_values: Mapping[str, Any]) -> Binding | None:
        """The binding of a variant that was compiled for this very call. Raises LoadError."""
        cells = self.locals_of.cells()
        if not variant.check(local_values, cells):
            self._unstable(variant, local_values, cells)
            return None
        try:
            binding = variant.bind(local_values, cells)
        except LoadError as error:
            self._shelf.drop(variant, str(error))
            raise
        self._shelf.count_hit(variant)
        return binding

    def _adopt(self, outcome: str | InProcess) -> Variant:
        """The variant that the compile callable just made, loaded as a warm start would load it. Raises LoadError."""
        if isinstance(outcome, InProcess):
            logger("runtime").info("%s: kept in this process only: %s", self.name, outcome.reason or "it cannot be stored")
            if self.is_part:
                self._keep_skip(f"it cannot be stored: {outcome.reason}", graph=bool(outcome.manifest.graphs))
            self._refuse_unfit(outcome.manifest)
            return self._shelf.put(outcome.manifest, MemoryBlobs(outcome.blobs), stored=False, graph=outcome.graph)
        manifest = self.store.get(outcome, self.key)
        if manifest is None:
            raise LoadError(f"the artifact {outcome[:12]} cannot be read back from {self.store!r}")
        self._refuse_unfit(manifest)
        return self._shelf.put(manifest, self.store, stored=True)

    @staticmethod
    def _refuse_unfit(manifest: Manifest) -> None:
        """What was compiled for another machine is stored, and not run here."""
        unfit = why_unfit(manifest.target) if manifest.graphs else ""
        if unfit:
            raise LoadError(f"its target is {manifest.target}, and {unfit}")

    def _unloadable(self, error: LoadError) -> None:
        """What was just compiled cannot be loaded: compiling it again would make the same, so it is not tried again in this process."""
        if self.options["fullgraph"]:
            raise PrecastError(f"{self.name} was compiled, and what was compiled cannot be loaded: {error}") from error
        self._run_eagerly(f"runs eagerly: what was compiled for it cannot be loaded: {error}")

    def _unstable(self, variant: Variant, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
        from precast.runtime.explain import first_failure

        failing = first_failure(variant.guards, local_values, cells)
        self._warn("unstable", f"a guard does not hold right after compiling ({failing}): it changes by itself; this call runs eagerly")

    def _try_it(self, refusal: Refused, local_values: Mapping[str, Any]) -> Binding:
        """Run this call eagerly. If it raises, the call was at fault; if not, the refusal stands."""

        around = self.around if refusal.skipped else None
        function = self.function if around is None else around(self.function)  # what it calls is compiled, as in later calls

        def run(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if not refusal.skipped and strict():
                raise refusal
            self._refused(refusal, local_values)
            return result

        return Binding(EagerVariant(self.entry, (), pending=True), run, None, (), self.entry.defaults)

    def _refused(self, refusal: Refused, local_values: Mapping[str, Any]) -> Binding | None:
        text = f"{refusal.reason}{f' ({refusal.hint})' if refusal.hint else ''}"
        if refusal.forbidden:
            raise GraphBreakError(f"{self.name} has a graph break, which error_on_graph_break forbids here: {text}") from refusal
        if refusal.permanent:
            if self.options["fullgraph"]:
                raise PrecastError(f"{self.name} cannot be compiled as one graph, and fullgraph=True was asked for: {text}") from refusal
            if refusal.skipped:
                self._skip(text)
            else:
                self._run_eagerly(f"runs eagerly: {text}")
            if (refusal.skipped or self.is_part) and not refusal.machine:
                self._keep_skip(text)
            return None
        self._warn(refusal.reason, f"runs eagerly: {text}")
        variant = EagerVariant(self.entry, (*refusal.guards, *self.extra_guards), refusal.unless)
        self._shelf.put_eager(variant)
        return variant.bind(local_values, self.locals_of.cells())

    def _skip(self, reason: str) -> None:
        self._skipped = True
        self._eager_reason = f"is not compiled itself: {reason}"
        logger("graph_breaks").info("%s %s", self.name, self._eager_reason)

    def _keep_skip(self, reason: str, graph: bool = False) -> None:
        if self.backend is None and self.options["store_results"]:
            skips.remember(self.store, self.key, reason, graph)

    def _run_eagerly(self, reason: str) -> None:
        self._eager_reason = reason
        self._warn("eager", reason)

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn(f"precast: {self.name} {message}")

    # -- forgetting

    def reset(self) -> None:
        """Forget loaded variants, compile counts and refusals; the store keeps what it has."""
        self._shelf.clear()
        self._failures.clear()
        self._warned.clear()
        self._compiles.reset(self._shared)
        self._missed = False
        self.first_call = ()
        self._eager_reason = ""
        self._skipped = False
        for forget in self.on_reset:
            forget()
