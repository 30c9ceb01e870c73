"""Files that say whom to trust, or where to fetch from: those that somebody else may have written are not believed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from precast.artifact_store.local import size_limit
from precast.artifact_store.remote.settings import from_files
from precast.artifact_store.trust import keyring as rings
from precast.artifact_store.trust.keys import KeyProblem

TEXT = 'remotes = [{url = "http://elsewhere.example/cache", trust = "any"}]\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Settings in a folder in which somebody works, as /tmp/work is below /tmp/precast.toml."""
    (tmp_path / "work").mkdir()
    path = tmp_path / "precast.toml"
    path.write_text(TEXT)
    path.chmod(0o644)
    return path


def test_our_own_settings_count(file: Path) -> None:
    assert len(from_files(file.parent / "work")) == 1


def test_another_users_settings_do_not(file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    if os.geteuid() == 0:
        os.chown(file, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with caplog.at_level(logging.WARNING, "precast.store"):
        assert from_files(file.parent / "work") == ()
    assert "is ignored: it belongs to" in caplog.text and "PRECAST_REMOTE" in caplog.text


def test_settings_that_everybody_may_write_do_not(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.chmod(0o666)
    with caplog.at_level(logging.WARNING, "precast.store"):
        assert from_files(file.parent / "work") == ()
    assert "everybody may write it" in caplog.text


def test_nor_does_a_size_limit(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text('max_size = "1M"\n')
    assert size_limit.size_limit(file.parent / "work") == 1_000_000
    file.chmod(0o666)
    assert size_limit.size_limit(file.parent / "work") is None
    assert "its max_size would remove artifacts" in caplog.text


def test_a_keyring_that_everybody_may_write_trusts_nobody(tmp_path: Path) -> None:
    (tmp_path / "trust").write_text("")
    (tmp_path / "trust").chmod(0o666)
    with pytest.raises(KeyProblem, match="everybody may write it"):
        rings.read(tmp_path / "trust")
