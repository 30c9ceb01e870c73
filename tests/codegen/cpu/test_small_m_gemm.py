"""Our own products of few rows: results beside float64, strides and edges, what is refused, and how they are chosen."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.codegen.cpu import tuning
from precast.codegen.cpu.select_library import product_library
from precast.codegen.cpu.small_m_gemm import few_rows
from precast.codegen.cpu.tuning import Chooser, gemm_candidates
from precast.lowering.ir.nodes import Buffer, Gemm, View
from precast.lowering.ir.scalars import DType
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from tests.codegen.cpu.products import TARGETS, build, product, relative_error
from tests.codegen.cpu.test_split_mkl_epilogues import _twice
from tests.codegen.loader import Loaded
from tests.codegen.programs import buffer, program, view
from tests.ops.symbolic import trace_symbolic


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every race is won by our own code, where it takes part."""
    monkeypatch.setattr(Chooser, "pick", lambda self, key, candidates, default: "own" if "few rows" in key else default)


@pytest.mark.parametrize("target", TARGETS)
def test_against_float64_at_random_sizes(ours: None, target: str) -> None:
    draw = random.Random(target)
    for _ in range(8):
        m, k, n = draw.randint(2, 32), draw.choice((64, 65, 79, 97, 128, 384, 1021)), draw.choice((1, 2, 3, 5, 31, 64, 101))
        with_bias = draw.random() < 0.5
        step, buffers = product(m, k, n, bias=View("b", (n,), (1,)) if with_bias else None)
        if m * k * n <= 8192:
            continue
        x, w, b, r = torch.randn(m, k), torch.randn(n, k), torch.randn(n), torch.randn(m, n)
        want = x.double() @ w.double().t() + (b if with_bias else 0)
        assert relative_error(build(step, buffers, "few", target)(x, w, b, r)[0], want) < 2e-6, (m, k, n)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("residual", [False, True])
def test_what_follows(ours: None, activation: str, residual: bool) -> None:
    m, k, n = 5, 96, 50
    step, buffers = product(
        m, k, n, bias=View("b", (n,), (1,)), activation=activation, residual=View("r", (m, n), (n, 1)) if residual else None
    )
    x, w, b, r = torch.randn(m, k), torch.randn(n, k), torch.randn(n), torch.randn(m, n)
    want = x.double() @ w.double().t() + b + (r if residual else 0)
    want = want if activation == "none" else getattr(F, activation)(want)
    assert relative_error(build(step, buffers, "few")(x, w, b, r)[0], want) < 2e-6


def test_what_follows_joins_the_kernel_behind_it(ours: None) -> None:
    m, k, n = 24, 96, 48
    x, w, bias, t, o = (buffer(name, s) for name, s in (("x", (m, k)), ("w", (n, k)), ("b", (n,)), ("t", (m, n)), ("o", (m, n))))
    step = Gemm(view(x), View("w", (k, n), (1, k)), view(bias), "t", "relu")
    compiled = compile_program(program([x, w, bias], [o], [step, _twice("t", "o")], temps=[t]), "cpu:native", CodegenOptions(measure=False))
    assert len(compiled.evidence["kernel_serial_ns"]) == 1, compiled.kernel_source
    a, weight, c = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    torch.testing.assert_close(Loaded(compiled.library)(a, weight, c)[0], 2 * (a @ weight.t() + c).relu())


def test_strides_and_offsets(ours: None) -> None:
    """Rows far apart, a part of a weight, and a part of each row."""
    m, k, n = 20, 70, 9
    x, w, o = buffer("x", (m, 200)), buffer("w", (20, 150)), buffer("o", (m, n))
    step = Gemm(View("x", (m, k), (200, 1), 13), View("w", (k, n), (1, 300), 11), None, "o")
    a, weight = torch.randn(m, 200), torch.randn(20, 150)
    want = a[:, 13 : 13 + k].double() @ weight[: 2 * n : 2, 11 : 11 + k].double().t()
    loaded = build(step, {b.name: b for b in (x, w, o)}, "few")
    assert relative_error(loaded(a, weight)[0], want) < 2e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_infinities_and_nan_as_eager(ours: None, target: str, value: float) -> None:
    """In the last elements, which no whole vector holds, one operand's must not meet the other's zeros."""
    m, k, n = 7, 67, 50
    step, buffers = product(m, k, n)
    x, w, rest = torch.randn(m, k), torch.randn(n, k), (torch.randn(n), torch.randn(m, n))
    x[2, k - 1], x[3, 0], w[5, k - 2], w[8, 60] = value, value, value, value
    (got,) = build(step, buffers, "few", target)(x, w, *rest)
    torch.testing.assert_close(got, x @ w.t(), equal_nan=True, rtol=1e-4, atol=1e-4)
    assert got.isfinite().sum() == (m - 2) * (n - 2)


