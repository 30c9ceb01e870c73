"""A stated part of torch's op_db in CI: every operator's first sample through lowering, scheduling and the oracle, and every
`STRIDE`-th operator of the pass list through the whole compiler. `make test-full` runs all of it (`opdb.py`)."""

from __future__ import annotations

import pytest
import torch

import precast
from precast.runtime.targets.versions import torch_minor
from tests.ops.opdb import BACKEND_NAMES, pass_list
from tests.ops.opdb_judge import BACKENDS, TOLERANCES, difference, every, judge, operators, where

STRIDE = 17
SAMPLE = [name for name in pass_list() if name in operators()][::STRIDE]
DYNAMIC = [name for name in pass_list() if name in operators()][3::59]
DATA_DEPENDENT = ["nonzero", "masked_select", "unique", "item", "allclose", "combinations"]
"""Operators that are no single graph: the size or the very result depends on data."""


@pytest.mark.parametrize("name", list(operators()))
def test_first_sample_scheduled(name: str) -> None:
    found = judge(name, "scheduled", 1)
    assert found["verdict"] in ("pass", "refused", "no sample"), found["reason"]
    if name in pass_list() and found["verdict"] == "refused":
        # make_fx specialises less than Dynamo does: what it cannot trace at all is Dynamo's to judge
        assert "data-dependent" in found["reason"], found["reason"]


@pytest.mark.parametrize("name", SAMPLE)
def test_compiled(name: str) -> None:
    found = judge(name, "precast", 1)
    assert found["verdict"] == "pass", found["reason"]


@pytest.mark.parametrize("name", DYNAMIC)
def test_compiled_with_dynamic_shapes(name: str) -> None:
    """Two samples, usually of different shapes, through one program with symbolic sizes."""
    found = judge(name, "precast-dynamic", 2)
    assert found["verdict"] == "pass", found["reason"]


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_what_is_refused_runs_eagerly(name: str, tmp_path: object) -> None:
    op = operators()[name]
    sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)))
    function = op.op

    def call(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    with torch.no_grad():
        got = precast.compile(call, store=str(tmp_path))(sample.input, *sample.args, **sample.kwargs)
        assert difference(call(sample.input, *sample.args, **sample.kwargs), got, None) == ""


def test_the_list_is_long_enough() -> None:
    """Inductor passes about as many of the 677 float32 operators; see docs for the counts side by side."""
    assert len(pass_list()) >= 600
    lacking = set(pass_list()) - set(operators())
    gone = {"cholesky", "qr"} if torch_minor() >= "2.14" else set()
    assert lacking == gone or torch_minor() < "2.13", "op_db of torch 2.13 has every operator of the list; earlier ones lack a few"
    assert len(lacking) < 20, lacking


def test_every_backend_can_be_asked_for() -> None:
    """`opdb.py` lists them itself, so that its parent process need not import torch's tests."""
    assert set(BACKEND_NAMES) == set(BACKENDS)
    assert {where(f"precast-cuda-{kind}") for kind in ("f16", "f64", "i64")} == {
        ("cuda", torch.float16), ("cuda", torch.float64), ("cuda", torch.int64),
    }  # fmt: skip


def test_backends_of_integers_have_more_operators() -> None:
    assert operators("precast-cuda-bf16") == operators("precast-cuda-f64") == operators()
    more = set(operators("precast-cuda-i64")) - set(operators())
    assert {"bitwise_and", "gcd"} <= more and set(operators("precast-cuda-i64")) <= set(every())


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_deviation_of_one_rounding_passes_and_many_do_not(dtype: torch.dtype) -> None:
    want, eps = torch.ones(4, dtype=dtype), torch.finfo(dtype).eps
    few, many = 1 + eps, 1 + (2e-7 if dtype == torch.float64 else 2e-4 if dtype == torch.float32 else 8 * eps)
    assert difference(want, want * few, None) == "" and difference(want, (want.double() * many).to(dtype), None) != ""


def test_integers_are_compared_bit_by_bit() -> None:
    """Float64 does not tell these two apart."""
    want = torch.tensor([1 << 60])
    assert difference(want, want + 1, want) != "" and difference(want, want + 1, None) != "" and difference(want, want.clone(), want) == ""
