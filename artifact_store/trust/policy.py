"""Which stored content may become code, by where it was read."""

from __future__ import annotations

from dataclasses import dataclass

from precast.artifact_store.format.origin import FOLDER, PROCESS, Origin


@dataclass(frozen=True)
class Policy:
    """Accepts what comes from tiers of these kinds. Digests are compared whatever the policy says."""

    kinds: frozenset[str]

    def refusal(self, origin: Origin) -> str:
        """Why content from there may not execute, as a sentence; empty where it may."""
        if origin.kind in self.kinds:
            return ""
        return f"{origin} may not become code here: its origin is of kind {origin.kind!r}, and trusted are {', '.join(sorted(self.kinds))}"


LOCAL = Policy(frozenset({FOLDER, PROCESS}))
"""A folder of this machine, which its user alone can write (mode 0700), and what this process made itself."""
