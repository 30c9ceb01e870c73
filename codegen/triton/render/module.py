"""The text of a whole Triton module: imports, helpers that are used, and the kernel, whose programs several bodies may share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy

from precast.codegen.triton.render.body import Body
from precast.codegen.triton.render.index_printer import write_index
from precast.codegen.triton.render.ops import HELPERS, needed_helpers


def module(
    entry: str, parameters: Sequence[str], bodies: Sequence[Body], pointers: Mapping[str, int], sizes: Mapping[sympy.Symbol, int]
) -> str:
    """Source that defines `entry(*parameters)`. `pointers` and `sizes` number the kernel's arguments; each body numbers its own."""
    parts = _parts(bodies)
    calls = [] if len(bodies) == 1 else _branches(bodies, [parts[_text(body)][0] for body in bodies], pointers, sizes)
    called = [f"\ndef {name}{rest}" for body in bodies for rest, name in body.functions.items()]
    text = "\n".join([*called, *(line for body in bodies for line in body.lines), *calls])
    helpers = needed_helpers(text)
    used = text + "".join(HELPERS[h] for h in helpers)
    imports = "import triton\nimport triton.language as tl\n"
    if "libdevice." in used:
        imports += "from triton.language.extra import libdevice\n"
    functions = [*(HELPERS[h] for h in helpers), *called]
    first = "tl.program_id(0)" if bodies[0].index_type == "tl.int32" else "tl.program_id(0).to(tl.int64)"
    lines = [f"program = {first}"]
    if len(bodies) == 1:
        lines += bodies[0].lines
    else:
        functions += [_function(name, ("program", *_parameters(bodies[number])), bodies[number].lines) for name, number in parts.values()]
        lines += calls
    functions.append(_function(entry, parameters, lines))
    return imports + "\n\n" + "\n\n".join(f"@triton.jit{function}" for function in functions)


def rows_module(entry: str, parameters: Sequence[str], body: Body, types: Sequence[str], count: str) -> str:
    """Source that defines `entry(*parameters)`, which runs the body over blocks of rows (`rows.py`). `types`: of the body's pointers, in
    order; `count`: the body's parameter with the number of elements.
    """
    text = "\n".join([*body.lines, *body.functions])
    helpers = needed_helpers(text)
    imports = "import triton\nimport triton.language as tl\n"
    if "libdevice." in text + "".join(HELPERS[h] for h in helpers):
        imports += "from triton.language.extra import libdevice\n"
    given = _parameters(body)
    width = len(types) + 1
    lines = [
        "program = tl.program_id(0)",
        "row = tl.load(blocks + 2 * program)",
        "first = tl.load(blocks + 2 * program + 1)",
        f"place = table + row.to(tl.int64) * {width}",
        f"{count} = tl.load(place + {width - 1}).to(tl.int32)",
    ]
    for n, kind in enumerate(types):
        lines += [f"ptr{n} = tl.multiple_of(tl.load(place + {n}).to(tl.pointer_type({kind})), 16)"]
    lines += [
        f"last = tl.minimum(first + chunk, tl.cdiv({count}, {body.x.block}))",
        "for number in range(first, last):",
        f"    part(number, {', '.join(given)})",
    ]
    functions = [*(HELPERS[h] for h in helpers), *(f"\ndef {name}{rest}" for rest, name in body.functions.items())]
    functions += [_function("part", ("program", *given), body.lines), _function(entry, parameters, lines)]
    return imports + "\n\n" + "\n\n".join(f"@triton.jit{function}" for function in functions)


def _text(body: Body) -> tuple[str, ...]:
    return (*_parameters(body), *body.lines)


def _parts(bodies: Sequence[Body]) -> dict[tuple[str, ...], tuple[str, int]]:
    """A name, and the first body that has it, for each distinct text."""
    found: dict[tuple[str, ...], tuple[str, int]] = {}
    for number, body in enumerate(bodies):
        found.setdefault(_text(body), (f"part{len(found)}", number))
    return found


def _parameters(body: Body) -> list[str]:
    return [*(f"ptr{n}" for n in body.buffers.values()), *(f"size{n}" for n in body.sizes.values())]


def _function(name: str, parameters: Iterable[str], lines: Iterable[str]) -> str:
    return f"\ndef {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in lines)


def _branches(bodies: Sequence[Body], names: Sequence[str], pointers: Mapping[str, int], sizes: Mapping[sympy.Symbol, int]) -> list[str]:
    """The branches from a program's number to its body, by binary search: programs are assigned to the bodies in order."""
    starts: list[str] = []
    before: sympy.Expr = sympy.S.Zero
    for body in bodies:
        text = write_index(before, lambda s: f"size{sizes[s]}")
        starts.append(text if text.isdecimal() else f"({text})")
        before = before + body.grid

    def choose(low: int, high: int) -> list[str]:
        if high - low == 1:
            given = [*(f"ptr{pointers[b]}" for b in bodies[low].buffers), *(f"size{sizes[s]}" for s in bodies[low].sizes)]
            program = f"program - {starts[low]}" if low else "program"
            return [f"{names[low]}({', '.join((program, *given))})"]
        middle = (low + high) // 2
        first, second = ([f"    {line}" for line in choose(*part)] for part in ((low, middle), (middle, high)))
        return [f"if program < {starts[middle]}:", *first, "else:", *second]

    return choose(0, len(bodies))
