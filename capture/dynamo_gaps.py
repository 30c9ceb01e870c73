"""Places where Dynamo lets the traced code depend on something without a guard, and which a guard of its own kind closes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch._dynamo.variables.dicts import ConstDictVariable


@contextlib.contextmanager
def guarded_gaps() -> Iterator[None]:
    """While tracing: `d[key]` that raises KeyError depends on the key's absence, as `d.get(key)` does."""
    original: Any = ConstDictVariable.getitem_const_raise_exception_if_absent

    def getitem_const_raise_exception_if_absent(self: ConstDictVariable, tx: Any, arg: Any) -> Any:
        if arg not in self:
            self.install_dict_contains_guard(tx, [arg])
        return original(self, tx, arg)

    with mock.patch.object(ConstDictVariable, "getitem_const_raise_exception_if_absent", getitem_const_raise_exception_if_absent):
        yield
