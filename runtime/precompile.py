"""precompile: compile a program for a list of signatures ahead of time, and report what happened."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from precast.runtime.api import StoreLike, open_store
from precast.runtime.errors import PrecastError
from precast.runtime.marks import marked
from precast.runtime.options import merge_options
from precast.runtime.program import Program
from precast.runtime.site import Settings, Site
from precast.runtime.targets import rank

Signature = tuple[tuple[Any, ...], Mapping[str, Any]]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class SignatureReport:
    """`outcome`: "hit" (already stored), "compiled", "skipped" (stays plain Python, what it calls is compiled) or "eager", with the reason.

    `seconds`: wall time.
    """

    index: int
    target: str
    outcome: str
    artifact_id: str
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """What `precompile` did, signature by signature."""

    program: str
    key: str
    store: str
    signatures: tuple[SignatureReport, ...]

    @property
    def ok(self) -> bool:
        """Whether every signature is served by a stored artifact now."""
        return all(item.outcome in ("hit", "compiled", "skipped") for item in self.signatures)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        lines = [f"{self.program} -> {self.store} ({self.key})"]
        for item in self.signatures:
            detail = f": {item.reason}" if item.reason else ""
            lines.append(
                f"  signature {item.index} for {item.target}: {item.outcome} {item.artifact_id[:12]} in {item.seconds:.2f} s{detail}"
            )
        return "\n".join(lines)


def precompile(
    model: Any,
    signatures: Sequence[Signature],
    *,
    dynamic_shapes: Any = None,
    targets: Sequence[str] = ("cpu:native",),
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    store: StoreLike = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compile `model` for each `(args, kwargs)` of `signatures` and each target, without running it, into the store.

    A program with graph breaks is run once per signature, on copies, where this machine can: what comes after a break depends on values.
    Grad mode and the other global state are those at the call: wrap it in `torch.no_grad()` to prepare inference. `dynamic_shapes`: which
    dimensions are symbolic, for every signature, in torch.export's form (`runtime/marks.py`). Raises OptionError for bad options and
    shapes, PrecastError where a signature is not `(args, kwargs)`, MarkError where a dimension that was marked as dynamic allows one size
    only. What cannot be compiled is in the report, not raised.
    """
    opened = open_store(store)
    reports: list[SignatureReport] = []
    program = None
    for target in targets:
        site = Site(model, Settings(merge_options(mode, options, target=target), opened, name))
        for index, signature in enumerate(signatures):
            args, kwargs = _checked(signature, index)
            program, entry = site.program_for_call()
            if progress is not None:
                progress(f"{program.name}: signature {index + 1} of {len(signatures)} for {target}")
            started = time.perf_counter()
            whole, keywords = (*entry.prefix, *args), {**entry.keywords, **kwargs}
            with contextlib.ExitStack() as stack:
                if dynamic_shapes is not None:
                    stack.enter_context(marked(program.locals_of(whole, keywords), args, dynamic_shapes))
                outcome, artifact_id, reason = program.prepare(whole, keywords)
                if outcome == "skipped" or _breaks(program, artifact_id):
                    reason = "; ".join(filter(None, (reason, _rehearse(model, site.settings, program, args, kwargs))))
            reports.append(SignatureReport(index, program.target, outcome, artifact_id, time.perf_counter() - started, reason))
    if program is None:
        raise PrecastError("precompile: give at least one signature and one target")
    return Report(program.name, program.key, str(opened.root), tuple(reports))


def _breaks(program: Program, artifact_id: str) -> bool:
    """Whether the artifact's frame ends at a graph break."""
    manifest = program.store.get(artifact_id, program.key) if artifact_id else None
    return manifest is not None and any(frame["code"].get("broken") for frame in manifest.frames)


def _rehearse(model: Any, settings: Settings, program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Run a call on copies of the model and the arguments, so that what its graph breaks lead to is compiled; what there is to say."""
    if rank(program.target) is None:
        return f"only what comes before the first graph break: this machine cannot run {program.target}, and the rest depends on values"
    own, own_args, own_kwargs = copy.deepcopy((model, args, dict(kwargs)))
    try:
        Site(own, settings).call(*own_args, **own_kwargs)
    except Exception as error:  # noqa: BLE001 - the call's own error, on a signature that may not be meant to run
        return f"running it up to its end failed, so what comes after is not compiled: {type(error).__name__}: {error}"
    return ""


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
