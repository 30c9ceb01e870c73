"""Call sites: what one `precast.compile(...)` made. Finds the entry for each call and hands it to that entry's program."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from precast.runtime.dispatch.build_program import entry_program
from precast.runtime.frames.compiled_module import has_hooks, is_forward, wrapper_guards
from precast.runtime.frames.entry import Entry, called_entry, entry_of, has_own_namespace
from precast.runtime.programs.identity import Settings
from precast.runtime.programs.program import Program
from precast.runtime.settings import stance

_sites: weakref.WeakValueDictionary[int, Site] = weakref.WeakValueDictionary()


class Site:
    """Owns the programs of one compiled callable: usually one; a module with hooks, or whose `forward` was replaced, has another.

    `call`: the same for good, for those who are handed it; `quickest`: does the same with a Python frame less once that can be.
    """

    def __init__(self, target: Any, settings: Settings, forced: bool = False, in_place: bool = False) -> None:
        """`forced`: stands for another site while a stance forces the backend that `settings` names. `in_place`: of a module, whose own
        `__call__`, where its class has one, goes on to be run around this site's call.
        """
        self.target = target
        self.settings = settings
        self._is_forced, self.is_in_place = forced, in_place
        self._forced: dict[stance.Forced, Site] = {}
        self.module = target if isinstance(target, torch.nn.Module) else None
        self._routes: dict[Any, tuple[Program, Callable[..., Any]]] = {}
        dispatcher = self._route(called_entry(target) if in_place else entry_of(target))[1]
        self.call: Callable[..., Any] = self._partial(target) if isinstance(target, functools.partial) else dispatcher
        self.quickest = self.call
        _sites[id(self)] = self

    def in_place(self) -> Site:
        """A site for the module whose calls are to go through it by `nn.Module.__call__`."""
        return Site(self.target, self.settings, self._is_forced, in_place=True)

    @property
    def programs(self) -> list[Program]:
        return [program for program, _ in tuple(self._routes.values())]  # a call in another thread may add one

    @property
    def all_programs(self) -> list[Program]:
        """The entries' programs, those that continue them after graph breaks, and those that they call in between."""
        return [part for program in self.programs for part in program.family()]

    def program_for_call(self) -> tuple[Program, Entry]:
        """The program that a call made now would use."""
        entry = self._entry()
        return self._route(entry)[0], entry

    def _entry(self) -> Entry:
        if self.module is None:
            return entry_of(self.target)
        entry = called_entry(self.module) if self.is_in_place else entry_of(self.module)
        if has_hooks(self.module) and is_forward(entry, self.module):
            return Entry(torch.nn.Module._call_impl, (self.module,))  # type: ignore[arg-type]
        return entry

    def _partial(self, target: functools.partial[Any]) -> Callable[..., Any]:
        """Calls through a partial, whose arguments may be changed in place, with those that it has at each call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._route(entry_of(target.func))[1](*target.args, *args, **{**target.keywords, **kwargs})

        return call

    def _route(self, entry: Entry) -> tuple[Program, Callable[..., Any]]:
        key = (entry.function, entry.function.__code__, len(entry.prefix), has_own_namespace(entry.function))
        route = self._routes.get(key)
        if route is None:
            guards = wrapper_guards(entry, self.module) if self.module is not None else ()
            made = entry_program(
                entry, self.settings, guards, lambda program: self._slow(program, entry), functools.partial(self._upgrade, key)
            )
            route = self._routes.setdefault(key, made)
        return route

    def _upgrade(self, key: Any, dispatcher: Callable[..., Any]) -> None:
        """A native dispatcher has taken over: the one in Python needs to be asked by none but who was handed it."""
        program, former = self._routes[key]
        self._routes[key] = (program, dispatcher)
        if self.call is former:
            self.quickest = dispatcher

    def _slow(self, program: Program, made_for: Entry) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
        """What a dispatcher does when its fast checks find nothing: a module's hooks or `forward`, a function's code may be others now."""
        function, code, prefix = made_for.function, made_for.function.__code__, len(made_for.prefix)
        own = has_own_namespace(function)

        def as_it_was(now: Entry) -> bool:
            return now.function is function and function.__code__ is code and has_own_namespace(function) is own

        def slow(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            if (other := self._stands_in()) is not None:
                return other._route(made_for if self.module is None else self._entry())[1](*args[prefix:], **kwargs)
            if self.module is None:
                if as_it_was(made_for):
                    return program.call(args, kwargs)
                return self._route(made_for)[1](*args[prefix:], **kwargs)
            if stance.state.force_eager:
                return _call_original(self.module, args[prefix:], kwargs)
            entry = self._entry()
            if as_it_was(entry):
                return program.call(args, kwargs)
            return self._route(entry)[1](*args[prefix:], **kwargs)

        return slow

    def _stands_in(self) -> Site | None:
        """The site that compiles with the backend which the stance forces; None where no other is wanted."""
        forced = stance.state.stance.forced
        if forced is None or self._is_forced or self.settings.require_hit or stance.state.force_eager:
            return None
        if forced.backend is self.settings.backend is None:
            return None
        if (found := self._forced.get(forced)) is None:
            found = self._forced.setdefault(forced, Site(self.target, self.settings.forcing(forced.backend), True, self.is_in_place))
        return found

    def reset(self) -> None:
        for program in self.programs:
            program.reset()


def _call_original(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What calling `module` did before it was compiled in place; a module that was not is called as it is."""
    return (module._call_impl if module._compiled_call_impl is not None else module)(*args, **kwargs)  # type: ignore[no-untyped-call]


def called_by(call: Any) -> Site | None:
    """The site whose calls go to `call`."""
    return next((site for site in _all() if site.call is call), None)


def reset() -> None:
    """Forget what this process has loaded and compiled, of every compiled callable; the store keeps its artifacts."""
    for site in _all():
        site.reset()


def _all() -> list[Site]:
    return [site for ref in _sites.valuerefs() if (site := ref()) is not None]  # taken at once: other threads make sites
