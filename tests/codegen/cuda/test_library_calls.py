"""Which library calls a program for CUDA makes, and their C++, run for real against CPU stand-ins (`cuda_stub.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from precast.codegen.common.library_steps import LibraryCall
from precast.codegen.common.measure import Record
from precast.codegen.cuda import candidates
from precast.codegen.cuda.benchmarking import Lab
from precast.codegen.cuda.candidates import Choice, attention_choice, conv_choice, gemm_choice, heads_once
from precast.codegen.cuda.select_library import expand
from precast.codegen.cuda.tuning import CudaChooser, Problem
from precast.lowering.ir.nodes import Attention, Conv, Extern, Gemm, Kernel, Program
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from tests.codegen.cuda.test_host import agree, on_stub
from tests.ops.trace import trace

r = torch.randn


def scheduled(fn: Callable[..., Any], *inputs: torch.Tensor) -> Program:
    return schedule(lower(trace(fn, inputs)[0], "test"), "cuda:sm_90", check=True)


def calls(program: Program, chooser: CudaChooser | None = None) -> list[str]:
    """What runs, in order: "how gemm", an extern's name, "kernel"."""
    return [
        "kernel" if isinstance(s, Kernel) else s.op if isinstance(s, Extern) else f"{s.how} {type(s.step).__name__.lower()}"
        for s in expand(program, program.steps, chooser or CudaChooser())
    ]


def attend(q: Any, k: Any, v: Any, mask: Any = None, **kwargs: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, mask, **kwargs)


def block(x: Any, w: Any, b: Any, u: Any, c: Any) -> Any:
    """A bottleneck's tail: 1x1 with relu, 3x3, the sum with relu."""
    y = F.relu(F.conv2d(x, w, b))
    return F.max_pool2d(F.relu(F.conv2d(y, u, c, padding=1) + x), 3)


def heads(*sizes: int) -> torch.Tensor:
    """[B, H, S, D] as a projection leaves it."""
    b, h, s, d = sizes
    return r(b, s, h, d).transpose(1, 2)


RUN: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "relu": (lambda x, w, b: F.relu(torch.addmm(b, x, w)) @ w, lambda: [r(16, 24), r(24, 24), r(24)]),
    "gelu": (lambda x, w, b: F.gelu(torch.addmm(b, x, w), approximate="tanh") @ w, lambda: [r(16, 24), r(24, 24), r(24)]),
    "convolutions": (block, lambda: [r(2, 16, 9, 9), r(24, 16, 1, 1), r(24), r(16, 24, 3, 3), r(16)]),
    "attention": (attend, lambda: [heads(2, 4, 12, 8) for _ in range(3)]),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.3), lambda: [heads(2, 4, 12, 8) for _ in range(3)]),
    "masked": (attend, lambda: [*(heads(2, 4, 16, 8) for _ in range(3)), r(2, 1, 16, 16)]),
    "masked, half": (attend, lambda: [*(heads(2, 4, 16, 8).bfloat16() for _ in range(3)), r(2, 1, 16, 16).bfloat16()]),
    "grouped": (lambda q, k, v: attend(q, k, v, enable_gqa=True), lambda: [heads(2, n, 12, 8) for n in (4, 2, 2)]),
}


