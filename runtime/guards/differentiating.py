"""The differentiating guards of a program's variants: the only ones, beside those on tensors, that are checked under
`set_stance(skip_guard_eval_unsafe=True)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.format.manifest import guard_rows
from precast.runtime.guards.interpreted import LazyChecker
from precast.runtime.guards.predicates import KEEP_MEMORY_SAFE

Check = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


class Differing:
    """Checks a variant by the guards that not all variants have; they are computed anew when the set of variants changes."""

    def __init__(self) -> None:
        self._made: tuple[tuple[Any, ...], dict[int, Check]] = ((), {})  # for which variants; replaced as a whole

    def check(self, variant: Any, variants: Sequence[Any], local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> bool:
        """Whether those guards of `variant` hold that not all of `variants` share, and its guards on tensors."""
        among = tuple(sorted(variants, key=id))
        made_for, checks = self._made
        if among != made_for:
            checks = {id(one): LazyChecker(_rows(one, among)) for one in among}
            self._made = among, checks
        return checks[id(variant)](local_values, cells)


def _rows(variant: Any, variants: Sequence[Any]) -> Callable[[], Any]:
    def rows() -> Any:
        shared = set.intersection(*({_key(guard) for guard in other.guards} for other in variants))
        return guard_rows(guard for guard in variant.guards if guard.predicate in KEEP_MEMORY_SAFE or _key(guard) not in shared)

    return rows


def _key(guard: Guard) -> tuple[Any, Predicate, str]:
    return guard.path, guard.predicate, repr(guard.constant)


__all__ = ["Differing"]
