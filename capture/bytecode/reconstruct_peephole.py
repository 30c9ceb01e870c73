"""A bytecode peephole pass over rewritten code: the many calls by which the tracer rebuilds an object become one call
(runtime/frames/reconstruct.py).

The output of a Hugging Face model is a dict with half a dozen attributes, which the tracer's bytecode sets one by one; that takes a sixth
of the host time of such a model's call by CUDA graph. Code that does not match the patterns exactly is left unchanged.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from precast.capture.bytecode.editor import Editor, Instructions
from precast.runtime.frames import reconstruct

Supplies = Mapping[str, tuple[object, ...]]
PREFIX = "__precast_step_"
"""The prefix of the global names that this pass adds; the name of the step follows."""
_FUNCTION, _CALL = 2, 5
"""Stack slots of a callable, and of a callable with three arguments."""
_PUSH = ("LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE", "PUSH_NULL")
"""Opcodes that push a value and pop nothing."""
_MOST = 80
"""Calls that may be merged into one: each has three arguments, and a call has at most 255."""


def with_steps(code: types.CodeType, supplies: Supplies) -> tuple[types.CodeType, dict[str, tuple[object, ...]]]:
    """The code after the pass, and the supplies of the names that it added. `supplies`: those of the names that it had."""
    if sys.version_info >= (3, 13):  # where the NULL of a call stands elsewhere, and locals are loaded in pairs
        return code, {}
    instructions = Instructions(code)
    editor = Editor(instructions)
    own = _holders(instructions, supplies, ("shims", "torch._dynamo.utils"), "object_setattr_ignore_descriptor")
    for at in own.values():
        editor.replace(at, at + 2, ("LOAD_GLOBAL", (PREFIX + "set_own", (instructions[at].arg or 0) & 1)))
    objects = _holders(instructions, supplies, ("module", "builtins"), "object")
    for run, calls in _runs(instructions, _setters(instructions, objects, own)):
        _join(editor, run, calls)
    for at, names in _refills(instructions):
        arguments = [("LOAD_FAST", names[name]) for name in ("into", "place", "values")]
        load = ("LOAD_GLOBAL", (PREFIX + "refill", 1))
        editor.replace(at, at + len(_template()), load, *arguments, *_called(3))
    return editor.code(), {name: ("step", name.removeprefix(PREFIX)) for name in editor.names if name.startswith(PREFIX)}


@dataclass(frozen=True)
class _Setter:
    """The callable that sets one attribute, pushed by the instructions from `first` up to `end`.

    `shared`: they also store the function, or `object`, in a local for later setters. `base`: the stack's depth before them.
    `target`: the local whose attribute is set, "" where it is none.
    """

    step: str
    first: int
    end: int
    shared: bool = False
    base: int = 0
    target: str = ""


def _setters(code: Instructions, objects: Mapping[str, int], own: Mapping[str, int]) -> dict[int, _Setter]:
    """The setters by the index of their first instruction. `objects`: locals that hold `object`; `own`: locals that hold the function which
    sets an item of an object's `__dict__`."""
    found: dict[int, _Setter] = {}
    for i, (one, following) in enumerate(zip(code, code[1:], strict=False)):
        if one.opname == "LOAD_FAST" and one.argval in objects and _is_method(following, "__setattr__"):
            found[i] = _Setter("set_attributes", i, i + 2)
        elif one.opname == "STORE_FAST" and one.argval in objects and _is_method(following, "__setattr__"):
            found[i + 1] = _Setter("set_attributes", i + 1, i + 2, shared=True)
        elif one.opname == "PUSH_NULL" and following.opname == "LOAD_FAST" and following.argval in own:
            found[i] = _Setter("set_own", i, i + 2)
    for at in own.values():
        if (code[at].arg or 0) & 1:
            found[at] = _Setter("set_own", at, at + 4, shared=True)
    return found


def _holders(code: Instructions, supplies: Supplies, supply: tuple[object, ...], attribute: str) -> dict[str, int]:
    """Locals that only ever hold this attribute of a supplied object, each with the index of the instruction that loads the object."""
    stored = [i.argval for i in code if "_FAST" in i.opname and i.opname != "LOAD_FAST"]
    held = {}
    for i in range(len(code) - 3):
        module, attr, copy, store = code[i : i + 4]
        names = (module.opname, attr.opname, copy.opname, copy.arg, store.opname)
        if (
            names == ("LOAD_GLOBAL", "LOAD_ATTR", "COPY", 1, "STORE_FAST")
            and supplies.get(module.argval) == supply
            and attr.argval == attribute
            and stored.count(store.argval) == 1
        ):
            held[store.argval] = i
    return held


def _is_method(one: dis.Instruction, name: str) -> bool:
    if sys.version_info >= (3, 12):
        return one.opname == "LOAD_ATTR" and bool((one.arg or 0) & 1) and str(one.argval) == name
    return one.opname == "LOAD_METHOD" and str(one.argval) == name


