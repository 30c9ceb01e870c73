"""What a call that records gradients gives and does: as eager, compiled and served by a process that traces nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import precast
from tests.training.gradient_programs import PROGRAMS, Program

SEED = 5


def run(program: Program, store: Any, device: str = "cpu") -> None:
    """Two calls of the program, eager and compiled."""
    torch.manual_seed(SEED)
    with torch.device(device):
        eager = program.make()
    compiled = precast.compile(copy.deepcopy(eager) if isinstance(eager, nn.Module) else eager, fullgraph=program.whole, store=store)
    exact = copy.deepcopy(eager).double() if isinstance(eager, nn.Module) else eager
    for call in range(2):
        outcomes = [outcome(fn, program, SEED + call, double, device) for fn, double in ((compiled, False), (eager, False), (exact, True))]
        compare(*outcomes, dense=program.dense)


IN_CI = [pytest.param(p, id=p.name, marks=[pytest.mark.slow] if i % 3 == 2 else []) for i, p in enumerate(PROGRAMS)]
"""Two of three; the others are slow tests, and run on GPUs with all of them."""


@pytest.mark.parametrize("program", IN_CI)
def test_as_eager(program: Program, tmp_path: Any) -> None:
    """Outputs, gradients of everything that requires them, what was written: against eager in double precision, no worse than eager is."""
    run(program, tmp_path)


def outcome(fn: Any, program: Program, seed: int, double: bool, device: str = "cpu") -> dict[str, Any]:
    """One call, and the backward pass from all that it gave and wrote."""
    torch.manual_seed(seed)
    with torch.device(device):
        args = program.inputs()
    if double:
        args = tree_map(lambda v: doubled(v) if isinstance(v, Tensor) else v, args)
    inputs = [v for v in tree_leaves(args) if isinstance(v, Tensor)]
    leaves = list(dict.fromkeys(leaf for v in inputs for leaf in leaves_of(v)))
    if isinstance(fn, nn.Module):
        leaves += [p for p in fn.parameters() if p.requires_grad]
    for tensor in leaves:
        tensor.grad = None
    result = fn(*args)
    given = [v for v in tree_leaves(result) if isinstance(v, Tensor)]
    recorded = [v for v in (*given, *inputs) if v.requires_grad and v.grad_fn is not None]
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.rand(v.shape, generator=generator, dtype=torch.double).to(device) for v in recorded]
    parts = [((v.abs() if v.is_complex() else v).double().nan_to_num() * w).sum() for v, w in zip(recorded, weights, strict=True)]
    if parts:
        torch.stack(parts).sum().backward()
    return {
        "results": [v.detach().clone() for v in given],
        "numbers": [v for v in tree_leaves(result) if not isinstance(v, Tensor)],
        "seen": [(v.requires_grad, v.is_leaf, v.dtype) for v in given],
        "strides": [v.stride() for v in given],
        "same": [[a is b for a in (*given, *inputs)] for b in given],
        "gradients": [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves],
        "inputs": [v.detach().clone() for v in inputs],
        "buffers": [b.clone() for b in fn.buffers()] if isinstance(fn, nn.Module) else [],
    }


def doubled(value: Tensor) -> Tensor:
    wider = {torch.complex64: torch.complex128}.get(value.dtype, torch.float64 if value.is_floating_point() else value.dtype)
    made = value.detach().to(wider)
    if value.requires_grad:
        made.requires_grad_()
        made = made * 1 if value.grad_fn is not None else made
    return made


def leaves_of(value: Tensor) -> Iterator[Tensor]:
    """The leaves that gradients of a tensor flow into."""
    if value.is_leaf:
        if value.requires_grad:
            yield value
        return
    stack: list[Any] = [value.grad_fn]
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            yield node.variable
        stack += [following for following, _ in node.next_functions if following is not None]


def compare(ours: dict[str, Any], eager: dict[str, Any], exact: dict[str, Any], dense: bool) -> None:
    for name in ("numbers", "same", "seen", *(() if dense else ("strides",))):
        assert ours[name] == eager[name], name
    for name in ("results", "gradients", "inputs", "buffers"):
        assert len(ours[name]) == len(eager[name]), name
        for mine, theirs, true in zip(ours[name], eager[name], exact[name], strict=True):
            assert (mine is None) == (theirs is None), name
            if mine is not None:
                assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
                no_worse(mine, theirs, true, name)


def no_worse(mine: Tensor, eager: Tensor, exact: Tensor, name: str) -> None:
    """Not further from the exact value than eager, some rounding granted."""
    if not (mine.is_floating_point() or mine.is_complex()):
        assert torch.equal(mine, eager), name
        return
    wide = torch.complex128 if mine.is_complex() else torch.float64
    a, b, c = (v.to(wide).nan_to_num() for v in (mine, eager, exact))
    assert torch.equal(mine.isnan(), eager.isnan()), name
    spread = float(c.abs().max()) if c.numel() else 0.0
    ulp = torch.finfo(mine.dtype).eps
    error, theirs = (float((v - c).abs().max()) if c.numel() else 0.0 for v in (a, b))
    assert error <= 4 * theirs + 16 * ulp * max(spread, 1e-3), f"{name}: off by {error}, eager by {theirs}"
