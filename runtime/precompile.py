"""precompile: compile a program for a list of signatures ahead of time, and report what happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from precast.runtime.api import StoreLike, open_store
from precast.runtime.errors import PrecastError
from precast.runtime.options import merge_options
from precast.runtime.site import Settings, Site

Signature = tuple[tuple[Any, ...], Mapping[str, Any]]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class SignatureReport:
    """`outcome`: "hit" (already stored), "compiled", or "eager" (with the reason). `seconds`: wall time."""

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
        return all(item.outcome in ("hit", "compiled") for item in self.signatures)

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

    Grad mode and the other global state are those at the call: wrap it in `torch.no_grad()` to prepare inference. Raises OptionError for
    bad options, PrecastError where a signature is not `(args, kwargs)`. What cannot be compiled is in the report, not raised.
    """
    if dynamic_shapes is not None:
        raise PrecastError("precompile: dynamic_shapes is not supported yet; give one signature per shape")
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
            outcome, artifact_id, reason = program.prepare((*entry.prefix, *args), {**entry.keywords, **kwargs})
            reports.append(SignatureReport(index, program.target, outcome, artifact_id, time.perf_counter() - started, reason))
    if program is None:
        raise PrecastError("precompile: give at least one signature and one target")
    return Report(program.name, program.key, str(opened.root), tuple(reports))


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
