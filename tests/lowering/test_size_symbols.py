"""Size symbols: what is known of them, how torch's become ours, where their values come from; and what programs over them look like."""

from __future__ import annotations

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import fx

from precast.lowering.analysis.symbol_bindings import FromSizes, FromTensor, bindings
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Attention, Buffer, Output, Program, View
from precast.lowering.ir.sizes import hint, is_unbacked, size_symbol, sizes
from precast.lowering.lower import lower
from precast.lowering.verify.evaluate import int_of
from precast.lowering.verify.interpret import run
from tests.ops.symbolic import program_of, trace_symbolic


def test_a_symbol_is_one_object_and_carries_its_facts() -> None:
    s = size_symbol("s0", 2, None, 10)
    assert s is size_symbol("s0", 2, None, 10) and s != size_symbol("s0", 2, None, 11)
    assert s.is_positive and hint(3 * s + 1) == 31 and hint(7) == 7
    assert ix.is_nonnegative(s - 2) and not ix.is_nonnegative(s - 3)
    assert not is_unbacked(s + 1) and is_unbacked(2 * size_symbol("u0", 0, None, unbacked=True))


def last_size(graph: fx.GraphModule) -> tuple[object, ...]:
    (result,) = [n for n in graph.graph.nodes if n.op == "output"][0].all_input_nodes
    return sizes(result.meta["val"].shape)


def test_a_proven_multiple_is_a_symbol_of_its_own() -> None:
    x = torch.randn(6, 10)
    graph = trace_symbolic(lambda x: x.view(-1, 2, x.shape[1]).sum(1), [x])
    rows, columns = last_size(graph)
    assert str(rows).endswith("_2") and isinstance(columns, sympy.Symbol)
    program = lower(graph, "halves")
    given = {str(b.symbol): b for b in bindings(program)}
    assert isinstance(given[str(rows)], FromTensor) and given[str(rows)].factor == 2
    for n in (6, 8, 20):
        x = torch.randn(n, 3)
        torch.testing.assert_close(run(program, [x])[0], x.view(-1, 2, 3).sum(1))


@pytest.mark.parametrize(
    ("scale", "text"), [(2.0, "2*s"), (1.5, "FloorDiv(3*s, 2)"), (0.5, "FloorDiv(s, 2)")], ids=["whole", "three halves", "half"]
)
def test_sizes_that_torch_writes_in_floats(scale: float, text: str) -> None:
    graph = trace_symbolic(lambda x: F.interpolate(x, scale_factor=scale), [torch.randn(2, 3, 8)], [[2]])
    (size,) = (n for n in last_size(graph) if not isinstance(n, int))
    (symbol,) = size.free_symbols  # type: ignore[attr-defined]
    assert str(size).replace(str(symbol), "s") == text


def test_an_integer_input_that_a_guard_made_an_expression() -> None:
    """The placeholder's value is `2 * t`: the symbol `t` is defined from it."""
    x = torch.randn(6)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, -1).sum(0)

    graph = trace_symbolic(fn, [x])
    number = graph.graph.nodes.__iter__().__next__()
    symint = number.meta["val"].shape[0]
    with graph.graph.inserting_before(number):
        given = graph.graph.placeholder("n")
    given.meta["val"] = symint
    program = lower(graph, "with its size")
    assert isinstance(program.inputs[0], sympy.Symbol)
    assert any(isinstance(b, FromSizes) for b in bindings(program))
    for n in (4, 10):
        x = torch.randn(n)
        torch.testing.assert_close(run(program, [n, x])[0], fn(x))


S, T = size_symbol("s0", 2, None, 5), size_symbol("s1", 1, None, 7)
A, B, C = ix.symbols(3)


def indices() -> list[ix.Expr]:
    """Row-major places of [T*4, S, S] and [S, T, 3], and what reshapes make of them."""
    flat, other = S**2 * A + S * B + C, 3 * T * A + 3 * B + C
    found = []
    for place, parts in ((flat, (S, S**2, 4 * S, 4 * S**2, 2, T)), (other, (3, 3 * T, T, 2 * T, 6 * T))):
        found += [f(place, p) for p in parts for f in (ix.FloorDiv, ix.Modulo)]
        found += [g(f(place, p), q) for p in parts for q in parts for f in (ix.FloorDiv, ix.Modulo) for g in (ix.FloorDiv, ix.Modulo)]
    return found


@pytest.mark.parametrize("expr", indices(), ids=str)
def test_simplified_divisions_by_sizes_are_the_same_function(expr: ix.Expr) -> None:
    extents = ((A, 4 * T), (B, S), (C, S)) if expr.has(S**2 * A) else ((A, S), (B, T), (C, 3))
    simple = ix.simplify(expr, extents)
    for s, t in ((2, 1), (5, 3), (4, 6)):
        ends = [ix.evaluate(n, {S: s, T: t}) if not isinstance(n, int) else n for _, n in extents]
        for i in range(ends[0]):
            for j in range(ends[1]):
                for k in range(ends[2]):
                    values = {S: s, T: t, A: i, B: j, C: k}
                    assert int_of(simple, values) == int_of(expr, values), (simple, values)


def test_divisions_by_sizes_vanish() -> None:
    extents = ((A, 4 * T), (B, S), (C, S))
    flat = S**2 * A + S * B + C
    assert ix.simplify(ix.FloorDiv(flat, 4 * S**2), extents) == ix.FloorDiv(A, 4)
    assert ix.simplify(ix.FloorDiv(ix.Modulo(ix.Modulo(flat, 4 * S**2), S**2), S), extents) == B


def test_attention_written_out_is_recognised() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        n, rows, width = x.shape
        q, k, v = (t.view(n, rows, 4, 8).transpose(1, 2) for t in x.split(32, dim=2))
        mask = torch.tril(torch.ones(rows, rows, dtype=torch.bool))
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, rows, 32) * 2

    scheduled = program_of(fn, [torch.randn(2, 6, 96)], [[0, 1]], schedule=True)
    (found,) = (s for s in scheduled.steps if isinstance(s, Attention))
    assert found.causal and len(scheduled.steps) == 2
    for n, rows in ((2, 6), (3, 17)):
        x = torch.randn(n, rows, 96)
        torch.testing.assert_close(run(scheduled, [x])[0], fn(x))


def test_a_symbol_that_nothing_gives_is_an_error() -> None:
    s = size_symbol("s9")
    buffer = Buffer("x", program_of(torch.neg, [torch.randn(3)], schedule=False).buffers[0].dtype, (s * s,), (1,))
    program = Program("squares", (s,), ("x",), (Output(View("x", (s * s,), (1,))),), (buffer,), ())
    with pytest.raises(ValueError, match="s9 can be read off no input"):
        bindings(program)
