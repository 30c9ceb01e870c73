"""A fleet on one store: several processes need the same program at the same moment; one compiles, the others wait and load.

python examples/fleet.py [STORE] [PROCESSES]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time


def member(store: str) -> None:
    """One machine of the fleet: the first answer, and where it came from."""
    import torch
    from transformers import BertConfig, BertModel

    import precast

    torch.manual_seed(0)
    config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
    model = precast.compile(BertModel(config).eval(), store=store)
    ids = torch.ones(1, 16, dtype=torch.int64)
    start = time.perf_counter()
    with torch.no_grad():
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    print(f"first answer after {time.perf_counter() - start:.2f} s", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--member"]:
        return member(sys.argv[2])
    store = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="precast-fleet-")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print(f"{count} processes on {store}")
    members = [subprocess.Popen([sys.executable, __file__, "--member", store]) for _ in range(count)]
    codes = [process.wait() for process in members]
    print("and one more, later:")
    codes.append(subprocess.call([sys.executable, __file__, "--member", store]))
    if any(codes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
