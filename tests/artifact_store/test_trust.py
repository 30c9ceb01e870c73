"""The one door at which stored bytes become code."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from precast.artifact_store import Manifest
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.origin import FOLDER, MADE_HERE, Origin
from precast.artifact_store.trust.trusted import LOCAL, Trusted, admit, content_of, made_here
from tests.artifact_store.sample import fill, make

STORED = Origin(FOLDER, "/srv/store", "programs/a/b.msgpack")


def test_nobody_else_makes_one() -> None:
    with pytest.raises(TypeError, match="and from nowhere else"):
        Trusted(b"code", "", STORED, object())
    trusted = made_here(b"code")
    with pytest.raises((TypeError, ValueError)):
        dataclasses.replace(trusted, content=b"other code")
    with pytest.raises(dataclasses.FrozenInstanceError):
        trusted.content = b"other code"  # type: ignore[misc]


@pytest.mark.parametrize("given", [b"code", "code", Path("/tmp/a.so"), None, (b"code", "", STORED)])
def test_what_is_not_trusted_is_refused_by_its_type(given: object) -> None:
    with pytest.raises(TypeError, match="is not Trusted: only what passed the store's trust check becomes code"):
        content_of(given)  # type: ignore[arg-type]


def test_the_digest_has_to_hold() -> None:
    assert admit(b"code", "ab" * 32, STORED, LOCAL, holds=True).content == b"code"
    with pytest.raises(Untrusted, match=r"/srv/store/programs/a/b.msgpack: the content does not match its digest abababababab…"):
        admit(b"code", "ab" * 32, STORED, LOCAL, holds=False)


@pytest.mark.parametrize("origin", [Origin("http", "http://cache", "ac/1"), Origin("unknown")])
def test_local_trust_is_for_folders_and_this_process(origin: Origin) -> None:
    for accepted in (STORED, MADE_HERE):
        assert LOCAL.refusal(accepted) == ""
    with pytest.raises(Untrusted, match=f"{origin} may not become code here: its origin is of kind '{origin.kind}'"):
        admit(b"code", "", origin, LOCAL, holds=True)


def test_what_stands_in_a_trusted_document_is_trusted_on_its_authority(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    manifest = store.get(first)
    assert manifest is not None
    document = store.trust(manifest)
    assert document.digest == manifest.checksum == Manifest.from_bytes(manifest.to_bytes()).checksum and len(document.digest) == 64
    assert document.origin == Origin(FOLDER, str(tmp_path / "s"), f"programs/{manifest.program_key}/{first}.msgpack")
    code = document.part(lambda manifest: bytes(manifest.frames[0]["code"]))
    assert content_of(code) == b"\x00\x01" and (code.digest, code.origin) == (document.digest, document.origin)


def test_a_manifest_of_unknown_bytes_is_not_trusted(tmp_path: Path) -> None:
    """The checksum holds, and nobody said where the bytes are from."""
    store, _ = fill(tmp_path / "s")
    made, _ = make(3)
    assert store.trust(made).origin == MADE_HERE
    with pytest.raises(Untrusted, match="may not become code here"):
        store.trust(Manifest.from_bytes(made.to_bytes()))


def test_the_checksum_covers_what_executes(tmp_path: Path) -> None:
    first, second = make(0)[0], make(0, frames=[{"name": "forward", "code": b"\x00\x02"}])[0]
    assert first.artifact_id == second.artifact_id and first.checksum != second.checksum
