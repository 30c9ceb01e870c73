"""Workspace segments, for programs in which libraries allocate memory themselves: early segments are freed before late ones are
allocated.

A single workspace exists for the whole call, with the size of the busiest step; a convolution's result that its library allocates comes
on top, though most of the workspace is idle at that time. Cut at one step, the workspace has three segments: buffers alive across the
cut, those that die before it, and those that begin after it; the last two never exist at the same time. Where that is not enough, large
blocks become segments of their own. An allocation costs about half a microsecond of a call, so each variant has to save something over
the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from precast.lowering.analysis.buffer_bytes import DEVICE_ALIGNMENT, nbytes_of
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.analysis.liveness import lifetimes
from precast.lowering.ir.nodes import Part, Program, Size, Slot
from precast.lowering.passes.memory.memory_plan import Block, blocks_of, distinct_blocks, place

LEAST_BYTES = 1 << 20
LEAST_SHARE = 1 / 25
"""What each way has to save over the one before, and of the peak."""
LEAST_SHARE_OF_KEPT = 1 / 200
"""The same of a backward graph's peak, most of which was kept for it."""
APART = (32 << 20, 16 << 20, 8 << 20, 4 << 20)
"""Bytes from which blocks may be allocated apart. A kernel that fills one takes longer than the allocation."""
MOST_APART = 48
MOST_CUTS, LARGEST_TRIED = 6, 3
"""How often segments are cut again, and how many of them are tried each time."""


@dataclass(frozen=True)
class _Way:
    peak: int
    groups: tuple[list[Block], ...]


def in_parts(program: Program, elsewhere: Collection[str], alignment: int = DEVICE_ALIGNMENT, frees_inputs: bool = False) -> Program:
    """The program, whose memory is planned with `elsewhere`, with a workspace of parts where that lowers the peak enough. `frees_inputs`:
    it is a backward graph, which gives back what was kept for it after its last use: that counts until then, so that little memory is
    held by the steps that run while much of it is there.
    """
    blocks = blocks_of(program, elsewhere=elsewhere, alignment=alignment)
    distinct = distinct_blocks(blocks)
    if not isinstance(program.workspace_bytes, int) or any(not isinstance(b.nbytes, int) or not b.nbytes for b in distinct):
        return program
    own = owned_bytes(program, alignment, frees_inputs)
    best = _Way(program.workspace_bytes + max(own, default=0), ())
    share = LEAST_SHARE_OF_KEPT if frees_inputs else LEAST_SHARE
    for limit in (None, *APART):
        apart = [] if limit is None else [b for b in distinct if int(b.nbytes) >= limit]
        if len(distinct) < 2 or len(apart) > MOST_APART:
            continue
        alone = set(map(id, apart))
        way = _cut([b for b in distinct if id(b) not in alone], [a + b for a, b in zip(own, _live(apart, len(own)), strict=True)])
        if best.peak - way.peak >= max(LEAST_BYTES, share * best.peak):
            best = replace(way, groups=(*way.groups, *([b] for b in apart)))
    best = _cut_further(best, own, share)
    if not best.groups:
        return program
    offsets: dict[int, int] = {}
    parts: list[Part] = []
    total = 0
    for group in filter(None, best.groups):
        where, top = place(group)
        offsets |= {block: total + int(offset) for block, offset in where.items()}
        parts.append(Part(total, top))
        total += top
    slots = tuple(Slot(name, offsets[id(block)], block.nbytes) for name, block in blocks.items())
    divided = replace(program, workspace=slots, workspace_bytes=total, parts=tuple(parts))
    return divided if planned_peak(divided, alignment, frees_inputs) < planned_peak(program, alignment, frees_inputs) else program


def _cut(blocks: list[Block], own: Sequence[int]) -> _Way:
    """The blocks that live across the best cut, those before and those after it, where `own` bytes lie elsewhere at each step."""
    count = len(own)
    before, after = list(accumulate(own, max)), list(accumulate(reversed(own), max))[::-1]
    early, late = _highest(sorted(blocks, key=lambda b: b.last), count), _highest(sorted(blocks, key=lambda b: -b.first), count)
    crossing = _live([replace(b, first=b.first + 1) for b in blocks if b.first < b.last], count)
    ended, begun, peaks = 0, len(blocks), []
    lasts, firsts = sorted(b.last for b in blocks), sorted(b.first for b in blocks)
    for k in range(1, count):
        while ended < len(blocks) and lasts[ended] < k:
            ended += 1
        while begun and firsts[len(blocks) - begun] < k:
            begun -= 1
        peaks.append((crossing[k] + max(early[ended] + before[k - 1], late[begun] + after[k]), k))
    peak, k = min(peaks, default=(late[-1] + max(own, default=0), 0))
    groups = [b for b in blocks if b.first < k <= b.last], [b for b in blocks if b.last < k], [b for b in blocks if b.first >= k]
    return _Way(peak, groups)


