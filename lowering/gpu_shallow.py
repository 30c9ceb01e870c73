"""Products of many rows and little depth are kernels of ours: memory bounds them, and a kernel that follows a library's reads them again.

Deeper products gain more from the library's kernels than from that (docs/tuning.md has the measurements behind the bounds).
"""

from __future__ import annotations

from precast.lowering.gpu_products import Alternative, ProductFusion, Sizes
from precast.lowering.ir import Program
from precast.lowering.traits import Traits


def considers(sizes: Sizes, traits: Traits) -> bool:
    """Whether a product is of the sizes for which a kernel of ours was measured to be faster."""
    deepest = traits.shallow_depth * (2 if sizes.columns <= traits.shallow_columns_beyond else 1)
    return sizes.rows >= traits.shallow_rows and sizes.columns >= traits.shallow_columns and sizes.depth <= deepest


def takes(alternative: Alternative) -> bool:
    """Whether as many rows are left of it where it is read."""
    return alternative.product.size[0] >= alternative.traits.shallow_rows


def shallow_products(program: Program, traits: Traits) -> Program:
    """The program with such products inside of the kernels that read them."""
    fusion = ProductFusion(program, traits)
    for candidate in fusion.candidates():
        if considers(candidate.sizes, traits):
            for alternative in fusion.alternatives(candidate):
                if takes(alternative):
                    fusion.take(alternative)
    return fusion.program_now()
