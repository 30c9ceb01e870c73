"""What signatures and bundles cost: `python -m benchmarks.trust [--artifacts 20] [--size 1000000]`.

A row each: the median of five runs, the first comparison of a process in fresh processes. Signatures in processor time, bundles by the
clock, with the disk's syncs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from precast.artifact_store import BlobSet, GraphRecord, Manifest, Predicate, Store, Versions
from precast.artifact_store.bundle.transfer import export, take_in
from precast.artifact_store.format.guards import Guard
from precast.artifact_store.trust import keyring as rings
from precast.artifact_store.trust.judge import judge_for
from precast.artifact_store.trust.keys import generate
from precast.artifact_store.trust.signatures import manifest_statement

FIRST = """
import time
from precast.artifact_store.trust import keyring, keys
from precast.artifact_store.trust.judge import judge_for
from precast.artifact_store.trust.signatures import Signature
key = keys.parse_public({line!r})
ring = keyring.add(keyring.EMPTY, key)
started = time.process_time()
assert judge_for("signed", keyring=lambda: ring).refusal({statement!r}, (Signature(key.id, {value!r}),)) == ""
print(time.process_time() - started)
"""


def artifact(number: int, size: int) -> tuple[Manifest, BlobSet]:
    """With a library that compresses about as machine code does: a quarter of it are bytes drawn at random."""
    draw, blobs = random.Random(number), BlobSet()
    library = blobs.add(b"".join(draw.randbytes(16) + bytes(48) for _ in range(size // 64)))
    made = Manifest.make(
        program_key=f"program-{number}",
        program_name="program",
        target="cpu:x86-64-v3",
        versions=Versions("1", "2.13", "3.11", "g++"),
        options={},
        guards=[Guard((("local", f"x{i}"),), Predicate.EQUALS, ("int", i)) for i in range(1000)],
        graphs={"forward": GraphRecord({"library": library}, {})},
        blobs=blobs.sizes(),
    )
    return made, blobs


def seconds(what: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """The median of five runs, by default of processor time."""
    taken = []
    for _ in range(5):
        started = clock()
        what()
        taken.append(clock() - started)
    return statistics.median(taken)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--artifacts", type=int, default=20)
    arguments.add_argument("--size", type=int, default=1_000_000)
    chosen = arguments.parse_args()
    key = generate("bench")
    ring = rings.add(rings.EMPTY, key.public)
    judge = judge_for("signed", keyring=lambda: ring)
    statement = manifest_statement("program-1", "ab" * 32, "cd" * 32)
    signature = key.sign(statement)
    script = FIRST.format(line=key.public.line(), statement=statement, value=signature.value)
    first = statistics.median(float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(5))
    print("| what | time | rate |\n|---|---|---|")
    print(f"| sign | {seconds(lambda: [key.sign(statement) for _ in range(200)]) / 200 * 1e6:.0f} µs | |")
    print(f"| compare a signature | {seconds(lambda: [judge.refusal(statement, (signature,)) for _ in range(200)]) / 200 * 1e6:.0f} µs | |")
    print(f"| compare the first one of a process | {first * 1e3:.1f} ms | |")
    with tempfile.TemporaryDirectory() as name:
        store = Store.open(Path(name) / "store")
        for number in range(chosen.artifacts):
            store.put(*artifact(number, chosen.size))
        bundle, total = Path(name) / "bundle", chosen.artifacts * chosen.size
        taken = seconds(lambda: export(store, bundle, store.manifests(), [], key), time.perf_counter)
        print(f"| export {chosen.artifacts} artifacts of {chosen.size:,} bytes | {taken:.2f} s | {total / taken / 1e6:.0f} MB/s |")
        places = iter(range(5))
        taken = seconds(lambda: take_in(Store.open(Path(name) / f"to{next(places)}"), bundle, judge), time.perf_counter)
        print(f"| import them, signatures judged | {taken:.2f} s | {total / taken / 1e6:.0f} MB/s |")
        print(f"| the bundle | | {bundle.stat().st_size / total:.2f} of the blobs |")


if __name__ == "__main__":
    main()
