"""A training loop as people write it: a small language model on synthetic text, AdamW; eager, then compiled, then a fresh process.

python examples/train_loop.py [STORE]      `-` or nothing for STORE is a new one, removed afterwards
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

STEPS = 20


def train(store: str | None) -> dict[str, object]:
    """The loss of each step, and how long the first ones took; with precast where a store is given."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class LanguageModel(nn.Module):
        """Predicts the next token of each prefix; its call gives the loss."""

        def __init__(self, vocabulary: int = 64, width: int = 64, layers: int = 1) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            blocks = [
                nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True) for _ in range(layers)
            ]
            self.blocks = nn.ModuleList(blocks)
            self.head = nn.Linear(width, vocabulary)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(32), persistent=False)

        def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
            hidden = self.embedding(tokens)
            for block in self.blocks:
                hidden = block(hidden, self.mask, is_causal=True)
            return F.cross_entropy(self.head(hidden).flatten(0, 1), following.flatten())

    torch.manual_seed(0)
    model = LanguageModel()
    if store is not None:
        import precast

        model = precast.compile(model, store=store)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds = [], []
    for step in range(STEPS):
        torch.manual_seed(step)
        text = torch.randint(0, 64, (8, 1)) + torch.arange(33) * torch.randint(1, 4, (8, 1))  # each row counts in steps of its own
        tokens, following = (text % 64)[:, :-1], (text % 64)[:, 1:]
        start = time.perf_counter()
        loss = model(tokens, following)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    traced = any(name.startswith("precast.capture") for name in sys.modules)
    return {"losses": losses, "first": seconds[0], "later": sorted(seconds[1:])[len(seconds) // 2], "traced": traced}


def fresh(store: str) -> dict[str, object]:
    """`train` in a process of its own. `-` for `store`: eager."""
    done = subprocess.run([sys.executable, __file__, "--train", store], stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def compared(store: str) -> bool:
    """The three runs side by side; whether the losses are the same, to rounding."""
    runs = {"eager": fresh("-"), "precast, first run": fresh(store), "precast, warm": fresh(store)}
    good = True
    for name, run in runs.items():
        differs = max(abs(a - b) / abs(b) for a, b in zip(run["losses"], runs["eager"]["losses"], strict=True))  # type: ignore[call-overload]
        good = good and differs < 1e-4
        said = (
            f"first step {run['first']:.2f} s, later {1000 * run['later']:.0f} ms, loss {run['losses'][0]:.4f} to {run['losses'][-1]:.4f}"  # type: ignore[index,operator]
        )
        print(f"{name:18}  {said}, off by {differs:.0e}; tracer: {'imported' if run['traced'] else 'not imported'}", flush=True)
    return good and not runs["precast, warm"]["traced"]


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        print(json.dumps(train(None if sys.argv[2] == "-" else sys.argv[2])))
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
