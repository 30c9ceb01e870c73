"""Unstable constants: artifacts of one program that differ only in constants which untraced code reads.

Where such a constant differs in each process (`START = time.time()`), every process misses, and would store an artifact that no other uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from precast.artifact_store import Manifest
from precast.runtime.fingerprint.custom_operators import OPERATOR
from precast.runtime.fingerprint.fingerprint import Account, names_of
from precast.runtime.fingerprint.tensor_subclasses import SUBCLASS
from precast.runtime.fingerprint.untraced_code import UNTRACED, UNTRACED_FILED

_ACCOUNTS = (UNTRACED, UNTRACED_FILED, OPERATOR, SUBCLASS)
LIMIT = 8
"""How many artifacts that differ only in such constants are stored; further variants stay in their processes."""


def why_unsteady(made: Manifest, stored: Iterable[Manifest]) -> str:
    """Why `made` is not stored beside these artifacts of the same program; "" where it is."""
    if not any(name.startswith(_ACCOUNTS) for name in made.digests):
        return ""
    differing = [labels for other in stored if (labels := _values_apart(made, other))]
    if len(differing) < LIMIT:
        return ""
    names = names_of(sorted(set().union(*differing)))
    return (
        f"the store has {len(differing)} artifacts of it that differ from this one only in constants "
        f"which code that is not traced reads{names}. "
        "If these are others in each process, hold them in a list or dict, whose contents are not compared, or give them as arguments; "
        "if you edited them, `precast prune --keep-last 1` makes room"
    )


def _values_apart(made: Manifest, other: Manifest) -> set[str]:
    """The constants in which two artifacts differ, where they differ in nothing else."""
    alike = (made.guard_hash, made.target, made.versions, made.options) == (other.guard_hash, other.target, other.versions, other.options)
    mine, theirs = _by_name(made), _by_name(other)
    if not alike or mine.keys() != theirs.keys():
        return set()
    found: set[str] = set()
    for name in mine:
        for one, another in zip(mine[name], theirs[name], strict=False):
            if one != another:
                labels = Account.read(one).differs_in_values(Account.read(another)) if name.startswith(_ACCOUNTS) else []
                if not labels:
                    return set()
                found.update(labels)
        if len(mine[name]) != len(theirs[name]):
            return set()
    return found


def _by_name(manifest: Manifest) -> dict[str, list[str]]:
    """The digests by name, without the suffix that tells several of one name apart."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, digest in sorted(manifest.digests.items(), key=lambda item: item[1]):
        found[name.partition("#")[0]].append(digest)
    return found


__all__ = ["LIMIT", "why_unsteady"]
