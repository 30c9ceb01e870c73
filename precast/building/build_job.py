"""`build`, `check` and `explain` of one signature for one target; the commands print what they return."""

from __future__ import annotations

import copy
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

import precast
from precast.artifact_store import Manifest, Store
from precast.building import evidence
from precast.building.build_file import Loaded
from precast.report.user_frames import frames_of
from precast.runtime.api.precompile import SignatureReport, Traced, breaks, traced_for
from precast.runtime.common.errors import CompilerBroken, OptionError, StoreUnwritable
from precast.runtime.directives.dynamic_marks import marked
from precast.runtime.dispatch.call_site import Site
from precast.runtime.frames.entry import Entry
from precast.runtime.programs.fallback import recall
from precast.runtime.programs.identity import Settings
from precast.runtime.programs.program import Program
from precast.runtime.settings.options import merge_options
from precast.runtime.targets.ladder import NATIVE, rank, resolve, runs, serves
from precast.runtime.targets.shared_object import mounted_noexec
from precast.target_registry import family_of

log = logging.getLogger("precast.driver")
_RAISED = "Observed exception"
"""The beginning of the tracer's message for an exception that the traced code raises."""


@dataclass(frozen=True)
class Outcome:
    """One signature for one target. `status`: "compiled", "there already", "taken" (from another process, which built it meanwhile) or
    "hit"; "failed", "incomplete" (the run that finds what follows its graph breaks raised), "miss", "differs" (it answers otherwise than
    its evidence says) or "no evidence", with the reason.
    """

    program: str
    signature: int
    target: str
    status: str
    artifact: str | None
    seconds: float
    reason: str = ""

    @property
    def good(self) -> bool:
        return self.status not in ("failed", "incomplete", "miss", "differs", "no evidence")


_NOTHING_NEW = {"hit": "there already", "taken": "taken"}
"""The status of a signature for which this process stored nothing."""


def fall_back(target: str, found: str) -> str:
    """A sentence about a hit of an artifact for another target: a machine of `target` uses it, as it is the best that it finds."""
    if not family_of(found).on_host:
        return f"by its fall-back for {found}"
    return (
        f"by what was built for {found}, which such a machine runs too; `precast build … --target {target}` makes code for {target} itself"
    )


