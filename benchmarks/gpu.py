"""The GPU benchmark: eager, torch.compile's and precast's modes, interleaved in one process. See docs/benchmarks.md.

    python benchmarks/gpu.py [--rows bert,gpt2] [--contenders eager,precast,inductor] [--skip inductor_max] [--rounds 12] [--json out.json]
    python benchmarks/gpu.py --fresh precast,inductor --no-steady …      cold compile and warm first call, in fresh processes
    python benchmarks/gpu.py --combine a.json b.json                     the tables and bars of several runs together

Each row is printed, and written to the JSON file, as soon as it is measured: a run that is cut off keeps what it has. A JSON file that is
there already is added to.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import uuid
import warnings
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import gpu_fresh
import gpu_measure
import gpu_report
import torch
from contenders import environment, import_first, names_of
from gpu_contenders import CONTENDERS, first_answer
from gpu_measure import Result
from gpu_rows import DEFAULT_ROWS, ROWS, Missing, build

FIELDS = {f.name for f in fields(Result)}
Figures = dict[str, Any]
"""The JSON document: {"machine": {...}, "peaks": {...}, "facts": {row: {...}}, "rows": {row: {contender: Result as a dict}}}."""


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _copy_new(source: str, target: str) -> str:
    """Copies what is not there yet: a library that this process has mapped must not be written over."""
    return target if os.path.exists(target) else shutil.copy2(source, target)


class Bench:
    """The figures so far, and how to measure more."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.device = args, folder, args.device
        self.run = uuid.uuid4().hex[:8]
        self.figures: Figures = {"rows": {}, "facts": {}, "peaks": {}}
        if args.json and args.json.exists():
            self.figures |= json.loads(args.json.read_text())
        self.cache = folder / "steady"
        self.cache.mkdir(mode=0o700)

    def keep(self, row: str, name: str, **found: Any) -> None:
        """Adds figures of one contender on one row, and saves everything."""
        kept = self.figures["rows"].setdefault(row, {}).setdefault(name, asdict(Result()))
        kept |= {"error": None, **found}
        if self.args.json:
            self.args.json.write_text(json.dumps(self.figures))

    def measure_peaks(self) -> None:
        if self.device == "cpu" or self.figures["peaks"]:
            return
        self.figures["peaks"] = gpu_measure.peaks()
        torch.cuda.empty_cache()

    def fresh(self, row: str, names: list[str]) -> None:
        """Cold and warm processes of each contender; what they leave in their caches is given to the steady rounds."""
        for name in names:
            cache = self.folder / row / name
            _say(f"{row}: {name}: cold, then {self.args.warm} warm")
            try:
                found = gpu_fresh.cold_and_warm(row, name, cache, self.device, self.args.warm, self.args.timeout)
                self.keep(row, name, **found)
                shutil.copytree(cache, self.cache, dirs_exist_ok=True, copy_function=_copy_new)
            except gpu_fresh.Failed as failure:
                _say(f"{row}: {name} failed: {failure}")
                self.keep(row, name, error=f"fresh process: {failure}")
            finally:
                shutil.rmtree(cache, ignore_errors=True)

    def steady(self, row: str, names: list[str]) -> None:
        """Prepares the contenders one after the other until the row's budget is spent, then measures those that are ready."""
        _say(f"{row}: building, float32 reference")
        model, inputs = build(row, self.device)
        want = gpu_measure.reference(model, inputs, self.device)
        self._facts(row, model, inputs)
        calls: dict[str, gpu_measure.Call] = {}
        began = time.monotonic()
        for name in names:
            if name == names[-1] and len(calls) > 1 and name.endswith("_max"):
                self._rounds(row, calls, inputs)  # should this compile, the longest, be cut off, the others have been measured
            if time.monotonic() - began > self.args.budget:
                self.keep(row, name, error=f"skipped: the row's {self.args.budget:.0f} s for compiling were spent")
                continue
            try:
                calls[name] = self._prepare(row, name, model, inputs, want)
            except Exception as error:  # noqa: BLE001 - a contender's failure is its verdict, and the others go on
                text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
                _say(f"{row}: {name} failed: {text}")
                self.keep(row, name, error=text)
        self._rounds(row, calls, inputs)
        if self.device != "cpu" and not self.args.no_profile:
            for name, call in calls.items():
                self.keep(row, name, **gpu_measure.profile(call, inputs))

    def _rounds(self, row: str, calls: dict[str, gpu_measure.Call], inputs: dict[str, Any]) -> None:
        _say(f"{row}: {self.args.rounds} rounds of {', '.join(calls)}")
        for name, result in gpu_measure.rounds(calls, inputs, self.device, self.args.rounds, self.args.calls).items():
            self.keep(row, name, sync=result.sync, b2b=result.b2b, run=self.run)

    def _facts(self, row: str, model: torch.nn.Module, inputs: dict[str, Any]) -> None:
        self.figures["facts"][row] = {"flops": gpu_measure.flops(model, inputs), "weight_bytes": gpu_measure.weight_bytes(model)}

    def _prepare(self, row: str, name: str, model: torch.nn.Module, inputs: dict[str, Any], want: torch.Tensor) -> gpu_measure.Call:
        """The contender's callable after its first calls, with its compile time and error kept."""
        contender = CONTENDERS[name]
        import_first(contender, self.cache)
        _say(f"{row}: preparing {name}")
        start = time.perf_counter()
        call = first_answer(
            lambda: contender.prepare(model, inputs, self.cache), lambda call: gpu_measure.answer(call, inputs, self.device)
        )
        prepared = time.perf_counter() - start
        for _ in range(3):
            gpu_measure.timed(call, inputs, self.device)
        relative, largest = gpu_measure.distance(gpu_measure.answer(call, inputs, self.device), want)
        self.keep(row, name, prepared=prepared if name != "eager" else None, difference=relative, largest=largest)
        return call


