"""What measuring at build time gains: small programs (kernel_rows.py) by default and with max-autotune, side by side on a GPU.

    python benchmarks/tuned.py [--rows REGEX] [--most 20] [--rounds 15] [--seconds 500]

Both are captured in CUDA graphs and take turns; a time is the median of the rounds. `--most`: seconds that one build may measure for. A
line ends with what was chosen otherwise than by default, with the microseconds of both.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from kernel_rows import ROWS, KernelRow
from kernels import Call, on_gpu, seconds, step

ROWS_OF_ALL_KINDS = (
    "reductions/(few|many|columns|wide|every|channels|nested|argmax)|norms/(layer norm of (4096|images)|group norm$|batch norm$)|"
    "softmax/of (128|2048|50257)|cross-entropy/of 50257$|pointwise/(transposed|permute heads|row and)|scans/cumsum|pooling/max 3 stride|"
    "casts/to int8"
)


def chosen_otherwise(store: Any) -> Iterator[str]:
    """Of all artifacts of a store, the measured choices that are not the default."""
    for key in store.programs():
        for manifest in store.variants(key):
            for name, record in manifest.evidence.get("choices", {}).items():
                us, winner, default = record["us"], record["winner"], record["default"]
                if winner != default:
                    yield f"{name[:50]}: {default} {us[default]} -> {winner} {us[winner]}"


def compiled(row: KernelRow, folder: str, **options: Any) -> tuple[Call, Any, float]:
    """The call, its store, and the seconds of the first one."""
    import precast
    from precast.artifact_store import Store

    torch.manual_seed(0)
    program, inputs = row.make("cuda")
    store = Store.open(folder)
    call = step(row, precast.compile(program, store=store, dynamic=False, options=options), inputs, [])
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return call, store, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=ROWS_OF_ALL_KINDS)
    parser.add_argument("--most", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=500)
    given = parser.parse_args()
    import precast

    warnings.simplefilter("ignore")
    began = time.perf_counter()
    ratios: list[float] = []
    print(f"{'row':38}{'default':>10}{'tuned':>10} us {'ratio':>6}   builds, s", flush=True)
    for row in (row for name, row in ROWS.items() if re.search(given.rows, name) and not row.train):
        if time.perf_counter() - began > given.seconds:
            print(f"ended after {given.seconds:.0f} s")
            break
        precast.reset()
        with tempfile.TemporaryDirectory() as plain_folder, tempfile.TemporaryDirectory() as tuned_folder:
            try:
                plain, _, plain_took = compiled(row, plain_folder)
                tuned, store, tuned_took = compiled(row, tuned_folder, max_autotune=True, max_autotune_seconds=given.most)
            except Exception as error:  # noqa: BLE001 - the other rows go on, and the table says so
                print(f"{row.label:38} failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
                continue
            timed = on_gpu(row, {"default": plain, "tuned": tuned})
            times: dict[str, list[float]] = {name: [] for name in timed}
            for number in range(given.rounds + 1):
                for name in list(timed)[:: 1 if number % 2 else -1]:
                    call, per = timed[name]
                    took = seconds(call, max(1, round(2e-3 / max(statistics.median(times[name] or [1e-3]), 1e-7) / per)), "cuda") / per
                    times[name] += [took] if number else []
            default, other = (statistics.median(times[name]) for name in ("default", "tuned"))
            ratios.append(default / other)
            said = f"{row.label:38}{default * 1e6:10.1f}{other * 1e6:10.1f}    {default / other:6.2f}   {plain_took:.1f} {tuned_took:.1f}"
            print("  ".join([said, *chosen_otherwise(store)]), flush=True)
        torch.cuda.empty_cache()
    if ratios:
        print(f"{len(ratios)} rows, geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, best {max(ratios):.2f}, "
              f"worst {min(ratios):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
