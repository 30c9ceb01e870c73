"""A guard set -> generated straight-line Python: each shared prefix of the paths is walked once, cheap and telling checks come first."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precast.artifact_store import expressions
from precast.artifact_store.constants import equals, untag
from precast.artifact_store.guards import Guard, Path, Predicate, Step
from precast.artifact_store.import_names import find_object, is_method_of_object, named
from precast.runtime.class_digest import ClassCheck
from precast.runtime.global_state import global_state
from precast.runtime.guard_rules import MARKS, RULES, aliased, strays
from precast.runtime.paths import item, start, walk

Checker = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]

_DTYPES = {f"dtype_{str(value).removeprefix('torch.')}": value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_CONTAINERS = ("dict", "list", "tuple")
_ORDER = {
    Predicate.GLOBAL_STATE: 0,
    Predicate.EQUALS: 1,
    Predicate.TENSOR: 2,
    Predicate.LENGTH: 3,
    Predicate.SAME_DEVICE: 9,
    Predicate.NOT_ALIASED: 9,
    Predicate.CLASSES: 10,
    Predicate.CODE: 8,
    Predicate.KERNEL: 8,
}


def compile_checker(guards: Sequence[Guard]) -> Checker:
    """`check(locals, cells) -> bool`: whether every guard holds. Never raises for what the call's objects do.

    Names of classes and functions are looked up now where they are loaded, so the checker belongs to this process.
    """
    writer = _Writer()
    for guard in sorted(guards, key=_urgency):
        writer.guard(guard)
    source = "def check(local_values, cells):\n  try:\n" + "".join(f"    {line}\n" for line in writer.lines) + "    return True\n"
    source += "  except Exception:\n    return False\n"
    namespace = writer.names
    exec(
        compile(source, "<precast guards>", "exec"), namespace
    )  # names and constants reach the code as objects or by repr of str and int only
    check = namespace["check"]
    check.source = source
    return check  # type: ignore[no-any-return]


def _urgency(guard: Guard) -> tuple[int, int]:
    """Torch's state and the call's own arguments first, deep objects last."""
    return (0 if len(guard.path) <= 2 else 1, _ORDER.get(guard.predicate, 5))


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "resolve_start": start,
            "walk": walk,
            "item": item,
            "rules": {p.value: r for p, r in RULES.items()},
            "global_state": global_state,
            "equals": equals,
            "aliased": aliased,
            "strays": strays,
            "MARKS": MARKS,
            "Tensor": torch.Tensor,
            **_DTYPES,
        }
        self.places: dict[Path, str] = {}
        self.parts = 0

    def name(self, value: Any, prefix: str = "c") -> str:
        made = f"{prefix}{len(self.names)}"
        self.names[made] = value
        return made

    def place(self, path: Path) -> str:
        """The variable that holds the object at `path`, walked to when first needed."""
        known = self.places.get(path)
        if known is not None:
            return known
        if len(path) == 1:
            expression = self._root(path[0])
        else:
            expression = self._step(self.place(path[:-1]), path[-1])
        made = self.places[path] = f"v{len(self.places)}"
        self.lines.append(f"{made} = {expression}")
        return made

    def _root(self, root: Step) -> str:
        match root:
            case ("local", name):
                return f"local_values[{name!r}]"
            case ("cell", name):
                return f"cells[{name!r}]"
            case _:
                return f"resolve_start({self.name(root)}, local_values, cells)"

    def _step(self, place: str, step: Step) -> str:
        match step:
            case ("attr", name) if name.isidentifier():
                return f"{place}.{name}"
            case ("submodule", name):
                return f"{place}._modules[{name!r}]"
            case ("param", name):
                return f"{place}._parameters[{name!r}]"
            case ("buffer", name):
                return f"{place}._buffers[{name!r}]"
            case ("method", name) if name.isidentifier():
                return f"{place}.{name}()"
            case ("dict",):
                return f"{place}.__dict__"
            case ("type",):
                return f"type({place})"
            case ("item", key):
                return f"item({place}, {self.name(untag(key))})"
            case _:
                return f"walk({place}, {self.name(step)})"

    def guard(self, guard: Guard) -> None:
        match guard.predicate:
            case Predicate.GLOBAL_STATE:
                self.refuse(f"global_state() != {self.name(guard.constant)}")
            case Predicate.NOT_ALIASED:
                self._not_aliased(guard.constant)
            case Predicate.SAME_DEVICE:
                places = ", ".join(map(self.place, guard.constant["paths"]))
                self.refuse(f"strays([{places}], {guard.constant['index']}) >= 0")
            case Predicate.CLASSES:
                places = ", ".join(self.place(path) for path, _, _ in guard.constant["classes"])
                self.refuse(f"not {self.name(ClassCheck(guard.constant))}([{places}])")
            case Predicate.SHAPE:
                self._shape(guard.constant)
            case Predicate.EQUALS if guard.constant[0] in _CONTAINERS:
                self._contains(guard.constant, self.place(guard.path))
            case Predicate.SAME_AS:
                self.refuse(f"{self.place(guard.path)} is not {self.place(guard.constant)}")
            case Predicate.LACKS_OWN:
                self._lacks_own(guard)
            case _:
                place = self.place(guard.path)
                short = _short(guard, place, self.name)
                if short is None:
                    short = f"not rules[{guard.predicate.value!r}]({place}, {self.name(guard.constant)})[0]"
                self.refuse(short)

    def _lacks_own(self, guard: Guard) -> None:
        """One line per table: the keys of a dict look up each of the names."""
        own = self.place((*guard.path, ("dict",)))
        for table, names in guard.constant.items():
            held = own if table == "__dict__" else f"{own}[{table!r}]"
            self.refuse(f"{names[0]!r} in {held}" if len(names) == 1 else f"not {held}.keys().isdisjoint({self.name(tuple(names))})")

    def _contains(self, constant: Any, place: str) -> None:
        """That a list, tuple or dict holds just this, part by part."""
        kind, parts = constant[0], constant[1] if len(constant) > 1 else ()
        if kind not in _CONTAINERS or (kind == "dict" and any(key[0] != "str" for key, _ in parts)):
            self.refuse(_short_equals(constant, place) or f"not equals({place}, {self.name(constant)})")
            return
        keys = [key[1] for key, _ in parts] if kind == "dict" else list(range(len(parts)))
        held = [part for _, part in parts] if kind == "dict" else parts
        self.refuse(f"type({place}) is not {kind} or " + (f"[*{place}] != {keys!r}" if kind == "dict" else f"len({place}) != {len(parts)}"))
        for key, part in zip(keys, held, strict=True):
            made = f"v{len(self.places)}_{len(self.lines)}"
            self.lines.append(f"{made} = {place}[{key!r}]")
            self._contains(part, made)

    def refuse(self, condition: str) -> None:
        self.lines.append(f"if {condition}: return False")

    def _shape(self, constant: dict[str, Any]) -> None:
        places = [self.place(path) for path in constant["paths"]]
        self.refuse(f"not ({expressions.source(constant['expr'], lambda leaf: expressions.show_leaf(leaf, places), self._function)})")

    def _function(self, name: str) -> str:
        return self.name(expressions.function_of(name))

    def _not_aliased(self, constant: dict[str, Any]) -> None:
        places = {key: [self.place(p) for p in constant[key]] for key in ("distinct", "mutated", "others")}
        if not places["mutated"] and len(places["distinct"]) == 2:
            self.refuse(f"{places['distinct'][0]} is {places['distinct'][1]}")
        elif not places["mutated"]:
            self.refuse(f"len({{{', '.join(f'id({p})' for p in places['distinct'])}}}) != {len(places['distinct'])}")
        else:
            pairs = (f"[{', '.join(f'(0, {p})' for p in places[key])}]" for key in ("distinct", "mutated", "others"))
            self.refuse(f"aliased({', '.join(pairs)}) is not None")


def _short(guard: Guard, place: str, name: Callable[[Any], str]) -> str | None:
    """The condition under which the guard fails, inline, for the kinds that fill real guard sets; None: use the general rule."""
    constant = guard.constant
    match guard.predicate:
        case Predicate.TYPE | Predicate.IS:
            return _short_identity(guard.predicate, constant, place, name)
        case Predicate.EQUALS:
            return _short_equals(constant, place)
        case Predicate.TENSOR:
            return _short_tensor(constant, place, name)
        case Predicate.UNMARKED:
            return f"{place}.__dict__ and not MARKS.isdisjoint({place}.__dict__)"
        case Predicate.LENGTH | Predicate.EMPTY:
            return f"len({place}) != {constant or 0}"
        case Predicate.NOT_NONE:
            return f"{place} is None"
    return None


def _short_identity(predicate: Predicate, constant: str, place: str, name: Callable[[Any], str]) -> str | None:
    if "<locals>" in constant:
        return None
    try:
        wanted = find_object(constant)
    except LookupError:
        return None  # not loaded yet: looked up at each check
    if isinstance(wanted, types.MethodType) or is_method_of_object(wanted) or not named(wanted, constant):
        return None  # a method is made anew at each look-up; and something else may stand under the name for a while
    return f"type({place}) is not {name(wanted)}" if predicate is Predicate.TYPE else f"{place} is not {name(wanted)}"


def _short_equals(constant: Any, place: str) -> str | None:
    match constant:
        case ("none",):
            return f"{place} is not None"
        case ("bool", value):
            return f"{place} is not {value}"
        case ("int", value):
            return f"type({place}) is not int or {place} != {value}"
        case ("str", value):
            return f"type({place}) is not str or {place} != {value!r}"
        case ("float", text) if (value := float.fromhex(text)) == value and value not in (0.0, float("inf"), float("-inf")):
            return f"type({place}) is not float or {place} != {value!r}"
        case ("dtype", value):
            return f"{place} is not dtype_{value}"
    return None


def _numbers(place: str, wanted: tuple[int | None, ...]) -> list[str]:
    """Conditions under which sizes or strides differ from those wanted; None is free."""
    if None not in wanted:
        return [f"{place} != {wanted!r}"]
    return [f"len({place}) != {len(wanted)}", *(f"{place}[{i}] != {n}" for i, n in enumerate(wanted) if n is not None)]


def _short_tensor(spec: dict[str, Any], place: str, name: Callable[[Any], str]) -> str | None:
    known = _short_identity(Predicate.TYPE, spec["type"], place, name)
    if known is None or spec["layout"] != "strided" or spec["conj"] or spec["neg"]:
        return None
    parts = [
        known,
        f"{place}.dtype is not {name(getattr(torch, spec['dtype']))}",
        f"{place}.device.type != {spec['device']!r}",
        f"{place}.requires_grad is not {spec['requires_grad']}",
        *_numbers(f"{place}.shape", spec["size"]),
        f"{place}.layout is not {name(torch.strided)}",
        *_numbers(f"{place}.stride()", spec["stride"]),
        f"{place}.is_neg()",
    ]
    if spec["dtype"].startswith("complex"):
        parts.append(f"{place}.is_conj()")
    if spec["offset"] is not None:
        parts.append(f"{place}.storage_offset() != {spec['offset']}")
    return " or ".join(parts)
