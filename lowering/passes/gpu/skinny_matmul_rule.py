"""The rule for skinny matrix products (many rows, little depth): they are bound by memory, so a generated kernel with the epilogue fused is
faster than a library call and a kernel that reads its result again.

Deeper products gain more from the library's kernels than from fusion (docs/tuning.md has the measurements behind the bounds).
"""

from __future__ import annotations

from precast.lowering.analysis.traits import Traits
from precast.lowering.ir.nodes import Program
from precast.lowering.passes.gpu.matmul_template_fusion import Alternative, ProductFusion, Sizes


def considers(sizes: Sizes, traits: Traits) -> bool:
    """Whether a product is of the sizes for which a kernel of ours was measured to be faster."""
    deepest = traits.shallow_depth * (2 if sizes.columns <= traits.shallow_columns_beyond else 1)
    return sizes.rows >= traits.shallow_rows and sizes.columns >= traits.shallow_columns and sizes.depth <= deepest


def takes(alternative: Alternative) -> bool:
    """Whether the fused kernel still computes that many rows."""
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
