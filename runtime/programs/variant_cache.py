"""The variant cache of a program in this process: the order in which calls try its variants, and loading further ones from the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from precast.artifact_store import Manifest, Store
from precast.artifact_store.trust.trusted import Trusted
from precast.runtime.common.errors import LoadError
from precast.runtime.common.locks import Lock
from precast.runtime.common.log import logger
from precast.runtime.counting.tallies import Tally
from precast.runtime.guards.differentiating import Differing
from precast.runtime.paths.paths import PathError
from precast.runtime.programs.variant import Artifact, Binding, EagerVariant, Variant
from precast.runtime.settings import stance
from precast.runtime.targets.ladder import rank, rules_of
from precast.target_registry import find_family

PATIENCE_SECONDS = 1.0
"""How long a thread waits for another that is scanning the store: a scan imports users' modules, which may wait for this thread."""
SETTLED_NS = 1_000_000_000
"""The age of a folder's last change from which on its time stamp is trusted: two changes in quick succession may have one time stamp."""


class Owner(Protocol):
    """The program whose variants these are."""

    @property
    def name(self) -> str:
        """For the logs."""

    @property
    def key(self) -> str:
        """Its folder in the store."""

    @property
    def store(self) -> Store:
        """Where its artifacts are."""

    def open_variant(self, artifact: Artifact) -> Variant:
        """A variant of the program. Raises what the artifact cannot be read with."""

    def useless(self, manifest: Manifest) -> str:
        """Why an artifact of the store cannot serve here; "" where it can. Imports users' modules, which may do anything."""


@dataclass(eq=False, repr=False)
class _Seen:
    """The result of one scan: variants, ids of artifacts that cannot serve here, and whether a second scan would find the same."""

    usable: list[Variant] = field(default_factory=list)
    useless: set[str] = field(default_factory=set)
    final: bool = True


