"""Names inside a store. A name is a relative, forward-slash path; every tier (folder, URL) uses the same ones.

format                                          layout version, one line of text
objects/ab/abcd…                                blobs by SHA-256, read-only
programs/<program key>/<artifact id>.msgpack    manifests, written last; beside one, <artifact id>.sig: who signed it
tuning/<name>.msgpack  native/<name>.msgpack    small named records (measured choices; the native dispatcher per Python; what a GPU's
  skips/<name>.msgpack  ptx/<name>.msgpack       driver made of PTX)
pins/<artifact id>  pins/program.<program key>  what is never pruned, each with a note (`maintenance/pins.py`)
index/  leases/  quarantine/  statistics/       local only, never copied to another tier
"""

from __future__ import annotations

import re

ENVIRONMENT = "PRECAST_STORE"
"""The environment variable that names the store's folder."""
TRUST_POLICY = "PRECAST_TRUST_POLICY"
"""That which says whose signatures what is in a local store needs."""
LAYOUT_VERSION = 1
FORMAT_FILE = "format"
MANIFEST_SUFFIX = ".msgpack"
SIGNATURE_SUFFIX = ".sig"
RECORD_KINDS = ("tuning", "native", "skips", "ptx")
OBJECTS, PROGRAMS = "objects", "programs"
PINS = "pins"
INDEX, LEASES, QUARANTINE = "index", "leases", "quarantine"
LOCAL_FOLDERS = (INDEX, LEASES, QUARANTINE)
STATISTICS = "statistics"
"""What processes count (`artifact_store/statistics/sheets.py`): made when the first of them writes."""
SHARED_FOLDERS = (OBJECTS, PROGRAMS, *RECORD_KINDS, PINS)
TAG_FILE = "CACHEDIR.TAG"
CACHEDIR_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a precast store: compiled artifacts that can be rebuilt.\n"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")


def is_digest(text: object) -> bool:
    """Whether `text` is a full lower-case SHA-256."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def is_label(text: object) -> bool:
    """Whether `text` may be a program key or record name: it becomes a file name, so no separators and no leading dot."""
    return isinstance(text, str) and _LABEL.fullmatch(text) is not None


def printable(name: str) -> str:
    """A file's name that can be shown and sent: what is no text in it as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def blob_name(digest: str) -> str:
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is not a SHA-256 in hex")
    return f"{OBJECTS}/{digest[:2]}/{digest}"


def program_folder(program_key: str) -> str:
    return f"{PROGRAMS}/{program_key}"


def manifest_name(program_key: str, artifact_id: str) -> str:
    if not is_label(program_key):
        raise ValueError(f"program key {program_key!r}: use up to 128 letters, digits, '_', '.', '+', '-', not starting with '.'")
    if not is_digest(artifact_id):
        raise ValueError(f"{artifact_id!r} is not an artifact id (a SHA-256 in hex)")
    return f"{program_folder(program_key)}/{artifact_id}{MANIFEST_SUFFIX}"


def record_name(kind: str, name: str) -> str:
    if kind not in RECORD_KINDS:
        raise ValueError(f"unknown record kind {kind!r}; known: {', '.join(RECORD_KINDS)}")
    if not is_label(name):
        raise ValueError(f"record name {name!r}: use up to 128 letters, digits, '_', '.', '+', '-', not starting with '.'")
    return f"{kind}/{name}{MANIFEST_SUFFIX}"


def signature_name(document: str) -> str:
    """Of the signatures of a manifest or record with this name."""
    return f"{document.removesuffix(MANIFEST_SUFFIX)}{SIGNATURE_SUFFIX}"