@pytest.mark.parametrize("name", RUN)
def test_results(name: str) -> None:
    fn, make = RUN[name]
    torch.manual_seed(0)
    stub = on_stub(fn, *make())
    inputs = make()
    if inputs[0].dtype is torch.float32:
        agree(stub(*inputs), fn(*inputs))
    else:
        torch.testing.assert_close(stub(*inputs)[0], fn(*inputs), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("biased", [False, True])
def test_an_odd_number_of_columns_is_multiplied_in_two_calls(biased: bool) -> None:
    """The caller's result has wider rows, and a kernel reads what it needs of them."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        logits = F.linear(x.view(-1, 512), w, b if biased else None).view(2, -1, 4001)
        return logits, logits.amax(-1)

    inputs = [r(2, 96, 512).bfloat16(), r(4001, 512).bfloat16(), r(4001).bfloat16()]
    stub = on_stub(fn, *inputs)
    found, largest = stub(*inputs)
    assert found.stride() == (96 * 4008, 4008, 1)
    for a, b in zip((found, largest), fn(*inputs), strict=True):
        torch.testing.assert_close(a, b, atol=0.3, rtol=2e-2)
    assert "split gemm" in calls(scheduled(fn, *inputs)) and "split gemm" not in calls(scheduled(fn, *(x.float() for x in inputs)))


@pytest.mark.parametrize("how", ["product", "cudnn", "aten"])
def test_each_form_of_a_convolution(how: str) -> None:
    """A record decides, as a tuner would leave it."""
    torch.manual_seed(0)
    inputs = RUN["convolutions"][1]()
    program = scheduled(block, *inputs)
    buffers = {b.name: b for b in program.buffers}
    choices = [conv_choice(s, buffers) for s in program.steps if isinstance(s, Conv)]
    assert [c.names for c in choices] == [("product", "cudnn", "aten"), ("cudnn", "aten")]
    tuning: dict[str, Record] = {c.key: {"winner": how, "us": {}} for c in choices}
    first = {"product": "product conv", "cudnn": "aten::cudnn_convolution_relu", "aten": "aten conv"}[how]
    assert first in calls(program, CudaChooser(tuning))
    agree(on_stub(block, *inputs, tuning=tuning)(*inputs), block(*inputs))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab on the CPU, by whose clock the default is the slowest."""
    monkeypatch.setattr(candidates, "PLACE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    monkeypatch.setattr(Lab, "race", lambda self, calls: {name: [100.0 - number] for number, name in enumerate(calls)})
    return Lab("sm_90")


def asked(program: Program) -> list[Choice]:
    buffers = {b.name: b for b in program.buffers}
    found = [
        conv_choice(s, buffers) if isinstance(s, Conv) else gemm_choice(s, buffers) for s in program.steps if isinstance(s, Conv | Gemm)
    ]
    return [choice for choice in found if len(choice.names) > 1]


@pytest.mark.parametrize("name", ["convolutions", "relu"])
def test_what_a_tuner_compares_is_the_same_computation(name: str, lab: Lab) -> None:
    """Every way of a step agrees with the default on numbers that tell ways apart."""
    fn, make = RUN[name]
    choices = asked(scheduled(fn, *make()))
    assert choices
    for choice in choices:
        made = choice.calls()
        assert set(lab.agreeing(made, choice.default)) == set(made) == set(choice.names)


@pytest.mark.parametrize("spoilt", range(3), ids=["other axis", "other type of result", "no result"])
def test_a_library_call_that_computes_something_else_is_left_out(spoilt: int, lab: Lab) -> None:
    """The sums of constant numbers would be equal; a candidate may write to memory that the default wrote to."""
    choice = next(c for c in asked(scheduled(block, *RUN["convolutions"][1]())) if "product" in c.names)

    def calls() -> dict[str, Callable[[], object]]:
        made = choice.calls()
        right = made[choice.default]
        wrong = [lambda: right().flip(1), lambda: right().sum(), lambda: None][spoilt]  # type: ignore[attr-defined]
        return {"wrong": wrong, **made}

    record = lab.measure(Problem(choice.key, choice.default, calls=calls))
    assert record is not None and set(record["us"]) == set(choice.names) and record["winner"] != "wrong"


def test_a_default_that_does_not_run_is_an_error(lab: Lab) -> None:
    def refuses() -> object:
        raise RuntimeError("not supported")

    with pytest.raises(RuntimeError, match="plain does not run on this device"):
        lab.measure(Problem("k", "plain", calls=lambda: {"plain": refuses, "other": lambda: r(3)}))


def test_what_is_timed_has_numbers_of_its_own(lab: Lab) -> None:
    """Operands differ from each other, and are the same in the next run; the two forms of a mask are one mask."""
    view = candidates.View("m", (2, 4, 3, 8), (24, 0, 8, 1))
    first, again, other = (candidates.tensor(view, torch.float32, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.allclose(first, other) and first.std() > 0.5
    once = candidates.tensor(heads_once(view), torch.float32, 1)
    assert once.shape == (2, 1, 3, 8) and torch.equal(first, once.expand(2, 4, 3, 8))


@pytest.mark.parametrize("how", ["flash", "cudnn", "efficient", "aten"])
@pytest.mark.parametrize("rows", [32, 160])
def test_each_attention_kernel(how: str, rows: int) -> None:
    inputs = [heads(1, 2, rows, 16).bfloat16() for _ in range(3)]
    program = scheduled(attend, *inputs)
    (step,) = (s for s in program.steps if isinstance(s, Attention))
    choice = attention_choice(step, {b.name: b for b in program.buffers})
    assert choice.names == ("cudnn", "flash", "efficient", "aten") and choice.default == "cudnn"
    tuning: dict[str, Record] = {choice.key: {"winner": how, "us": {}}}
    assert calls(program, CudaChooser(tuning)) == ["aten::scaled_dot_product_attention" if how == "aten" else f"{how} attention"]
    (found,) = on_stub(attend, *inputs, tuning=tuning)(*inputs)
    torch.testing.assert_close(found, attend(*inputs), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("inputs", "kwargs", "names"),
    [
        ([heads(2, 4, 12, 8) for _ in range(3)], {}, ("efficient", "aten")),
        ([heads(2, 4, 12, 6) for _ in range(3)], {}, ("aten",)),
        ([heads(2, n, 12, 8).half() for n in (4, 2, 2)], {"enable_gqa": True}, ("cudnn", "flash", "aten")),
        ([heads(2, 4, n, 8).half() for n in (4, 12, 12)], {"is_causal": True}, ("aten",)),
        ([heads(2, 4, n, 8).half() for n in (1, 12, 12)], {}, ("cudnn", "flash", "efficient", "aten")),
        ([*(heads(2, 4, 16, 8).half() for _ in range(3)), r(2, 1, 16, 16).half()], {}, ("cudnn", "efficient", "aten")),
        ([*(heads(2, 4, 12, 8).half() for _ in range(3)), r(2, 1, 12, 12).half()], {}, ("cudnn", "aten")),
        ([heads(2, 4, 12, 8).double() for _ in range(3)], {}, ("aten",)),
        ([heads(2, 4, n, 8).half() for n in (12, 1, 1)], {}, ("flash", "efficient", "aten")),
    ],
    ids=["float32", "odd depth", "grouped", "causal, more keys", "one row", "mask", "odd mask", "float64", "one key"],
)
def test_what_attention_may_run_on(inputs: list[torch.Tensor], kwargs: dict[str, Any], names: tuple[str, ...]) -> None:
    program = scheduled(lambda *x: attend(*x, **kwargs), *inputs)
    (step,) = (s for s in program.steps if isinstance(s, Attention))
    assert attention_choice(step, {b.name: b for b in program.buffers}).names == names


def test_float32_pixels_stay_with_cudnn_whose_tf32_is_on_by_default() -> None:
    program = scheduled(block, *RUN["convolutions"][1]())
    assert calls(program).count("aten::cudnn_convolution_relu") == 1
    half = scheduled(block, *(x.bfloat16() for x in RUN["convolutions"][1]()))
    assert calls(half).count("product conv") == 1


def test_a_record_that_names_no_way_is_ignored() -> None:
    program = scheduled(attend, *(heads(2, 4, 12, 8) for _ in range(3)))
    (step,) = (s for s in program.steps if isinstance(s, Attention))
    key = attention_choice(step, {b.name: b for b in program.buffers}).key
    assert calls(program, CudaChooser({key: {"winner": "cudnn", "us": {}}})) == ["efficient attention"]


def test_gelu_in_float32_is_a_kernel_of_its_own() -> None:
    """cuBLASLt's is not exact enough; in half types rounding hides that."""
    fn, make = RUN["gelu"]
    assert "activation gemm" in calls(scheduled(fn, *(x.bfloat16() for x in make())))
    assert calls(scheduled(fn, *make())) == ["aten gemm", "kernel", "aten gemm"]


def test_an_unknown_activation_is_a_kernel_of_its_own() -> None:
    (call, rest) = (s for s in expand(*_silu(), CudaChooser()) if not isinstance(s, Extern))
    assert isinstance(call, LibraryCall) and isinstance(call.step, Gemm) and call.step.activation == "none" and isinstance(rest, Kernel)


def _silu() -> tuple[Program, tuple[Any, ...]]:
    program = scheduled(lambda x, w, b: F.silu(torch.addmm(b, x, w)), r(16, 24), r(24, 24), r(24))
    return program, program.steps
