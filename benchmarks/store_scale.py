"""A store of thousands of artifacts: how long `ls`, `stats`, `prune`, `verify` and `doctor` take on it, how many inodes it has, and what a
server beside them feels.

    python -m benchmarks.store_scale                     make 10,000 artifacts in a temporary folder, measure, print a table
    python -m benchmarks.store_scale --serve             what a server's calls take beside the commands, in place of the table
    python -m benchmarks.store_scale --make DIR          make the store only
    python -m benchmarks.store_scale --count 2000 --json FILE

The artifacts are synthetic and valid: 40 programs; of each artifact a library of its own and generated sources, of which a third are
shared; one artifact in twenty has 2,000 guards, the others 40. They are written without syncing, which is what makes it quick.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from precast.artifact_store import GraphRecord, Guard, Manifest, Predicate, Store, Versions
from precast.artifact_store.format import layout
from precast.artifact_store.format.msgpack import digest, pack, unpack

PROGRAMS = 40
LARGE_EVERY = 20
GUARDS, MANY_GUARDS = 40, 2000
LIBRARY, KERNELS, HOST = 48_000, 12_000, 6_000
"""Bytes of the three blobs of an artifact."""
VERSIONS = Versions(lowering="1", torch="2.13", python="3.11", compiler="g++ 12.2.0")
TARGETS = ("cpu:x86-64-v3", "cpu:x86-64-v4", "cuda:sm_80", "cuda:sm_90")


def guards(count: int) -> list[Guard]:
    """A guard set as a transformer's is made: most of it about submodules, their parameters and hooks."""
    found = [Guard((("local", "x"),), Predicate.TENSOR, _tensor([4, None]))]
    for number in range(count - 1):
        layer, kind = divmod(number, 8)
        path = (("local", "self"), ("submodule", "layers"), ("submodule", str(layer)), ("submodule", f"part{kind % 3}"))
        match kind:
            case 0 | 1:
                found.append(Guard((*path, ("param", f"weight{kind}")), Predicate.TENSOR, _tensor([768, 768 * (1 + layer % 4)])))
            case 2 | 3:
                found.append(Guard((*path, ("attr", f"flag{kind}")), Predicate.EQUALS, ("bool", False)))
            case 4:
                found.append(Guard(path, Predicate.TYPE, "torch.nn.modules.linear:Linear"))
            case 5:
                found.append(Guard((*path, ("attr", "_forward_hooks")), Predicate.EMPTY, None))
            case 6:
                found.append(Guard((*path, ("dict",)), Predicate.KEYS, {"keys": ["training", "_parameters", "_buffers"], "ordered": True}))
            case _:
                found.append(Guard((*path, ("attr", "eps")), Predicate.EQUALS, ("float", "0x1.4f8b588e368f1p-17")))
    return found


def _tensor(size: list[int | None]) -> dict[str, Any]:
    return {
        "type": "torch:Tensor",
        "dtype": "float32",
        "device": "cpu",
        "layout": "strided",
        "requires_grad": False,
        "size": size,
        "stride": [None] * len(size),
        "conj": False,
        "neg": False,
        "offset": 0,
    }


def make(root: Path, count: int, seed: int = 7) -> Store:
    """A store with `count` artifacts."""
    store = Store.open(root, strict=True)
    store.check_writable()
    chance = random.Random(seed)
    templates = {number: _template(number) for number in (GUARDS, MANY_GUARDS)}
    for number in range(count):
        manifest, blobs = _artifact(templates[MANY_GUARDS if number % LARGE_EVERY == 0 else GUARDS], number, chance)
        for name, data in blobs.items():
            _write(root, layout.blob_name(name), data, 0o400)
        _write(root, layout.manifest_name(manifest.program_key, manifest.artifact_id), manifest.to_bytes(), 0o600)
    return store


