"""Keys that are the same in every run, by name: for tests only."""

from __future__ import annotations

import hashlib

from precast.artifact_store.trust.keys import PrivateKey
from tests.support.needs import needs

ed25519 = needs("cryptography.hazmat.primitives.asymmetric.ed25519")


def known_key(name: str) -> PrivateKey:
    """The key with this name, whose private half is the name's digest."""
    return PrivateKey(ed25519.Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()), name)
