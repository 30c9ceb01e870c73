"""Names on a remote, the same on every kind of endpoint, and how large each thing there may be.

v1/objects/ab/<digest>      content-addressed and compressed: named by the SHA-256 of the bytes as they lie there
v1/programs/<program key>   the index object of a program: every artifact of it, written last, so that what is half uploaded is invisible
v1/records/<kind>/<name>    a named record with the objects that it needs
v1/leases/<name>            who compiles what at the moment
v1/usage/<machine>          which artifacts a machine used
v1/pins/<artifact id>       what pruning spares

Everything that comes from a remote is hostile until proven otherwise: a size is compared with a limit of this module before memory is
taken for it, and a name is made here from a checked label or digest and from nothing else.
"""

from __future__ import annotations

from precast.artifact_store.format import layout

VERSION = "v1"
OBJECTS = f"{VERSION}/objects/"
PROGRAMS = f"{VERSION}/programs/"
RECORDS = f"{VERSION}/records/"
LEASES = f"{VERSION}/leases/"
USAGE = f"{VERSION}/usage/"
PINS = f"{VERSION}/pins/"

MAX_INDEX = 16 << 20
"""Bytes of an index object or a record, compressed and not."""
MAX_ARTIFACTS = 4096
"""Artifacts that one index object names; the oldest are left out."""
MAX_MANIFEST = 64 << 20
"""Bytes of a manifest."""
MAX_BLOB = 2 << 30
"""Bytes of one blob."""
MAX_BLOBS = 4096
"""Blobs of one artifact."""
MAX_ARTIFACT = 4 << 30
"""Bytes of all blobs of one artifact."""
MAX_SIGNATURES = 16
MAX_RELATED = 512
MAX_TEXT = 512
"""Characters of a name, a target or a version."""


def object_name(stored: str) -> str:
    """Of the bytes with this SHA-256, as they lie there. Raises ValueError."""
    if not layout.is_digest(stored):
        raise ValueError(f"{stored!r} is not a SHA-256 in hex")
    return f"{OBJECTS}{stored[:2]}/{stored}"


def program_name(program_key: str) -> str:
    """Of a program's index object. Raises ValueError."""
    return PROGRAMS + _label(program_key, "program key")


def record_name(kind: str, name: str) -> str:
    """Of a named record. Raises ValueError."""
    if kind not in layout.RECORD_KINDS:
        raise ValueError(f"unknown record kind {kind!r}; known: {', '.join(layout.RECORD_KINDS)}")
    return f"{RECORDS}{kind}/{_label(name, 'record name')}"


def lease_name(name: str) -> str:
    """Of a lease. Raises ValueError."""
    return LEASES + _label(name, "lease name")


def usage_name(machine: str) -> str:
    """Of one machine's uses. Raises ValueError."""
    return USAGE + _label(machine, "machine's name")


def pin_name(artifact_id: str) -> str:
    """Of what keeps an artifact from being pruned. Raises ValueError."""
    if not layout.is_digest(artifact_id):
        raise ValueError(f"{artifact_id!r} is not an artifact id (a SHA-256 in hex)")
    return PINS + artifact_id


def key_of(name: str) -> str | None:
    """The program key in the name of an index object; None where it is another name."""
    key = name.removeprefix(PROGRAMS)
    return key if key != name and layout.is_label(key) else None


def _label(text: str, what: str) -> str:
    if not layout.is_label(text):
        raise ValueError(f"{what} {text!r}: use up to 128 letters, digits, '_', '.', '+', '-', not starting with '.'")
    return text