def results(figures: Figures) -> gpu_report.Rows:
    """The document's rows as objects, contenders in their usual order."""
    return {
        row: {name: Result(**{k: v for k, v in found[name].items() if k in FIELDS}) for name in CONTENDERS if name in found}
        for row, found in ((r, figures["rows"][r]) for r in ROWS if r in figures["rows"])
    }


def show(figures: Figures, names: list[str], top: bool) -> None:
    """Prints the tables of the named rows."""
    for name in names:
        found = results(figures).get(name)
        if found:
            print(gpu_report.row_text(name, found, {**figures["facts"].get(name, {}), **figures["peaks"]}), flush=True)
            if top:
                print(gpu_report.dearest(found) + "\n", flush=True)


def combine(paths: list[Path]) -> Figures:
    """Several documents as one: a later file's figures replace an earlier one's, field by field."""
    merged: Figures = {"rows": {}, "facts": {}, "peaks": {}}
    for path in paths:
        figures = json.loads(path.read_text())
        for part in ("facts", "peaks"):
            merged[part] |= figures[part]
        for row, found in figures["rows"].items():
            for name, result in found.items():
                kept = merged["rows"].setdefault(row, {}).setdefault(name, asdict(Result()))
                kept |= {key: value for key, value in result.items() if value not in (None, [])}
    return merged


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(DEFAULT_ROWS))
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="in the steady rounds")
    parser.add_argument("--skip", default="", help="contenders to leave out, for instance inductor_max (65 s a row and more to compile)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--calls", type=int, default=10, help="calls a contender makes in each round")
    parser.add_argument("--budget", type=float, default=300, help="seconds a row's compiling may take before the rest is skipped")
    parser.add_argument("--fresh", default="", help="contenders whose cold compile and warm first call are measured, in fresh processes")
    parser.add_argument("--warm", type=int, default=2, help="warm processes of each")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one fresh process")
    parser.add_argument("--no-steady", action="store_true")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--top", action="store_true", help="print each contender's dearest kernels")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--combine", type=Path, nargs="+", help="measure nothing: print what these files hold together")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)  # "cpu" checks the harness without a GPU
    return parser.parse_args()


def measure(args: argparse.Namespace, names: list[str], folder: Path) -> Bench:
    """All rows, each printed when it is done."""
    os.environ.update(environment(folder / "steady"))
    warnings.filterwarnings("ignore")
    bench = Bench(args, folder)
    skipped = names_of(args.skip, CONTENDERS, "contender")
    steady = [name for name in names_of(args.contenders, CONTENDERS, "contender") if name not in skipped]
    fresh = names_of(args.fresh, CONTENDERS, "contender")
    bench.measure_peaks()
    for row in names:
        try:
            bench.fresh(row, fresh)
            if not args.no_steady:
                with torch.no_grad():
                    bench.steady(row, steady)
        except Missing as missing:
            print(f"### {ROWS[row].title}\n\nmissing: {missing}\n", flush=True)
        show(bench.figures, [row], args.top)
        torch._dynamo.reset()
        if args.device != "cpu":
            torch.cuda.empty_cache()
    return bench


def main() -> int:
    args = _arguments()
    if args.combine:
        figures = combine(args.combine)
        show(figures, list(ROWS), args.top)
        print(gpu_report.bars(results(figures)))
        return 0
    names = names_of(args.rows, ROWS, "row")
    chip = torch.cuda.get_device_name() if args.device != "cpu" else platform.processor()
    print(f"## precast GPU benchmark\n\n{chip}, torch {torch.__version__}, Python {platform.python_version()}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="precast-bench-") as folder:
        bench = measure(args, names, Path(folder))
    if bench.figures["peaks"]:
        print("measured peaks: " + ", ".join(f"{k} {v:.4g}" for k, v in bench.figures["peaks"].items()) + "\n")
    found = results(bench.figures)
    print(gpu_report.bars(found), flush=True)
    failed = [f"{row}/{name}" for row, kept in found.items() for name, r in kept.items() if r.error and name in CONTENDERS and not r.sync]
    if failed:
        print(f"failed or skipped: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
