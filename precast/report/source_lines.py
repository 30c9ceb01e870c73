"""The lines of the user's program that each step of a compiled graph comes from."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.fx

from precast.lowering.costs.records import StepRecord

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)\n?([^\n]*)')
_TORCH = os.path.dirname(torch.__file__) + os.sep
_MOST = 6
"""Lines of one step: a kernel of a whole block of layers names no more."""


def with_sources(records: Sequence[StepRecord], graph: torch.fx.GraphModule) -> tuple[StepRecord, ...]:
    """The records with the lines that the graph's nodes were traced from, innermost frame outside of torch, each once."""
    lines = {node.name: line for node in graph.graph.nodes if node.stack_trace and (line := _line(node.stack_trace))}
    found = []
    for record in records:
        own = tuple(dict.fromkeys(lines[name] for name in record.origins if name in lines))
        found.append(replace(record, sources=own[:_MOST]))
    return tuple(found)


def _line(trace: str) -> str:
    """`file:line in function: code`; the file from the entry of `sys.path` on that it lies under, so that machines agree."""
    frames = _FRAME.findall(trace)
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    if not own:
        return ""
    file, line, function, code = own[-1]
    return f"{_short(file)}:{line} in {function}" + (f": {code.strip()}" if code.strip() else "")


def _short(file: str) -> str:
    """The path without the longest entry of `sys.path` that it begins with."""
    entries = (os.path.join(os.path.abspath(entry), "") for entry in sys.path)
    longest = max((entry for entry in entries if file.startswith(entry)), key=len, default="")
    return file[len(longest) :]


__all__ = ["with_sources"]
