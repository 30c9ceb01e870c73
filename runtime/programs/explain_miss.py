"""Why a call hits or misses: every variant, guard by guard, nearest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precast.artifact_store import Manifest
from precast.artifact_store.format.errors import DamagedRecord, Untrusted
from precast.artifact_store.format.text import many
from precast.artifact_store.statistics.causes import WORDS, cause_of
from precast.runtime.common.errors import public
from precast.runtime.common.notebook import Shown
from precast.runtime.guards.evaluate import failure
from precast.runtime.loading.compatibility import why_not
from precast.runtime.programs.interfaces import Explainable
from precast.runtime.programs.miss_cause import held, judge
from precast.runtime.targets.ladder import rules_of, runs
from precast.runtime.targets.shared_object import mounted_noexec
from precast.target_registry import family_of, find_family

SHOWN = 8


@public
@dataclass(frozen=True)
class VariantReport(Shown):
    """One variant against one call. `unusable`: why it cannot run on this machine; `failures`: the guards that do not hold, in words;
    `damaged`: what it needs is not in the store, or not as it was put there.
    """

    artifact_id: str
    target: str
    guards: int
    failures: tuple[str, ...]
    unusable: str = ""
    damaged: bool = False

    @property
    def fits(self) -> bool:
        """Whether it serves the call."""
        return not self.failures and not self.unusable and not self.damaged

    def __str__(self) -> str:
        head = f"variant {self.artifact_id[:12]} for {self.target}: "
        if self.unusable:
            return head + f"cannot be used: {self.unusable}"
        if not self.failures:
            lacking = ", and cannot be loaded: blobs of it are missing or damaged, or cannot be read (see `precast verify`); build it again"
            damage = lacking if self.damaged else ""
            return head + f"fits ({many(self.guards, 'guard holds', 'guards hold')}){damage}"
        lines = [f"  - {text}" for text in self.failures[:SHOWN]]
        if len(self.failures) > SHOWN:
            lines.append(f"  - and {len(self.failures) - SHOWN} more")
        verb = "does" if len(self.failures) == 1 else "do"
        return "\n".join([head + f"{len(self.failures)} of {many(self.guards, 'guard')} {verb} not hold", *lines])


@public
@dataclass(frozen=True)
class Explanation(Shown):
    """Every stored variant of a program against one call, nearest first. `str()` for people, `to_dict()` for machines.

    `cause`: why the call misses, as statistics call it, empty for one that hits; `detail`: which guard, versions, function … it is.
    """

    program: str
    key: str
    store: str
    variants: tuple[VariantReport, ...]
    note: str = ""
    cause: str = ""
    detail: str = ""

    @property
    def hits(self) -> bool:
        """Whether some variant fits; of an optimiser's step, one of each of its updates."""
        return not self.cause and any(variant.fits for variant in self.variants)

    @property
    def fix(self) -> str:
        """What to do about the cause; empty for a call that hits."""
        return WORDS[cause_of(self.cause)].fix if self.cause else ""

    def __str__(self) -> str:
        lines = [f"{self.program} (program key {self.key}) in {self.store}:"]
        if self.note:
            lines.append(self.note)
        lines += [str(variant) for variant in self.variants]
        if self.cause:
            lines.append(f"cause: {self.cause}{f' ({self.detail})' if self.detail else ''}. {self.fix}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            "program": self.program,
            "key": self.key,
            "store": self.store,
            "hits": self.hits,
            "note": self.note,
            "cause": self.cause,
            "detail": self.detail,
            "fix": self.fix,
            "variants": [
                {
                    "artifact_id": v.artifact_id,
                    "target": v.target,
                    "guards": v.guards,
                    "fits": v.fits,
                    "failures": list(v.failures),
                    "unusable": v.unusable,
                    "damaged": v.damaged,
                }
                for v in self.variants
            ],
        }


