"""Recording a guard table: every read that a guard set makes on a call's objects, as flat entries that the native runtime compares.

A guard that holds keeps holding while nothing that it read has changed. Objects that live on (modules, configs, functions) are
recorded by identity and by what was read of them; what comes fresh with each call (tensors, numbers, strings, tuples, lists and dicts of
them) by value. What cannot be expressed is left to the generated Python checker, for just those guards, at every call.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._device

from precast.artifact_store.constants import untag
from precast.artifact_store.guards import Guard, Path, Predicate
from precast.runtime.hooks import HOOKS_OF, flagged
from precast.runtime.kernel_digest import layers
from precast.runtime.live_values import live_guard, live_step, live_value
from precast.runtime.native_kinds import Slot
from precast.runtime.objects import ABSENT, Opaque, instance_dict, read_attribute
from precast.runtime.paths import describe, item
from precast.runtime.relations import RELATIONS, relation
from precast.runtime.table_plan import Cells, Plan
from precast.runtime.table_reads import Live, TableReads

_IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), range, torch.dtype, torch.device, torch.layout, torch.memory_format)
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
        self.own_fields: dict[int, int] = {}  # number of a tensor of the call -> of the first of its attributes

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
            if guard.predicate in RELATIONS:
                self._attempt(index, lambda guard=guard: relation(self, guard))  # type: ignore[misc]
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
                self.table.lend(place)  # the caller's: a request's cache of keys and values, say, is not kept beyond the request
            for index in self.plan.at.get(path, ()):
                if self.plan.guards[index].predicate not in RELATIONS:
                    self._attempt(index, lambda index=index: self._guard(self.plan.guards[index], path, place))  # type: ignore[misc]  # noqa: B023
            for child in self.plan.under.get(path, ()):
                stack.append((child, lambda child=child, place=place: self._step(place, child)))  # type: ignore[misc]

    def _lend_given(self, waiting: list[tuple[Path, Any]]) -> None:
        """What the call was given, before anything is noted: so that what leads from one argument to another does not keep that one.

        Only what guards read: that something else goes, of a call's own containers too, is nothing to the table.
        """
        while waiting:
            path, value = waiting.pop()
            if type(value) in (tuple, list, dict):
                for child in self.plan.under.get(path, ()):
                    if child[-1][0] == "item":
                        with contextlib.suppress(KeyError, IndexError, TypeError):  # the walk meets it, too, and leaves it to Python
                            waiting.append((child, value[untag(child[-1][1])]))
            elif not isinstance(value, (torch.Tensor, *_IMMUTABLE, *_LASTING)):
                self.table.lend(value)

    def _owner(self, path: Path) -> Any:
        """The first object on the way of a path: what it leads through before are the call's own containers."""
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
                return self._present(self._own(place))
            case ("param" | "buffer" | "submodule", name):
                stores = {"param": "_parameters", "buffer": "_buffers", "submodule": "_modules"}
                namespace = self._own(place)
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
                self.whole(self._a_dict(place))
                return list(dict.keys(place))[position]
            case ("hook", position):
                self.whole(self._a_dict(place))
                return list(place.values())[position]
            case ("flagged", name):
                for table in (name, HOOKS_OF[name]):
                    self.key(self._own(place), table)
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

    def _own(self, place: Any) -> dict[str, Any]:
        namespace = instance_dict(place, self)
        if namespace is None:
            raise Opaque
        return namespace

    def _a_dict(self, place: Any) -> dict[Any, Any]:
        if not isinstance(place, dict):
            raise Opaque
        return place

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
        if isinstance(place, Live):
            live_guard(self, guard, path, place)
            return
        if isinstance(place, _ClassDict):
            if guard.predicate not in (Predicate.HAS_KEY, Predicate.LACKS_KEY, Predicate.NOT_NONE, Predicate.TYPE):
                raise Opaque
            return
        match guard.predicate:
            case Predicate.TYPE:
                self.slot(place, Slot.TYPE)
            case Predicate.IS | Predicate.NOT_NONE:
                return  # its identity is recorded
            case Predicate.KERNEL:
                self._configurations(place)
            case Predicate.EQUALS | Predicate.BASE_EQUALS:
                self._constant(place, guard.predicate)
            case Predicate.TENSOR | Predicate.RUNS_ON:
                self.tensor(place)
            case Predicate.UNMARKED | Predicate.MARKS:
                self.slot(place, Slot.DICT)
                if place.__dict__:
                    self.whole(place.__dict__)
            case Predicate.LENGTH | Predicate.EMPTY:
                self._length(place)
            case Predicate.KEYS:
                if isinstance(place, OrderedDict) and guard.constant["ordered"]:
                    raise Opaque  # its own order changes without a change of the dict beneath
                self.whole(self._a_dict(place))
            case Predicate.HAS_KEY | Predicate.LACKS_KEY:
                self.key(self._a_dict(place), untag(guard.constant))
            case Predicate.LACKS_OWN:
                self._lacks_own(self._own(place), guard.constant)
            case Predicate.HAS_ATTR | Predicate.LACKS_ATTR:
                self._keep.append(read_attribute(place, guard.constant, self))
            case Predicate.CODE:
                self._code(place)
            case _:
                raise Opaque

    def _lacks_own(self, own: dict[str, Any], tables: Mapping[str, Sequence[str]]) -> None:
        for table, names in tables.items():
            if table != "__dict__":
                self.key(own, table)
            held = own if table == "__dict__" else self._a_dict(own[table])
            for name in names:
                self.key(held, name)

    def _configurations(self, kernel: Any) -> None:
        """What the digest of a kernel reads that may be replaced in place: the lists of its autotuners."""
        for layer in layers(kernel):
            if "configs" in layer.__dict__:
                self.key(self._own(layer), "configs")
                if type(layer.configs) is not list:
                    raise Opaque
                self.once("items", layer.configs)

    def _constant(self, value: Any, predicate: Predicate) -> None:
        """What an equality guard read of an object that stays the same object: nothing more if it is immutable."""
        if predicate is Predicate.BASE_EQUALS and isinstance(value, (int, float, complex, str, bytes)):
            return
        if not _immutable(value):
            if type(value) is list and all(map(_immutable, value)):
                self.once("items", value)
            elif type(value) is dict and all(map(_immutable, value.values())):
                self.whole(value)
            else:
                raise Opaque

    def tensor(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or value.dim() > 5 or value.layout is not torch.strided:
            raise Opaque  # more dimensions are kept outside the TensorImpl
        self.slot(value, Slot.TYPE)
        self.once("tensor", value)

    def _length(self, value: Any) -> None:
        if isinstance(value, dict):
            self.once("used", value)
        elif isinstance(value, list):
            self.once("items", value)
        elif not isinstance(value, (tuple, str, bytes, range)):
            raise Opaque

    def _code(self, value: Any) -> None:
        if isinstance(value, types.MethodType):
            value = value.__func__
        if isinstance(value, types.FunctionType):
            self.slot(value, Slot.CODE)
        elif not isinstance(value, types.CodeType):
            raise Opaque

    def place(self, path: Path) -> Any:
        """What `path` led to; walked now where no guard is on it."""
        if path not in self.places:
            parent = self.place(path[:-1]) if len(path) > 1 else None
            self.places[path] = self._step(parent, path) if len(path) > 1 else self._root(path)
        place = self.places[path]
        if place is Opaque:
            raise Opaque
        return place


def _immutable(value: Any) -> bool:
    kind = type(value)
    if kind in _IMMUTABLE or isinstance(value, (enum.Enum, type)):
        return True
    if kind is tuple or kind is frozenset or kind is torch.Size:
        return all(map(_immutable, value))
    if kind is slice:
        return all(map(_immutable, (value.start, value.stop, value.step)))
    return False
