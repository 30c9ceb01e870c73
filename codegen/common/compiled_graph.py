"""What code generation hands out: one shared object with everything that is needed to explain and rebuild it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

from precast.codegen.common.toolchain import find_compiler
from precast.codegen.common.torch_names import torch_name
from precast.lowering.costs.records import StepRecord
from precast.lowering.ir.nodes import Program, Size


@dataclass(frozen=True)
class Image:
    """Machine code of one GPU kernel (a cubin, or PTX text): what the host program's kernel of the same number is loaded from."""

    name: str
    data: bytes
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompiledGraph:
    """A compiled `Program`.

    `inputs` and `outputs` are plain data: `{"kind": "tensor", "dtype", "size", "stride"}` (sizes as ints or expression text) or
    `{"kind": "int", "symbol"}` / `{"kind": "none"}`. `evidence` records compiler, target features and measured library choices.
    """

    library: bytes
    kernel_source: str
    host_source: str
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    workspace_bytes: int | str
    evidence: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    python_calls: tuple[str, ...] = ()  # operators that the graph calls back into Python for
    steps: tuple[StepRecord, ...] = ()  # what runs, in this order
    images: tuple[Image, ...] = ()  # kernels that the library does not hold itself, in the order of their numbers


def plain_size(size: Size) -> int | str:
    """An int where the size is known, else the expression's text."""
    return int(size) if isinstance(size, int | sympy.Integer) else str(size)


def input_records(program: Program) -> tuple[dict[str, Any], ...]:
    """`CompiledGraph.inputs` of a program."""
    return tuple(_input(program, item) for item in program.inputs)


def output_records(program: Program) -> tuple[dict[str, Any], ...]:
    """`CompiledGraph.outputs` of a program."""
    return tuple(_output(program, n) for n in range(len(program.outputs)))


def _input(program: Program, item: str | sympy.Symbol) -> dict[str, Any]:
    if not isinstance(item, str):
        return {"kind": "int", "symbol": item.name}
    buffer = program.buffer(item)
    return {
        "kind": "tensor",
        "dtype": torch_name(buffer),
        "size": [plain_size(s) for s in buffer.size],
        "stride": [plain_size(s) for s in buffer.stride],
    }


def _output(program: Program, number: int) -> dict[str, Any]:
    output = program.outputs[number]
    if output.view is None:
        return {"kind": "none"} if output.scalar is None else {"kind": "int", "value": plain_size(output.scalar)}
    buffer = program.buffer(output.view.buffer)
    return {
        "kind": "tensor",
        "dtype": torch_name(buffer),
        "size": [plain_size(s) for s in output.view.size],
        "stride": [plain_size(s) for s in output.view.stride],
    }


def evidence(level: str, choices: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """What every artifact says of how it was made: the host compiler, the `level` of its target that was compiled for, measured choices;
    and what its family says besides.
    """
    return {"compiler": find_compiler().version, "target_level": level, "choices": dict(sorted(choices.items())), **own}
