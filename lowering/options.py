"""The options of a compile that decide about lowering and scheduling. Read once, from the options that are part of an artifact's key."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoweringOptions:
    """Everything but the graph and the target that `lower` and `schedule` depend on."""

    freeze: bool = False
    """Weights may be copied once per binding: folded, merged, or in another layout."""
    epilogue_fusion: bool = True
    """What follows a product or a convolution may become part of it."""
    fallback_random: bool = True
    """Random numbers are eager's."""
    deterministic: bool = False
    """On a GPU, operators whose writes may collide stay torch's own."""
    memory_growth: float = 0.1
    """The share of the peak of memory that results made early, together or once for all may add to it."""
    updates: bool = False
    """The graph's inputs do not overlap, and it updates some of them in place, element by element: an optimiser's step."""


DEFAULTS = LoweringOptions()
