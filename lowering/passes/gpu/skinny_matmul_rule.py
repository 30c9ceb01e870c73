"""Products of many rows and little depth are kernels of ours: memory bounds them, and a kernel that follows a library's reads them again.

Deeper products gain more from the library's kernels than from that (docs/tuning.md has the measurements behind the bounds).
"""

from __future__ import annotations

from precast.lowering.passes.gpu.matmul_template_fusion import Alternative, Sizes

MIN_ROWS, MIN_COLUMNS = 4096, 64
MAX_DEPTH, MAX_COLUMNS_BEYOND = 512, 256
"""Twice the depth is still worth it for as few columns."""


class Shallow:
    """The rule."""

    def considers(self, sizes: Sizes) -> bool:
        """Whether the product is of the sizes for which a kernel of ours was measured to be faster."""
        deepest = 2 * MAX_DEPTH if sizes.columns <= MAX_COLUMNS_BEYOND else MAX_DEPTH
        return sizes.rows >= MIN_ROWS and sizes.columns >= MIN_COLUMNS and sizes.depth <= deepest

    def takes(self, alternative: Alternative) -> bool:
        """Whether as many rows are left of it where it is read."""
        return alternative.product.size[0] >= MIN_ROWS


SHALLOW = Shallow()
