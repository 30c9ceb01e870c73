"""Bundles: what goes in comes out, one content has one form, and what is no bundle is refused with a sentence."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.artifact_store import Store
from precast.artifact_store.bundle import transfer
from precast.artifact_store.bundle.format import BundleError
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.remote.compress import compress
from precast.artifact_store.trust import keyring as rings
from precast.artifact_store.trust.judge import KeyringJudge, judge_for
from tests.artifact_store.sample import complete, fill, make, snapshot
from tests.artifact_store.trust.known_keys import known_key
from tests.support.needs import needs

needs("zstandard")
CI = known_key("ci")
RING = rings.add(rings.EMPTY, CI.public)
SIGNED = judge_for("signed", keyring=lambda: RING)
ANYTHING = judge_for("any", keyring=lambda: rings.EMPTY)


def written(folder: Path, count: int = 2, signed: bool = True) -> Path:
    """A bundle of so many artifacts and one record."""
    store, _ = fill(folder / "from", count)
    store.put_record("native", "x86", {"library": "", "blobs": []})
    transfer.export(store, folder / "bundle", store.manifests(), store.records(), CI if signed else None)
    return folder / "bundle"


def kept(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(root).items() if not name.startswith(("format", "CACHEDIR"))}


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    path, target = written(tmp_path), Store.open(tmp_path / "to")
    done = transfer.take_in(target, path, SIGNED)
    assert (done.artifacts, done.records, done.blobs, done.refused) == (2, 1, 4, {})
    source = Store.open(tmp_path / "from")
    assert {one.to_bytes() for one in target.manifests()} == {one.to_bytes() for one in source.manifests()}
    assert all(complete(target, one) for one in target.manifests())
    assert [one.key for manifest in target.manifests() for one in target.signatures(manifest)] == [CI.public.id] * 2
    assert [one.key for one in target.record_signatures("native", "x86")] == [CI.public.id]
    strict = Store.open(tmp_path / "to")
    strict._policy = transfer_policy()
    assert len(strict.trusted_variants("model-0123abcd")) == 2


def transfer_policy() -> object:
    from precast.artifact_store.trust.trusted import LOCAL, Policy

    return Policy(LOCAL.kinds, SIGNED)


def test_twice_is_once(tmp_path: Path) -> None:
    path, target = written(tmp_path), Store.open(tmp_path / "to")
    transfer.take_in(target, path, SIGNED)
    before = kept(target.root)
    done = transfer.take_in(target, path, SIGNED)
    assert (done.artifacts, done.there) == (0, 2) and kept(target.root) == before


def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the order in which it was stored, by whomever and when."""
    (tmp_path / "a").mkdir()
    one = written(tmp_path / "a").read_bytes()
    store = Store.open(tmp_path / "b")
    store.put_record("native", "x86", {"library": "", "blobs": []})
    for number in (1, 0):
        store.put(*make(number))
    os.utime(store.root / "objects", (1, 1))
    transfer.export(store, tmp_path / "again", reversed(list(store.manifests())), store.records(), CI)
    assert (tmp_path / "again").read_bytes() == one
    back = Store.open(tmp_path / "c")
    transfer.take_in(back, tmp_path / "again", SIGNED)
    transfer.export(back, tmp_path / "third", back.manifests(), back.records())
    assert (tmp_path / "third").read_bytes() == one


def test_no_path_host_or_time_is_in_it(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    assert str(tmp_path).encode() not in data and os.uname().nodename.encode() not in data


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (judge_for("signed", keyring=lambda: rings.EMPTY), "which is unknown here"),
        (judge_for("by:release", keyring=lambda: rings.add(RING, known_key("release").public)), "only release may sign"),
        (judge_for("signed", keyring=lambda: rings.revoke_key(RING, "ci")), "was revoked here"),
    ],
)
def test_all_or_nothing(judge: KeyringJudge, said: str, tmp_path: Path) -> None:
    path, target = written(tmp_path), Store.open(tmp_path / "to")
    done = transfer.take_in(target, path, judge)
    assert len(done.refused) == 3 and all(said in why for why in done.refused.values())
    assert not target.exists()


def test_one_that_is_not_signed_keeps_all_out(tmp_path: Path) -> None:
    store, (first, _) = fill(tmp_path / "from", 2)
    manifest = store.get(first)
    assert manifest is not None
    store.sign(manifest, CI)
    transfer.export(store, tmp_path / "bundle", store.manifests(), [])
    target = Store.open(tmp_path / "to")
    done = transfer.take_in(target, tmp_path / "bundle", SIGNED)
    assert list(done.refused.values()) and "it is not signed" in next(iter(done.refused.values())) and not target.exists()
    assert transfer.take_in(target, tmp_path / "bundle", ANYTHING).artifacts == 2


