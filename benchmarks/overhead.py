"""Guard and dispatch overhead per call with GPT-2's 149 inputs (148 parameters and the ids), precast against Dynamo.

Method: the compiled graph is replaced by one that does nothing but hand out a tensor made earlier, on both sides, so that what is left
is what a call costs besides computing. Dynamo: a backend that returns such a callable (AOTAutograd's and Inductor's own wrappers, which
torch.compile adds, are thus not counted against it). precast: the host program in the artifact is a stub that returns a new handle onto a
kept tensor; guards, dispatch, argument binding, the native call, wrapping and the model's output object are the real ones.
Each side runs in processes of its own, alternating. "warm" repeats the call in a loop; "cold" touches 64 MiB between calls, which is what
a real GPT-2 call leaves of the caches.

    python benchmarks/overhead.py [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], Any]
LIMIT_US, LIMIT_RATIO = 10.0, 1 / 9

STUB = """
#include <cstdint>
extern "C" {
extern const char* const precast_symbols[];
const char* const precast_symbols[] = {"aoti_torch_empty_strided", "aoti_torch_new_tensor_handle", nullptr};
extern const int64_t precast_abi;
const int64_t precast_abi = 1;
typedef int32_t (*Empty)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**);
typedef int32_t (*New)(void*, void**);
static const int64_t sizes[] = {%(sizes)s}, strides[] = {%(strides)s};
int precast_run(void* const* table, void* const*, void** outputs, void*, char*, int64_t) {
  static void* kept = nullptr;
  if (!kept && ((Empty)table[0])(%(rank)d, sizes, strides, 6, 0, 0, &kept)) return 1;
  return ((New)table[1])(kept, &outputs[0]);
}
int precast_prepare(void* const*, void* const*, void** state, char*, int64_t) { *state = nullptr; return 0; }
void precast_release(void* const*, void*) {}
}
"""


def gpt2() -> tuple[torch.nn.Module, torch.Tensor]:
    """GPT-2 with all of its 12 layers and 148 parameters, narrow (guards do not depend on widths), and one short input."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False, n_embd=48, vocab_size=1000)).eval()
    return model, torch.ones(1, 8, dtype=torch.int64)


def stub_library(sizes: tuple[int, ...]) -> bytes:
    """The shared object of a host program whose one float32 output of `sizes` is made once."""
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    text = STUB % {"sizes": ", ".join(map(str, sizes)), "strides": ", ".join(map(str, strides)), "rank": len(sizes)}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "stub.cpp"), Path(folder, "stub.so")
        source.write_text(text)
        subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", str(target), str(source)], check=True)
        return target.read_bytes()


def dynamo_call(model: torch.nn.Module, ids: torch.Tensor) -> tuple[Call, int]:
    """The call through Dynamo, and how many inputs its graph has."""
    inputs = 0

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        nonlocal inputs
        inputs = len(examples)
        outputs = graph(*examples)
        return lambda *_: outputs

    compiled = torch.compile(model, backend=backend)
    compiled(input_ids=ids)
    return lambda: compiled(input_ids=ids), inputs


def precast_call(model: torch.nn.Module, ids: torch.Tensor) -> tuple[Call, int]:
    """The call through precast with the stub in place of the host program, and how many inputs the graph has."""
    from dataclasses import replace

    import precast
    from precast.codegen.cpu.compile import CpuCompilation

    inputs = 0
    real = CpuCompilation.compile

    def stubbed(compilation: CpuCompilation, program: Any) -> Any:
        nonlocal inputs
        inputs = len(program.inputs)
        return replace(real(compilation, program), library=stub_library((1, 8, 1000)))

    CpuCompilation.compile = stubbed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as store:
        compiled = precast.compile(model, store=store)
        compiled(input_ids=ids)
        compiled(input_ids=ids)
    return lambda: compiled(input_ids=ids), inputs


def measure(call: Call) -> dict[str, float]:
    """Microseconds per call: minimum of warm loops; median and minimum of single cold calls."""
    start = time.perf_counter()
    for _ in range(5):
        call()
    loops = max(3, min(200, int(0.02 / ((time.perf_counter() - start) / 5))))
    warm = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(loops):
            call()
        warm.append((time.perf_counter() - start) / loops)
    sweep = torch.zeros(16 << 20)
    cold = []
    for _ in range(60):
        sweep.add_(1)
        start = time.perf_counter()
        call()
        cold.append(time.perf_counter() - start)
    cold.sort()
    return {"warm": min(warm) * 1e6, "cold": cold[len(cold) // 2] * 1e6, "cold_min": cold[0] * 1e6}


def child(side: str) -> None:
    """Body of a measuring process."""
    model, ids = gpt2()
    with torch.no_grad():
        call, inputs = (dynamo_call if side == "dynamo" else precast_call)(model, ids)
        if call().logits.data_ptr() != call().logits.data_ptr():
            raise SystemExit("two calls gave two tensors, so the graph that does nothing is not what runs; nothing was measured")
        print(json.dumps({**measure(call), "inputs": inputs}))


def run(side: str) -> dict[str, float]:
    """One measurement of one side in a fresh process."""
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run([sys.executable, __file__, "--child", side], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"the {side} side failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default="dynamo,precast")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return 0
    sides = args.sides.split(",")
    runs = [{side: run(side) for side in sides} for _ in range(args.rounds)]
    best = {side: {key: min(r[side][key] for r in runs) for key in runs[0][side]} for side in sides}
    print("### Guard and dispatch overhead per call, GPT-2\n")
    print("| | inputs | warm us | cold us (median) | cold us (min) |\n| --- | --- | --- | --- | --- |")
    for side, figures in best.items():
        print(f"| {side} | {figures['inputs']:.0f} | {figures['warm']:.1f} | {figures['cold']:.1f} | {figures['cold_min']:.1f} |")
    if {"dynamo", "precast"} <= set(best):
        ours, theirs = best["precast"]["warm"], best["dynamo"]["warm"]
        met = ours <= LIMIT_US or ours <= theirs * LIMIT_RATIO
        print(
            f"\n- {'met' if met else 'NOT met'}: overhead {ours:.1f} us, limit {LIMIT_US:.0f} us or 1/9 of Dynamo's ({theirs / 9:.1f} us)"
        )
    if args.json:
        args.json.write_text(json.dumps(best))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
