"""torch.compile's own guards: what the traced code met as two objects stays two. torch itself guards that for tensors of the call only.

Called from a backend, while torch traces. What torch answers wrongly while it traces, and frames without a graph, stay torch's own.
"""

from __future__ import annotations

import functools
from typing import Any

from precast.artifact_store.format.import_names import type_name
from precast.capture.adapters.c_guards import DictGuardManager, install_distinct
from precast.capture.adapters.dynamo import symbolic_convert
from precast.capture.adapters.guards import Guard, GuardBuilder, TracingContext, install_guard
from precast.capture.guards.identity import has_identity


def guard_identity() -> None:
    """Adds to the guards of the frame that is being traced, if one is: the objects of each type that it met are pairwise different."""
    tx: Any = getattr(symbolic_convert.tls, "current_tx", None)
    if tx is None or TracingContext.try_get() is None:
        return
    side_effects = tx.output.side_effects
    guarded = {guard.originating_source for guard in tx.output.guards}
    kinds: dict[str, dict[int, Any]] = {}
    for value in side_effects.keepalive:  # each object that it met once, with the way that it came by
        source = getattr(side_effects.id_to_variable.get(id(value)), "source", None)
        if source in guarded and has_identity(value):
            kinds.setdefault(type_name(type(value)), {})[id(value)] = source
    for kind in sorted(kinds):
        sources = tuple(kinds[kind].values())
        if len(sources) > 1:
            install_guard(sources[0].make_guard(functools.partial(PRECAST_DISTINCT, sources=sources)))


def PRECAST_DISTINCT(builder: GuardBuilder, guard: Guard, sources: tuple[Any, ...]) -> None:
    """What makes torch's check of such a guard; torch calls it when it builds the frame's guards, and shows the guard by this name."""
    names = [builder.arg_ref(source.name) for source in sources]
    managers = [builder.get_guard_manager_from_source(source) for source in sources]
    said = [f"{', '.join(names)} are {len(names)} objects"]
    if any(isinstance(manager, DictGuardManager) for manager in managers):  # which take no such check
        builder.add_python_lambda_leaf_guard_to_root([f"len({{{', '.join(f'id({name})' for name in names)}}}) == {len(names)}"], said)
        return
    install_distinct(managers, names, said)


__all__ = ["guard_identity"]
