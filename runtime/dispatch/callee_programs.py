"""Functions that Python calls between the graphs of a program: each that is worth it becomes a program of its own.

Which are worth it is torch.compile's rule: not torch's own code, the standard library's or certain packages'; tensors or modules among
the locals, or torch among the globals that the code names. What the store knows of a function decides before that, so that a warm
process runs what was compiled and leaves the rest alone.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from precast.artifact_store import Store
from precast.runtime.common.locks import Lock
from precast.runtime.common.log import logger
from precast.runtime.frames import call_interception
from precast.runtime.frames.entry import Entry
from precast.runtime.frames.lambda_lift import Shell
from precast.runtime.frames.rewritten_code import OWN_CODE
from precast.runtime.programs import fallback
from precast.runtime.programs.identity import Identity, Settings, callee_identity
from precast.runtime.programs.program import Program
from precast.runtime.settings import stance

ATTENTIVE_CALLS = 3
"""Calls of a program, after something of it was loaded or compiled, during which unknown functions are looked at; each look takes 30 µs."""
TRIES = 3
"""Times that a function is looked at without finding a tensor, before it is left alone."""
_NO_CODE_OF = tuple(
    "fx2trt_oss hypothesis networkx numpy onnx onnxruntime onnx_tf pandas sklearn tabulate tensorflow tensorrt torch2trt tqdm tree tvm "
    "xarray".split()
)
_NOT_BY_PROGRAMS = ("__tensor_flatten__", "__tensor_unflatten__", "__torch_dispatch__", "__torch_function__", "__new__")
"""Methods that guards and torch's dispatcher call of tensor subclasses, or that make an instance of any class: a half-made one cannot be
traced.
"""
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_PLAIN = call_interception.Answer()
_DISABLING = ("nonrecursive_disable_wrapper", "disabled_itself")
"""Wrappers, torch's and ours, of functions that are not compiled themselves, while what they call is."""


@dataclass(eq=False, repr=False)
class _Known:
    """What was decided of a code object, which is kept so that its id stays its own. `answer`: None while that is open."""

    code: types.CodeType
    answer: call_interception.Answer | None
    tries: int = 0
    settled: bool = False


class Callees:
    """The region in which one root program's calls are looked at. Its methods are hooks of that program."""

    def __init__(self, group: Group, root: str = "") -> None:
        """`root`: the key of the root program."""
        self.group = group
        self._root = root
        self._attention = ATTENTIVE_CALLS

    def programs(self) -> list[Program]:
        """Those of the functions that were met so far, by any program of these settings."""
        return list(self.group.programs)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as it runs inside the region."""
        group = self.group
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType):
            group.leave_alone(code)

        @stance.enters_region
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._attention:
                self._attention -= 1
                group.root = self._root
                try:
                    return call_interception.run(group.asked, group, function, args, kwargs)
                finally:
                    group.settle(self.attend)
            if not group.programs and not group.updates:
                return function(*args, **kwargs)
            return call_interception.run(call_interception.LOOK_UP, group, function, args, kwargs)

        return run

    def attend(self) -> None:
        """Look at calls again for a while: code that has just been loaded may call functions not met before."""
        self._attention = max(self._attention, ATTENTIVE_CALLS - 1)

    def reset(self) -> None:
        self.group.reset()
        self._attention = ATTENTIVE_CALLS


@dataclass(frozen=True, eq=False, repr=False)
class Found:
    """A function that was met between graphs, as a program is made of it. It runs a copy of the code: a plain run of the program is no
    call of the function that the hook replaces.
    """

    settings: Settings
    identity: Identity
    entry: Entry
    shell: Shell


MakeCallee = Callable[[Found, Callable[[], None]], tuple[Program, Callable[..., Any]]]
"""(what was met, whom to tell that code of it is loaded) -> the program, and what a trampoline calls."""


class _Loaded:
    """Tells the root programs that call a function between their graphs that code of it is loaded."""

    def __init__(self) -> None:
        self.told: list[Callable[[], None]] = []

    def __call__(self) -> None:
        for notice in self.told:
            notice()


class Group:
    """The functions that programs with the same settings call between their graphs: one program each, whoever calls.

    `make`: what builds such a program with its dispatcher.
    """

    def __init__(self, settings: Settings, make: MakeCallee) -> None:
        self.settings = replace(settings, label=None)
        self.programs: list[Program] = []
        self.updates: list[Any] = []  # of optimisers
        self.root = ""  # the key of the program whose calls were looked at last: what is met now is most likely a part of that
        self.asked: Any = self._ask  # one object: the hook tells its callers apart by it
        self._make = make
        self._known: dict[int, _Known] = {}
        self._loaded: list[_Loaded] = []  # of each program
        self._found: list[tuple[types.CodeType, types.CodeType, bool]] = []  # to be kept when a region ends
        self._lock = Lock()

    def leave_alone(self, code: types.CodeType) -> None:
        """Never replace calls of this code."""
        self._known[id(code)] = _Known(code, _PLAIN, settled=True)

    def settle(self, attend: Callable[[], None]) -> None:
        """Keep what the region that ends has found; `attend` is told when code of it is loaded."""
        with self._lock:
            found, self._found = self._found, []
            for loaded in self._loaded:
                if attend not in loaded.told:
                    loaded.told.append(attend)
        for code, replacement, alone in found:
            call_interception.keep(code, replacement, self, alone)

    def reset(self) -> None:
        for program in self.programs:
            program.reset()
        for known in tuple(self._known.values()):
            if known.answer is _PLAIN and not known.settled:
                known.answer, known.tries = None, 0

    def _ask(self, frame: Any, entry: Any, state: Any) -> call_interception.Answer:
        """The hook's callback. Never raises: an error here would be the user's call's."""
        known = self._known.get(id(frame.f_code))
        if known is not None and known.answer is not None:
            return known.answer
        if sys._getframe(1).f_code.co_name in _DISABLING:
            return _PLAIN
        with call_interception.paused(), self._lock:
            known = self._known.setdefault(id(frame.f_code), _Known(frame.f_code, None))
            if known.answer is None:
                try:
                    known.answer = self._decide(frame, known)
                except Exception:  # noqa: BLE001 - see above; the function then runs as it is
                    logger("runtime").error("looking at %s failed", frame.f_code.co_qualname, exc_info=True)
                    known.answer = _PLAIN
        return known.answer or _PLAIN

    def _decide(self, frame: Any, known: _Known) -> call_interception.Answer | None:
        """None: nothing to compile this time, perhaps at another."""
        code, namespace = frame.f_code, frame.f_globals
        if namespace.get("__package__") == "torch.optim" and self.settings.backend is None:
            return self._update(code)
        if not eligible(code, namespace):
            return _PLAIN
        found = self._found_function(code, namespace)
        store, key = self.settings.store, found.identity.key
        if not store.variants(key):
            if fallback.recall(store, key, compiles=not self.settings.require_hit):
                return _PLAIN
            if not (names_torch(code, namespace) or holds_tensor(tuple(frame.f_locals.values()))):
                known.tries += 1
                return _PLAIN if known.tries >= TRIES else None
        loaded = _Loaded()
        if self.root:
            store.relate(self.root, key)
        program, receiver = self._make(found, loaded)
        self._known[id(program.code)] = _Known(program.code, _PLAIN, settled=True)  # what it runs where it is not compiled
        self.programs.append(program)
        self._loaded.append(loaded)
        logger("graph_breaks").info("%s, called between graphs, is a program of its own", program.name)
        replacement, alone = call_interception.trampoline(code, receiver), not call_interception.has_entries(code)
        self._found.append((code, replacement, alone))
        return call_interception.Answer(replacement, self) if alone else _PLAIN

    def _update(self, code: types.CodeType) -> call_interception.Answer:
        """The step of an optimiser: torch's function of its update is replaced by compiled ones."""
        from precast.runtime.optimizers.group_update import update_for  # only where there are optimisers

        update = update_for(code, self.settings)
        if update is None:
            return _PLAIN
        self.updates.append(update)
        replacement, alone = call_interception.trampoline(code, update.received), not call_interception.has_entries(code)
        self._found.append((code, replacement, alone))
        return call_interception.Answer(replacement, self) if alone else _PLAIN

    def _found_function(self, code: types.CodeType, namespace: dict[str, Any]) -> Found:
        shell = Shell(code.replace(), namespace, code.co_name)
        entry = Entry(shell.function(shell.code))
        return Found(self.settings, callee_identity(entry, shell.code, self.settings), entry, shell)