class Job:
    """One program of a build file on one store; signatures are counted from 1."""

    def __init__(self, loaded: Loaded, store: Store) -> None:
        self.loaded = loaded
        self.store = store
        self.name = loaded.spec.name
        self._tracings: dict[str, Traced] = {}
        self._unsent: Store | None = None

    def program(self, target: str) -> tuple[Program, Entry]:
        """The program, and its entry, as `precast.compile` would make it. Raises OptionError for a wrong mode or option."""
        spec = self.loaded.spec
        options = merge_options(spec.mode, spec.options, target=target)
        return Site(self._traced(target).model, Settings(options, self.store, spec.label)).program_for_call()

    def grad_mode(self) -> torch.set_grad_enabled:
        """Under which the calls are built and looked for: that of training, or of inference."""
        return torch.set_grad_enabled(self.loaded.spec.train)

    def key(self, target: str) -> str:
        """The program key, "" where it cannot be told: the first signature's build says why. Raises OptionError."""
        try:
            return self.program(target)[0].key
        except OptionError:
            raise
        except Exception as error:  # noqa: BLE001 - likewise
            log.info("%s: its key is not known: %s", self.name, error)
            return ""

    def keys(self, target: str) -> tuple[str, ...]:
        """The keys under which the store has what is built. Raises what making the program raises."""
        return (self.program(target)[0].key,)

    def build(self, number: int, target: str) -> Outcome:
        """Compile the signature unless the store serves it already."""
        begin = time.perf_counter()
        try:
            made = self._build(number, target, begin)
            made = self._with_evidence(made, begin) if self.loaded.spec.evidence and made.good else made
            self._send_held_back()
            return made
        except (OptionError, StoreUnwritable, CompilerBroken):
            raise  # for all programs
        except Exception as error:  # noqa: BLE001 - the report names it, and the others go on
            return self._outcome(number, target, "failed", None, begin, self._said(error))

    def _build(self, number: int, target: str, begin: float) -> Outcome:
        before = self.find(number, target)
        if before is not None and not breaks(before):
            return self._outcome(number, target, "there already", before, begin)
        own = set(self.store.made)
        self._held_back()
        report, said = self._precompile(number, target)
        reason, whole = report.reason or said, report.outcome != "incomplete"
        found = self.find(number, target)
        skipped = self.skipped(target) if found is None else ""
        if found is None and not skipped:
            reason = self._raised(number, target, reason) or reason or self.explain(number, target)
            return self._outcome(number, target, "failed", None, begin, reason)
        nothing_new = (self.store.made | (self._unsent.made if self._unsent is not None else set())) <= own
        status = _NOTHING_NEW.get(report.outcome, "compiled") if nothing_new else "compiled"
        if status == "taken":
            reason = "; ".join(filter(None, ("another process was building it at the same time", reason)))
        return self._outcome(number, target, status if whole else "incomplete", found, begin, skipped or reason if whole else reason)

    def _precompile(self, number: int, target: str) -> tuple[SignatureReport, str]:
        """Compile into the store; returns the report, and the warnings that were given."""
        spec = self.loaded.spec
        with warnings.catch_warnings(record=True) as caught, self.grad_mode():
            warnings.simplefilter("always")
            report = precast.precompile(
                self._traced(target).model,
                signatures=[self._traced(target).calls[number - 1]],
                targets=[target],
                mode=spec.mode,
                options=dict(spec.options) if spec.options is not None else None,
                store=self._unsent or self.store,
                name=spec.label,
                dynamic_shapes=spec.dynamic_shapes,
            )
        said = [str(warning.message) for warning in caught if "precast" in str(warning.message)]
        return report.signatures[0], "; ".join(said)

    def check(self, number: int, target: str) -> Outcome:
        """Whether the store serves the signature. Compiles nothing; runs it where its evidence is wanted."""
        begin = time.perf_counter()
        try:
            found = self._check(number, target, begin)
            return self._replayed(found, begin) if self.loaded.spec.evidence and found.good else found
        except OptionError:
            raise
        except Exception as error:  # noqa: BLE001 - likewise
            return self._outcome(number, target, "miss", None, begin, self._said(error))

    def _check(self, number: int, target: str, begin: float) -> Outcome:
        found = self.find(number, target, runs)
        if found is not None and mounted_noexec(self.store.root) and family_of(found.target).on_host:
            return self._outcome(number, target, "miss", found, begin, self.explain(number, target))
        if found is not None:
            said = "" if serves(resolve(target), found.target) else fall_back(target, found.target)
            later = "what follows its first graph break depends on values, and is not checked" if breaks(found) else ""
            return self._outcome(number, target, "hit", found, begin, "; ".join(filter(None, (said, later))))
        if self.skipped(target):
            return self._outcome(number, target, "hit", None, begin, self.skipped(target))
        return self._outcome(number, target, "miss", None, begin, self.explain(number, target))

    def _held_back(self) -> None:
        """With evidence, what is compiled goes to remotes when it is proved: of two manifests of one artifact they keep the first."""
        if self.loaded.spec.evidence and self._unsent is None and self.store.remotes is not None:
            self._unsent = Store.open(self.store.root, strict=True, remote=())

    def _send_held_back(self) -> None:
        """Have what was compiled sent, with the pieces after graph breaks and the measured choices."""
        if self._unsent is None or self.store.remotes is None:
            return
        for artifact in self._unsent.made:
            if (manifest := self.store.get(artifact)) is not None:  # else it was taken out
                self.store.remotes.put(manifest.program_key, artifact)
        for name in self.store.record_names("tuning") if self._unsent.made else ():
            self.store.remotes.put_record("tuning", name)
        self._unsent.made.clear()

    def _with_evidence(self, made: Outcome, begin: float) -> Outcome:
        """The artifact with its evidence. One whose answer is wrong is taken out, and its signature has failed."""
        try:
            manifest = self._proved(made.target, made.artifact)
            if evidence.GOLDEN in manifest.evidence:
                return made
            told = evidence.recorded(self.store, manifest, self._golden(made.signature))
        except evidence.NoEvidence as error:
            reason = "; ".join(filter(None, (made.reason, f"no evidence: {error}")))
            return replace(made, reason=reason)
        except ValueError as error:
            self.store.remove(manifest.artifact_id, manifest.program_key)
            return replace(made, status="failed", artifact=None, reason=f"{error}; the artifact was taken out of the store")
        blobs = {name: data for name in manifest.blobs if (data := self.store.blob(name)) is not None}
        self.store.put(manifest.with_evidence({evidence.GOLDEN: told}), blobs)
        return replace(made, seconds=round(time.perf_counter() - begin, 3))

    def _replayed(self, found: Outcome, begin: float) -> Outcome:
        try:
            manifest = self._proved(found.target, found.artifact)
            good, said = evidence.replayed(self.store, manifest, self._golden(found.signature))
        except evidence.NoEvidence as error:
            return replace(found, status="no evidence", reason="; ".join(filter(None, (found.reason, str(error)))))
        reason = "; ".join(filter(None, (found.reason, said)))
        return replace(found, status=found.status if good else "differs", seconds=round(time.perf_counter() - begin, 3), reason=reason)

    def _proved(self, target: str, artifact: str | None) -> Manifest:
        """The manifest of what is to be proved. Raises NoEvidence where that cannot be."""
        wanted = resolve(target)
        if not family_of(wanted).on_host or rank(wanted) is None:
            raise evidence.NoEvidence(f"this machine cannot run what is built for {wanted}")
        manifest = self.store.get(artifact, self.program(target)[0].key) if artifact is not None else None
        if manifest is None:
            raise evidence.NoEvidence("the program stays plain Python")
        if breaks(manifest):
            raise evidence.NoEvidence("the program has graph breaks, so that no one artifact answers")
        return manifest

    def _golden(self, number: int) -> evidence.Golden:
        spec, (args, kwargs) = self.loaded.spec, self.loaded.signatures[number - 1]
        options = dict(spec.options) if spec.options is not None else None
        return evidence.Golden(self.loaded.callable, args, kwargs, {"name": spec.label, "mode": spec.mode, "options": options})

    def skipped(self, target: str) -> str:
        """Why the program is recorded as plain Python whose callees are compiled; "" where it is not."""
        return recall(self.store, self.program(target)[0].key, compiles=False)

    def explain(self, number: int, target: str) -> str:
        """Why the store does not serve the signature, guard by guard against the nearest variants."""
        from precast.runtime.programs.explain_miss import explain

        with self._call(number, target) as (program, args, kwargs):
            explanation = explain(program, args, kwargs, elsewhere=resolve(target) != resolve(NATIVE))
        for_others_only = explanation.variants and not any(self._for(program.key, resolve(target)))
        return str(explanation) + (f"\nnothing is stored for {target}: `precast build … --target {target}`" if for_others_only else "")

    def find(self, number: int, target: str, fits: Callable[[str, str], bool] = serves) -> Manifest | None:
        """The stored artifact for this target whose guards hold for the call, as the runtime would find it on such a machine.

        `fits(target, found)`: whether an artifact for `found` counts.
        """
        with self._call(number, target) as (program, args, kwargs):
            artifact_id = program.stored(program.locals_of(args, kwargs), fits)
        return self.store.get(artifact_id, program.key) if artifact_id else None

    @contextmanager
    def _call(self, number: int, target: str) -> Iterator[tuple[Program, tuple[Any, ...], dict[str, Any]]]:
        """The program and the arguments of its function, marked as the file's `dynamic_shapes` say. Raises OptionError where those do not
        fit, and what a call with such arguments would raise.
        """
        program, entry = self.program(target)
        own, keywords = self._traced(target).calls[number - 1]
        args, kwargs = (*entry.prefix, *own), {**entry.keywords, **keywords}
        local_values, shapes = program.locals_of(args, kwargs), self.loaded.spec.dynamic_shapes
        with self.grad_mode(), nullcontext() if shapes is None else marked(local_values, own, shapes):
            yield program, args, kwargs

    def _raised(self, number: int, target: str, reason: str) -> str:
        """The exception that the program itself raises for the signature, with the user's lines; "" where it raises none.

        Where the tracer reported an uncaught exception, a copy of the program is called with copies of the arguments to find out.
        """
        if not reason.startswith(_RAISED) or not family_of(resolve(target)).on_host:
            return ""
        args, kwargs = self.loaded.signatures[number - 1]
        program, args, kwargs = copy.deepcopy((self.loaded.callable, args, kwargs))
        try:
            with self.grad_mode():
                program(*args, **kwargs)
        except Exception as error:
            log.info("%s", self.name, exc_info=error)
            return "\n".join([f"the program itself raises for this call: {type(error).__name__}: {error}", *frames_of(error)])
        return ""

    def _said(self, error: Exception) -> str:
        log.info("%s", self.name, exc_info=error)
        return "\n".join(
            [f"{type(error).__name__}: {error} (-v or PRECAST_LOGS=driver shows the whole stack)", *frames_of(error, libraries=False)]
        )

    def _traced(self, target: str) -> Traced:
        """The program and its signatures as they are traced for the target. Raises PrecastError."""
        device = family_of(resolve(target)).device
        if device not in self._tracings:
            self._tracings[device] = traced_for(target, self.loaded.callable, self.loaded.signatures)
        return self._tracings[device]

    def _for(self, key: str, target: str) -> Iterable[Manifest]:
        return (manifest for manifest in self.store.variants(key) if runs(target, manifest.target))

    def _outcome(self, number: int, target: str, status: str, manifest: Manifest | None, begin: float, reason: str = "") -> Outcome:
        artifact = manifest.artifact_id if manifest is not None else None
        return Outcome(self.name, number, target, status, artifact, round(time.perf_counter() - begin, 3), reason)
