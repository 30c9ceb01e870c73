"""`precast doctor` on torch: whether it is a supported one, and which facts that precast relies on do not hold. `--probe`: all facts."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from typing import NamedTuple

from precast.artifact_store.format.text import many
from precast.cli.output import ANSWER_NO, Output, finish, style
from precast.runtime.common.supported_torch import RANGE, why_unknown, why_unsupported


class Said(NamedTuple):
    """`good`: nothing to say; else `stops`: nothing is compiled."""

    good: bool
    stops: bool
    detail: str


def torch_lines() -> Iterator[Said]:
    """Lines about torch, as far as they take no time."""
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Said(False, True, f"cannot be imported ({error}); install torch {RANGE}")
        return
    here = f"{torch.__version__}, {torch.get_num_threads()} threads"
    if why_unsupported(torch.__version__):
        yield Said(False, True, f"{here}; precast supports {RANGE}: nothing is compiled or loaded, programs run eagerly")
    elif why_unknown(torch.__version__):
        yield Said(False, False, f"{here}; precast was tested with {RANGE}: `precast doctor --probe` says what holds of this one")
    else:
        yield Said(True, False, here)
    if not why_unsupported(torch.__version__):
        yield from _private_names(torch.__version__)
    backends = (("MKL", torch.backends.mkl), ("oneDNN", torch.backends.mkldnn))
    libraries = [name for name, backend in backends if backend.is_available()]
    yield Said(bool(libraries), False, f"CPU libraries: {', '.join(libraries) or 'none; matrix products will be slow'}")


def _private_names(version: str) -> Iterator[Said]:
    """Whether this torch has what precast uses of its private parts; a line where not."""
    from precast.runtime.common.eval_frame import MISSING

    if MISSING:
        yield Said(False, True, f"{version} lacks what precast calls of it: {MISSING}; programs run eagerly")
    if said := _misfit(version):
        yield Said(False, True, said)
        return
    from precast.runtime.common.torch_support import differences
    from precast.torch_facts.table import answers

    found = answers(deep=False)
    for answer in found:
        if answer.state == "fails" and not (MISSING and answer.group == "frame hook"):
            yield Said(False, answer.stops, f"{version} differs: {answer.group}: {answer.name}: {answer.detail}; {answer.instead}")
    for difference in differences():
        if not any(answer.name in difference.fact for answer in found if answer.state == "fails"):
            yield Said(False, False, str(difference))


def _misfit(version: str) -> str:
    """The adapter that this torch does not fit, as a sentence."""
    try:
        importlib.import_module("precast.capture")
        importlib.import_module("precast.torch_facts.table")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what keeps precast from compiling
        inside = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        adapter = next((name for name in reversed(inside) if name.startswith("precast.capture.")), "precast.capture")
        return f"{version} does not fit {adapter}, so that nothing can be compiled: {type(error).__name__}: {error}"
    return ""


def probe(as_json: bool) -> None:
    """Prints every fact about this torch with its answer. Exit code 1 where one fails."""
    out = Output(as_json)
    import torch

    version = str(torch.__version__)
    if reason := why_unsupported(version) or _misfit(version):
        out.data([])
        out.text(f"{style('fails', fg='red')}    {reason}")
        finish(ANSWER_NO)
        return
    from precast.torch_facts.table import answers

    found = answers(deep=True)
    out.data(found)
    colours = {"ok": "green", "differs": "yellow", "fails": "red", "absent": "cyan"}
    group = ""
    for answer in found:
        if answer.group != group:
            group = answer.group
            out.text(f"{group}:")
        detail = f": {answer.detail}" if answer.detail else ""
        without = f"; {answer.instead}" if answer.state in ("fails", "differs") else ""
        out.text(f"  {style(f'{answer.state:<8}', fg=colours[answer.state])} {answer.name}{detail}{without}")
    counts = {state: sum(answer.state == state for answer in found) for state in colours}
    unknown = f"; {why_unknown(version)}" if why_unknown(version) else ""
    out.note(f"torch {version}: {many(len(found), 'fact')}, {', '.join(f'{n} {state}' for state, n in counts.items() if n)}{unknown}")
    finish(ANSWER_NO if counts["fails"] else 0)


__all__ = ["Said", "probe", "torch_lines"]
