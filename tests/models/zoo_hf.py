"""Over ninety transformers architectures at tiny size, from configurations: `build(name)` gives (module, kwargs), seeded and offline."""

from __future__ import annotations

from typing import Any

import torch

Built = tuple[torch.nn.Module, dict[str, torch.Tensor]]
VOCABULARY = 131

_PLAIN: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_GROUPED: dict[str, Any] = {**_PLAIN, "num_key_value_heads": 2, "head_dim": 8}
_EXPERTS: dict[str, Any] = {**_GROUPED, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SEQUENCES: dict[str, Any] = {
    **{k: v for k, v in _PLAIN.items() if k not in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")},
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 2},
}
_T5: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "use_cache": False},
    **{"decoder_start_token_id": 0},
}
_PICTURES: dict[str, Any] = {**_PLAIN, "image_size": 32, "patch_size": 8, "num_channels": 3}
_STAGES: dict[str, Any] = {
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "embedding_size": 8,
    "num_channels": 3,
    "image_size": 32,
}
_WINDOWS: dict[str, Any] = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}

TEXT: dict[str, dict[str, Any]] = {
    **dict.fromkeys("bert roberta camembert xlm-roberta electra mpnet ernie data2vec-text megatron-bert rembert".split(), _PLAIN),
    **dict.fromkeys("layoutlm roformer ibert modernbert nystromformer".split(), _PLAIN),
    **dict.fromkeys("gpt_neox biogpt opt xglm gpt_neox_japanese".split(), _PLAIN),
    **dict.fromkeys("llama mistral qwen2 qwen3 gemma gemma2 phi phi3 stablelm starcoder2 cohere olmo olmo2 granite".split(), _GROUPED),
    **dict.fromkeys("glm glm4 smollm3 helium nemotron persimmon exaone4 ernie4_5 arcee seed_oss".split(), _GROUPED),
    **dict.fromkeys("mixtral qwen2_moe olmoe granitemoe phimoe".split(), _EXPERTS),
    "albert": {**_PLAIN, "embedding_size": 16},
    "convbert": {**_PLAIN, "embedding_size": 32},
    "deberta-v2": {**_PLAIN, "type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "distilbert": {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
    "squeezebert": {**_PLAIN, "embedding_size": 32, "q_groups": 1, "k_groups": 1, "v_groups": 1},
    "mobilebert": {**_PLAIN, "embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "fnet": _PLAIN,
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False},
    "gptj": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4, "use_cache": False},
    "gpt_neo": {**_PLAIN, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
    "falcon": {**_PLAIN, "num_kv_heads": 2},
    "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "use_cache": False},
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "use_cache": False},
}
BOTH: dict[str, dict[str, Any]] = {
    **dict.fromkeys("bart mbart pegasus marian blenderbot blenderbot-small m2m_100 plbart".split(), _SEQUENCES),
    **dict.fromkeys("t5 mt5 umt5 switch_transformers".split(), _T5),
}
PICTURES: dict[str, dict[str, Any]] = {
    **dict.fromkeys("vit deit beit dinov2 vit_msn siglip_vision_model clip_vision_model ijepa".split(), _PICTURES),
    **dict.fromkeys("resnet regnet convnext convnextv2 poolformer".split(), _STAGES),
    **dict.fromkeys("swin swinv2 donut-swin".split(), _WINDOWS),
    "mobilenet_v1": {"image_size": 32, "depth_multiplier": 0.25, "min_depth": 8},
    "mobilenet_v2": {"image_size": 32, "depth_multiplier": 0.35, "min_depth": 8},
    "segformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
}
ARCHITECTURES = tuple(sorted((*TEXT, *BOTH, *PICTURES)))
SAMPLE = ("albert", "gemma2", "gptj", "mixtral", "opt", "regnet", "swin", "bart")
"""What CI runs; the whole table is for `python -m tests.models.zoo_run` and `make test-full`."""


def build(name: str) -> Built:
    """The module in eval mode with fresh weights, and its arguments. Raises KeyError for an unknown name."""
    from transformers import AutoConfig, AutoModel

    overrides = {**TEXT, **BOTH, **PICTURES}[name]
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(name, **overrides))
    generator = torch.Generator().manual_seed(1)
    if name in PICTURES:
        side = 64 if name in ("segformer", "poolformer") else 32
        return model.eval(), {"pixel_values": torch.randn(2, 3, side, side, generator=generator)}
    ids = torch.randint(4, VOCABULARY, (2, 16), generator=generator)
    return model.eval(), {"input_ids": ids, "decoder_input_ids": ids[:, :8]} if name in BOTH else {"input_ids": ids}
