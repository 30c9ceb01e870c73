"""Private names of torch: those that the runtime uses, and those that capture's adapters import."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator

from precast.runtime.common.eval_frame import USED
from precast.runtime.common.torch_names import NAMES, why_missing
from precast.torch_facts.fact import EAGER, OK, Answer, Fact, answer_of

HOOK = "torch._C._dynamo.eval_frame"
GUARDS = "torch._C._dynamo.guards"
ADAPTERS = "precast.capture.adapters"
OF_TORCHS_DOOR = {"c_guards": ('torch.compile(backend="precast")', "graphs run there as torch traced them; precast.compile is as ever")}
"""Adapters that only the backend of torch.compile imports."""


def facts() -> Iterator[Fact]:
    """The frame hook, the C guards, other names of the runtime; then one fact for each adapter."""
    for name in USED:
        yield _name("frame hook", f"{HOOK}:{name}", "every program: calls of what is not compiled itself are intercepted")
    for name in ("RootGuardManager", "GlobalStateGuard"):
        yield _name("frame hook", f"{GUARDS}:{name}", "programs with graph breaks, and guards that only torch's own code can check")
    for needed_for, names in NAMES.items():
        for name in names:
            yield _name("runtime", name, needed_for)
    package = importlib.import_module(ADAPTERS)
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        check = functools.partial(_adapter, f"{ADAPTERS}.{module}")
        needed_for, instead = OF_TORCHS_DOOR.get(module, ("captures", EAGER))
        yield Fact("adapters", f"capture/adapters/{module}.py", needed_for, instead, check, stops=instead == EAGER)


def _name(group: str, name: str, needed_for: str) -> Fact:
    return Fact(group, name.replace(":", "."), needed_for, EAGER, functools.partial(_is_there, name), stops=True, names=(name,))


def _is_there(name: str) -> Answer:
    problem = why_missing(name)
    return Answer("fails", problem) if problem else OK


def _adapter(module: str) -> Answer:
    try:
        adapter = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - an adapter names what is private to torch, and torch may raise anything
        return Answer("fails", f"{type(error).__name__}: {error}")
    return answer_of([f"there is no {name}" for name in getattr(adapter, "__all__", ()) if not hasattr(adapter, name)])


__all__ = ["facts"]
