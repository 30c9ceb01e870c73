"""Recording a guard table: every read that a guard set makes on a call's objects, as flat entries that the native runtime compares.

A guard that holds keeps holding while nothing that it read has changed. Objects that outlive a call (modules, configs, functions) are
recorded by identity and by what was read of them; a call's own values (tensors, numbers, strings, tuples, lists and dicts of them) are
compared by value. Guards that no entry can say are left to generated Python, which checks just those at every call. What a guard reads
is the `record` field of its predicate's row (`predicates.py`); here is the walk along the paths.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.tagged_constants import untag
from precast.runtime.guards.predicates import RELATIONS, VALUE_RULES
from precast.runtime.guards.rule import Covered, Live, Opaque
from precast.runtime.guards.table.arguments import live_guard, live_step, live_value, own_attributes
from precast.runtime.guards.table.attribute_lookup import ABSENT, instance_dict, lacks_on_class, read_attribute
from precast.runtime.guards.table.heap_reads import TableReads
from precast.runtime.guards.table.plan import Cells, Plan
from precast.runtime.guards.value_predicates import IMMUTABLE
from precast.runtime.native.kinds import Slot
from precast.runtime.paths.paths import HOOKS_OF, describe, flagged, item

_LASTING = (type, types.ModuleType)
_NOT_LENT = (Live, *_LASTING)


class Unrecordable(Exception):
    """No table can be made for this call; the generated checker decides each time."""


class _ClassDict:
    """A class's `__dict__`: covered by the class's version."""

    __slots__ = ("cls",)

    def __init__(self, cls: type) -> None:
        self.cls = cls


def record(native: Any, plan: Plan, local_values: Mapping[str, Any], cells: Cells, bound: Sequence[Any] = ()) -> Any:
    """A table for the call with these locals, whether or not the guards hold for them. Raises Unrecordable.

    `bound`: what has to stand at the plan's bound paths.
    """
    recording = Recording(native, plan, local_values, cells())
    try:
        opaque = recording.run()
    except OverflowError as error:
        raise Unrecordable(str(error)) from error
    except ValueError as error:
        if not recording.table.forgotten:
            raise
        raise Unrecordable(str(error)) from error
    if any(recording.places[path] is not tensor for path, tensor in zip(plan.bound, bound, strict=True)):
        raise Unrecordable("a bound input was replaced during the call")
    if opaque:
        recording.table.python(plan.checker(tuple(sorted(opaque)), cells))
    return recording.table


class Recording(TableReads):
    """One walk over a plan. `places`: what each path led to, a Live, an object, or the Opaque marker class."""

    def __init__(self, native: Any, plan: Plan, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
        super().__init__(native.Table())
        self.plan = plan
        self.local_values = local_values
        self.cells = cells
        self.places: dict[Path, Any] = {}
        self.opaque: set[int] = set()
        self._keep: list[Any] = []
        self._compared: set[Path] = set()  # paths of the call's tensors whose metadata an entry compares
        self._own_attributes: dict[int, int] = {}  # number of a tensor of the call -> of the first of its attributes

    # -- the walk

    def run(self) -> set[int]:
        """Fill the table; the indices of the guards that Python has to check at each call."""
        for part in (Slot.CODE, Slot.DEFAULTS, Slot.KWDEFAULTS):  # a function may be given others
            self.slot(self.plan.function, part)
        roots = dict.fromkeys(path[:1] for path in (*self.plan.at, *self.plan.under))
        self._lend_given([(root, self.local_values[root[0][1]]) for root in roots if root[0][0] == "local"])
        for root in sorted(roots, key=lambda path: path[0][0] != "local"):
            self._enter(root, lambda root=root: self._root(root))  # type: ignore[misc]
        for index, guard in enumerate(self.plan.guards):
            relation = RELATIONS.get(guard.predicate)
            if relation is not None:
                self._attempt(index, lambda rule=relation, guard=guard: rule.record(self, guard.path, guard.constant))  # type: ignore[misc]
        for path in self.plan.bound:
            if self.places.get(path, Opaque) is Opaque or isinstance(self.places[path], Live):
                raise Unrecordable(f"the bound input at {describe(path)} cannot be watched")
        self.finish()
        return self.opaque

    def _enter(self, path: Path, reach: Callable[[], Any]) -> None:
        """Record the object at `path`, the guards on it, and everything below it."""
        stack: list[tuple[Path, Callable[[], Any]]] = [(path, reach)]
        while stack:
            path, reach = stack.pop()
            try:
                place = reach()
            except (Opaque, AttributeError, KeyError, IndexError, TypeError, ValueError):
                self._give_up(path)
                continue
            self.places[path] = place
            if path[0][0] == "local" and not isinstance(place, _NOT_LENT) and not isinstance(self._owner(path), torch.nn.Module):
                self.table.lend(place)  # a weak reference: a table must not keep, say, a request's key-value cache alive after the request
            for index in self.plan.at.get(path, ()):
                if self.plan.guards[index].predicate not in RELATIONS:
                    self._attempt(index, lambda index=index: self._guard(self.plan.guards[index], path, place))  # type: ignore[misc]  # noqa: B023
            for child in self.plan.under.get(path, ()):
                stack.append((child, lambda child=child, place=place: self._step(place, child)))  # type: ignore[misc]

    def _lend_given(self, waiting: list[tuple[Path, Any]]) -> None:
        """Have the table refer weakly to the call's arguments. This precedes all entries, since one argument may lead to another, and an
        entry would keep that alive. Only objects that guards read: the table names no others.
        """
        while waiting:
            path, value = waiting.pop()
            if type(value) in (tuple, list, dict):
                for child in self.plan.under.get(path, ()):
                    if child[-1][0] == "item":
                        with contextlib.suppress(
                            KeyError, IndexError, TypeError
                        ):  # the walk fails there as well, and leaves the guard to Python
                            waiting.append((child, value[untag(child[-1][1])]))
            elif not isinstance(value, (torch.Tensor, *IMMUTABLE, *_LASTING)):
                self.table.lend(value)

    def _owner(self, path: Path) -> Any:
        """The first object on the way of a path that is none of the call's own containers; None where all of them are."""
        for end in range(1, len(path)):
            if not isinstance(place := self.places.get(path[:end]), Live):
                return place
        return None

    def _attempt(self, index: int, action: Callable[[], None]) -> None:
        try:
            action()
        except (Opaque, AttributeError, KeyError, TypeError):
            self.opaque.add(index)

    def _give_up(self, path: Path) -> None:
        """Leave the guards at and below `path` to Python."""
        stack = [path]
        while stack:
            path = stack.pop()
            self.places[path] = Opaque
            self.opaque.update(self.plan.at.get(path, ()))
            stack.extend(self.plan.under.get(path, ()))

    def _root(self, path: Path) -> Any:
        match path[0]:
            case ("local", name):
                return live_value(self, self.table.local(self.plan.names.index(name)), self.local_values[name], path)
            case ("cell", name):
                closure = self.plan.function.__closure__ or ()
                cell = closure[self.plan.function.__code__.co_freevars.index(name)]
                self.slot(cell, Slot.CELL)
                return cell.cell_contents
            case ("namespace",):
                return self.plan.function.__globals__
            case ("closure",):
                return self.plan.function.__closure__
            case ("global", module, name):
                self.key(sys.modules, module)
                namespace = sys.modules[module].__dict__
                self.key(namespace, name)
                return namespace[name]
            case ("module", name):
                self.key(sys.modules, name)
                return sys.modules[name]
            case ("builtin", name):
                self.key(builtins.__dict__, name)
                return builtins.__dict__[name]
            case ("state",):
                return None
        raise Opaque

    def _step(self, place: Any, path: Path) -> Any:
        step = path[-1]
        if isinstance(place, Live):
            return live_step(self, place, path)
        match step:
            case ("attr", name):
                return self._present(read_attribute(place, name, self))
            case ("raw", name):
                return self._present(read_attribute(place, name, self, hooks=False))
            case ("dict",) if isinstance(place, type):
                self.cls(place)
                return _ClassDict(place)
            case ("dict",):
                return self._present(self.own(place))
            case ("param" | "buffer" | "submodule", name):
                stores = {"param": "_parameters", "buffer": "_buffers", "submodule": "_modules"}
                namespace = self.own(place)
                self.key(namespace, stores[step[0]])
                members = namespace[stores[step[0]]]
                self.key(members, name)
                return dict.__getitem__(members, name)
            case ("type",):
                self.slot(place, Slot.TYPE)
                return type(place)
            case ("item", tagged):
                return self._item(place, untag(tagged))
            case ("key", position):
                self.whole(self.a_dict(place))
                return list(dict.keys(place))[position]
            case ("hook", position):
                self.whole(self.a_dict(place))
                return list(place.values())[position]
            case ("flagged", name):
                for table in (name, HOOKS_OF[name]):
                    self.key(self.own(place), table)
                    self.whole(place.__dict__[table])
                return flagged(place, name)
            case ("closure", position):
                cell = place.__closure__[position]
                self.slot(cell, Slot.CELL)
                return cell.cell_contents
            case ("default", position):
                self.slot(place, Slot.DEFAULTS)
                return place.__defaults__[position]
            case ("kwdefault", name):
                self.slot(place, Slot.KWDEFAULTS)
                self.key(place.__kwdefaults__, name)
                return place.__kwdefaults__[name]
        raise Opaque

    def _present(self, value: Any) -> Any:
        if value is ABSENT:
            raise Opaque
        self._keep.append(value)  # a bound method made here has to keep its identity while this walk goes on
        return value

    def _item(self, place: Any, key: Any) -> Any:
        if isinstance(place, _ClassDict):
            return self._present(place.cls.__dict__[key])
        if isinstance(place, dict):
            self.key(place, key)
            return item(place, key)
        if isinstance(place, list):
            self.once("items", place)
            return list.__getitem__(place, key)
        if isinstance(place, tuple):
            return tuple.__getitem__(place, key)
        raise Opaque

    # -- guards

    def _guard(self, guard: Guard, path: Path, place: Any) -> None:
        rule = VALUE_RULES[guard.predicate]
        if isinstance(place, Live):
            live_guard(self, guard, path, place)
            if guard.predicate is Predicate.TENSOR:
                self._compared.add(path)
        elif isinstance(place, _ClassDict):
            if Covered.CLASS_DICT not in rule.covered:
                raise Opaque
        elif rule.record is None:
            raise Opaque
        else:
            rule.record(self, place, guard.constant)

    # -- what rows ask for (`table_interfaces.Recorder`)

    def tensor(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or value.dim() > 5 or value.layout is not torch.strided:
            raise Opaque  # more dimensions are kept outside the TensorImpl
        self.slot(value, Slot.TYPE)
        self.once("tensor", value)

    def own(self, value: Any) -> dict[str, Any]:
        namespace = instance_dict(value, self)
        if namespace is None:
            raise Opaque
        return namespace

    def a_dict(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise Opaque
        return value

    def attribute(self, value: Any, name: str) -> Any:
        found = read_attribute(value, name, self)
        self._keep.append(found)
        return found

    def lacks_on_class(self, cls: type, name: str) -> bool:
        return lacks_on_class(cls, name, self)

    def compares_value_only_by_type(self, path: Path) -> bool:
        return path in self.plan.free

    def compares_tensor(self, path: Path) -> bool:
        return path in self._compared

    def own_attributes(self, place: Live) -> int:
        if place.number not in self._own_attributes:
            self._own_attributes[place.number] = own_attributes(self, place)
        return self._own_attributes[place.number]

    def place(self, path: Path) -> Any:
        """What `path` led to; walked now where no guard is on it."""
        if path not in self.places:
            parent = self.place(path[:-1]) if len(path) > 1 else None
            self.places[path] = self._step(parent, path) if len(path) > 1 else self._root(path)
        place = self.places[path]
        if place is Opaque:
            raise Opaque
        return place
