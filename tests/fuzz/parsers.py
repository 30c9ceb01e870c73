"""Every parser of what may come from elsewhere, as one table: what it is given, and what it may answer.

A parser may raise what its row names and nothing else, may not follow a path out of where it is, and has to end soon, with little memory.
Where a checksum is in the way of a change, the row makes it right ("sealed"): so would an attacker. `test_parsers.py` draws inputs in
every run of the tests, `coverage_guided.py` looks for more of them for as long as it is told.
"""

from __future__ import annotations

import functools
import hashlib
import io
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.artifact_store import Manifest, RecordError, Store, StoreError
from precast.artifact_store.bundle import format as bundles
from precast.artifact_store.bundle import transfer
from precast.artifact_store.format.msgpack import digest, pack, unpack
from precast.artifact_store.local import machine_uses, size_limit
from precast.artifact_store.local.leases import identity, is_dead
from precast.artifact_store.maintenance.pins import pin_of
from precast.artifact_store.named_records import parse as parse_record
from precast.artifact_store.remote import settings
from precast.artifact_store.remote.compress import compress, expand_within
from precast.artifact_store.remote.endpoint import EndpointError, TimeOuts
from precast.artifact_store.remote.endpoints import redis
from precast.artifact_store.remote.endpoints.http import HttpEndpoint
from precast.artifact_store.remote.endpoints.url import checked
from precast.artifact_store.remote.endpoints.url import parse as parse_url
from precast.artifact_store.remote.endpoints.webdav import listed
from precast.artifact_store.remote.endpoints.wire import Wire
from precast.artifact_store.remote.layout import key_of
from precast.artifact_store.remote.leases import Holder, holder_of
from precast.artifact_store.remote.oci.image import Layer, image_manifest, parse_image
from precast.artifact_store.remote.oci.reference import parse_reference
from precast.artifact_store.remote.program_index import Entry, ProgramIndex, packed_object
from precast.artifact_store.remote.remote_record import RemoteRecord
from precast.artifact_store.statistics import recorded_calls, sheets
from precast.artifact_store.trust import keyring as rings
from precast.artifact_store.trust.judge import judge_for, parse_demand
from precast.artifact_store.trust.keys import from_pem, parse_public, to_pem
from precast.artifact_store.trust.signature_file import pack_signatures, parse_signatures
from tests.artifact_store.sample import make
from tests.artifact_store.trust.known_keys import known_key

KEY = known_key("ci")
ANYTHING = judge_for("any", keyring=lambda: rings.EMPTY)


@dataclass(frozen=True)
class Parser:
    """`parse`: raises one of `expected` for what it refuses; `seeds`: what it accepts; `form`: how else than by bytes these are changed."""

    parse: Callable[[bytes], object]
    expected: tuple[type[BaseException], ...]
    seeds: tuple[bytes, ...]
    form: str = "bytes"


# -- documents of the store


def manifest(data: bytes) -> None:
    """Everything that is read of one, as `verify`, `show` and a remote's fetch do."""
    read = Manifest.from_bytes(data, "manifest")
    read.check()
    assert Manifest.from_bytes(read.to_bytes()).checksum == read.checksum
    _ = (
        read.target,
        read.versions,
        read.options,
        read.waived,
        read.digests,
        read.frames,
        read.graphs,
        read.blobs,
        read.evidence,
        str(read),
    )


def sealed_manifest(data: bytes) -> None:
    """Its four sections, with the checksum made right."""
    sections = unpack(data, "sections")
    if type(sections) is tuple and len(sections) == 4 and all(type(section) is bytes for section in sections):
        manifest(Manifest(*sections).to_bytes())


def sealed_sections(data: bytes) -> None:
    """The values of its four sections."""
    sections = unpack(data, "sections")
    if type(sections) is tuple and len(sections) == 4:
        try:
            packed = [pack(section) for section in sections]
        except (RecursionError, TypeError):
            return  # which nobody's pack writes: `sealed_manifest` has the bytes
        manifest(Manifest(*packed).to_bytes())


def sealed_record(data: bytes) -> None:
    """A named record with its checksum made right."""
    parse_record(pack(["precast-record-1", digest(data), data]), "record")


def signatures(data: bytes) -> None:
    parse_signatures(data, "signatures")


# -- bundles


