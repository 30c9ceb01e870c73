"""What counting costs: the first answer of a warm process and a call that the native dispatcher serves, with statistics on and off, and
with a checkout from before there were any (`--before`).

Method: one store for each checkout, which its own `precast` fills; fresh processes in turn, one of each kind a round, so that what else
the machine does meets all of them. "first" is from `precast.load` to the first answer, after the imports; "hot" is the smallest of 40 means
of 5,000 calls of a program whose graph is one small kernel, so that what is measured is the dispatch. Both are seconds of the processor in
the calling thread, which other processes on the machine change little. Printed are medians over the rounds,
and how far "off" differs from itself (its even rounds against its odd ones), which a difference has to exceed to be one.

    python benchmarks/counting.py [--rounds 15] [--before CHECKOUT] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(24)))

    def forward(self, x):
        return self.layers(x)

def small(x):
    return x + 1
"""
BUILD = """
import torch, precast, counting_program
from precast.artifact_store import Store
from precast.runtime.native import loader
with torch.no_grad():
    for program, x in ((counting_program.Net().eval(), torch.ones(4, 8)), (counting_program.small, torch.ones(4))):
        assert precast.precompile(program, [((x,), {})], store="STORE").ok
loader.ensure(Store.open("STORE"))
"""
SERVE = """
import json, sys, time
import torch, precast, counting_program
torch.set_num_threads(1)
torch.set_grad_enabled(False)
precast.load
net, x, y = counting_program.Net().eval(), torch.ones(4, 8), torch.ones(4)
begin = time.thread_time()
precast.load(net, store="STORE")(x)
first = time.thread_time() - begin
small = precast.load(counting_program.small, store="STORE")
for _ in range(100):
    small(y)
means = []
for _ in range(40):
    begin = time.thread_time()
    for _ in range(5000):
        small(y)
    means.append((time.thread_time() - begin) / 5000)
print(json.dumps({"first_ms": first * 1e3, "hot_us": min(means) * 1e6}))
"""


def child(code: str, folder: Path, store: Path, checkout: Path, **environment: str) -> str:
    """What the code prints in a process that uses the checkout's precast."""
    text = code.replace("STORE", str(store))
    # the checkout's own package comes first, as an editable installation of another one is behind sys.path
    head = f"import sys; sys.path[:0] = [{str(checkout)!r}, {str(folder)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", head + text],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--before", type=Path, help="a checkout from before there were statistics")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    kinds: dict[str, tuple[Path, dict[str, str]]] = {"on": (ROOT, {"PRECAST_STATS": "1"}), "off": (ROOT, {"PRECAST_STATS": "0"})}
    if asked.before is not None:
        kinds["before"] = (asked.before.resolve(), {})
    found: dict[str, dict[str, list[float]]] = {kind: {"first_ms": [], "hot_us": []} for kind in kinds}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "counting_program.py").write_text(PROGRAM)
        stores = {checkout: folder / f"store{number}" for number, checkout in enumerate(dict.fromkeys(kind[0] for kind in kinds.values()))}
        for checkout, store in stores.items():
            child(BUILD, folder, store, checkout)
        for number in range(asked.rounds):
            for kind in sorted(kinds, key=lambda kind: (number + len(kind)) % 3):
                checkout, environment = kinds[kind]
                for name, value in json.loads(child(SERVE, folder, stores[checkout], checkout, **environment)).items():
                    found[kind][name].append(value)
    report = {kind: {name: statistics.median(values) for name, values in rows.items()} for kind, rows in found.items()}
    noise = {name: statistics.median(values[::2]) / statistics.median(values[1::2]) for name, values in found["off"].items()}
    print(f"{'':8}{'first, ms':>12}{'hot, µs':>12}   median of {asked.rounds}")
    for kind, row in report.items():
        print(f"{kind:8}{row['first_ms']:12.2f}{row['hot_us']:12.3f}")
    print(f"{'noise':8}{noise['first_ms']:12.3f}{noise['hot_us']:12.3f}   even rounds of off / odd ones")
    if asked.json is not None:
        asked.json.write_text(json.dumps({"report": report, "noise": noise, "rounds": found}, indent=2))


if __name__ == "__main__":
    main()
