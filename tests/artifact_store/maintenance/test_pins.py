"""Pins: what they hold, that they outlive the index and travel with copies, and the commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from precast.artifact_store import Store, StoreError
from precast.artifact_store.maintenance.pins import Pin, pin, pinned, pins, unpin
from precast.artifact_store.maintenance.prune import Policy, prune, take_out
from precast.artifact_store.maintenance.scan import files
from precast.artifact_store.maintenance.verify import verify
from precast.artifact_store.remote.spool import ARTIFACT, Pending, note
from precast.cli.main import main
from tests.artifact_store.sample import complete, fill, make

KEY = "model-0123abcd"
ALL = (
    Policy(target="*"),
    Policy(max_size=0),
    Policy(unused_for=0.0),
    Policy(older_than=0.0),
    Policy(program="model"),
)


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def there(store: Store) -> set[str]:
    return {manifest.artifact_id for manifest in store.manifests()}


@pytest.mark.parametrize("policy", ALL, ids=str)
@pytest.mark.parametrize("whole_program", [False, True])
def test_no_policy_takes_what_is_pinned(policy: Policy, whole_program: bool, tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 3)
    other = store.put(*make(9, program_key="other"))
    pin(store, "" if whole_program else ids[1], KEY if whole_program else "")
    done = prune(store, policy, now=None)
    left = set(ids) if whole_program else {ids[1]}
    assert there(store) == left and done.pinned == len(left) and other not in there(store)
    assert all(complete(store, manifest) for manifest in store.manifests())


def test_they_count_for_the_size(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 3)
    pin(store, ids[0])
    assert len(prune(store, Policy(max_size=1), dry_run=True).removed) == 2
    pin(store, program_key=KEY)
    assert prune(store, Policy(max_size=1), dry_run=True).removed == ()


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03", b"text"])
def test_a_damaged_note_pins_all_the_same(content: bytes, tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 2)
    pin(store, ids[0], note="why")
    store.path(f"pins/{ids[0]}").write_bytes(content)
    assert [one.artifact_id for one in pins(store)] == [ids[0]]
    assert len(prune(store, Policy(target="*")).removed) == 1 and there(store) == {ids[0]}


def test_what_is_no_pin_pins_nothing(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s", 1)
    (store.root / "pins").mkdir()
    for name in ("abc", "program.", "program..x", f"{'0' * 64}.txt", ".tmp-1-2"):
        (store.root / "pins" / name).write_bytes(b"")
    assert pins(store) == [] and len(prune(store, Policy(target="*")).removed) == 1


def test_they_outlive_the_index_and_a_copy(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 2)
    made = pin(store, ids[0], note="release 42")
    shutil.rmtree(store.root / "index")
    verify(store, repair=True)
    shutil.copytree(store.root, tmp_path / "copy")
    copy = Store.open(tmp_path / "copy")
    assert pins(copy) == [made] and made.note == "release 42" and made.by and made.made
    prune(copy, Policy(target="*"))
    assert there(copy) == {ids[0]}


def test_nothing_is_removed_where_pins_cannot_be_listed(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s", 2)
    (store.root / "pins").write_bytes(b"a file where a folder is due")
    with pytest.raises(StoreError, match="which artifacts are pinned is not known"):
        prune(store, Policy(target="*"))
    assert len(there(store)) == 2


def test_a_pin_is_taken_away(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 2)
    made = pin(store, ids[0])
    assert unpin(store, made) and not unpin(store, made) and pins(store) == []
    assert not pinned(store).holds(KEY, ids[0])
    for wrong in (Pin("abc", ""), Pin("", "a/b"), Pin("", "")):
        with pytest.raises(ValueError, match="neither an artifact's id nor"):
            pin(store, wrong.artifact_id, wrong.program_key)
    read_only = Store.open(store.root, readonly=True)
    with pytest.raises(StoreError, match="opened read-only"):
        pin(read_only, ids[0])


def test_what_is_still_to_be_sent_is_not_pruned(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 2)
    note(store.root, Pending("s3://bucket", ARTIFACT, ids[1], KEY))
    prune(store, Policy(max_size=0))
    assert there(store) == {ids[1]}
    assert len(take_out(store, {ids[1]}).removed) == 1, "but rm removes it"


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "s"))
    store, (first, second) = fill(tmp_path / "s", 2)
    other = store.put(*make(9, program_key="other", program_name="another"))
    assert "Nothing is pinned" in run("pins").stderr
    run("pin", first[:8], "--note", "release 42")
    run("pin", "--program", "another")
    assert [(one["artifact_id"], one["program_key"], one["note"]) for one in _data("pins")] == [
        (first, "", "release 42"),
        ("", "other", ""),
    ]
    assert "release 42" in run("pins", "-H").stdout
    assert "is pinned; `precast pins` says why" in run("rm", first[:8], second, code=1).stderr and len(there(store)) == 3
    assert "3 artifacts" not in run("prune", "--program", "model").stderr
    assert there(store) == {first, other}
    assert "that may go (2 pinned)" in run("prune", "--program", "o").stderr
    assert "pins spare them" in run("prune", "--max-size", "1").stderr
    assert "abcd is not pinned" in run("unpin", first[:8], "abcd", code=1).stderr
    run("unpin", "--program", "other")
    assert "Nothing is pinned" in run("pins").stderr
    for words, said in (
        (("pin", "0000"), "no artifact 0000"),
        (("pin", "ab"), "too short"),
        (("pin", "--program", "none"), "no program has the key or the name 'none'"),
        (("rm", "0000"), "no artifact 0000"),
        (("rm", first, "0000"), "no artifact 0000"),
    ):
        assert said in run(*words, code=1).stderr
    for words in (("pin",), ("unpin",), ("rm",)):
        run(*words, code=2)
    assert len(there(store)) == 2
    assert "Would remove 1 artifact" in run("rm", first, "--dry-run").stderr and first in there(store)
    blobs = len(files(store.root / "objects"))
    assert "Removed 1 artifact" in run("rm", first[:6].upper()).stderr
    assert there(store) == {other} and len(files(store.root / "objects")) == blobs - 1


def test_a_beginning_of_several_is_refused(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s", 1)
    names = [f"abcd{digit * 60}" for digit in "01"]
    folder = store.root / "programs" / KEY
    for name in names:
        (folder / f"{name}.msgpack").write_bytes(b"")
    for command in ("rm", "pin"):
        assert "abcd is the beginning of 2 artifacts" in run(command, "abcd", "--store", store.root, code=1).stderr
    assert len(list(folder.iterdir())) == 3


def _data(*words: object) -> Any:
    return json.loads(run(*words, "--json").stdout)
