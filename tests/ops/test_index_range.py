"""Which indices count from the end: those of `x[i]`; elsewhere a negative one is an error, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precast
from precast.codegen.triton.render.render import render
from precast.lowering.ir.nodes import Kernel, Program
from tests.ops.runners import program_of

Fn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

FROM_THE_START: dict[str, Fn] = {
    "index_select": lambda x, i: x.index_select(0, i) + 1,
    "gather": lambda x, i: x.gather(0, i[:, None]) + 1,
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x) + 1,
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0) + 1,
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x[:3]) + 1,
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], x[:3], "amax") + 1,
    "index_add": lambda x, i: x.index_add(0, i, x[:3]) + 1,
    "index_copy": lambda x, i: x.index_copy(0, i, x[:3]) + 1,
}
FROM_BOTH_ENDS: dict[str, Fn] = {
    "x[i]": lambda x, i: x[i] + 1,
    "x[:, i]": lambda x, i: x.t()[:, i] + 1,
    "take": lambda x, i: torch.take(x, i) + 1,
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None], 0) + 1,
    "index_put": lambda x, i: x.index_put((i,), x[:3] * 2),
    "index_fill": lambda x, i: x.index_fill(0, i, 7.0),
}


def tensors(*indices: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(20.0).reshape(5, 4), torch.tensor(indices)


@pytest.mark.parametrize("name", FROM_THE_START)
def test_negative_indices_are_errors_where_eager_has_none(name: str) -> None:
    fn = FROM_THE_START[name]
    compiled = precast.compile(fn, fullgraph=True)
    assert torch.equal(compiled(*tensors(0, 4, 2)), fn(*tensors(0, 4, 2)))
    for wrong in (-1, 5, -6):
        with pytest.raises((IndexError, RuntimeError)) as theirs:
            fn(*tensors(0, wrong, 2))
        with pytest.raises(type(theirs.value), match=f"index {wrong} is out of bounds"):
            compiled(*tensors(0, wrong, 2))


@pytest.mark.parametrize("name", FROM_BOTH_ENDS)
def test_negative_indices_count_from_the_end_where_eagers_do(name: str) -> None:
    fn = FROM_BOTH_ENDS[name]
    compiled = precast.compile(fn, fullgraph=True)
    assert torch.equal(compiled(*tensors(0, -5, -1)), fn(*tensors(0, -5, -1)))


@pytest.mark.parametrize("name, wraps", [("gather", False), ("embedding", False), ("x[i]", True)])
def test_kernels_for_gpus_assert_the_same_range(name: str, wraps: bool) -> None:
    program: Program = program_of((FROM_THE_START | FROM_BOTH_ENDS)[name], tensors(0, 1, 2), schedule=True, target="cuda:sm_90")[0]
    (kernel,) = [step for step in program.steps if isinstance(step, Kernel)]
    (launch,) = render(kernel, program.buffers)
    source = launch.source
    assert "tl.device_assert(" in source and ">= 0) & " in source
    assert ("< 0, " in source) == wraps  # the choice between an index and the same from the end
