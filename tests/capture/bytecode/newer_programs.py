"""Programs for which newer releases of torch emit helpers, sources and guards that 2.13 has not; as a script, one process of
test_newer_helpers.py.

newer_programs.py build STORE NAME…    compile each and compare with eager
newer_programs.py load STORE NAME…     serve each from the store and compare, with the tracer refused
"""

from __future__ import annotations

import contextvars
import importlib
import json
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

SET = contextvars.ContextVar("SET", default=2)
UNSET: contextvars.ContextVar[int] = contextvars.ContextVar("UNSET")


def context(x: torch.Tensor) -> torch.Tensor:
    return x * SET.get()


def context_default(x: torch.Tensor) -> torch.Tensor:
    return x * UNSET.get(5)


def context_unset(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * UNSET.get()
    except LookupError:
        return x * 7


def reversed_argument(x: torch.Tensor, backwards: Any) -> Any:
    return x * next(backwards), backwards


def reversed_begun(x: torch.Tensor, items: list[int]) -> Any:
    backwards = reversed(items)
    return x * next(backwards), backwards


def reversed_whole(x: torch.Tensor, items: list[int]) -> Any:
    return x + 1, reversed(items)


def reversed_ended(x: torch.Tensor, items: list[int]) -> Any:
    backwards = reversed(items)
    return x * sum(backwards), backwards


def cell_emptied(x: torch.Tensor) -> Any:
    factor = 3

    def use() -> torch.Tensor:
        nonlocal factor
        made = x * factor
        del factor
        return made

    def look() -> Any:
        return factor

    return use(), look


def nothing_computed(x: torch.Tensor) -> Any:
    return x, x.shape


def fields(x: torch.Tensor, held: types.SimpleNamespace) -> torch.Tensor:
    held.count = held.count + 1
    return x * held.count


def bytes_written(x: torch.Tensor, held: bytearray) -> torch.Tensor:
    held[0] = 9
    return x * held[1]


def computed_number(x: torch.Tensor, n: int) -> Any:
    return x + 1, n * 2, f"{n}"


class Members(set[int]):
    """A set of the user's."""


def members(x: torch.Tensor, held: Members) -> torch.Tensor:
    held.add(3)
    held.last = 3  # type: ignore[attr-defined]
    return x * len(held)


def annotated(x: torch.Tensor) -> Any:
    def inner(n: int | None = None) -> list[int]:
        return [] if n is None else [n]

    return x + 1, inner


def data_given(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.data = y
    return x + 1


UNSTORED = "no:where"
"""A program that stays in its process with every torch."""
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], str]] = {
    "context": (context, tuple, "torch._dynamo.source:ContextVarGetSource"),
    "context_default": (context_default, tuple, "torch._dynamo.source:ContextVarGetSource"),
    "context_unset": (context_unset, tuple, "torch._dynamo.source:ContextVarGetSource"),
    "reversed_argument": (reversed_argument, lambda: (reversed([2, 3, 4]),), "torch._dynamo.utils:list_reverseiterator_setstate"),
    "reversed_begun": (reversed_begun, lambda: ([2, 3, 4],), "torch._dynamo.utils:list_reverseiterator_setstate"),
    "reversed_whole": (reversed_whole, lambda: ([2, 3, 4],), "torch._dynamo.utils:list_reverseiterator_setstate"),
    "reversed_ended": (reversed_ended, lambda: ([2, 3, 4],), "torch._dynamo.utils:list_reverseiterator_setstate"),
    "cell_emptied": (cell_emptied, tuple, "torch._dynamo.utils:clear_cell"),
    "nothing_computed": (nothing_computed, tuple, ""),
    "fields": (fields, lambda: (types.SimpleNamespace(count=2),), ""),
    "bytes_written": (bytes_written, lambda: (bytearray(b"abc"),), "torch._dynamo.variables:ByteArrayVariable"),
    "computed_number": (computed_number, lambda: (3,), ""),
    "members": (members, lambda: (Members({1, 2}),), UNSTORED),
    "annotated": (annotated, tuple, ""),
    "data_given": (data_given, lambda: (torch.arange(4.0),), ""),
}
"""Name -> the program, what it takes beside a tensor, and what of torch's makes it a program of its own there ("" where all have it)."""


def is_missing(name: str) -> bool:
    """Whether this torch has no "module:attribute" of the name; "" is never missing. Imports the module."""
    module, _, attribute = name.partition(":")
    try:
        return bool(name) and not hasattr(importlib.import_module(module), attribute)
    except ImportError:
        return True


def plain(value: Any) -> Any:
    """What a program returns and leaves behind, to be compared and printed."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, types.FunctionType):
        try:
            return "function", plain(value()), repr(value.__annotations__)
        except NameError as error:
            return "function", type(error).__name__
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, (types.SimpleNamespace, Members)):
        return repr(value), repr(vars(value))
    return ("reversed", list(value)) if type(value) is type(reversed([])) else repr(value)


class Refuse:
    """On sys.meta_path: no tracer."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        assert not name.startswith(("torch._dynamo", "torch._inductor", "sympy")), f"{name} is imported in a warm process"


def main() -> None:
    import precast

    how, store, *names = sys.argv[1:]
    if how == "load":
        sys.meta_path.insert(0, Refuse())  # type: ignore[arg-type]
    found = {}
    for name, (program, more, _) in PROGRAMS.items():
        if name not in names:
            continue
        wanted, given = ((torch.arange(1.0, 5.0), *more()) for _ in range(2))
        with torch.no_grad(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                compiled = precast.compile(program, store=store) if how == "build" else precast.load(program, store=store, require="hit")
                got = plain((compiled(*given), given))
            except precast.GuardMiss as error:
                found[name] = f"missed: {error}"
                continue
        eager = plain((program(*wanted), wanted))
        notes = [text for w in said if (text := str(w.message)).startswith("precast")]
        found[name] = f"{got} where eager has {eager}" if got != eager else notes[0] if notes else "same"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
