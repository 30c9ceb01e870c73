"""Tiny language models and the batches and lengths that they are called with. In a process of its own it serves them from their stores,
while no frame of precast may import the tracer: `python -m tests.models.dynamic_models FOLDER` prints what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.refuse_tracer import refuse_tracer

SIZES = [(2, 16), (3, 5), *((2 + n % 3, 7 + 6 * n) for n in range(14))]
"""The first is what is compiled for."""
VOCABULARY = 500


def gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=VOCABULARY, use_cache=False))


def bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=VOCABULARY)
    return BertModel(config)


def llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"gpt2": gpt2, "bert": bert, "llama": llama}


def agree(compiled: Any, model: torch.nn.Module, sizes: list[tuple[int, int]]) -> None:
    """Calls both with token ids of each size. Raises AssertionError where they differ."""
    with torch.no_grad():
        for batch, length in sizes:
            ids = torch.randint(0, VOCABULARY, (batch, length))
            torch.testing.assert_close(compiled(input_ids=ids)[0], model(input_ids=ids)[0], atol=1e-4, rtol=1e-4)


def main(folder: Path) -> None:
    import precast

    attempts = refuse_tracer()
    for store in sorted(folder.iterdir()):
        model = MODELS[store.name]().eval()
        agree(precast.load(model, store=store, options={"dynamic": "yes"}, require="hit"), model, [*SIZES, (7, 100)])
        print(store.name, *attempts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
