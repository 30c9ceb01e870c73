"""`precast push` and `pull` in figures: seconds and bytes over services of this machine, with a delay before each answer.

    python -m benchmarks.remote.moving [--artifacts 32] [--programs 4] [--delay 0.02] [--jobs 1,8]

Artifacts of two libraries (60 kB and 600 kB, half of which compresses) and two sources. For each service and number of jobs: the push of
everything, the same push again, the push of one artifact more, and the pull into an empty store. The object store is moto's and the
registry Debian's.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from precast.artifact_store import Store
from precast.artifact_store.moving.place import Place
from precast.artifact_store.moving.places import local_place, remote_place
from precast.artifact_store.moving.plan import plan
from precast.artifact_store.moving.selection import Selection
from precast.artifact_store.moving.transfer import Report, transfer
from tests.artifact_store.sample import make
from tests.support.servers import HOST, S3_ENVIRONMENT, registry_server, s3_server, slow_proxy


def put(store: Store, number: int, programs: int) -> None:
    """One artifact."""
    key, blobs, source = f"model-{number % programs}", make(number)[1], random.Random(number)
    for size in (30_000, 300_000):
        blobs.add(source.randbytes(size) + bytes(size))
    store.put(make(number, program_key=key, blobs=blobs.sizes())[0], blobs)


@contextmanager
def services(delay: float, folder: Path) -> Iterator[dict[str, str]]:
    """What a URL of each begins with; `NAME` stands for a place of its own."""
    os.environ.update(S3_ENVIRONMENT)
    (folder / "shared").mkdir()
    with (
        s3_server() as s3,
        registry_server() as registry,
        slow_proxy(s3.port, delay) as to_s3,
        slow_proxy(registry.port, delay) as to_registry,
    ):
        base, _, query = s3.url.partition("?")
        yield {
            "s3": f"{base}/NAME?{query.replace(f':{s3.port}', f':{to_s3}')}",
            "oci": f"oci://{HOST}:{to_registry}/NAME/models:v1",
            "shared folder": f"shared://{folder}/shared/NAME",
        }


def timed(source: Place, destination: Place, jobs: int) -> tuple[float, Report]:
    """Seconds, listing and comparing included."""
    began = time.perf_counter()
    report = transfer(source, destination, plan(source, destination, Selection()), jobs=jobs)
    assert report.good, report.troubles
    return time.perf_counter() - began, report


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=32)
    parser.add_argument("--programs", type=int, default=4)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--jobs", default="1,8")
    given = parser.parse_args()
    print(
        "| service | jobs | push, s | MB sent | again, s | bytes | one more, s | kB sent | pull, s |\n|---|---|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as place, services(given.delay, Path(place)) as urls:
        for service, url in urls.items():
            for jobs in map(int, given.jobs.split(",")):
                folder = Path(place) / f"{service}-{jobs}"
                store = Store.open(folder / "from", remote=())
                for number in range(given.artifacts):
                    put(store, number, given.programs)
                there = url.replace("NAME", f"jobs-{jobs}")
                if service == "shared folder":
                    Path(there.removeprefix("shared://")).mkdir()
                row = []
                for more in (False, False, True):
                    if more:
                        put(store, given.artifacts, given.programs)
                    with closing(remote_place(there, trust="any")) as remote:
                        seconds, report = timed(local_place(store), remote, jobs)
                    row += [f"{seconds:.2f}", report.sent]
                with closing(remote_place(there, trust="any")) as remote:
                    pulled, _ = timed(remote, local_place(Store.open(folder / "to", remote=())), jobs)
                figures = (row[0], f"{row[1] / 1e6:.1f}", row[2], row[3], row[4], f"{row[5] / 1e3:.0f}", f"{pulled:.2f}")
                print(f"| {service} | {jobs} | {' | '.join(map(str, figures))} |", flush=True)


if __name__ == "__main__":
    main()
