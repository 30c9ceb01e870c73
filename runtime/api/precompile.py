"""precompile: compile a program for a list of signatures ahead of time, and report what happened."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from precast.artifact_store import Manifest
from precast.runtime.api.compile import RemoteLike, StoreLike, open_store, site_of
from precast.runtime.common.errors import OptionError, PrecastError, public
from precast.runtime.common.notebook import Shown
from precast.runtime.common.upward_imports import STAND_INS
from precast.runtime.directives.dynamic_marks import marked
from precast.runtime.dispatch.call_site import Site
from precast.runtime.programs.identity import Settings
from precast.runtime.programs.program import Program
from precast.runtime.settings.options import merge_options
from precast.runtime.targets.ladder import rank, resolve
from precast.target_registry import family_of

Signature = tuple[tuple[Any, ...], Mapping[str, Any]]
Progress = Callable[[str], None]


@public
@dataclass(frozen=True)
class SignatureReport(Shown):
    """`outcome`: "hit" (already stored), "compiled", "taken" (another process compiled and stored it meanwhile), "skipped" (stays plain
    Python, what it calls is compiled); with the reason "eager" or "incomplete" (the run that finds what follows its graph breaks raised, so
    that only what ran before is stored).

    `index`: the signature's number, from 1. `seconds`: wall time.
    """

    index: int
    target: str
    outcome: str
    artifact_id: str
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        made = " ".join(filter(None, (self.outcome, self.artifact_id[:12])))
        return f"signature {self.index} for {self.target}: {made} in {self.seconds:.2f} s{f': {self.reason}' if self.reason else ''}"


@public
@dataclass(frozen=True)
class Report(Shown):
    """What `precompile` did, signature by signature."""

    program: str
    key: str
    store: str
    signatures: tuple[SignatureReport, ...]

    @property
    def ok(self) -> bool:
        """Whether every signature is served by a stored artifact now."""
        return all(item.outcome in ("hit", "compiled", "taken", "skipped") for item in self.signatures)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        lines = [f"{self.program} -> {self.store} ({self.key})"]
        lines += [f"  {item}" for item in self.signatures]
        return "\n".join(lines)


def precompile(
    model: Any,
    signatures: Sequence[Signature],
    *,
    dynamic_shapes: Any = None,
    targets: Sequence[str] | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    store: StoreLike = None,
    remote: RemoteLike = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compile `model` for each `(args, kwargs)` of `signatures` and each target, without running it, into the store.

    `model`: a callable, with the `mode`, `options`, `store`, `remote` and `name` that it will be compiled with; or what `compile` or
    `load` made of one, which brings its own for those that are not given. `targets`: the compiled program's own, else cpu:native.
    A program with graph breaks is run once per signature, on copies, where this machine can: what comes after a break depends on values.
    Grad mode and the other global state are those at the call: wrap it in `torch.no_grad()` to prepare inference. `dynamic_shapes`: which
    dimensions are symbolic, for every signature, in torch.export's form (`runtime/directives/dynamic_marks.py`). Raises OptionError for
    bad options and
    shapes, PrecastError where a signature is not `(args, kwargs)`, MarkError where a dimension that was marked as dynamic allows one size
    only, StoreUnwritable where something is to be compiled and the store cannot be written. What cannot be compiled is in the report, not
    raised.
    For a GPU target the tensors need not be on a GPU: a copy is traced whose tensors stand for ones on it (`capture/fake_device.py`).
    """
    if isinstance(targets, str):
        raise OptionError(f"precompile: targets is a list, for example [{targets!r}]")
    model, made, in_place = _uncompiled(model)
    opened = made.store if made is not None and store is None and remote is None else open_store(store, remote)
    own = made if made is not None and mode is None and options is None else None
    label = made.label if made is not None and name is None else name
    reports: list[SignatureReport] = []
    program = None
    calls = [_checked(signature, index) for index, signature in enumerate(signatures, 1)]
    for target in targets or ((own.options["target"] if own is not None else None) or "cpu:native",):
        traced = traced_for(target, model, calls)
        merged = {**own.options, "target": target} if own is not None else merge_options(mode, options, target=target)
        site = Site(traced.model, Settings(merged, opened, label), in_place=in_place)
        for index, (args, kwargs) in enumerate(traced.calls, 1):
            program, entry = site.program_for_call()
            if progress is not None:
                progress(f"{program.name}: signature {index} of {len(signatures)} for {target}")
            started = time.perf_counter()
            whole, keywords = (*entry.prefix, *args), {**entry.keywords, **kwargs}
            with contextlib.ExitStack() as stack:
                stack.enter_context(traced.environment())
                if dynamic_shapes is not None:
                    stack.enter_context(marked(program.locals_of(whole, keywords), args, dynamic_shapes))
                outcome, artifact_id, reason = program.prepare(whole, keywords, traced.here)
                found = program.store.get(artifact_id, program.key) if artifact_id else None
                if outcome == "skipped" or (found is not None and breaks(found)):
                    more, ran = _rehearse(traced, site.settings, program, args, kwargs)
                    reason, outcome = "; ".join(filter(None, (reason, more))), outcome if ran else "incomplete"
            made_for = found.target if found is not None else program.target
            reports.append(SignatureReport(index, made_for, outcome, artifact_id, time.perf_counter() - started, reason))
    if program is None:
        raise PrecastError("precompile: give at least one signature and one target")
    return Report(program.name, program.key, opened.place, tuple(reports))


