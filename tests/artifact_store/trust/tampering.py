"""Every byte of what is signed, changed in turn: what notices. `python -m tests.artifact_store.trust.tampering` changes every bit of every
byte and prints the table; the tests change one bit of every byte.

An attacker who changes a bundle also makes its checksum right ("resealed"), and one who changes a manifest the checksum in it and the id
that it lies under: then only the signature is in the way.
"""

from __future__ import annotations

import hashlib
import io
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from precast.artifact_store import Manifest, RecordError, Store
from precast.artifact_store.bundle import format as bundles
from precast.artifact_store.bundle import transfer
from precast.artifact_store.bundle.format import BundleError, Reader
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.layout import blob_name, manifest_name, record_name, signature_name
from precast.artifact_store.remote import layout as remote_layout
from precast.artifact_store.remote.compress import compress, expand_within
from precast.artifact_store.remote.endpoint import EndpointError
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.trust import keyring as rings
from precast.artifact_store.trust.judge import judge_for
from precast.artifact_store.trust.signatures import Judge, manifest_statement
from precast.artifact_store.trust.trusted import LOCAL, Policy
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.artifact_store.sample import make
from tests.artifact_store.trust.known_keys import known_key

CI = known_key("ci")
RING = rings.add(rings.EMPTY, CI.public)
SIGNED = judge_for("signed", keyring=lambda: RING)
RECORD = ("native", "x86")
Bits = Callable[[int], Iterable[int]]
"""Which bits of the byte at a position are changed."""


def all_bits(_: int) -> Iterable[int]:
    return range(8)


def one_bit(position: int) -> Iterable[int]:
    """Another one at each position."""
    return (position * 5 % 8,)


def changed(data: bytes, bits: Bits) -> Iterator[bytes]:
    """The bytes with one bit changed, for each position and bit."""
    for position in range(len(data)):
        for bit in bits(position):
            yield data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def signed_store(root: Path) -> tuple[Store, Manifest]:
    """One artifact and one record, both signed, in a store that asks for signatures."""
    store = Store(root, policy=Policy(LOCAL.kinds, SIGNED))
    manifest, blobs = make(0)
    store.put(manifest, blobs)
    library = b"native library"
    store.put_record(
        *RECORD,
        {"library": hashlib.sha256(library).hexdigest(), "blobs": [hashlib.sha256(library).hexdigest()]},
        {hashlib.sha256(library).hexdigest(): library},
    )
    store.sign(manifest, CI)
    store.sign_record(*RECORD, CI)
    assert len(store.trusted_variants(manifest.program_key)) == 1 and store.trusted_record(*RECORD) is not None
    return store, manifest


# -- bundles


def bundle(folder: Path) -> bytes:
    """A small one."""
    store, manifest = signed_store(folder / "store")
    transfer.export(store, folder / "bundle", [manifest], [RECORD])
    return (folder / "bundle").read_bytes()


def resealed(data: bytes) -> bytes:
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


Content = tuple[bytes, tuple[tuple[str, bytes], ...]]


def read(data: bytes, judge: Judge) -> Content:
    """What an import would take in. Raises BundleError, RecordError and Untrusted, the first thing that is in the way."""
    file = io.BytesIO(data)
    bundles.checked(file, "bundle")
    reader = Reader(file, "bundle")
    if refused := transfer.refusals(reader.index, judge):
        raise Untrusted(next(iter(refused.values())))
    return reader.index.to_bytes(), tuple(reader.blobs())


def outcome(data: bytes, wanted: Content) -> str:
    """What notices a change of a bundle: "accepted" is the one answer that must never come."""
    try:
        content = read(data, SIGNED)
    except Untrusted:
        return "refused by signature"
    except (BundleError, RecordError) as error:
        return "refused by checksum" if "its checksum: it was" in str(error) else "refused by form or digest"
    return "the very same content" if content == wanted else "accepted"


def of_bundles(folder: Path, bits: Bits, sealed: bool) -> Counter[str]:
    data = bundle(folder)
    wanted = read(data, SIGNED)
    return Counter(outcome(resealed(other) if sealed else other, wanted) for other in changed(data, bits))


def of_bundle_indexes(folder: Path, bits: Bits) -> Counter[str]:
    """Each byte of a bundle's index as it is before it is compressed, and the bundle's checksum made right."""
    data = bundle(folder)
    wanted, end = read(data, SIGNED), 24 + int.from_bytes(data[16:24], "little")
    counts = Counter[str]()
    for other in changed(expand_within(data[24:end], 1 << 20, "index"), bits):
        packed = compress(other)
        counts[outcome(resealed(data[:16] + len(packed).to_bytes(8, "little") + packed + data[end:]), wanted)] += 1
    return counts


# -- files of a store


