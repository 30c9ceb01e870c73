"""Which level of zstandard for what lies on a remote: ratio and speed over the blobs and manifests of a store.

    python benchmarks/remote/compression.py STORE [--levels 1,3,6,9,12,15,19]

The whole of a store is compressed at each level, object by object as it is sent: a second machine waits for fetching and expanding, and a
first one compresses in the background. `at 100 Mbit/s` is the time to fetch and expand everything over such a line.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import zstandard

from precast.artifact_store import Store


def contents(folder: Path) -> list[bytes]:
    """Every manifest and blob."""
    store = Store.open(folder, strict=True, remote=())
    manifests = list(store.manifests())
    blobs = {blob for manifest in manifests for blob in manifest.blobs}
    return [*(manifest.to_bytes() for manifest in manifests), *(data for blob in sorted(blobs) if (data := store.blob(blob)) is not None)]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--levels", default="1,3,6,9,12,15,19")
    given = parser.parse_args()
    everything = contents(given.store)
    size = sum(map(len, everything))
    print(f"{len(everything)} objects, {size} bytes\n")
    print("| level | bytes | ratio | compress, MB/s | expand, MB/s | at 100 Mbit/s, ms |\n|---|---|---|---|---|---|")
    for level in map(int, given.levels.split(",")):
        compressor, expander = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
        begin = time.perf_counter()
        packed = [compressor.compress(data) for data in everything]
        compressing = time.perf_counter() - begin
        begin = time.perf_counter()
        for data in packed:
            expander.decompress(data)
        expanding = time.perf_counter() - begin
        sent = sum(map(len, packed))
        line = sent / 12.5e6 + expanding
        print(
            f"| {level} | {sent} | {size / sent:.2f} | {size / compressing / 1e6:.0f} | {size / expanding / 1e6:.0f} | {line * 1e3:.0f} |"
        )


if __name__ == "__main__":
    main()
