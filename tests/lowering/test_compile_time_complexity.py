"""How much the passes do grows with the program, not with its square: compile time is the user's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import sympy

from precast.lowering.analysis import dependencies as order
from precast.lowering.analysis.dependencies import dependencies
from precast.lowering.ir.nodes import Interned, Kernel, Load, Program, Store
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.passes.fusion import activations
from precast.lowering.passes.fusion.activations import FORMS, match_activation
from precast.lowering.passes.memory import memory_plan
from precast.lowering.passes.memory.memory_plan import plan_memory
from precast.lowering.passes.simplify import in_place
from precast.lowering.passes.simplify.in_place import write_in_place
from tests.lowering.hand_made_programs import Build, alu

SIZE = 12


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> Counter[str]:
    """Counts the calls of a function that the module names."""
    calls: Counter[str] = Counter()
    whole: Callable[..., Any] = getattr(module, name)

    def count(*args: Any) -> Any:
        calls[name] += 1
        return whole(*args)

    monkeypatch.setattr(module, name, count)
    return calls


def weights(count: int) -> Program:
    b = Build()
    last = b.input("x", 64, 64)
    for n in range(count):
        last = b.gemm(f"g{n}", last, b.input(f"w{n}", 64, 64))
    return b.program(last)


def test_inputs_that_no_step_writes_are_not_looked_for_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    program = weights(SIZE)
    calls = counted(monkeypatch, in_place, "writes")
    write_in_place(program)
    assert calls["writes"] <= 2 * len(program.steps)


def test_caches_that_are_written_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Build()
    b.input("x", 64)
    for n in range(SIZE):
        b.input(f"cache{n}", 64)
        b.kernel(f"new{n}", (64,), lambda i, n=n: b.load(f"cache{n}", i))
        row = Store(f"new{n}", sympy.S(3), b.load("x", sympy.S(n)))
        b.steps.append(Kernel(f"row{n}", (), (row,)))
        b.kernel(f"read{n}", (64,), lambda i, n=n: alu(Op.EXP, b.load(f"new{n}", i)))
        (axis,) = b.steps[-1].axes
        b.steps.append(Kernel(f"back{n}", (axis,), (Store(f"cache{n}", axis.symbol, b.load(f"new{n}", axis.symbol)),)))
    program = b.program(*(f"read{n}" for n in range(SIZE)))
    calls = counted(monkeypatch, in_place, "writes")
    changed = write_in_place(program)
    assert calls["writes"] <= 3 * len(program.steps)
    assert [s.name for s in changed.steps] == [name for n in range(SIZE) for name in (f"row{n}", f"k_read{n}")]
    assert [s.stores[0].buffer for s in changed.steps[::2]] == [f"cache{n}" for n in range(SIZE)]


def test_what_a_step_writes_is_asked_once_for_all_its_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Build()
    for n in range(SIZE):
        b.input(f"x{n}", 64)

    def total(i: Any) -> Any:
        value = b.load("x0", i)
        for n in range(1, SIZE):
            value = alu(Op.ADD, value, b.load(f"x{n}", i))
        return value

    b.kernel("e", (64,), total)
    b.kernel("out", (64,), lambda i: alu(Op.EXP, b.load("e", i)))
    program = b.program("out")
    calls = counted(monkeypatch, memory_plan, "writes")
    plan_memory(program)
    assert calls["writes"] <= 3 * len(program.steps)


def test_the_symbols_of_a_buffer_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = weights(SIZE)
    dependencies(program)
    calls = counted(monkeypatch, order, "symbols_in")
    dependencies(program)
    assert not calls


def test_forms_begin_with_the_operation_that_the_table_names() -> None:
    """Only those that begin as the value does are built."""
    load = Load("x", sympy.S.Zero, DType.F32)
    for name, op, form in FORMS:
        value = form(load)
        assert value.op is op, name  # type: ignore[union-attr]
        found = match_activation(value, load)
        assert found is not None and found[0] == name and found[2] is load


def test_no_form_is_built_for_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load("x", sympy.S.Zero, DType.F32)
    value = alu(Op.ADD, alu(Op.EXP, load), load)
    calls = counted(monkeypatch, activations, "walk")
    assert match_activation(value, load) is None and not calls


def test_fields_of_a_node_are_its_match_arguments() -> None:
    """`Interned` takes them for a node's fields, which is several times as fast as asking `dataclasses`."""
    kinds = {type(node) for node in Interned.pool.values()} | {Load}
    for kind in kinds:
        assert kind.__match_args__ == tuple(f.name for f in fields(kind))
