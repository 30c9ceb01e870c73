"""What a tensor subclass dispatches to is edited between two processes: nothing compiled from the old code may answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import child

SOURCE = """
import contextlib, functools, torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only
aten = torch.ops.aten
{before}
class Scaled(torch.Tensor):
    {held}
    @staticmethod
    def __new__(cls, a):
        made = torch.Tensor._make_wrapper_subclass(cls, a.size(), strides=a.stride(), dtype=a.dtype, device=a.device)
        made.a = a
        return made
    def __repr__(self):
        return "Scaled"  # torch 2.11 prints such tensors while it traces
    def __tensor_flatten__(self):
        return ["a"], None
    @classmethod
    def __tensor_unflatten__(cls, inner, metadata, size, stride):
        return cls(inner["a"])
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.mul.Tensor:
            return cls(args[0].a * args[1] * ({factor}))
        out = func(*tree_map_only(Scaled, lambda x: x.a, args), **(kwargs or {{}}))
        return return_and_correct_aliasing(func, args, kwargs or {{}}, tree_map_only(torch.Tensor, cls, out))
{after}
def fn(x):
    return x * 2
def make():
    return Scaled(torch.arange(6.).view(2, 3))
"""
DECORATOR = "T = {}\ndef handles(op):\n    def put(f): T[op] = f\n    return put"
SWAPPED = "@handles(aten.{}.Tensor)\ndef _(y): return 3\n@handles(aten.{}.Tensor)\ndef _(y): return 5"
METACLASS = "class Meta(type(torch.Tensor)):\n    K = 3"
OTHER = {
    "config": "T = {'k': 3}\nclass Settings: pass\nS = Settings()\nS.k = 3\n",
    "library": "T = {}\ndef one(y): return 3\ndef two(y): return 5\nT['f'] = one\n",
}
"""Modules beside that of the class."""


def edit(
    factor: str,
    old: str,
    new: str,
    before: str = "",
    held: str = "pass",
    after: str = "",
    swap: tuple[str, str] = ("", ""),
    module: str = "",
) -> tuple[dict[str, str], dict[str, str]]:
    """The modules' sources before and after; `module`: which one is edited (that of the class); `swap`: beside the edit, in both."""
    source = SOURCE.format(factor=factor, before=before, held=held, after=after).replace(*swap)
    modules = {"": source, **OTHER}
    assert modules[module].count(old) == 1
    return modules, {**modules, module: modules[module].replace(old, new)}


EDITS = {
    "a constant in a list of the class": edit("cls.K[0]", "K = [3]", "K = [5]", held="K = [3]"),
    "a global dict": edit("K['a']", "'a': 3", "'a': 5", before="K = {'a': 3}"),
    "an attribute of a global object": edit("C.k", "C.k = 3", "C.k = 5", before="class Settings: pass\nC = Settings()\nC.k = 3"),
    "the metaclass": edit("cls.K", "K = 3", "K = 5", before=METACLASS, swap=("(torch.Tensor):", "(torch.Tensor, metaclass=Meta):")),
    "what stands in the class's table": edit(
        "cls.T[func](1)", "= h1", "= h2", held="T = {}", after="def h1(y): return 3\ndef h2(y): return 5\nScaled.T[aten.mul.Tensor] = h1"
    ),
    "an argument of a partial": edit(
        "cls.T[0](1)", "z=3)", "z=5)", held="T = []", after="def h(y, z): return z\nScaled.T.append(functools.partial(h, z=3))"
    ),
    "an object in the table": edit(
        "cls.T[0](1)",
        "H(3)",
        "H(5)",
        held="T = []",
        after="class H:\n    def __init__(self, k): self.k = k\n    def __call__(self, y): return self.k\nScaled.T.append(H(3))",
    ),
    "what a class method reads": edit(
        "cls.T[0](1)",
        "K = 3",
        "K = 5",
        held="T = []",
        after="class H:\n    K = 3\n    @classmethod\n    def h(cls, y): return cls.K\nScaled.T.append(H.h)",
    ),
    "which handler a global table has": edit(
        "T[func](1)", SWAPPED.format("mul", "add"), SWAPPED.format("add", "mul"), before=DECORATOR, after=SWAPPED.format("mul", "add")
    ),
    "a handler that torch's decorator calls": edit(
        "T['f'](1)", "return 3", "return 5", before="T = {}", after="@torch.no_grad()\ndef h(y): return 3\nT['f'] = h"
    ),
    "a callback of a library": edit(
        "tree_map_only(int, T['f'], 1)", "return 3", "return 5", before="T = {}", after="def h(y): return 3\nT['f'] = h"
    ),
    "an overload": edit(
        "g(1)", "return 3", "return 5", before="@functools.singledispatch\ndef g(y): return 0\n@g.register\ndef _(y: int): return 3"
    ),
    "what was called before and is remembered": edit(
        "T['f'](1)", "return 3", "return 5", before="T = {}", after="@functools.lru_cache\ndef h(y): return 3\nT['f'] = h"
    ),
    "another module's dict": edit("T['k']", "'k': 3", "'k': 5", before="from config import T", module="config"),
    "a module that is imported late": edit(
        "late()", "'k': 3", "'k': 5", before="def late():\n    import config\n    return config.T['k']", module="config"
    ),
    "another module's object": edit("config.S.k", "S.k = 3", "S.k = 5", before="import config", module="config"),
    "another module's table": edit("library.T['f'](1)", "= one", "= two", before="import library", module="library"),
    "another module's function": edit("library.T['f'](1)", "return 3", "return 5", before="import library", module="library"),
}

RUN = """
import importlib, sys, torch, precast
from precast.artifact_store import Store
store = Store.open(sys.argv[1])
torch.set_grad_enabled(False)
for name in sys.argv[2:]:
    sys.path.insert(0, name)
    module = importlib.import_module("edited" + name.rpartition("/")[2])
    for _ in range(2):
        wanted = module.fn(module.make()).a
    before = ""
    try:
        answer = precast.load(module.fn, store=store, require="hit")(module.make())
        before = "hit" if torch.equal(answer.a, wanted) else "stale"
    except precast.GuardMiss:
        before = "miss"
    got = precast.compile(module.fn, store=store)(module.make())
    assert torch.equal(got.a, wanted), name
    print(before)
    sys.path.remove(name)
    for known in ("config", "library"):
        sys.modules.pop(known, None)
    precast.reset()
"""


def put(folder: Path, number: int, version: int) -> str:
    """Writes the modules of one edit into a folder of their own, which it names."""
    place = folder / f"{version}" / f"{number}"
    place.mkdir(parents=True)
    for name, source in [*EDITS.values()][number][version].items():
        (place / f"{name or f'edited{number}'}.py").write_text(source)
    return str(place)


@pytest.mark.usefixtures("native_store")
def test_edits_are_noticed(tmp_path: Path) -> None:
    found = {}
    for version, ran in enumerate(("before", "again", "after")):
        places = [put(tmp_path, n, min(version, 1)) if version != 1 else str(tmp_path / "0" / f"{n}") for n in range(len(EDITS))]
        found[ran] = child(tmp_path, RUN, str(tmp_path / "store"), *places).split()
    assert set(found["before"]) == {"miss"}
    assert {name for name, said in zip(EDITS, found["again"], strict=True) if said != "hit"} == set()
    assert {name for name, said in zip(EDITS, found["after"], strict=True) if said != "miss"} == set()
