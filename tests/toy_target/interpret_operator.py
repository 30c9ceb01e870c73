"""The operator that runs a program: what libraries for `toy:interpreter` call. The interpreter is imported when it is first called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

NAME = "precast_toy::interpret"
calls: list[str] = []
"""Names of the programs that this process has interpreted."""

_library: Any = torch.library.Library("precast_toy", "DEF")  # type: ignore[no-untyped-call]
_library.define("interpret(str program, Tensor[] tensors, Scalar[] numbers) -> Tensor[]")


def interpret(text: str, tensors: Sequence[torch.Tensor], numbers: Sequence[float]) -> list[torch.Tensor]:
    """The program's outputs; `tensors` and `numbers` are its inputs, each kind in order."""
    from precast.lowering.verify.interpret import run
    from tests.toy_target.program_text import read

    program = read(text)
    calls.append(program.name)
    left, others = iter(tensors), iter(numbers)
    return run(program, [next(left) if isinstance(item, str) else next(others) for item in program.inputs])


_library.impl("interpret", interpret, "CompositeExplicitAutograd")
