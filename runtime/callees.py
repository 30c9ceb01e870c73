"""Functions that Python calls between the graphs of a program: each that is worth it becomes a program of its own.

Which are worth it is torch.compile's rule: not torch's own code, the standard library's or certain packages'; tensors or modules among
the locals, or torch among the globals that the code names. What the store knows of a function decides before that, so that a warm
process runs what was compiled and leaves the rest alone.
"""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from precast.artifact_store.records import FrameRecord
from precast.runtime import region, skips, stance
from precast.runtime.code_digest import digest
from precast.runtime.dispatch import make_dispatcher
from precast.runtime.entry import Entry
from precast.runtime.frame_code import OWN_CODE, build
from precast.runtime.locks import Lock
from precast.runtime.log import logger
from precast.runtime.program import Program, program_key
from precast.runtime.resume import Resumes
from precast.runtime.shell import Shell

ATTENTIVE_CALLS = 3
"""Calls of a program, after something of it was loaded or compiled, during which unknown functions are looked at; each look takes 30 µs."""
TRIES = 3
"""Times that a function is looked at without finding a tensor, before it is left alone."""
_NO_CODE_OF = tuple(
    "fx2trt_oss hypothesis networkx numpy onnx onnxruntime onnx_tf pandas sklearn tabulate tensorflow tensorrt torch2trt tqdm tree tvm "
    "xarray".split()
)
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_STDLIB = tuple(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in ("stdlib", "platstdlib"))
_SITE = tuple(os.path.realpath(sysconfig.get_path(kind)) + os.sep for kind in ("purelib", "platlib"))
_PLAIN = region.Answer()
_DISABLING = ("nonrecursive_disable_wrapper", "disabled_itself")
"""Wrappers, torch's and ours, of functions that are not compiled themselves, while what they call is."""


@dataclass
class _Known:
    """What was decided of a code object, which is kept so that its id stays its own. `answer`: None while that is open."""

    code: types.CodeType
    answer: region.Answer | None
    tries: int = 0


class Callees:
    """The programs of what one root program calls, and the region in which its calls are looked at."""

    def __init__(self, root: Program) -> None:
        self.root = root
        self.programs: list[CalleeProgram] = []
        self._known: dict[int, _Known] = {}
        self._lock = Lock()
        self._attention = ATTENTIVE_CALLS
        self._replaced = False
        self._found: list[tuple[types.CodeType, types.CodeType, bool]] = []  # to be kept when the region ends
        root.around = self.around
        root.parts.append(lambda: self.programs)
        root.on_build.append(self.attend)
        root.on_reset.append(self.reset)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as it runs inside the region."""
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType):
            self._known[id(code)] = _Known(code, _PLAIN)

        @stance.enters_region
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._attention:
                self._attention -= 1
                return self._attentively(function, args, kwargs)
            if not self._replaced:
                return function(*args, **kwargs)
            return region.run(region.LOOK_UP, self, function, args, kwargs)

        return run

    def _attentively(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            return region.run(self._ask, self, function, args, kwargs)
        finally:
            with self._lock:
                found, self._found = self._found, []
            for code, replacement, alone in found:
                region.keep(code, replacement, self, alone)

    def attend(self) -> None:
        """Look at calls again for a while: code that has just been loaded may call functions not met before."""
        self._attention = max(self._attention, ATTENTIVE_CALLS - 1)

    def reset(self) -> None:
        for program in self.programs:
            program.reset()
        self._attention = ATTENTIVE_CALLS
        for known in self._known.values():
            if known.answer is _PLAIN:
                known.answer, known.tries = None, 0

    def _ask(self, frame: Any, entry: Any, state: Any) -> region.Answer:
        """The hook's callback. Never raises: an error here would be the user's call's."""
        known = self._known.get(id(frame.f_code))
        if known is not None and known.answer is not None:
            return known.answer
        if sys._getframe(1).f_code.co_name in _DISABLING:
            return _PLAIN
        with region.paused(), self._lock:
            known = self._known.setdefault(id(frame.f_code), _Known(frame.f_code, None))
            if known.answer is None:
                try:
                    known.answer = self._decide(frame, known)
                except Exception:  # noqa: BLE001 - see above; the function then runs as it is
                    logger("runtime").error("%s: looking at %s failed", self.root.name, frame.f_code.co_qualname, exc_info=True)
                    known.answer = _PLAIN
        return known.answer or _PLAIN

    def _decide(self, frame: Any, known: _Known) -> region.Answer | None:
        """None: nothing to compile this time, perhaps at another."""
        code, namespace = frame.f_code, frame.f_globals
        if not eligible(code, namespace):
            return _PLAIN
        program = CalleeProgram(self.root, code, namespace)
        if not self.root.store.variants(program.key):
            if skips.recall(self.root.store, program.key, compiles=not self.root.require_hit) or self.root.require_hit:
                return _PLAIN
            if not (names_torch(code, namespace) or holds_tensor(tuple(frame.f_locals.values()))):
                known.tries += 1
                return _PLAIN if known.tries >= TRIES else None
        self._known[id(program.code)] = _Known(program.code, _PLAIN)  # what it runs where it is not compiled
        program.on_build.append(self.attend)
        self.programs.append(program)
        self._replaced = True
        logger("graph_breaks").info("%s: %s, which it calls, is a program of its own", self.root.name, program.name)
        replacement, alone = region.trampoline(code, program.receiver()), not region.has_entries(code)
        self._found.append((code, replacement, alone))
        return region.Answer(replacement, self) if alone else _PLAIN


