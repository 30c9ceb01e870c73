"""How precast changes torch while it traces: the rows of a table of patches, and what makes a patch visible to the tracing thread only.

`unittest.mock` would replace an attribute for the whole process. Here an attribute of a class becomes a descriptor, and a function of a
module a function, that answer by thread: the one that patched gets the replacement, every other what was there before.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch

from precast.runtime.common.locks import Lock
from precast.runtime.common.supported_torch import SUPPORTED_TORCH, written_for

Given = TypeVar("Given")
"""What the context managers of a table are given."""

Without = Literal["wrong", "refused", "slower", "words"]
"""What comes of a capture without a row's patch: answers may be wrong, or artifacts; the tracer refuses, or ends the graph, where it would
not have to; it takes longer; it says other things. A row of the first kind that does not fit this torch keeps everything from being
compiled; of the others, what is patched is left as torch has it.
"""


@dataclass(frozen=True)
class Patch(Generic[Given]):
    """One row: something of torch's that is another while precast traces.

    `names`: what is patched, each "module:attribute". `why`: what goes wrong without it. `test`: the pytest node that fails without it.
    `apply`: makes the context manager that patches. `versions`: the releases of torch, major and minor, that need it.
    `others`: what other threads notice of it meanwhile; empty: nothing. `test` may be empty with a reason in `untested`.
    `without`: what comes of a capture without it, where it does not fit the torch at hand.
    """

    names: tuple[str, ...]
    why: str
    test: str
    apply: Callable[[Given], contextlib.AbstractContextManager[Any]]
    versions: tuple[str, ...] = SUPPORTED_TORCH
    others: str = ""
    untested: str = ""
    without: Without = "wrong"

    @property
    def is_needed(self) -> bool:
        """Whether this torch is one of those that the row is for; one that is newer than all of them counts as the newest."""
        return written_for(torch.__version__) in self.versions


_left_out: set[int] = set()
"""Rows, by identity, that do not fit the torch at hand, and that a capture can do without."""


def leave_out(row: Patch[Any]) -> None:
    """The row is not applied in this process any more."""
    _left_out.add(id(row))


def applied(rows: Iterable[Patch[Given]], given: Given) -> contextlib.ExitStack:
    """Enters the rows that this torch needs, in their order; a context manager that leaves them in the opposite one."""
    with contextlib.ExitStack() as stack:
        for row in rows:
            if row.is_needed and id(row) not in _left_out:
                stack.enter_context(row.apply(given))
        return stack.pop_all()


def always(patch: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[[Any], contextlib.AbstractContextManager[Any]]:
    """`apply` of a row whose patch is the same for every trace."""
    return lambda given: patch()


_LOCK = Lock()


class _Layer:
    """A replacement over what was there before, which may be another one; a thread other than its own passes through it."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self.owner, self.name, self.value = owner, name, value
        self.thread = threading.get_ident()
        self.is_own = name in vars(owner)  # and not inherited
        self.before = inspect.getattr_static(owner, name)
        self.installed: Any = self if isinstance(owner, type) else _function(self)

    def here(self) -> Any:
        """What holds for the thread that asks."""
        return self.value if threading.get_ident() == self.thread else self.before

    def __get__(self, instance: Any, owner: type) -> Any:
        found = self.here()
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, instance, owner)

    def take_out(self) -> None:
        """Two threads may have patched the same: then the layer need not be the uppermost."""
        self.value = self.before  # for those who hold on to it
        above = _layer_of(vars(self.owner).get(self.name))
        if above is self:
            if self.is_own:
                setattr(self.owner, self.name, self.before)
            else:
                delattr(self.owner, self.name)
            return
        while above is not None:
            below = _layer_of(above.before)
            if below is self:
                above.before, above.is_own = self.before, self.is_own
            above = below


def _function(layer: _Layer) -> Callable[..., Any]:
    def by_thread(*args: Any, **kwargs: Any) -> Any:
        return layer.here()(*args, **kwargs)

    by_thread.__dict__[_LAYER] = layer
    return by_thread


_LAYER = "_precast_layer"


def _layer_of(installed: Any) -> _Layer | None:
    if isinstance(installed, _Layer):
        return installed
    found = getattr(installed, "__dict__", {}).get(_LAYER) if isinstance(installed, types.FunctionType) else None
    return found if isinstance(found, _Layer) else None


Seen = Callable[[Any, str, Any, Any], None]
"""Gets (owner, name, what was there before, what takes its place)."""
_watchers: list[Seen] = []


@contextlib.contextmanager
def watching(seen: Seen) -> Iterator[None]:
    """`seen` is told of each patch that `patched` makes inside."""
    _watchers.append(seen)
    try:
        yield
    finally:
        _watchers.remove(seen)


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """For this thread, `owner.name` is `value` inside. `owner`: a class or a module; `value`: a function, staticmethod or property.

    Other threads get what was there before. A class's attribute adds no frame to the stack of those who call it; a module's adds one.
    """
    with _LOCK:
        layer = _Layer(owner, name, value)
        setattr(owner, name, layer.installed)
        for seen in _watchers:
            seen(owner, name, layer.before, value)
    try:
        yield
    finally:
        with _LOCK:
            layer.take_out()


_replaced: dict[tuple[int, str], list[Any]] = {}
"""Attributes that are replaced for every thread: how often, and what was there before the first."""


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` inside, for every thread: what is no function cannot answer by thread. The last one to leave restores it."""
    key = id(owner), name
    with _LOCK:
        users = _replaced.setdefault(key, [0, getattr(owner, name)])
        users[0] += 1
        setattr(owner, name, value)
    try:
        yield
    finally:
        with _LOCK:
            users[0] -= 1
            if not users[0]:
                del _replaced[key]
                setattr(owner, name, users[1])


def named(name: str) -> Any:
    """What "module:attribute" names. Raises ImportError and AttributeError."""
    module, _, path = name.partition(":")
    found: Any = __import__(module, fromlist=["_"])
    for part in path.split("."):
        found = getattr(found, part)
    return found


__all__ = ["Patch", "Seen", "Without", "always", "applied", "leave_out", "named", "patched", "replaced", "watching"]