def of_files(folder: Path, bits: Bits) -> dict[str, Counter[str]]:
    """Each kind of file of a store whose policy asks for signatures."""
    store, manifest = signed_store(folder)
    document, record = manifest_name(manifest.program_key, manifest.artifact_id), record_name(*RECORD)
    blob = blob_name(manifest.graphs["forward"].library)

    def artifact_served() -> bool:
        return bool(_fresh(folder).trusted_variants(manifest.program_key))

    def record_served() -> bool:
        try:
            return _fresh(folder).trusted_record(*RECORD) is not None
        except Untrusted:
            return False

    def blob_served() -> bool:
        fresh = _fresh(folder)
        (found,) = fresh.trusted_variants(manifest.program_key)
        return fresh.trusted_file(found.part(lambda one: one.graphs["forward"].library)) is not None

    kinds: dict[str, tuple[str, Callable[[], bool]]] = {
        "manifest": (document, artifact_served),
        "its signatures": (signature_name(document), artifact_served),
        "record": (record, record_served),
        "its signatures ": (signature_name(record), record_served),
        "blob": (blob, blob_served),
    }
    return {kind: _of_file(store.path(name), bits, served) for kind, (name, served) in kinds.items()}


def _of_file(path: Path, bits: Bits, served: Callable[[], bool]) -> Counter[str]:
    right, counts = path.read_bytes(), Counter[str]()
    for other in changed(right, bits):
        path.unlink(missing_ok=True)
        path.write_bytes(other)
        counts["accepted" if served() else "refused"] += 1
    path.unlink(missing_ok=True)
    path.write_bytes(right)
    assert served()
    return counts


def of_sealed_manifests(folder: Path, bits: Bits) -> Counter[str]:
    """Each byte of a manifest's sections, with a right checksum, under its right id, and with the signatures beside it."""
    store, manifest = signed_store(folder)
    signatures = store.path(signature_name(manifest_name(manifest.program_key, manifest.artifact_id))).read_bytes()
    counts = Counter[str]()
    for number in range(4):
        for other in changed(manifest._sections[number], bits):
            forged = Manifest(*(other if i == number else section for i, section in enumerate(manifest._sections)))
            # the signatures' own note of the checksum is made right as well
            beside = signatures.replace(manifest.checksum.encode(), forged.checksum.encode())
            name = manifest_name(manifest.program_key, forged.artifact_id)
            store.path(name).write_bytes(forged.to_bytes())
            store.path(signature_name(name)).write_bytes(beside)
            found = {one.digest for one in _fresh(folder).trusted_variants(manifest.program_key)}
            counts["accepted" if forged.checksum in found else "refused"] += 1
            store.path(name).unlink(missing_ok=True)
            store.path(signature_name(name)).unlink(missing_ok=True)
    return counts


# -- remotes


def of_remotes(bits: Bits, sealed: bool) -> Counter[str]:
    """Each byte of each object on a remote, fetched as a miss would. `sealed`: of the index as it is before it is compressed, instead."""
    endpoint = MemoryEndpoint()
    tier, (manifest, blobs) = Remote(endpoint, judge=SIGNED), make(0)
    tier.publish(manifest, blobs.__getitem__, [CI.sign(_statement(manifest))])
    right, counts = {name: data for name, (data, _) in endpoint.content.items()}, Counter[str]()
    index = remote_layout.program_name(manifest.program_key)
    for name in (index,) if sealed else sorted(right):
        start = expand_within(right[name], 1 << 20, name) if sealed else right[name]
        for other in changed(start, bits):
            endpoint.put(name, compress(other) if sealed else other)
            counts[_fetched(tier, manifest, blobs)] += 1
        endpoint.put(name, right[name])
    assert _fetched(tier, manifest, blobs) == "the very same content"
    return counts


def _statement(manifest: Manifest) -> bytes:
    return manifest_statement(manifest.program_key, manifest.artifact_id, manifest.checksum)


def _fetched(tier: Remote, manifest: Manifest, blobs: Mapping[str, bytes]) -> str:
    try:
        index = tier.index(manifest.program_key)
        if index is None or not index.entries:
            return "nothing found"
        found = tier.fetch(manifest.program_key, index.entries[0])
    except Untrusted:
        return "refused by signature"
    except (RecordError, EndpointError):
        return "refused by form or digest"
    same = found.manifest.to_bytes() == manifest.to_bytes() and found.blobs == blobs
    return "the very same content" if same else "accepted"


def _fresh(root: Path) -> Store:
    """As another process would open it."""
    return Store(root, policy=Policy(LOCAL.kinds, SIGNED))


def main() -> None:
    logging.disable()
    started, rows = time.monotonic(), list[tuple[str, Counter[str]]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("a", "b", "c", "d"):
            (folder / part).mkdir()
        rows.append(("bundle", of_bundles(folder / "a", all_bits, False)))
        rows.append(("bundle, its checksum made right", of_bundles(folder / "b", all_bits, True)))
        (folder / "e").mkdir()
        rows.append(("index of a bundle, before it is compressed", of_bundle_indexes(folder / "e", all_bits)))
        rows += of_files(folder / "c", all_bits).items()
        rows.append(("manifest, checksum, id and note made right", of_sealed_manifests(folder / "d", all_bits)))
    rows.append(("objects of a remote", of_remotes(all_bits, False)))
    rows.append(("index of a remote, before it is compressed", of_remotes(all_bits, True)))
    print("| what is changed | changes | accepted | what noticed |\n|---|---|---|---|")
    for kind, counts in rows:
        noticed = ", ".join(f"{what}: {count}" for what, count in sorted(counts.items()) if what != "accepted")
        print(f"| {kind.strip()} | {sum(counts.values())} | {counts['accepted']} | {noticed} |")
    print(f"{sum(sum(counts.values()) for _, counts in rows)} changes in {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
