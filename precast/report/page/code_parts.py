"""Generated code in the pieces that steps can point at: its functions, with marks for their colours, and the host program's lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pygments.lexers import CppLexer, PythonLexer
from pygments.token import Comment, Keyword, Literal, Name, Number, String

from precast.lowering.costs.records import StepRecord

_FUNCTION = re.compile(
    r"^(?:(?:template\s*<[^>]*>\s*)?static\s[^;=(]*?(?:__attribute__\(\(.*?\)\)[^;=(]*?)?\b(?!__attribute__)(\w+)\s*\("
    r"|def\s+(\w+)\s*\()"
)
_BEFORE = ("//", "#", "@", "template", "__attribute__")
"""Beginnings of the lines above a function that belong to it."""
_OURS = {"own": ("product",), "panel": ("panel_product",), "winograd": ("winograd_conv", "winograd_whole")}
"""The functions behind library calls that are code of precast's own."""
_COLOURS: tuple[tuple[Any, str], ...] = (
    (Comment.Preproc, "p"),
    (Comment.PreprocFile, "p"),
    (Comment, "c"),
    (Keyword, "k"),
    (Number, "n"),
    (String, "s"),
    (Literal, "n"),
    (Name.Function, "f"),
    (Name.Builtin, "k"),
    (Name.Decorator, "p"),
)


@dataclass(frozen=True)
class Function:
    """`tokens`: pieces of the text, each followed by the letter of its colour, or by nothing."""

    name: str
    tokens: tuple[str, ...]


def functions_of(source: str) -> list[Function]:
    """The functions of a graph's kernel source, in its order; text before the first one is a part without a name."""
    lexer = PythonLexer(stripnl=False, ensurenl=False) if re.search(r"^def ", source, re.M) else CppLexer(stripnl=False, ensurenl=False)
    lines = source.splitlines(keepends=True)
    starts: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        if found := _FUNCTION.match(line):
            begin = number
            while begin > (starts[-1][0] + 1 if starts else 0) and lines[begin - 1].startswith(_BEFORE):
                begin -= 1
            starts.append((begin, found[1] or found[2]))
    if not starts or starts[0][0] > 0:
        starts.insert(0, (0, ""))
    ends = [begin for begin, _ in starts[1:]] + [len(lines)]
    parts = [(name, "".join(lines[begin:end]).strip("\n")) for (begin, name), end in zip(starts, ends, strict=True)]
    return [Function(name, _coloured(lexer, text)) for name, text in parts if text]


def _coloured(lexer: Any, text: str) -> tuple[str, ...]:
    found: list[list[str]] = []
    for kind, piece in lexer.get_tokens(text):
        letter = next((letter for token, letter in _COLOURS if kind in token), "")
        if found and (found[-1][1] == letter or not piece.strip()):
            found[-1][0] += piece
        else:
            found.append([piece, letter])
    return tuple(part for pair in found for part in pair)


def functions_called(steps: Sequence[StepRecord], functions: Sequence[Function]) -> list[list[int]]:
    """For each step the positions of the functions that it runs; none for calls of libraries."""
    place = {function.name: number for number, function in enumerate(functions) if function.name}
    attention = _attention(steps, functions)
    found = []
    for number, step in enumerate(steps):
        names = [step.function] if step.function else step.how.split(", ")
        names = list(_OURS.get(step.how, names)) if step.kind == "library" else names
        found.append([attention[number]] if number in attention else [place[name] for name in names if name in place])
    return found


def _attention(steps: Sequence[StepRecord], functions: Sequence[Function]) -> dict[int, int]:
    """Generated attention has no name in the records: its functions are written in the order in which steps first need each of them."""
    own = [number for number, function in enumerate(functions) if function.name.startswith("attention_")]
    forms: dict[tuple[object, ...], list[int]] = {}
    for number, step in enumerate(steps):
        if step.kind == "library" and step.name == "attention" and step.how == "generated":
            forms.setdefault((*step.read.values(), "to", *step.written.values()), []).append(number)
    if len(own) == 1:
        return {number: own[0] for numbers in forms.values() for number in numbers}
    if len(own) != len(forms):
        return {}
    return {number: place for place, numbers in zip(own, forms.values(), strict=True) for number in numbers}


def host_lines(source: str, steps: Sequence[StepRecord]) -> list[tuple[str, int | None]]:
    """The lines of the host program, each with the step that it runs: steps are in its order, and a line names what its step writes."""
    found: list[tuple[str, int | None]] = []
    number = 0
    for line in source.splitlines():
        words = set(re.findall(r"\w+", line))
        own = number < len(steps) and not line.startswith("def ") and bool(words & set(steps[number].written))
        found.append((line, number if own else None))
        number += own
    return found


__all__ = ["Function", "functions_called", "functions_of", "host_lines"]
