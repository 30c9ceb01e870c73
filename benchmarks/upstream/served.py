"""What a loaded artifact gives under one change: eager's answer, an error, a new compilation, or a wrong answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from cases import Case
from program import Program

if TYPE_CHECKING:
    from worker import Worker


def _artifacts(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*.msgpack"))


def _answer(call: Any, program: Program) -> tuple[Any, str]:
    """The answer and no error, or no answer and the error's sentence."""
    from worker import sentence

    args = tuple(a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in program.args)
    if len(program.args) == 2 and program.args[0] is program.args[1]:
        args = (args[0], args[0])
    if program.dynamic and "precast" not in sys.modules:
        torch._dynamo.mark_dynamic(args[0], 0)
    try:
        return call(*args, **program.kwargs), ""
    except Exception as error:  # noqa: BLE001  whatever a call raises is the answer
        return None, sentence(error)


def _gradients(answer: torch.Tensor, program: Program) -> list[torch.Tensor]:
    parameters = [p for p in program.model.parameters() if p.requires_grad]
    return list(torch.autograd.grad(answer.sum(), parameters, allow_unused=False))


def _compare(got: Any, want: Any, program: Program, twin: Program) -> str:
    """In what the answer, what it leaves in the buffers, or its gradients differ from eager's."""
    from worker import unequal

    if wrong := unequal(got, want):
        return wrong
    if want.requires_grad:
        if not got.requires_grad:
            return "an answer without gradient"
        pairs = zip(_gradients(got, program), _gradients(want, twin), strict=True)
        return next((f"gradient {text}" for mine, other in pairs if (text := unequal(mine, other))), "")
    if isinstance(program.model, torch.nn.Module):
        for name, buffer in twin.model.named_buffers():
            if text := unequal(dict(program.model.named_buffers()).get(name, torch.empty(0)), buffer):
                return f"buffer {name} {text}"
    return ""


def serve(worker: Worker, case: Case) -> dict[str, Any]:
    """One case. `outcome` is right, error, wrong, or broken (no right answer even before the change)."""
    from worker import sentence, traced

    program, twin = worker.make(), worker.make()
    if case.before:
        case.before(program)
        case.before(twin)
    try:
        call = worker.way.load(program, worker.folder)
    except Exception as error:  # noqa: BLE001  whatever a load raises is the answer
        return {"outcome": "error", "detail": sentence(error), "at": "load"}
    if case.after:
        got, failed = _answer(call, program)
        want, _ = _answer(twin.model, twin)
        if failed or _compare(got, want, program, twin):
            return {"outcome": "broken", "detail": failed or _compare(got, want, program, twin)}
        case.after(program)
        case.after(twin)
    graphs, stored, notes = traced(), _artifacts(worker.folder), len(worker.notes.lines)
    with case.context():
        for _ in range(case.calls):
            got, failed = _answer(call, program)
            want, refused = _answer(twin.model, twin)
            if failed or refused:
                break
            if detail := _compare(got, want, program, twin):
                return {"outcome": "wrong", "detail": detail, "notes": worker.notes.lines[notes:][:3]}
    anew = traced() > graphs or _artifacts(worker.folder) > stored
    said = {"notes": worker.notes.lines[notes:][:3], "anew": anew}
    if failed:
        return {"outcome": "right" if refused else "error", "detail": failed, "at": "call", **said}
    if refused:
        return {"outcome": "wrong", "detail": f"an answer where eager raises {refused}", **said}
    return {"outcome": "right", "detail": "", **said}
