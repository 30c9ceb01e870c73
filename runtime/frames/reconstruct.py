"""What rewritten bytecode calls to rebuild objects (capture/bytecode/reconstruct_peephole.py): many steps of the tracer's in one, native
where that is there.

Arguments in triples are done from the last to the first: the tracer puts them all on the stack, and the last one is called first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from precast.runtime.native import loader


def _last_first(triples: tuple[Any, ...]) -> list[tuple[Any, Any, Any]]:
    if len(triples) % 3:
        raise TypeError(f"an object, a name and a value each, not {len(triples)} arguments")
    return [triples[at : at + 3] for at in range(len(triples) - 3, -1, -3)]


def set_attributes(*triples: Any) -> None:
    """`object.__setattr__(target, name, value)` of each triple."""
    for target, name, value in _last_first(triples):
        object.__setattr__(target, name, value)


def set_own(*triples: Any) -> None:
    """Of each triple (target, name, value): into the target's own dict, whatever descriptors and `__getattribute__` its class has."""
    for target, name, value in _last_first(triples):
        own_dict(target)[name] = value


def own_dict(target: Any) -> dict[str, Any]:
    """The `__dict__` as `object` finds it; of a `threading.local`, which keeps one for each thread, this thread's."""
    found: dict[str, Any] = target.__dict__ if isinstance(target, threading.local) else object.__getattribute__(target, "__dict__")
    return found


def refill(into: dict[Any, Any], place: int, values: Mapping[Any, Any]) -> None:
    """What `into` holds becomes `values`, by the methods of the class at `place` of its MRO (dict, say), whatever classes override."""
    base: Any = type(into).__mro__[place]
    base.clear(into)
    for key, value in values.items():
        base.__setitem__(into, key, value)


STEPS: dict[str, Callable[..., None]] = {step.__name__: step for step in (set_attributes, set_own, refill)}


def step(name: str) -> Callable[..., Any]:
    """The step of this name, as fast as it is to be had now. Raises KeyError."""
    return getattr(loader.loaded(), name, STEPS[name])
