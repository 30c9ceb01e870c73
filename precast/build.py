"""What `build`, `check` and `explain` do with one signature for one target, without the words around it."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

import precast
from precast.artifact_store import Manifest, Store
from precast.build_file import Loaded, Signature
from precast.runtime.compatibility import why_not
from precast.runtime.entry import Entry
from precast.runtime.options import merge_options
from precast.runtime.program import Program
from precast.runtime.site import Settings, Site
from precast.runtime.skips import recall
from precast.runtime.targets import rank, resolve

log = logging.getLogger("precast.driver")


@dataclass(frozen=True)
class Outcome:
    """One signature for one target. `status`: "compiled", "there already" or "hit"; "failed" or "miss", with the reason."""

    program: str
    signature: int
    target: str
    status: str
    artifact: str | None
    seconds: float
    reason: str = ""

    @property
    def good(self) -> bool:
        return self.status not in ("failed", "miss")


class Job:
    """One program of a build file on one store; signatures are counted from 1."""

    def __init__(self, loaded: Loaded, store: Store) -> None:
        self.loaded = loaded
        self.store = store
        self.name = loaded.spec.name

    def program(self, target: str) -> tuple[Program, Entry]:
        """The program, and its entry, as `precast.compile` would make it. Raises OptionError for a wrong mode or option."""
        spec = self.loaded.spec
        options = merge_options(spec.mode, spec.options, target=target)
        return Site(self.loaded.callable, Settings(options, self.store, spec.label)).program_for_call()

    def build(self, number: int, target: str) -> Outcome:
        """Compile the signature unless the store serves it already."""
        begin = time.perf_counter()
        signature = self.loaded.signatures[number - 1]
        found = self.find(signature, target)
        if found is not None:
            return self._outcome(number, target, "there already", found, begin)
        reason = self._precompile(signature, target)
        found = self.find(signature, target)
        if found is None and self.skipped(target):
            return self._outcome(number, target, "compiled", None, begin, self.skipped(target))
        if found is None:
            return self._outcome(number, target, "failed", None, begin, reason or self.explain(number, target))
        return self._outcome(number, target, "compiled", found, begin)

    def _precompile(self, signature: Signature, target: str) -> str:
        """Compile into the store; returns what there is to say where that did not work."""
        spec = self.loaded.spec
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            try:
                report = precast.precompile(
                    self.loaded.callable,
                    signatures=[signature],
                    targets=[target],
                    mode=spec.mode,
                    options=dict(spec.options) if spec.options is not None else None,
                    store=self.store,
                    name=spec.label,
                    dynamic_shapes=spec.dynamic_shapes,
                )
            except Exception as error:  # one program that fails must not stop the others; the report names it
                log.info("%s", spec.name, exc_info=True)
                return f"{type(error).__name__}: {error} (PRECAST_LOGS=driver shows where)"
        said = [str(warning.message) for warning in caught if "precast" in str(warning.message)]
        return "; ".join([item.reason for item in report.signatures if item.reason] or said)

    def check(self, number: int, target: str) -> Outcome:
        """Whether the store serves the signature. Compiles and runs nothing."""
        begin = time.perf_counter()
        found = self.find(self.loaded.signatures[number - 1], target)
        if found is not None:
            return self._outcome(number, target, "hit", found, begin)
        if self.skipped(target):
            return self._outcome(number, target, "hit", None, begin, self.skipped(target))
        return self._outcome(number, target, "miss", None, begin, self.explain(number, target))

    def skipped(self, target: str) -> str:
        """Why the program is known to stay plain Python, with what it calls compiled; empty where it is not."""
        return recall(self.store, self.program(target)[0].key, compiles=False)

    def explain(self, number: int, target: str) -> str:
        """Why the store does not serve the signature, guard by guard against the nearest variants."""
        from precast.runtime.explain import explain

        program, entry = self.program(target)
        args, kwargs = _whole(entry, self.loaded.signatures[number - 1])
        with torch.no_grad():
            text = str(explain(program, args, kwargs))
        damaged = [m.artifact_id[:12] for m in self._for(program.key, resolve(target)) if not self.store.complete(m)]
        if damaged:
            text += f"\nblobs of {', '.join(damaged)} are missing or damaged: build again, or `precast verify --repair`"
        if not any(self._for(program.key, resolve(target))):
            text += f"\nnothing is stored for {target}: `precast build … --target {target}`"
        return text

    def find(self, signature: Signature, target: str) -> Manifest | None:
        """The stored artifact for exactly this target whose guards hold for the call, as the runtime would find it on such a machine."""
        from precast.runtime.explain import first_failure

        program, entry = self.program(target)
        args, kwargs = _whole(entry, signature)
        exact = resolve(target)
        runs_here = rank(exact) is not None
        with torch.no_grad():
            local_values, cells = program.locals_of(args, kwargs), program.locals_of.cells()
            for manifest in self._for(program.key, exact):
                if runs_here and why_not(manifest, program):
                    continue
                if not first_failure(manifest.guards, local_values, cells) and self.store.complete(manifest):
                    return manifest
        return None

    def _for(self, key: str, target: str) -> Iterable[Manifest]:
        return (manifest for manifest in self.store.variants(key) if manifest.target == target)

    def _outcome(self, number: int, target: str, status: str, manifest: Manifest | None, begin: float, reason: str = "") -> Outcome:
        artifact = manifest.artifact_id if manifest is not None else None
        return Outcome(self.name, number, target, status, artifact, round(time.perf_counter() - begin, 3), reason)


def _whole(entry: Entry, signature: Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the entry's function: with `self`, and a partial's own."""
    return (*entry.prefix, *signature[0]), {**entry.keywords, **signature[1]}
