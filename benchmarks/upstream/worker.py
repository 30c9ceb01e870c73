"""A process of one way: builds and loads artifacts, and answers what happened. JSON requests on stdin, JSON answers on stdout.

{"do": "build" | "serve" | "first", "program": p, "folder": f, "case": c} | {"do": "block", "calls": n} | {"do": "quit"}

A request with `apart` is answered by a child of this process, which has imported torch and the way's modules and done nothing else: that
is a fresh process without the seconds that imports take. Its environment is what `apart` holds, its limit of time is `limit`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import re
import select
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

START = time.perf_counter()
TIGHT, LOOSE = {"rtol": 1e-4, "atol": 5e-5}, {"rtol": 2e-3, "atol": 2e-4}  # of the small programs, of whole models
COMPILERS = ("torch._dynamo", "torch._inductor", "torch.export", "sympy", "triton")


class Notes(logging.Handler):
    """Keeps what was logged, so that a warning that a call gave is told."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line."""
        self.lines.append((record.getMessage().strip().splitlines() or [""])[0])

    def listen(self) -> None:
        """Hear torch's loggers, precast's, and Python's warnings."""
        for name in ("", "torch", "torch._dynamo", "torch._inductor", "precast"):
            logging.getLogger(name).addHandler(self)
        warnings.showwarning = lambda message, *rest, **more: self.lines.append(str(message).strip().splitlines()[0])


def traced() -> int:
    """How many graphs Dynamo has captured in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters else 0


def sentence(error: BaseException) -> str:
    """The error's class and its first words, without addresses and paths of this machine."""
    text = " ".join(str(error).split())
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", re.sub(r"/\S+/", "…/", text))
    return f"{type(error).__name__}: {text[:400]}"


def unequal(got: Any, want: Any, model: bool = False) -> str:
    """In what an answer differs from eager's; nothing where it does not."""
    import rows
    import torch

    got, want = rows.first_tensor(got), rows.first_tensor(want)
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)} for {tuple(want.shape)}"
    if got.dtype != want.dtype:
        return f"dtype {got.dtype} for {want.dtype}"
    if not torch.allclose(got.double(), want.double(), **(LOOSE if model else TIGHT)):
        return f"off by {float((got.double() - want.double()).abs().max()):.2g}"
    return ""


class Worker:
    """State of one way."""

    def __init__(self, way: str) -> None:
        import torch

        self.torch_seconds = time.perf_counter() - START
        from ways import WAYS

        self.way = WAYS[way]
        self.lacking = self.way.lacking()
        begin = time.perf_counter()
        for name in () if self.lacking else self.way.imports:
            importlib.import_module(name)
        self.own_seconds = time.perf_counter() - begin
        self.notes = Notes()
        self.notes.listen()
        torch.set_grad_enabled(False)
        self.program, self.folder = "", Path()

    def make(self) -> Any:
        """The program, new: a row of the benchmark, or one of this folder's."""
        from program import Program
        from subject import PROGRAMS

        if self.program in PROGRAMS:
            return PROGRAMS[self.program]()
        import rows

        model, inputs = rows.build(self.program)
        return Program(model, (), inputs)

    def build(self) -> dict[str, Any]:
        """Build the artifact."""
        if self.lacking:
            return {"error": self.lacking, "lacking": True}
        program = self.make()
        begin = time.perf_counter()
        try:
            self.way.build(program, self.folder)
        except Exception as error:  # noqa: BLE001  whatever torch raises is the answer
            return {"error": sentence(error)}
        files = [p for p in self.folder.rglob("*") if p.is_file()]
        return {"seconds": time.perf_counter() - begin, "bytes": sum(p.stat().st_size for p in files), "files": len(files)}

    def first(self) -> dict[str, Any]:
        """Load and answer once: the seconds that a user waits, apart from imports and from building the model."""
        self.loaded = self.make()
        begin = time.perf_counter()
        self.call = self.way.load(self.loaded, self.folder)
        load = time.perf_counter()
        answer = self.call(*self.loaded.args, **self.loaded.kwargs)
        done = time.perf_counter()
        graphs, names = traced(), [name for name in COMPILERS if name in sys.modules]
        twin = self.make()
        return {
            "seconds": done - begin,
            "load": load - begin,
            "torch": self.torch_seconds,
            "own": self.own_seconds,
            "traced": graphs,
            "imports": names,
            "wrong": unequal(answer, twin.model(*twin.args, **twin.kwargs), model=True),
        }

    def block(self, calls: int) -> dict[str, Any]:
        """Times of `calls` calls in turn, after one that does not count."""
        run, args, kwargs = self.call, self.loaded.args, self.loaded.kwargs
        cpu, begin, times = os.times(), time.perf_counter(), []
        for i in range(calls + 1):
            start = time.perf_counter()
            run(*args, **kwargs)
            if i:
                times.append(time.perf_counter() - start)
        now = os.times()
        spent = now.user - cpu.user + now.system - cpu.system
        return {"times": times, "cpu": spent, "wall": time.perf_counter() - begin, "peak": 0}

    def serve(self, case: str) -> dict[str, Any]:
        """Load under the case's changes and say what the calls gave beside eager's."""
        from cases import CASES
        from served import serve

        return serve(self, CASES[case])

    def answer(self, do: str, program: str = "", folder: str = "", **arguments: Any) -> dict[str, Any]:
        """Do one request in this process."""
        if program:
            self.program, self.folder = program, Path(folder)
        result: dict[str, Any] = {"build": self.build, "first": self.first, "block": self.block, "serve": self.serve}[do](**arguments)
        return result

    def answer_apart(self, environment: dict[str, str], limit: float, request: dict[str, Any]) -> dict[str, Any]:
        """Do one request in a child, and end it after `limit` seconds."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.environ.update(environment)
            with os.fdopen(writing, "w") as out:
                json.dump(self.answer(**request), out)
            os._exit(0)
        os.close(writing)
        parts: list[bytes] = []
        deadline = time.monotonic() + limit
        while (left := deadline - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
            part = os.read(reading, 65536)
            if not part:
                break
            parts.append(part)
        os.close(reading)
        late = time.monotonic() >= deadline
        if late:
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if parts and not late:
            result: dict[str, Any] = json.loads(b"".join(parts))
            return result
        code = os.waitstatus_to_exitcode(status)
        ended = (
            f"no answer within {limit:.0f} s" if late else f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        )
        return {"outcome": "error", "error": f"the process ended: {ended}", "detail": f"the process ended: {ended}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", required=True)
    parser.add_argument("--source", type=Path, required=True, help="folder that holds the copy of subject.py")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not mix with the answers
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(given.source), str(here)]
    sys.path.append(str(here.parent))
    import torch

    torch.set_num_threads(given.threads)
    worker = Worker(given.way)
    print(json.dumps({"torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "quit":
            return
        apart = request.pop("apart", None)
        limit = request.pop("limit", 0.0)
        result = worker.answer(**request) if apart is None else worker.answer_apart(apart, limit, request)
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
