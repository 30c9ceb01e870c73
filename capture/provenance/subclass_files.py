"""The source files that a graph traced through a tensor subclass depends on: those of the modules that define the code that ran, and the
objects which that code names.

Such classes dispatch by tables that decorators fill, registries and partials, so their functions alone do not determine what a dispatch
does.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

from precast.artifact_store.format.import_names import type_name
from precast.artifact_store.format.records import CodeDigest
from precast.runtime.fingerprint.bytecode import codes_of_file, digest, file_digest
from precast.runtime.fingerprint.functions import objects_named
from precast.runtime.fingerprint.module_scope import is_versioned
from precast.runtime.fingerprint.tensor_subclasses import dispatching
from precast.runtime.fingerprint.validate import FILED

_TABLES = (Collection, functools.partial, types.SimpleNamespace)
"""Library classes whose instances hold what users put into them. Instances of others, such as `torch.ops.aten`, are in any number of
modules.
"""


def file_records(
    classes: Iterable[type], codes: Mapping[types.CodeType, str], functions: Iterable[types.FunctionType]
) -> tuple[list[CodeDigest], list[str]]:
    """One record for each module's file, and reasons for those whose file is not what this process runs.

    `codes`: what ran while the graph was made, with the module whose globals each reads; `functions`: of this code, those that are alive.
    """
    homes = {base.__module__: base.__qualname__ for cls in classes for base in cls.__mro__ if not is_versioned(base.__module__)}
    ran: dict[str, list[types.CodeType]] = {}
    for code, home in codes.items():
        ran.setdefault(home, []).append(code)
        homes.setdefault(home, code.co_qualname)
    for home, name in _holders(classes, functions).items():
        homes.setdefault(home, name)
    records, problems = [], []
    for home, name in sorted(homes.items()):
        if wanted := file_digest(home):
            records.append(CodeDigest(FILED + home, name, wanted))
            filed = {*map(digest, codes_of_file(home))}
            written = [code for code in ran.get(home, ()) if not code.co_filename.startswith("<")]  # a dataclass makes some
            edited = [code.co_qualname for code in written if digest(code) not in filed]
            problems += [f"{qualname} ran as it was before the file of {home} was edited" for qualname in edited]
    return records, problems


def _holders(classes: Iterable[type], functions: Iterable[types.FunctionType]) -> dict[str, str]:
    """Users' modules with a mutable object that the code names (a table, a registry, settings), each with the object's name."""
    found = objects_named((*(part for cls in sorted(classes, key=type_name) for part in dispatching(cls)), *functions))
    wanted = {id(value) for value in found if issubclass(type(value), _TABLES) or not is_versioned(type(value).__module__)}
    modules = [m for name, m in sys.modules.copy().items() if isinstance(m, types.ModuleType) and not is_versioned(name)]
    holders = [(m.__name__, name, id(value)) for m in modules for name, value in m.__dict__.copy().items() if id(value) in wanted]
    imported = {home: _imported(home) for home, _, _ in holders}
    made_in = [holder for holder in holders if holder[1] not in imported[holder[0]]]
    nowhere = wanted.difference(value for _, _, value in made_in)  # every module that has it imports it, as far as its file tells
    return {home: name for home, name, _ in [*made_in, *(holder for holder in holders if holder[2] in nowhere)]}


def _imported(module: str) -> set[str]:
    """Names that the file of the module imports from other modules."""
    whole = next(iter(codes_of_file(module)), None)
    steps = [] if whole is None else [*dis.get_instructions(whole)]
    return {str(after.argval) for step, after in pairwise(steps) if step.opname == "IMPORT_FROM"}


__all__ = ["file_records"]
