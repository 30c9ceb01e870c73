"""A store built without a device, served on one: first answers in fresh processes that cannot import Triton, against torch.compile warm.

    python benchmarks/gpu_warm.py [--rows minilm,gpt2,resnet50,llama1b] [--processes 4] [--no-rival] [--json FILE]
    python benchmarks/gpu_warm.py --build STORE [--target cuda:sm_90]      the first half, on any machine
    python benchmarks/gpu_warm.py --store STORE                            the second half, with a store that was carried over

The build sees no device (CUDA_VISIBLE_DEVICES is empty). In the serving processes `triton` is not to be found. The clock starts with
the model on the device, the device's context and precast's runtime imported, and stops at the first answer. The answer is then compared
with float32, and with how far eager is from it. A row's first process may also read the device's libraries from the disk (on a fresh
machine it does), which torch.compile's cold process has done before its warm ones: it is judged by itself, and the ratio is of the
later ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import gpu_fresh
from contenders import environment
from report import table

ROWS = ("minilm", "gpt2", "resnet50", "llama1b")
LIMIT_S = {"resnet50": 0.6}
"""Seconds to the first answer: 0.3 for the others; a convolution network has cuDNN's own warm-up in it."""


class WithoutTriton:
    """A finder of modules that does not find Triton, as on a machine that has none."""

    def __init__(self, finder: Any) -> None:
        self.finder = finder

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found: ModuleSpec | None = None if fullname.partition(".")[0] == "triton" else self.finder.find_spec(fullname, path, target)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


def build_store(names: list[str], store: Path, target: str) -> dict[str, float]:
    """Compiles every row for `target`; seconds of each. The models are on the CPU, whatever this machine has."""
    import torch
    from gpu_rows import build

    import precast
    from precast.artifact_store import Store

    seconds = {}
    for name in names:
        model, inputs = build(name, "cpu")
        start = time.perf_counter()
        with torch.no_grad():
            report = precast.precompile(model, [((), inputs)], targets=[target], store=store)
        seconds[name] = time.perf_counter() - start
        if not report.ok or any(item.outcome != "compiled" for item in report.signatures):
            raise SystemExit(f"{name} was not compiled for {target}:\n{report}")
        for item in report.signatures:
            made = Store.open(store).get(item.artifact_id, report.key)
            if made is None or made.target != target:
                raise SystemExit(f"{name}: the artifact is for {made.target if made else 'nothing'}, not for {target}")
        print(f"{name}: compiled for {target} in {seconds[name]:.1f} s without a device", file=sys.stderr, flush=True)
    return seconds


def serve(name: str, store: Path) -> dict[str, Any]:
    """Body of a serving process: seconds to the first answer, to the second, and the errors."""
    sys.meta_path[:] = [WithoutTriton(finder) for finder in sys.meta_path]
    import torch
    from gpu_measure import answer, distance, reference, timed
    from gpu_rows import build

    import precast
    import precast.runtime.api.compile

    model, inputs = build(name, "cuda")
    (torch.ones(8, device="cuda") + 1).sum().item()
    with torch.no_grad():
        torch.cuda.synchronize()
        start = time.perf_counter()
        call = precast.load(model, store=store, require="hit")
        call(**inputs)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        later = [timed(call, inputs, "cuda") for _ in range(5)]
        want = reference(model, inputs, "cuda")
        error, eager = (distance(answer(f, inputs, "cuda"), want)[0] for f in (call, model))
    if "triton" in sys.modules:
        raise SystemExit("triton was imported after all")
    return {"seconds": seconds, "second": later[0], "later": min(later), "error": error, "eager_error": eager}


