"""Image generators among the archetypes: a latent diffusion model's U-Net of Stable Diffusion 1.5's shape, the decoder of its latents,
and a diffusion transformer.
"""

from __future__ import annotations

import math

import torch
from archetype_rows import Archetype, Inputs, SelfAttention, heads_of
from torch import Tensor, nn
from torch.nn import functional as F


def frequencies(t: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Cosines and sines of the steps in time."""
    angle = t[:, None].float() * torch.exp(-math.log(1e4) * torch.arange(width // 2, device=t.device) / (width // 2))
    return torch.cat([angle.cos(), angle.sin()], dim=-1).to(dtype)


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, time: int = 0, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner, eps), nn.Conv2d(inner, outer, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer, eps), nn.Conv2d(outer, outer, 3, 1, 1)
        self.time = nn.Linear(time, outer) if time else None
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None and time is not None:
            h = h + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads, self.q, self.out = heads, nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.k, self.v = nn.Linear(context, width, bias=False), nn.Linear(context, width, bias=False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = (heads_of(t, self.heads) for t in (self.q(x), self.k(context), self.v(context)))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Pixels attend to one another and to the text."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.GroupNorm(32, width, 1e-6), nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = Attention(width, heads, width), Attention(width, heads, context)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        h = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        own = self.norms[0](h)
        h = h + self.own(own, own)
        h = h + self.text(self.norms[1](h), context)
        value, gate = self.up(self.norms[2](h)).chunk(2, dim=-1)
        h = h + self.down(value * F.gelu(gate))
        return x + self.leave(h.transpose(1, 2).unflatten(2, x.shape[2:]))


class Unet(nn.Module):
    """Four levels, of which all but the deepest attend; two blocks a level on the way down, three on the way up."""

    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280, 1280), heads: int = 8, context: int = 768) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.first, self.time = first, nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, first, 3, 1, 1)
        self.down, self.up, kept, inner = nn.ModuleList(), nn.ModuleList(), [first], first
        for level, width in enumerate(widths):
            for _ in range(2):
                attend = [Transformer(width, heads, context)] if level < 3 else []
                self.down.append(nn.ModuleList([Residual(inner, width, time), *attend]))
                kept.append(inner := width)
            if level < 3:
                self.down.append(nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1)]))
                kept.append(width)
        self.middle = nn.ModuleList([Residual(inner, inner, time), Transformer(inner, heads, context), Residual(inner, inner, time)])
        for level, width in reversed(list(enumerate(widths))):
            for number in range(3):
                attend = [Transformer(width, heads, context)] if level < 3 else []
                larger = [nn.Upsample(scale_factor=2.0), nn.Conv2d(width, width, 3, 1, 1)] if number == 2 and level else []
                self.up.append(nn.ModuleList([Residual(inner + kept.pop(), width, time), *attend, *larger]))
                inner = width
        self.leave = nn.Sequential(nn.GroupNorm(32, first), nn.SiLU(), nn.Conv2d(first, 4, 3, 1, 1))

    def _through(self, parts: nn.ModuleList, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        for part in parts:
            x = part(x, time) if isinstance(part, Residual) else part(x, context) if isinstance(part, Transformer) else part(x)
        return x

    def forward(self, x: Tensor, step: Tensor, context: Tensor) -> Tensor:
        time = self.time(frequencies(step, self.first, x.dtype))
        kept = [x := self.enter(x)]
        for parts in self.down:
            kept.append(x := self._through(parts, x, time, context))
        x = self._through(self.middle, x, time, context)
        for parts in self.up:
            x = self._through(parts, torch.cat([x, kept.pop()], dim=1), time, context)
        return self.leave(x)


class LatentDecoder(nn.Module):
    """Latents to an image of eight times the side: residual blocks, attention of one head, nearest resampling."""

    def __init__(self, widths: tuple[int, ...] = (512, 512, 256, 128)) -> None:
        super().__init__()
        inner = widths[0]
        self.enter = nn.Conv2d(4, inner, 3, 1, 1)
        self.first, self.second = Residual(inner, inner, eps=1e-6), Residual(inner, inner, eps=1e-6)
        self.norm, self.attention = nn.GroupNorm(32, inner, 1e-6), SelfAttention(inner, 1)
        blocks: list[nn.Module] = []
        for level, width in enumerate(widths):
            for _ in range(3):
                blocks.append(Residual(inner, width, eps=1e-6))
                inner = width
            if level < len(widths) - 1:
                blocks += [nn.Upsample(scale_factor=2.0), nn.Conv2d(width, width, 3, 1, 1)]
        self.up = nn.Sequential(*blocks)
        self.leave = nn.Sequential(nn.GroupNorm(32, inner, 1e-6), nn.SiLU(), nn.Conv2d(inner, 3, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.enter(x))
        x = x + self.attention(self.norm(x).flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[2:])
        return self.leave(self.up(self.second(x)))


class ModulatedBlock(nn.Module):
    """A transformer's block, of which the step in time scales, shifts and gates both halves."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention, self.modulate = SelfAttention(width, heads), nn.Linear(width, 6 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulate(F.silu(time))[:, None].chunk(6, dim=-1)
        x = x + gate * self.attention(self.norm(x) * (1 + scale) + shift)
        return x + gate2 * self.down(F.gelu(self.up(self.norm(x) * (1 + scale2) + shift2), approximate="tanh"))


class DiffusionTransformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, side: int, patch: int = 2) -> None:
        super().__init__()
        self.width, self.patch, self.side = width, patch, side // patch
        self.enter = nn.Conv2d(4, width, patch, patch)
        self.place = nn.Parameter(torch.randn(1, self.side**2, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(ModulatedBlock(width, heads) for _ in range(layers))
        self.norm, self.modulate = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, 2 * width)
        self.leave = nn.Linear(width, patch * patch * 4)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        time = self.time(frequencies(step, 256, x.dtype))
        x = self.enter(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x, time)
        shift, scale = self.modulate(F.silu(time))[:, None].chunk(2, dim=-1)
        x = self.leave(self.norm(x) * (1 + scale) + shift)
        return x.view(-1, self.side, self.side, self.patch, self.patch, 4).permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def _unet(small: bool) -> tuple[nn.Module, Inputs]:
    batch, side, context = (1, 16, 64) if small else (2, 64, 768)
    module = Unet((32, 64, 128, 128), 4, context) if small else Unet()
    return module, (torch.randn(batch, 4, side, side), torch.randint(0, 1000, (batch,)), torch.randn(batch, 77, context))


def _latents(small: bool) -> tuple[nn.Module, Inputs]:
    return LatentDecoder((64, 64, 32, 32)) if small else LatentDecoder(), (torch.randn((1, 4, 16, 16) if small else (1, 4, 64, 64)),)


def _transformer(small: bool) -> tuple[nn.Module, Inputs]:
    width, layers, heads, batch, side = (192, 3, 3, 1, 16) if small else (1024, 24, 16, 4, 32)
    return DiffusionTransformer(width, layers, heads, side), (torch.randn(batch, 4, side, side), torch.randint(0, 1000, (batch,)))


ROWS = {
    row.name: row
    for row in (
        Archetype("unet", "Stable Diffusion 1.5's U-Net 2x4x64², 77 tokens", _unet, torch.float16),
        Archetype("latent decoder", "decoder of latents to 512²", _latents, torch.float16),
        Archetype("diffusion transformer", "24x1024, 4x4x32²", _transformer),
    )
}
