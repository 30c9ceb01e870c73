"""torch's gradcheck, which differentiates numerically, on compiled programs in double precision: with some gradients undefined, too."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import precast
from tests.training.gradient_programs import PROGRAMS, Program

NOT_DERIVATIVES = {
    "function_with_its_own_backward": "its backward is another function's",
    "under_no_grad": "a part counts as a constant",
    "gradients_inside_of_no_grad": "a part counts as a constant",
    "in_place_on_a_buffer": "a part counts as a constant",
    "autocast_inside": "rounds to bfloat16",
    "bfloat16": "rounds to bfloat16",
    "SmallTransformer": "the row of an embedding for padding gets no gradient",
    "scalars": "the root of a negative number counts as zero",
}
"""Programs whose gradients are not what differences of their results show."""
IN_CI = ("in_place_on_a_view_of_an_input", "views_of_a_result", "ConvolutionsWithStatistics")
CHECKED = [
    pytest.param(p, id=p.name, marks=[] if p.name in IN_CI else [pytest.mark.slow]) for p in PROGRAMS if p.name not in NOT_DERIVATIVES
]


@pytest.mark.parametrize("program", CHECKED)
def test_as_differences_say(program: Program, tmp_path: Path) -> None:
    torch.manual_seed(4)
    made = program.make()
    made = copy.deepcopy(made).double() if isinstance(made, nn.Module) else made
    compiled = precast.compile(made, store=tmp_path, fullgraph=program.whole)
    with torch.enable_grad():
        args = tree_map(_wide, program.inputs())
        moved = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.requires_grad]
        parameters = list(made.parameters()) if isinstance(made, nn.Module) else []

        def call(*leaves: Tensor) -> tuple[Tensor, ...]:
            given = {id(old): new * 1 for old, new in zip(moved, leaves, strict=False)}  # what a program writes is no leaf
            taken = tree_map(lambda t: given.get(id(t), t.clone() if isinstance(t, Tensor) else t), args)
            results = tree_leaves((compiled(*taken), taken))
            return tuple(t for t in results if isinstance(t, Tensor) and t.requires_grad)

        assert torch.autograd.gradcheck(call, (*moved, *parameters), fast_mode=bool(parameters))


def _wide(value: Any) -> Any:
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    made = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
    return made.requires_grad_(value.requires_grad)