class CalleeProgram(Program):
    """A function met between graphs. It runs a copy of the code: a plain run of it is no call of the function that the hook replaces."""

    def __init__(self, root: Program, code: types.CodeType, namespace: dict[str, Any]) -> None:
        self.shell = Shell(code.replace(), namespace, code.co_name)
        super().__init__(Entry(self.shell.function(self.shell.code)), root.options, root.store, None, root.require_hit, (), root.backend)
        self.code = self.shell.code
        self.digest = digest(self.code)
        backend = root.backend.identity if root.backend is not None else ""
        self.key = program_key(f"{self.entry.name}()", self.digest, self.options, None, backend)
        Resumes(self)

    def receiver(self) -> Callable[..., Any]:
        """What a trampoline calls."""
        return self.shell.receiver(make_dispatcher(self, self.entry, self.call))

    def traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[types.FunctionType, tuple[Any, ...], Mapping[str, Any]]:
        return self.shell.open(args)

    @property
    def free_as_locals(self) -> bool:
        return True

    @property
    def is_part(self) -> bool:
        return True

    def build_frame(self, record: FrameRecord, graph: Callable[..., Any]) -> Callable[..., Any]:
        self.built()
        frame = build(record, self.shell.template(), graph, self.resume)
        return self.shell.function(frame.__code__, frame)


def eligible(code: types.CodeType, namespace: Mapping[str, Any]) -> bool:
    """Whether torch.compile would think of compiling such a function when Python calls it."""
    module = str(namespace.get("__name__", ""))
    if code.co_flags & _GENERATORS or not code.co_flags & inspect.CO_OPTIMIZED or code.co_qualname.startswith(OWN_CODE):
        return False
    if code.co_name.startswith("torch_dynamo_resume_in") or code.co_name in ("__setattr__", "<genexpr>", "<module>"):
        return False
    if code.co_filename.startswith("<frozen ") or code.co_filename.startswith("<precast "):
        return False
    package = module.partition(".")[0]
    if package in ("torch", "precast", *_NO_CODE_OF) or (package in sys.stdlib_module_names and package != "__main__"):
        return False
    path = os.path.realpath(code.co_filename)
    return not path.startswith(_STDLIB) or path.startswith(_SITE)


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


__all__ = ["CalleeProgram", "Callees", "eligible", "holds_tensor", "names_torch"]
