"""How often programs have compiled in this process, which is what `recompile_limit` and `accumulated_recompile_limit` are about.

As with torch.compile, all calls of `precast.compile` on one function with the same options count together, unless they were asked to be
isolated: what one of them stores serves the others. What cannot be stored serves its own program only, and counts for it alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

Shared = tuple[str, str]
"""Store and program key."""
_stored: Counter[Shared] = Counter()
_all: Counter[Shared] = Counter()


@dataclass(eq=False, repr=False)
class Compiles:
    """Of one program. `own`: compiles that no other program profits from."""

    own: int = 0

    def count(self, shared: Shared, stored: bool, isolated: bool, in_vain: bool = False) -> None:
        """Note one compile, or an attempt at it. `in_vain`: for a call that raises anyway, which counts for the accumulated limit only."""
        _all[shared] += 1
        if in_vain:
            return
        if stored and not isolated:
            _stored[shared] += 1
        else:
            self.own += 1

    def reached(self, shared: Shared, limit: int, accumulated: int, isolated: bool) -> str:
        """The limit that forbids another compile, with its value; empty where none does."""
        if self.own + (0 if isolated else _stored[shared]) >= limit:
            return f"recompile_limit ({limit})"
        return f"accumulated_recompile_limit ({accumulated})" if _all[shared] >= accumulated else ""

    def reset(self, shared: Shared) -> None:
        """Begin anew, for every program that shares the count."""
        self.own = 0
        _stored.pop(shared, None)
        _all.pop(shared, None)


__all__ = ["Compiles"]
