"""How many bytes are alive at each step, and how many more there may be: passes that make results earlier than they are needed, or keep
what would be computed again, ask here, so that they raise the peak by a stated share at most.
"""

from __future__ import annotations

from itertools import accumulate

from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.liveness import lifetimes
from precast.lowering.ir.nodes import Program

UNCOUNTED = 1 << 20
"""Bytes that a peak may grow by in any case: what a launch more costs is dearer than so little memory."""


def _own(program: Program) -> dict[str, tuple[int, int]]:
    """The first and the last step at which each buffer of the device is there that the program's steps write."""
    given = {i for i in program.inputs if isinstance(i, str)} | set(program.persistent) | {c.buffer for c in program.constants}
    given |= {b.name for b in program.buffers if b.on_cpu}
    return {name: (first, min(last, len(program.steps) - 1)) for name, (first, last) in lifetimes(program).items() if name not in given}


def alive_bytes(program: Program) -> list[int]:
    """At each step, the bytes of the buffers that are used then or later; what they share is left out of account."""
    size = {b.name: nbytes_hint(b) for b in program.buffers}
    change = [0] * (len(program.steps) + 1)
    for name, (first, last) in _own(program).items():
        change[first] += size[name]
        change[last + 1] -= size[name]
    return list(accumulate(change))[:-1]


def most_alive(program: Program, growth: float) -> int:
    """The most bytes that may be alive in a program made of this one."""
    peak = max(alive_bytes(program), default=0)
    return peak + max(int(peak * growth), UNCOUNTED)


class Headroom:
    """The bytes alive at the steps of a program, with what is made to live longer; their peak may grow by the share `growth`."""

    def __init__(self, program: Program, growth: float) -> None:
        self._alive = alive_bytes(program)
        self._most = most_alive(program, growth)

    def earliest(self, position: int, nbytes: int) -> int:
        """The first step from which so many bytes may be alive that are written at `position` now."""
        while position > 0 and self._alive[position - 1] + nbytes <= self._most:
            position -= 1
        return position

    def take(self, first: int, before: int, nbytes: int) -> None:
        """So many bytes are alive from the step `first` on to the one in front of `before`, too."""
        for position in range(first, before):
            self._alive[position] += nbytes

    def fits(self, position: int, nbytes: int) -> bool:
        """Whether so many bytes more may be alive at one step."""
        return self._alive[position] + nbytes <= self._most
