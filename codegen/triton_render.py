"""From a scheduled `Kernel` to Triton source: deterministic text that stands alone, and the data that a launch needs.

The same IR that becomes C++ for the CPU is rendered here for GPUs. Pointwise kernels, reductions, gathers and masks are; scans, nested
reductions and some atomics are refused by name (`Unsupported`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import sympy

from precast.codegen.triton_body import Body
from precast.codegen.triton_ops import HELPERS, POINTERS, needed_helpers
from precast.codegen.triton_tiling import Part, Tiling, choose, split, static
from precast.codegen.triton_values import unroll
from precast.codegen.values import Facts, store_roots
from precast.lowering.index import FloorDiv, plain
from precast.lowering.ir import Buffer, Kernel, Program, Reduce, Size, walk

INT32_REACH = 1 << 31


@dataclass(frozen=True)
class Argument:
    """One argument of the launch. `type` is Triton's signature; a pointer that is `aligned` must be a multiple of 16 at run time."""

    name: str
    kind: Literal["buffer", "error", "size"]
    type: str
    buffer: str = ""
    aligned: bool = False


@dataclass(frozen=True, eq=False)
class TritonKernel:
    """One launch: `source` defines the function `name`; `grid` programs of it compute the part.

    An "error" argument points to one i32, set to 1 when an index was out of range.
    """

    name: str
    source: str
    arguments: tuple[Argument, ...]
    grid: Size
    tiling: Tiling


def render(kernel: Kernel, buffers: Iterable[Buffer], tiling: Tiling | None = None) -> tuple[TritonKernel, ...]:
    """The launches that compute `kernel`, in any order. Without a `tiling` one is chosen for each.

    Raises `Unsupported` with the reason where the kernel has no Triton form.
    """
    known = {b.name: b for b in buffers}
    facts = Facts()
    kernel = unroll(kernel, (tiling or Tiling(1)).unroll, facts)
    parts = split(kernel, facts)
    names = [kernel.name] if len(parts) == 1 else [f"{kernel.name}_{n}" for n in range(len(parts))]
    return tuple(_render(name, part, known, tiling) for name, part in zip(names, parts, strict=True))


def render_program(program: Program, tiling: Tiling | None = None) -> dict[str, tuple[TritonKernel, ...]]:
    """The launches of every kernel step, by the kernel's name."""
    return {s.name: render(s, program.buffers, tiling) for s in program.steps if isinstance(s, Kernel)}


def _render(name: str, part: Part, known: Mapping[str, Buffer], tiling: Tiling | None) -> TritonKernel:
    count: Size = plain(sympy.Mul(*(sympy.sympify(a.extent) for a in part.x)))
    if tiling is None:
        tiling = choose(count, _inner_extents(part))
    wide = _reaches_far(part, known, count)
    body = Body(part, dict(known), tiling, "tl.int64" if wide else "tl.int32")
    lines = body.write()
    arguments = [Argument(f"{b}_ptr", "buffer", POINTERS[known[b].dtype], b, aligned=True) for b in body.buffers]
    if body.checks:
        arguments.append(Argument("error_ptr", "error", "*i32", aligned=True))
    arguments += [Argument(s, "size", "i64") for s in body.sizes]
    grid = plain(FloorDiv(sympy.sympify(count) + tiling.xblock - 1, sympy.Integer(tiling.xblock)))
    return TritonKernel(name, _module(name, arguments, lines), tuple(arguments), grid, tiling)


def _inner_extents(part: Part) -> list[Size]:
    """How many points each reduction has, and each store beside its outer axes."""
    roots = [root for s in part.stores for root in store_roots(s)]
    groups = [[a.extent for a in r.axes] for r in walk(*roots) if isinstance(r, Reduce)]
    groups += [[a.extent for a in s.axes or () if a not in part.x] for s in part.stores]
    return [plain(sympy.Mul(*(sympy.sympify(e) for e in extents))) for extents in groups if extents]


def _reaches_far(part: Part, known: Mapping[str, Buffer], count: Size) -> bool:
    """Whether an index may pass 2^31: then all index arithmetic is in 64 bits."""
    spans = [static((count,))]
    for buffer in known.values():
        reach = [(n - 1) * s for n, s in zip(buffer.size, buffer.stride, strict=True)]
        spans.append(sum(int(r) for r in reach) + 1 if static(buffer.size) is not None and static(buffer.stride) is not None else None)
    return any(s is None or s >= INT32_REACH for s in spans)


def _module(name: str, arguments: list[Argument], lines: list[str]) -> str:
    text = "\n".join(lines)
    helpers = needed_helpers(text)
    used = text + "".join(HELPERS[h] for h in helpers)
    imports = "import triton\nimport triton.language as tl\n"
    if "libdevice." in used:
        imports += "from triton.language.extra import libdevice\n"
    functions = [f"@triton.jit{HELPERS[h]}" for h in helpers]
    parameters = ", ".join(a.name for a in arguments)
    body = "".join(f"    {line}\n" for line in lines)
    functions.append(f"@triton.jit\ndef {name}({parameters}):\n{body}")
    return imports + "\n\n" + "\n\n".join(functions)