def test_the_same_bits_whatever_the_rows_and_threads(ours: None) -> None:
    k, n = 515, 130
    w, b, x = torch.randn(n, k), torch.randn(n), torch.randn(32, k)
    step, buffers = product(32, k, n, bias=View("b", (n,), (1,)))
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found += [build(step, buffers, "few")(x, w, b, torch.zeros(32, n))[0] for _ in range(2)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found)
    for m in (2, 3, 5, 9):
        few, these = product(m, k, n, bias=View("b", (n,), (1,)))
        assert torch.equal(build(few, these, "few")(x[:m], w, b, torch.zeros(m, n))[0], found[0][:m])


def test_any_number_of_rows_where_that_is_symbolic(ours: None) -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.linear(x, w, b).relu()

    w, b = torch.randn(37, 150), torch.randn(37)
    graph = trace_symbolic(fn, [torch.randn(6, 150), w, b], [[0], [], []])
    compiled = compile_program(schedule(lower(graph, "test"), "cpu:native"), "cpu:native", CodegenOptions(measure=False))
    assert "namespace few" in compiled.kernel_source
    loaded = Loaded(compiled.library)
    for m in (6, 0, 1, 5, 67, 200):
        x = torch.randn(m, 150)
        torch.testing.assert_close(loaded(x, w, b)[0], F.linear(x, w, b).relu(), rtol=1e-5, atol=1e-4)


REFUSED: dict[str, Any] = {
    "one row": product(1, 128, 64),
    "many rows": product(33, 128, 64),
    "a short sum": product(8, 63, 64),
    "another type": (product(8, 128, 64)[0], {n: Buffer(n, DType.BF16, b.size, b.stride) for n, b in product(8, 128, 64)[1].items()}),
    "a bias that is repeated": product(8, 128, 64, bias=View("b", (64,), (0,))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_others_are_not_raced(what: str) -> None:
    step, buffers = REFUSED[what]
    assert few_rows(*product(8, 128, 64)) and not few_rows(step, buffers)


def test_a_weight_that_lies_the_other_way_is_not_raced() -> None:
    x, w, o = buffer("x", (8, 128)), buffer("w", (128, 64)), buffer("o", (8, 64))
    assert not few_rows(Gemm(view(x), view(w), None, "o"), {b.name: b for b in (x, w, o)})


@pytest.mark.parametrize("packed", [False, True])
def test_the_choice_is_measured_and_recorded(packed: bool) -> None:
    step, buffers = product(8, 256, 256)
    chooser = Chooser()
    winner = product_library(step, buffers, chooser, packed)
    assert len(chooser.used) == 1
    for record in chooser.used.values():
        assert set(record["us"]) == {"onednn", "mkl", "own"}
        assert {"mkl": "aten"}.get(record["winner"], record["winner"]) == winner
    calls = gemm_candidates(step, buffers, packed)()
    assert set(calls) == {"onednn", "mkl", "own"}
    for call in calls.values():
        torch.testing.assert_close(call(), torch.full((8, 256), 64.0))


def test_unmeasured_it_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where another program of this process was measured, and it won."""
    step, buffers = product(8, 256, 256)
    monkeypatch.setattr(tuning, "race", lambda calls, *_: {name: [1.0 if name == "own" else 9.0] for name in calls})
    monkeypatch.setattr(tuning, "CALM", 1_000_000)
    monkeypatch.setattr(tuning, "_memory", memory := {})
    assert product_library(step, buffers, Chooser(), False) == "own" and memory
    *inputs, out = buffers.values()
    compiled = compile_program(program(inputs, [out], [step]), "cpu:native", CodegenOptions(measure=False))
    assert "namespace few" not in compiled.kernel_source
