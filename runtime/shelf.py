"""The variants of a program in this process: in which order calls try them, and what the store has beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from precast.artifact_store import Manifest, Store
from precast.runtime import devices, stance
from precast.runtime.differing import Differing
from precast.runtime.errors import LoadError
from precast.runtime.locks import Lock
from precast.runtime.log import logger
from precast.runtime.paths import PathError
from precast.runtime.targets import is_cuda, rank
from precast.runtime.variant import Binding, EagerVariant, Variant


class Owner(Protocol):
    """The program whose variants these are. Parts of programs get their names and keys after they were made: both are asked for anew."""

    name: str
    key: str
    store: Store

    def open_variant(self, manifest: Manifest, source: Any, stored: bool, graph: Callable[..., Any] | None) -> Variant:
        """Of a manifest, where its blobs are, whether those are in the store, and a graph that is already there."""

    def useless(self, manifest: Manifest) -> str:
        """Why an artifact of the store cannot serve here; "" where it can."""


class Shelf:
    """`variants` is replaced as a whole under a lock, and may be read at any time."""

    def __init__(self, owner: Owner) -> None:
        self.variants: list[Variant | EagerVariant] = []
        self._owner = owner
        self._lock = Lock()
        self._known: dict[str, str] = {}  # artifact id -> "" when loaded, else why it is of no use here
        self._scanned: int | None = None  # when the program's folder in the store had last changed when it was looked through
        self._differing = Differing()

    # -- taking down

    def find(self, local_values: Mapping[str, Any], cells: Mapping[str, Any], look: bool) -> Binding | None:
        """The binding of the first variant whose guards hold; with `look`, also of one that the store has and this process has not seen."""
        binding = self._first_fit(self.variants, local_values, cells)
        return self._first_fit(self._scan(), local_values, cells) if binding is None and look else binding

    def _first_fit(
        self, variants: Iterable[Variant | EagerVariant], local_values: Mapping[str, Any], cells: Mapping[str, Any]
    ) -> Binding | None:
        tried = tuple(variants)
        for variant in tried:
            try:
                if stance.state.stance.skip_guards:
                    if not self._differing.check(variant, tried, local_values, cells):
                        continue
                elif not variant.check(local_values, cells):
                    continue
                binding = variant.bind(local_values, cells)
            except LoadError as error:
                self.drop(variant, str(error))
                continue
            except PathError:
                continue  # what the graph reads is not there, and the guard that would have said so was waived by a filter
            if not variant.hits and variant.stored:
                logger("store").info("hit: %s: artifact %s for %s", self._owner.name, variant.artifact_id[:12], variant.target)
            self.count_hit(variant)
            return binding
        return None

    def count_hit(self, variant: Variant | EagerVariant) -> None:
        """A call uses it: the next one tries it first."""
        variant.hits += 1
        if variant.hits == 1 and variant.stored:
            self._owner.store.used(variant.artifact_id)
        if self.variants and self.variants[0] is not variant:
            with self._lock:
                if variant in self.variants:
                    self._put_first(variant)

    def _put_first(self, variant: Variant | EagerVariant) -> None:
        """Try it before the others; a symbolic one behind those made for one size, which are faster where they fit."""
        others = [other for other in self.variants if other is not variant]
        position = sum(not other.symbolic for other in others) if variant.symbolic else 0
        self.variants = [*others[:position], variant, *others[position:]]

    # -- filling

    def _scan(self) -> list[Variant]:
        """Variants that the store holds and this process has not seen; best target first."""
        with self._lock:
            stamp = self._folder_stamp()
            if stamp is not None and stamp == self._scanned:
                return []
            self._scanned = stamp
            usable: list[tuple[int, Variant]] = []
            for manifest in [m for m in self._owner.store.variants(self._owner.key) if m.artifact_id not in self._known]:
                reason = self._known[manifest.artifact_id] = self._owner.useless(manifest)
                if reason:
                    logger("runtime").info("%s: %s is of no use here: %s", self._owner.name, manifest.artifact_id[:12], reason)
                    if is_cuda(manifest.target) and devices.unknown():
                        del self._known[manifest.artifact_id]  # asked again once CUDA has been started
                        self._scanned = None
                    continue
                variant = self._open(manifest, self._owner.store, stored=True)
                if variant is not None:
                    usable.append((rank(manifest.target) or 0, variant))
            found = [variant for _, variant in sorted(usable, key=lambda pair: (pair[0], pair[1].symbolic))]
            self.variants = [*self.variants, *found]
            return found

    def _folder_stamp(self) -> int | None:
        """When an artifact was last added to or removed from this program's folder; 0 where there is none, None when it cannot be said."""
        try:
            return os.stat(self._owner.store.root / "programs" / self._owner.key).st_mtime_ns
        except FileNotFoundError:
            return 0
        except OSError:
            return None

    def _open(self, manifest: Manifest, source: Any, stored: bool, graph: Callable[..., Any] | None = None) -> Variant | None:
        try:
            return self._owner.open_variant(manifest, source, stored, graph)
        except (LoadError, ValueError, TypeError, KeyError) as error:
            self._known[manifest.artifact_id] = str(error)
            logger("runtime").warning("miss: %s: artifact %s cannot be used: %s", self._owner.name, manifest.artifact_id[:12], error)
            return None

    def put(self, manifest: Manifest, source: Any, stored: bool, graph: Callable[..., Any] | None = None) -> Variant:
        """What was just compiled, opened as a warm start would open it, in front. Raises LoadError."""
        with self._lock:
            variant = self._open(manifest, source, stored, graph)
            if variant is None:
                raise LoadError(self._known[manifest.artifact_id])
            self._known[variant.artifact_id] = ""
            self.variants = [other for other in self.variants if other.artifact_id != variant.artifact_id]
            self._put_first(variant)
            return variant

    def put_eager(self, variant: EagerVariant) -> None:
        """In front of all others."""
        with self._lock:
            self.variants = [variant, *self.variants]

    # -- clearing

    def remove(self, variant: EagerVariant) -> None:
        """Not there any more, whether or not it was."""
        with self._lock:
            self.variants = [other for other in self.variants if other is not variant]

    def drop(self, variant: Variant | EagerVariant, reason: str) -> None:
        """It turned out to be of no use: not tried again in this process."""
        logger("runtime").warning("miss: %s: %s", self._owner.name, reason)
        with self._lock:
            self._known[variant.artifact_id] = reason
            self.variants = [other for other in self.variants if other is not variant]

    def clear(self) -> None:
        """Forget what was loaded; the store keeps what it has."""
        with self._lock:
            self.variants = []
            self._known.clear()
            self._scanned = None


__all__ = ["Shelf"]