def _template(count: int) -> Manifest:
    graph = GraphRecord({}, {"inputs": ["x"], "outputs": ["y"], "workspace": 4096})
    return Manifest.make(
        program_key="template",
        program_name="template",
        target=TARGETS[0],
        versions=VERSIONS,
        options={"freeze": False},
        guards=guards(count),
        graphs={"forward": graph},
        blobs={},
        frames=[{"name": "forward", "code": bytes(900), "inputs": [{"path": [["local", "x"]], "bound": False}] * 40}],
        digests={f"app:helper{n}": digest(str(n).encode()) for n in range(30)},
        precast_version="0.1.0",
    )


def _artifact(template: Manifest, number: int, chance: random.Random) -> tuple[Manifest, dict[str, bytes]]:
    """The template as one of its own: other head, so another id; packing 2,000 guards anew would take longer than all else."""
    program = number % PROGRAMS
    source = number if number % 3 else number % 300  # a third of the sources are shared
    parts = {
        "library": b"\x7fELF" + chance.randbytes(LIBRARY // 2) + f"{number}".encode().ljust(LIBRARY // 2, b"."),
        "kernel_source": f"void kernel_{source}() {{}}\n".encode().ljust(KERNELS, b" "),
        "host_source": f"def run_{source}(x): ...\n".encode().ljust(HOST, b" "),
    }
    blobs = {digest(data): data for data in parts.values()}
    head, packed, body, info = template._sections
    key, target = f"program{program}-{digest(str(program).encode())[:16]}", TARGETS[number % len(TARGETS)]
    changed = {**unpack(head), "program_key": key, "target": target, "options": {"freeze": False, "number": number}}
    graphs = {"forward": {"blobs": {role: digest(data) for role, data in parts.items()}, "io": unpack(body)["graphs"]["forward"]["io"]}}
    contents = {**unpack(body), "program_name": f"program{program}", "graphs": graphs, "blobs": {n: len(d) for n, d in blobs.items()}}
    return Manifest(pack(changed), packed, pack(contents), info), blobs


def _write(root: Path, name: str, data: bytes, mode: int) -> None:
    path = f"{root}/{name}"
    if os.path.exists(path):
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb", buffering=0) as file:
        file.write(data)


@dataclasses.dataclass
class Row:
    """One thing measured, in seconds: of the clock, and of processors, which other work on the machine changes less."""

    what: str
    seconds: float
    processor: float


def command(what: str, root: Path, *words: str) -> Row:
    """One `precast` command, its start included. Exit code 1 counts as an answer."""
    begin, used = time.perf_counter(), _processor(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "precast.cli", *words, "--store", str(root)], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"precast {' '.join(words)}: {done.stderr}")
    return Row(what, time.perf_counter() - begin, _processor(resource.RUSAGE_CHILDREN) - used)


