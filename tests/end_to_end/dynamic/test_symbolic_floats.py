"""Floats that vary from call to call: one more compile makes them symbolic."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from tests.runtime.hand_made_artifacts import Counting
from tests.support.processes import child

pytestmark = pytest.mark.usefixtures("fresh_tracer")
X, Y, S = torch.randn(5, 7), torch.randn(5, 7), torch.randn(7, 7)


def scaled(x: torch.Tensor, s: float) -> torch.Tensor:
    return torch.relu(x * s + 1) / (s * s + 1)


def read_between(x: torch.Tensor, s: float) -> torch.Tensor:
    total = (x * 0 + s).sum().item()
    return x * total + 1


PROGRAMS: dict[str, Callable[..., Any]] = {
    "argument": scaled,
    "read before a break": read_between,
    "addition": lambda x, s: torch.add(x, Y, alpha=s).clamp(-abs(s), s),
    "slope": lambda x, s: F.leaky_relu(x, s) + F.elu(x, s),
    "matrix product": lambda x, s: torch.addmm(Y, x, S, beta=0.5, alpha=s),
    "bfloat16": lambda x, s: (x.bfloat16() > s, x.bfloat16() * s),
    "numbers": lambda x, s: (x * math.sqrt(s), s * 3, -s, s > 0.5),
    "tensors of it": lambda x, s: torch.full((3,), s) + torch.tensor([s, 2 * s, 0.0]),
    "library call": lambda x, s: torch.linalg.vector_norm(x, s + 2.25),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_compiles_serve_all_values(name: str, store: Store, counter: Counting) -> None:
    program = PROGRAMS[name]
    compiled = precast.compile(program, store=store)
    compiled(X, 0.3), compiled(X, 0.4)
    made = counter.frame_count
    for i in range(64):
        s = 0.51 + i / 100
        torch.testing.assert_close(compiled(X, s), program(X, s))
    assert counter.frame_count - made <= 2  # a branch in the operator's own code may fall the other way
    assert counter.frame_count <= 5


def test_values_that_are_no_numbers_like_the_others(store: Store) -> None:
    compiled = precast.compile(scaled, store=store)
    for s in (0.5, 0.7, math.inf, 0.0, -0.0, math.nan, -math.inf, 1.0, 1e-300, 1.7e308, 0.9):
        torch.testing.assert_close(compiled(X, s), scaled(X, s), equal_nan=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_zeros_keep_their_sign_where_the_tracer_fixes_them(dynamic: bool | None, store: Store) -> None:
    """torch.compile answers 0.0 for -0.0 here."""

    def program(x: torch.Tensor, s: float) -> tuple[Any, ...]:
        return x * s, s * 2, math.copysign(1, s)

    compiled = precast.compile(program, store=store, dynamic=dynamic)
    for s in (0.5, -0.0, 0.0, 2.5, -0.0, 0.0, -1.5):
        got, wanted = compiled(X, s), program(X, s)
        assert torch.equal(got[0].signbit(), wanted[0].signbit()) and repr(got[1:]) == repr(wanted[1:])


def test_branches_on_it_are_guards(store: Store) -> None:
    def branching(x: torch.Tensor, s: float) -> torch.Tensor:
        if s == 0:
            return x
        return x * s if s > 0.5 else x - int(s * 4)

    compiled = precast.compile(branching, store=store)
    for _ in range(2):
        for s in (0.7, 0.9, 0.2, 0.0, -0.0, 0.5, 2.5, -3.75, math.inf, 0.1):
            torch.testing.assert_close(compiled(X, s), branching(X, s))


def test_floor_division_is_pythons(store: Store) -> None:
    """-1.5 // 0.3 is -6.0, and the floor of the rounded quotient -5.0."""
    compiled = precast.compile(lambda x, s: x * (s // 0.3), store=store)
    for s in (0.7, 0.9, -1.5, 1.5):
        torch.testing.assert_close(compiled(X, s), X * (s // 0.3))


def test_what_a_number_is_not_known_for_is_compiled_for_each(store: Store) -> None:
    compiled = precast.compile(lambda x, s: F.layer_norm(x, (7,), eps=s), store=store)
    for s in (0.1, 0.2, 0.3):
        torch.testing.assert_close(compiled(X, s), F.layer_norm(X, (7,), eps=s))
    assert len(site_of(compiled).programs[0].variants) == 3


WARM = """
import sys, torch, precast
def program(x, s):
    return torch.relu(x * s + 1)
x = torch.randn(5)
with torch.no_grad():
    compiled = precast.compile(program, store=sys.argv[1])
    for i in range(int(sys.argv[2])):
        s = 0.3 + i / 7 + (10 if sys.argv[2] == "64" else 0)
        torch.testing.assert_close(compiled(x, s), program(x, s))
print("warm" if "torch._dynamo" not in sys.modules else "cold")
"""


def test_new_values_in_a_fresh_process(tmp_path: Path) -> None:
    (tmp_path / "varying.py").write_text(WARM)
    assert [child(tmp_path, "import varying", "store", calls).strip() for calls in ("2", "64")] == ["cold", "warm"]
    assert len(list((tmp_path / "store").rglob("programs/*/*.msgpack"))) == 2
