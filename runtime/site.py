"""Call sites: what one `precast.compile(...)` made. Finds the entry for each call and hands it to that entry's program."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from precast.artifact_store import Store
from precast.runtime import stance
from precast.runtime.dispatch import make_dispatcher
from precast.runtime.entry import Entry, entry_of
from precast.runtime.module import has_hooks
from precast.runtime.program import Program

_sites: weakref.WeakSet[Site] = weakref.WeakSet()


@dataclass(frozen=True)
class Settings:
    """What `compile` was asked for, validated."""

    options: Mapping[str, Any]
    store: Store
    label: str | None = None
    require_hit: bool = False

    def program(self, entry: Entry) -> Program:
        return Program(entry, self.options, self.store, self.label, self.require_hit)


class Site:
    """Owns the programs of one compiled callable: usually one; for a module also one with its hooks, or another after `forward` was replaced."""

    def __init__(self, target: Any, settings: Settings) -> None:
        self.target = target
        self.settings = settings
        self.module = target if isinstance(target, torch.nn.Module) else None
        self._routes: dict[Any, tuple[Program, Callable[..., Any]]] = {}
        entry = entry_of(target)
        self._plain = self._route(entry)
        self._plain_forward = self._forward()
        _sites.add(self)
        self.call: Callable[..., Any] = self._plain[1] if self.module is None else self._call_module

    @property
    def programs(self) -> list[Program]:
        return [program for program, _ in self._routes.values()]

    def program_for_call(self) -> tuple[Program, Entry]:
        """The program that a call made now would use."""
        entry = self._entry()
        return self._route(entry)[0], entry

    def _forward(self) -> Any:
        """What decides the entry of a module besides its hooks: the class's `forward`, or the instance's own."""
        if self.module is None:
            return None
        own = self.module.__dict__.get("forward")
        return own if own is not None else inspect.getattr_static(type(self.module), "forward", None)

    def _entry(self) -> Entry:
        if self.module is not None and has_hooks(self.module):
            return Entry(torch.nn.Module._call_impl, (self.module,))  # type: ignore[arg-type]
        return entry_of(self.target)

    def _route(self, entry: Entry) -> tuple[Program, Callable[..., Any]]:
        route = self._routes.get(entry.function)
        if route is None:
            program = self.settings.program(entry)
            route = self._routes.setdefault(entry.function, (program, make_dispatcher(program, entry)))
        return route

    def _call_module(self, *args: Any, **kwargs: Any) -> Any:
        assert self.module is not None
        if stance.state.force_eager:
            return self.module(*args, **kwargs)
        if has_hooks(self.module) or self._forward() is not self._plain_forward:
            return self._route(self._entry())[1](*args, **kwargs)
        return self._plain[1](*args, **kwargs)

    def reset(self) -> None:
        for program in self.programs:
            program.reset()


def reset() -> None:
    """Forget what this process has loaded and compiled, of every compiled callable; the store keeps its artifacts."""
    for site in tuple(_sites):
        site.reset()