_groups: dict[Any, Group] = {}
_groups_lock = Lock()


def group_of(settings: Settings, make: MakeCallee) -> Group:
    """The group of all programs with these settings, whatever their labels; made with `make` where there is none."""
    key = (id(settings.store), repr(sorted(settings.options.items(), key=repr)), settings.require_hit, settings.backend_identity)
    with _groups_lock:
        if key not in _groups:
            _groups[key] = Group(settings, make)
        return _groups[key]


def forget_store(store: Store) -> None:
    """Let go of what programs of this store call, and of the store."""
    with _groups_lock:
        gone = [key for key, group in _groups.items() if group.settings.store is store]
        for key in gone:
            call_interception.forget(_groups.pop(key))


def eligible(code: types.CodeType, namespace: Mapping[str, Any]) -> bool:
    """Whether torch.compile would think of compiling such a function when Python calls it."""
    module = str(namespace.get("__name__", ""))
    if code.co_flags & _GENERATORS or not code.co_flags & inspect.CO_OPTIMIZED or code.co_qualname.startswith(OWN_CODE):
        return False
    if code.co_name.startswith("torch_dynamo_resume_in") or code.co_name in _NOT_BY_PROGRAMS or code.co_name == "__setattr__":
        return False
    if code.co_name.startswith("<") and code.co_name != "<lambda>":
        return False  # modules, comprehensions (whose argument has no name of its own)
    if code.co_filename.startswith("<frozen ") or code.co_filename.startswith("<precast "):
        return False
    package = module.partition(".")[0]
    if package in ("torch", "precast", *_NO_CODE_OF) or (package in sys.stdlib_module_names and package != "__main__"):
        return False
    path = os.path.realpath(code.co_filename)
    return not path.startswith(_folders("stdlib", "platstdlib")) or path.startswith(_folders("purelib", "platlib"))


@functools.cache
def _folders(*kinds: str) -> tuple[str, ...]:
    import sysconfig  # reads Python's whole configuration: not for a warm hit, which looks at no function

    return tuple(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in kinds)


def names_torch(code: types.CodeType, namespace: Mapping[str, Any]) -> bool:
    """Whether the code reads torch or numpy, or a module of torch, from its globals."""
    for name in code.co_names:
        value = namespace.get(name)
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in ("torch", "numpy"):
            return True
    return False


def holds_tensor(values: Any) -> bool:
    """Whether there is a tensor, module or array among the values, or in the lists, tuples and dicts among them."""
    stack, seen = list(values), set()
    array: Any = getattr(sys.modules.get("numpy"), "ndarray", ())
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (torch.Tensor, torch.nn.Module)) or isinstance(value, array):
            return True
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            return True
        if isinstance(value, (list, tuple)):
            stack.extend(value)
        elif type(value) is dict:
            stack.extend(value.values())
    return False


__all__ = ["Callees", "Found", "Group", "MakeCallee", "eligible", "forget_store", "group_of", "holds_tensor", "names_torch"]
