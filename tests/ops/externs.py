"""Which operators a row of the op table may leave to torch; every other operator of every row has to become our own code.

The table is exact both ways: a row that calls torch for more has lost a lowering, a row that calls it for less has an entry to strike out.
"""

from __future__ import annotations

from typing import Any

from precast.lowering.ir.nodes import Extern, Program

EMPTY = "aten::empty_strided"
"""How a result without elements is made: nothing is computed."""

LIBRARY: dict[str, tuple[str, ...]] = {
    "argsort_gather": ("aten::sort",),
    "cdist": ("aten::_cdist_forward",),
    "cholesky": ("aten::_linalg_check_errors", "aten::linalg_cholesky_ex"),
    "fft": ("aten::_fft_r2c", "aten::abs"),
    "grid_sample": ("aten::grid_sampler_2d",),
    "inverse_det": ("aten::_linalg_check_errors", "aten::_linalg_det", "aten::linalg_inv_ex"),
    "mm/int": ("aten::mm",),
    "solve": ("aten::_linalg_check_errors", "aten::_linalg_solve_ex"),
    "sort": ("aten::sort",),
    "topk": ("aten::topk",),
}
"""Algorithms that torch's libraries hold. Rows of every dtype: the name is the id without it."""

COMPLEX: dict[str, tuple[str, ...]] = {
    "complex_multiply": ("aten::mul.Tensor", "aten::view_as_complex_copy", "aten::view_as_real_copy"),
    "view/as_real": ("aten::complex", "aten::view_as_real_copy"),
}
"""Complex numbers are torch's."""

RARE: dict[str, tuple[str, ...]] = {
    "as_strided_scatter": ("aten::as_strided_scatter",),
    "bucketize": ("aten::bucketize.Tensor",),
    "dist": ("aten::dist",),
    "embedding_bag_extern": ("aten::_embedding_bag_forward_only",),
    "histc_extern": ("aten::histc",),
    "logcumsumexp": ("aten::logcumsumexp",),
    "logcumsumexp/infinite": ("aten::logcumsumexp",),
    "masked_scatter_extern": ("aten::masked_scatter",),
    "median_extern": ("aten::median.dim",),
    "polygamma_extern": ("aten::polygamma",),
    "rand_like": ("aten::rand_like",),
    "searchsorted_extern": ("aten::searchsorted.Tensor",),
    "to/from_float8_e5m2fnuz": ("aten::_to_copy",),
    "tri_indices": ("aten::tril_indices",),
    "upsample/antialias_extern": ("aten::_upsample_bilinear2d_aa",),
    "view_dtype": ("aten::view_copy.dtype",),
}
"""Not lowered, because models hardly use them; random numbers, because they have to be eager's."""

CHECKED: dict[str, tuple[str, ...]] = {
    "bce": ("precast::check", "precast::item"),
}
"""Values that eager tests before it computes: a test of our own."""

BARE_TRACE: dict[str, tuple[str, ...]] = {
    "view/as_strided": ("aten::as_strided_copy",),
}
"""Only the tests' own tracer meets these; capture gives the graph other operators, which are lowered."""

ALLOWED = {**LIBRARY, **COMPLEX, **RARE, **CHECKED, **BARE_TRACE}


def name_of(row: Any) -> str:
    """The row's id without its dtype."""
    return str(row.id).rpartition("-")[0]


def externs(program: Program) -> tuple[str, ...]:
    """The operators that the program calls torch for, sorted."""
    steps = [step for step in program.steps if isinstance(step, Extern)]
    sizes = {buffer.name: buffer.size for buffer in program.buffers}
    return tuple(sorted({s.op for s in steps if not (s.op == EMPTY and all(0 in sizes[out] for out in s.outs))}))


def check_externs(row: Any, program: Program, *, captured: bool = False) -> None:
    """Raises AssertionError where the program calls torch for another set of operators than is written down for the row."""
    table = {**ALLOWED, **dict.fromkeys(BARE_TRACE, ())} if captured else ALLOWED
    allowed, found = table.get(name_of(row), ()), externs(program)
    assert found == allowed, f"{row.id}: torch is called for {found}, and tests/ops/externs.py allows {allowed}"
