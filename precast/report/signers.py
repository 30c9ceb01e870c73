"""Who signed an artifact, in words and as data."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from precast.artifact_store import Manifest, Store

if TYPE_CHECKING:
    from precast.artifact_store.trust.judge import Signed


def signers(store: Store, manifest: Manifest) -> list[Signed]:
    """Each signature that lies beside an artifact, judged by this user's keyring. Raises StoreError where none can be checked."""
    signatures = store.signatures(manifest)
    if not signatures:
        return []
    from precast.artifact_store.trust.judge import who_signed
    from precast.artifact_store.trust.signatures import manifest_statement

    statement = manifest_statement(manifest.program_key, manifest.artifact_id, manifest.checksum)
    return who_signed(statement, signatures, _keyring()())


@cache
def _keyring() -> Any:
    from precast.artifact_store.trust.keyring import Files

    return Files()


def signers_data(store: Store, manifest: Manifest) -> list[dict[str, str]]:
    """The same for --json; with the reason for each where they cannot be checked."""
    from precast.artifact_store import StoreError

    try:
        return [asdict(one) for one in signers(store, manifest)]
    except StoreError as error:
        return [{"key": one.key, "name": "", "state": "unchecked", "reason": str(error)} for one in store.signatures(manifest)]


def signers_text(store: Store, manifest: Manifest) -> str:
    """The same in a line; "nobody" where there is no signature."""
    found = signers_data(store, manifest)
    said = {"trusted": "", "unknown": ", unknown here", "revoked": ", revoked", "wrong": ", and it does NOT match"}
    lines = [f"{one['name'] or 'key'} ({one['key']}){said.get(one['state'], ', not checked: ' + one.get('reason', ''))}" for one in found]
    return "; ".join(lines) or "nobody"