def test_another_build_here_stays(tmp_path: Path) -> None:
    """Unless it is damaged."""
    path = written(tmp_path, count=1)
    target = Store.open(tmp_path / "to")
    manifest, blobs = make(0, provenance={"source": "built here"})
    target.put(manifest, blobs)
    assert transfer.take_in(target, path, SIGNED).kept == 1
    here = target.get(manifest.artifact_id)
    assert here is not None and here.checksum == manifest.checksum
    for blob in (target.root / "objects").rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert transfer.take_in(Store.open(tmp_path / "to"), path, SIGNED).kept == 1  # the bundle's blobs are the same, and mend it
    here = Store.open(tmp_path / "to").get(manifest.artifact_id)
    assert here is not None and complete(target, here)


def test_a_record_of_this_machine_stays(tmp_path: Path) -> None:
    path, target = written(tmp_path), Store.open(tmp_path / "to")
    target.put_record("native", "x86", {"library": "mine", "blobs": []})
    transfer.take_in(target, path, SIGNED)
    assert target.record("native", "x86") == {"library": "mine", "blobs": ()}


def test_a_bundle_of_what_is_damaged_is_not_written(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "from")
    blob = next(path for path in (store.root / "objects").rglob("*") if path.is_file())
    blob.chmod(0o600)
    blob.write_bytes(b"other")
    with pytest.raises(BundleError, match="is missing or damaged"):
        transfer.export(store, tmp_path / "bundle", store.manifests(), [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from"]


def test_an_import_that_was_cut_off_leaves_nothing_visible_and_goes_on(tmp_path: Path) -> None:
    path, target = written(tmp_path), Store.open(tmp_path / "to")

    def dies(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.take_in(target, path, SIGNED, dies)
    assert list(target.manifests()) == [] and len(list((target.root / "objects").rglob("*"))) == 2
    assert transfer.take_in(target, path, SIGNED).artifacts == 2


# -- hostile ones


def resealed(data: bytes) -> bytes:
    """With the checksum that an attacker would put at its end."""
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def with_index(path: Path, change: Callable[[list[list[object]]], object]) -> bytes:
    """The bundle with another index, and its checksum made right."""
    data = path.read_bytes()
    size = int.from_bytes(data[16:24], "little")
    from precast.artifact_store.remote.compress import expand_within

    index = [list(part) for part in unpack(expand_within(data[24 : 24 + size], 1 << 20, "x"))]
    changed = change(index)
    packed = compress(changed if isinstance(changed, bytes) else pack(index if changed is None else changed))
    return resealed(data[:16] + len(packed).to_bytes(8, "little") + packed + data[24 + size :])


def _swap(part: int) -> Callable[[list[list[object]]], object]:
    return lambda index: index[part].reverse()


def _append(part: int, item: object) -> Callable[[list[list[object]]], object]:
    return lambda index: index[part].append(item)


def _replace(part: int, item: object) -> Callable[[list[list[object]]], object]:
    return lambda index: index[part].__setitem__(0, item)


ZERO = "00" * 32
HOSTILE = {
    "no list": lambda index: {"a": 1},
    "two parts": lambda index: index[:2],
    "parts of texts": lambda index: ["a", "b", "c"],
    "artifacts in another order": _swap(0),
    "blobs in another order": _swap(2),
    "an artifact twice": lambda index: index[0].append(index[0][0]),
    "a blob twice": lambda index: index[2].append(index[2][0]),
    "a blob that nothing names": _append(2, [ZERO, 3]),
    "a blob left out": lambda index: index[2].pop(),
    "a blob with a path": _replace(2, ["../../../etc/passwd", 3]),
    "a blob larger than any": _replace(2, [ZERO, 1 << 40]),
    "a blob of another size": lambda index: index[2].__setitem__(0, [index[2][0][0], 7]),  # type: ignore[index]
    "a blob of negative size": _replace(2, [ZERO, -1]),
    "a record with a path": _append(1, ["native", "../../x", b"", []]),
    "a record of no kind": _append(1, ["objects", "x", b"", []]),
    "an artifact that is none": _append(0, [b"", []]),
    "an artifact of text": _append(0, ["manifest", []]),
    "signatures of text": lambda index: index[0][0].__class__ and index[0].__setitem__(0, [index[0][0][0], "sig"]),  # type: ignore[index]
    "deep": lambda index: b"\x91" * 100_000 + b"\x90",
    "a bomb of lists": lambda index: b"\xdd\xff\xff\xff\xff",
    "a bomb of bytes": lambda index: b"\xc6\xff\xff\xff\xff",
    "an extension": lambda index: b"\xd4\x00\x00",
    "not canonical": lambda index: b"\xdc\x00\x03" + pack(index)[1:],
    "more behind it": lambda index: pack(index) + b"\xc0",
    "nothing": lambda index: b"",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_indexes(case: str, tmp_path: Path) -> None:
    path, target = written(tmp_path), Store.open(tmp_path / "to")
    path.write_bytes(with_index(path, HOSTILE[case]))
    with pytest.raises(BundleError):
        transfer.take_in(target, path, ANYTHING)
    assert not target.exists()


def _frame(size: int) -> bytes:
    """A frame that says it holds `size` bytes, and has none."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


def _bomb(stated: bool) -> bytes:
    """A frame of 512 MiB of zeros in 16 KiB. `stated`: its header says so."""
    header = b"\x28\xb5\x2f\xfd" + (b"\x80\x58" + (512 << 20).to_bytes(4, "little") if stated else b"\x00\x58")
    blocks = [((1 << 17) << 3 | 1 << 1 | (number == 4095)).to_bytes(3, "little") + b"\0" for number in range(4096)]
    return header + b"".join(blocks)


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "another file": lambda data: b"PK\x03\x04" + data[4:],
    "format 0": lambda data: resealed(data[:15] + b"\0" + data[16:]),
    "a newer format": lambda data: resealed(data[:15] + b"\2" + data[16:]),
    "more behind it": lambda data: data + b"x",
    "more before its end": lambda data: resealed(data[:-32] + b"x" + data[-32:]),
    "an index without end": lambda data: resealed(data[:16] + b"\xff" * 8 + data[24:]),
    "an index of 4 GiB that is not there": lambda data: resealed(data[:16] + (255 << 20).to_bytes(8, "little") + data[24:]),
    "an index that expands to much": lambda data: resealed(data[:16] + len(_bomb(True)).to_bytes(8, "little") + _bomb(True) + bytes(64)),
    "one that does not say so": lambda data: resealed(data[:16] + len(_bomb(False)).to_bytes(8, "little") + _bomb(False) + bytes(64)),
    "an index that says it is endless": lambda data: resealed(data[:16] + (17).to_bytes(8, "little") + _frame(1 << 60) + bytes(64)),
    **{f"cut off after {length}": (lambda data, length=length: data[:length]) for length in (1, 15, 16, 20, 24, 100, 700, 900, -33, -1)},  # type: ignore[misc]
    **{
        f"cut off after {length} and sealed": (lambda data, length=length: resealed(data[:length] + bytes(32))) for length in (24, 100, 900)
    },  # type: ignore[misc]
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_bundles(case: str, tmp_path: Path) -> None:
    path, target = written(tmp_path), Store.open(tmp_path / "to")
    path.write_bytes(MALFORMED[case](path.read_bytes()))
    with pytest.raises(BundleError):
        transfer.take_in(target, path, ANYTHING)
    assert list(target.manifests()) == [] and not (target.root / "programs").exists()


@pytest.mark.parametrize("make_one", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file(make_one: Callable[[Path], None], tmp_path: Path) -> None:
    make_one(tmp_path / "bundle")
    with pytest.raises(BundleError, match="is no file|cannot be read"):
        transfer.take_in(Store.open(tmp_path / "to"), tmp_path / "bundle", ANYTHING)


def test_a_blob_that_expands_to_more_than_it_says(tmp_path: Path) -> None:
    """Its frame is replaced by one of zeros."""
    path, target = written(tmp_path, count=1), Store.open(tmp_path / "to")
    data = path.read_bytes()
    start = 24 + int.from_bytes(data[16:24], "little")
    old = int.from_bytes(data[start : start + 8], "little")
    for frame in (compress(bytes(100_000)), _frame(1 << 50), _bomb(True), _bomb(False), compress(b"")):
        changed = data[:start] + len(frame).to_bytes(8, "little") + frame + data[start + 8 + old :]
        path.write_bytes(resealed(changed))
        with pytest.raises(BundleError, match="were to come|takes|compressed"):
            transfer.take_in(target, path, SIGNED)
    assert list(target.manifests()) == []


def test_another_blob_of_the_same_size(tmp_path: Path) -> None:
    """Only its digest tells."""
    path, target = written(tmp_path, count=1), Store.open(tmp_path / "to")
    data = path.read_bytes()
    start = 24 + int.from_bytes(data[16:24], "little")
    old = int.from_bytes(data[start : start + 8], "little")
    manifest = next(iter(Store.open(tmp_path / "from").manifests()))
    frame = compress(b"x" * manifest.blobs[min(manifest.blobs)])
    path.write_bytes(resealed(data[:start] + len(frame).to_bytes(8, "little") + frame + data[start + 8 + old :]))
    with pytest.raises(BundleError, match="does not match its digest"):
        transfer.take_in(target, path, SIGNED)
    assert list(target.manifests()) == []


def test_a_blob_that_nothing_names(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(with_index(path, lambda index: index[2].insert(0, [ZERO, 3])))
    with pytest.raises(BundleError, match="its blobs are not those that its artifacts and records name"):
        transfer.take_in(Store.open(tmp_path / "to"), path, ANYTHING)
