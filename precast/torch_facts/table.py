"""All facts, and their answers: `precast doctor` asks the quick ones, `precast doctor --probe` all."""

from __future__ import annotations

from collections.abc import Iterator

from precast.torch_facts import calls, live, names, patched, tracer
from precast.torch_facts.fact import Checked, Fact, checked


def facts() -> Iterator[Fact]:
    """Every fact about the torch at hand, group by group. Raises what importing capture raises where an adapter does not fit."""
    for module in (names, patched, calls, tracer, live):
        yield from sorted(module.facts(), key=_deep)


def _deep(fact: Fact) -> bool:
    return fact.deep


def answers(deep: bool) -> list[Checked]:
    """Of all facts, or of the quick ones, which run none of torch's code."""
    return [checked(fact) for fact in facts() if deep or not fact.deep]


__all__ = ["answers", "facts"]
