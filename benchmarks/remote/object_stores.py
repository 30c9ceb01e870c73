"""Which client for object stores: obstore or fsspec's s3fs, each in fresh processes, against moto's S3 behind a proxy that adds 20 ms.

    python -m benchmarks.remote.object_stores [--rounds 5] [--delay 0.02] [--json]

The clients take turns, and each figure is the median of the rounds. What is measured of each: seconds of its import, resident memory that
the import and the first request add, the first request (with making the client), 64 gets of 4 kB in parallel, a put and a get of 64 MB,
and whether a conditional put is refused where it has to be. `s3fs` has to be installed for this; precast does not need it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.servers import BUCKET, S3_ENVIRONMENT, s3_server, slow_proxy

SMALL, COUNT, LARGE = 4096, 64, 64 << 20
CLIENTS = ("obstore, 8 threads", "obstore, asyncio", "s3fs")


def resident() -> float:
    """Megabytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def seconds(task: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def obstore_client(port: int, threads: bool) -> dict[str, Any]:
    """obstore's figures."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(BUCKET, endpoint=f"http://127.0.0.1:{port}", client_options={"allow_http": True})
    first = seconds(lambda: obstore.get(store, "small-0").bytes())
    memory = resident()
    names = [f"small-{number}" for number in range(COUNT)]

    def in_threads() -> None:
        with ThreadPoolExecutor(8) as pool:
            assert all(len(found) == SMALL for found in pool.map(lambda name: bytes(obstore.get(store, name).bytes()), names))

    async def one(name: str) -> bytes:
        return bytes(await (await obstore.get_async(store, name)).bytes_async())

    async def together() -> None:
        assert all(len(found) == SMALL for found in await asyncio.gather(*map(one, names)))

    many = seconds(in_threads if threads else lambda: asyncio.run(together()))
    data = os.urandom(LARGE)
    put = seconds(lambda: obstore.put(store, "large-obstore", data, use_multipart=False))
    get = seconds(lambda: bytes(obstore.get(store, "large-obstore").bytes()))
    try:
        obstore.put(store, "small-0", b"", mode="create")
        conditional = False
    except obstore.exceptions.AlreadyExistsError:
        conditional = True
    return {"first": first, "memory": memory, "many": many, "put": put, "get": get, "conditional": conditional}


def s3fs_client(port: int) -> dict[str, Any]:
    """s3fs's figures."""
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{port}", use_listings_cache=False)
    first = seconds(lambda: files.cat_file(f"{BUCKET}/small-0"))
    memory = resident()
    names = [f"{BUCKET}/small-{number}" for number in range(COUNT)]
    many = seconds(lambda: files.cat(names))
    data = os.urandom(LARGE)
    put = seconds(lambda: files.pipe_file(f"{BUCKET}/large-s3fs", data))
    get = seconds(lambda: files.cat_file(f"{BUCKET}/large-s3fs"))
    try:
        files.pipe_file(f"{BUCKET}/small-0", b"", mode="create")
        conditional = False
    except FileExistsError:
        conditional = True
    return {"first": first, "memory": memory, "many": many, "put": put, "get": get, "conditional": conditional}


def child(client: str, port: int) -> None:
    """One client in this process, which has imported nothing of it yet; its figures are printed."""
    before = resident()
    module = "s3fs" if client == "s3fs" else "obstore"
    imported = seconds(lambda: __import__(module))
    figures = s3fs_client(port) if client == "s3fs" else obstore_client(port, "threads" in client)
    print(json.dumps({"import": imported, **figures, "memory": figures["memory"] - before}))


def main() -> None:
    """Start the servers, measure in turns, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("CLIENT", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], int(given.child[1]))
        return
    os.environ.update(S3_ENVIRONMENT)
    found: dict[str, list[dict[str, Any]]] = {client: [] for client in CLIENTS}
    with s3_server() as server, slow_proxy(server.port, given.delay) as port:
        import obstore
        from obstore.store import S3Store

        store = S3Store(BUCKET, endpoint=f"http://127.0.0.1:{server.port}", client_options={"allow_http": True})
        for number in range(COUNT):
            obstore.put(store, f"small-{number}", os.urandom(SMALL))
        for _ in range(given.rounds):
            for client in CLIENTS:
                command = [sys.executable, "-m", "benchmarks.remote.object_stores", "--child", client, str(port)]
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
                if done.returncode:
                    raise SystemExit(done.stderr)
                found[client].append(json.loads(done.stdout))
    median = {client: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for client, rows in found.items()}
    if given.json:
        print(json.dumps(median))
        return
    print("| client | import | memory | first request | 64 gets of 4 kB | put 64 MB | get 64 MB | conditional put |")
    print("|---|---|---|---|---|---|---|---|")
    for client, row in median.items():
        times = " | ".join(f"{row[key] * 1000:.0f} ms" for key in ("first", "many", "put", "get"))
        print(f"| {client} | {row['import'] * 1000:.0f} ms | {row['memory']:.0f} MB | {times} | {'yes' if row['conditional'] else 'no'} |")


if __name__ == "__main__":
    main()
