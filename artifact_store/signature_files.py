"""Signatures beside what they are of: `programs/<program key>/<artifact id>.sig`, `native/<name>.sig`, …

Imported where something is signed, or a policy asks for signatures, and not on other ways.
"""

from __future__ import annotations

from collections.abc import Iterable

from precast.artifact_store.entries import Entries
from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import RecordError
from precast.artifact_store.tiers.tier import Tier
from precast.artifact_store.trust.keys import signer_from_environment
from precast.artifact_store.trust.signature_file import pack_signatures, parse_signatures
from precast.artifact_store.trust.signatures import Signature


def kept(entries: Entries, document: str, checksum: str) -> tuple[Signature, ...]:
    """The signatures of the manifest or record with this name in the store, and this checksum. What cannot be read is none, and logged."""
    name = layout.signature_name(document)
    data = entries.read(name)
    if data is None:
        return ()
    try:
        of, signatures = parse_signatures(data, name)
    except RecordError as error:
        entries.miss(name, str(error))
        return ()
    if of != checksum:
        entries.miss(name, f"these are signatures of another build of it ({of[:12]}…, and this is {checksum[:12]}…)")
        return ()
    return signatures


def keep(entries: Entries, tier: Tier, document: str, checksum: str, more: Iterable[Signature]) -> tuple[Signature, ...]:
    """Put signatures beside a document, with those of the same content that are there; those of other content go. All of them now.

    Raises OSError.
    """
    known = kept(entries, document, checksum)
    of_key = {one.key: one for one in (*known, *more)}
    every = tuple(of_key[key] for key in sorted(of_key))
    name = layout.signature_name(document)
    if not every:
        tier.remove(name)
    elif set(every) != set(known):
        tier.put(name, pack_signatures(checksum, every))
    return every


def signed_here(statement: bytes) -> tuple[Signature, ...]:
    """The signature of the key in PRECAST_SIGNING_KEY over what this process made; none where there is no key. Raises StoreError."""
    signer = signer_from_environment()
    return () if signer is None else (signer.sign(statement),)
