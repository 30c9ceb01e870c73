"""Judges for tests of remotes, which need no keys."""

from __future__ import annotations

from precast.artifact_store.trust.signatures import Signature


class Anything:
    """As the policy "any"."""

    def refusal(self, statement: bytes, signatures: tuple[Signature, ...]) -> str:
        return ""


class Signed:
    """Accepts what bears a signature that `sign` made, of exactly this statement."""

    def refusal(self, statement: bytes, signatures: tuple[Signature, ...]) -> str:
        return "" if sign(statement) in signatures else "it is not signed"


def sign(statement: bytes) -> Signature:
    import hashlib

    return Signature("ab" * 16, hashlib.sha512(statement).digest())
