"""The Trainer of transformers: a tiny Llama on synthetic text; eager, compiled in place, and in a fresh process, which starts warm.

python examples/train_hf_trainer.py [STORE]      `-` or nothing for STORE is a new one, removed afterwards (pip install 'precast[train]')
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

STEPS = 50


def train(how: str, store: str) -> dict[str, Any]:
    """The loss of each step, and how long the first one took. `how`: "eager", "in place", or "backend" (torch traces, precast compiles)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    import precast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64
    )
    model = LlamaForCausalLM(config)
    settings: dict[str, Any] = {}
    if how == "in place":
        precast.compile_module(model, store=store)  # the same object, so that Trainer saves, resumes and inspects it as before
    elif how == "backend":
        from precast.integrations import accelerate

        accelerate.register()
        settings = {"torch_compile": True, "torch_compile_backend": "precast"}  # the store is PRECAST_STORE's

    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds.append(time.perf_counter() - self.start)

    rows = [torch.arange(32) * (1 + i % 5) % 64 for i in range(4 * STEPS)]  # text that counts
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            **settings,
        )
        data: Any = [{"input_ids": row, "labels": row} for row in rows]
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Clock()])
        with contextlib.redirect_stdout(sys.stderr):
            trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "seconds": seconds, "traced": any(name.startswith("precast.capture") for name in sys.modules)}


def fresh(how: str, store: str) -> dict[str, Any]:
    """`train` in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--train", how, store], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compared(store: str) -> bool:
    """The runs side by side; whether the losses are the same, to rounding, and the warm process did without the tracer."""
    eager, cold, warm = fresh("eager", store), fresh("in place", store), fresh("in place", store)
    good = not warm["traced"]
    for name, run in (("eager", eager), ("precast, first run", cold), ("precast, warm", warm)):
        differs = max(abs(a - b) / abs(b) for a, b in zip(run["losses"], eager["losses"], strict=True))
        good = good and differs < 1e-4
        later = sorted(run["seconds"][1:])[len(run["seconds"]) // 2]
        said = f"first step {run['seconds'][0]:.2f} s, later {1000 * later:.0f} ms, loss {run['losses'][0]:.4f} to {run['losses'][-1]:.4f}"
        print(f"{name:18}  {said}, off by {differs:.0e}; tracer: {'imported' if run['traced'] else 'not imported'}", flush=True)
    return good


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        print(json.dumps(train(sys.argv[2], sys.argv[3])))
        return
    if sys.argv[1:] and sys.argv[1] != "-":
        good = compared(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory(prefix="precast-training-") as store:
            good = compared(store)
    if not good:
        raise SystemExit("the losses differ, or a warm process traced")


if __name__ == "__main__":
    main()
