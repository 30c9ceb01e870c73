"""keygen, sign, trust, export, import: what they do, print and refuse; and what verify, show and ls say of signatures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from precast.artifact_store import Store, StoreError
from precast.artifact_store.trust import keys
from precast.cli.main import main
from tests.artifact_store.sample import fill, make
from tests.artifact_store.trust.known_keys import known_key
from tests.support.needs import needs

needs("cryptography")
needs("zstandard")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a configuration folder of their own, and a store with two artifacts and a record."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "store"))
    for name in (keys.ENVIRONMENT, keys.PASSPHRASE, "PRECAST_TRUST", "PRECAST_TRUST_POLICY"):
        monkeypatch.delenv(name, raising=False)
    store, _ = fill(tmp_path / "store", 2)
    store.put_record("native", "x86", {"library": "", "blobs": []})
    return tmp_path


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, (words, result.output, result.exception)
    return result


def as_json(*words: str, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code).stdout)


def first_id(home: Path) -> str:
    return next(iter(Store.open(home / "store").manifests())).artifact_id


def test_from_key_to_served(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build machine signs and exports, a server trusts and imports, and serves by signatures alone."""
    line = run("keygen", "--name", "ci").stdout.strip()
    assert (home / "config/precast/signing-key.pem").stat().st_mode & 0o777 == 0o600
    assert (home / "config/precast/signing-key.pem.pub").read_text().strip() == line and line.startswith("precast-ed25519 ")
    assert as_json("sign", "--all")["records"] == [["native", "x86"]]
    exported = as_json("export", str(home / "bundle"))
    assert (exported["artifacts"], exported["records"], exported["unsigned"]) == (2, 1, 0)
    server = ("--store", str(home / "server"))
    refused = run("import", str(home / "bundle"), *server, code=1)
    assert "which is unknown here" in refused.stderr and "precast trust add" in refused.stderr and "Nothing was taken in" in refused.stderr
    assert not (home / "server").exists()
    run("trust", "add", line)
    assert as_json("import", str(home / "bundle"), *server)["artifacts"] == 2
    monkeypatch.setenv("PRECAST_TRUST_POLICY", "by:ci")
    assert len(Store.open(home / "server").trusted_variants("model-0123abcd")) == 2
    assert Store.open(home / "server").trusted_record("native", "x86") is not None
    run("trust", "rm", "ci")
    assert Store.open(home / "server").trusted_variants("model-0123abcd") == []
    assert "was revoked" in run("import", str(home / "bundle"), *server, code=1).stderr


