"""The module that `precast.compile` returns: an instance of the same class that shares the state."""

from __future__ import annotations

from typing import Any

import torch

import precast


class Made(torch.nn.Linear):
    def __new__(cls, *args: Any, **kwargs: Any) -> Made:
        assert args, "it is made of something"
        return super().__new__(cls)


class Table(dict[str, int], torch.nn.Module):
    """Memory of its own, which `object.__new__` does not make."""

    __hash__ = object.__hash__

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)


def test_a_class_whose_new_wants_arguments() -> None:
    layer = Made(2, 2)
    compiled = precast.compile(layer)
    assert isinstance(compiled, Made) and compiled.weight is layer.weight


def test_a_class_that_is_a_dict_as_well() -> None:
    assert isinstance(precast.compile(Table()), Table)
