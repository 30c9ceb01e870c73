"""What a family of targets brings to code generation: one value, which is looked up once for each graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx

from precast.codegen.compiled import CompiledGraph
from precast.lowering.ir import Program


def _as_given(target: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return dict(options)


def _nothing() -> None:
    return None


def _no_libraries(graph: torch.fx.GraphModule) -> threading.Thread | None:
    return None


@dataclass(frozen=True)
class Backend:
    """The verbs of one family; `target` is a target of it, as code generation knows it ("cpu:native" for this machine's own CPU)."""

    compile: Callable[[Program, str, Mapping[str, Any]], CompiledGraph]
    """(scheduled program, target, options) -> library, sources and images. Raises one of `unsupported`, and the toolchain's errors."""
    compiler_version: Callable[[str], str]
    """The names and versions of the compilers for a target, part of every artifact's key. Raises `CompilerMissing`."""
    tuning_name: Callable[[str], str]
    """The name of the store's record of choices that were measured for a target."""
    with_choices: Callable[[str, Mapping[str, Any]], dict[str, Any]] = _as_given
    """(target, options) -> the options with what answers the questions that scheduling and compiling ask."""
    unsupported: tuple[type[Exception], ...] = ()
    """What `compile` raises for a program that has no form on the target: the program is refused, and runs eagerly."""
    begin: Callable[[], None] = _nothing
    """Begins in threads or processes what compiling will need, while the graph is still being captured. Raises ImportError or RuntimeError
    where it cannot; compiling then says so."""
    start_libraries: Callable[[torch.fx.GraphModule], threading.Thread | None] = _no_libraries
    """Begins in a thread what the first computation of a captured graph needs of the device's libraries; None where that is nothing."""


__all__ = ["Backend"]
