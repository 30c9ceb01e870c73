"""The rule for skinny matrix products (many rows, little depth): they are bound by memory, so a generated kernel with the epilogue fused is
faster than a library call and a kernel that reads its result again.

Deeper products gain more from the library's kernels than from fusion (docs/tuning.md has the measurements behind the bounds).
"""

from __future__ import annotations

from precast.lowering.gpu_products import Alternative, Sizes

MIN_ROWS, MIN_COLUMNS = 4096, 64
MAX_DEPTH, MAX_COLUMNS_BEYOND = 512, 256
"""Columns up to which twice the depth is allowed."""


class Shallow:
    """The rule."""

    def considers(self, sizes: Sizes) -> bool:
        """Whether a generated kernel was measured to be faster for such sizes."""
        deepest = 2 * MAX_DEPTH if sizes.columns <= MAX_COLUMNS_BEYOND else MAX_DEPTH
        return sizes.rows >= MIN_ROWS and sizes.columns >= MIN_COLUMNS and sizes.depth <= deepest

    def takes(self, alternative: Alternative) -> bool:
        """Whether the fused kernel still computes that many rows."""
        return alternative.product.size[0] >= MIN_ROWS


SHALLOW = Shallow()
