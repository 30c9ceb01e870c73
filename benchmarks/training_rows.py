"""The rows of the training benchmark: a real model with its loss, and one batch; built with seeded weights and without a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = dict[str, Tensor]


class WithLoss(nn.Module):
    """A model of logits with cross-entropy over them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, labels: Tensor, **inputs: Tensor) -> Tensor:
        found = self.model(**inputs)
        logits = found if isinstance(found, Tensor) else found.logits
        return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


class DenseNet(nn.Module):
    """DenseNet-121 (Huang et al., 2017): growth rate 32, blocks of 6, 12, 24 and 16 layers, ImageNet stem."""

    def __init__(self, growth: int = 32, blocks: tuple[int, ...] = (6, 12, 24, 16), classes: int = 1000) -> None:
        super().__init__()
        channels = 64
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for number, depth in enumerate(blocks):
            for _ in range(depth):
                layers.append(DenseLayer(channels, growth))
                channels += growth
            if number + 1 < len(blocks):
                layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.features(pixel_values).mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(4 * growth)])
        self.narrow = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.wide = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found = self.wide(F.relu(self.norms[1](self.narrow(F.relu(self.norms[0](x))))))
        return torch.cat([x, found], 1)


@dataclass(frozen=True)
class TrainingRow:
    """`small`, `large`: sizes on a CPU and on a GPU; `dtype`: of the weights on a GPU (float32 on a CPU)."""

    name: str
    title: str
    model: Callable[[bool], nn.Module]
    inputs: Callable[[bool], Inputs]
    dtype: torch.dtype = torch.bfloat16


def _resnet(large: bool) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(num_labels=1000))


def _bert(large: bool) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig())


def _gpt2(large: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def _vit(large: bool) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    wide = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096} if large else {}
    return ViTForImageClassification(ViTConfig(num_labels=1000, **wide))


def _llama(large: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = (4096, 32, 11008) if large else (768, 12, 2048)
    config = LlamaConfig(
        hidden_size=sizes[0],
        num_attention_heads=sizes[1],
        num_key_value_heads=sizes[1],
        intermediate_size=sizes[2],
        num_hidden_layers=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def _tiny(large: bool) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=1000))


def _text(vocabulary: int, small: tuple[int, int], large: tuple[int, int]) -> Callable[[bool], Inputs]:
    def make(wide: bool) -> Inputs:
        size = large if wide else small
        return {"input_ids": torch.randint(0, vocabulary, size), "labels": torch.randint(0, vocabulary, size)}

    return make


def _images(small: tuple[int, int], large: tuple[int, int]) -> Callable[[bool], Inputs]:
    def make(wide: bool) -> Inputs:
        batch, side = large if wide else small
        return {"pixel_values": torch.randn(batch, 3, side, side), "labels": torch.randint(0, 1000, (batch,))}

    return make


ROWS = {
    row.name: row
    for row in (
        TrainingRow("resnet50", "ResNet-50 (4x224², on a GPU 32x224²)", _resnet, _images((4, 224), (32, 224))),
        TrainingRow("bert", "BERT-base (2x128, on a GPU 16x128)", _bert, _text(30522, (2, 128), (16, 128))),
        TrainingRow("gpt2", "GPT-2 (1x256, on a GPU 8x512)", _gpt2, _text(50257, (1, 256), (8, 512))),
        TrainingRow(
            "densenet",
            "DenseNet-121 (4x128², on a GPU 16x128², float32)",
            lambda _: DenseNet(),
            _images((4, 128), (16, 128)),
            torch.float32,
        ),
        TrainingRow("vit", "ViT-B 2x224², on a GPU ViT-L 16x224²", _vit, _images((2, 224), (16, 224))),
        TrainingRow("llama", "Llama of 8 layers (768 wide, 1x256; on a GPU 4096 wide, 1x512)", _llama, _text(32000, (1, 256), (1, 512))),
        TrainingRow("tiny", "tiny BERT 2x16 (checks the harness)", _tiny, _text(1000, (2, 16), (2, 16))),
    )
}


def build(name: str, device: str) -> tuple[nn.Module, Inputs]:
    """The row's model with its loss in training mode, and a batch; equal in every process."""
    row, large = ROWS[name], device != "cpu"
    torch.manual_seed(0)
    with torch.device(device):
        model = WithLoss(row.model(large))
        inputs = row.inputs(large)
    if large:
        model = model.to(row.dtype)
        inputs = {k: v.to(row.dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    return model.train(), inputs
