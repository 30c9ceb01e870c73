"""Which library runs a product: margins, given records, and which inputs count as weights."""

from __future__ import annotations

import sys

import pytest
import torch

from precast.codegen import compile_program
from precast.codegen.common.measure import decide
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.cpu import select_library
from precast.codegen.cpu.tuning import Chooser, gemm_candidates, takes_bfloat16, tuning_name
from precast.codegen.cpu.winograd import winograd_candidates, winograd_shape
from precast.lowering.analysis.effects import lasting_inputs
from precast.lowering.ir.nodes import Gemm, View
from precast.lowering.lower import lower
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import schedule
from tests.codegen.cpu.test_small_m_gemm import product as few_rows_product
from tests.codegen.cpu.test_winograd import conv
from tests.codegen.loader import Loaded
from tests.codegen.programs import buffer, program, view
from tests.ops.trace import trace

RACES = [
    ("a clear win", {"onednn": [100, 101, 102], "mkl": [80, 81, 82]}, "mkl"),
    ("less than the margin", {"onednn": [100, 101, 102], "mkl": [97, 97, 97]}, "onednn"),
    ("one lucky sample beside a disturbed default", {"onednn": [100, 300, 300], "mkl": [80, 150, 160]}, "onednn"),
    ("the default wins", {"onednn": [50, 50, 50], "mkl": [80, 81, 82]}, "onednn"),
]


@pytest.mark.parametrize(("what", "times", "winner"), RACES, ids=lambda v: v if isinstance(v, str) else "")
def test_another_candidate_has_to_win_clearly(what: str, times: dict[str, list[float]], winner: str) -> None:
    assert decide(times, "onednn")["winner"] == winner


def test_given_records_replace_measuring() -> None:
    def refuse() -> dict[str, object]:
        raise AssertionError("measured although a record was given")

    first = Chooser()
    took = first.pick("test op", lambda: {"onednn": lambda: None, "mkl": lambda: sum(range(20_000))}, "onednn")
    assert took == "onednn" and len(first.used) == 1
    again = Chooser(tuning=dict(first.used))
    assert again.pick("test op", refuse, "mkl") == "onednn" and again.used == first.used and again.spent_s == 0.0
    assert Chooser(spent_s=10.0).pick("test op that nobody measured", refuse, "onednn") == "onednn"
    assert tuning_name().replace("-", "").replace(".", "").isalnum()


def test_bfloat16_is_onednn_s_where_the_processor_has_it() -> None:
    """Elsewhere oneDNN refuses it at the first call: an artifact for any machine with AVX2 may not ask."""
    assert takes_bfloat16("cpu:x86-64-v4") and not takes_bfloat16("cpu:x86-64-v3") and not takes_bfloat16("cpu:x86-64")
    native = takes_bfloat16("cpu:native")
    assert native == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    x, w = torch.randn(8, 64, dtype=torch.bfloat16), torch.randn(96, 64, dtype=torch.bfloat16)
    image, kernel = torch.randn(2, 8, 6, 6, dtype=torch.bfloat16), torch.randn(16, 8, 3, 3, dtype=torch.bfloat16)

    def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.nn.functional.linear(x, w))

    def convolution(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.conv2d(image, kernel))

    for fn, inputs in ((linear, (x, w)), (convolution, (image, kernel))):
        graph, _ = trace(fn, inputs)
        for target, has in (("cpu:x86-64-v3", False), ("cpu:x86-64-v4", True), ("cpu:native", native)):
            compiled = compile_program(schedule(lower(graph, "p"), target), target, CodegenOptions(measure=False))
            assert ("= sigmoid(" in compiled.host_source) == has, f"{target}: whether the library's call has the activation"


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_nothing_but_the_libraries_is_timed(residual: bool, packed: bool) -> None:
    """Among several overloads torch searches at each call, and prints the tensors into an error that nobody sees: milliseconds."""
    product, named = few_rows_product(
        8, 256, 256, bias=View("b", (256,), (1,)), residual=View("r", (8, 256), (256, 1)) if residual else None
    )
    step, inputs, out = conv((1, 64, 8, 8), 64, (1, 1), True, True, residual, True)
    images = {b.name: b for b in (*inputs, out)}
    shape = winograd_shape(step, images, 16)
    assert shape is not None
    seen: list[str] = []
    for calls in (gemm_candidates(product, named, packed)(), winograd_candidates(step, shape, images, packed)()):
        for call in calls.values():
            call()
            sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_filename) if event == "call" else None)
            try:
                call()
            finally:
                sys.setprofile(None)
    assert seen and not [name for name in seen if "_tensor_str" in name]


def test_under_freeze_only_bound_inputs_are_weights() -> None:
    """A matrix that arrives with each call is read at each call; only the bound one is packed."""
    n = 64
    x, w, u, t, o = (buffer(name, (n, n)) for name in "xwuto")
    steps = [Gemm(view(x), view(w), None, "t"), Gemm(view(t), view(u), None, "o")]
    p = program([x, w, u], [o], steps, temps=[t])
    assert lasting_inputs(p, ["w"]) == {"w"} and lasting_inputs(p, None) == {"x", "w", "u"}
    loaded = Loaded(compile_program(p, "cpu:native", CodegenOptions(measure=False, freeze=True), CompileContext(bound=["w"])).library)
    a, b = torch.randn(n, n), torch.randn(n, n)
    for _ in range(2):
        c = torch.randn(n, n)
        torch.testing.assert_close(loaded(a, b, c)[0], a @ b @ c, rtol=1e-4, atol=1e-3)


def test_products_of_per_call_matrices_are_not_merged() -> None:
    n = 32
    x, w, u, o, q = (buffer(name, (n, n)) for name in "xwuoq")
    p = program([x, w, u], [o, q], [Gemm(view(x), view(w), None, "o"), Gemm(view(x), view(u), None, "q")])
    for bound, steps in (([], 2), (["w"], 2), (["w", "u"], 1)):
        found = schedule(p, "cpu:native", LoweringOptions(freeze=True), bound=bound)
        assert sum(isinstance(s, Gemm) for s in found.steps) == steps, bound


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_large_products_in_parts(freeze: bool, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select_library, "LARGE", 1 << 12)
    monkeypatch.setattr(select_library, "PART", 48)
    m, k, n = 20, 33, 130
    x, w, bias, o = buffer("x", (m, k)), buffer("w", (n, k) if transposed else (k, n)), buffer("b", (n,)), buffer("o", (m, n))
    b = View("w", (k, n), (1, k) if transposed else (n, 1))
    p = program([x, w, bias], [o], [Gemm(view(x), b, view(bias), "o", "relu")])
    compiled = compile_program(p, "cpu:native", CodegenOptions(measure=False, freeze=freeze), CompileContext(bound=["w"]))
    loaded = Loaded(compiled.library)
    a, weight, c = torch.randn(m, k), torch.randn(w.size), torch.randn(n)
    want = (a @ (weight.t() if transposed else weight) + c).relu()
    for _ in range(2):
        torch.testing.assert_close(loaded(a, weight, c)[0], want, rtol=1e-5, atol=1e-4)
