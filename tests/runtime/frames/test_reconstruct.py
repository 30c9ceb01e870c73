"""Steps of rewritten bytecode: in Python and native they do the same, and what Python itself does one by one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from precast.artifact_store import Store
from precast.runtime.frames import reconstruct
from precast.runtime.native import loader


class Plain:
    pass


class Slots:
    __slots__ = ("a", "b")


class Refusing:
    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("object.__setattr__ passes this by")


class Output(OrderedDict[str, Any]):
    loss = None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("object.__setattr__ passes this by")

    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("its base's passes this by")

    def clear(self) -> None:
        raise AssertionError("its base's passes this by")


class Calculated:
    a: Any

    def _set(self, value: Any) -> None:
        self.__dict__["set to"] = value

    a = property(lambda self: 1, _set)  # type: ignore[assignment]


@dataclass(frozen=True)
class Frozen:
    a: int = 0
    b: int = 0


class Dicts(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("its base's passes this by")


class Mixed(dict[str, Any]):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("object.__setattr__ passes this by")


class Local(threading.local):
    pass


class Looking:
    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise AssertionError("object.__getattribute__ passes this by")
        return object.__getattribute__(self, name)


class Meta(type):
    pass


MAKERS: list[Callable[[], Any]] = [
    Plain,
    Slots,
    Refusing,
    Output,
    Calculated,
    Frozen,
    Dicts,
    Mixed,
    threading.local,
    Local,
    Looking,
    torch.nn.Module,
    lambda: torch.zeros(2),
    lambda: torch.nn.Parameter(torch.zeros(2)),
    lambda: Meta("Made", (), {}),  # object.__setattr__ may not be applied to a class
    lambda: 3,
    lambda: len,
]


@pytest.fixture(params=["python", "native"])
def step(request: pytest.FixtureRequest, native_store: Store) -> Callable[[str], Callable[..., Any]]:
    return reconstruct.STEPS.__getitem__ if request.param == "python" else lambda name: getattr(loader.loaded(), name)  # type: ignore[no-any-return]


def _own(target: Any) -> dict[str, Any] | None:
    return object.__getattribute__(target, "__dict__") if isinstance(target, Looking) else getattr(target, "__dict__", None)


def _outcome(act: Callable[[], object], target: Any) -> tuple[Any, ...]:
    try:
        act()
        error: Any = None
    except Exception as caught:  # noqa: BLE001 - which one it is, is compared
        error = type(caught)
    own = {} if isinstance(target, type) else dict(_own(target) or {})
    slots = tuple(getattr(target, name, "unset") for name in ("a", "b")) if isinstance(target, Slots) else ()
    return error, list(own.items()), slots


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: getattr(make, "__name__", "made"))
def test_attributes(make: Callable[[], Any], step: Callable[[str], Callable[..., Any]]) -> None:
    for names in (("a", "b"), ("b", "no_such_slot"), (3, "b"), ("__class__", "b")):
        expected, got = make(), make()

        def one_by_one(names: tuple[Any, Any] = names, target: Any = expected) -> None:
            object.__setattr__(target, names[1], "second")
            object.__setattr__(target, names[0], "first")

        want = _outcome(one_by_one, expected)
        assert _outcome(lambda: step("set_attributes")(got, names[0], "first", got, names[1], "second"), got) == want  # noqa: B023


def test_attributes_of_classes_are_refused(step: Callable[[str], Callable[..., Any]]) -> None:
    """So that the test above has seen both."""
    with pytest.raises(TypeError, match="can't apply this __setattr__"):
        step("set_attributes")(Meta("Made", (), {}), "a", 1)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: getattr(make, "__name__", "made"))
def test_own(make: Callable[[], Any], step: Callable[[str], Callable[..., Any]]) -> None:
    expected, got = make(), make()

    def one_by_one() -> None:
        for name, value in (("b", "second"), ("a", "first")):
            if (own := _own(expected)) is None:
                raise AttributeError
            own[name] = value

    want = _outcome(one_by_one, expected)
    assert _outcome(lambda: step("set_own")(got, "a", "first", got, "b", "second"), got) == want


@pytest.mark.parametrize("values", [{}, {"x": 1, "y": [2]}, OrderedDict(y=1, x=2)], ids=["empty", "dict", "ordered"])
@pytest.mark.parametrize(("cls", "place"), [(Output, 1), (Output, 2), (Dicts, 1), (Mixed, 1), (OrderedDict, 0), (dict, 0)])
def test_items(cls: Any, place: int, values: dict[str, Any], step: Callable[[str], Callable[..., Any]]) -> None:
    for before in ({}, {"y": 0, "z": 0}):
        into = cls()
        base = cls.__mro__[place]
        for key, value in before.items():
            (dict if base is dict else OrderedDict).__setitem__(into, key, value)
        step("refill")(into, place, values)
        assert list(dict.items(into)) == list(values.items())
        if base is OrderedDict:
            assert list(OrderedDict.items(into)) == list(values.items()) and list(reversed(into)) == list(reversed(values))


def test_errors(step: Callable[[str], Callable[..., Any]]) -> None:
    with pytest.raises(IndexError):
        step("refill")({}, 7, {})
    with pytest.raises(TypeError):
        step("refill")({}, 0, {1: 2}, 3)
    with pytest.raises(TypeError):
        step("refill")({}, "0", {})
    with pytest.raises(TypeError):
        step("set_attributes")(Plain(), "a")
    with pytest.raises(TypeError, match="unhashable"):
        step("set_own")(Plain(), [], 1)
    with pytest.raises(AttributeError, match="clear"):
        step("refill")(Plain(), 0, {})
