"""Applies the user's `guard_filter_fn` to Dynamo's guards, in the form in which torch would pass them."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from precast.capture.adapters.dynamo import OutputGraph
from precast.capture.adapters.guards import CheckFunctionManager
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.runtime.common.errors import DirectiveError
from precast.runtime.paths.paths import PathError, describe

GuardFilter = Callable[[Sequence[Any]], Sequence[bool]]


class _Seen(Exception):
    """Raised to end torch's own building of guards once the filter was called."""


def waived_guards(code: types.CodeType, output: OutputGraph, keep: GuardFilter) -> tuple[Any, ...]:
    """The guards of `output` that `keep` answers False for. It gets torch's GuardFilterEntry objects, in torch's order.

    Raises DirectiveError where `keep` fails, or does not answer with one bool per guard.
    """
    waived: list[Any] = []

    def ask(entries: Sequence[Any]) -> Sequence[bool]:
        waived.extend(_ask(keep, entries))
        raise _Seen

    try:
        CheckFunctionManager(code, output, guard_filter_fn=ask)
    except _Seen:
        pass
    return tuple(waived)


def _ask(keep: GuardFilter, entries: Sequence[Any]) -> list[Any]:
    name = getattr(keep, "__qualname__", repr(keep))
    try:
        answers = list(keep(entries))
    except Exception as error:
        raise DirectiveError(f"guard_filter_fn {name} failed: {type(error).__name__}: {error}") from error
    if len(answers) != len(entries):
        raise DirectiveError(f"guard_filter_fn {name} gave {len(answers)} answers for {len(entries)} guards: it returns one bool per guard")
    wrong = next((answer for answer in answers if type(answer) is not bool), None)
    if wrong is not None:
        raise DirectiveError(f"guard_filter_fn {name} answered {wrong!r}: it returns one bool per guard, True to keep it")
    return [entry.orig_guard for entry, kept in zip(entries, answers, strict=True) if not kept]


def of_memory(guard: Any, read: frozenset[Any]) -> bool:
    """Whether `guard` is on the metadata of a tensor that generated code reads or writes. `read`: the sources of those tensors."""
    kind = guard.create_fn_name()
    return kind == "SHAPE_ENV" or (kind == "TENSOR_MATCH" and guard.originating_source in read)


def describe_waived(guards: Sequence[Any], sources: SourceContext) -> tuple[str, ...]:
    """`KIND on path` for each guard, sorted; the same in every process."""
    return tuple(sorted({f"{guard.create_fn_name()} on {_place(guard, sources)}" for guard in guards}))


def _place(guard: Any, sources: SourceContext) -> str:
    try:
        return describe(sources.path(guard.originating_source))
    except (NotPortable, PathError):
        return type(guard.originating_source).__name__


__all__ = ["GuardFilter", "describe_waived", "of_memory", "waived_guards"]
