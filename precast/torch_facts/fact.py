"""One fact about torch, and the answer of its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "differs", "fails", "absent"]
"""`differs`: it is not as it was recorded, and precast copes, call by call; `fails`: what needs it does without; `absent`: what it is about
is not installed on this machine."""


@dataclass(frozen=True)
class Answer:
    """What a check found. `detail`: empty where there is nothing to say."""

    state: State = "ok"
    detail: str = ""


OK = Answer()


@dataclass(frozen=True)
class Fact:
    """`group`: the heading under which it is listed. `needed_for`: the feature. `instead`: what is done where it does not hold.

    `stops`: nothing is compiled without it. `deep`: the check runs code, or reads sources; the others take microseconds.
    `names`: what of torch it is about, each "module:attribute".
    """

    group: str
    name: str
    needed_for: str
    instead: str
    check: Callable[[], Answer]
    stops: bool = False
    deep: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checked:
    """A fact with the answer of its check."""

    group: str
    name: str
    state: State
    detail: str
    needed_for: str
    instead: str
    stops: bool


def checked(fact: Fact) -> Checked:
    """The answer for a fact; a check that raises is a fact that fails."""
    try:
        answer = fact.check()
    except Exception as error:  # noqa: BLE001 - whatever this torch raises is what is to be told
        answer = Answer("fails", f"{type(error).__name__}: {error}".splitlines()[0])
    return Checked(fact.group, fact.name, answer.state, answer.detail, fact.needed_for, fact.instead, fact.stops)


def answer_of(problems: list[str], state: State = "fails") -> Answer:
    """`ok` where there is no problem."""
    return Answer(state, "; ".join(problems)) if problems else OK


EAGER = "nothing is compiled, calls run eagerly"

__all__ = ["EAGER", "OK", "Answer", "Checked", "Fact", "State", "answer_of", "checked"]
