"""Which way a step of a GPU program runs: from records of measurements on such a device, else the default. Nothing here needs a GPU.

A `Problem` is one such question with all of its answers. While `precast tune` or `max-autotune` runs on a device, a `Measure` answers
what no record does; the records are data, kept in the store by architecture, and builds on machines without a GPU use them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from precast.codegen.common.library_steps import LibraryCall
from precast.codegen.common.measure import Candidates, Record
from precast.codegen.triton.render.ops import Unsupported
from precast.codegen.triton.render.render import TritonKernel, render
from precast.codegen.triton.render.tiling import Tiling
from precast.lowering.analysis.traits import SM_90, Traits
from precast.lowering.ir.nodes import Buffer, Kernel
from precast.lowering.ir.sizes import hint

Variants = Mapping[str, TritonKernel]
"""The same computation in several tilings, by the tiling's name."""


@dataclass(frozen=True)
class Problem:
    """One question. `key` is the same on every machine; either `calls` makes the candidates (library calls), or `kernels` are they, and
    what `library` runs in turn, if that is another way to the same results, or `ways`, each of them kernels in turn.
    """

    key: str
    default: str
    calls: Candidates | None = None
    kernels: Variants = field(default_factory=dict)
    buffers: tuple[Buffer, ...] = ()
    library: tuple[LibraryCall | TritonKernel, ...] = ()
    names: Collection[str] | None = None
    """Of `calls`, where they are known."""
    ways: Mapping[str, tuple[TritonKernel, ...]] = field(default_factory=dict)
    temporaries: Mapping[str, tuple[Buffer, ...]] = field(default_factory=dict)
    """Of each of `ways`: what its kernels hand to one another."""

    def accepts(self, winner: str) -> bool:
        """Whether a record with this winner answers the question."""
        if self.ways:
            return winner in self.ways
        if self.kernels:
            return is_way(winner) if self.library else is_tiling(winner)
        return self.names is None or winner in self.names


Measure = Callable[[Problem], Record | None]
"""Answers a problem by measuring; None where it does not (no time left, or the question is only noted)."""

LIBRARY, WITH_LIBRARY = "library", "library or "
"""The name of the candidate that `Problem.library` is, and what the key of such a question has before the kernel's."""
IN_CHUNKS = "chunks of "
"""What the key of a question about cutting a reduction has before the kernel's."""

CANONICAL = Tiling(8, persistent=8, rblock=8, num_warps=1)
"""What a kernel is rendered with to be recognised: its record stays found when the choice without a record changes."""


