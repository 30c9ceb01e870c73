"""Modules that stand in for packages which are not installed, where only their names are needed: timm imports torchvision and PIL so."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch


class _Named(type):
    """Of stand-in classes: public attributes are such classes too, as good as an enumeration's members that nobody looks at."""

    def __getattr__(cls, name: str) -> _Named:
        value = _Named(_public(cls, name), (torch.nn.Module,), {"__module__": cls.__module__})
        setattr(cls, name, value)
        return value


class _StandIn(ModuleType):
    """Has any submodule; a capitalised attribute is a class (a kind of `torch.nn.Module`, and nothing is one of it), else a submodule."""

    __path__: Sequence[str] = ()
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if _public(self, name)[0].isupper():
            value: Any = _Named(name, (torch.nn.Module,), {"__module__": self.__name__})
        else:
            value = importlib.import_module(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


def _public(owner: object, name: str) -> str:
    if name.startswith("_"):
        raise AttributeError(f"{owner!r} stands in for what is not installed and has no {name!r}")
    return name


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Iterable[str]) -> None:
        self.packages = frozenset(packages)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in_for(*packages: str) -> tuple[str, ...]:
    """Let those of `packages` that are not installed be imported from now on. Returns them."""
    missing = tuple(name for name in packages if importlib.util.find_spec(name) is None)
    if missing:
        sys.meta_path.append(_Finder(missing))
    return missing
