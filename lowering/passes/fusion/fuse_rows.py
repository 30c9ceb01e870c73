"""Fusion of normalised rows once more, when the axes that a row's index divides are axes of their own: a group's mean is then read at the
same point for all of the group.
"""

from __future__ import annotations

from precast.lowering.analysis.effects import store_roots
from precast.lowering.analysis.row_statistics import rows_in_one_piece
from precast.lowering.ir.nodes import Kernel, Program, Reduce, walk
from precast.lowering.passes.fusion.fusion import fuse


def fuse_rows(program: Program) -> Program:
    """The program with kernels fused that are over the same rows, if each of these rows lies in one piece of memory."""
    if sum(isinstance(s, Kernel) and _reduces(s) for s in program.steps) == 0:
        return program
    fused = fuse(program)
    before = {id(s) for s in program.steps}
    fresh = [s for s in fused.steps if isinstance(s, Kernel) and id(s) not in before and _reduces(s)]
    return fused if fresh and all(rows_in_one_piece(k) for k in fresh) else program


def _reduces(kernel: Kernel) -> bool:
    return any(isinstance(v, Reduce) for s in kernel.stores for v in walk(*store_roots(s)))


__all__ = ["fuse_rows"]
