"""What the text of a stored schedule says: buffers, results, notes, and the loops of each step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from precast.lowering.costs.records import StepRecord

_BUFFER = re.compile(r"  (\w+): (\w+\[[^\]]*\])(?: stride \[[^\]]*\])?(.*)")
_RESULT = re.compile(r"(?:^return |, )(\w+)(?:\+[^\[\s]+)?\[")
_BARE = "_bare"
"""Ending of the name of a product that is written before its epilogue."""


@dataclass(frozen=True)
class Schedule:
    """`buffers`: type and shape ("f32[32, 384]") by name; `lines` below "steps:", each with the step that finishes what it computes."""

    buffers: dict[str, str]
    inputs: frozenset[str]
    results: frozenset[str]
    notes: tuple[str, ...]
    lines: tuple[tuple[str, int | None], ...]


def parsed(text: str, steps: Sequence[StepRecord]) -> Schedule:
    """Of a graph whose host program runs `steps`: library calls may have been split since the schedule was made."""
    head, _, below = text.partition("\nsteps:\n")
    buffers, inputs = {}, set()
    for line in head.splitlines():
        if found := _BUFFER.fullmatch(line):
            buffers[found[1]] = found[2]
            if found[3].split(" @")[0].strip():
                inputs.add(found[1])
    body, _, tail = below.partition("\nreturn ")
    lines = tail.splitlines()
    results = frozenset(_RESULT.findall("return " + lines[0])) if lines else frozenset()
    notes = tuple(line.removeprefix("note: ") for line in lines[1:] if line.startswith("note: "))
    return Schedule(buffers, frozenset(inputs), results, notes, tuple(_linked(body, steps)))


def _linked(body: str, steps: Sequence[StepRecord]) -> list[tuple[str, int | None]]:
    """Lines with their steps. A step's text begins at the margin; what is deeper belongs to it."""
    writer = {name: number for number, step in enumerate(steps) for name in step.written}
    found: list[tuple[str, int | None]] = []
    chunk: list[str] = []

    def close() -> None:
        named = re.findall(r"^\s*(?:kernel )?((?:\w+(?:, )?)+)(?:\[.*?\])? [+*|&]?=|^(?:\S+, )*mutates (\w+)", "\n".join(chunk), re.M)
        names = [name for match in named for text in match for name in text.split(", ")]
        step = next((writer[own] for name in names for own in (name, name + _BARE) if own in writer), None)
        found.extend((line, step) for line in chunk)

    for line in (line[2:] for line in body.splitlines()):
        if chunk and not line.startswith(" "):
            close()
            chunk = []
        chunk.append(line)
    if chunk:
        close()
    return found


def shape_of(name: str, schedule: Schedule) -> str:
    """Type and shape of a buffer; a bare product has those of what its epilogue writes. Empty where they are not known."""
    return schedule.buffers.get(name) or schedule.buffers.get(name.removesuffix(_BARE), "")


__all__ = ["Schedule", "parsed", "shape_of"]
