"""`optimizer` of a build file: the updates that the steps of an optimiser launch, compiled without a step on real parameters.

An update knows dtypes and options, and no sizes. So the optimiser that the factory makes gets parameters of one element in place of its
own, and takes a few of torch's steps with them; each update that `precast.compile(optimizer.step)` would launch meanwhile is a signature.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from precast.artifact_store import Manifest, Store
from precast.building.build_file import Loaded, Signature
from precast.building.build_job import Job, Outcome, fall_back
from precast.runtime.common.errors import CompilerBroken, InProcess, Refused, StoreUnwritable
from precast.runtime.common.upward_imports import COMPILE_UPDATE
from precast.runtime.loading.compatibility import why_unfit
from precast.runtime.optimizers.group_update import WantedUpdates
from precast.runtime.optimizers.step import step_with
from precast.runtime.optimizers.update import Wanted
from precast.runtime.programs.identity import Settings
from precast.runtime.settings.options import merge_options
from precast.runtime.targets.ladder import resolve, runs, serves
from precast.target_registry import family_of

_STEPS = 8
"""SGD with momentum takes its second form from the second step on, RAdam from the sixth."""
_ON_DEVICE = ("fused", "capturable")
"""Options with which a GPU counts the steps: such an update is another one than that of a CPU."""


class UpdateJob(Job):
    """The updates of one optimiser on one store; signatures are counted from 1."""

    def __init__(self, loaded: Loaded, store: Store) -> None:
        super().__init__(loaded, store)
        self._optimizer: torch.optim.Optimizer = loaded.callable.__self__  # type: ignore[attr-defined]
        self._settings = Settings(merge_options(loaded.spec.mode, loaded.spec.options), store)
        self._wanted: tuple[Wanted, ...] = ()
        self._refused = ""
        try:
            self._wanted = wanted_by(self._optimizer, self._settings)
        except Refused as refused:
            self._refused = f"a step of {type(self._optimizer).__name__} runs eagerly: {refused}"
        signatures: tuple[Signature, ...] = (((), {}),) * (len(self._wanted) or 1)
        self.loaded = replace(loaded, signatures=signatures)

    def key(self, target: str) -> str:
        return next(iter(self.keys(target)), "")

    def keys(self, target: str) -> tuple[str, ...]:
        found = []
        for number in range(1, len(self._wanted) + 1):
            with contextlib.suppress(Refused):  # a build says why
                found.append(self._update_for(number, target).key(self._settings))
        return tuple(found)

    def build(self, number: int, target: str) -> Outcome:
        begin = time.perf_counter()
        try:
            before = self.find(number, target)
            if before is not None:
                return self._outcome(number, target, "there already", before, begin)
            wanted = self._update_for(number, target)
            made = COMPILE_UPDATE.load()(wanted, wanted.key(self._settings), self._settings.options, resolve(target), self.store)
            if isinstance(made, InProcess):
                return self._outcome(number, target, "failed", None, begin, f"it cannot be stored: {made.reason}")
            return self._outcome(number, target, "compiled", made, begin, wanted.name)
        except (StoreUnwritable, CompilerBroken):
            raise  # for all programs
        except Refused as refused:
            return self._outcome(number, target, "failed", None, begin, str(refused))
        except Exception as error:  # noqa: BLE001 - the report names it, and the others go on
            return self._outcome(number, target, "failed", None, begin, self._said(error))

    def check(self, number: int, target: str) -> Outcome:
        begin = time.perf_counter()
        try:
            found = self.find(number, target, runs)
            if found is None:
                return self._outcome(number, target, "miss", None, begin, self.explain(number, target))
        except Refused as refused:
            return self._outcome(number, target, "miss", None, begin, str(refused))
        said = "" if serves(resolve(target), found.target) else fall_back(target, found.target)
        return self._outcome(number, target, "hit", found, begin, said)

    def explain(self, number: int, target: str) -> str:
        try:
            wanted = self._update_for(number, target)
        except Refused as refused:
            return str(refused)
        return f"nothing is stored of {wanted.name} with these options and dtypes for {target}: `precast build … --target {target}`"

    def find(self, number: int, target: str, fits: Callable[[str, str], bool] = serves) -> Manifest | None:
        found = self.store.variants(self._update_for(number, target).key(self._settings))
        usable = (m for m in found if fits(resolve(target), m.target) and not why_unfit(m, elsewhere=True))
        return next(iter(usable), None)

    def _update_for(self, number: int, target: str) -> Wanted:
        """The update as a machine of the target wants it. Raises Refused."""
        if self._refused:
            raise Refused(self._refused)
        wanted, device = self._wanted[number - 1], family_of(resolve(target)).device
        if device == wanted.device:
            return wanted
        if any(wanted.options.get(name) for name in _ON_DEVICE) or any(isinstance(g["lr"], torch.Tensor) for g in self._groups()):
            raise Refused("fused=True, capturable=True or a rate that is a tensor make a GPU count the steps: it is compiled there")
        return replace(wanted, device=device)

    def _groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups


class _Collecting(WantedUpdates):
    """Lets torch's function take the step, as later steps want other updates. Raises Refused where it would run eagerly."""

    def instead(self, reason: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        if reason:
            raise Refused(reason)
        self._eager(*args, **options)


def wanted_by(optimizer: torch.optim.Optimizer, settings: Settings) -> tuple[Wanted, ...]:
    """What its first steps launch, each once. The optimiser is left with other parameters. Raises Refused."""
    found: dict[str, Wanted] = {}
    step = step_with(optimizer.step, lambda name, eager: _Collecting(name, eager, settings, found))
    if step is None:
        raise Refused("it has no rule, or a step of its own")
    optimizer.state = defaultdict(dict)
    for group in optimizer.param_groups:
        group["params"] = list(_small(group["params"]))
    with torch.enable_grad():
        for _ in range(_STEPS):
            step()
    return tuple(found.values())


def _small(parameters: list[torch.Tensor]) -> Iterator[torch.nn.Parameter]:
    """A parameter of one element on the CPU for each dtype, with a gradient."""
    for dtype in dict.fromkeys(p.dtype for p in parameters if p.requires_grad):
        made = torch.nn.Parameter(torch.ones(1, dtype=dtype))
        made.grad = torch.ones_like(made)
        yield made


def job_of(loaded: Loaded, store: Store) -> Job:
    """The job of a program, or of an optimiser, of a build file."""
    return (UpdateJob if loaded.spec.updates else Job)(loaded, store)


__all__ = ["UpdateJob", "job_of", "wanted_by"]