def child(arguments: list[str], cache: Path, **more: str) -> dict[str, Any]:
    """This file as a fresh process; the JSON of its last line."""
    given = {**os.environ, **environment(cache), **more}
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, stderr=None, text=True, env=given, check=False)
    if done.returncode:
        raise gpu_fresh.Failed(f"{' '.join(arguments)}: exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(names: list[str], store: Path, folder: Path, processes: int, rival: bool) -> dict[str, dict[str, Any]]:
    """All rows, each printed as it is done."""
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            found = [child(["--serve", name, "--store", str(store)], folder, PRECAST_STORE=str(store)) for _ in range(processes)]
            seconds = [f["seconds"] for f in found]
            rows[name] = {**found[-1], "all": seconds, "first": seconds[0], "seconds": statistics.median(seconds[1:])}
            if rival:
                theirs = gpu_fresh.cold_and_warm(name, "inductor", folder / name, "cuda", processes, 300)
                rows[name] |= {"rival": statistics.median(theirs["warm"]), "rival_all": theirs["warm"], "rival_cold": theirs["cold"]}
        except gpu_fresh.Failed as failure:
            rows[name] = {**rows.get(name, {}), "failed": str(failure)}
        print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr, flush=True)
    return rows


def report(rows: dict[str, dict[str, Any]]) -> tuple[str, bool]:
    """The table, the verdicts, and whether all are met."""
    body, verdicts, good = [], [], True
    for name, r in rows.items():
        if "seconds" not in r:
            body.append([name, f"failed: {r['failed']}", *["–"] * 6])
            good = False
            continue
        every = ", ".join(f"{s * 1e3:.0f}" for s in r["all"][1:])
        rival = f"{r['rival'] * 1e3:.0f}" if "rival" in r else r.get("failed", "–")
        ratio = f"{r['seconds'] / r['rival']:.3f}" if "rival" in r else "–"
        errors = f"{r['error']:.2e}", f"{r['error'] / r['eager_error']:.2f}"
        ours = f"{r['first'] * 1e3:.0f}", f"{r['seconds'] * 1e3:.0f} ({every})"
        body.append([name, *ours, f"{r['second'] * 1e3:.1f}", rival, ratio, *errors])
        limit = LIMIT_S.get(name, 0.3)
        checks = [(r["seconds"] <= limit, f"{name}: first answer {r['seconds']:.3f} s, limit {limit} s")]
        checks.append((r["first"] <= limit, f"{name}: the same in the row's first process {r['first']:.3f} s, limit {limit} s"))
        checks.append((r["error"] <= r["eager_error"], f"{name}: error over eager's {r['error'] / r['eager_error']:.3f}, limit 1"))
        if "rival" in r:
            checks.append((r["seconds"] <= r["rival"] / 10, f"{name}: {ratio} of torch.compile's warm first call, limit 0.1"))
        verdicts += [f"- {'met' if met else 'NOT met'}: {text}" for met, text in checks]
        good = good and all(met for met, _ in checks)
    head = ["", "first process ms", "later ones ms (all)", "second call ms", "torch.compile warm ms", "ratio", "error", "÷ eager's"]
    return "\n".join(["### First answers from a store built without a device", "", table(head, body), "", *verdicts]), good


def _several(text: str) -> int:
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError(f"{count} processes: at least two are needed, as the first is judged by itself")
    return count


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--processes", type=_several, default=4, help="at least two: the first is judged by itself")
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--store", type=Path, help="serve this store instead of building one")
    parser.add_argument("--build", type=Path, help="only build, into this folder")
    parser.add_argument("--no-rival", action="store_true", help="leave out torch.compile's cold and warm processes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = _arguments()
    names = args.rows.split(",")
    if args.build:
        print(json.dumps(build_store(names, args.build, args.target)))
        return 0
    if args.serve:
        print(json.dumps(serve(args.serve, args.store)))
        return 0
    with tempfile.TemporaryDirectory(prefix="precast-warm-") as place:
        folder = Path(place)
        store = args.store or folder / "store"
        if args.store is None:
            arguments = ["--build", str(store), "--rows", args.rows, "--target", args.target]
            child(arguments, folder, CUDA_VISIBLE_DEVICES="", PRECAST_STORE=str(store))
        rows = measure(names, store, folder, args.processes, not args.no_rival)
    text, good = report(rows)
    print(text)
    if args.json:
        args.json.write_text(json.dumps(rows))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
