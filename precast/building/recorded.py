"""Recorded calls as signatures of a build: those of the program, each once, that the factory's own do not name already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from precast.artifact_store.statistics.recorded_calls import RecordedCall, read
from precast.runtime.counting.signatures import from_data, to_data
from precast.runtime.frames.entry import entry_of

log = logging.getLogger("precast.driver")
Signature = tuple[tuple[Any, ...], dict[str, Any]]


def recorded_signatures(
    paths: Sequence[str], program: Callable[..., Any], label: str | None, own: Sequence[Signature], name: str
) -> list[Signature]:
    """Signatures made of the calls that were recorded of `program`, under `label` where it has one. `own`: the factory's.

    Raises OSError. A call that cannot be made again (an argument of a class of the user's) is left out with a warning.
    """
    known = {_form(args, kwargs) for args, kwargs in own}
    entry = entry_of(program).name
    found: list[Signature] = []
    calls = read(map(Path, paths))
    mine = [call for call in calls if _is_of(call, entry, label)]
    for call in mine:
        if call.inference:
            log.warning("%s: recorded under torch.inference_mode(), and built under no_grad(): %s would miss there", name, call)
        try:
            signature = tuple(map(from_data, call.args)), {key: from_data(value) for key, value in call.kwargs.items()}
        except (ValueError, TypeError, RuntimeError) as error:
            why = "; ".join(call.unknown) or str(error)
            log.warning("%s: the recorded call (%s) is not built: %s. Give it in the factory", name, call, why)
            continue
        form = _form(*signature)
        if form not in known:
            known.add(form)
            found.append(signature)
    log.info("%s: %d signatures of %d recorded calls (%d of other programs)", name, len(found), len(mine), len(calls) - len(mine))
    return found


def _is_of(call: RecordedCall, entry: str, label: str | None) -> bool:
    return call.program == label if label is not None else call.program == call.entry == entry


def _form(args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    return repr(([to_data(value) for value in args], sorted((key, to_data(value)) for key, value in kwargs.items())))


__all__ = ["recorded_signatures"]
