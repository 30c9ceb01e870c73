"""Keys as files and lines: what is written, what is refused, and that nobody can sign without a private key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from precast.artifact_store.trust import keys
from precast.artifact_store.trust.keys import KeyProblem, PublicKey, generate, parse_public, read_private, signer_from_environment
from precast.artifact_store.trust.signatures import Signature, manifest_statement, record_statement
from tests.support.needs import needs

needs("cryptography")
STATEMENT = manifest_statement("model-1", "ab" * 32, "cd" * 32)


def test_a_signature_is_of_one_statement_by_one_key() -> None:
    key, other = generate("ci"), generate("other")
    signature = key.sign(STATEMENT)
    assert key.public.holds(STATEMENT, signature) and len(signature.value) == 64 and signature.key == key.public.id
    assert not other.public.holds(STATEMENT, signature)
    assert not other.public.holds(STATEMENT, Signature(other.public.id, signature.value))
    assert not key.public.holds(STATEMENT, Signature(other.public.id, signature.value))
    for changed in (STATEMENT[:-1], STATEMENT + b"x", manifest_statement("model-2", "ab" * 32, "cd" * 32), b""):
        assert not key.public.holds(changed, signature)
    for value in (signature.value[:-1], signature.value + b"\0", b"", bytes(64)):
        assert not key.public.holds(STATEMENT, Signature(key.public.id, value))


def test_statements_of_different_documents_differ() -> None:
    """No artifact is passed off as another program's, nor as a record."""
    one, two = "ab" * 32, "cd" * 32
    made = {
        manifest_statement("p", one, two),
        manifest_statement("q", one, two),
        manifest_statement("p", two, one),
        record_statement("p", one, two),
    }
    assert len(made) == 4


def test_a_private_key_is_for_its_user_alone(tmp_path: Path) -> None:
    key, path = generate("ci"), tmp_path / "sub" / "key.pem"
    keys.write_private(key, path)
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert read_private(path).public.raw == key.public.raw
    assert "PRIVATE" not in repr(key) and base64.b64encode(key._key.private_bytes_raw()).decode() not in repr(key)
    with pytest.raises(KeyProblem, match="there is a file already"):
        keys.write_private(generate("ci"), path)
    assert read_private(path).public.raw == key.public.raw
    path.chmod(0o640)
    with pytest.raises(KeyProblem, match=r"others can read it \(mode 640\): chmod 600"):
        read_private(path)


def test_a_link_is_not_followed_when_a_key_is_written(tmp_path: Path) -> None:
    (tmp_path / "key.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyProblem, match="there is a file already"):
        keys.write_private(generate("ci"), tmp_path / "key.pem")
    assert not (tmp_path / "elsewhere").exists()


def test_a_passphrase(tmp_path: Path) -> None:
    key, path = generate("ci"), tmp_path / "key.pem"
    keys.write_private(key, path, "open sesame")
    assert read_private(path, "open sesame").public.raw == key.public.raw
    with pytest.raises(KeyProblem, match="has a passphrase: set PRECAST_SIGNING_PASSPHRASE"):
        read_private(path)
    with pytest.raises(KeyProblem, match="the passphrase in PRECAST_SIGNING_PASSPHRASE does not open it"):
        read_private(path, "wrong")


def test_the_name_is_that_of_the_public_key_beside_it(tmp_path: Path) -> None:
    key, path = generate("release"), tmp_path / "mine.pem"
    keys.write_private(key, path)
    assert read_private(path).public.name == "mine"
    (tmp_path / "mine.pem.pub").write_text(f"{key.public.line()}\n")
    assert read_private(path).public.name == "release"
    (tmp_path / "mine.pem.pub").write_text(f"{generate('foreign').public.line()}\n")
    assert read_private(path).public.name == "mine"


def test_the_environment_holds_a_key_or_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = generate("ci")
    keys.write_private(key, tmp_path / "key.pem")
    pem = keys.to_pem(key).decode()
    for value in (str(tmp_path / "key.pem"), pem, pem.replace("\n", "\\n"), f"\n{pem}"):
        monkeypatch.setenv("PRECAST_SIGNING_KEY", value)
        signer = signer_from_environment()
        assert signer is not None and signer.public.raw == key.public.raw
    for nothing in ("", "  "):
        monkeypatch.setenv("PRECAST_SIGNING_KEY", nothing)
        assert signer_from_environment() is None
    for value, said in ((str(tmp_path / "none.pem"), "No such file"), ("-----BEGIN NONSENSE", "no private key in PEM")):
        monkeypatch.setenv("PRECAST_SIGNING_KEY", value)
        with pytest.raises(KeyProblem, match=said):
            signer_from_environment()


def test_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    pem = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(KeyProblem, match="it is no ed25519 key"):
        keys.from_pem(pem, "ci", "key")


def _line(raw: bytes, name: str = "ci") -> str:
    return f"precast-ed25519 {base64.b64encode(raw).decode()} {name}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "expected one line"),
        ("ssh-ed25519 AAAA ci", "expected one line"),
        ("-----BEGIN PRIVATE KEY-----", "never hand it on"),
        (_line(bytes(range(31))), "is not the base64 of 32 bytes"),
        (_line(bytes(range(33))), "is not the base64 of 32 bytes"),
        (_line(bytes(range(32))).replace("= ci", "  ci"), "is not the base64 of 32 bytes"),
        (_line(bytes(range(32))).replace("8= ci", "9= ci"), "is not the base64 of 32 bytes"),  # bits that base64 ignores
        (_line(bytes(range(32)), "a/b"), "name 'a/b'"),
        (_line(bytes(range(32)), "../x"), "name '../x'"),
        (_line(bytes(range(32)), "ab" * 16), "looks like a key's id"),
        (_line(bytes(range(32)), "a b"), "expected one line"),
        (_line(bytes(range(32)), "x" * 5000), "expected one line"),
    ],
)
def test_what_is_no_public_key(line: str, said: str) -> None:
    with pytest.raises(KeyProblem, match=said):
        parse_public(line)


def test_a_line_comes_back() -> None:
    public = generate("ci").public
    assert parse_public(public.line()) == public == parse_public(f"  {public.line()}\n")


SMALL = sorted(point | sign << 255 for point in keys._SMALL_ORDER for sign in (0, 1))


@pytest.mark.parametrize("point", SMALL, ids=[f"{point:064x}"[-6:] + f"-{point >> 255}" for point in SMALL])
def test_keys_under_which_anybody_can_sign_are_refused(point: int) -> None:
    with pytest.raises(KeyProblem, match="no key that anybody made"):
        parse_public(_line(point.to_bytes(32, "little")))


def test_such_a_forgery_holds_where_the_key_is_accepted() -> None:
    """Why they are refused: the library does not."""
    neutral = PublicKey((1).to_bytes(32, "little"), "anybody")
    assert neutral.holds(b"anything at all", Signature(neutral.id, neutral.raw + bytes(32)))
