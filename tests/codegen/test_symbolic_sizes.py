"""One library for many sizes: graphs traced at one size, compiled once, run at others against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F

import precast
from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.cpp.index_printer import IndexPrinter
from precast.lowering.lower import lower
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import schedule
from tests.codegen.loader import Loaded
from tests.ops.symbolic import Dims, agree, runs, trace_symbolic

r = torch.randn
Make = Callable[..., list[torch.Tensor]]


@dataclass(frozen=True)
class Case:
    fn: Callable[..., Any]
    make: Make
    sizes: Sequence[tuple[int, ...]]
    """The first is the traced one."""
    dynamic: Sequence[Dims] | None = None


def perceptron(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return F.linear(F.gelu(F.linear(x, a, b)), c, d)


def written_out_attention(x: Any, w: Any, bias: Any) -> Any:
    n, rows, width = x.shape
    q, k, v = (t.view(n, rows, 4, 8).transpose(1, 2) for t in F.linear(x, w, bias).split(32, dim=2))
    mask = torch.tril(torch.ones(rows, rows, dtype=torch.bool))
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, rows, width)


def heads(q: Any, k: Any, v: Any) -> Any:
    n, rows, number, depth = q.shape
    found = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
    return found.transpose(1, 2).reshape(n, rows, number * depth)


def convolutions(x: Any, w: Any, gamma: Any, beta: Any, mean: Any, var: Any, last: Any) -> Any:
    y = F.relu(F.batch_norm(F.conv2d(x, w, None, 1, 1), mean, var, gamma, beta))
    return F.adaptive_avg_pool2d(F.conv2d(y, last) + x, 1).flatten(1)


def convolution_inputs(n: int, side: int) -> list[torch.Tensor]:
    return [r(n, 8, side, side), r(8, 8, 3, 3) * 0.1, r(8), r(8), r(8), r(8).abs() + 0.5, r(8, 8, 1, 1) * 0.1]


CASES: dict[str, Case] = {
    "roll by nothing": Case(lambda x: torch.roll(x, 0, 0), lambda *n: [r(*n)], [(4, 5), (7, 3)]),
    "nothing joined": Case(lambda x: torch.cat([x * 2, x[:0]]), lambda *n: [r(*n)], [(4, 5), (7, 3)]),
    "perceptron": Case(
        perceptron, lambda n: [r(n, 16), r(32, 16), r(32), r(8, 32), r(8)], [(5,), (2,), (17,), (300,)], [[0], [], [], [], []]
    ),
    "softmax": Case(
        lambda x: (torch.softmax(x, -1), torch.log_softmax(x, 0)), lambda n, m: [r(n, m)], [(5, 7), (2, 3), (100, 1000), (3, 9000)]
    ),
    "layer norm": Case(lambda x, w, b: F.layer_norm(x, (16,), w, b), lambda n: [r(n, 3, 16), r(16), r(16)], [(5,), (2,), (70,)]),
    "norm over a symbolic width": Case(lambda x: F.layer_norm(x, x.shape[-1:]), lambda n, m: [r(n, m)], [(5, 7), (2, 3), (64, 300)]),
    "roll": Case(lambda x: (x.roll(2), x.roll((1, -1), (0, 2)), x.roll(3, 1)), lambda a, b, c: [r(a, b, c)], [(3, 4, 5), (4, 7, 9)]),
    "reshaped": Case(
        lambda x: (x.transpose(1, 2).reshape(x.shape[0], -1) + 1, x.repeat(2, 3, 1)), lambda a, b, c: [r(a, b, c)], [(3, 4, 5), (4, 7, 9)]
    ),
    "convolutions": Case(convolutions, convolution_inputs, [(4, 14), (3, 17), (2, 30)], [[0, 2, 3], *[[]] * 6]),
    "attention": Case(heads, lambda n, s: [r(n, s, 4, 8) for _ in "qkv"], [(2, 6), (3, 17), (2, 2), (5, 200)], [[0, 1]] * 3),
    "attention written out": Case(
        written_out_attention, lambda n, s: [r(n, s, 32), r(96, 32), r(96)], [(2, 6), (3, 17), (2, 130)], [[0, 1], [], []]
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_library_for_many_sizes(name: str) -> None:
    case = CASES[name]
    backends = runs(case.fn, case.make(*case.sizes[0]), case.dynamic)
    for size in case.sizes:
        inputs = case.make(*size)
        want = case.fn(*inputs)
        for backend, run in backends.items():
            try:
                agree(want, run(*inputs))
            except Exception as error:
                error.add_note(f"{name} at {size}, {backend}")
                raise


def test_prepared_weights_serve_every_number_of_rows() -> None:
    """`freeze` packs weights whose products have a symbolic number of rows."""
    inputs = [r(6, 64), r(128, 64), r(128), r(32, 128), r(32)]
    bound = ("in1", "in2", "in3", "in4")
    graph = trace_symbolic(perceptron, inputs, [[0], [], [], [], []])
    program = schedule(lower(graph, "frozen"), "cpu:native", LoweringOptions(freeze=True), bound, check=True)
    library = compile_program(program, "cpu:native", CodegenOptions(freeze=True, measure=False), CompileContext(bound=bound))
    assert b"precast_prepare" in library.library
    loaded = Loaded(library.library, 1)
    for n in (6, 50, 300):
        given = [r(n, 64), *inputs[1:]]
        agree(perceptron(*given), loaded(*given), 1e-3)


@pytest.mark.parametrize("function", [sympy.Max, sympy.Min])
def test_the_largest_of_many_sizes_is_written_once_each(function: Any) -> None:
    """Comparisons in place would write each operand twice, and those inside it again: gigabytes of source for sixty sizes."""
    sizes = sympy.symbols("s0:64", integer=True, nonnegative=True)
    text = IndexPrinter({}).print(function(*(a * b for a, b in zip(sizes, sizes[1:], strict=False))), {s: s.name for s in sizes})
    assert len(text) < 64 * 40
    values = {s.name: 3 + 7 * n % 61 for n, s in enumerate(sizes)}
    found = eval(text, {"max_index": max, "min_index": min}, values)
    ordered = list(values.values())
    assert found == (max if function is sympy.Max else min)(a * b for a, b in zip(ordered, ordered[1:], strict=False))


def thirds(x: Any) -> Any:
    third = x[:, :, ::3]
    return third.sum(-1, keepdim=True) * 2, third.reshape(len(x), -1).relu(), third.transpose(1, 2).contiguous() + 1


@pytest.mark.parametrize("fn", [lambda x: F.avg_pool2d(x, 2) * 2 + 1, thirds], ids=["pool", "thirds"])
@pytest.mark.parametrize("size", [(2, 3, 3, 7), (2, 3, 7, 3), (2, 3, 3, 3)])
def test_sizes_that_a_guard_says_are_one(fn: Callable[..., Any], size: tuple[int, ...], store: Path) -> None:
    """A pool's result of one row has a formula as its size, and what is computed from it has 1."""
    compiled = precast.compile(fn, dynamic=True, fullgraph=True, store=store)
    for shape in (size, (4, 3, 11, 9), (2, 3, 3, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5)
