"""Step order and the memory plan: what shares bytes, what must not, and that the peak stays below keeping everything as eager does."""

from __future__ import annotations

import pytest
import sympy

from precast.lowering.analysis.buffer_bytes import ALIGNMENT, nbytes_of
from precast.lowering.analysis.dependencies import order_steps
from precast.lowering.analysis.liveness import lifetimes
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Program
from precast.lowering.ir.scalars import Op
from precast.lowering.passes.memory.memory_plan import plan_memory
from precast.lowering.verify.evaluate import int_of
from precast.lowering.verify.verify import verify
from tests.lowering.hand_made_programs import Build, alu, checked_schedule, random_inputs


def gemm_chain(length: int) -> Build:
    b = Build()
    last = b.input("x", 64, 64)
    for n in range(length):
        last = b.gemm(f"g{n}", last, b.input(f"w{n}", 64, 64))
    return b


def eager_peak(program: Program) -> int:
    """Bytes of temporaries and outputs that eager holds at once when it frees each tensor after its last use (steps in the given order)."""
    live = lifetimes(program)
    size = {b.name: int(nbytes_of(b)) for b in program.buffers}
    inside = [n for n in live if n not in program.inputs]
    return max(sum(size[n] for n in inside if live[n][0] <= p <= live[n][1]) for p in range(len(program.steps)))


def test_a_chain_needs_two_buffers() -> None:
    program = checked_schedule(gemm_chain(8).program("g7"), tolerance=1e-1)
    assert int(program.workspace_bytes) == 2 * 64 * 64 * 4


def test_a_pointwise_step_writes_over_its_dying_operand() -> None:
    b = gemm_chain(2)
    b.kernel("e", (64, 64), lambda i, j: alu(Op.EXP, alu(Op.MUL, b.load("g1", i, j), b.load("g0", i, j))))
    b.gemm("out", "e", "w0")
    planned = plan_memory(verify(b.program("out")))
    slots = {s.buffer: s.offset for s in verify(planned).workspace}
    assert slots["e"] in (slots["g0"], slots["g1"]) and slots["g0"] != slots["g1"]


def test_a_transposing_step_does_not() -> None:
    b = gemm_chain(1)
    b.kernel("e", (64, 64), lambda i, j: alu(Op.EXP, b.load("g0", j, i)))
    b.gemm("out", "e", "w0")
    slots = {s.buffer: s.offset for s in verify(plan_memory(b.program("out"))).workspace}
    assert slots["e"] != slots["g0"]


def test_outputs_inputs_and_alignment() -> None:
    b = Build()
    b.input("x", 5)
    b.input("w", 5, 5)
    b.kernel("a", (5,), lambda i: alu(Op.EXP, b.load("x", i)))
    b.kernel("row", (1, 5), lambda i, j: alu(Op.SIN, b.load("x", j)))
    b.gemm("y", "row", "w")
    program = plan_memory(b.program("y", "a"))
    assert {s.buffer for s in program.workspace} == {"row"}
    assert all(int_of(s.offset, {}) % ALIGNMENT == 0 and int_of(s.nbytes, {}) % ALIGNMENT == 0 for s in program.workspace)


def wide_then_narrow() -> Program:
    """Four big products, each summed to a row before the next is needed: the given order keeps all four alive."""
    b = Build()
    b.input("x", 64, 64)
    names = [b.gemm(f"big{n}", "x", b.input(f"w{n}", 64, 64)) for n in range(4)]
    small = [b.gemm(f"small{n}", name, b.input(f"v{n}", 64, 1)) for n, name in enumerate(names)]
    b.kernel("y", (64, 1), lambda i, j: alu(Op.ADD, b.load(small[0], i, j), alu(Op.MUL, b.load(small[1], i, j), b.load(small[2], i, j))))
    b.kernel("z", (64, 1), lambda i, j: alu(Op.MUL, b.load(small[3], i, j), b.load("y", i, j)))
    return b.program("z")


def test_the_order_shortens_lifetimes() -> None:
    program = wide_then_narrow()
    assert int(plan_memory(order_steps(program)).workspace_bytes) < int(plan_memory(program).workspace_bytes) // 2
    checked_schedule(program, tolerance=1e-1)


@pytest.mark.parametrize("make", [lambda: gemm_chain(5).program("g4"), wide_then_narrow], ids=["chain", "wide"])
def test_the_workspace_is_not_above_eagers_peak(make) -> None:  # type: ignore[no-untyped-def]
    program = make()
    scheduled = checked_schedule(program, tolerance=1e-1)
    assert int(scheduled.workspace_bytes) <= eager_peak(program)


def test_symbolic_sizes_share_equal_slots_only() -> None:
    s = sympy.Symbol("s0", integer=True, positive=True)
    b = Build()
    b.input("x", s, 8)
    for n in range(4):
        b.gemm(f"g{n}", f"g{n - 1}" if n else "x", b.input(f"w{n}", 8, 8))
    b.gemm("wide", "g3", b.input("v", 8, 16))
    b.gemm("y", "wide", b.input("u", 16, 4))
    program = checked_schedule(b.program("y"), tolerance=1e-1, s0=5)
    offsets = {x.buffer: x.offset for x in program.workspace}
    assert offsets["g0"] == offsets["g2"] and offsets["g0"] != offsets["g1"]
    assert int_of(program.workspace_bytes, {s: 5}) >= 2 * 5 * 8 * 4 + 5 * 16 * 4
    assert random_inputs(program, s0=3)[0].shape == (3, 8) and ix.contiguous_strides((s, 8)) == (8, 1)
