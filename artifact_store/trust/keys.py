"""Keys: ed25519 (RFC 8032) through the package cryptography, which is imported when something is signed or compared, and not before.

A public key is one line, `precast-ed25519 <base64 of its 32 bytes> <name>`; a private key is a PEM file (PKCS#8), with a passphrase or
without. A key's id is the first 32 hex digits of the SHA-256 of its 32 bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.trust.signatures import Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "precast-ed25519"
ENVIRONMENT = "PRECAST_SIGNING_KEY"
PASSPHRASE = "PRECAST_SIGNING_PASSPHRASE"
KEY_BYTES, SIGNATURE_BYTES, ID_DIGITS = 32, 64, 32
LONGEST_LINE = 4096
LARGEST_FILE = 16384

_P = 2**255 - 19
_SMALL_ORDER = frozenset(
    {
        *(0, 1, _P - 1, _P, _P + 1),
        int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
        int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
    }
)
"""The points whose order divides 8, without their sign. Under such a key somebody without any private key can make signatures."""


class KeyProblem(StoreError):
    """A key that cannot be used. The message says which, why and what to do."""


@dataclass(frozen=True)
class PublicKey:
    """`raw`: its 32 bytes; `name`: what whoever trusts it calls it."""

    raw: bytes
    name: str

    @property
    def id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:ID_DIGITS]

    def line(self) -> str:
        """As it is handed to others, and as it stands in a keyring."""
        return f"{ALGORITHM} {base64.b64encode(self.raw).decode()} {self.name}"

    def holds(self, statement: bytes, signature: Signature) -> bool:
        """Whether this key signed exactly this statement. Raises KeyProblem where the package cryptography is missing."""
        if signature.key != self.id or len(signature.value) != SIGNATURE_BYTES:
            return False
        invalid, ed25519 = require_cryptography()
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature.value, statement)
        except invalid:
            return False
        return True


def parse_public(line: str, where: str = "key") -> PublicKey:
    """The key in such a line. Raises KeyProblem."""
    words = line.split()
    if len(line) > LONGEST_LINE or len(words) != 3 or words[0] != ALGORITHM:
        hint = " (this is a private key: never hand it on)" if "PRIVATE KEY" in line else ""
        raise KeyProblem(f"{where}: expected one line `{ALGORITHM} <base64> <name>`, which `precast keygen` prints{hint}")
    try:
        raw = base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != KEY_BYTES or base64.b64encode(raw).decode() != words[1]:
        raise KeyProblem(f"{where}: {words[1][:60]!r} is not the base64 of {KEY_BYTES} bytes")
    if int.from_bytes(raw, "little") % 2**255 in _SMALL_ORDER:
        raise KeyProblem(f"{where}: this is no key that anybody made: signatures of such a key can be made without a private key")
    return PublicKey(raw, check_name(words[2], where))


def check_name(name: str, where: str = "key") -> str:
    """The name, where a key may be called so. Raises KeyProblem."""
    if not layout.is_label(name) or is_key_id(name):
        raise KeyProblem(
            f"{where}: name {name[:60]!r}: use up to 128 letters, digits, '_', '.', '+', '-', and not what looks like a key's id"
        )
    return name


def is_key_id(text: object) -> bool:
    """Whether `text` has the form of a key's id."""
    return isinstance(text, str) and len(text) == ID_DIGITS and set(text) <= set("0123456789abcdef")


class PrivateKey:
    """Signs statements (`signatures.Signer`). Its text shows the public half only."""

    def __init__(self, key: Ed25519PrivateKey, name: str) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw(), check_name(name))

    def __repr__(self) -> str:
        return f"<PrivateKey of {self.public.id} {self.public.name}>"

    def sign(self, statement: bytes) -> Signature:
        return Signature(self.public.id, self._key.sign(statement))


def generate(name: str) -> PrivateKey:
    """A new key. Raises KeyProblem."""
    return PrivateKey(require_cryptography()[1].Ed25519PrivateKey.generate(), name)


def to_pem(key: PrivateKey, passphrase: str = "") -> bytes:
    """PKCS#8 in PEM, encrypted where a passphrase is given."""
    from cryptography.hazmat.primitives import serialization

    protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        protection = serialization.BestAvailableEncryption(passphrase.encode())
    return key._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)


def from_pem(pem: bytes, name: str, where: str, passphrase: str = "") -> PrivateKey:
    """The private key in a PEM text. Raises KeyProblem, without showing anything of the text."""
    _, ed25519 = require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    encrypted = b"ENCRYPTED" in pem
    if encrypted and not passphrase:
        raise KeyProblem(f"{where}: the key has a passphrase: set {PASSPHRASE}")
    try:
        key = load_pem_private_key(pem, passphrase.encode() if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = f"the passphrase in {PASSPHRASE} does not open it, or it is damaged" if encrypted else "it is no private key in PEM (PKCS#8)"
        raise KeyProblem(f"{where}: {why}; `precast keygen` makes one") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise KeyProblem(f"{where}: it is no ed25519 key; `precast keygen` makes one")
    return PrivateKey(key, name)


def write_private(key: PrivateKey, path: Path, passphrase: str = "") -> None:
    """A new file that its user alone can read (mode 0600). Raises KeyProblem, also where something has this name."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(to_pem(key, passphrase))
    except FileExistsError as error:
        raise KeyProblem(f"{path}: there is a file already, and a key is never written over; name another with -o") from error
    except OSError as error:
        raise KeyProblem(f"{path}: cannot be written ({error.strerror})") from error


def read_private(path: Path, passphrase: str = "") -> PrivateKey:
    """The key in a file, named by the `.pub` beside it, else by the file. Raises KeyProblem."""
    try:
        pem = _read(path)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise KeyProblem(f"signing key {path}: cannot be read ({error.strerror}); `precast keygen -o {path}` makes one") from error
    if mode & 0o077 and os.stat(path).st_uid == os.geteuid():
        raise KeyProblem(f"signing key {path}: others can read it (mode {mode:o}): chmod 600 {path}")
    key = from_pem(pem, "key", f"signing key {path}", passphrase)
    return PrivateKey(key._key, _name_beside(path, key.public.raw))


def _name_beside(path: Path, raw: bytes) -> str:
    try:
        public = parse_public(_read(Path(f"{path}.pub")).decode("ascii"), f"{path}.pub")
        if public.raw == raw:
            return public.name
    except (OSError, KeyProblem, UnicodeDecodeError):
        pass  # a name is for people: the file's does as well
    return path.stem if layout.is_label(path.stem) and not is_key_id(path.stem) else "key"


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(LARGEST_FILE)


def signer_from_environment() -> PrivateKey | None:
    """The key that PRECAST_SIGNING_KEY holds, a PEM text or a path; None where it is not set or empty. Raises KeyProblem."""
    value = os.environ.get(ENVIRONMENT, "").strip()
    if not value:
        return None
    passphrase = os.environ.get(PASSPHRASE, "")
    if "-----BEGIN" not in value:
        return read_private(Path(value).expanduser(), passphrase)
    if "\n" not in value:
        value = value.replace("\\n", "\n")  # what secret stores make of line ends
    return from_pem(value.encode(), "ci", ENVIRONMENT, passphrase)


def require_cryptography() -> tuple[type[Exception], ModuleType]:
    """What an invalid signature raises, and the module that makes and compares them. Raises KeyProblem where it is not installed."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise KeyProblem(f"signatures need the package cryptography ({error}): pip install 'precast[remote]'") from error
    return InvalidSignature, ed25519
