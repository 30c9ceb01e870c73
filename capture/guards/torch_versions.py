"""Dynamo's guards in the form that torch 2.13 gives them. Earlier versions differ in two kinds:

* HASATTR stands on the attribute itself, instead of on its owner with the attribute's name as keyword;
* DICT_CONTAINS and SET_CONTAINS carry a keyword `invert`, instead of having a NOT kind beside them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from precast.capture.adapters.guards import AttrSource, CodeSource, GuardBuilder, NNModuleSource
from precast.capture.adapters.guards import Guard as DynamoGuard


def newest_forms(guards: Iterable[Any]) -> list[Any]:
    """The same guards, none in an older version's form. Those that say nothing (a function has a `__code__`) are left out."""
    return [form for guard in guards if (form := _newest_form(guard)) is not None]


def _newest_form(guard: Any) -> Any:
    kind = guard.create_fn_name()
    keywords = getattr(guard.create_fn, "keywords", {})
    if kind == "HASATTR" and "attr" not in keywords:
        return _on_owner(guard.originating_source)
    if "invert" in keywords:
        function = _NOT_CONTAINS[kind] if keywords["invert"] else guard.inner_create_fn()
        return DynamoGuard(guard.originating_source, functools.partial(function, key=keywords["key"]))
    return guard


def _on_owner(source: Any) -> Any:
    attribute = source.base if isinstance(source, NNModuleSource) else source
    if isinstance(attribute, CodeSource):
        return None
    assert isinstance(attribute, AttrSource), f"a HASATTR guard on {type(attribute).__name__}"
    return DynamoGuard(attribute.base, functools.partial(GuardBuilder.HASATTR, attr=attribute.member))


def _dict_not_contains(builder: Any, guard: Any, key: Any) -> None:
    """A placeholder for a kind of guard that this version of torch lacks; only its name is read."""


def _set_not_contains(builder: Any, guard: Any, key: Any) -> None:
    """A placeholder for a kind of guard that this version of torch lacks; only its name is read."""


_dict_not_contains.__name__ = "DICT_NOT_CONTAINS"
_set_not_contains.__name__ = "SET_NOT_CONTAINS"
_NOT_CONTAINS = {"DICT_CONTAINS": _dict_not_contains, "SET_CONTAINS": _set_not_contains}

__all__ = ["newest_forms"]
