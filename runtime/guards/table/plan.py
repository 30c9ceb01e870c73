"""The plan for recording guard tables of one guard set (runtime/guards/table/recorder.py): its paths as a tree, with the guards at each
node.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.runtime.guards.compiled import compile_checker
from precast.runtime.guards.predicates import OF_CLASS, ORDER

Cells = Callable[[], Mapping[str, Any]]


class Plan:
    """Made once per variant, used for each table.

    `bound`: paths of the graph's bound inputs; a table fails, too, when one of these leads to another object.
    """

    def __init__(self, guards: Sequence[Guard], names: Sequence[str], function: types.FunctionType, bound: Sequence[Path] = ()) -> None:
        self.guards = tuple(guards)
        self.bound = tuple(bound)
        self.names = tuple(names)
        self.function = function
        self.under: dict[Path, dict[Path, None]] = {}
        self.free = _free_numbers(self.guards)
        self.at: dict[Path, list[int]] = {}
        for index, guard in enumerate(self.guards):
            self.at.setdefault(guard.path, []).append(index)
            self._add(guard.path)
        for indices in self.at.values():
            if len(indices) > 1:  # what the entry for a TENSOR guard compares covers others at its path: it is recorded before them
                indices.sort(key=lambda index: ORDER[self.guards[index].predicate])
        for path in self.bound:
            self._add(path)
        self._checkers: dict[tuple[int, ...], Callable[[Mapping[str, Any], Mapping[str, Any]], bool]] = {}

    def _add(self, path: Path) -> None:
        while len(path) > 1:
            above = path[:-1]
            siblings = self.under.get(above)
            if siblings is not None:
                siblings[path] = None
                return  # the rest of the way was added with the first of them
            self.under[above] = {path: None}
            path = above

    def checker(self, indices: tuple[int, ...], cells: Cells) -> Callable[[tuple[Any, ...]], bool]:
        """A Python check of just these guards, from the tuple of locals."""
        if indices not in self._checkers:
            self._checkers[indices] = compile_checker([self.guards[i] for i in indices])
        check, names = self._checkers[indices], self.names
        return lambda values: check(dict(zip(names, values, strict=True)), cells())


def _free_numbers(guards: Sequence[Guard]) -> frozenset[Path]:
    """Paths of plain numbers and strings of which only the type matters."""
    kinds: dict[Path, set[Predicate]] = {}
    for guard in guards:
        kinds.setdefault(guard.path, set()).add(guard.predicate)
    return frozenset(path for path, found in kinds.items() if Predicate.TYPE in found and found <= OF_CLASS)