def test_what_is_built_is_signed_where_a_key_is_set(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(keys.ENVIRONMENT, keys.to_pem(known_key("ci")).decode())
    store = Store.open(home / "store")
    manifest, blobs = make(7)
    store.put(manifest, blobs)
    store.put_record("native", "arm", {"blobs": []})
    assert [one.key for one in store.signatures(manifest)] == [known_key("ci").public.id]
    assert len(store.record_signatures("native", "arm")) == 1
    # what came from elsewhere is not vouched for
    from precast.artifact_store import Manifest
    from precast.artifact_store.format.origin import Origin

    foreign, blobs = make(8)
    store.put(Manifest.from_bytes(foreign.to_bytes(), origin=Origin("http", "http://cache", "x")), blobs)
    store.put_record("native", "riscv", {"blobs": []}, signatures=())
    assert store.signatures(foreign) == () and store.record_signatures("native", "riscv") == ()


def test_a_key_that_cannot_be_used_stores_nothing_unsigned(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(keys.ENVIRONMENT, str(home / "gone.pem"))
    store = Store.open(home / "store")
    manifest, blobs = make(7)
    with pytest.raises(StoreError, match="signing key .*gone.pem: cannot be read"):
        store.put(manifest, blobs)
    assert store.get(manifest.artifact_id) is None
    assert "gone.pem" in store.try_put(manifest, blobs)


def test_a_rebuild_drops_the_signatures_of_what_it_replaces(home: Path) -> None:
    store = Store.open(home / "store")
    old, blobs = make(0)
    store.sign(old, known_key("ci"))
    new, _ = make(0, provenance={"source": "another"})
    assert new.artifact_id == old.artifact_id and new.checksum != old.checksum
    assert store.signatures(new) == ()
    store.put(old, blobs)
    assert len(store.signatures(old)) == 1
    store.put(new, blobs)
    assert store.signatures(old) == () and not list((home / "store/programs").rglob("*.sig"))


def test_two_who_sign(home: Path) -> None:
    store = Store.open(home / "store")
    manifest, _ = make(0)
    for name in ("ci", "release", "ci"):
        store.sign(manifest, known_key(name))
    assert {one.key for one in store.signatures(manifest)} == {known_key(name).public.id for name in ("ci", "release")}


def test_removing_an_artifact_removes_its_signatures(home: Path) -> None:
    store = Store.open(home / "store")
    manifest, _ = make(0)
    store.sign(manifest, known_key("ci"))
    store.remove(manifest.artifact_id)
    assert not list((home / "store/programs").rglob("*.sig"))


# -- sign


def test_signing_needs_something_whole(home: Path) -> None:
    run("keygen")
    assert "name artifacts" in run("sign", code=2).stderr
    assert "no artifact matching 'nonsense'" in run("sign", "--program", "nonsense", code=1).stderr
    blob = next(path for path in (home / "store/objects").rglob("*") if path.is_file())
    blob.unlink()
    assert "is not signed: a blob is missing" in run("sign", "--all", code=1).stderr


def test_signing_by_id_and_again(home: Path) -> None:
    run("keygen", "-o", str(home / "k.pem"), "--name", "me")
    id_ = first_id(home)
    assert as_json("sign", id_[:8], "--key", str(home / "k.pem"))["already"] == 0
    shown = as_json("sign", id_[:8], "--key", str(home / "k.pem"))
    assert shown["already"] == 1 and [one["id"] for one in shown["signed"]] == [id_] and shown["name"] == "me"
    assert len(list((home / "store/programs").rglob("*.sig"))) == 1


def test_keygen_never_writes_over_a_key(home: Path) -> None:
    run("keygen", "-o", str(home / "k.pem"))
    before = (home / "k.pem").read_bytes()
    assert "never written over" in run("keygen", "-o", str(home / "k.pem"), code=1).stderr
    assert (home / "k.pem").read_bytes() == before
    assert "use up to 128" in run("keygen", "-o", str(home / "other"), "--name", "a b", code=1).stderr


def test_no_private_key_is_printed(home: Path) -> None:
    result = run("keygen", "--json")
    pem = (home / "config/precast/signing-key.pem").read_text().splitlines()[1]
    assert pem not in result.output


# -- trust


def test_keys_come_as_lines_quoted_or_not_and_as_files(home: Path) -> None:
    line, other = known_key("ci").public.line(), known_key("release").public.line()
    run("trust", "add", *line.split())
    (home / "r.pub").write_text(f"{other}\n")
    assert as_json("trust", "add", str(home / "r.pub"), "--name", "rel")["added"] == [
        {"key": known_key("release").public.id, "name": "rel"}
    ]
    entries = as_json("trust", "ls")["entries"]
    assert sorted((one["name"], one["state"]) for one in entries) == [("ci", "trusted"), ("rel", "trusted")]
    assert "cannot be read" in run("trust", "add", str(home / "none.pub"), code=1).stderr
    (home / "private.pem").write_bytes(keys.to_pem(known_key("ci")))
    assert "never hand it on" in run("trust", "add", str(home / "private.pem"), code=1).stderr


def test_what_is_revoked_stays_in_the_list(home: Path) -> None:
    run("trust", "add", known_key("ci").public.line())
    run("trust", "rm", known_key("ci").public.id)
    assert [(one["state"], one["name"]) for one in as_json("trust", "ls")["entries"]] == [("revoked", "ci")]
    assert "--again" in run("trust", "add", known_key("ci").public.line(), code=1).stderr
    run("trust", "add", known_key("ci").public.line(), "--again")
    assert [one["state"] for one in as_json("trust", "ls")["entries"]] == ["trusted"]
    run("trust", "rm", "ab" * 32, "--name", "miscompiled")
    assert ("revoked artifact", "miscompiled") in [(one["state"], one["name"]) for one in as_json("trust", "ls")["entries"]]
    assert "no key 'nobody'" in run("trust", "rm", "nobody", code=1).stderr


def test_the_systems_keyring_is_read_and_left(home: Path) -> None:
    system = home / "system/precast/trust"
    system.parent.mkdir(parents=True)
    system.write_text(f"{known_key('ci').public.line()}\n")
    assert [one["file"] for one in as_json("trust", "ls")["entries"]] == [str(system)]
    run("trust", "rm", "ci")
    assert system.read_text() == f"{known_key('ci').public.line()}\n"
    store = Store.open(home / "store", trust="signed")
    manifest = next(iter(store.manifests()))
    store.sign(manifest, known_key("ci"))
    assert store.trusted_variants(manifest.program_key) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [("trust add", "needs a key"), ("trust rm", "needs a key"), ("trust ls x", "takes no key"), ("trust sell x", "'sell' is not one of")],
)
def test_wrong_usage(words: str, said: str, home: Path) -> None:
    assert said in run(*words.split(), code=2).stderr


# -- bundles


def test_a_part_of_a_store(home: Path) -> None:
    store = Store.open(home / "store")
    store.put(*make(5, target="cpu:x86-64-v4", program_key="other-1", program_name="other"))
    store.put_record("tuning", "x", {"choices": {}})
    assert as_json("export", str(home / "a"))["records"] == 2
    shown = as_json("export", str(home / "b"), "--program", "other")
    assert (shown["artifacts"], shown["records"]) == (1, 1)
    assert as_json("export", str(home / "c"), "--target", "*-v4")["artifacts"] == 1
    assert as_json("export", str(home / "d"), "--program", "other", "--program", "model")["artifacts"] == 3
    assert "no artifact in" in run("export", str(home / "e"), "--program", "none", code=1).stderr and not (home / "e").exists()
    assert "cannot be written" in run("export", str(home / "no/such/folder"), code=1).stderr


def test_import_of_what_is_no_bundle(home: Path) -> None:
    (home / "x").write_text("hello")
    assert "is no bundle of precast" in run("import", str(home / "x"), code=1).stderr
    assert "No such file" in run("import", str(home / "none"), code=1).stderr
    assert "is none of `any`" in run("import", str(home / "x"), "--trust", "sgined", code=2).stderr
    run("export", str(home / "b"))
    refused = as_json("import", str(home / "b"), "--store", str(home / "other"), code=1)
    assert len(refused["refused"]) == 3 and all("it is not signed" in why for why in refused["refused"].values())
    assert as_json("import", str(home / "b"), "--store", str(home / "other"), "--trust", "any")["artifacts"] == 2


# -- what others say


def test_show_and_ls_name_who_signed(home: Path) -> None:
    store = Store.open(home / "store")
    manifest = next(iter(store.manifests()))
    assert "signed by  nobody" in run("show", manifest.artifact_id).stdout
    store.sign(manifest, known_key("ci"))
    key = known_key("ci").public
    assert f"signed by  key ({key.id}), unknown here" in run("show", manifest.artifact_id).stdout
    run("trust", "add", key.line())
    assert f"signed by  ci ({key.id})\n" in run("show", manifest.artifact_id).stdout
    wanted = [{"key": key.id, "name": "ci", "state": "trusted"}]
    assert as_json("show", manifest.artifact_id)["signed_by"] == wanted
    assert sorted(len(one["signed_by"]) for one in as_json("ls")) == [0, 1]
    assert [one["signed_by"] for one in as_json("ls") if one["id"] == manifest.artifact_id] == [wanted]
    run("trust", "rm", "ci")
    assert f"signed by  ci ({key.id}), revoked" in run("show", manifest.artifact_id).stdout


def kinds(*words: str, code: int) -> list[tuple[str, bool]]:
    return sorted((one["kind"], one["repaired"]) for one in as_json("verify", *words, code=code)["problems"])


def test_verify_under_a_policy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds(code=0) == []
    monkeypatch.setenv("PRECAST_TRUST_POLICY", "signed")
    assert kinds(code=1) == [("unsigned", False)] * 3
    assert kinds("--repair", code=1) == [("unsigned", False)] * 3, "what can still be signed stays"
    assert "precast sign" in run("verify", code=1).stderr
    run("keygen", "--name", "ci")
    run("sign", "--all")
    assert kinds(code=1) == [("unsigned", False)] * 3, "its key is not trusted yet"
    run("trust", "add", str(home / "config/precast/signing-key.pem.pub"))
    assert kinds(code=0) == []


def test_verify_names_what_is_revoked_whatever_the_policy(home: Path) -> None:
    store = Store.open(home / "store")
    manifest = next(iter(store.manifests()))
    run("trust", "rm", manifest.artifact_id, "--name", "miscompiled")
    assert kinds(code=1) == [("untrusted", False)]
    assert "miscompiled" in run("verify", code=1).stdout
    assert kinds("--repair", code=0) == [("untrusted", True)]
    assert Store.open(home / "store").get(manifest.artifact_id) is None


def test_verify_finds_damaged_and_wrong_signatures(home: Path) -> None:
    store = Store.open(home / "store")
    first, second = store.manifests()
    run("trust", "add", known_key("ci").public.line())
    store.sign(first, known_key("ci"))
    store.sign(second, known_key("ci"))
    folder = home / "store/programs/model-0123abcd"
    right = (folder / f"{first.artifact_id}.sig").read_bytes()
    (folder / f"{first.artifact_id}.sig").write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    (folder / f"{second.artifact_id}.sig").write_bytes(b"nonsense")
    assert kinds(code=1) == [("damaged", False), ("untrusted", False)]
    assert kinds("--repair", code=0) == [("damaged", True), ("untrusted", True)]
    assert [one.artifact_id for one in Store.open(home / "store").manifests()] == [second.artifact_id]


def test_a_keyring_that_cannot_be_read_sets_nothing_aside(home: Path) -> None:
    (home / "config/precast").mkdir(parents=True)
    (home / "config/precast/trust").write_text("nonsense\n")
    assert kinds("--repair", code=1) == [("keyring", False)]
    assert len(list(Store.open(home / "store").manifests())) == 2


def test_a_policy_with_a_slip_serves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_TRUST_POLICY", "sigend")
    store = Store.open(home / "store")
    assert list(store.manifests()) == [] and "PRECAST_TRUST_POLICY: 'sigend' is none of" in store.problem
    assert "'sigend' is none of" in run("ls", code=1).stderr


def test_signatures_without_a_manifest_are_leftovers(home: Path) -> None:
    import os
    import time

    orphan = home / "store/programs/model-0123abcd" / f"{'ab' * 32}.sig"
    orphan.write_bytes(b"x")
    old = time.time() - 7200
    os.utime(orphan, (old, old))
    run("prune")
    assert not orphan.exists()
