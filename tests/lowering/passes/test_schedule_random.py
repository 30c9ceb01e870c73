"""Random small programs: scheduled and unscheduled ones compute the same, in poisoned memory, after every pass."""

from __future__ import annotations

from typing import Any

import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precast.lowering.ir.nodes import Index, Program, Store, Value
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from tests.lowering.hand_made_programs import Build, F, alu, checked_schedule, const, reduce

ROWS, COLUMNS = 6, 8
UNARY = (Op.SIN, Op.TANH, Op.ABS, Op.NEG)
BINARY = (Op.ADD, Op.SUB, Op.MUL, Op.MAX, Op.MIN)
KINDS = ("unary", "binary", "row", "column", "rows", "softmax part", "transpose", "shift", "window", "position", "gemm", "flat", "mutate")


class Maker:
    """Grows a program one step at a time; every step reads earlier matrices (6x8) or row and column vectors."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.b = draw, Build()
        self.matrices = [self.b.input("x0", ROWS, COLUMNS), self.b.input("x1", ROWS, COLUMNS)]
        self.rows = [self.b.input("x2", ROWS)]
        self.columns = [self.b.input("x3", COLUMNS)]
        self.b.input("w", COLUMNS, COLUMNS)
        self.mutated = False

    def pick(self, names: list[str]) -> str:
        return self.draw(st.sampled_from(names))  # type: ignore[no-any-return]

    def step(self, number: int) -> None:
        b, draw = self.b, self.draw
        m, other = self.pick(self.matrices), self.pick(self.matrices)
        row, column = self.pick(self.rows), self.pick(self.columns)
        unary, binary = draw(st.sampled_from(UNARY)), draw(st.sampled_from(BINARY))
        name = f"t{number}"

        def matrix(body: Any) -> None:
            self.matrices.append(b.kernel(name, (ROWS, COLUMNS), body))

        match draw(st.sampled_from(KINDS)):
            case "unary":
                matrix(lambda i, j: alu(unary, b.load(m, i, j)))
            case "binary":
                matrix(lambda i, j: alu(binary, b.load(m, i, j), b.load(other, i, j)))
            case "row":
                matrix(lambda i, j: alu(binary, b.load(m, i, j), b.load(row, i)))
            case "column":
                matrix(lambda i, j: alu(binary, b.load(m, i, j), b.load(column, j)))
            case "rows":
                op = draw(st.sampled_from((ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN)))
                self.rows.append(b.kernel(name, (ROWS,), lambda i: reduce(op, COLUMNS, lambda r: b.load(m, i, r))))
            case "softmax part":
                matrix(lambda i, j: alu(Op.EXP, alu(Op.SUB, b.load(m, i, j), reduce(ReduceOp.MAX, COLUMNS, lambda r: b.load(m, i, r)))))
            case "transpose":
                self.columns.append(b.kernel(name, (COLUMNS,), lambda j: reduce(ReduceOp.SUM, ROWS, lambda r: b.load(m, r, j))))
            case "shift":
                matrix(lambda i, j: alu(Op.ADD, b.load(m, i, COLUMNS - 1 - j), b.load(other, ROWS - 1 - i, j)))
            case "window":
                matrix(lambda i, j: self.window(m, i, j))
            case "position":
                matrix(lambda i, j: self.position(m, i, j))
            case "gemm":
                self.matrices.append(b.gemm(name, m, "w"))
                matrix_bias = f"{name}b"
                body = self.biased(name, column, unary)
                self.matrices.append(b.kernel(matrix_bias, (ROWS, COLUMNS), body))
            case "flat":
                flat = b.kernel(name, (ROWS * COLUMNS,), lambda n: alu(unary, self.flat(m, n)))
                self.matrices.append(b.kernel(f"{name}m", (ROWS, COLUMNS), lambda i, j: alu(Op.NEG, self.flat(flat, COLUMNS * i + j))))
            case "mutate":
                self.mutate(name, m)

    def biased(self, name: str, column: str, unary: Op) -> Any:
        return lambda i, j: alu(unary, alu(Op.ADD, self.b.load(name, i, j), self.b.load(column, j)))

    def flat(self, name: str, n: sympy.Expr) -> Value:
        from precast.lowering.ir.nodes import Load

        return Load(name, n, F)

    def window(self, m: str, i: Any, j: Any) -> Value:
        inside = alu(Op.LT, Index(j + 1), Index(sympy.Integer(COLUMNS)), dtype=DType.BOOL)
        from precast.lowering.ir.nodes import Load

        return alu(Op.ADD, self.b.load(m, i, j), Load(m, COLUMNS * i + j + 1, F, (), inside))

    def position(self, m: str, i: Any, j: Any) -> Value:
        return alu(Op.WHERE, alu(Op.LE, Index(j), Index(i), dtype=DType.BOOL), self.b.load(m, i, j), const(-2.0))

    def mutate(self, name: str, m: str) -> None:
        """Overwrites the input x1 with something read before; later loads see the new contents."""
        if m != "x1":
            b = self.b
            b.kernel(name, (ROWS, COLUMNS), lambda i, j: alu(Op.ADD, b.load(m, i, j), const(1.0)))
            kernel = b.steps.pop()
            b.buffers.pop(name)
            store = kernel.stores[0]  # type: ignore[union-attr]
            b.steps.append(kernel.__class__(name, kernel.axes, (Store("x1", store.index, store.value),)))  # type: ignore[union-attr,call-arg]

    def program(self) -> Program:
        made = [n for n in (*self.matrices, *self.rows, *self.columns) if n.startswith("t")]
        outputs = self.draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True)) if made else []
        return self.b.program(*outputs, "x1")


@st.composite
def programs(draw: Any) -> Program:
    maker = Maker(draw)
    for number in range(draw(st.integers(2, 9))):
        maker.step(number)
    return maker.program()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_scheduling_keeps_the_function(program: Program) -> None:
    checked_schedule(program, tolerance=2e-2)
