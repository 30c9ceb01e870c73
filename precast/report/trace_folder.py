"""Tracing: one folder per compile with one numbered file per stage, for `options={"trace.enabled": True}` or PRECAST_TRACE=folder."""

from __future__ import annotations

import dis
import io
import itertools
import json
import marshal
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from precast.capture import CapturedFrame
from precast.codegen import CompiledGraph
from precast.lowering.ir.nodes import Program
from precast.lowering.ir.text import program_text
from precast.report.diagram import diagram
from precast.runtime.common.log import logger
from precast.runtime.guards.text import guard_columns

ENVIRONMENT = "PRECAST_TRACE"
FOLDER = "precast_trace"


class Trace:
    """Writes the stages of one compile; does nothing, and makes no text, where `folder` is None. Cannot fail a compile."""

    def __init__(self, folder: Path | None, with_diagram: bool = False) -> None:
        self.folder = folder
        self._with_diagram = with_diagram
        self._number = itertools.count(1)

    def write(self, stage: str, suffix: str, text: Callable[[], str]) -> None:
        """The next file, `NN_stage.suffix`."""
        if self.folder is None:
            return
        try:
            (self.folder / f"{next(self._number):02d}_{stage}.{suffix}").write_text(text(), encoding="utf-8")
        except OSError as error:
            logger("compile").warning("trace: %s cannot be written: %s", self.folder, error)

    def frame(self, frame: CapturedFrame) -> None:
        """Writes the result of the capture, without Dynamo's graph, which `dynamo_graph` writes during the capture."""
        if frame.code is not None:
            code = frame.code.code
            self.write("bytecode", "txt", lambda: _disassembled(code))
        self.write("guards", "txt", lambda: _guards(frame))
        if frame.graph is not None:
            graph = frame.graph
            self.write("aten_graph", "py", lambda: readable(graph))

    def dynamo_graph(self, graph: Any) -> None:
        """The graph as Dynamo traced it: torch functions on the call's inputs."""
        self.write("dynamo_graph", "py", lambda: readable(graph))

    def scheduled(self, lowered: Program, scheduled: Program, weights: Collection[str]) -> None:
        self.write("lowered_ir", "txt", lambda: program_text(lowered))
        self.write("scheduled_ir", "txt", lambda: program_text(scheduled))
        if self._with_diagram:
            self.write("graph", "svg", lambda: diagram(scheduled, weights))

    def compiled(self, compiled: CompiledGraph) -> None:
        self.write("kernels", "cpp", lambda: compiled.kernel_source)
        self.write("host_program", "py", lambda: compiled.host_source)
        self.write("choices", "json", lambda: json.dumps(compiled.evidence["choices"], indent=1))

    def refused(self, reason: str) -> None:
        """Writes the last file of a compile that was refused."""
        self.write("refused", "txt", lambda: reason + "\n")


def trace_for(name: str, options: Mapping[str, Any]) -> Trace:
    """The trace of one compile of the program `name`: in a new folder under `trace.dir`, PRECAST_TRACE or ./precast_trace."""
    given = os.environ.get(ENVIRONMENT, "")
    if not (options["trace.enabled"] or options["trace.graph_diagram"] or given):
        return Trace(None)
    root = Path(options["trace.dir"] or given or FOLDER)
    readable_name = re.sub(r"[^A-Za-z0-9_]+", ".", name)[-200:].strip(".") or "program"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            folder = root / f"{readable_name}.{number:03d}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            logger("compile").info("%s: traced into %s", name, folder)
            return Trace(folder, options["trace.graph_diagram"])
    except OSError as error:
        logger("compile").warning("trace: %s cannot be made: %s", root, error)
    return Trace(None)


def readable(graph: Any) -> str:
    """A torch.fx graph as Python, with shapes."""
    text: str = graph.print_readable(print_output=False, include_stride=True, include_device=True)
    return text


def _disassembled(code: bytes) -> str:
    out = io.StringIO()
    dis.dis(marshal.loads(code), file=out)  # noqa: S302 - what this process has just captured
    return out.getvalue()


def _guards(frame: CapturedFrame) -> str:
    lines = ["\t".join(guard_columns(guard.path, guard.predicate, guard.constant)).rstrip() for guard in frame.guards]
    lines += [f"waived\t{text}" for text in frame.waived]
    lines += [f"not portable\t{text}" for text in frame.uncacheable]
    return "\n".join(lines) + "\n"


__all__ = ["Trace", "readable", "trace_for"]
