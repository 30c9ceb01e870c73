"""A fleet on one store: several processes need the same program at the same moment; one compiles, the others wait and load.

python examples/fleet.py [STORE] [PROCESSES]      `-` for STORE is a new one, removed afterwards
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time


class Origin(logging.Handler):
    """Where the answer came from, as the log topics `store` and `compile` tell it (they tell of no compile where none was started)."""

    answer = "loaded"

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "compiled meanwhile by another process" in text:
            self.answer = "traced, waited and loaded"
        elif "goes on with what" in text:
            self.answer = "waited and loaded"
        elif "compiled artifact" in text:
            self.answer = "traced and compiled"


def watched() -> Origin:
    """An `Origin` that listens from here on."""
    origin = Origin()
    for topic in ("compile", "store"):
        log = logging.getLogger(f"precast.{topic}")
        log.addHandler(origin)
        log.setLevel(logging.INFO)
    return origin


def member(store: str) -> None:
    """One machine of the fleet: the first answer, and where it came from."""
    import torch
    from transformers import BertConfig, BertModel

    import precast

    torch.manual_seed(0)
    config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
    model = precast.compile(BertModel(config).eval(), store=store)
    origin = watched()
    ids = torch.ones(1, 16, dtype=torch.int64)
    start = time.perf_counter()
    with torch.no_grad():
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    print(f"first answer after {time.perf_counter() - start:.2f} s: {origin.answer}", flush=True)


def fleet(store: str, count: int) -> bool:
    """`count` processes at once, then one more; whether all went well."""
    print(f"{count} processes on {store}", flush=True)
    begin = time.perf_counter()
    command = [sys.executable, __file__, "--member", store]
    members = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    told = [process.communicate()[0] for process in members]
    print("".join(told), end="")
    traces = sum("traced" in line for line in told)
    print(f"traces: {traces}; all have answered after {time.perf_counter() - begin:.1f} s, imports included", flush=True)
    print("and one more, later:", flush=True)
    later = subprocess.call(command)
    return not any([*(process.returncode for process in members), later])


def main() -> None:
    if sys.argv[1:2] == ["--member"]:
        return member(sys.argv[2])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    if sys.argv[1:] and sys.argv[1] != "-":
        good = fleet(sys.argv[1], count)
    else:
        with tempfile.TemporaryDirectory(prefix="precast-fleet-") as store:
            good = fleet(store, count)
    if not good:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
