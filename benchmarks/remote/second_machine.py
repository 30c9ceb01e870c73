"""A second machine's first answer: fresh local store, no compiler on the PATH, and what a first machine compiled on a remote tier.

    python benchmarks/remote/second_machine.py [--rows gpt2,resnet50] [--repeat 3] [--delay 0.02] [--keep FOLDER]

The tiers are moto's S3 and nginx behind a proxy that adds 20 ms to each answer, and a shared folder (which no proxy can slow down). Beside
them: precast's own warm start from a local store; torch.compile with its cache folder copied, and with
`torch.compiler.save_cache_artifacts`'s bytes loaded, both with the compiler that they may need. Times are those of the first call after
imports and building the model, in a process of its own; the median of `--repeat`. Bytes and requests are counted by the transport.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOWHERE = "/nonexistent"


# -- in a process of its own


def child(arguments: list[str]) -> None:
    """One first call, told as JSON on stdout: `role row place remote`."""
    role, row, place, remote = arguments
    sys.path.insert(0, str(ROOT / "benchmarks"))
    if role == "cache-copied" or role == "cache-loaded" or role == "torch-cold":
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = place
    import torch
    from rows import build

    import precast

    model, inputs = build(row)
    with torch.no_grad():
        if role == "cache-loaded":
            data = Path(remote).read_bytes()
        model(**inputs)  # eager: pages and thread pools are warm
        begin = time.perf_counter()
        if role == "build":
            call = precast.compile(model, store=place, remote=[])
        elif role in ("local", "remote"):
            call = precast.load(model, store=place, remote=[remote] if remote else [])
        else:
            if role == "cache-loaded":
                torch.compiler.load_cache_artifacts(data)
            call = torch.compile(model)
        call(**inputs)
        first = time.perf_counter() - begin
        begin = time.perf_counter()
        call(**inputs)
        second = time.perf_counter() - begin
    if role == "torch-cold":
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        Path(remote).write_bytes(saved[0])
    print(json.dumps({"first": first, "second": second, **_traffic()}))


def _traffic() -> dict[str, int]:
    """Requests and bytes of this process's transports."""
    module = sys.modules.get("precast.artifact_store.remote.transport.transport")
    if module is None:
        return {"requests": 0, "received": 0}
    found = [each.counters.snapshot() for each in module.transports()]
    requests = sum(sum(item["requests"].values()) for item in found)
    return {"requests": requests, "received": sum(item["bytes_received"] for item in found)}


# -- the parent


def measured(role: str, row: str, place: Path, remote: str = "", path: str | None = None) -> dict[str, Any]:
    """What a child says. Raises RuntimeError with its stderr."""
    environment = {**os.environ, "PATH": path} if path is not None else dict(os.environ)
    environment.pop("PRECAST_REMOTE", None)
    command = [sys.executable, __file__, "--child", role, row, str(place), remote]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{role} {row}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def publish(store_folder: Path, url: str) -> dict[str, Any]:
    """Send a whole store to a tier: seconds, bytes, objects."""
    from precast.artifact_store import Store
    from precast.artifact_store.remote.attach import open_tier
    from precast.artifact_store.remote.settings import from_url

    store, tier = Store.open(store_folder, strict=True, remote=()), open_tier(from_url(url, "benchmark"))
    begin, sent, objects = time.perf_counter(), 0, 0

    def blob(digest: str) -> bytes:
        data = store.blob(digest)
        assert data is not None
        return data

    for manifest in store.manifests():
        receipt = tier.publish(manifest, blob, store.signatures(manifest))
        sent, objects = sent + receipt.sent, objects + receipt.objects
    for kind, name in store.records():
        found = store.record_file(kind, name)
        assert found is not None
        receipt = tier.put_record(kind, name, found[0], blob)
        sent, objects = sent + receipt.sent, objects + receipt.objects
    tier.endpoint.close()
    return {"seconds": time.perf_counter() - begin, "sent": sent, "objects": objects}


def tiers(stack: ExitStack, folder: Path, delay: float) -> dict[str, str]:
    """URLs by name; servers run until the stack is closed."""
    from tests.support import servers

    s3 = stack.enter_context(servers.s3_server())
    s3_port = stack.enter_context(servers.slow_proxy(s3.port, delay))
    nginx = stack.enter_context(servers.nginx_server())
    http_port = stack.enter_context(servers.slow_proxy(nginx.port, delay))
    os.environ.update(servers.S3_ENVIRONMENT)
    (folder / "shared").mkdir()
    s3_url = s3.url.replace(f":{s3.port}", f":{s3_port}").replace("?", "/precast?", 1)
    return {
        "S3": f"{s3_url}&trust=any&budget=60s",
        "HTTP": f"http://127.0.0.1:{http_port}?trust=any&budget=60s",
        "folder": f"shared://{folder / 'shared'}?trust=any&budget=60s",
    }


def of_row(row: str, folder: Path, urls: dict[str, str], repeat: int) -> list[dict[str, Any]]:
    """All lines of one model."""
    lines: list[dict[str, Any]] = []
    store, cache, saved = folder / f"{row}-store", folder / f"{row}-cache", folder / f"{row}-saved"
    cold = measured("build", row, store)
    lines.append({"row": row, "what": "precast, cold", **cold})

    def times(what: str, one: Callable[[int], dict[str, Any]]) -> None:
        found = [one(number) for number in range(repeat)]
        lines.append({"row": row, "what": what, **{key: statistics.median(item[key] for item in found) for key in found[0]}})
        print(json.dumps(lines[-1]), file=sys.stderr)

    times("precast, warm local store", lambda _: measured("local", row, store, path=NOWHERE))
    for name, url in urls.items():
        sent = publish(store, url)
        print(json.dumps({"row": row, "publish": name, **sent}), file=sys.stderr)

        def second(number: int, name: str = name, url: str = url) -> dict[str, Any]:
            return measured("remote", row, folder / f"{row}-{name}-{number}", url, path=NOWHERE)

        times(f"precast, {name}", second)
    lines.append({"row": row, "what": "torch.compile, cold", **measured("torch-cold", row, cache, str(saved))})

    def copied(number: int) -> dict[str, Any]:
        return measured("cache-copied", row, Path(shutil.copytree(cache, folder / f"{row}-copied-{number}")))

    times("torch.compile, cache folder copied", copied)
    lines[-1]["received"] = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    times(
        "torch.compile, load_cache_artifacts", lambda number: measured("cache-loaded", row, folder / f"{row}-loaded-{number}", str(saved))
    )
    lines[-1]["received"] = saved.stat().st_size
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """As markdown."""
    head = "| model | | first answer, ms | second call, ms | requests | kB |\n|---|---|---|---|---|---|"
    rows = [
        f"| {line['row']} | {line['what']} | {line['first'] * 1e3:.0f} | {line['second'] * 1e3:.0f} | {line['requests']:.0f} | "
        f"{line['received'] / 1e3:.0f} |"
        for line in lines
    ]
    return "\n".join([head, *rows])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="gpt2,resnet50")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--keep", type=Path, help="keep the stores in this folder")
    parser.add_argument("--json", type=Path, help="write the lines there")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        urls = tiers(stack, folder, given.delay)
        lines = [line for row in given.rows.split(",") for line in of_row(row, folder, urls, given.repeat)]
    if given.json:
        given.json.write_text(json.dumps(lines, indent=1))
    print(table(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
