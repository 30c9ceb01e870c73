"""The rule for products that may go into the kernels around them: a model of time, for the library's call with the kernels around it and
for one kernel, by bytes, operations and starts.

One kernel moves fewer bytes, and computes the product at half of a library's rate; so it is faster where the product is bound by memory:
many rows and little depth. What it computes in front of the product is computed again for each block of columns, and costs most where it
reads neighbours along the depth from places that are no neighbours (the statistics of a group norm). The rates are an architecture's
(`Traits`; docs/tuning.md has the measurements behind them).
"""

from __future__ import annotations

from collections.abc import Mapping

from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.kernel_facts import cost_of, points
from precast.lowering.analysis.matmul_patterns import Product, product_of
from precast.lowering.analysis.traits import Traits
from precast.lowering.costs.work import work_of
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Buffer, Kernel, Load, Program, Reduce, Step, Value, walk
from precast.lowering.passes.gpu.matmul_template_fusion import Alternative, ProductFusion, Sizes

ROWS, COLUMNS = 64, 128
"""Of a block of a product in a kernel of ours; half as many columns where there would be few blocks."""


def considers(sizes: Sizes, traits: Traits) -> bool:
    """Whether a product is of the sizes that the model was made for."""
    return sizes.rows >= traits.own_rows and sizes.columns >= traits.own_columns and sizes.depth >= traits.own_depth


def takes(alternative: Alternative) -> bool:
    """Whether one kernel is predicted to be faster than the steps."""
    traits, buffers = alternative.traits, {b.name: b for b in alternative.program.buffers}
    if alternative.product.size[0] < traits.own_rows:
        return False
    apart = sum(_seconds(step, buffers, traits) for step in alternative.steps)
    return of_one_kernel(alternative.kernel, alternative.product, buffers, traits) < apart


def _seconds(step: Step, buffers: Mapping[str, Buffer], traits: Traits) -> float:
    """Of a library's product, of a kernel without one, or of a kernel that has taken one in."""
    product = product_of(step.axes, step.stores) if isinstance(step, Kernel) else None
    if product is not None and isinstance(step, Kernel):
        return of_one_kernel(step, product, buffers, traits)
    work = work_of(step, buffers)
    operations = work.operations or 0 if work.products else 0
    return traits.library_start + work.bytes / traits.library_bytes + operations / traits.library_operations


def shallow_products(program: Program, traits: Traits) -> Program:
    """The program with products inside of the kernels that read them, where one kernel is predicted to be faster."""
    fusion = ProductFusion(program, traits)
    for candidate in fusion.candidates():
        if considers(candidate.sizes, traits):
            for alternative in fusion.alternatives(candidate):
                if takes(alternative):
                    fusion.take(alternative)
    return fusion.program_now()


def of_one_kernel(kernel: Kernel, product: Product, buffers: Mapping[str, Buffer], traits: Traits) -> float:
    """Seconds of a kernel with a product inside."""
    rows, columns, depth = product.size
    block = min(COLUMNS, 1 << (columns - 1).bit_length())
    if -(-rows // ROWS) * -(-columns // block) < 2 * traits.processors:
        block = min(block, COLUMNS // 2)
    blocks = -(-columns // block), -(-rows // ROWS)  # how often each row and each column is read
    sums = len(product.sums)
    rate = traits.own_operations if sums == 1 else traits.own_operations_of_several
    operations = 2 * rows * blocks[0] * block * depth * sums
    values = [r for s in kernel.stores for r in store_roots(s)]
    behind = points(kernel.axes) * (cost_of(*values) - cost_of(*(v for v in walk(*values) if isinstance(v, Reduce))))
    sides = [side for s in product.sums for side in ((s.left, product.rows, blocks[0]), (s.right, product.columns, blocks[1]))]
    sides = list({value: (value, own, points(own) * depth * again) for value, own, again in sides}.values())  # those of two sums once
    around = behind + sum(cost_of(value) * count for value, _, count in sides)
    scattered = sum(_scattered(value, own, product.depth) * count for value, own, count in sides)
    seconds = traits.own_start + work_of(kernel, buffers).bytes / traits.own_bytes + operations / rate
    return seconds + around / traits.own_arithmetic + scattered / traits.own_scattered


def _scattered(side: Value, own: tuple[Axis, ...], depth: tuple[Axis, ...]) -> int:
    """How many loads of one side of a product vary with both its axes and are neighbours along neither."""
    outer, inner = {a.symbol for a in own}, {a.symbol for a in depth}
    lines = tuple(axes[-1].symbol for axes in (own, depth))
    count = 0
    for value in walk(side):
        expr = index_expr(value)
        if not isinstance(value, Load) or expr is None or not expr.free_symbols & outer or not expr.free_symbols & inner:
            continue
        found = ix.coefficients(expr, lines)
        count += found is None or 1 not in found[1] or bool(value.gathers)
    return count
