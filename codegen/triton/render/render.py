"""From a scheduled `Kernel` to Triton source: deterministic text that stands alone, and the data that a launch needs.

The same IR that becomes C++ for the CPU is rendered here for GPUs, tiling apart. What has no Triton form is refused by name
(`Unsupported`). Sources name their arguments by position and themselves by their own digest, so that equal computations on different
buffers have equal sources and are compiled once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sympy

from precast.codegen.common.value_facts import Facts
from precast.codegen.triton.render.body import Body
from precast.codegen.triton.render.heuristics import choose, choose_together, portions, spread, together, two_dimensional, written_out
from precast.codegen.triton.render.matmul import ProductBody, product_in
from precast.codegen.triton.render.module import module
from precast.codegen.triton.render.ops import POINTERS
from precast.codegen.triton.render.tiling import Part, Tiling, split
from precast.codegen.triton.render.value_rewrites import unroll
from precast.lowering.analysis.traits import SM_90, Traits
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.index import plain
from precast.lowering.ir.nodes import Buffer, Kernel, Program, Size

INT32_REACH = 1 << 31
ENTRY = "ENTRY"
"""A placeholder for the kernel's name until its digest is known."""


@dataclass(frozen=True)
class Argument:
    """One argument of the launch. `type` is Triton's signature; a pointer that is `aligned` must be a multiple of 16 at run time.

    A "buffer" is passed its element 0's address, a "size" the value of `symbol` (a C int32_t, int64_t or double, as `type` says).
    """

    name: str
    kind: Literal["buffer", "size"]
    type: str
    buffer: str = ""
    symbol: sympy.Symbol | None = None
    aligned: bool = False


@dataclass(frozen=True, eq=False)
class TritonKernel:
    """One launch: `source` defines the function `entry`; `grid` programs of it compute the part of the kernel `name`.

    Sizes that are known at run time only: index arithmetic is in 32 bits as long as `reach` (elements, an expression) is below 2^31;
    else `wide` is to be launched, which is the same in 64 bits. Where `reach` is None, there is nothing to be asked.
    With `checks`, an index out of range ends in a device-side assertion, as eager's does.
    """

    name: str
    entry: str
    source: str
    arguments: tuple[Argument, ...]
    grid: Size
    tiling: Tiling
    checks: bool = False
    reach: Size | None = None
    wide: TritonKernel | None = None


def render(
    kernel: Kernel, buffers: Iterable[Buffer], tiling: Tiling | Sequence[Tiling | None] | None = None, traits: Traits = SM_90
) -> tuple[TritonKernel, ...]:
    """The launches that compute `kernel`, in order. `tiling`: of all launches, or one for each; where it is None one is chosen for
    GPUs of these `traits`.

    Raises `Unsupported` with the reason where the kernel has no Triton form.
    """
    known = {b.name: b for b in buffers}
    facts = Facts()
    given = [tiling] if isinstance(tiling, Tiling) else list(tiling or ())
    first = next((t for t in given if t is not None), None)
    limit = (first or Tiling(1)).unroll
    split_up = [written_out(part, known, 2 * limit, facts) for part in split(unroll(kernel, limit, facts), facts)]
    parts = [spread(two_dimensional(part, known), traits) for part in split_up]
    dealt = portions(parts) if len(parts) > 1 and together(parts) else [[part] for part in parts]
    wanted = [first] * len(dealt) if isinstance(tiling, Tiling) else given or [None] * len(dealt)
    names = [kernel.name] if len(dealt) == 1 else [f"{kernel.name}_{n}" for n in range(len(dealt))]

    def launch(name: str, some: Sequence[Part], own: Tiling | None) -> TritonKernel:
        return _render(name, some, known, choose_together(some, traits, own) if len(some) > 1 else [own or choose(some[0], known, traits)])

    return tuple(launch(name, some, own) for name, some, own in zip(names, dealt, wanted, strict=True))


def render_program(program: Program, tiling: Tiling | None = None) -> dict[str, tuple[TritonKernel, ...]]:
    """The launches of every kernel step, by the kernel's name."""
    return {s.name: render(s, program.buffers, tiling) for s in program.steps if isinstance(s, Kernel)}


def _render(name: str, parts: Sequence[Part], known: Mapping[str, Buffer], tilings: Sequence[Tiling]) -> TritonKernel:
    """One launch of these parts, in the width of index arithmetic that their buffers need; in both where sizes will tell."""

    def written(index_type: str) -> list[Body]:
        bodies = [_body(part, known, tiling, index_type) for part, tiling in zip(parts, tilings, strict=True)]
        for body in bodies:
            body.write()
        return bodies

    narrow = written("tl.int32")
    counts = [sympy.Mul(*(sympy.sympify(a.extent) for a in part.x)) for part in parts]
    reach = _reach([known[b] for body in narrow for b in body.buffers], counts)
    if reach.is_Integer:
        return _kernel(name, narrow if reach < INT32_REACH else written("tl.int64"), known)
    return _kernel(name, narrow, known, plain(reach), _kernel(name, written("tl.int64"), known))


def _body(part: Part, known: Mapping[str, Buffer], tiling: Tiling, index_type: str) -> Body:
    product = product_in(part) if tiling.depth else None
    return Body(part, dict(known), tiling, index_type) if product is None else ProductBody(part, product, known, tiling, index_type)


def _kernel(
    name: str, bodies: Sequence[Body], known: Mapping[str, Buffer], reach: Size | None = None, wide: TritonKernel | None = None
) -> TritonKernel:
    pointers = {b: n for n, b in enumerate(dict.fromkeys(b for body in bodies for b in body.buffers))}
    sizes = {s: n for n, s in enumerate(dict.fromkeys(s for body in bodies for s in body.sizes))}
    integer = bodies[0].index_type.replace("tl.int", "i")
    arguments = [Argument(f"ptr{n}", "buffer", POINTERS[known[b].dtype], b, aligned=True) for b, n in pointers.items()]
    arguments += [Argument(f"size{n}", "size", "fp64" if is_real(s) else integer, symbol=s) for s, n in sizes.items()]
    draft = module(ENTRY, [a.name for a in arguments], bodies, pointers, sizes)
    entry = f"{bodies[0].what}_{hashlib.sha256(draft.encode()).hexdigest()[:12]}"
    source = draft.replace(ENTRY, entry)
    grid = plain(sympy.Add(*(sympy.sympify(body.grid) for body in bodies)))
    checks = any(body.checks for body in bodies)
    return TritonKernel(name, entry, source, tuple(arguments), grid, bodies[0].tiling, checks, reach, wide)


def _reach(buffers: Iterable[Buffer], counts: Iterable[sympy.Expr]) -> Any:
    """An upper bound of all indices: a number, or an expression over sizes."""
    spans = [sympy.sympify(count) for count in counts]
    for buffer in buffers:
        terms = [(sympy.sympify(n) - 1) * sympy.sympify(s) for n, s in zip(buffer.size, buffer.stride, strict=True)]
        spans.append(sympy.Add(*terms, 1))
    fixed = [s for s in spans if s.is_Integer]
    rest = sorted({s for s in spans if not s.is_Integer}, key=str)
    every = [*([max(fixed)] if fixed else []), *rest]
    largest: Any = sympy.Max
    return every[0] if len(every) == 1 else largest(*every, evaluate=False)  # comparing dozens of products in symbols takes seconds