def _cut_further(way: _Way, own: Sequence[int], share: float) -> _Way:
    """The same with the largest segments cut again, as often as that saves enough: a segment is held from the first step that uses a block
    in it to the last, though it is as large as its busiest step.
    """
    for _ in range(MOST_CUTS if way.groups else 0):
        tried = [way]
        for number, group in sorted(enumerate(way.groups), key=lambda item: -_size(item[1]))[:LARGEST_TRIED]:
            if len(group) < 2:
                continue
            others = [g for n, g in enumerate(way.groups) if n != number and g]
            held = [a + b for a, b in zip(own, _live([_whole(g) for g in others], len(own)), strict=True)]
            cut = _cut(group, held)
            tried.append(_Way(cut.peak, (*others, *filter(None, cut.groups))))
        found = min(tried, key=lambda other: other.peak)
        if way.peak - found.peak < max(LEAST_BYTES, share * way.peak):
            break
        way = found
    return way


def _size(group: Sequence[Block]) -> int:
    """Bytes of a segment that holds these blocks."""
    return max(_live(list(group), max((b.last for b in group), default=0) + 1), default=0)


def _whole(group: Sequence[Block]) -> Block:
    """The segment as one block."""
    return replace(group[0], first=min(b.first for b in group), last=max(b.last for b in group), nbytes=_size(group))


def _highest(blocks: Sequence[Block], count: int) -> list[int]:
    """The most bytes alive at one time of none of the blocks, of the first, of the first two, and so on."""
    alive, found = [0] * count, [0]
    for block in blocks:
        for position in range(block.first, min(block.last, count - 1) + 1):
            alive[position] += int(block.nbytes)
        found.append(max(found[-1], *alive[block.first : block.last + 1]))
    return found


def owned_bytes(program: Program, alignment: int = DEVICE_ALIGNMENT, frees_inputs: bool = False) -> list[int]:
    """At each step, bytes of what lies outside the workspace and is still needed: of what the steps have made so far, and with
    `frees_inputs` of inputs.
    """
    live, inside = lifetimes(program), {s.buffer for s in program.workspace}
    given = set(program.persistent) | {c.buffer for c in program.constants}
    if not frees_inputs:
        given |= {i for i in program.inputs if isinstance(i, str)}
    found = [0] * len(program.steps)
    for buffer in program.buffers:
        if buffer.name in inside or buffer.name in given or buffer.name not in live or not buffer.dtype.itemsize or buffer.on_cpu:
            continue
        nbytes = nbytes_of(buffer, alignment)
        first, last = live[buffer.name]
        for position in range(max(first, 0), min(last + 1, len(found))) if isinstance(nbytes, int) else ():
            found[position] += nbytes
    return found


def planned_peak(program: Program, alignment: int = DEVICE_ALIGNMENT, frees_inputs: bool = False) -> int:
    """Bytes that a call needs at most: the parts of the workspace that are there, and what lies outside of it."""
    own, held = owned_bytes(program, alignment, frees_inputs), _held(program)
    return max((a + b for a, b in zip(own, held, strict=True)), default=0)


def most_held(program: Program) -> Size:
    """The most bytes of the workspace that are allocated at one time."""
    return max(_held(program)) if program.parts else program.workspace_bytes


def _held(program: Program) -> list[int]:
    """Bytes of the workspace that are allocated at each step."""
    count = range(len(program.steps))
    if not program.parts:
        return [int(program.workspace_bytes)] * len(count)
    uses = part_uses(program, [(*reads(s), *writes(s)) for s in program.steps])
    return [sum(part.nbytes for part, (first, last) in uses if first <= k <= last) for k in count]


def part_uses(program: Program, used: Sequence[Collection[str]]) -> list[tuple[Part, tuple[int, int]]]:
    """Each part of the workspace with the first and the last of the steps that use a buffer in it; of each step `used` has its buffers."""
    result = []
    for part in program.parts:
        names = {s.buffer for s in slots_in(program, part)}
        steps = [k for k, buffers in enumerate(used) if not names.isdisjoint(buffers)]
        if steps:
            result.append((part, (steps[0], steps[-1])))
    return result


def slots_in(program: Program, part: Part) -> list[Slot]:
    """The slots that lie in the part."""
    return [s for s in program.workspace if part.offset <= int(s.offset) < part.offset + part.nbytes]


def _live(blocks: list[Block], count: int) -> list[int]:
    """Bytes of the blocks that are alive at each step."""
    change = [0] * (count + 1)
    for block in blocks:
        change[block.first] += int(block.nbytes)
        change[min(block.last, count - 1) + 1] -= int(block.nbytes)
    total, found = 0, []
    for delta in change[:count]:
        total += delta
        found.append(total)
    return found
