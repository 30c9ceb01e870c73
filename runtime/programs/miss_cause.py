"""Why a call misses, as one of the closed list of causes: what keeps the nearest stored artifact from serving it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from precast.artifact_store import Manifest
from precast.artifact_store.format.errors import DamagedRecord, Untrusted
from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.statistics.causes import Cause
from precast.runtime.common.errors import strict
from precast.runtime.common.log import logger
from precast.runtime.fingerprint.validate import changed_code
from precast.runtime.guards.evaluate import evaluate
from precast.runtime.loading.compatibility import Made
from precast.runtime.paths.paths import PathError, describe, resolve
from precast.runtime.paths.torch_state import global_state
from precast.runtime.programs.identity import program_key
from precast.runtime.programs.interfaces import Explainable
from precast.runtime.settings.options import OPTIONS, key_options
from precast.runtime.targets import ladder
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor

MOST_VARIANTS, MOST_PROGRAMS, MOST_FAILURES = 16, 200, 4
"""How many artifacts of the program are looked at, how many other programs, and from how many failing guards on an artifact is far."""
_FITS, _NEAR, _OTHER, _UNKNOWN = range(4)


class Judged(NamedTuple):
    """`detail`: the kind of guard and where, the versions, the function that changed …; a few words."""

    cause: Cause
    detail: str = ""


class _Variant(NamedTuple):
    distance: tuple[int, int]
    judged: Judged


def judge(program: Explainable, local_values: Mapping[str, Any]) -> Judged:
    """The cause of a miss. Never raises, unless PRECAST_STRICT=1: a miss has enough to do without one."""
    try:
        judged = _judge(program, local_values)
        return (_remote_failure(program) or _elsewhere(program) or judged) if judged.cause is Cause.NO_ARTIFACT else judged
    except Exception as error:
        if strict():
            raise
        logger("runtime").warning("%s: why the call misses cannot be found out: %s: %s", program.name, type(error).__name__, error)
        return Judged(Cause.UNKNOWN, type(error).__name__)


def _judge(program: Explainable, local_values: Mapping[str, Any]) -> Judged:
    if program.store.problem:
        return Judged(Cause.UNREADABLE, program.store.problem)
    manifests = program.store.variants(program.key)
    if not manifests:
        return _nothing_stored(program)
    cells = program.locals_of.cells()
    found = [_variant(manifest, program, local_values, cells) for manifest in manifests[:MOST_VARIANTS]]
    return min(found, key=lambda variant: variant.distance).judged


def _variant(manifest: Manifest, program: Explainable, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> _Variant:
    try:
        program.store.trust(manifest)
    except Untrusted:
        return _Variant((_OTHER, 0), Judged(Cause.UNTRUSTED, manifest.origin.kind))
    try:
        failing = _failing((*manifest.guards, *program.extra_guards), local_values, cells)
    except DamagedRecord as error:
        return _Variant((_OTHER, 0), Judged(Cause.DAMAGED, str(error)))
    unusable = _unusable(manifest, program)
    if failing:
        near = _NEAR if unusable is None else _OTHER
        judged = unusable or Judged(Cause.GUARDS, _kind(failing[0], local_values, cells))
        return _Variant((near, len(failing)), judged)
    if unusable is not None:
        return _Variant((_FITS, 0), unusable)
    if not program.store.complete(manifest) or manifest.artifact_id in program.unloadable:
        reason = _briefly(program.unloadable.get(manifest.artifact_id, "blobs are missing or damaged"))
        return _Variant((_FITS, 0), Judged(Cause.DAMAGED, reason))
    return _Variant((_UNKNOWN, 0), Judged(Cause.COMPILING, "stored meanwhile"))


def _briefly(text: str) -> str:
    """Without the artifact's id at the front, which would make each artifact a cause of its own."""
    return text.partition(": ")[2] if text.startswith("artifact ") else text


