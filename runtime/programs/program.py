"""Programs: one callable with its options and its variants. What happens when none of them fits: `miss_policy.py`."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from precast.artifact_store import Manifest, StoreError
from precast.artifact_store.format.guards import Guard
from precast.artifact_store.format.packed_guards import GuardRow
from precast.artifact_store.format.records import FrameRecord
from precast.artifact_store.trust.trusted import Trusted
from precast.runtime.common import torch_support
from precast.runtime.common.errors import CompilerBroken, Deferred, GuardMiss, InProcess, LoadError, Refused, StoreUnwritable, Taken
from precast.runtime.common.log import logger, warn
from precast.runtime.common.upward_imports import span
from precast.runtime.counting.tallies import writes
from precast.runtime.frames import call_interception
from precast.runtime.frames.entry import Entry, LocalsOf
from precast.runtime.frames.lambda_lift import Shell
from precast.runtime.frames.rewritten_code import Resume, build
from precast.runtime.guards.evaluate import first_failure
from precast.runtime.loading.compatibility import why_not
from precast.runtime.programs import fallback, single_flight
from precast.runtime.programs.compile_hook import compiler, one_at_a_time
from precast.runtime.programs.fallback import Eagerly
from precast.runtime.programs.identity import Identity, Settings
from precast.runtime.programs.miss_policy import Misses, remote_lookup
from precast.runtime.programs.variant import Artifact, Binding, EagerVariant, Variant, VariantSettings, takes_numbers
from precast.runtime.programs.variant_cache import Shelf
from precast.runtime.settings import stance
from precast.runtime.settings.options import CudaGraphOptions
from precast.runtime.targets.ladder import ladder_of, rank, resolve, serves

if TYPE_CHECKING:
    from precast.runtime.programs.canary import Canary


@dataclass(frozen=True, eq=False, repr=False)
class ProgramHooks:
    """What a program asks and tells the rest of the runtime: given when it is made (`build_program.py`), and the same for good.

    `resume`: makes what continues a frame after a graph break. `around`: a function as it runs where what it calls between graphs is
    compiled, too. `parts`: each gives the programs of one kind that were reached from this one. `on_build`: told that code of the program
    is about to run for the first time; `on_reset`: to forget, as the program does; `on_refresh`: to forget which variant serves which call,
    as there may be a better one; `on_binding`: told of the binding that a call found the
    slow way, and of the call's locals; `on_compile`: told that a compile begins, gives what to call when it ends.
    """

    resume: Resume | None = None
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    parts: tuple[Callable[[], Sequence[Program]], ...] = ()
    on_build: tuple[Callable[[], None], ...] = ()
    on_reset: tuple[Callable[[], None], ...] = ()
    on_refresh: tuple[Callable[[], None], ...] = ()
    on_binding: Callable[[Binding, Mapping[str, Any]], None] | None = None
    on_compile: Callable[[], Callable[[], None] | None] | None = None


def _canary(wanted: bool | float) -> Canary | None:
    if wanted is False:
        return None
    from precast.runtime.programs.canary import Canary  # wanted by few

    return Canary(None if wanted is True else float(wanted))


def _another_tracer() -> bool:
    """Whether torch.export, make_fx or torch.jit.trace is at work: they take the program as it is written."""
    proxies = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return proxies is not None or torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None


class Program:
    """One function with options. Called through a dispatcher; `call` is what a dispatcher does when its fast checks find nothing.

    `args` always include the entry's prefix (`self`, a partial's arguments). `build_program.py` makes programs, and nothing else does.
    """

    def __init__(
        self,
        entry: Entry,
        identity: Identity,
        settings: Settings,
        hooks: ProgramHooks,
        extra_guards: Sequence[Guard] = (),
        shell: Shell | None = None,
        is_part: bool = False,
    ) -> None:
        """`shell`: what makes the traced function's free variables parameters of the entry, where it has one. `is_part`: it is a part of
        another program, so that it runs eagerly where it cannot be stored, and a warm process does not miss it.
        """
        self.entry = entry
        self.function = entry.function
        self.name, self.key, self.code, self.digest = identity.name, identity.key, identity.code, identity.digest
        self.options = dict(settings.options)
        self.target = resolve(self.options["target"])
        self.store = settings.store
        self.require_hit = settings.require_hit
        self.backend = settings.backend
        self.hooks = hooks
        self.is_part = is_part
        self.locals_of = LocalsOf(self.function)
        self.extra_guards = tuple(extra_guards)
        self._shell = shell
        self._cuda_graphs = CudaGraphOptions.of(self.options)
        self._canary = _canary(settings.canary)
        self._shelf = Shelf(self)
        self.tally = self._shelf.tally
        self.eagerly = Eagerly(self, self.tally)
        self._misses = Misses(self, self._shelf, self.eagerly)

    @property
    def variants(self) -> Sequence[Variant | EagerVariant]:
        """What this process has loaded or compiled, in the order in which calls try it."""
        return self._shelf.variants

    @property
    def unloadable(self) -> Mapping[str, str]:
        """Ids of the artifacts that this process tried to load and could not, with the reasons."""
        return self._shelf.unloadable

    @property
    def first_call(self) -> tuple[GuardRow, ...]:
        """What is known of the call that a stance left uncompiled, to learn from it what varies; empty where there was none."""
        return self._misses.first_call

    def __repr__(self) -> str:
        return f"<Program {self.name} {self.key}: {len(self.variants)} variants>"

    def family(self) -> list[Program]:
        """This program, those that continue it, and those that it calls between graphs, as far as they were reached."""
        return [self, *(member for part in self.hooks.parts for program in part() for member in program.family())]

    def traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[types.FunctionType, tuple[Any, ...], Mapping[str, Any]]:
        """The function to trace for this call, and its arguments."""
        return (self.function, args, kwargs) if self._shell is None else self._shell.open(args)

    @property
    def free_as_locals(self) -> bool:
        """Whether the contents of the traced function's free variables are among the program's locals."""
        return self._shell is not None

    def build_frame(self, record: Trusted[FrameRecord], graph: Callable[..., Any]) -> Callable[..., Any]:
        """The rewritten frame, taking the program's arguments. Raises FrameCodeError."""
        for notice in self.hooks.on_build:
            notice()
        if self._shell is not None:
            frame = build(record, self._shell.template(), graph, self.hooks.resume)
            return self._shell.function(frame.__code__, frame)
        frame = build(record, self.function, graph, self.hooks.resume)
        return self.hooks.around(frame) if record.content.broken and self.hooks.around is not None else frame

    # -- calling

    @stance.enters_region
    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Find, load or compile the variant for this call, and run it; the original function where nothing fits."""
        if reason := torch_support.unsupported():
            run = self._unsupported(reason)
        else:
            with call_interception.paused():
                run = self._choose(args, kwargs)
        return run(*args, **kwargs)

    def _choose(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What this call runs."""
        if stance.state.force_eager or _another_tracer():
            return self.function
        if sys.is_finalizing() and not self.require_hit:
            return self.function  # called by a destructor while the interpreter ends: no file can be opened any more
        if self.eagerly.reason and not self.variants:
            self.tally.bypassed += 1
            if writes.record is not None and not self.is_part:
                writes.record(self, args, kwargs, False)
            return self.as_written(self.eagerly.skipped)
        try:
            local_values = self.locals_of(args, kwargs)
        except TypeError:
            return self.function  # raises what the call itself raises
        binding = self.find(local_values)
        if writes.record is not None and not self.is_part:
            writes.record(self, args, kwargs, binding is not None)
        if binding is None:
            binding = self._misses.serve(args, kwargs, local_values)
        if binding is None:
            return self.as_written(self.eagerly.skipped)
        if self._canary is not None and binding.variant.stored and self._canary.wants(binding.variant.artifact_id):
            return self._tried(self._canary, binding)
        if self.hooks.on_binding is not None and not binding.variant.pending:
            self.hooks.on_binding(binding, local_values)
        return binding.frame

    def _tried(self, canary: Canary, binding: Binding) -> Callable[..., Any]:
        """What the first call runs that this artifact serves: the artifact, and eager beside it."""

        def fails(difference: str) -> None:
            reason = f"artifact {binding.variant.artifact_id[:12]} failed its canary: {difference}"
            warn(
                f"precast: {self.name}: {reason}. It is not used in this process, and this call has eager's answer; "
                "`precast rm` takes it out of the store, and `precast build` makes it anew"
            )
            self._shelf.drop(binding.variant, reason)
            for forget in self.hooks.on_refresh:
                forget()

        owners = tuple(self.entry.prefix)
        return canary.trial(self.function, binding.frame, owners, fails)

    def warm_up(self) -> list[str]:
        """Loads every stored artifact of the program, those of remotes that come within their budgets among them, and binds those for which
        the entry's own objects suffice. What could not be loaded, as sentences.
        """
        if self.store.remotes is not None:
            remote_lookup().bring(self)
        names = self.function.__code__.co_varnames
        local_values, cells = dict(zip(names, self.entry.prefix, strict=False)), self.locals_of.cells()
        self._shelf.refresh()
        for variant in self.variants:
            if not isinstance(variant, Variant):
                continue
            try:
                variant.load()
                variant.warm_up(local_values, cells)
            except LoadError as error:
                self._shelf.drop(variant, str(error))
        return [f"{self.name}: {reason}" for reason in self.unloadable.values()]

    def refresh(self) -> list[str]:
        """Takes up what has come into the store since it was looked through: ids of artifacts that are new or were made anew. Remotes are
        asked, too; what they bring later, the next refresh takes up.
        """
        if self.store.remotes is not None:
            remote_lookup().ask(self)
        found = self._shelf.refresh()
        if found:
            logger("runtime").info("%s: %d new artifacts are used from now on", self.name, len(found))
            for forget in self.hooks.on_refresh:
                forget()
        return found

    def as_written(self, calls_compiled: bool) -> Callable[..., Any]:
        """The original function. `calls_compiled`: what it calls is compiled, as far as it can be."""
        around = self.hooks.around if calls_compiled else None
        return self.function if around is None else around(self.function)

    def _unsupported(self, reason: str) -> Callable[..., Any]:
        """The original function, where nothing works with this torch. Raises what was asked for in place of running eagerly."""
        if stance.state.force_eager:
            return self.function
        if self.require_hit:
            raise GuardMiss(f"{self.name} was loaded with require='hit', and {reason}")
        if self.options["fullgraph"]:
            raise CompilerBroken(f"{self.name} cannot be compiled, and fullgraph=True forbids running eagerly: {reason}")
        torch_support.tell(reason)
        return self.function

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

        if found := known() or self._brought(known):
            return "hit", found, ""
        if self.eagerly.skipped:
            return "skipped", "", self.eagerly.reason
        if self.options["store_results"] and not fallback.recall(self.store, self.key, compiles=False):
            self._check_store()
        turn = single_flight.begin(self, local_values)
        single_flight.wait(turn, lambda: bool(known()) or self.eagerly.skipped)
        with single_flight.within(turn), one_at_a_time:
            if found := known():
                return "taken", found, ""
            return ("skipped", "", self.eagerly.reason) if self.eagerly.skipped else self._compile_for(args, kwargs)

    def _brought(self, known: Callable[[], str]) -> str:
        """The id of a stored artifact that the store's remotes had; empty where they have none in time."""
        if self.store.remotes is None:
            return ""
        from precast.runtime.programs import remote_lookup  # not where there are none

        return remote_lookup.brought(self, known) or ""

    def _compile_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str, str]:
        """Compile for a call that nothing stored serves: as `prepare`."""
        from precast.runtime.counting.count_compiles import Attempt  # not on the warm path

        attempt = Attempt(self)
        compiled = self.begin()
        try:
            with span("compile", program=self.name):
                outcome = compiler()(self, args, kwargs)
                if isinstance(outcome, Deferred):
                    outcome = outcome.finish()  # whoever prepares waits
            attempt.ended(outcome)
        except Refused as refusal:
            attempt.refused(refusal)
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
        return self.hooks.on_compile() if self.hooks.on_compile is not None else None

    def _known_here(self, local_values: Mapping[str, Any]) -> str:
        binding = self.find(local_values, counts=False)
        stored = binding is not None and binding.variant.stored and serves(self.target, binding.variant.target)
        return binding.variant.artifact_id if binding is not None and stored else ""

    def stored(self, local_values: Mapping[str, Any], fits: Callable[[str, str], bool] = serves) -> str:
        """The id of the stored artifact that serves the call on a machine of the program's target, found without loading it; else empty.

        `fits(target, found)`: whether an artifact for `found` counts.
        """
        cells = self.locals_of.cells()
        steps = {target: step for step, target in enumerate(ladder_of(self.target))}
        found = (document.content for document in self.store.trusted_variants(self.key))
        best_first = sorted(found, key=lambda m: (steps.get(m.target, len(steps)), takes_numbers(m)))
        for manifest in best_first:
            if not fits(self.target, manifest.target) or why_not(manifest, self.code, elsewhere=True):
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

    def open_variant(self, artifact: Artifact) -> Variant:
        """A variant of this program. Raises what the artifact cannot be read with."""
        return Variant(artifact, VariantSettings(self.entry, self.build_frame, self.extra_guards, self._cuda_graphs))

    def useless(self, manifest: Manifest) -> str:
        """Why an artifact of the store cannot serve here; "" where it can."""
        return why_not(manifest, self.code)

    # -- forgetting

    def reset(self) -> None:
        """Forget loaded variants, compile counts and refusals; the store keeps what it has."""
        self._shelf.clear()
        self._misses.clear()
        self.eagerly.clear()
        for forget in self.hooks.on_reset:
            forget()
