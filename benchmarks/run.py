"""The benchmark: precast side by side with torch.compile, its freezing option, AOTInductor and eager, and, where they are installed,
OpenVINO and ONNX Runtime. See docs/benchmarks.md.

python benchmarks/run.py [--rows resnet50,bert] [--contenders eager,inductor,precast] [--quick] [--dynamic]
    [--rounds 5] [--warm 1] [--block 1.0] [--json out.json] [--no-overhead] [--neighbours 1]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import report
import torch
from contenders import CONTENDERS, names_of
from rounds import Plan, Result, measure
from rows import DEFAULT_ROWS, ROWS


def _chip() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than one")
    return number


def _seconds(text: str) -> float:
    if not 0 < (seconds := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(DEFAULT_ROWS))
    parser.add_argument("--contenders", help="default: all; with --dynamic those that can")
    parser.add_argument("--dynamic", action="store_true", help="every contender compiles for sizes of the run time (dynamic=True)")
    parser.add_argument("--quick", action="store_true", help="three short rounds and one warm process each")
    parser.add_argument("--rounds", type=_at_least_one, help="quiet steady rounds wanted (7; with --quick 3)")
    parser.add_argument("--warm", type=_at_least_one, help="fresh processes for the warm figure (3; with --quick 1)")
    parser.add_argument("--block", type=_seconds, help="seconds of a steady block (1.0; with --quick 0.4)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    parser.add_argument("--neighbours", type=int, default=0, help="CPUs that another process keeps busy during the steady rounds (0)")
    parser.add_argument("--no-overhead", action="store_true", help="leave out the guard and dispatch overhead")
    return parser.parse_args()


def main() -> int:
    args = _arguments()
    names = names_of(args.rows, ROWS, "row")
    usual = [c for c in CONTENDERS if not (args.dynamic and CONTENDERS[c].fixed)]
    contenders = names_of(args.contenders, CONTENDERS, "contender") if args.contenders else usual
    if args.dynamic:
        os.environ["PRECAST_BENCH_DYNAMIC"] = "1"  # for the contenders' processes
    plan = Plan(args.threads, rounds=3, warm=1, block=0.4) if args.quick else Plan(args.threads)
    plan = replace(
        plan,
        neighbours=args.neighbours,
        **{key: getattr(args, key) for key in ("rounds", "warm", "block") if getattr(args, key) is not None},
    )
    chip = _chip()
    machine = f"{chip}, {args.threads} threads of {os.cpu_count()} CPUs"
    setting = ", dynamic=True" if args.dynamic else ""
    setting += f", {args.neighbours} of the CPUs kept busy by another process" if args.neighbours else ""
    print(f"## precast benchmark\n\n{machine}, torch {torch.__version__}, Python {platform.python_version()}{setting}\n")
    rows: dict[str, dict[str, Result]] = {}
    for name in names:
        rows[name] = measure(name, contenders, plan)
        print(report.row_table(name, rows[name]), flush=True)
        if args.json:
            figures = {row: {key: asdict(r) for key, r in results.items()} for row, results in rows.items()}
            args.json.write_text(json.dumps({"chip": chip, "threads": args.threads, "torch": torch.__version__, "rows": figures}))
    print(report.bars(rows, 1.5 if "AMD" in chip else 1.1), flush=True)
    if not args.no_overhead and any(CONTENDERS[c].ours for c in contenders):
        subprocess.run([sys.executable, str(Path(__file__).with_name("overhead.py"))], check=False)
    failed = [f"{row}/{key}" for row, results in rows.items() for key, r in results.items() if r.error]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
