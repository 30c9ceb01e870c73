"""A guard set -> generated straight-line Python: each shared prefix of the paths is walked once, cheap and telling checks come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from precast.artifact_store.format.guards import Guard, Path, Predicate, Step
from precast.artifact_store.format.tagged_constants import untag
from precast.runtime.guards.predicates import ORDER, RULES, VALUE_RULES
from precast.runtime.paths.paths import item, start, walk

Checker = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


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
    return (0 if len(guard.path) <= 2 else 1, ORDER[guard.predicate])


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "resolve_start": start,
            "walk": walk,
            "item": item,
        }
        self.places: dict[Path, str] = {}
        self._known: dict[int, str] = {}  # id of an object that has a name, which keeps it alive

    def name(self, value: Any) -> str:
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = f"c{len(self.names)}"
            self.names[known] = value
        return known

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
        rule = RULES[guard.predicate]
        if rule.emit is None:
            self.refuse(self.judge(guard.predicate, self.place(guard.path), guard.constant))
            return
        for condition in rule.emit(self, guard.path, guard.constant):
            self.refuse(condition)

    def refuse(self, condition: str) -> None:
        self.lines.append(f"if {condition}: return False")

    def assign(self, expression: str) -> str:
        made = f"v{len(self.places)}_{len(self.lines)}"
        self.lines.append(f"{made} = {expression}")
        return made

    def judge(self, predicate: Predicate, place: str, constant: Any) -> str:
        return f"not {self.name(VALUE_RULES[predicate].evaluate)}({place}, {self.name(constant)})[0]"
