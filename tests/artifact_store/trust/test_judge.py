"""Policies and keyrings: who may sign what, what is said of the rest, and that a doubt is a refusal."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from precast.artifact_store.format.errors import DamagedRecord, FutureFormat, StoreError
from precast.artifact_store.format.msgpack import pack
from precast.artifact_store.trust import keyring as rings
from precast.artifact_store.trust.judge import MOST_SIGNATURES, judge_for, parse_demand, who_signed
from precast.artifact_store.trust.keyring import EMPTY, Files, Keyring
from precast.artifact_store.trust.keys import KeyProblem, PrivateKey, generate
from precast.artifact_store.trust.signature_file import pack_signatures, parse_signatures
from precast.artifact_store.trust.signatures import Signature, manifest_statement
from tests.artifact_store.trust.known_keys import known_key

ID, SUM = "ab" * 32, "cd" * 32
STATEMENT = manifest_statement("model-1", ID, SUM)
CI, RELEASE, STRANGER, FIRED = map(known_key, ("ci", "release", "stranger", "fired"))


def ring() -> Keyring:
    """ci and release are trusted; fired was."""
    made = EMPTY
    for key in (CI, RELEASE, FIRED):
        made = rings.add(made, key.public)
    return rings.revoke_key(made, "fired")


def signed(*keys: PrivateKey) -> tuple[Signature, ...]:
    return tuple(key.sign(STATEMENT) for key in keys)


WRONG = Signature(CI.public.id, RELEASE.sign(STATEMENT).value)


@pytest.mark.parametrize(
    ("policy", "signatures", "said"),
    [
        ("any", (), ""),
        ("any", signed(STRANGER), ""),
        ("any", signed(CI), ""),
        ("any", signed(FIRED), "signed by fired .* which was revoked here"),
        ("any", (WRONG,), "the signature of ci .* does not match"),
        ("any", signed(FIRED, CI), ""),
        ("signed", (), "it is not signed, and only what a trusted key signed"),
        ("signed", signed(STRANGER), f"signed by key {STRANGER.public.id}, which is unknown here: .*precast trust add"),
        ("signed", signed(CI), ""),
        ("signed", signed(RELEASE, STRANGER), ""),
        ("signed", signed(FIRED), "signed by fired .* which was revoked here: build it again"),
        ("signed", signed(FIRED, RELEASE), ""),
        ("signed", (WRONG,), "the signature of ci .* does not match"),
        ("by:release", signed(CI), r"signed by ci \(.*\), and only release may sign"),
        ("by:release", signed(CI, RELEASE), ""),
        ("by:ci,release", signed(CI), ""),
        (f"by:{RELEASE.public.id}", signed(RELEASE), ""),
        ("by:fired", signed(FIRED), "only fired may sign it, and no such key is trusted here"),
        ("by:nobody", signed(CI), "only nobody may sign it, and no such key is trusted here"),
        ("by:release", (), "it is not signed"),
        ("by:release", (Signature(RELEASE.public.id, CI.sign(STATEMENT).value),), "the signature of release .* does not match"),
    ],
)
def test_policies(policy: str, signatures: tuple[Signature, ...], said: str) -> None:
    refusal = judge_for(policy, keyring=ring).refusal(STATEMENT, signatures)
    assert re.search(said, refusal) if said else refusal == ""


@pytest.mark.parametrize("digest", [ID, SUM])
@pytest.mark.parametrize("policy", ["any", "signed", "by:ci"])
def test_a_revoked_artifact_is_refused_whoever_signed_it(policy: str, digest: str) -> None:
    revoked = rings.revoke_artifact(ring(), digest, "miscompiled")
    assert "it was revoked here (miscompiled" in judge_for(policy, keyring=lambda: revoked).refusal(STATEMENT, signed(CI, RELEASE))


def test_only_so_many_signatures_are_looked_at() -> None:
    many = signed(STRANGER) * MOST_SIGNATURES + signed(CI)
    assert judge_for("signed", keyring=ring).refusal(STATEMENT, many) != ""


@pytest.mark.parametrize("text", ["", "Signed", "sign", "by", "by:", "by:a b", "by:a,", "none", "any signed", "by:../x", "any,signed"])
def test_a_slip_in_a_policy_accepts_nothing(text: str) -> None:
    with pytest.raises(StoreError, match="is none of `any`, `signed`, `by:"):
        parse_demand(text)


@pytest.mark.parametrize("text", ["any", "signed", "by:ci", "by:ci,release"])
def test_policies_read_as_they_are_written(text: str) -> None:
    assert str(parse_demand(f" {text} ")) == text


def test_who_signed() -> None:
    found = who_signed(STATEMENT, (*signed(RELEASE, STRANGER, FIRED), WRONG), ring())
    assert [(one.name, one.state) for one in found] == [("release", "trusted"), ("", "unknown"), ("fired", "revoked"), ("ci", "wrong")]


# -- the keyring's file


def test_a_keyring_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "config" / "trust"
    rings.change(path, lambda _: rings.revoke_artifact(ring(), ID, "bad"))
    assert rings.read(path) == rings.revoke_artifact(ring(), ID, "bad")
    assert path.stat().st_mode & 0o777 == 0o600 and sorted(p.name for p in path.parent.iterdir()) == ["trust"]


def test_comments_and_empty_lines(tmp_path: Path) -> None:
    text = f"# ours\n\n{CI.public.line()} # the build machine\n"
    assert rings.parse(text, "x") == rings.add(EMPTY, CI.public)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "precast-ed25519 AAAA ci",
        f"{CI.public.line()} more",
        f"revoked-key {ID} x",
        "revoked-key",
        f"revoked-artifact {CI.public.id} x",
        "revoked-artifact ../../x x",
        f"revoked-key {CI.public.id} a b",
        f"revoked-key {CI.public.id} ../x",
        "Revoked-key " + CI.public.id,
    ],
)
def test_half_a_keyring_is_none(line: str, tmp_path: Path) -> None:
    """A line that is not understood may be a revocation."""
    path = tmp_path / "trust"
    path.write_text(f"{CI.public.line()}\n{line}\n")
    with pytest.raises(KeyProblem, match="line 2"):
        rings.read(path)
    refusal = judge_for("signed", keyring=Files([path])).refusal(STATEMENT, signed(CI))
    assert "it cannot be told who signed it" in refusal and "line 2" in refusal


@pytest.mark.parametrize("data", [b"\xff\xfe", b"x" * (rings.LARGEST + 1)], ids=["binary", "large"])
def test_a_keyring_that_is_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "trust").write_bytes(data)
    assert "it cannot be told who signed it" in judge_for("any", keyring=Files([tmp_path / "trust"])).refusal(STATEMENT, ())
    (tmp_path / "trust").unlink()
    (tmp_path / "trust").mkdir()
    assert "cannot be read" in judge_for("any", keyring=Files([tmp_path / "trust"])).refusal(STATEMENT, ())


def test_a_running_server_notices_a_revocation(tmp_path: Path) -> None:
    user, system = tmp_path / "user", tmp_path / "system"
    judge = judge_for("signed", keyring=Files([user, system]))
    assert judge.refusal(STATEMENT, signed(CI)) != ""
    rings.change(system, lambda ring: rings.add(ring, CI.public))
    assert judge.refusal(STATEMENT, signed(CI)) == ""
    rings.change(user, lambda ring: rings.revoke_key(ring, "ci", rings.read(system)))
    assert "revoked" in judge.refusal(STATEMENT, signed(CI))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_revocation_counts_in_either_keyring(swapped: bool) -> None:
    one, other = rings.add(EMPTY, CI.public), rings.revoke_key(EMPTY, CI.public.id)
    whole = (other.with_more(one)) if swapped else one.with_more(other)
    assert whole.keys == {} and set(whole.revoked_keys) == {CI.public.id}


def test_names_are_not_shared_and_what_was_revoked_stays_so() -> None:
    with pytest.raises(KeyProblem, match="another key is called 'ci' here"):
        rings.add(ring(), generate("ci").public)
    with pytest.raises(KeyProblem, match="was revoked; `precast trust add --again`"):
        rings.add(ring(), FIRED.public)
    assert FIRED.public.id in rings.add(ring(), FIRED.public, again=True).keys
    with pytest.raises(KeyProblem, match="key 'fired' is revoked already"):
        rings.revoke_key(ring(), "fired")
    with pytest.raises(KeyProblem, match="no key 'nobody' is trusted here"):
        rings.revoke_key(ring(), "nobody")
    with pytest.raises(KeyProblem, match="64 hex digits"):
        rings.revoke_artifact(ring(), "abc")


def test_two_who_add_at_once_both_count(tmp_path: Path) -> None:
    keys = [generate(f"key-{number}").public for number in range(8)]
    threads = [threading.Thread(target=rings.change, args=(tmp_path / "trust", lambda ring, key=key: rings.add(ring, key))) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(rings.read(tmp_path / "trust").keys) == {key.id for key in keys}


# -- signatures as bytes


def test_signatures_come_back_in_one_order() -> None:
    one, two = signed(CI, RELEASE), signed(RELEASE, CI)
    assert pack_signatures(SUM, one) == pack_signatures(SUM, two)
    checksum, found = parse_signatures(pack_signatures(SUM, one), "x")
    assert checksum == SUM and set(found) == set(one)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack([]),
        pack({"a": 1}),
        pack(["precast-signatures", 1, SUM]),
        pack(["precast-signatures", 1, "short", []]),
        pack(["precast-signatures", True, SUM, []]),
        pack(["precast-signatures", 0, SUM, []]),
        pack(["precast-signatures", 1, SUM, {}]),
        pack(["precast-signatures", 1, SUM, [["key", b"x" * 64]]]),
        pack(["precast-signatures", 1, SUM, [[CI.public.id, b"x" * 63]]]),
        pack(["precast-signatures", 1, SUM, [[CI.public.id, "x" * 64]]]),
        pack(["precast-signatures", 1, SUM, [[CI.public.id, b"x" * 64, 1]]]),
        pack(["precast-signatures", 1, SUM, [[CI.public.id, b"x" * 64]] * (MOST_SIGNATURES + 1)]),
        pack(["precast-signatures", 1, SUM, []]) + b"\0",
        pack(["precast-signatures", 1, SUM, [], b"x" * 20000]),
    ],
)
def test_what_are_no_signatures(data: bytes) -> None:
    with pytest.raises(DamagedRecord):
        parse_signatures(data, "x")


def test_signatures_of_a_newer_precast() -> None:
    with pytest.raises(FutureFormat, match="a newer precast wrote them"):
        parse_signatures(pack(["precast-signatures", 2, SUM, [], {}]), "x")
