"""How threads share a loop nest: each has its own stretch, takes it piece by piece, and then helps with the others'.

Where nothing else runs, a thread works on one stretch of memory, as by a static schedule, and so do the kernels that follow: what a core
has in its caches stays of use. A thread that another process holds up leaves pieces to the others, and holds up one piece at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precast.codegen.cpp.body import Level

LONG_NS = 30_000.0
"""Estimated serial time of a loop from which it is shared in pieces: a shorter one has ended before a busy neighbour's turn."""

PIECE_NS = 10_000
"""Estimated time of a piece: taking one costs some 50 ns where several threads take from one stretch."""


@dataclass(frozen=True)
class Loop:
    """`for (variable = 0; variable < extent; variable += step)`."""

    variable: str
    extent: str
    step: int = 1

    def header(self, kind: str) -> str:
        advance = f"++{self.variable}" if self.step == 1 else f"{self.variable} += {self.step}"
        return f"for ({kind} {self.variable} = 0; {self.variable} < {self.extent}; {advance})"

    @property
    def trips(self) -> str:
        return f"(int64_t){self.extent}" if self.step == 1 else f"(((int64_t){self.extent} + {self.step - 1}) / {self.step})"


def in_order(loops: Sequence[Loop], body: Sequence[str], kind: str, pragma: str | None, top: Level, depth: int | None = None) -> None:
    """The nest as it stands, on one thread or, by `pragma`, in one stretch a thread of its `depth` outermost loops (None: of all)."""
    if pragma is not None:
        depth = len(loops) if depth is None else depth
        collapse = f" collapse({depth})" if depth > 1 else ""
        top.add(f"#pragma omp parallel for{collapse} schedule(static) {pragma}")
    for number, loop in enumerate(loops):
        top.lines.append("  " * (number + 1) + loop.header(kind) + " {")
    top.lines += body
    for number in reversed(range(len(loops))):
        top.lines.append("  " * (number + 1) + "}")


def in_pieces(loops: Sequence[Loop], body: Sequence[str], kind: str, pragma: str, work: str, top: Level) -> None:
    """The nest's points in one row, which threads take by pieces; `work`: about how many ns all of it takes."""
    top.add("{")
    top.add(f"Shares shares({' * '.join(loop.trips for loop in loops)}, threads, {work});")
    top.add(f"#pragma omp parallel {pragma}")
    top.add("for (Share share(shares); share.more();) {")
    rest = "share.from"
    starts = []
    for number, loop in reversed(list(enumerate(loops))):
        place = f"{rest} % {loop.trips}" if number else rest
        starts.append(f"{loop.variable} = ({kind})({f'({place})' if number else place}{f' * {loop.step}' if loop.step > 1 else ''})")
        rest = f"{rest} / {loop.trips}"
    top.add(f"{kind} {', '.join(reversed(starts))};")
    top.add("for (int64_t left = share.to - share.from; left > 0; --left) {")
    top.lines += body
    advance = ""
    for number, loop in enumerate(loops):
        step = f"{loop.variable} += {loop.step};"
        advance = f"{step} if ({loop.variable} >= {loop.extent}) {{ {loop.variable} = 0; {advance} }}" if number else step
    top.add(advance)
    top.add("}")
    top.add("}")
    top.add("}")


SHARES = f"""
extern "C" int omp_get_thread_num(void);
struct Shares {{
  struct alignas(64) Part {{ int64_t next, end; }} parts[64];
  int count; int64_t piece;
  Shares(int64_t total, int threads, double ns) {{
    count = threads < 1 ? 1 : threads < 64 ? threads : 64;
    const double most = total * {PIECE_NS}.0 / (ns + 1.0), least = total / (64.0 * count);
    piece = (int64_t)(most < total ? most > least ? most : least : total) + 1;
    for (int i = 0; i <= count; ++i) {{
      const int64_t begin = total / count * i + total % count * i / count;
      if (i < count) parts[i].next = begin;
      if (i) parts[i - 1].end = begin;
    }}
  }}
}};
struct Share {{
  Shares& all; int first, seen = 0; int64_t from = 0, to = 0;
  Share(Shares& shares) : all(shares), first(omp_get_thread_num()) {{}}
  bool more() {{
    for (; seen < all.count; ++seen) {{
      Shares::Part& part = all.parts[(first + seen) % all.count];
      if (__atomic_load_n(&part.next, __ATOMIC_RELAXED) >= part.end) continue;
      from = __atomic_fetch_add(&part.next, all.piece, __ATOMIC_RELAXED);
      to = part.end - from > all.piece ? from + all.piece : part.end;
      if (from < part.end) return true;
    }}
    return false;
  }}
}};
"""


def helpers(source: str) -> str:
    """What `source` needs of this file."""
    return SHARES if "Shares shares(" in source else ""
