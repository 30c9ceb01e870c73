"""Dispatchers: the callables that users end up calling. Native where possible, else Python; what starts in Python is upgraded later."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from precast.artifact_store import Store
from precast.runtime.common.errors import strict
from precast.runtime.common.locks import Lock
from precast.runtime.common.log import logger, warn
from precast.runtime.counting.tallies import Tally
from precast.runtime.frames.entry import Entry, LocalsOf, parameters
from precast.runtime.native import loader
from precast.runtime.programs.variant import Binding, EagerVariant, Variant

TABLES_LIMIT = 64
"""Guard tables that one dispatcher looks through."""
TABLES_OF_ONE_FRAME = 8
PATIENCE = 8
"""Tables made in a row that no call hits before making them becomes rarer: for objects that differ at each call."""
Slow = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
Upgraded = Callable[[Callable[..., Any]], None]


class Dispatched(Protocol):
    """What a dispatcher needs of its program, beside the slow way of calling it."""

    @property
    def name(self) -> str:
        """For the logs."""

    @property
    def store(self) -> Store:
        """Where the native runtime may be."""

    @property
    def locals_of(self) -> LocalsOf:
        """From a call's arguments to the frame's locals."""

    @property
    def variants(self) -> Sequence[Variant | EagerVariant]:
        """What this process has loaded or compiled."""

    @property
    def tally(self) -> Tally:
        """What is counted of it."""


class Dispatcher:
    """Makes the callable that users end up with. Native where possible, else Python; what starts in Python is upgraded later.

    A program and its dispatcher need each other: the dispatcher is made first, its methods are hooks of the program, and `start` then
    gives it the program. Until then the hooks do nothing.
    """

    def __init__(self, entry: Entry) -> None:
        self.tables: Tables | None = None
        """Of the native dispatcher, once there is one."""
        self._entry = entry
        self._builder: Callable[[], Callable[[], None]] | None = None  # builds the native runtime beside a compile, while it is wanted

    def start(self, program: Dispatched, slow: Slow, upgraded: Upgraded | None = None) -> Callable[..., Any]:
        """A callable that takes the user's arguments (without the entry's prefix) and runs `program`; `slow` finds what no table knows.

        `upgraded`: told of the native one when it takes over from one in Python; who can may call that from then on.
        """
        tried = loader.find(program.store) is not None
        fast = self._in_native(program, slow) if tried else None
        return fast if fast is not None else self._in_python(program, slow, tried, upgraded)

    # -- the program's hooks

    def remember(self, binding: Binding, local_values: Mapping[str, Any]) -> None:
        """Record what the guards of `binding` read on this call, so that the next like it needs no Python."""
        if self.tables is None or binding.variant.hits < 2 or not binding.variant.tabled:
            return  # a table takes longer than the check: a first answer does not wait for it, and a second call is the first to gain
        self.tables.remember(binding, local_values)

    def begin(self) -> Callable[[], None] | None:
        """A compile begins: the native runtime is built beside it where it is wanted. What to call when the compile ends."""
        builder = self._builder  # which another thread may take away
        return builder() if builder is not None else None

    def forget(self) -> None:
        """Drop all guard tables."""
        if self.tables is not None:
            self.tables.forget()

    # -- the two kinds of callable

    def _in_python(self, program: Dispatched, slow: Slow, tried: bool, upgraded: Upgraded | None) -> Callable[..., Any]:
        """`tried`: the native runtime is there, and has no dispatcher for this program."""
        prefix, keywords = self._entry.prefix, dict(self._entry.keywords)
        fast: Callable[..., Any] | None = None
        lock = Lock()

        def dispatch(*args: Any, **kwargs: Any) -> Any:
            if not tried and loader.loaded() is not None:
                take_over()  # another program built or found it
            if fast is not None:
                return fast(*args, **kwargs)
            return slow((*prefix, *args), {**keywords, **kwargs} if keywords else kwargs)

        def take_over() -> None:
            nonlocal fast, tried
            with lock:
                self._builder = None
                if not tried and loader.loaded() is not None:
                    tried = True
                    fast = self._in_native(program, slow)
                    if fast is not None and upgraded is not None:
                        upgraded(fast)

        if loader.wanted():
            self._builder = lambda: _build_beside(program, take_over)
        return dispatch

    def _in_native(self, program: Dispatched, slow: Slow) -> Callable[..., Any] | None:
        module = loader.loaded()
        if module is None or not loader.tables_work() or self._entry.keywords:
            return None
        try:
            tables = Tables(module, program, self._entry, slow)
        except ValueError as error:
            logger("runtime").info("%s: dispatched by Python: %s", program.name, error)
            return None
        except Exception as error:
            if strict():
                raise
            logger("runtime").error("%s: making its native dispatcher failed", program.name, exc_info=error)
            text = f"{type(error).__name__}: {error}"[:400]
            warn(
                f"precast: {program.name} is dispatched by Python, because making its native dispatcher failed, which is a bug of precast "
                f"(PRECAST_STRICT=1 raises it): {text}"
            )
            return None
        self.tables = tables
        dispatcher: Callable[..., Any] = tables.dispatcher
        return dispatcher


def _build_beside(program: Dispatched, take_over: Callable[[], None]) -> Callable[[], None]:
    """Build the native runtime in a thread, as it is going to be wanted. The result waits for it, and calls `take_over`."""

    def build() -> None:
        try:
            loader.ensure(program.store)
        except Exception:  # noqa: BLE001 - calls go on without it
            logger("runtime").error("building the native runtime failed", exc_info=True)

    builder = threading.Thread(target=build, name="precast-native-build")
    finish: Callable[[], None] = builder.join
    try:
        builder.start()
    except RuntimeError as error:
        logger("runtime").warning("%s: the native runtime is built after the compile, not beside it: %s", program.name, error)
        finish = build

    def done() -> None:
        finish()
        take_over()

    return done


class Tables:
    """Makes guard tables for a native dispatcher: one when a call found its variant the slow way."""

    def __init__(self, module: Any, program: Dispatched, entry: Entry, slow: Slow) -> None:
        code = entry.function.__code__
        self.names = parameters(code)
        flags = (bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS))
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, *flags)
        self.dispatcher = module.Dispatcher(entry.function, entry.prefix, self.names, counts, slow, TABLES_LIMIT)
        self._tally = program.tally
        self._tally.dispatched_by(self.dispatcher)
        self._module = module
        self._program = program
        self._made: dict[Any, list[Any]] = {}
        self._lock = Lock()
        self._unused = 0
        self._hits_then = 0

    def __del__(self) -> None:
        if hasattr(self, "_tally"):  # else it could not be made
            self._tally.leave(self.dispatcher)

    def remember(self, binding: Binding, local_values: Mapping[str, Any]) -> None:
        """Make and add the guard table of this call, where that is worth the time."""
        if not self._worth_it():
            return
        from precast.runtime.guards.table.recorder import Unrecordable, record

        plan = binding.variant.plan(self.names)
        cells = self._program.locals_of.cells
        try:
            table = record(self._module, plan, local_values, cells, binding.variant.watched(binding.bound))
        except Unrecordable as error:
            logger("guards").info("%s: no guard table: %s", self._program.name, error)
            return
        # The record was taken before this check and is compared after it: what the check saw is what was recorded.
        if not binding.variant.check(local_values, cells()):
            return
        values = tuple(local_values[name] for name in self.names)
        if not table.check(values):
            logger("guards").info("%s: a guard table does not hold for the call that it was made from", self._program.name)
            return
        logger("guards").debug("%s: guard table %s", self._program.name, table.sizes())
        self._add(table, binding)

    def _worth_it(self) -> bool:
        with self._lock:
            hits = self.dispatcher.hits
            self._unused = self._unused + 1 if hits == self._hits_then else 0
            self._hits_then = hits
            return self._unused < PATIENCE or self._unused & (self._unused - 1) == 0

    def _add(self, table: Any, binding: Binding) -> None:
        frame = binding.frame
        with self._lock:
            if binding.variant not in self._program.variants:
                return  # forgotten since the call found it; a reset clears the variants before the tables
            self._drop_forgotten()
            tables = self._made.setdefault(frame, [])
            tables.append(table)
            self.dispatcher.add(table, frame)
            while len(tables) > TABLES_OF_ONE_FRAME:
                self.dispatcher.remove(tables.pop(0))
            while len(self._made) > TABLES_LIMIT:
                oldest = next(iter(self._made))
                self.dispatcher.remove(oldest)
                del self._made[oldest]

    def _drop_forgotten(self) -> None:
        """A table whose call's objects are gone holds for nothing, and keeps its frame, with a module's weights it may be."""
        for frame, tables in tuple(self._made.items()):
            for table in [table for table in tables if table.forgotten]:
                tables.remove(table)
                self.dispatcher.remove(table)
            if not tables:
                del self._made[frame]

    def forget(self) -> None:
        """Drop all tables."""
        with self._lock:
            self._made.clear()
            self.dispatcher.clear()
