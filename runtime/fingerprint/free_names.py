"""Free-variable analysis of bytecode: the globals, closure variables and imports that code reads or sets, as dotted names.

Names are not resolved here: `runtime/fingerprint/resolve_names.py` finds their values in this process, `runtime/fingerprint/stack_flow.py`
follows one value on the stack.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from precast.runtime.fingerprint.stack_flow import uses_of_top

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_FREE = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_PADDING = ("EXTENDED_ARG", "NOP", "PUSH_NULL", "CACHE", "PRECALL")
_LONGEST = 8
"""Parts of a dotted name that is put together from several variables: a loop may make it as long as it likes."""

Chain = tuple[str, ...]
"""The parts of a dotted name."""


class Import(NamedTuple):
    """An import statement in a function. `whole`: it binds that very module; otherwise its top package (`import a.b` binds `a`)."""

    level: int
    module: str
    whole: bool


class Name(NamedTuple):
    """A dotted name. `root`: the import that it begins with; "global" or "free" (a closure variable) where it begins with a variable."""

    root: Import | str
    chain: Chain


@dataclass(frozen=True)
class Uses:
    """The names that code reads and sets, and its imports; nested code is included.

    `set_on`: attributes that it sets on objects in local variables, whose value is known at a call only: (variable, attribute, …).
    """

    read: frozenset[Name]
    written: frozenset[Name]
    imports: frozenset[Import]
    set_on: frozenset[Chain]


@dataclass(eq=False, repr=False)
class _Reading:
    """The state of one analysis. `bound`: the names that a variable may be an alias of; nested code shares the variables of its parent."""

    read: set[Name] = field(default_factory=set)
    written: set[Name] = field(default_factory=set)
    imports: set[Import] = field(default_factory=set)
    set_on: set[Chain] = field(default_factory=set)
    bound: dict[str, set[Name]] = field(default_factory=dict)


@functools.lru_cache(maxsize=8192)
def uses(code: types.CodeType) -> Uses:
    """The analysis of `code`, repeated until no variable gets further aliases."""
    bodies: list[list[dis.Instruction]] = []
    codes = [code]
    while codes:
        nested = codes.pop(0)
        codes += [c for c in nested.co_consts if isinstance(c, types.CodeType)]
        bodies.append([i for i in dis.get_instructions(nested) if i.opname not in _PADDING])
    found = _Reading()
    for steps in bodies:
        _bind_imports(steps, found)
    known = -1
    while known != (known := sum(map(len, found.bound.values()))):  # a fixed point: no variable gets a further alias
        for steps in bodies:
            _read(steps, found)
    return Uses(frozenset(found.read), frozenset(found.written), frozenset(found.imports), frozenset(found.set_on))


def _bind_imports(steps: Sequence[dis.Instruction], found: _Reading) -> None:
    """Records which variables the import statements set."""
    for at, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level = steps[at - 2].argval if at > 1 else 0
        level = level if isinstance(level, int) else 0
        after = steps[at + 1 :]
        if steps[at - 1].argval:  # `from a import b, c as d`
            origin = Import(level, step.argval, True)
            for given, stored in zip(after[::2], after[1::2], strict=False):
                if given.opname != "IMPORT_FROM":
                    break
                name = Name(origin, (given.argval,))
                found.read.add(name)
                _bind(stored, name, found)
        else:
            origin = Import(level, step.argval, bool(after) and after[0].opname == "IMPORT_FROM")  # `import a.b as c`
            stored_at = next((i for i in after if i.opname.startswith("STORE_")), None)
            if stored_at is not None:
                _bind(stored_at, Name(origin, ()), found)
        found.imports.add(origin)


def _bind(step: dis.Instruction, name: Name, found: _Reading, place: int = 0) -> None:
    """Records a variable as an alias of a name. `place`: which variable, where the instruction stores several."""
    if step.opname.startswith("STORE_") and "ATTR" not in step.opname and len(name.chain) <= _LONGEST:
        variable = step.argval[place] if isinstance(step.argval, tuple) else step.argval
        found.bound.setdefault(str(variable), set()).add(name)


def _read(steps: Sequence[dis.Instruction], found: _Reading) -> None:
    for at, step in enumerate(steps):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.written.add(Name("global", (step.argval,)))
        elif step.opname == "STORE_DEREF":
            found.written.add(Name("free", (step.argval,)))
        variable = _loaded(step)
        if not variable:
            continue
        if step.opname in _GLOBAL and variable == "type":
            chain, is_set = _through_type(steps, at + 1)
            if is_set:
                found.set_on.add(chain)
                continue
        chain, is_set, end = _chain(steps, at + 1)
        if is_set:
            found.set_on.add((variable, *chain))
        _follow(steps, end, [Name(name.root, (*name.chain, *chain)) for name in _origins(step, variable, found)], is_set, found)


def _follow(steps: Sequence[dis.Instruction], at: int, names: Sequence[Name], is_set: bool, found: _Reading) -> None:
    """Records the uses of a value: attributes read or set and variables that hold it, across conditions (`(A or B).c`) too."""
    if is_set:
        found.written.update(names)
        return
    found.read.update(names)
    if not names or len(names[0].chain) > _LONGEST:
        return
    for where, place in uses_of_top(steps, at):
        if steps[where].opname in (*_ATTRIBUTE, "STORE_ATTR", "DELETE_ATTR"):
            chain, is_set, end = _chain(steps, where)
            _follow(steps, end, [Name(name.root, (*name.chain, *chain)) for name in names], is_set, found)
        else:
            for name in names:
                _bind(steps[where], name, found, place)


def _origins(step: dis.Instruction, variable: str, found: _Reading) -> Iterator[Name]:
    """The names that the loaded variable may be an alias of."""
    yield from tuple(found.bound.get(variable, ()))
    if step.opname in _GLOBAL:
        yield Name("global", (variable,))
    elif step.opname in _FREE:
        yield Name("free", (variable,))


def _loaded(step: dis.Instruction) -> str:
    """The variable that the instruction pushes, on top where it pushes two."""
    if step.opname not in (*_GLOBAL, *_FREE) and "LOAD_FAST" not in step.opname:
        return ""
    return str(step.argval[-1] if isinstance(step.argval, tuple) else step.argval)


def _chain(steps: Sequence[dis.Instruction], at: int) -> tuple[Chain, bool, int]:
    """The chain of attribute accesses from an instruction on, whether the last one is a store (`a.b = …`, `a.b += …`), and its end."""
    chain: list[str] = []
    while at < len(steps) and steps[at].opname in _ATTRIBUTE:
        chain.append(steps[at].argval)
        at += 1
    rest = [(step.opname, step.argval) for step in steps[at : at + 2]]
    if rest and rest[0][0] in ("STORE_ATTR", "DELETE_ATTR"):
        return (*chain, rest[0][1]), True, at
    if len(rest) == 2 and rest[0][0] == "COPY" and rest[1][0] in _ATTRIBUTE:
        return (*chain, rest[1][1]), True, at
    return tuple(chain), False, at


def _through_type(steps: Sequence[dis.Instruction], at: int) -> tuple[Chain, bool]:
    """The chain of `type(variable).a…` as (variable, `__class__`, a, …), and whether its last attribute is stored to."""
    if at + 1 < len(steps) and (variable := _loaded(steps[at])) and steps[at + 1].opname.startswith("CALL"):
        chain, is_set, _ = _chain(steps, at + 2)
        return (variable, "__class__", *chain), is_set
    return (), False