def explain(program: Explainable, args: tuple[Any, ...], kwargs: Mapping[str, Any], elsewhere: bool = False) -> Explanation:
    """Check every variant of `program`, stored or in this process, against a call. Runs and compiles nothing.

    `elsewhere`: it is asked for machines that the variants' targets mean, of the versions here.

    Raises TypeError when the arguments do not fit the function's signature.
    """
    local_values, cells = program.locals_of(args, kwargs), program.locals_of.cells()
    reports = []
    seen = set()
    for manifest in program.store.variants(program.key):
        seen.add(manifest.artifact_id)
        untrusted, guards = _why_untrusted(manifest, program), program.extra_guards
        try:
            guards = (*manifest.guards, *guards)
        except DamagedRecord as error:
            untrusted = untrusted or str(error)
        failures = () if untrusted else tuple(text for guard in guards if (text := failure(guard, local_values, cells)))
        unusable = untrusted or _why_unusable(manifest, program, elsewhere)
        damaged = not failures and not unusable and not program.store.complete(manifest)
        if not damaged:
            unusable = unusable or program.unloadable.get(manifest.artifact_id, "")
        reports.append(VariantReport(manifest.artifact_id, manifest.target, len(guards), failures, unusable, damaged))
    for variant in program.variants:
        if variant.artifact_id and variant.artifact_id not in seen:
            failures = tuple(text for guard in variant.guards if (text := failure(guard, local_values, cells)))
            reports.append(VariantReport(variant.artifact_id, "this process only", len(variant.guards), failures))
    reports.sort(key=lambda report: (bool(report.unusable), len(report.failures)))
    note = _note(program, bool(reports))
    if any(report.fits for report in reports):
        return Explanation(program.name, program.key, program.store.place, tuple(reports), note)
    cause, detail = judge(program, local_values)
    note = "\n".join(filter(None, (note, _beyond(program))))
    return Explanation(program.name, program.key, program.store.place, tuple(reports), note, str(cause), detail)


def _beyond(program: Explainable) -> str:
    """What remotes said of the program."""
    if program.store.remotes is None:
        return ""
    from precast.runtime.programs import remote_lookup  # not where there are none

    return remote_lookup.said(program)


def _why_untrusted(manifest: Manifest, program: Explainable) -> str:
    """Why not even the guards of an artifact are evaluated here, which call methods of the call's objects."""
    try:
        program.store.trust(manifest)
    except Untrusted as error:
        return str(error)
    return ""


def _why_unusable(manifest: Manifest, program: Explainable, elsewhere: bool) -> str:
    if elsewhere and not runs(program.target, manifest.target):
        return f"it was compiled for {manifest.target}, {_why_not_run(manifest.target, program.target)}"
    try:
        return why_not(manifest, program.code, elsewhere)
    except Exception as error:  # noqa: BLE001 - users' modules are imported to compare code
        return f"comparing it with the code here failed: {type(error).__name__}: {error}"


def _why_not_run(found: str, machine: str) -> str:
    family = find_family(found)
    if family is not None and family == family_of(machine) and (only := rules_of(found).serves_only(found)):
        return f"which serves only {only}, and what is asked for is {machine}"
    return f"which a machine for {machine} does not run"


def _note(program: Explainable, found: bool) -> str:
    """What keeps the store from being read comes first: without it, all that is stored seems not to be."""
    unread = program.store.why_unread(program.key)
    if found:
        root = program.store.root
        barred = f"{root} is mounted noexec: no shared object can be loaded from it." if mounted_noexec(root) else ""
        return " ".join(filter(None, (f"Not everything could be read: {unread}." if unread else "", barred)))
    return f"Nothing could be read: {unread}." if unread else _nothing_stored(program)


_MAYBE_KEPT = "If that is not it, what was compiled could not be stored: PRECAST_LOGS=runtime says why, in the process that compiles."


def _nothing_stored(program: Explainable) -> str:
    """Nothing under this key: say under which name or options the store holds this very code, or which programs look alike."""
    others_of_it = [found for key in program.store.programs() if (found := held(program, key))]
    if others_of_it:
        return f"Nothing is stored under this key, but the store holds this code {'; '.join(sorted(set(others_of_it)))}."
    if program.is_part:
        return (
            "Nothing is stored for this part of a program: it follows a graph break, or is called between graphs, and no call with this "
            f"store has come here. {_quarantined(program)}Build with a signature that does, or call what `precast.compile` makes of the "
            f"program. {_MAYBE_KEPT}"
        )
    stem = program.key.rpartition("-")[0]
    alike = [key for key in program.store.programs() if key.rpartition("-")[0] == stem]
    if not alike:
        absent = "" if program.store.exists() else f"There is no store at {program.store.place}. "
        return (
            f"{absent}Nothing is stored for this program: run `precast build`, precast.precompile, or one call of what precast.compile "
            f"makes of it with this store first. {_quarantined(program)}{_MAYBE_KEPT}"
        )
    others = many(len(alike), "program of the same name is", "programs of the same name are")
    return (
        f"Nothing is stored under this key, but {others}: {', '.join(alike[:4])}. "
        "The function's code, the options (mode, freeze, name, …) or hooks on the module differ from when it was compiled; compile again, "
        "or restore them. "
        f"{_MAYBE_KEPT}"
    )


def _quarantined(program: Explainable) -> str:
    """That damaged files were set aside: what is gone may be among them."""
    count = program.store.quarantined()
    moved = many(count, "damaged file was", "damaged files were")
    return f"{moved} moved to its folder quarantine/: building again replaces what they held. " if count else ""
