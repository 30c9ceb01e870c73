"""What a signature says, and of what: statements about manifests and named records, and who vouches for them.

A statement is a short text that names a document by its digest; the document names its blobs by theirs. So one ed25519 signature (RFC 8032)
covers everything that can execute. Statements of different kinds begin differently, so that none can be passed off as another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Signature:
    """`key`: id of the public key, the first 32 hex digits of its SHA-256; `value`: 64 bytes."""

    key: str
    value: bytes


def manifest_statement(program_key: str, artifact_id: str, checksum: str) -> bytes:
    """What is signed of an artifact. `checksum`: the manifest's, over all its sections, blobs' digests included."""
    return f"precast artifact 1\n{program_key}\n{artifact_id}\n{checksum}\n".encode()


def record_statement(kind: str, name: str, checksum: str) -> bytes:
    """What is signed of a named record. `checksum`: of its content."""
    return f"precast record 1\n{kind}\n{name}\n{checksum}\n".encode()


class Judge(Protocol):
    """Decides by a trust policy and a keyring whether a document may come in from a tier."""

    def refusal(self, statement: bytes, signatures: tuple[Signature, ...]) -> str:
        """Why it may not, as a sentence that says what to do; empty where it may."""


class Signer(Protocol):
    """Signs statements with a private key."""

    def sign(self, statement: bytes) -> Signature:
        """The signature over exactly these bytes."""
