"""A bytecode editor that replaces instructions in place: nothing else moves, so jumps, line tables and handlers stay valid."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import overload

Operand = int | str | tuple[str, int] | None
"""A number, a local's name, or a global's name with the bit that pushes a NULL before a function."""


class Instructions:
    """The instructions of a code object, without prefixes and caches, and the byte range of each."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self._all: list[dis.Instruction] = []
        self._starts: list[int] = []
        start, target = None, False
        for one in dis.get_instructions(code):
            start = one.offset if start is None else start
            target = target or one.is_jump_target
            if one.opname != "EXTENDED_ARG":
                self._all.append(one._replace(is_jump_target=target))
                self._starts.append(start)
                start, target = None, False
        self._starts.append(len(code.co_code))

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[dis.Instruction]:
        return iter(self._all)

    @overload
    def __getitem__(self, at: int) -> dis.Instruction: ...
    @overload
    def __getitem__(self, at: slice) -> list[dis.Instruction]: ...
    def __getitem__(self, at: int | slice) -> dis.Instruction | list[dis.Instruction]:
        return self._all[at]

    def span(self, first: int, end: int) -> tuple[int, int]:
        """The bytes from instruction `first` up to instruction `end`."""
        return self._starts[first], self._starts[end]


class Editor:
    """Collects replacements. `names`: the code's global names and the added ones."""

    def __init__(self, instructions: Instructions) -> None:
        self.names = list(instructions.code.co_names)
        self._instructions = instructions
        self._bytes = bytearray(instructions.code.co_code)

    def replace(self, first: int, end: int, *new: tuple[str, Operand]) -> None:
        """Replaces the instructions `first` up to `end` by `new`, pairs of an opcode's name and its operand.

        Raises ValueError where they do not fit.
        """
        start, stop = self._instructions.span(first, end)
        written = b"".join(self._encoded(name, operand) for name, operand in new)
        if len(written) > stop - start:
            raise ValueError(f"{len(written)} bytes of new code do not fit into {stop - start}")
        self._bytes[start:stop] = written + _filler((stop - start - len(written)) // 2)

    def code(self) -> types.CodeType:
        """The code with its replacements."""
        return self._instructions.code.replace(co_code=bytes(self._bytes), co_names=tuple(self.names))

    def _encoded(self, name: str, operand: Operand) -> bytes:
        if isinstance(operand, str):
            operand = self._instructions.code.co_varnames.index(operand)
        elif isinstance(operand, tuple):
            if operand[0] not in self.names:
                self.names.append(operand[0])
            operand = self.names.index(operand[0]) << 1 | operand[1]
        return _encoded(name, operand or 0)


def _encoded(name: str, operand: int) -> bytes:
    prefixes = [part for shift in (24, 16, 8) if (part := operand >> shift & 255) or operand >> shift]
    opcode, extended = dis.opmap[name], dis.opmap["EXTENDED_ARG"]
    words = [byte for part in prefixes for byte in (extended, part)]
    return bytes([*words, opcode, operand & 255]) + bytes(2 * _caches(name))


def _caches(name: str) -> int:
    """The number of inline cache words behind such an instruction in this Python."""
    entries = dis._inline_cache_entries  # type: ignore[attr-defined]  # a list by opcode; from 3.13 on a dict by name
    return int(entries.get(name, 0) if isinstance(entries, dict) else entries[dis.opmap[name]])


def _filler(words: int) -> bytes:
    """`words` words of code that do nothing."""
    nothing = bytes([dis.opmap["NOP"], 0])
    if words < 4:
        return nothing * words
    jump = _encoded("JUMP_FORWARD", words - 1)
    left = words - len(jump) // 2
    return _encoded("JUMP_FORWARD", left) + nothing * left if len(_encoded("JUMP_FORWARD", left)) == len(jump) else nothing * words
