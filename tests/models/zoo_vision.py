"""Small vision models of the kinds that people train, with torch alone: `build(name)` gives (module, kwargs), seeded and offline."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.training_rows import DenseNet

Built = tuple[nn.Module, dict[str, Tensor]]


def _norm(into: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(out)]


class Classifier(nn.Module):
    """Features, their mean over the picture, and a layer of logits."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.features(pixel_values).mean((2, 3)))


class Residual(nn.Module):
    """ResNet's bottleneck, whose ReLUs write in place."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_norm(into, out // 2, 1), nn.ReLU(True), *_norm(out // 2, out // 2, 3, stride), nn.ReLU(True), *_norm(out // 2, out, 1)
        )
        self.short = nn.Sequential(*_norm(into, out, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        found += self.short(x)
        return F.relu_(found)


class Shuffle(nn.Module):
    """ShuffleNet v2's unit: half of the channels pass, the others go through depthwise convolutions, then both are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            *_norm(half, half, 1), nn.ReLU(True), *_norm(half, half, 3, groups=half), *_norm(half, half, 1), nn.ReLU(True)
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        found = torch.cat([left, self.branch(right)], 1)
        batch, channels, height, width = found.shape
        return found.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


class Inverted(nn.Module):
    """MobileNetV3's and EfficientNet's block: expansion, depthwise convolution, squeeze-and-excitation, stochastic depth."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 3 * channels
        self.first = nn.Sequential(*_norm(channels, wide, 1), nn.Hardswish(True), *_norm(wide, wide, 3, groups=wide), nn.SiLU(True))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 4, 1), nn.ReLU(), nn.Conv2d(4, wide, 1), nn.Hardsigmoid())
        self.last = nn.Sequential(*_norm(wide, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(x)
        found = self.last(found * self.squeeze(found))
        if self.training:
            found = found * (torch.rand(x.shape[0], 1, 1, 1, device=x.device) < 0.8).to(found.dtype) / 0.8
        return x + found


class Inception(nn.Module):
    """Four branches side by side, one of them pools."""

    def __init__(self, into: int) -> None:
        super().__init__()
        self.one = nn.Sequential(*_norm(into, 8, 1), nn.ReLU())
        self.three = nn.Sequential(*_norm(into, 4, 1), nn.ReLU(), *_norm(4, 8, 3), nn.ReLU())
        self.apart = nn.Sequential(nn.Conv2d(into, 4, (1, 5), padding=(0, 2)), nn.Conv2d(4, 8, (5, 1), padding=(2, 0)), nn.BatchNorm2d(8))
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), *_norm(into, 8, 1), nn.ReLU6())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.apart(x), self.pooled(x)], 1)


class Mixer(nn.Module):
    """MLP-Mixer: patches, then layers over tokens and over channels."""

    def __init__(self, width: int = 24, tokens: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.across = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, tokens))
        self.within = nn.Sequential(nn.Linear(width, 48), nn.GELU(approximate="tanh"), nn.Dropout(0.1), nn.Linear(48, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.within(self.norms[1](x))
        return x.transpose(1, 2).unflatten(2, (4, 4))


class UNet(nn.Module):
    """Down, attention in the middle, up by transposed convolution and interpolation, with skips; group norms: a denoiser."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 2 * width, 3, 2, 1))
        self.norm, self.qkv = nn.GroupNorm(4, 2 * width), nn.Conv2d(2 * width, 6 * width, 1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.leave = nn.Sequential(nn.GroupNorm(4, 2 * width), nn.SiLU(), nn.Dropout2d(0.1), nn.Conv2d(2 * width, 3, 3, padding=1))

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        entered = self.enter(pixel_values)
        x = self.down(entered)
        batch, channels, height, width = x.shape
        q, k, v = (t.flatten(2).transpose(1, 2).unflatten(2, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, 1))
        found = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).transpose(1, 2)
        x = x + found.reshape(batch, channels, height, width)
        coarse = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.leave(torch.cat([self.up(x), entered], 1)), coarse.mean(1)


class Pyramid(nn.Module):
    """A detector's neck and heads: features of two sizes, laterals, nearest upsampling, scores and boxes of both."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_norm(3, width, 3, 2), nn.LeakyReLU(0.1, True), nn.MaxPool2d(3, 2, 1))
        self.low = Residual(width, width, 1)
        self.high = Residual(width, 2 * width, 2)
        self.lateral = nn.ModuleList([nn.Conv2d(width, width, 1), nn.Conv2d(2 * width, width, 1)])
        self.scores, self.boxes = nn.Conv2d(width, 5, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        low = self.low(self.stem(pixel_values))
        high = self.lateral[1](self.high(low))
        low = self.lateral[0](low) + F.interpolate(high, size=low.shape[-2:], mode="nearest")
        levels = [low, high]
        scores = torch.cat([self.scores(t).flatten(2).transpose(1, 2) for t in levels], 1)
        boxes = torch.cat([self.boxes(t).flatten(2).transpose(1, 2) for t in levels], 1)
        return {"scores": scores.log_softmax(-1), "boxes": boxes.exp()}


class VGG(nn.Module):
    """Plain convolutions and pools, then wide layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for into, out in ((3, 8), (8, 16), (16, 24)):
            layers += [nn.Conv2d(into, out, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(24 * 16, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10))

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(torch.flatten(self.features(pixel_values), 1))


MODELS = {
    "densenet": lambda: DenseNet(8, (2, 2), 10),
    "resnet": lambda: Classifier(nn.Sequential(*_norm(3, 16), nn.ReLU(True), Residual(16, 32, 2), Residual(32, 32, 1)), 32),
    "shufflenet": lambda: Classifier(nn.Sequential(*_norm(3, 16, 3, 2), nn.ReLU(True), Shuffle(16), Shuffle(16)), 16),
    "efficientnet": lambda: Classifier(nn.Sequential(*_norm(3, 16, 3, 2), nn.SiLU(True), Inverted(16), Inverted(16)), 16),
    "inception": lambda: Classifier(nn.Sequential(*_norm(3, 8, 3, 2), nn.ReLU(True), Inception(8), nn.MaxPool2d(2), Inception(32)), 32),
    "mixer": lambda: Classifier(Mixer(), 24),
    "unet": UNet,
    "pyramid": Pyramid,
    "vgg": VGG,
}


def build(name: str) -> Built:
    """The module in eval mode with fresh weights, and its arguments: two pictures. Raises KeyError for an unknown name."""
    torch.manual_seed(0)
    model = MODELS[name]()
    return model.eval(), {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))}
