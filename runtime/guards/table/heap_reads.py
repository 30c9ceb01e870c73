"""Reads that guards make of long-lived objects, as entries of a native guard table; each read is recorded once."""

from __future__ import annotations

import types
from typing import Any

from precast.runtime.guards.rule import Opaque
from precast.runtime.native.kinds import Slot


class TableReads:
    """Records reads (`Reads`) in `table`. Raises Opaque, each time, for a read that the table has no entry for."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self._slots: set[tuple[int, Slot]] = set()
        self._classes: set[type] = set()
        self._dicts: dict[int, tuple[dict[Any, Any], dict[Any, None], bool]] = {}
        self._seen: set[tuple[str, int]] = set()

    def slot(self, owner: Any, kind: Slot) -> None:
        if kind is Slot.TYPE and _has_its_type_for_good(owner):
            return
        if (id(owner), kind) not in self._slots:
            if not self.table.slot(owner, kind):
                raise Opaque
            self._slots.add((id(owner), kind))

    def cls(self, cls: type) -> None:
        if cls not in self._classes:
            if not self.table.type(cls):
                raise Opaque
            self._classes.add(cls)

    def key(self, namespace: dict[Any, Any], name: Any) -> None:
        if type(name) not in (str, int, bool) and name is not None and not isinstance(name, type):
            raise Opaque  # comparing other keys may run Python code
        self._dicts.setdefault(id(namespace), (namespace, {}, False))[1][name] = None

    def whole(self, namespace: dict[Any, Any]) -> None:
        keys = self._dicts.setdefault(id(namespace), (namespace, {}, False))[1]
        self._dicts[id(namespace)] = (namespace, keys, True)

    def once(self, kind: str, value: Any) -> None:
        if (kind, id(value)) not in self._seen:
            if not getattr(self.table, kind)(value):
                raise Opaque
            self._seen.add((kind, id(value)))

    def finish(self) -> None:
        """Dicts are noted at the end: by then all keys that were read are known."""
        for namespace, keys, whole in self._dicts.values():
            self.table.dict(namespace, tuple(keys), whole)
        self.table.watch()


_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE (CPython's Include/object.h)."""


def _has_its_type_for_good(owner: Any) -> bool:
    """Python assigns a `__class__` only from one class made at run time to another, or between kinds of modules (CPython's
    Objects/typeobject.c, `object_set_class`)."""
    return not type(owner).__flags__ & _HEAP_TYPE and not issubclass(type(owner), types.ModuleType)