@dataclass
class CudaChooser:
    """Answers from `tuning` records by key, then from `measure`; `used` gathers what was answered from a measurement.

    `against_library`: keys of kernels whose tilings are candidates beside a library's call. `unanswered`: keys to which `measure` had no
    answer.
    """

    tuning: Mapping[str, Record] = field(default_factory=dict)
    measure: Measure | None = None
    used: dict[str, Record] = field(default_factory=dict)
    against_library: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    traits: Traits = SM_90

    def pick(self, key: str, candidates: Candidates, default: str, names: Collection[str] | None = None) -> str:
        """The name of the library call to take. `names`: which are known; a record that names another is of no use."""

        def calls() -> dict[str, Callable[[], object]]:
            return {name: call for name, call in candidates().items() if names is None or name in names}

        record = self.record(key, lambda winner: names is None or winner in names, lambda: Problem(key, default, calls=calls, names=names))
        return default if record is None else str(record["winner"])

    def tilings(self, kernel: Kernel, buffers: Sequence[Buffer]) -> tuple[Tiling | None, ...]:
        """One tiling for each launch of the kernel, None where the default is taken; () where all are. Raises `Unsupported`."""
        if not self.tuning and self.measure is None:
            return ()
        found: list[Tiling | None] = []
        plains, defaults = render(kernel, buffers, CANONICAL), render(kernel, buffers, traits=self.traits)
        if len(plains) != len(defaults):
            return ()  # how many launches there are depends on the tiling: nothing to compare
        for number, (plain, chosen) in enumerate(zip(plains, defaults, strict=True)):
            record = self._tiling_record(kernel_key(plain), partial(_tiling_problem, kernel, buffers, number, chosen, self.traits))
            found.append(None if record is None else tiling_of(str(record["winner"])))
        return tuple(found)

    def _tiling_record(self, key: str, problem: Callable[[str], Problem]) -> Record | None:
        """The record of a kernel's tiling: that of the question in which it stands beside a library's call, or its own."""
        record = self._known(WITH_LIBRARY + key, lambda winner: is_way(winner) and winner != LIBRARY)
        if record is None and key in self.against_library:
            return self._known(key, is_tiling)
        return record or self.record(key, is_tiling, lambda: problem(key))

    def record(self, key: str, valid: Callable[[str], bool], problem: Callable[[], Problem]) -> Record | None:
        """The answer with a `valid` winner to a question, which `problem` poses where it has to be measured."""
        known = self._known(key, valid)
        if known is not None or self.measure is None or key in self.unanswered:
            return known
        record = self.measure(problem())
        if record is None or not valid(str(record["winner"])):
            self.unanswered.add(key)
            return None
        self.used[key] = record
        return record

    def _known(self, key: str, valid: Callable[[str], bool]) -> Record | None:
        record = self.used.get(key) or self.tuning.get(key)
        if record is None or not valid(str(record["winner"])):
            return None
        self.used[key] = record
        return record


def is_tiling(winner: str) -> bool:
    """Whether a record's winner is a tiling of this version."""
    return tiling_of(winner) is not None


def is_way(winner: str) -> bool:
    """Whether a record's winner is an answer to a question beside a library's call: that, or a product's tiling."""
    tiling = tiling_of(winner)
    return winner == LIBRARY or (tiling is not None and tiling.depth > 0)


def kernel_key(plain: TritonKernel) -> str:
    """The key of a launch: its computation with all strides (the digest in its name), its types, and over how many points."""
    types = ",".join(a.type.removeprefix("*") for a in plain.arguments)
    sizes = " ".join(f"{a.name}={hint(a.symbol)}" for a in plain.arguments if a.symbol is not None)
    return f"kernel {plain.entry} {types} programs {hint(plain.grid)}{f' {sizes}' if sizes else ''}"


def tiling_name(tiling: Tiling) -> str:
    """A tiling as a record holds it: "xblock=4 persistent=4096 …"."""
    return " ".join(f"{f.name}={int(getattr(tiling, f.name))}" for f in dataclasses.fields(tiling))


LATER_FIELDS = {"depth": "0"}
"""What older records do not say, with what they mean."""


def tiling_of(name: str) -> Tiling | None:
    """The tiling of such a name; None where it is of a version that knew other fields, or none that can be."""
    words = LATER_FIELDS | dict(word.partition("=")[::2] for word in name.split())
    kinds = {f.name: f.type for f in dataclasses.fields(Tiling)}
    if set(words) != set(kinds) or not all(value.isdecimal() for value in words.values()):
        return None
    values: dict[str, Any] = {n: bool(int(v)) if kinds[n] == "bool" else int(v) for n, v in words.items()}
    tiling = Tiling(**values)
    blocks = (tiling.xblock, tiling.rblock, tiling.num_warps, *([tiling.depth] if tiling.depth else []))
    return tiling if tiling.num_stages > 0 and all(n > 0 and n & (n - 1) == 0 for n in blocks) else None


def _tiling_problem(kernel: Kernel, buffers: Sequence[Buffer], number: int, chosen: TritonKernel, traits: Traits, key: str) -> Problem:
    used = tuple(b for b in buffers if b.name in {a.buffer for a in chosen.arguments})
    return Problem(key, tiling_name(chosen.tiling), kernels=in_tilings(kernel, buffers, number, chosen, traits), buffers=used)


