"""The runtime's part: the family has one target, which every machine runs."""

from __future__ import annotations

from collections.abc import Iterable

import tests.toy_target.interpret_operator  # noqa: F401  (registers what the family's libraries call)
from precast.runtime.targets.rules import TargetRules

TARGET = "toy:interpreter"


class ToyRules(TargetRules):
    def names(self) -> Iterable[str]:
        return (TARGET,)

    def resolve(self, target: str) -> str | None:
        return TARGET if target == TARGET else None

    def ladder_of(self, machine: str) -> tuple[str, ...]:
        return (TARGET,)

    def rank(self, target: str) -> int | None:
        return 0 if target == TARGET else None

    def why_unfit(self, target: str) -> str:
        return f"the interpreter runs {TARGET}"


RULES = ToyRules()