class Shelf:
    """The variant cache. `variants` is replaced as a whole under a lock, and may be read without it. No user code runs under that lock."""

    def __init__(self, owner: Owner) -> None:
        self.variants: Sequence[Variant | EagerVariant] = ()
        self._owner = owner
        self._lock = Lock()
        self._turn = Lock()  # one thread at a time looks through the store, as far as that can be had by waiting a little
        self._scanned: int | None = None  # when the program's folder in the store had last changed when it was looked through
        self._final = False  # whether looking at it again would find the same
        self._useless: frozenset[str] = frozenset()  # ids of artifacts in it that are of no use here
        self.unloadable: dict[str, str] = {}  # id of an artifact -> why it could not be loaded
        self._refreshed: int | None = None  # the same of `refresh`
        self._resets = 0
        self._differing = Differing()
        self.tally = Tally(self, owner.store, owner.key, owner.name)

    # -- taking down

    def find(self, local_values: Mapping[str, Any], cells: Mapping[str, Any], look: bool, counts: bool = True) -> Binding | None:
        """The binding of the first variant whose guards hold; with `look`, artifacts that were not loaded yet are tried as well.

        `counts`: a call is about to use it.
        """
        tried = self.variants
        binding = self._first_fit(tried, (), local_values, cells, counts)
        return self._first_fit(self._scan(), tried, local_values, cells, counts) if binding is None and look else binding

    def _first_fit(
        self,
        variants: Sequence[Variant | EagerVariant],
        tried: Sequence[Variant | EagerVariant],
        local_values: Mapping[str, Any],
        cells: Mapping[str, Any],
        counts: bool,
    ) -> Binding | None:
        for variant in variants:
            if variant in tried:
                continue
            try:
                if stance.state.stance.skip_guards:
                    if not self._differing.check(variant, variants, local_values, cells):
                        continue
                elif not variant.check(local_values, cells):
                    continue
                binding = variant.bind(local_values, cells)
            except LoadError as error:
                self.drop(variant, str(error))
                continue
            except PathError:
                continue  # what the graph reads is not there, and the guard that would have said so was waived by a filter
            if not counts:
                return binding
            if not variant.hits and variant.stored:
                logger("store").info("hit: %s: artifact %s for %s", self._owner.name, variant.artifact_id[:12], variant.target)
            self.count_hit(variant)
            return binding
        return None

    def count_hit(self, variant: Variant | EagerVariant) -> None:
        """Counts a call that uses the variant, and puts it in front, where the next call tries it first."""
        first_hit = not variant.hits
        variant.hits += 1
        if variant.compiled:
            self.tally.served += 1
        else:
            self.tally.eager += 1
        if first_hit and variant.stored:
            self._owner.store.used(variant.artifact_id)
            self.tally.use(variant.manifest)
        if self.variants[:1] != (variant,):
            with self._lock:
                if variant in self.variants:
                    self._put_first(variant)

    def _put_first(self, variant: Variant | EagerVariant) -> None:
        """Puts the variant in front; one with symbolic sizes behind the static ones, which are faster where they fit."""
        others = [other for other in self.variants if other is not variant]
        position = sum(not other.symbolic for other in others) if variant.symbolic else 0
        self.variants = (*others[:position], variant, *others[position:])

    # -- filling

    def _scan(self) -> Sequence[Variant | EagerVariant]:
        """All variants, after loading those that the store has and this process has not loaded yet."""
        my_turn = self._turn.try_enter(PATIENCE_SECONDS)
        try:
            while True:
                stamp = self._owner.store.changed(self._owner.key)
                with self._lock:
                    if stamp != self._scanned:
                        self._useless = frozenset()
                    elif self._final:
                        return self.variants
                    resets, known = self._resets, self._useless.union(variant.artifact_id for variant in self.variants)
                settled = stamp is not None and time.time_ns() - stamp > SETTLED_NS
                seen = self._look_through(known)
                with self._lock:
                    if resets == self._resets:  # else what was seen is to be forgotten
                        self._add(seen.usable)
                        self._useless |= seen.useless
                        self._scanned, self._final = stamp, settled and seen.final
                        return self.variants
        finally:
            if my_turn:
                self._turn.__exit__()

    def refresh(self) -> list[str]:
        """Loads what the store has and this process has not, or has in another version, and puts the best in front: better targets before
        others, static sizes before symbolic ones. The ids of what was loaded.

        Each is loaded whole before a call can meet it; one that cannot be loaded changes nothing.
        """
        stamp = self._owner.store.changed(self._owner.key)
        with self._lock:
            if stamp is not None and stamp == self._refreshed:
                return []
            resets = self._resets
            known = {variant.artifact_id: variant for variant in self.variants if isinstance(variant, Variant)}
        seen, loaded = _Seen(), []
        for document in self._owner.store.trusted_variants(self._owner.key):
            former = known.get(document.content.artifact_id)
            if former is None or former.manifest.checksum != document.content.checksum:
                self._judge(document, seen)
        for variant in seen.usable:
            try:
                variant.load()
                loaded.append(variant)
            except LoadError as error:
                logger("runtime").warning("miss: %s: %s", self._owner.name, error)
                self.unloadable[variant.artifact_id] = str(error)
        settled = stamp is not None and time.time_ns() - stamp > SETTLED_NS
        with self._lock:
            if resets != self._resets:
                return []
            new = {variant.artifact_id for variant in loaded}
            kept = (variant for variant in self.variants if variant.artifact_id not in new)
            self.variants = tuple(sorted((*kept, *loaded), key=_preference))
            self._useless = frozenset((self._useless | seen.useless) - new)
            self._refreshed = stamp if settled and seen.final else None
        return sorted(new)

    def _look_through(self, known: Set[str]) -> _Seen:
        seen = _Seen()
        for document in self._owner.store.trusted_variants(self._owner.key):
            if document.content.artifact_id not in known:
                self._judge(document, seen)
        seen.usable.sort(key=_preference)
        return seen

    def _judge(self, document: Trusted[Manifest], seen: _Seen) -> None:
        manifest = document.content
        name, short = self._owner.name, manifest.artifact_id[:12]
        try:
            reason = self._owner.useless(manifest)
            if not reason:
                seen.usable.append(self._open(Artifact(document, self._owner.store)))
                return
            logger("runtime").info("%s: %s is of no use here: %s", name, short, reason)
            undecided = find_family(manifest.target) is not None and rules_of(manifest.target).undecided()  # then it is asked again
        except LoadError as error:
            logger("runtime").warning("miss: %s: artifact %s cannot be used: %s", name, short, error)
            self.unloadable[manifest.artifact_id] = str(error)
            undecided = False
        except Exception as error:  # noqa: BLE001 - of a user's module, say, which another call may find in another state
            logger("runtime").warning("miss: %s: artifact %s cannot be judged: %s: %s", name, short, type(error).__name__, error)
            undecided = True
        if undecided:
            seen.final = False
        else:
            seen.useless.add(manifest.artifact_id)

    def _add(self, found: Sequence[Variant]) -> None:
        known = {variant.artifact_id for variant in self.variants}  # another thread may have been faster
        self.variants = (*self.variants, *(variant for variant in found if variant.artifact_id not in known))

    def _open(self, artifact: Artifact) -> Variant:
        try:
            variant = self._owner.open_variant(artifact)
        except (ValueError, TypeError, KeyError) as error:
            raise LoadError(str(error)) from error
        self.unloadable.pop(variant.artifact_id, None)
        return variant

    def put(self, artifact: Artifact) -> Variant:
        """Opens what was just compiled as a warm start would, and puts it in front. Raises LoadError."""
        variant = self._open(artifact)
        with self._lock:
            self.variants = tuple(other for other in self.variants if other.artifact_id != variant.artifact_id)
            self._put_first(variant)
            return variant

    def put_eager(self, variant: EagerVariant) -> None:
        """Puts a variant that runs eagerly in front of all others."""
        with self._lock:
            self.variants = (variant, *self.variants)

    # -- clearing

    def remove(self, variant: EagerVariant) -> None:
        """Removes the variant, if it is there."""
        with self._lock:
            self.variants = tuple(other for other in self.variants if other is not variant)

    def drop(self, variant: Variant | EagerVariant, reason: str) -> None:
        """Removes a variant that cannot serve, with the reason; its artifact is tried again when the program's folder in the store
        changes.
        """
        logger("runtime").warning("miss: %s: %s", self._owner.name, reason)
        self.unloadable[variant.artifact_id] = reason
        with self._lock:
            if variant in self.variants:  # else it was forgotten
                self._useless |= {variant.artifact_id}
                self.variants = tuple(other for other in self.variants if other is not variant)

    def clear(self) -> None:
        """Drops all loaded variants; the store is not changed."""
        with self._lock:
            self.variants = ()
            self._useless = frozenset()
            self.unloadable = {}
            self._final = False
            self._refreshed = None
            self._resets += 1


def _preference(variant: Variant | EagerVariant) -> tuple[bool, int, bool, bool]:
    """Smaller is tried earlier: what has to run eagerly, then the best target, whole frames before those that break, static sizes first."""
    if isinstance(variant, EagerVariant):
        return False, 0, False, False
    return True, rank(variant.target) or 0, variant.breaks, variant.symbolic


__all__ = ["Shelf"]