def in_tilings(kernel: Kernel, buffers: Sequence[Buffer], number: int, chosen: TritonKernel, traits: Traits) -> dict[str, TritonKernel]:
    """The launch of that number in every candidate tiling that it can be rendered in, each distinct source once, the default first."""
    found = {tiling_name(chosen.tiling): chosen}
    seen = {_identity(chosen)}
    for tiling in candidates(chosen.tiling, traits):
        try:
            variant = render(kernel, buffers, tiling, traits)[number]
        except Unsupported:
            continue
        if variant.tiling.num_stages > 1 and STAGED not in variant.source:
            continue  # nothing is looped over: the same machine code as with one stage
        if _identity(variant) not in seen:
            seen.add(_identity(variant))
            found[tiling_name(tiling)] = variant
    return found


def _identity(kernel: TritonKernel) -> tuple[object, ...]:
    return kernel.source, kernel.tiling.num_warps, kernel.tiling.num_stages


WHOLE_ROW = 1 << 14
"""Lanes of the longest row that one program is tried to hold at once."""
MOST_ROWS, MOST_WARPS = 4096, 16
STAGES, STAGED = (2, 3, 4), "num_stages="
"""Steps of a loop whose loads are in flight together, and what a kernel says that has such a loop (`reductions.py`)."""


SMALLEST_SIDE = 16
"""Of a block of a matrix product: what tensor cores take."""


def candidates(default: Tiling, traits: Traits) -> list[Tiling]:
    """Some thirty tilings around the default: other numbers of rows and warps; whole rows and loops, one row a program; for what is
    looped over, other numbers of stages. Of a matrix product: other blocks and steps, some fifty.
    """
    if default.depth:
        return _products(default, traits)
    found: list[Tiling] = []
    for rows in (1, 2, 4, 1 / 2, 1 / 4):
        for warps in (1, 2, 1 / 2):
            found.append(dataclasses.replace(default, xblock=int(default.xblock * rows), num_warps=int(default.num_warps * warps)))
    for lanes in (2, 1 / 2):
        for rows in (1, 2, 1 / 2):
            found.append(dataclasses.replace(default, rblock=int(default.rblock * lanes), xblock=int(default.xblock * rows)))
    for warps in (4, 8, 16):
        found.append(dataclasses.replace(default, xblock=1, persistent=WHOLE_ROW, num_warps=warps))
    for rblock in (1024, 4096):
        for warps in (8, 16):
            found.append(dataclasses.replace(default, xblock=1, persistent=1, rblock=rblock, num_warps=warps))
        for stages in STAGES:
            found.append(dataclasses.replace(default, xblock=1, persistent=1, rblock=rblock, num_warps=8, num_stages=stages))
    found += [dataclasses.replace(default, num_stages=stages) for stages in STAGES]
    possible = (t for t in found if 1 <= t.xblock <= MOST_ROWS and 1 <= t.num_warps <= MOST_WARPS)
    return [t for t in dict.fromkeys(possible) if t != default]


def _products(default: Tiling, traits: Traits) -> list[Tiling]:
    found: list[Tiling] = []
    for rows, columns in ((1, 1), (1, 2), (1, 1 / 2), (1 / 2, 1), (1 / 2, 2), (2, 1), (2, 1 / 2), (2, 2)):
        for steps in (1, 2, 1 / 2):
            blocks = (max(SMALLEST_SIDE, int(n)) for n in (default.xblock * rows, default.rblock * columns, default.depth * steps))
            xblock, rblock, depth = blocks
            for warps, stages in ((4, 3), (4, 5), (8, 3)):
                tiling = dataclasses.replace(default, xblock=xblock, rblock=rblock, depth=depth, num_warps=warps, num_stages=stages)
                if (2 * xblock + 2 * rblock) * depth * stages <= traits.tuned_in_flight:
                    found.append(tiling)
    return [t for t in dict.fromkeys(found) if t != default]
