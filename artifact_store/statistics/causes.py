"""Why a call misses, as a closed list: each cause with what it means and what to do. `stats`, `explain` and `diff` say the same words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why no artifact served a call. The value is the label in counts and metrics, and stays the same in later versions."""

    NO_ARTIFACT = "no artifact"
    OPTIONS = "options differ"
    CODE = "code edited"
    GUARDS = "guards differ"
    TORCH = "torch version"
    PYTHON = "python version"
    LOWERING = "lowering version"
    TARGET = "target"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    UNTRUSTED = "untrusted"
    REMOTE = "remote failed"
    FETCHING = "fetch under way"
    COMPILING = "compiling meanwhile"
    REFUSED = "eager by refusal"
    LIMIT = "limit reached"
    FAILED = "compile failed"
    STANCE = "stance"
    NO_COMPILER = "no compiler"
    UNKNOWN = "unknown"


class Outcome(StrEnum):
    """What became of a call that no artifact served."""

    COMPILED = "compiled"
    WAITED = "waited"
    EAGER = "eager"
    RAISED = "raised"


@dataclass(frozen=True)
class Words:
    """What a cause means, and what to do about it: two sentences."""

    meaning: str
    fix: str


WORDS: dict[Cause, Words] = {
    Cause.NO_ARTIFACT: Words(
        "Nothing is stored for the program.", "Build it (`precast build FILE`), or name the store that holds it (`--store`, PRECAST_STORE)."
    ),
    Cause.OPTIONS: Words(
        "The store holds this code under another name, or compiled with other options.",
        "Give the name, mode and options that it was built with, or build with those of this call.",
    ),
    Cause.CODE: Words(
        "A function that was compiled in has other code now.", "Build again after the edit, or go back to the code that was built."
    ),
    Cause.GUARDS: Words(
        "Artifacts are there, and the call differs from what they were built for.",
        "Add the call's signature to the build file (`PRECAST_RECORD` writes it), or build with dynamic sizes.",
    ),
    Cause.TORCH: Words(
        "What is stored was built with another minor version of torch.", "Build with the torch that serves, or install the one that built."
    ),
    Cause.PYTHON: Words(
        "What is stored holds bytecode of another Python.", "Build with the Python that serves, or serve with the one that built."
    ),
    Cause.LOWERING: Words(
        "What is stored was made by another lowering version of precast.",
        "Build with the precast that serves; `precast prune --stale-versions` removes the old ones.",
    ),
    Cause.TARGET: Words(
        "What is stored is for another kind of machine.",
        "Build for this machine's target (`precast build … --target`), or for an older level that all run.",
    ),
    Cause.DAMAGED: Words(
        "What would serve the call is damaged, or parts of it are missing.",
        "Build it again; `precast verify --repair` sets the rest aside.",
    ),
    Cause.UNREADABLE: Words(
        "The store, or a part of it, cannot be read by this process.", "`precast doctor` names what cannot be read, and the cure."
    ),
    Cause.UNTRUSTED: Words(
        "What would serve the call is not trusted here.", "Sign it with a key that is trusted here, or add its key (`precast trust add`)."
    ),
    Cause.REMOTE: Words(
        "A remote tier did not answer in time, or answered wrongly.", "`precast doctor` shows the state of each tier, and why it failed."
    ),
    Cause.FETCHING: Words(
        "The artifact was still on its way from a remote tier.",
        "Nothing: later calls hit. To have none of these, pull or warm up at the start.",
    ),
    Cause.COMPILING: Words(
        "The artifact was being compiled at that moment.", "Nothing: later calls hit. To have none of these, build before serving."
    ),
    Cause.REFUSED: Words("The program, or this kind of call, cannot be compiled.", "`precast stats --bypass` says why, for each program."),
    Cause.LIMIT: Words(
        "The program had compiled as often as its limit allows.",
        "Raise recompile_limit, use dynamic=True, or build the signatures that are missing (limit 0 compiles nothing).",
    ),
    Cause.FAILED: Words(
        "Compiling the program ended in an error.", "The process's warning says which; `precast stats --bypass` lists the programs."
    ),
    Cause.STANCE: Words("A stance (`precast.set_stance`) forbade the compile.", "Lift the stance, or build ahead of time."),
    Cause.NO_COMPILER: Words("Nothing can be compiled in this process.", "`precast doctor` says what is missing; or build elsewhere."),
    Cause.UNKNOWN: Words("The cause could not be found out.", "PRECAST_LOGS=runtime,store shows what happened."),
}

VERSIONS = {"torch": Cause.TORCH, "python": Cause.PYTHON, "lowering": Cause.LOWERING}
"""Fields of an artifact's versions whose difference is a miss."""


def cause_of(label: str) -> Cause:
    """The cause with this label; UNKNOWN for one that a newer precast wrote."""
    try:
        return Cause(label)
    except ValueError:
        return Cause.UNKNOWN


__all__ = ["VERSIONS", "WORDS", "Cause", "Outcome", "Words", "cause_of"]
