"""Size symbols: what is known of them, how torch's become ours, where their values come from; and what programs over them look like."""

from __future__ import annotations

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import fx

from precast.lowering import index as ix
from precast.lowering.binding import FromSizes, FromTensor, bindings
from precast.lowering.interpret import run
from precast.lowering.ir import Buffer, Output, Program, View
from precast.lowering.lower import lower
from precast.lowering.sizes import hint, is_unbacked, size_symbol, sizes
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


def test_a_symbol_that_nothing_gives_is_an_error() -> None:
    s = size_symbol("s9")
    buffer = Buffer("x", program_of(torch.neg, [torch.randn(3)], schedule=False).buffers[0].dtype, (s * s,), (1,))
    program = Program("squares", (s,), ("x",), (Output(View("x", (s * s,), (1,))),), (buffer,), ())
    with pytest.raises(ValueError, match="s9 can be read off no input"):
        bindings(program)
