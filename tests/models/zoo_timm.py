"""One small representative of each of some fifty families of timm: `build(name)` gives (module, kwargs), seeded and offline."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.stub_packages import stand_in_for

Built = tuple[torch.nn.Module, dict[str, torch.Tensor]]
_SHALLOW: dict[str, Any] = {"depth": 2}
_STAGES: dict[str, Any] = {"depths": (1, 1, 1, 1)}
_BLOCKS: dict[str, Any] = {"layers": (1, 1, 1, 1)}


def _sized(side: int, **options: Any) -> dict[str, Any]:
    return {"img_size": side, **options}


FAMILIES: dict[str, tuple[int, dict[str, Any]]] = {
    "beit_base_patch16_224": (32, _sized(32, depth=2, embed_dim=48, num_heads=4)),
    "cait_xxs24_224": (32, _sized(32, depth=2)),
    "coat_lite_tiny": (64, _sized(64, serial_depths=(1, 1, 1, 1))),
    "coatnet_nano_rw_224": (64, _sized(64)),
    "convit_tiny": (32, _sized(32, depth=3, local_up_to_layer=2)),
    "convmixer_768_32": (32, {}),
    "convnext_atto": (64, _STAGES),
    "cs3darknet_focus_s": (64, {}),
    "crossvit_tiny_240": (240, {}),
    "davit_tiny": (64, _STAGES),
    "deit_tiny_distilled_patch16_224": (32, _sized(32, depth=2)),
    "densenet121": (64, {"block_config": (2, 2, 2, 2)}),
    "dla46_c": (64, {}),
    "dpn48b": (64, {}),
    "edgenext_xx_small": (64, {"depths": (1, 1, 2, 1)}),
    "efficientformer_l1": (224, {}),
    "efficientnet_b0": (64, {}),
    "efficientvit_b0": (64, {}),
    "eva02_tiny_patch14_224": (28, _sized(28, depth=2)),
    "fastvit_t8": (64, _BLOCKS),
    "focalnet_tiny_srf": (64, {}),
    "gcvit_xxtiny": (224, {}),
    "ghostnet_050": (64, {}),
    "gmixer_12_224": (32, _sized(32)),
    "hgnet_tiny": (64, {}),
    "hrnet_w18_small": (64, {}),
    "inception_next_atto": (64, _STAGES),
    "inception_v4": (96, {}),
    "levit_128s": (64, _sized(64)),
    "mambaout_femto": (64, _STAGES),
    "mixer_s32_224": (64, _sized(64)),
    "mobilenetv3_small_050": (64, {}),
    "mobilevit_xxs": (64, {}),
    "mvitv2_tiny": (64, _sized(64)),
    "nest_tiny": (64, _sized(64)),
    "nf_resnet26": (64, {}),
    "pit_ti_224": (64, _sized(64, depth=(1, 1, 1))),
    "poolformer_s12": (64, {}),
    "pvt_v2_b0": (64, _STAGES),
    "regnetx_002": (64, {}),
    "repvit_m0_9": (64, {}),
    "res2net50_26w_4s": (64, _BLOCKS),
    "resmlp_12_224": (32, _sized(32)),
    "resnest14d": (64, {}),
    "resnet10t": (64, {}),
    "resnetv2_18": (64, {}),
    "rexnet_100": (64, {}),
    "sequencer2d_s": (64, {"img_size": 64, "layers": (1, 1, 1, 1)}),
    "skresnet18": (64, {}),
    "swin_tiny_patch4_window7_224": (64, _sized(64, window_size=4, depths=(2, 2), num_heads=(2, 4))),
    "swinv2_tiny_window8_256": (64, _sized(64, window_size=4, depths=(2, 2), num_heads=(2, 4))),
    "tiny_vit_5m_224": (224, _STAGES),
    "tnt_s_patch16_224": (32, _sized(32, depth=2)),
    "twins_svt_small": (64, _sized(64, depths=(1, 1, 1, 1))),
    "vgg11_bn": (32, {}),
    "visformer_tiny": (64, _sized(64, depth=(1, 1, 1))),
    "vit_tiny_patch16_224": (32, _sized(32, depth=2)),
    "vit_relpos_small_patch16_224": (32, _sized(32, depth=2)),
    "volo_d1_224": (224, {}),
    "xcit_nano_12_p16_224": (64, _sized(64, depth=2)),
    "xception41": (64, {}),
}
"""By name of a model: the side of its input, and what is smaller than timm has it."""


def build(name: str) -> Built:
    """The module in eval mode with fresh weights, and its arguments: two pictures. Raises KeyError for an unknown name."""
    side, options = FAMILIES[name]
    stand_in_for("torchvision", "PIL")
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10, **options)
    return model.eval(), {"x": torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))}
