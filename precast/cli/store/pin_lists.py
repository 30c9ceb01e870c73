"""Pins as commands choose and show them, of the local store and of remotes."""

from __future__ import annotations

from precast.artifact_store.format.text import many
from precast.artifact_store.maintenance.pins import Pin
from precast.cli.output import ANSWER_NO, Failure, Output, finish
from precast.report.units import human_age


def choose_pins(there: list[Pin], artifacts: tuple[str, ...], programs: tuple[str, ...]) -> tuple[list[Pin], list[str]]:
    """The pins that are meant, and the words that mean none. Failure for a beginning that several share."""
    chosen: list[Pin] = []
    unknown: list[str] = []
    for word in artifacts:
        found = [one for one in there if one.artifact_id and one.artifact_id.startswith(word.lower())]
        if len(found) > 1:
            raise Failure(f"{word} is the beginning of {many(len(found), 'pinned artifact')}; give more characters")
        chosen += found
        unknown += [] if found else [word]
    for key in programs:
        found = [one for one in there if one.program_key == key]
        chosen += found
        unknown += [] if found else [key]
    return chosen, unknown


def said(one: Pin) -> str:
    """What a pin holds, in words."""
    note = f" ({one.note})" if one.note else ""
    return f"artifact {one.artifact_id[:12]}{note}" if one.artifact_id else f"program {one.program_key}{note}"


def tell_pins(out: Output, found: list[Pin], place: str) -> None:
    """A line for each."""
    out.data([vars(one) for one in found])
    raw = [(one.artifact_id, one.program_key, one.by, int(one.made), one.note) for one in found]
    readable = [(one.artifact_id[:12] or one.program_key, one.by, human_age(one.made or None), one.note) for one in found]
    if found:
        out.table(("PINNED", "BY", "SINCE", "NOTE"), raw, readable)
    else:
        out.note(f"Nothing is pinned in {place}")


def tell_unpinned(out: Output, gone: list[Pin], unknown: list[str]) -> None:
    """What was let go and what was not pinned, with the exit code."""
    out.data({"unpinned": [vars(one) for one in gone], "not_pinned": unknown})
    for one in gone:
        out.note(f"Unpinned {said(one)}")
    for name in unknown:
        out.note(f"{name} is not pinned; `precast pins` shows what is")
    finish(ANSWER_NO if unknown else 0)