def sealed_bundle(data: bytes) -> None:
    """Read to its end, its checksum made right."""
    body = data[:-32] if len(data) > 32 else data
    file = io.BytesIO(body + hashlib.sha256(body).digest())
    bundles.checked(file, "bundle")
    reader = bundles.Reader(file, "bundle")
    transfer.refusals(reader.index, ANYTHING)
    for name, content in reader.blobs():
        assert digest(content) == name


def bundle_index(data: bytes) -> None:
    """What is accepted is what would be written."""
    assert bundles.parse_index(data, "bundle").to_bytes() == data


# -- remotes


def compressed(data: bytes) -> None:
    assert len(expand_within(data, 1 << 16, "object")) <= 1 << 16


def program_index(data: bytes) -> None:
    read = ProgramIndex.from_bytes(compress(data), "model-0123abcd")
    assert ProgramIndex.from_bytes(read.to_bytes(), "model-0123abcd") == read
    for entry in read.entries:
        ANYTHING.refusal(entry.statement("model-0123abcd"), entry.signatures)


def remote_record(data: bytes) -> None:
    RemoteRecord.from_bytes(compress(data), "record")


def image(data: bytes) -> None:
    """No layer's name leads out of the layout."""
    named, objects = parse_image(data, "image")
    assert all(name.startswith("v1/") and ".." not in name.split("/") and checked(name) for name in named)
    assert all(layer.size >= 0 and len(layer.digest) == 64 for layer in (*named.values(), *objects.values()))


def reference(data: bytes) -> None:
    parse_reference(data.decode("utf-8", "surrogateescape"))


def listing(data: bytes) -> None:
    """Names that a WebDAV server lists."""
    for entry in listed(data, "/cache/", "http://cache"):
        assert ".." not in entry.name.split("/") and not entry.name.startswith("/") and not math.isnan(entry.modified)


