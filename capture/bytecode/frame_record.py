"""Makes a FrameRecord of rewritten bytecode, and digests of the functions that a frame was traced through."""

from __future__ import annotations

import dis
import functools
import itertools
import marshal
import os
import sys
import sysconfig
import types
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from precast.artifact_store.format.import_names import Untaggable
from precast.artifact_store.format.records import CodeDigest, FrameRecord, ResumeRecord, TensorConstant
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.adapters.dynamo import dict_keys_getitem
from precast.capture.bytecode.reconstruct_peephole import with_steps
from precast.capture.common.source_paths import NotPortable
from precast.runtime.fingerprint.bytecode import digest, file_digest, filed_code, find_code
from precast.runtime.fingerprint.validate import FILED
from precast.runtime.frames.dynamo_shims import SHIMS, dict_key

PRIVATE = "__precast_"
_GLOBAL_OPS = frozenset(("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"))
_STDLIB = tuple(sorted({os.path.realpath(sysconfig.get_path(k)) + os.sep for k in ("stdlib", "platstdlib")}))
_SITE = tuple(sorted({os.path.realpath(sysconfig.get_path(k)) + os.sep for k in ("purelib", "platlib")}))
_TORCH = os.path.realpath(os.path.dirname(torch.__file__)) + os.sep


def frame_record(
    code: types.CodeType,
    supplies: Mapping[str, tuple[Any, ...]],
    module_globals: dict[str, Any],
    tensors: tuple[TensorConstant, ...] = (),
    resumed: Mapping[str, tuple[types.CodeType, dict[str, Any]]] | None = None,
    broken: bool = False,
) -> FrameRecord:
    """The record. `supplies`: how each private global name of the bytecode gets its value; `resumed`: code and globals of resume functions.

    Private names are numbered in the order of their first use, so that the record does not depend on the process.
    Raises NotPortable when a constant has no portable form.
    """
    _check_shims(code, supplies)
    code, steps = with_steps(code, supplies)
    supplies = {**supplies, **steps}
    order: dict[str, str] = {}
    side: list[tuple[tuple[int, ...], Any]] = []
    plain = _strip(code, supplies, module_globals, order, side, ())
    names: list[tuple[str, tuple[Any, ...]]] = []
    resumes: list[ResumeRecord] = []
    for old, new in order.items():
        if resumed and old in resumed:
            names.append((new, ("resume", len(resumes))))
            resumes.append(resume_record(*resumed[old], module_globals))
        else:
            if supplies[old][0] in ("unknown", "scope"):  # the namespace of code made by `exec` is found by paths, and has no name
                raise NotPortable(f"the rewritten bytecode uses {old}, an object that means nothing in another process")
            names.append((new, tuple(supplies[old])))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return FrameRecord(python, marshal.dumps(plain, 2), tuple(side), tuple(names), tensors, tuple(resumes), broken)


