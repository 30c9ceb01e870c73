"""Tiny transformers models from configs: name -> (model, args, kwargs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
CACHES = {} if torch.__version__ >= "2.12" else {"use_cache": False}
"""Dynamo of torch 2.11 does not trace `copy.deepcopy`, by which an encoder-decoder model makes the configuration of its cache."""
Made = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]


def ids() -> torch.Tensor:
    return torch.arange(16).reshape(2, 8)


def image() -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)


def _whisper() -> Made:
    layers = {
        f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 64))
    }
    config = hf.WhisperConfig(
        vocab_size=100, d_model=32, max_source_positions=20, num_mel_bins=16, decoder_start_token_id=0, **layers, **TOKENS
    )
    return (
        hf.WhisperForConditionalGeneration(config),
        (),
        {"input_features": torch.linspace(-1, 1, 1280).reshape(2, 16, 40), "decoder_input_ids": ids(), **CACHES},
    )


MODELS: dict[str, Callable[[], Made]] = {
    "gpt2": lambda: (hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, **TOKENS)), (ids(),), {}),
    "bert": lambda: (
        hf.BertModel(hf.BertConfig(vocab_size=100, **SMALL)),
        (ids(),),
        {"attention_mask": torch.ones(2, 8, dtype=torch.long)},
    ),
    "resnet": lambda: (
        hf.ResNetForImageClassification(hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")),
        (image(),),
        {},
    ),
    "llama": lambda: (hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=100, num_key_value_heads=1, **SMALL, **TOKENS)), (ids(),), {}),
    "t5": lambda: (
        hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=100, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0)
        ),
        (),
        {"input_ids": ids(), "decoder_input_ids": ids(), **CACHES},
    ),
    "vit": lambda: (hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=8, **SMALL)), (image(),), {}),
    "whisper": _whisper,
    "convnext": lambda: (hf.ConvNextModel(hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)), (image(),), {}),
    "mamba": lambda: (hf.MambaForCausalLM(hf.MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=4)), (ids(),), {}),
}


def make(name: str) -> Made:
    """The model in eval mode with weights that depend on the name only."""
    hf.logging.set_verbosity_error()
    torch.manual_seed(sum(map(ord, name)))
    model, args, kwargs = MODELS[name]()
    return model.eval(), args, kwargs
