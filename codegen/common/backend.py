"""What a family of targets brings to code generation: one value, which is looked up once for each graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch.fx

from precast.codegen.common.compiled_graph import CompiledGraph
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.common.tuner import Tuner
from precast.lowering.ir.nodes import Program
from precast.lowering.targets.scheduling import Pass


class Compilation(Protocol):
    """One program on its way to a target."""

    @property
    def passes(self) -> Mapping[str, Pass]:
        """Passes that take the place of those of the scheduler that have these names: what they do depends on measurements."""
        ...

    def compile(self, scheduled: Program) -> CompiledGraph:
        """Library, sources and images. Raises one of `Backend.unsupported`, and the toolchain's errors."""
        ...


def _nothing() -> None:
    return None


def _no_libraries(graph: torch.fx.GraphModule) -> threading.Thread | None:
    return None


@dataclass(frozen=True)
class Backend:
    """The verbs of one family; `target` is a target of it, as code generation knows it ("cpu:native" for this machine's own CPU)."""

    compilation: Callable[[str, CodegenOptions, CompileContext], Compilation]
    """(target, options, context) -> what one program is compiled with. It is made before the program is scheduled."""
    compiler_version: Callable[[str], str]
    """The names and versions of the compilers for a target, part of every artifact's key. Raises `CompilerMissing`."""
    tuning_name: Callable[[str], str]
    """The name of the store's record of choices that were measured for a target."""
    unsupported: tuple[type[Exception], ...] = ()
    """What `Compilation.compile` raises for a program that has no form on the target: the program is refused, and runs eagerly."""
    begin: Callable[[], None] = _nothing
    """Begins in threads or processes what compiling will need, while the graph is still being captured. Raises ImportError or RuntimeError
    where it cannot; compiling then says so."""
    start_libraries: Callable[[torch.fx.GraphModule], threading.Thread | None] = _no_libraries
    """Begins in a thread what the first computation of a captured graph needs of the device's libraries; None where that is nothing."""
    tuner: Tuner | None = None
    """How `precast tune` measures the family's choices on a device of this machine; None where builds measure them as they go."""


__all__ = ["Backend", "Compilation"]
