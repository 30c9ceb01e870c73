"""What `verify` finds about signatures: damage, what is revoked or was changed after it was signed, and what a policy refuses."""

from __future__ import annotations

from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import RecordError
from precast.artifact_store.named_records import parse
from precast.artifact_store.store import Store
from precast.artifact_store.trust.judge import ANY, KeyringJudge
from precast.artifact_store.trust.signature_file import parse_signatures
from precast.artifact_store.trust.signatures import Signature, manifest_statement, record_statement


class SignatureLook:
    """One look at a store's signatures. `problem`: why they cannot be checked at all, which is no fault of what they are of."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._evident = KeyringJudge(ANY)
        self.problem = ""

    def damage(self, name: str, data: bytes) -> str:
        """What is wrong with a file of signatures; empty where it can be read."""
        try:
            parse_signatures(data, name)
        except RecordError as error:
            return str(error)
        return ""

    def at_artifact(self, program_key: str, file: str, checksum: str) -> tuple[str, str] | None:
        """What is wrong with an artifact as far as signatures go: kind of the problem and reason. `file`: its manifest's."""
        artifact_id = file.removesuffix(layout.MANIFEST_SUFFIX)
        signatures: tuple[Signature, ...] = ()
        if self._store.has_signatures(program_key, artifact_id):
            manifest = self._store.get(artifact_id, program_key)
            if manifest is None or manifest.checksum != checksum:
                return None  # removed, or replaced in the meantime
            signatures = self._store.signatures(manifest)
        return self._wrong(manifest_statement(program_key, artifact_id, checksum), signatures)

    def at_record(self, kind: str, path: Path, data: bytes) -> tuple[str, str] | None:
        """The same of a named record."""
        name = path.name.removesuffix(layout.MANIFEST_SUFFIX)
        try:
            statement = record_statement(kind, name, parse(data, path.name)[1])
        except RecordError:
            return None  # which is said already
        return self._wrong(statement, self._store.record_signatures(kind, name))

    def _wrong(self, statement: bytes, signatures: tuple[Signature, ...]) -> tuple[str, str] | None:
        if self.problem or (problem := self._problem(signatures)):
            self.problem = self.problem or problem
            return None
        if refusal := self._evident.refusal(statement, signatures):
            return "untrusted", refusal
        judge = self._store.judge
        if judge is not None and (refusal := judge.refusal(statement, signatures)):
            return "unsigned", f"is not served: {refusal}"
        return None

    def _problem(self, signatures: tuple[Signature, ...]) -> str:
        """Without signatures and a policy, cryptography is not needed; an unreadable keyring is told all the same."""
        return self._evident.problem(signatures=bool(signatures) or self._store.judge is not None)
