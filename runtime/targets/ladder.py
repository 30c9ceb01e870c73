"""Targets: names for what an artifact runs on, and which of them this machine can run (the compatibility ladder).

A machine has a ladder for its CPU and one for the devices of each other family. Which of them an artifact stands on is decided when its
graph is known: a graph with a tensor on a GPU is for the GPU. What holds of one family is asked of that family's rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from precast.runtime.common.errors import OptionError
from precast.runtime.targets.rules import TargetRules
from precast.target_registry import CPU, families, family_of, find_family, load

NATIVE = "native"
""""This machine", as an option's value: its CPU, or the device that a graph's tensors are on."""


def rules_of(target: str) -> TargetRules:
    """The rules of the target's family, imported on first use. Raises `target_registry.UnknownFamily`."""
    rules: TargetRules = load(family_of(target).runtime)
    return rules


def resolve(target: str) -> str:
    """The name that manifests hold: `native` and `cpu:native` become this machine's own CPU; others stay. Raises OptionError."""
    if not isinstance(target, str):
        raise OptionError(f"a target is a name such as 'cpu:native', and not {target!r}")
    asked = f"{CPU.name}:{NATIVE}" if target == NATIVE else target
    found = rules_of(asked).resolve(asked) if find_family(asked) is not None else None
    if found is None:
        known = ", ".join(name for family in families() for name in load(family.runtime).names())
        raise OptionError(f"unknown target {target!r}; known: {known}")
    return found


def rank(target: str) -> int | None:
    """Position of `target` on this machine's ladder (0 is best), or None when it cannot run here."""
    return None if find_family(target) is None else rules_of(target).rank(target)


def why_unfit(target: str) -> str:
    """Why this machine cannot run `target`, as the end of a sentence; empty where it can."""
    if rank(target) is not None:
        return ""
    if find_family(target) is None:
        return f"this process has no target family of that name; it has {', '.join(family.name for family in families())}"
    return rules_of(target).why_unfit(target)


def at_hand() -> Iterator[str]:
    """What is compiled for each kind of device of this machine, the host aside."""
    return (target for family in families() if not family.on_host for target in load(family.runtime).at_hand())


def serves(requested: str, found: str) -> bool:
    """Whether an artifact for `found` is what a build for `requested` (resolved) makes: a graph's tensors decide between GPU and CPU."""
    if requested == found:
        return True
    if not family_of(requested).on_host:
        return found == rules_of(requested).beside()
    made = find_family(found)
    return made is not None and not made.on_host and found in rules_of(found).at_hand()


def runs(machine: str, found: str) -> bool:
    """Whether a machine of exactly the target `machine` (resolved) runs artifacts for `found`: its own, or further down its ladder."""
    if serves(machine, found):
        return True
    return found in ladder_of(machine)


def ladder_of(machine: str) -> tuple[str, ...]:
    """What a machine of exactly the target `machine` (resolved) runs of its own kind, best first. Of a foreign `cpu:native` only that."""
    return rules_of(machine).ladder_of(machine)


def concerns(requested: str, found: str) -> bool:
    """Whether what is known of an artifact for `found` matters to compiling for `requested`: both are for one machine."""
    return runs(requested, found) or (family_of(requested).on_host and rank(found) is not None)


__all__ = ["NATIVE", "at_hand", "concerns", "ladder_of", "rank", "resolve", "rules_of", "runs", "serves", "why_unfit"]
