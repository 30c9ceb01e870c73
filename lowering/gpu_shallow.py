"""Products of many rows and little depth are kernels of ours: memory bounds them, and a kernel that follows a library's reads them again.

Deeper products gain more from the library's kernels than from that (docs/tuning.md has the measurements behind the bounds).
"""

from __future__ import annotations

from precast.lowering.gpu_products import Alternative, ProductFusion, Sizes
from precast.lowering.ir import Program

MIN_ROWS, MIN_COLUMNS = 4096, 64
MAX_DEPTH, MAX_COLUMNS_BEYOND = 512, 256
"""Twice the depth is still worth it for as few columns."""


def considers(sizes: Sizes) -> bool:
    """Whether a product is of the sizes for which a kernel of ours was measured to be faster."""
    deepest = 2 * MAX_DEPTH if sizes.columns <= MAX_COLUMNS_BEYOND else MAX_DEPTH
    return sizes.rows >= MIN_ROWS and sizes.columns >= MIN_COLUMNS and sizes.depth <= deepest


def takes(alternative: Alternative) -> bool:
    """Whether as many rows are left of it where it is read."""
    return alternative.product.size[0] >= MIN_ROWS


def shallow_products(program: Program) -> Program:
    """The program with such products inside of the kernels that read them."""
    fusion = ProductFusion(program)
    for candidate in fusion.candidates():
        if considers(candidate.sizes):
            for alternative in fusion.alternatives(candidate):
                if takes(alternative):
                    fusion.take(alternative)
    return fusion.program_now()