def _processor(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def hash_all(root: Path) -> Row:
    """Reading and hashing every byte of the store, in one thread."""
    begin, used = time.perf_counter(), _processor(resource.RUSAGE_SELF)
    for folder, _, names in os.walk(root):
        for name in names:
            with open(f"{folder}/{name}", "rb", buffering=0) as file:
                hashlib.sha256(file.read() or b"").digest()
    return Row("hash of all bytes, one thread", time.perf_counter() - begin, _processor(resource.RUSAGE_SELF) - used)


def unlink_half(root: Path) -> Row:
    """Bare unlinking of half of the files of a copy."""
    copy = root.with_name(f"{root.name}-copy")
    shutil.copytree(root, copy, copy_function=shutil.copyfile)
    paths = [path for number, path in enumerate(sorted(copy.rglob("*"))) if path.is_file() and number % 2]
    begin, used = time.perf_counter(), _processor(resource.RUSAGE_SELF)
    for path in paths:
        os.unlink(path)
    row = Row(f"bare unlink of {len(paths):,} files", time.perf_counter() - begin, _processor(resource.RUSAGE_SELF) - used)
    shutil.rmtree(copy)
    return row


def measure(root: Path) -> Iterator[Row]:
    """All commands, in an order in which each finds what it needs."""
    yield hash_all(root)
    yield command("start of the command (precast dir)", root, "dir")
    yield command("ls, no index", root, "ls")
    yield min((command("ls", root, "ls") for _ in range(3)), key=lambda row: row.seconds)
    yield command("ls --json", root, "ls", "--json")
    yield min((command("stats", root, "stats") for _ in range(3)), key=lambda row: row.seconds)
    yield command("prune --dry-run (leftovers)", root, "prune", "--dry-run")
    half = str(json.loads(_output(root, "stats", "--json"))["size"] // 2)
    yield command("prune --max-size (half) --dry-run", root, "prune", "--max-size", half, "--dry-run")
    yield command("verify", root, "verify")
    yield command("doctor", root, "doctor")
    yield unlink_half(root)
    yield command("prune --max-size (half)", root, "prune", "--max-size", half)
    yield command("prune (leftovers)", root, "prune")


SERVER = """
import json, sys, threading, time
import torch, precast
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).eval()
served, x, found, over = precast.compile(model, store=sys.argv[1], name="served"), torch.randn(8, 64), [], threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
torch.set_num_threads(1)
with torch.no_grad():
    for _ in range(200):
        served(x)
    print("ready", flush=True)
    while not over.is_set():
        begin = time.perf_counter()
        served(x)
        found.append((time.time(), time.perf_counter() - begin))
        time.sleep(0.001)
json.dump(found, open(sys.argv[2], "w"))
"""


def serve(root: Path) -> Iterator[str]:
    """A process that calls a small model about 900 times a second, beside each command: calls, and what half of them and 99 % take."""
    log = root.with_name("calls.json")
    command_line = [sys.executable, "-c", SERVER, str(root), str(log)]
    spans: list[tuple[str, float, float]] = []

    def span(what: str, do: Callable[[], object]) -> None:
        begin = time.time()
        do()
        spans.append((what, begin, time.time()))

    with subprocess.Popen(command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        if server.stdout.readline() != "ready\n":
            raise RuntimeError("the server did not start")
        half = str(json.loads(_output(root, "stats", "--json"))["size"] // 2)
        span("nothing", lambda: time.sleep(10))
        for words in (("ls",), ("verify",), ("prune", "--max-size", half, "--dry-run"), ("prune", "--max-size", half)):
            span(" ".join(words), lambda words=words: command("", root, *words))  # type: ignore[misc]
            span("nothing", lambda: time.sleep(5))
        server.stdin.close()
    calls = json.loads(log.read_text())
    for what, begin, end in spans:
        took = sorted(seconds for moment, seconds in calls if begin <= moment <= end)
        p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
        yield f"{what:40} {len(took):6} calls, p50 {p50 * 1e6:6.0f} us, p99 {p99 * 1e6:7.0f} us, longest {took[-1] * 1e3:6.1f} ms"


def _output(root: Path, *words: str) -> str:
    run = [sys.executable, "-m", "precast.cli", *words, "--store", str(root)]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


def inodes(root: Path) -> dict[str, int]:
    """Files and folders of the store."""
    found = {"files": 0, "folders": 0, "bytes": 0}
    for folder, folders, names in os.walk(root):
        found["folders"] += len(folders)
        found["files"] += len(names)
        found["bytes"] += sum(os.stat(f"{folder}/{name}").st_size for name in names)
    return found


def main() -> None:
    """Make a store, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--make", type=Path, metavar="DIR", help="make the store there, and nothing else")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.make is not None:
        make(options.make, options.count)
        return
    with tempfile.TemporaryDirectory(prefix="precast-scale-") as folder:
        root = Path(folder, "store")
        begin = time.perf_counter()
        make(root, options.count)
        found = inodes(root)
        print(f"{options.count:,} artifacts made in {time.perf_counter() - begin:.1f} s: {found}", flush=True)
        rows = []
        if options.serve:
            for line in serve(root):
                print(line, flush=True)
            return
        for row in measure(root):
            rows.append(row)
            print(f"{row.what:45} {row.seconds:8.2f} s, of processors {row.processor:8.2f} s", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"count": options.count, "inodes": found, "rows": [vars(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
