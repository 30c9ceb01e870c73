"""One bit of every byte of what is signed is changed, and nothing of it is served or taken in (`tampering.py` changes all bits)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.artifact_store.trust import tampering
from tests.artifact_store.trust.tampering import one_bit
from tests.support.needs import needs

needs("zstandard")


def test_a_bundle(tmp_path: Path) -> None:
    size = len(tampering.bundle(tmp_path))
    found = tampering.of_bundles(tmp_path, one_bit, sealed=False)
    assert found["accepted"] == 0 and sum(found.values()) == size
    assert found["the very same content"] == 0
    assert found["refused by checksum"] > 0.9 * size  # all but those that are no bundle at all


def test_a_bundle_whose_checksum_is_made_right(tmp_path: Path) -> None:
    """Where a change leaves the content what it was (bits of a compressed frame that mean nothing), it is what was signed."""
    found = tampering.of_bundles(tmp_path, one_bit, sealed=True)
    assert found["accepted"] == 0 and found["refused by checksum"] == 0
    assert found["refused by form or digest"] > 0


def test_the_index_of_a_bundle(tmp_path: Path) -> None:
    found = tampering.of_bundle_indexes(tmp_path, one_bit)
    assert found["accepted"] == found["the very same content"] == 0
    assert found["refused by form or digest"] > 0 and found["refused by signature"] > 50


def test_files_of_a_store(tmp_path: Path) -> None:
    found = tampering.of_files(tmp_path, one_bit)
    assert len(found) == 5
    assert {kind: counts for kind, counts in found.items() if set(counts) != {"refused"}} == {}
    assert all(sum(counts.values()) > 60 for counts in found.values())


def test_a_manifest_whose_checksum_and_id_are_made_right(tmp_path: Path) -> None:
    found = tampering.of_sealed_manifests(tmp_path, one_bit)
    assert set(found) == {"refused"} and found["refused"] > 500


@pytest.mark.parametrize("sealed", [False, True])
def test_a_remote(sealed: bool) -> None:
    found = tampering.of_remotes(one_bit, sealed)
    assert found["accepted"] == 0 and found["refused by form or digest"] > 0 and sum(found.values()) > 300
    assert found["refused by signature"] > 0 or not sealed


def test_what_would_be_accepted_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: with a judge that accepts all, changes come through."""

    class Lax:
        def refusal(self, *_: object) -> str:
            return ""

    monkeypatch.setattr(tampering, "SIGNED", Lax())
    found: Counter[str] = tampering.of_sealed_manifests(tmp_path / "a", one_bit)
    assert found["accepted"] > 500
    (tmp_path / "b").mkdir()
    assert tampering.of_bundle_indexes(tmp_path / "b", one_bit)["accepted"] > 50
