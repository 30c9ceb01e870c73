"""One artifact for every length: tiny language models compiled once with symbolic sizes, run at many, against eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import precast

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


@pytest.mark.parametrize("make", [gpt2, bert, llama], ids=lambda f: f.__name__)
def test_one_artifact_for_every_length(make: Callable[[], torch.nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().eval()
    compiled = precast.compile(model, dynamic=True, store=str(tmp_path))
    with torch.no_grad():
        for batch, length in [(2, 16), (3, 5), *((2 + n % 3, 7 + 6 * n) for n in range(14))]:
            ids = torch.randint(0, VOCABULARY, (batch, length))
            torch.testing.assert_close(compiled(input_ids=ids)[0], model(input_ids=ids)[0], atol=1e-4, rtol=1e-4)
    assert len(list((tmp_path / "programs").rglob("*.msgpack"))) == 1