def _runs(code: Instructions, setters: Mapping[int, _Setter]) -> Iterator[tuple[list[_Setter], int]]:
    """Runs of setters that are all on the stack, with their arguments, before the first is called; and the index where the calls begin. The
    innermost setter comes last."""
    depth, waiting, i = 0, list[_Setter](), 0
    leaves = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")  # what follows is come to in another way, a handler it may be
    while i < len(code):
        here = code[i]
        if here.is_jump_target or here.opcode in dis.hasjrel or here.opcode in dis.hasjabs or (i and code[i - 1].opname in leaves):
            waiting.clear()
        if (setter := setters.get(i)) is not None:
            base = depth - (1 if setter.shared and setter.step == "set_attributes" else 0)
            waiting.append(replace(setter, base=base, target=_local(code, setter.end)))
            depth, i = waiting[-1].base + _FUNCTION, setter.end
            continue
        run = _ready(waiting, depth, _calls(code, i))
        if len(run) > 1:
            yield run, i
            del waiting[-len(run) :]
            depth, i = run[0].base, i + len(run) * len(_called(3))
            continue
        if here.opname in ("SWAP", "COPY") and waiting and (here.arg or 0) > depth - waiting[-1].base - _FUNCTION:
            waiting.clear()  # it reaches below the arguments
        depth += dis.stack_effect(here.opcode, here.arg, jump=False)
        while waiting and depth < waiting[-1].base + _FUNCTION:
            waiting.pop()
        i += 1


def _local(code: Instructions, at: int) -> str:
    """The local that these instructions load as the object of the attribute, before its name and value; "" for other instructions."""
    if at + 3 > len(code):
        return ""
    target, name, value = code[at : at + 3]
    pushes = value.opname in _PUSH or (value.opname.startswith("BUILD_") and value.arg == 0)
    return str(target.argval) if (target.opname, name.opname, type(name.argval)) == ("LOAD_FAST", "LOAD_CONST", str) and pushes else ""


def _ready(waiting: Sequence[_Setter], depth: int, calls: int) -> list[_Setter]:
    """The last setters whose arguments are complete, at most `calls` of them.

    All of them set attributes of one local, whose object lives on anyway, so that the merged call keeps nothing alive for longer.
    """
    found: list[_Setter] = []
    for setter in reversed(waiting[-min(calls, _MOST) :] if calls else ()):
        if setter.base != depth - _CALL or (setter.step, setter.target) != (waiting[-1].step, waiting[-1].target) or not setter.target:
            break
        found.append(setter)
        depth = setter.base
        if setter.shared:
            break
    return found[::-1]


@functools.cache
def _called(arguments: int) -> tuple[tuple[str, int | None], ...]:
    """The instructions of a call whose result is dropped, in this version of Python."""
    names = {one.opname for one in _template()}
    before: tuple[tuple[str, int | None], ...] = (("PRECALL", arguments),) if "PRECALL" in names else ()
    return (*before, ("CALL", arguments), ("POP_TOP", None))


def _calls(code: Instructions, at: int) -> int:
    """The number of consecutive calls with three arguments whose results are dropped."""
    wanted, count = list(_called(3)), 0
    while [(one.opname, one.arg) for one in code[at : at + len(wanted)]] == wanted:
        if any(one.is_jump_target for one in code[at : at + len(wanted)]):
            break
        count, at = count + 1, at + len(wanted)
    return count


def _join(editor: Editor, run: Sequence[_Setter], calls: int) -> None:
    first = run[0]
    if first.step == "set_attributes":
        load = ("LOAD_GLOBAL", (PREFIX + first.step, 1))
        editor.replace(first.first, first.end, *((("POP_TOP", None), load) if first.shared else (load,)))
    for setter in run[1:]:
        editor.replace(setter.first, setter.end)
    editor.replace(calls, calls + len(run) * len(_called(3)), *_called(3 * len(run)))


@functools.cache
def _template() -> tuple[dis.Instruction, ...]:
    """The instructions by which the tracer fills a subclass of dict (`_manual_dict_setitem` in torch/_dynamo/side_effects.py)."""
    body = list(Instructions(reconstruct.refill.__code__))
    while body[-1].opname in ("RETURN_VALUE", "RETURN_CONST", "LOAD_CONST"):
        body.pop()
    return tuple(one for one in body[1:] if one.opname != "RESUME")


def _refills(code: Instructions) -> Iterator[tuple[int, dict[str, str]]]:
    """The positions where the template matches, each with the locals that correspond to the template's."""
    template = _template()
    for at in range(len(code) - len(template) + 1):
        part, names = code[at : at + len(template)], dict[str, str]()
        if not all(_alike(one, wanted, names) for one, wanted in zip(part, template, strict=True)):
            continue
        left = {names[name] for name in ("base", "key", "value")}
        outside = [one for i, one in enumerate(code) if not at <= i < at + len(template)]
        if not any("_FAST" in one.opname and one.argval in left for one in outside):
            yield at, names


def _alike(one: dis.Instruction, wanted: dis.Instruction, names: dict[str, str]) -> bool:
    if one.opname != wanted.opname or one.is_jump_target != wanted.is_jump_target:
        return False
    if one.opname in ("LOAD_FAST", "STORE_FAST"):
        return names.setdefault(wanted.argval, one.argval) == str(one.argval)
    if one.opcode in dis.hasname:
        same = str(one.argval) == str(wanted.argval)
        return same and _is_method(one, one.argval) is _is_method(wanted, one.argval)
    return bool(one.arg == wanted.arg)