def _uncompiled(model: Any) -> tuple[Any, Settings | None, bool]:
    """The callable behind what `compile` or `load` made, with its settings, and whether it was compiled in place; anything else as it is,
    with None.

    Raises OptionError for a program of another backend, of which nothing can be stored.
    """
    try:
        site = site_of(model)
    except PrecastError:
        return model, None, False
    if site.settings.backend is not None:
        raise OptionError(f"precompile: what the backend {site.settings.backend.name!r} compiles is not stored; use the backend 'precast'")
    return site.target, site.settings, site.is_in_place


def breaks(manifest: Manifest) -> bool:
    """Whether the artifact's frame ends at a graph break."""
    return any(frame["code"].get("broken") for frame in manifest.frames)


@dataclass(frozen=True)
class Traced:
    """The program and its calls as they are traced for a target. `here`: they are the user's own, on a device of this machine; else
    stand-ins, which are traced in `environment`.
    """

    model: Any
    calls: Sequence[Signature]
    here: bool = True
    environment: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


def traced_for(target: str, model: Any, calls: Sequence[Signature]) -> Traced:
    """Stand-ins where `target` is a GPU and the program's tensors are on none. Raises PrecastError where it cannot be stood for."""
    if family_of(resolve(target)).on_host:
        return Traced(model, calls)
    made = STAND_INS.load()(model, calls)
    return Traced(model, calls) if made is None else Traced(made[0], made[1], False, made[2])


def _rehearse(traced: Traced, settings: Settings, program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, bool]:
    """Run a call on copies of the model and the arguments, so that what its graph breaks lead to is compiled. Returns what there is to say,
    and False where the call raised.
    """
    only = "only what comes before the first graph break"
    if not traced.here:
        return f"{only}: its tensors are not on a device for {program.target}, and the rest needs values", True
    if rank(program.target) is None:
        return f"{only}: this machine cannot run {program.target}, and the rest depends on values", True
    own, own_args, own_kwargs = copy.deepcopy((traced.model, args, dict(kwargs)))
    try:
        Site(own, settings).call(*own_args, **own_kwargs)
    except Exception as error:  # noqa: BLE001 - the call's own error
        return f"running it up to its end failed, so what comes after is not compiled: {type(error).__name__}: {error}", False
    return "", True


def _checked(signature: Any, index: int) -> Signature:
    if (
        isinstance(signature, tuple)
        and len(signature) == 2
        and isinstance(signature[0], (tuple, list))
        and isinstance(signature[1], Mapping)
    ):
        return tuple(signature[0]), signature[1]
    raise PrecastError(f"precompile: signature {index} must be (args, kwargs), for example ((x,), {{}}); got {type(signature).__name__}")


__all__ = ["Report", "SignatureReport", "precompile"]
