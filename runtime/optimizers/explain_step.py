"""`precast.explain_miss` of an optimiser's step: the updates that the next one would launch, and which are stored. No step is taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from precast.artifact_store import Manifest, Store
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.text import many
from precast.artifact_store.statistics.causes import Cause
from precast.runtime.loading.compatibility import why_unfit
from precast.runtime.optimizers.group_update import WantedUpdates
from precast.runtime.optimizers.step import own_step, with_globals
from precast.runtime.optimizers.update import Wanted
from precast.runtime.programs.explain_miss import Explanation, VariantReport
from precast.runtime.programs.identity import Settings
from precast.runtime.programs.miss_cause import unfit

MOST_OTHERS = 4
"""Stored updates of the same function that are named where none fits."""


class _Asking(WantedUpdates):
    """Takes no step; `refusals`: why steps run eagerly."""

    def __init__(self, name: str, eager: Callable[..., Any], settings: Settings, found: dict[str, Wanted]) -> None:
        super().__init__(name, eager, settings, found)
        self.refusals: list[str] = []

    def instead(self, reason: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        if reason:
            self.refusals.append(reason)


def explain_step(optimizer: torch.optim.Optimizer, step: Any, settings: Settings) -> Explanation | None:
    """Why the next step of this optimiser hits or misses; None where `precast.compile(optimizer.step)` has no updates for such steps.

    Asks a copy of the optimiser, whose parameters are its own and whose state is a copy where a step would make it.
    """
    found = own_step(step)
    if found is None:
        return None
    name, own, eager = found
    updates: dict[str, Wanted] = {}
    asking = _Asking(name, eager, settings, updates)
    with torch.set_grad_enabled(bool(optimizer.defaults.get("differentiable"))):
        with_globals(own, {**own.__globals__, name: asking})(_copy_of(optimizer))
    store = settings.store
    reports: list[VariantReport] = []
    notes = [f"A step runs eagerly: {reason}." for reason in dict.fromkeys(asking.refusals)]
    cause, detail = (str(Cause.REFUSED), asking.refusals[0]) if asking.refusals else ("", "")
    for key, wanted in updates.items():
        manifests = store.variants(key)
        own_reports = [_report(store, manifest) for manifest in manifests]
        reports += own_reports
        if any(report.fits for report in own_reports):
            continue
        notes.append(_lacking(store, key, wanted))
        judged = next((j for m in manifests if (j := unfit(m)) is not None), None)
        if not cause:
            cause = str(judged.cause if judged is not None else Cause.DAMAGED if manifests else Cause.NO_ARTIFACT)
            detail = judged.detail if judged is not None else wanted.name
    if not updates and not asking.refusals:
        notes.append("No parameter has a gradient: the step does nothing.")
    keys = ", ".join(updates)
    return Explanation(f"torch.optim:{name}", keys, store.place, tuple(reports), "\n".join(notes), cause, detail)


def _copy_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    copy: torch.optim.Optimizer = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    copy.state = defaultdict(dict, {parameter: dict(state) for parameter, state in optimizer.state.items()})
    copy.param_groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
    return copy


def _report(store: Store, manifest: Manifest) -> VariantReport:
    try:
        store.trust(manifest)
        unusable = why_unfit(manifest)
    except Untrusted as error:
        unusable = str(error)
    damaged = not unusable and not store.complete(manifest)
    return VariantReport(manifest.artifact_id, manifest.target, len(manifest.guards), (), unusable, damaged)


def _lacking(store: Store, key: str, wanted: Wanted) -> str:
    kinds = ", ".join(f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in wanted.tensors.items())
    text = f"The step launches {wanted.name} for {kinds} on {wanted.device}, with these options: nothing that fits is stored."
    prefix = key.rpartition("-")[0] + "-"
    others = [other for other in store.programs() if other.startswith(prefix) and other != key]
    if others:
        names = sorted({manifest.program_name for other in others[:MOST_OTHERS] for manifest in store.variants(other)})
        text += f" The store has {many(len(others), 'other update')} of that function, for other dtypes or options: {'; '.join(names)}."
    return text


__all__ = ["explain_step"]
