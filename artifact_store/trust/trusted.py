"""The one door at which stored bytes become code.

What can execute (bytecode, shared objects, kernels' images) is handed on as `Trusted` and as nothing else: whoever turns it into code
takes no other type. Trust starts at a document, a manifest or a named record, whose checksum held and whose origin the policy accepts
(`admit`). What stands in it is trusted on its authority (`Trusted.part`): the bytecode of its frames, and the digests of its blobs; and
so is a blob whose content has such a digest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, final

from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.format.origin import FOLDER, MADE_HERE, PROCESS, Origin

if TYPE_CHECKING:
    from precast.artifact_store.trust.signatures import Judge, Signature


@dataclass(frozen=True, eq=False, repr=False)
class Policy:
    """Accepts what comes from tiers of these kinds, and where there is a `judge` only documents whose signatures it accepts. Digests are
    compared whatever the policy says.
    """

    kinds: frozenset[str]
    judge: Judge | None = None

    def asks(self, origin: Origin) -> bool:
        """Whether a document from there needs signatures. What this process made itself does not."""
        return self.judge is not None and origin.kind != PROCESS

    def refusal(self, origin: Origin) -> str:
        """Why content from there may not execute, as a sentence; empty where it may."""
        if origin.kind in self.kinds:
            return ""
        return f"{origin} may not become code here: its origin is of kind {origin.kind!r}, and trusted are {', '.join(sorted(self.kinds))}"


LOCAL = Policy(frozenset({FOLDER, PROCESS}))
"""A folder of this machine, which its user alone can write (mode 0700), and what this process made itself."""


Content = TypeVar("Content")
Part = TypeVar("Part")
_SEAL = object()


@final
@dataclass(frozen=True)
class Trusted(Generic[Content]):
    """Content that may become code: bytes, a file's path, or a document. `digest`: of the content, or of the document that it stands in.

    Only this module makes one.
    """

    content: Content
    digest: str
    origin: Origin
    seal: InitVar[object]

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("a Trusted comes from precast.artifact_store.trust.trusted.admit and from nowhere else")

    def part(self, read: Callable[[Content], Part]) -> Trusted[Part]:
        """What `read` takes out of the content: trusted as it is. Raises what `read` raises."""
        return Trusted(read(self.content), self.digest, self.origin, _SEAL)


def admit(content: Content, digest: str, origin: Origin, policy: Policy, *, holds: bool) -> Trusted[Content]:
    """The content as Trusted. `holds`: what the comparison of the content with `digest` gave. Raises Untrusted."""
    if not holds:
        raise Untrusted(f"{origin}: the content does not match its digest {digest[:12]}…")
    if refusal := policy.refusal(origin):
        raise Untrusted(refusal)
    return Trusted(content, digest, origin, _SEAL)


def admit_manifest(manifest: Manifest, policy: Policy, signatures: tuple[Signature, ...] = ()) -> Trusted[Manifest]:
    """A manifest, whose checksum was compared when it was read. Raises Untrusted."""
    if policy.asks(manifest.origin):
        from precast.artifact_store.trust.signatures import manifest_statement  # only where signatures count

        _judge(manifest_statement(manifest.program_key, manifest.artifact_id, manifest.checksum), manifest.origin, policy, signatures)
    return admit(manifest, manifest.checksum, manifest.origin, policy, holds=True)


def admit_record(
    record: Content, kind: str, name: str, checksum: str, origin: Origin, policy: Policy, signatures: tuple[Signature, ...] = ()
) -> Trusted[Content]:
    """A named record, whose checksum was compared when it was read. Raises Untrusted."""
    if policy.asks(origin):
        from precast.artifact_store.trust.signatures import record_statement

        _judge(record_statement(kind, name, checksum), origin, policy, signatures)
    return admit(record, checksum, origin, policy, holds=True)


def _judge(statement: bytes, origin: Origin, policy: Policy, signatures: tuple[Signature, ...]) -> None:
    """Raises Untrusted where the policy's judge refuses."""
    if policy.judge is not None and (refusal := policy.judge.refusal(statement, signatures)):
        raise Untrusted(f"{origin} may not become code here: {refusal}")


def made_here(content: Content, digest: str = "") -> Trusted[Content]:
    """What this process made itself a moment ago, and did not read from anywhere."""
    return admit(content, digest, MADE_HERE, LOCAL, holds=True)


def content_of(trusted: Trusted[Content]) -> Content:
    """The content, for whoever turns it into code. Raises TypeError for anything that is not Trusted."""
    if type(trusted) is not Trusted:
        raise TypeError(f"{type(trusted).__name__} is not Trusted: only what passed the store's trust check becomes code")
    return trusted.content
