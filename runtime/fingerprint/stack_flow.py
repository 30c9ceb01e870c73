"""Def-use analysis of one value on the interpreter's stack: copies, stores and jumps are followed, calls and operators end it."""

from __future__ import annotations

import dis
from bisect import bisect_left
from collections.abc import Iterator, Sequence

_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


def uses_of_top(steps: Sequence[dis.Instruction], at: int) -> Iterator[tuple[int, int]]:
    """The uses of the value that is on top of the stack before `steps[at]`: positions of instructions that store it into a variable, or
    read or set an attribute of it.

    Beside each position, which variable it is, where one instruction stores two. A value that a call or an operator consumes is not
    followed.
    """
    open_ = [(at, frozenset((0,)))]
    seen = set(open_)
    while open_:
        at, depths = open_.pop()
        if at >= len(steps) or not depths:
            continue
        step = steps[at]
        stored = _stored(step)
        yield from ((at, depth) for depth in sorted(depths) if depth < stored)
        if step.opname in (*_ATTRIBUTE, "STORE_ATTR", "DELETE_ATTR") and 0 in depths:
            yield at, 0
        for place, left in _after(steps, at, depths):
            if (place, left) not in seen:
                seen.add((place, left))
                open_.append((place, left))


def _stored(step: dis.Instruction) -> int:
    """How many values the instruction pops from the stack into variables."""
    if step.opname == "STORE_FAST_STORE_FAST":
        return 2
    return int(step.opname in (*_STORES, "STORE_FAST_LOAD_FAST"))


def _after(steps: Sequence[dis.Instruction], at: int, depths: frozenset[int]) -> Iterator[tuple[int, frozenset[int]]]:
    """The successors of an instruction, each with the stack depths of the value's copies there; none where the value is consumed."""
    step = steps[at]
    name = step.opname
    if name.startswith("POP_JUMP"):
        yield _target(steps, step), _less(depths, 1)
        yield at + 1, _less(depths, 1)
    elif name in ("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"):
        yield _target(steps, step), depths
        yield at + 1, _less(depths, 1)
    elif name in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"):
        yield _target(steps, step), depths
    elif name == "COPY":
        yield at + 1, frozenset(depth + 1 for depth in depths) | ({0} if (step.arg or 0) - 1 in depths else set())
    elif name == "SWAP":
        other = (step.arg or 0) - 1
        yield at + 1, frozenset({0: other, other: 0}.get(depth, depth) for depth in depths)
    elif name == "TO_BOOL":
        yield at + 1, depths - {0}
    elif name == "POP_TOP" or _stored(step):
        less = _less(depths, 2 if name == "STORE_FAST_STORE_FAST" else 1)
        yield at + 1, frozenset(depth + 1 for depth in less) if name == "STORE_FAST_LOAD_FAST" else less
    elif name in _ATTRIBUTE or name.startswith(("LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")):
        more = dis.stack_effect(step.opcode, step.arg)
        yield at + 1, frozenset(depth + more for depth in (depths - {0} if name in _ATTRIBUTE else depths))


def _target(steps: Sequence[dis.Instruction], jump: dis.Instruction) -> int:
    """The position that a jump leads to. `steps` may lack the target instruction itself: then the next one after it."""
    return bisect_left(steps, jump.argval, key=lambda step: step.offset)


def _less(depths: frozenset[int], count: int) -> frozenset[int]:
    """The depths after `count` values were popped."""
    return frozenset(depth - count for depth in depths if depth >= count)
