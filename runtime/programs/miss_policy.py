"""Misses: what a program does with a call that none of its variants fits. It raises, runs it eagerly, or compiles."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precast.artifact_store import Manifest
from precast.artifact_store.format.packed_guards import GuardRow
from precast.runtime.common import torch_support
from precast.runtime.common.errors import (
    BackendError,
    CompilerBroken,
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
    failure_level,
    failure_text,
    strict,
)
from precast.runtime.common.log import logger
from precast.runtime.common.upward_imports import span
from precast.runtime.counting.tallies import Compiles, Shared, begin_writing
from precast.runtime.executable.blob_source import MemoryBlobs
from precast.runtime.guards.evaluate import first_failure
from precast.runtime.loading.open import trusted_document
from precast.runtime.programs import single_flight
from precast.runtime.programs.automatic_dynamic import example
from precast.runtime.programs.compile_hook import Outcome, compiler, is_free, one_at_a_time
from precast.runtime.programs.fallback import Eagerly
from precast.runtime.programs.interfaces import Serving
from precast.runtime.programs.variant import Artifact, Binding, EagerVariant, Variant
from precast.runtime.programs.variant_cache import Shelf
from precast.runtime.settings import stance
from precast.runtime.targets.ladder import why_unfit

if TYPE_CHECKING:
    from precast.runtime.counting.count_compiles import Attempt
    from precast.runtime.counting.write_counts import Miss


class Misses:
    """The calls of one program that no variant fits."""

    def __init__(self, program: Serving, shelf: Shelf, eagerly: Eagerly) -> None:
        self._program = program
        self._shelf = shelf
        self._eagerly = eagerly
        self._tally = shelf.tally
        self._compiles = Compiles()
        self._missed = False
        self._failures: Counter[str] = Counter()
        self._waiting: dict[str, single_flight.Turn] = {}  # by which kind of call, where calls are not to wait
        self.first_call: tuple[GuardRow, ...] = ()  # that a stance left uncompiled, to learn from it what varies

    @property
    def _shared(self) -> Shared:
        return self._program.store.place, self._program.key

    def clear(self) -> None:
        """Forget counts, limits and the first call."""
        self._failures.clear()
        self._compiles.reset(self._shared)
        self._missed = False
        self._waiting.clear()
        self.first_call = ()

    def serve(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], local_values: Mapping[str, Any]) -> Binding | None:
        """What is to run this call: compiled for it, or None where it runs eagerly. Raises GuardMiss and RecompileForbidden."""
        program = self._program
        if self._eagerly.reason:
            return self._bypass()  # `find` may just have learnt it from the store
        if program.store.remotes is not None:
            binding: Binding | None = remote_lookup().brought(program, lambda: program.find(local_values))
            if binding is not None:
                return binding
            if self._eagerly.reason:
                return self._bypass()
        position = stance.current()
        if position == "eager_on_recompile" and not program.require_hit:
            return self._count("stance")
        if program.require_hit or position == "fail_on_recompile":
            if self._had_nothing_to_compile():
                return self._bypass()
            self._raise(args, kwargs)
        if reason := torch_support.broken():
            self._cannot_compile(reason)
            return self._count("no compiler")
        if not program.options["recompile_limit"] and remote_lookup().is_under_way(program):
            return self._count("fetch under way")  # it compiles nothing, and what a remote brings may serve the next call
        if position in stance.FIRST_CALL_EAGER and self._is_first(local_values):
            return self._count("stance")
        in_background = program.options["background_compile"]
        if in_background and not is_free():
            return self._count("compiling meanwhile")  # not waited for: this call runs eagerly, and the next one looks again
        miss = None if in_background else self._judged(local_values)  # before the wait: what it brings is no cause
        turn = self._turn(local_values)
        if turn.waits:
            return self._count("compiling meanwhile")
        miss = self._judged(local_values) if in_background else miss
        with single_flight.within(turn), one_at_a_time:
            binding = program.find(local_values)  # another thread or process may have compiled it while this one waited
            if binding is not None:
                self._waited(miss, turn.waited)
                return binding
            if self._eagerly.reason or not self._may_compile(local_values, miss):
                return self._bypass()
            return self._compile(args, kwargs, local_values, turn, miss)

    # -- counting

    def _bypass(self) -> Binding | None:
        """Counts a call that runs eagerly for the program's own reason, and so is bound to nothing."""
        self._tally.bypassed += 1
        return None

    def _judged(self, local_values: Mapping[str, Any]) -> Miss | None:
        """The miss with its cause, which is looked for; None where nothing is counted."""
        if not begin_writing():
            return None
        from precast.runtime.counting.write_counts import Miss
        from precast.runtime.programs.miss_cause import judge  # a miss is rare: none of this is on the warm path

        return Miss(self._program, *judge(self._program, local_values))

    def _count(self, cause: str) -> Binding | None:
        """Counts a miss whose cause is plain, and that runs eagerly, bound to nothing."""
        if begin_writing():
            from precast.artifact_store.statistics.causes import Cause, Outcome
            from precast.runtime.counting.write_counts import Miss

            Miss(self._program, Cause(cause)).ended(Outcome.EAGER)
        return None

    def _waited(self, miss: Miss | None, seconds: float) -> None:
        if miss is not None:
            from precast.artifact_store.statistics.causes import Outcome
            from precast.runtime.counting.write_counts import count_wait

            miss.ended(Outcome.WAITED)
            count_wait(self._program, seconds)

    def _turn(self, local_values: Mapping[str, Any]) -> single_flight.Turn:
        """The turn to compile for this call: waited for where that is wanted, else looked at once a call."""
        program = self._program

        def served() -> bool:
            return program.find(local_values, counts=False) is not None or bool(self._eagerly.reason)

        if not program.options["background_compile"]:
            turn = single_flight.begin(program, local_values)
            single_flight.wait(turn, served)
            return turn
        name = single_flight.name_of(program, local_values)
        waiting = self._waiting.pop(name, None)
        turn = waiting if waiting is not None else single_flight.begin(program, local_values)
        if turn.look(served):
            self._waiting[name] = turn
        return turn

    def _had_nothing_to_compile(self) -> bool:
        """Whether the store says that for some calls of the program, which has variants for others, there was nothing to compile."""
        eagerly = self._eagerly
        eagerly.recall()
        if eagerly.reason and not self._program.is_part:
            eagerly.warn("unfit", f"runs eagerly where no stored artifact fits the call: it {eagerly.reason}")
        return bool(eagerly.reason)

    def _is_first(self, local_values: Mapping[str, Any]) -> bool:
        """Whether no call has missed before; noted for the stances that compile from the second one on, with the call's sizes."""
        first, self._missed = not self._missed, True
        if first:
            self.first_call = example(local_values)
        return first

    def _raise(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        from precast.runtime.programs.explain_miss import explain  # a miss is rare: keep the text out of the warm path

        program = self._program
        explanation = explain(program, args, kwargs)
        if begin_writing():
            from precast.artifact_store.statistics.causes import Cause, Outcome
            from precast.runtime.counting.write_counts import Miss

            Miss(program, Cause(explanation.cause or "unknown"), explanation.detail).ended(Outcome.RAISED)
        if program.require_hit:
            raise GuardMiss(
                f"no stored artifact of {program.name} fits this call, and it was loaded with require='hit'\n{explanation}", explanation
            )
        raise RecompileForbidden(
            f"{program.name} would compile for this call, and the stance is fail_on_recompile\n{explanation}", explanation
        )

    # -- whether to compile

    def _may_compile(self, local_values: Mapping[str, Any], miss: Miss | None) -> bool:
        program = self._program
        if program.variants:
            failing = self._first_failures(local_values)
            self._failures.update(failing)
            self._log_recompile(failing)
        options = program.options
        limit = options["recompile_limit"]
        which = self._compiles.reached(self._shared, limit, options["accumulated_recompile_limit"], options["isolate_recompiles"])
        if not which:
            return True
        reached = f"reached {which}; the guard that kept failing: {self._worst_guard()}."
        if options["fullgraph"]:
            raise PrecastError(f"{program.name} {reached} fullgraph=True forbids running eagerly: raise the limit, or use dynamic=True")
        if not limit:
            reached = "compiles nothing (recompile_limit 0), and no stored artifact fits this call: precast.explain_miss says why."
        cause = str(miss.cause) if miss is not None and not limit else "limit reached"
        self._eagerly.from_now_on(f"{reached} Further calls that fit no variant run eagerly", cause)
        return False

    def _log_recompile(self, failing: Sequence[str]) -> None:
        program = self._program
        log, known = logger("recompiles"), len(program.variants)
        limit = program.options["recompile_limit"]
        log.info("%s: none of %d variants fits this call, so another is compiled (recompile_limit %d)", program.name, known, limit)
        for text in failing:
            log.info("%s:   %s", program.name, text)

    def _first_failures(self, local_values: Mapping[str, Any]) -> list[str]:
        cells = self._program.locals_of.cells()
        texts = [first_failure(variant.guards, local_values, cells) for variant in self._program.variants]
        return [text for text in texts if text]

    def _worst_guard(self) -> str:
        worst = self._failures.most_common(1)
        return worst[0][0] if worst else "none (the variants were made for other targets or versions)"

    # -- compiling

    def _compile(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], local_values: Mapping[str, Any], turn: single_flight.Turn, miss: Miss | None
    ) -> Binding | None:
        from precast.runtime.counting.count_compiles import Attempt

        program = self._program
        attempt = Attempt(program, miss)
        compiled: Callable[[], None] | None = None
        outcome: Outcome = ""
        in_vain = False
        try:
            compile_variant = compiler()
            compiled = program.begin()
            with span("compile", program=program.name):
                outcome = compile_variant(program, args, kwargs)
        except CompilerBroken as error:
            self._cannot_compile(str(error))
            attempt.broken()
            return None
        except Refused as refusal:
            attempt.refused(refusal)
            if refusal.raises and not refusal.forbidden and not program.options["fullgraph"]:
                in_vain = not program.is_part  # a part may raise as a matter of course: that has to end
                return self._try_it(refusal, local_values)
            return self._refused(refusal, local_values)
        except (RegionError, DirectiveError, BackendError, MarkError):
            raise  # what the user chose (a backend, a filter, a mark) failed: as with torch.compile, that is for the user to see
        except Exception as error:
            attempt.failed(error)
            if program.options["fullgraph"] or strict():
                raise
            self._failed(error)
            return None
        finally:
            if compiled is not None and not isinstance(outcome, Deferred):
                compiled()
            stored = isinstance(outcome, str) and outcome != ""
            self._compiles.count(self._shared, stored, program.options["isolate_recompiles"], in_vain)
        if isinstance(outcome, Deferred):
            return self._defer(outcome, compiled, turn, attempt).bind(local_values, program.locals_of.cells())
        attempt.ended(outcome)
        try:
            return self._bind_new(self._adopt(outcome), local_values)
        except LoadError as error:
            self._unloadable(error)
            return None

    def _cannot_compile(self, reason: str) -> None:
        """This call runs eagerly, as nothing can be compiled in this process; what is stored is served all the same."""
        if self._program.options["fullgraph"]:
            raise CompilerBroken(f"{self._program.name} cannot be compiled, and fullgraph=True forbids running eagerly: {reason}")
        torch_support.tell(reason)

    def _failed(self, error: Exception) -> None:
        logger("runtime").log(failure_level(error), "%s: compiling failed", self._program.name, exc_info=error)
        self._eagerly.from_now_on(f"runs eagerly, because compiling it failed{failure_text(error)}"[:500], "compile failed")

    def _defer(self, deferred: Deferred, compiled: Callable[[], None] | None, turn: single_flight.Turn, attempt: Attempt) -> EagerVariant:
        """What serves such calls until the background thread has finished."""
        program = self._program
        pending = EagerVariant(program.entry, (*deferred.guards, *program.extra_guards), pending=True)

        turn.kept = True

        def run() -> None:
            try:
                with single_flight.within(turn), one_at_a_time:
                    outcome = deferred.finish()
                attempt.ended(outcome, in_background=True)
                if pending in program.variants:  # not forgotten meanwhile
                    self._adopt(outcome)
                    logger("compile").info("%s: compiled in the background; in use from the next call on", program.name)
            except Refused as refusal:
                attempt.refused(refusal)
                self._eagerly.from_now_on(f"runs eagerly: {refusal}")
            except LoadError as error:
                self._eagerly.from_now_on(f"runs eagerly: what was compiled for it cannot be loaded: {error}")
            except Exception as error:  # noqa: BLE001 - reported, and nobody is there to catch it
                attempt.failed(error)
                self._failed(error)
            finally:
                abandon()
                if compiled is not None:
                    compiled()

        def abandon() -> None:
            self._shelf.remove(pending)
            turn.release()

        self._shelf.put_eager(pending)
        from precast.runtime.common import background  # not on the warm path

        background.submit(background.Job(run, abandon))
        return pending

    # -- what came of it

    def _adopt(self, outcome: str | InProcess) -> Variant:
        """The variant that the compile callable just made, loaded as a warm start would load it. Raises LoadError."""
        program = self._program
        if isinstance(outcome, InProcess):
            logger("runtime").info("%s: kept in this process only: %s", program.name, outcome.reason or "it cannot be stored")
            if program.is_part:
                self._eagerly.remember(f"it cannot be stored: {outcome.reason}", graph=bool(outcome.manifest.graphs))
            _refuse_unfit(outcome.manifest)
            source = MemoryBlobs(outcome.blobs)
            return self._shelf.put(Artifact(trusted_document(outcome.manifest, source), source, stored=False, graph=outcome.graph))
        manifest = program.store.get(outcome, program.key)
        if manifest is None:
            raise LoadError(f"the artifact {outcome[:12]} cannot be read back from {program.store!r}")
        _refuse_unfit(manifest)
        return self._shelf.put(Artifact(trusted_document(manifest, program.store), program.store))

    def _bind_new(self, variant: Variant, local_values: Mapping[str, Any]) -> Binding | None:
        """The binding of a variant that was compiled for this very call. Raises LoadError."""
        cells = self._program.locals_of.cells()
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

    def _unloadable(self, error: LoadError) -> None:
        """What was just compiled cannot be loaded: compiling it again would make the same, so it is not tried again in this process."""
        if self._program.options["fullgraph"]:
            raise PrecastError(f"{self._program.name} was compiled, and what was compiled cannot be loaded: {error}") from error
        self._eagerly.from_now_on(f"runs eagerly: what was compiled for it cannot be loaded: {error}")

    def _unstable(self, variant: Variant, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
        failing = first_failure(variant.guards, local_values, cells)
        why = f"a guard does not hold right after compiling ({failing}): it changes by itself; this call runs eagerly"
        self._eagerly.warn("unstable", why)

    # -- what was refused

    def _try_it(self, refusal: Refused, local_values: Mapping[str, Any]) -> Binding:
        """Run this call eagerly. If it raises, the call was at fault; if not, the refusal stands."""
        program = self._program
        function = program.as_written(refusal.skipped)  # where it is skipped, what it calls is compiled, as in later calls

        def run(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if not refusal.skipped and strict():
                raise refusal
            self._refused(refusal, local_values)
            return result

        return Binding(EagerVariant(program.entry, (), pending=True), run, None, (), program.entry.defaults)

    def _refused(self, refusal: Refused, local_values: Mapping[str, Any]) -> Binding | None:
        program, eagerly = self._program, self._eagerly
        text = refusal.text
        if refusal.forbidden:
            raise GraphBreakError(f"{program.name} has a graph break, which error_on_graph_break forbids here: {text}") from refusal
        if refusal.permanent:
            if program.options["fullgraph"]:
                raise PrecastError(f"{program.name} cannot be compiled as one graph, and fullgraph=True was asked for: {text}") from refusal
            if refusal.skipped:
                eagerly.skip(text)
            else:
                eagerly.from_now_on(f"runs eagerly: {text}")
            if (refusal.skipped or program.is_part) and not refusal.machine:
                eagerly.remember(text)
            return None
        eagerly.warn(refusal.reason, f"runs eagerly: {text}")
        variant = EagerVariant(program.entry, (*refusal.guards, *program.extra_guards), refusal.unless)
        self._shelf.put_eager(variant)
        return variant.bind(local_values, program.locals_of.cells())


def remote_lookup() -> types.ModuleType:
    """The module that asks remotes, which no hit needs."""
    from precast.runtime.programs import remote_lookup as module

    return module


def _refuse_unfit(manifest: Manifest) -> None:
    """What was compiled for another machine is stored, and not run here."""
    unfit = why_unfit(manifest.target) if manifest.graphs else ""
    if unfit:
        raise LoadError(f"its target is {manifest.target}, and {unfit}")


__all__ = ["Misses"]