def _check_shims(code: types.CodeType, supplies: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises NotPortable where the bytecode takes something from the tracer's modules that `runtime/frames/dynamo_shims.py` has no
    version of.
    """
    held: dict[str, str] = {}
    for one, *after in itertools.zip_longest(*(itertools.islice(dis.get_instructions(code), i, None) for i in range(4))):
        if one.opname in _GLOBAL_OPS and supplies.get(one.argval, ("",))[0] == "shims":
            module = supplies[one.argval][1]
        elif one.opname == "LOAD_FAST" and one.argval in held:
            module = held[one.argval]
        else:
            continue
        if after[1] is not None and (after[0].opname, after[0].arg, after[1].opname) == ("COPY", 1, "STORE_FAST"):
            held[after[1].argval] = module  # for later, too
            after = after[2:]
        name = after[0].argval if after[0] is not None and after[0].opname in ("LOAD_ATTR", "LOAD_METHOD") else "something"
        if not hasattr(SHIMS.get(module), name):
            raise NotPortable(f"the rewritten bytecode takes {name} from {module}, of which precast has no version of its own")
        if name == "dict_keys_getitem" and not _counts_keys_alike():
            raise NotPortable("this torch counts the keys of dicts in another way than precast knows")


@functools.cache
def _counts_keys_alike() -> bool:
    """Whether `dict_key` finds the keys of an OrderedDict in the order in which the tracer does."""
    turned = OrderedDict(first=0, second=1)
    turned.move_to_end("first")
    return [dict_key(turned, i) for i in range(2)] == [dict_keys_getitem(turned, i) for i in range(2)]


def resume_record(code: types.CodeType, namespace: dict[str, Any], module_globals: dict[str, Any]) -> ResumeRecord:
    """`namespace`: the globals of the function that is resumed, `module_globals` those of the frame. Raises NotPortable."""
    side: list[tuple[tuple[int, ...], Any]] = []
    plain = _strip(code, {}, namespace, {}, side, ())
    module = "" if namespace is module_globals else str(namespace.get("__name__", ""))
    if module and getattr(sys.modules.get(module), "__dict__", None) is not namespace:
        raise NotPortable(f"{code.co_qualname} resumes a function of {module!r}, which is no imported module")
    return ResumeRecord(code.co_name, module, digest(code), marshal.dumps(plain, 2), tuple(side))


def graph_names(code: types.CodeType, supplies: Mapping[str, tuple[Any, ...]]) -> set[str]:
    """Names of compiled graphs that the bytecode calls. Dynamo's table also has names from attempts that it restarted."""
    used = {i.argval for i in dis.get_instructions(code) if i.opname in _GLOBAL_OPS}
    return {name for name in used if supplies.get(name) == ("graph",)}


def _strip(
    code: types.CodeType,
    supplies: Mapping[str, tuple[Any, ...]],
    module_globals: dict[str, Any],
    order: dict[str, str],
    side: list[tuple[tuple[int, ...], Any]],
    where: tuple[int, ...],
) -> types.CodeType:
    # Dynamo leaves names in the table that no instruction reads any more; they need no supply.
    used = {i.argval for i in dis.get_instructions(code) if i.opname in _GLOBAL_OPS}
    names = tuple(
        n if n not in supplies else order.setdefault(n, f"{PRIVATE}{len(order)}") if n in used else f"{PRIVATE}unused"
        for n in code.co_names
    )
    constants: list[Any] = []
    for i, constant in enumerate(code.co_consts):
        if isinstance(constant, types.CodeType):
            constants.append(_strip(constant, supplies, module_globals, order, side, (*where, i)))
        elif _marshals(constant):
            constants.append(constant)
        else:
            side.append(((*where, i), ("globals",) if constant is module_globals else _tagged(constant)))
            constants.append(None)
    # The line table stays: it makes tracebacks readable. The file's name is that of the function on the machine that loads.
    return code.replace(co_names=names, co_consts=tuple(constants), co_filename="")


def _tagged(constant: Any) -> tuple[Any, ...]:
    try:
        return tag(constant)
    except Untaggable as error:
        raise NotPortable(f"the rewritten bytecode holds a constant that cannot be stored: {error}") from None


def _marshals(constant: Any) -> bool:
    """Whether marshal restores this constant exactly and writes the same bytes every time (a frozenset has no order)."""
    if isinstance(constant, tuple):
        return type(constant) is tuple and all(map(_marshals, constant))
    return type(constant) in (type(None), bool, int, float, complex, str, bytes, type(...))


def integers(code: types.CodeType) -> set[int]:
    """All whole numbers among the constants of the code and of the code nested in it."""
    found: set[int] = set()
    stack: list[Any] = list(code.co_consts)
    while stack:
        constant = stack.pop()
        if isinstance(constant, types.CodeType):
            stack += constant.co_consts
        elif isinstance(constant, (tuple, frozenset)):
            stack += constant
        elif type(constant) is int:
            found.add(constant)
    return found


def digests(
    functions: Iterable[types.FunctionType], codes: Iterable[types.CodeType], entry: types.CodeType, guarded: Iterable[str] = ()
) -> tuple[tuple[CodeDigest, ...], tuple[str, ...]]:
    """Digests of all traced functions outside of torch and the standard library (their versions are in the key), the entry first, and the
    reasons for functions that a fresh process could not find.

    `guarded`: the digests in guards on code that is found through the call's own objects; such code needs no name.
    """
    by_code = {f.__code__: f for f in functions}
    held = Counter(guarded)
    found = {CodeDigest("", entry.co_qualname, digest(entry))}
    problems: list[str] = []
    modules = sorted({f.__module__ for f in functions if isinstance(f.__module__, str)})
    homes, files = _homes(functions), _module_of_file()
    for code in dict.fromkeys([*codes, *by_code]):
        if code is entry or _covered_by_version(code):
            continue
        record = _locate(code, by_code.get(code), homes.get(code), files.get(code.co_filename), modules)
        if record is None and held[digest(code)] > 0:
            held[digest(code)] -= 1
            continue
        if record is None:
            problems.append(f"the traced function {code.co_qualname} ({code.co_filename}) cannot be found again by name")
        else:
            found.add(record)
    return tuple(sorted(found, key=lambda d: (d.module, d.qualname, d.digest))), tuple(problems)


def _covered_by_version(code: types.CodeType) -> bool:
    path = os.path.realpath(code.co_filename)
    if code.co_filename.startswith("<frozen ") or path.startswith(_TORCH):
        return True
    return path.startswith(_STDLIB) and not path.startswith(_SITE)


def _homes(functions: Iterable[types.FunctionType]) -> dict[types.CodeType, str]:
    """The module of each function's code and of the code nested in it.

    Where two files have equal code the tracer reports the code object that it saw first in this process.
    """
    found: dict[types.CodeType, str] = {}
    for function in functions:
        codes = [function.__code__] if isinstance(function.__module__, str) else []
        while codes:
            code = codes.pop()
            found.setdefault(code, function.__module__)
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return found


def _locate(
    code: types.CodeType, function: types.FunctionType | None, home: str | None, filed: str | None, modules: list[str]
) -> CodeDigest | None:
    """Where a fresh process finds this code: by its function's name in module `home` (that of the enclosing function) or `filed` (that of
    its file), in a traced module's class (generated methods), or, last, by reading the file of such a module.
    """
    wanted = digest(code)
    candidates = [] if function is None else [(function.__module__, function.__qualname__), (function.__module__, code.co_qualname)]
    if home is not None:
        candidates.append((home, code.co_qualname))
    if filed is not None:
        candidates.append((filed, code.co_qualname))
    if function is not None:
        candidates += [(module, function.__qualname__) for module in modules]
    for module_name, qualname in candidates:
        if module_name is not None and wanted in {digest(c) for c in find_code(module_name, qualname)}:
            return CodeDigest(module_name, qualname, wanted)
    for module_name, qualname in candidates:
        if module_name is not None and wanted in map(digest, filed_code(module_name, qualname)):
            return CodeDigest(FILED + module_name, qualname, file_digest(module_name))
    return None


def _module_of_file() -> dict[str, str]:
    files: dict[str, str] = {}
    for name, module in sorted(sys.modules.copy().items()):  # the same answer whatever the order of imports
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            files.setdefault(file, name)
    return files