def _failing(guards: tuple[Guard, ...], local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> list[Guard]:
    """The first guards that do not hold, those on objects before those on what is read of them."""
    failing: list[Guard] = []
    for guard in sorted(guards, key=lambda guard: len(guard.path)):
        if not evaluate(guard, local_values, cells).holds:
            failing.append(guard)
            if len(failing) == MOST_FAILURES:
                break
    return failing


def _kind(guard: Guard, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> str:
    """What kind of guard does not hold, and where: "tensor size of x", "equals of flag"."""
    if guard.predicate is Predicate.GLOBAL_STATE:
        now = global_state()
        return f"state: {', '.join(sorted(name for name, value in guard.constant.items() if now.get(name, value) != value)) or 'other'}"
    kind = str(guard.predicate)
    if guard.predicate is Predicate.TENSOR:
        kind = f"tensor {_tensor_field(guard, local_values, cells)}".strip()
    where = describe(guard.path)
    return f"{kind} of {where}" if where else kind


def _tensor_field(guard: Guard, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> str:
    try:
        value = resolve(guard.path, local_values, cells)
    except PathError:
        return "that is missing"
    spec = guard.constant
    if not isinstance(value, torch.Tensor):
        return "type"
    if str(value.dtype) != f"torch.{spec.get('dtype')}":
        return "dtype"
    if value.device.type != str(spec.get("device")).partition(":")[0]:
        return "device"
    if spec.get("requires_grad") is not None and value.requires_grad != spec["requires_grad"]:
        return "requires_grad"
    if not _agree(spec.get("size"), value.shape):
        return "size"
    return "" if _agree(spec.get("stride"), value.stride()) else "stride"


def _agree(wanted: Sequence[int | None] | None, found: Sequence[int]) -> bool:
    if wanted is None:
        return True
    return len(wanted) == len(found) and all(want in (None, have) for want, have in zip(wanted, found, strict=True))


def _unusable(manifest: Manifest, program: Explainable) -> Judged | None:
    """What keeps the artifact from running here, whatever the call, in the order of `compatibility.why_not`."""
    if (found := unfit(manifest)) is not None:
        return found
    if changed := changed_code(manifest.digests, program.code):
        return Judged(Cause.CODE, changed)
    return None


def unfit(made: Made) -> Judged | None:
    """What keeps anything that was made for this target with these versions from running here."""
    versions = made.versions
    if ladder.why_unfit(made.target):
        return Judged(Cause.TARGET, made.target)
    if versions.torch != torch_minor():
        return Judged(Cause.TORCH, f"{versions.torch}, here {torch_minor()}")
    if versions.python is not None and versions.python != python_minor():
        return Judged(Cause.PYTHON, f"{versions.python}, here {python_minor()}")
    if versions.lowering != LOWERING_VERSION:
        return Judged(Cause.LOWERING, f"{versions.lowering}, here {LOWERING_VERSION}")
    return None


def _elsewhere(program: Explainable) -> Judged | None:
    """Why what remotes have of the program was left there: the version before the target, which other artifacts may be for."""
    if program.store.remotes is None:
        return None
    from precast.runtime.programs import remote_lookup  # not where there are none

    judged = [found for _, entry in remote_lookup.unfit(program) if (found := unfit(entry)) is not None]
    return min(judged, key=lambda found: found.cause is Cause.TARGET, default=None)


def _nothing_stored(program: Explainable) -> Judged:
    store = program.store
    if unread := store.why_unread(program.key):
        return Judged(Cause.UNREADABLE, unread)
    if store.set_aside_of(program.key):
        return Judged(Cause.DAMAGED, "its manifest was set aside")
    keys = store.program_keys()
    stem = program.key.rpartition("-")[0]
    for key in [key for key in keys if key.rpartition("-")[0] == stem and key != program.key][:MOST_VARIANTS]:
        manifest = next(iter(store.variants(key)), None)
        if manifest is not None and manifest.program_name == program.name:
            same = manifest.options == dict(key_options(program.options))
            return Judged(Cause.CODE, "the function itself") if same else Judged(Cause.OPTIONS, differing_options(manifest, program))
    for key in keys if len(keys) <= MOST_PROGRAMS and not program.is_part else ():
        if said := held(program, key):
            return Judged(Cause.OPTIONS, said)
    return Judged(Cause.NO_ARTIFACT)


def _remote_failure(program: Explainable) -> Judged | None:
    """That a remote, which may have had what is missing here, failed when it was asked, or had something that is not trusted."""
    remotes = program.store.remotes
    failure = remotes.failure(program.key) if remotes is not None else None
    if failure is None:
        return None
    place, error = failure
    return Judged(Cause.UNTRUSTED if isinstance(error, Untrusted) else Cause.REMOTE, f"{place}: {type(error).__name__}")


def differing_options(manifest: Manifest, program: Explainable) -> str:
    """Options of the artifact that differ from the program's: "freeze=True"."""
    options, wanted = manifest.options, key_options(program.options)
    names = sorted({*options, *wanted})
    return ", ".join(f"{name}={options.get(name)!r}" for name in names if options.get(name) != wanted.get(name))


def held(program: Explainable, key: str) -> str:
    """How the program stored under `key` was named and configured, if it is the code of `program`; otherwise empty."""
    manifest = next(iter(program.store.variants(key)), None)
    if manifest is None:
        return ""
    name, options = manifest.program_name, manifest.options
    if not options.keys() <= OPTIONS.keys():
        return ""  # another precast made it
    for label in (name, None):
        if program_key(program.entry.name, program.digest, options, label, own=program.locals_of.own_namespace) == key:
            break
    else:
        return ""
    named = f"under the name {name!r}: give name={name!r}" if label else "without a name: leave name= out"
    parts = [named] if (label or program.entry.name) != program.name else []
    if differing := differing_options(manifest, program):
        parts.append(f"compiled with {differing}: give the same options")
    return ", ".join(parts)


__all__ = ["Judged", "differing_options", "held", "judge", "unfit"]
