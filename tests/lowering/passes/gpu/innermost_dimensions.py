"""Programs whose temporaries fit their writers and readers in another order than that of the shape, and, as a process of its own, what
Triton's interpreter says of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """`program` of what `make` gives; in it `moves` temporaries get other strides, with static sizes."""

    program: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    moves: int = 1
    error: float = 1e-5


def _positions(*size: int, below: int) -> Tensor:
    return torch.randint(0, below, size)


def edges(x: Tensor, near: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Points [B, C, N], reduced from a channels-last image [B, N, K, C], whose rows are gathered; with products and a sum over channels."""
    points = (x.permute(0, 3, 1, 2) * 2).amax(-1).contiguous()
    rows = points.transpose(1, 2)
    square = (rows * rows).sum(-1)
    around = rows.gather(1, near.flatten(1)[..., None].expand(-1, -1, rows.shape[-1])).unflatten(1, near.shape[1:])
    return 2 * rows @ points - square[:, None], around.sin() @ other


def planes(x: Tensor, near: Tensor) -> tuple[Tensor, ...]:
    """A temporary in planes, which are gathered from along what lies across them."""
    a = torch.empty((x.shape[0], x.shape[2], x.shape[1])).copy_(x.transpose(1, 2).cumsum(-1))
    b = a.transpose(1, 2)[:, near]
    return b.sin(), b.sum(1)


def written_in_place(x: Tensor, near: Tensor) -> Tensor:
    """A part of the temporary is overwritten by a kernel of its own."""
    points = x.permute(0, 3, 1, 2).amax(-1).contiguous()
    points[:, :, 1::2] = points[:, :, 0::2][:, :, : points[:, :, 1::2].shape[2]].cumsum(2)
    return points.transpose(1, 2)[:, near].cos()


def scattered_to(x: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """Rows are added to the temporary at run-time positions."""
    points = x.permute(0, 3, 1, 2).amax(-1).contiguous()
    points.index_add_(2, far, x.amin(2).transpose(1, 2)[:, :, : far.shape[0]])
    return points.transpose(1, 2)[:, near].cos()


def seen_as_a_window(x: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the temporary: turned round, and of every other point."""
    points = x.permute(0, 3, 1, 2).amax(-1).contiguous()
    return points.flip(2).transpose(1, 2)[:, near].cos(), points[:, 1:, ::3].cumsum(2)


def returned(x: Tensor, near: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The buffer is a result, and another result is a view of it: it keeps eager's strides."""
    points = x.permute(0, 3, 1, 2).amax(-1).contiguous()
    return points, points[:, 1:], points.transpose(1, 2)[:, near].cos()


def sorted_rows(x: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """A library reads the buffer: it keeps eager's strides."""
    points = x.permute(0, 3, 1, 2).amax(-1).contiguous()
    return torch.sort(points, dim=2, stable=True).values, points.transpose(1, 2)[:, near].cos()


CASES: dict[str, Case] = {
    "edges": Case(edges, lambda: (torch.randn(2, 21, 5, 12), _positions(2, 21, 9, below=21), torch.randn(12, 3)), 2),
    "edges, odd": Case(edges, lambda: (torch.randn(2, 21, 33, 17), _positions(2, 21, 9, below=21), torch.randn(17, 3)), 2),
    "planes": Case(planes, lambda: (torch.randn(2, 33, 17), _positions(45, below=33))),
    "halves": Case(edges, lambda: (torch.randn(2, 21, 5, 24).half(), _positions(2, 21, 9, below=21), torch.randn(24, 3).half()), 2, 2e-2),
    "written in place": Case(written_in_place, lambda: (torch.randn(2, 19, 3, 17), _positions(41, below=19)), 2),
    "scattered to": Case(scattered_to, lambda: (torch.randn(2, 19, 3, 17), _positions(41, below=19), _positions(11, below=19))),
    "windows": Case(seen_as_a_window, lambda: (torch.randn(2, 19, 3, 17), _positions(41, below=19))),
    "returned": Case(returned, lambda: (torch.randn(2, 19, 3, 17), _positions(41, below=19)), 0),
    "sorted": Case(sorted_rows, lambda: (torch.randn(2, 19, 3, 17), _positions(41, below=19)), 0),
}


def failure(name: str, symbolic: bool, runner: Callable[[Any, list[Tensor]], list[Any]]) -> str:
    """What is wrong with a case; "" where nothing is."""
    from tests.ops.runners import program_of

    case = CASES[name]
    torch.manual_seed(5)
    inputs = case.make()
    program, rebuild = program_of(case.program, inputs, schedule=True, target="cuda:sm_90", symbolic=symbolic)
    got, want = rebuild(runner(program, list(inputs))), case.program(*inputs)
    several = [(x,) if isinstance(x, Tensor) else tuple(x) for x in (got, want)]
    for number, (ours, theirs) in enumerate(zip(*several, strict=True)):
        if ours.shape != theirs.shape or ours.stride() != theirs.stride():
            return f"{number}: {tuple(ours.shape)} by {ours.stride()}, eager {tuple(theirs.shape)} by {theirs.stride()}"
        if not torch.allclose(ours, theirs, rtol=case.error, atol=case.error):
            return f"{number}: {(ours - theirs).abs().max().item():.2e} off"
    return ""


def main() -> None:
    from tests.codegen.triton.emulate import run

    failures: dict[str, str] = {}
    for name in CASES:
        for symbolic in (False, True):
            found = failure(name, symbolic, lambda program, inputs: run(program, inputs, None))
            if found:
                failures[f"{name}, {'symbols' if symbolic else 'sizes'}"] = found
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