def name_on_a_remote(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    name = checked(text)
    assert not name.startswith("/") and not {"", ".", ".."} & set(name.split("/")) and "\0" not in name
    key_of(name)


class _Canned:
    """A socket whose other side has said all it will."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def settimeout(self, _: float) -> None: ...

    def recv_into(self, buffer: Any) -> int:
        return self._data.readinto(buffer)

    def send(self, data: bytes) -> int:
        return len(data)

    def sendall(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class _CannedWire(Wire):
    quiet = True  # type: ignore[assignment]

    def __init__(self, data: bytes) -> None:
        io.RawIOBase.__init__(self)
        self.place, self.answered = "127.0.0.1:1", False
        self._timeouts, self._deadline, self._allowed = TimeOuts(), math.inf, 1 << 16
        self._socket = _Canned(data)  # type: ignore[assignment]

    def begin(self, allowed: int, deadline: float) -> None:
        super().begin(allowed, deadline)


def http_answer(data: bytes) -> None:
    """An answer to the verb that the first byte chooses."""
    endpoint = HttpEndpoint(parse_url("http://127.0.0.1:1/cache"), TimeOuts(0.2, 0.2, 1.0))
    endpoint._wires.give(_CannedWire(data[1:]))
    verbs: list[Callable[[], object]] = [
        lambda: endpoint.get("v1/programs/x", 4096),
        lambda: endpoint.get_versioned("v1/programs/x", 4096),
        lambda: endpoint.has("v1/programs/x"),
        lambda: endpoint.put("v1/programs/x", b"data"),
        lambda: endpoint.remove("v1/programs/x"),
        lambda: list(endpoint.names("v1/programs/")),
    ]
    found = verbs[data[0] % len(verbs) if data else 0]()
    assert not isinstance(found, bytes) or len(found) <= 4096


def redis_reply(data: bytes) -> None:
    wire = _CannedWire(data)
    redis._Connection(wire)._reply(4096, 0)


# -- what users and administrators write


def keyring(data: bytes) -> None:
    ring = rings.parse(data.decode("utf-8", "surrogateescape"), "keyring")
    assert rings.parse("\n".join(ring.lines()), "again") == ring


def public_key(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert parse_public(text).line().split() == text.split()


def private_key(data: bytes) -> None:
    from_pem(data, "ci", "key", "passphrase")


def policy(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert parse_demand(str(parse_demand(text))) == parse_demand(text)


@functools.cache
def _file(name: str) -> Path:
    """One that is written anew for each input, in a folder of this process."""
    return Path(tempfile.mkdtemp(prefix="precast-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)) / name


def settings_file(data: bytes) -> None:
    """`precast.toml`, which may be another's: that of a repository one works in."""
    _file("precast.toml").write_bytes(data)
    settings._in_file(_file("precast.toml"))


def size_of_a_store(data: bytes) -> None:
    _file("precast.toml").write_bytes(data)
    size_limit.parse(size_limit._in_file(_file("precast.toml")), "max_size")


def lease(data: bytes) -> None:
    """Who holds it, and whether they live: they say that they are on this machine."""
    holder = holder_of(data, "lease")
    if holder is not None:
        assert isinstance(is_dead({**holder.process, "place": identity()["place"]}), bool) and str(holder)


def uses(data: bytes) -> None:
    assert machine_uses.from_bytes(machine_uses.to_bytes(read := machine_uses.from_bytes(data, "uses")), "again") == read


def pin(data: bytes) -> None:
    pin_of("ab" * 32, unpack(data, "pin"))


def sheet(data: bytes) -> None:
    _file("sheets.jsonl").write_bytes(data)
    list(sheets.read_sheets(_file("sheets.jsonl")))


def recorded_call(data: bytes) -> None:
    _file("calls.jsonl").write_bytes(data)
    recorded_calls.read([_file("calls.jsonl")])


def remote_url(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    setting = settings.from_url(text, "--remote")
    try:
        parse_url(setting.url)
    except ValueError:
        pass  # which `open` turns into a sentence


def _index() -> bytes:
    one, blobs = make(0)
    entry = Entry.of(
        one,
        packed_object(one.to_bytes())[0],
        [packed_object(blob)[0] for blob in blobs.values()],
        (KEY.sign(b"x"),),
        1.5e9,
    )
    index = ProgramIndex(one.program_key, "model", (entry,), ("other-1",))
    return expand_within(index.to_bytes(), 1 << 20, "index")


def _bundle() -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "store")
        store.put(*make(0))
        library = b"native"
        store.put_record(
            "native", "x86", {"library": digest(library), "blobs": [digest(library)]}, {digest(library): library}, signatures=()
        )
        transfer.export(store, Path(folder) / "bundle", store.manifests(), store.records(), KEY)
        data = (Path(folder) / "bundle").read_bytes()
    return data, expand_within(data[24 : 24 + int.from_bytes(data[16:24], "little")], 1 << 20, "index")


def _remote_record() -> bytes:
    blob = packed_object(b"native")[0]
    content = pack({"library": blob.raw, "blobs": [blob.raw]})
    record = RemoteRecord(pack(["precast-record-1", digest(content), content]), digest(content), (blob,), (KEY.sign(b"x"),))
    return expand_within(record.to_bytes(), 1 << 20, "record")


def _frames() -> Iterator[bytes]:
    from tests.artifact_store.bundle.test_bundle import _bomb, _frame

    yield from (compress(b"text " * 40), _bomb(True), _bomb(False), _frame(1 << 60))


_ONE = make(0)[0]
_BUNDLE, _BUNDLE_INDEX = _bundle()
_DAV = (
    b'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:"><D:response><D:href>/cache/v1/programs/x</D:href><D:propstat><D:prop>'
    b"<D:getcontentlength>12</D:getcontentlength><D:getlastmodified>Thu, 26 Nov 2026 13:00:00 GMT</D:getlastmodified></D:prop></D:propstat>"
    b"</D:response><D:response><D:href>/cache/v1/../../etc</D:href></D:response></D:multistatus>"
)
_IMAGE = image_manifest(
    {"v1/programs/model-1": Layer("ab" * 32, 10), "v1/records/native/x": Layer("cd" * 32, 20)}, [Layer("ef" * 32, 30)], {}
)
_TOML = b'remotes = [{url = "s3://bucket/p?trust=any", mode = "ro", budget = "500ms"}, "http://cache/x"]\n[other]\na = 1979-05-27\n'
_ANSWERS = (
    b'\0HTTP/1.1 200 OK\r\nContent-Length: 4\r\nETag: "1"\r\n\r\ndata',
    b"\1HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ndata\r\n0\r\n\r\n",
    b"\2HTTP/1.1 404 Not Found\r\n\r\n",
    b"\0HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n",
    b"\3HTTP/1.1 429 Wait\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n",
    b"\5HTTP/1.1 207 Multi-Status\r\nContent-Length: %d\r\n\r\n%b" % (len(_DAV), _DAV),
)
_REPLIES = (b"$4\r\ndata\r\n", b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\nx\r\n", b":12\r\n", b"+OK\r\n", b"-ERR no\r\n", b"$-1\r\n")
_RING = "\n".join(rings.revoke_key(rings.add(rings.add(rings.EMPTY, KEY.public), known_key("b").public), "b").lines()).encode()
_SHEET = b'{"v":1,"machine":"m","store":"s","begin":1.5,"end":2.5,"process":3,"processes":1,"names":{"k":"n"},"sums":[]}'
_CALL = b'{"v":1,"program":"p","entry":"e","key":"k","hit":true,"grad":false,"inference":true,"args":[1],"kwargs":{"a":[]},"time":1.5}'
_SECTIONS = pack([unpack(section) for section in _ONE._sections])

PARSERS: dict[str, Parser] = {
    "manifest": Parser(manifest, (RecordError,), (_ONE.to_bytes(),), "msgpack"),
    "manifest, sealed": Parser(sealed_manifest, (RecordError,), (pack(list(_ONE._sections)),), "msgpack"),
    "manifest, sealed values": Parser(sealed_sections, (RecordError,), (_SECTIONS,), "msgpack"),
    "record": Parser(
        lambda data: parse_record(data, "record"), (RecordError,), (pack(["precast-record-1", digest(b"\x80"), b"\x80"]),), "msgpack"
    ),
    "record, sealed": Parser(sealed_record, (RecordError,), (pack({"blobs": ["ab" * 32], "n": 1.5}),), "msgpack"),
    "signatures": Parser(signatures, (RecordError,), (pack_signatures("ab" * 32, [KEY.sign(b"x")]),), "msgpack"),
    "bundle, sealed": Parser(sealed_bundle, (StoreError,), (_BUNDLE,)),
    "bundle's index": Parser(bundle_index, (StoreError, RecordError), (_BUNDLE_INDEX,), "msgpack"),
    "compressed object": Parser(compressed, (EndpointError,), tuple(_frames())),
    "index of a program": Parser(program_index, (RecordError, EndpointError), (_index(),), "msgpack"),
    "record on a remote": Parser(remote_record, (RecordError, EndpointError), (_remote_record(),), "msgpack"),
    "image": Parser(image, (EndpointError,), (_IMAGE,), "json"),
    "image reference": Parser(reference, (StoreError,), (b"oci://registry.example:5000/team/name:tag",)),
    "WebDAV listing": Parser(listing, (EndpointError,), (_DAV,)),
    "name on a remote": Parser(name_on_a_remote, (EndpointError,), (b"v1/objects/ab/abcd", b"v1/programs/../x")),
    "HTTP answer": Parser(http_answer, (EndpointError,), _ANSWERS),
    "redis reply": Parser(redis_reply, (EndpointError, redis.RedisError), _REPLIES),
    "keyring": Parser(keyring, (StoreError,), (_RING,)),
    "public key": Parser(public_key, (StoreError,), (KEY.public.line().encode(),)),
    "private key": Parser(private_key, (StoreError,), (to_pem(KEY), to_pem(KEY, "passphrase"))),
    "policy": Parser(policy, (StoreError,), (b"any", b"signed", b"by:ci,release")),
    "lease": Parser(lease, (), (Holder("t", "s", "", 3, "held", identity()).to_bytes(),), "msgpack"),
    "uses of a machine": Parser(uses, (RecordError,), (machine_uses.to_bytes({"ab" * 32: machine_uses.Uses(3, 1.7e9)}),), "msgpack"),
    "pin": Parser(pin, (RecordError,), (pack({"note": "x", "by": "y", "made": 1.5}),), "msgpack"),
    "statistics": Parser(sheet, (), (_SHEET,), "json"),
    "recorded calls": Parser(recorded_call, (), (_CALL,), "json"),
    "size of a store": Parser(size_of_a_store, (StoreError,), (b'max_size = "20GiB"\n',)),
    "settings": Parser(settings_file, (StoreError,), (_TOML,)),
    "remote's URL": Parser(remote_url, (StoreError,), (b"s3://bucket/p?mode=ro&trust=by:ci&budget=2s", b"http://u:p@[::1]:80/x?a=b")),
}


def tried(parser: Parser, data: bytes) -> bool:
    """Whether the parser accepts it. Raises what it must not raise."""
    try:
        parser.parse(data)
    except parser.expected:
        return False
    return True


__all__ = ["PARSERS", "Parser", "tried"]
