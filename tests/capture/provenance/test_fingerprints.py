"""What code that no tracer reads names: the account that the building process gives of it, and what another process finds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from precast.runtime.fingerprint.bytecode import find_code, find_functions
from precast.runtime.fingerprint.custom_operators import operator_account
from precast.runtime.fingerprint.fingerprint import Account, Line, code_line
from precast.runtime.fingerprint.functions import function_account
from precast.runtime.fingerprint.module_scope import Modules
from precast.runtime.fingerprint.validate import changed_code
from tests.support.processes import REFUSE, child

SOURCES = {
    "unread_constants": """
import collections, dataclasses, enum, functools, types
import numpy as np
import torch

TENSOR_METHOD = torch.Tensor.__neg__
UFUNC = np.negative

STATE = types.SimpleNamespace(by=2)
NUMPY = np.float64(2)

class Meters(float):
    pass

class Name(str):
    pass

class Level(enum.IntEnum):
    LOW = 2
    HIGH = 5

@dataclasses.dataclass(slots=True, frozen=True)
class Slots:
    by: int

class Old:
    __slots__ = ("by", "empty")

LENGTH = Meters(2)
NAME = Name("two")
LEVEL = Level.LOW
SLOTS = Slots(2)
OLD = Old()
OLD.by = 2
MIXED = (2, [1])
HELPERS = (lambda x: x + 2,)
NEST = (2,)
for _ in range(3000):
    NEST = (NEST,)
WIDE = (2,)
for _ in range(60):
    WIDE = (WIDE, WIDE)
ALIAS = 2

class Held:
    def __init__(self, by):
        self.by = by

ONE = Held(2)
OTHER = Held(20)

def plus(x, by):
    return x + by

PARTIALS = (functools.partial(plus, by=2),)

class Adder:
    by_class = 2

    class Inner:
        by_inner = 2

    def helper(self, x):
        return x + self.by_class + 2

    def add(self, x):
        return self.helper(x) + self.Inner.by_inner

    def __call__(self, x):
        return x + self.by_class

    fixed = functools.partialmethod(plus, 2)

ADDER = Adder()
METHOD = Adder().add
CLASSES = (Adder,)
""",
    "unread_package.__init__": "",
    "unread_package.consts": "K = 2",
    "unread_package.deep": "K = 2",
    "unread_package.late": "K = 2",
    "unread_package.inner": """
def relative(x):
    from . import consts
    return x + consts.K
""",
    "unread_a": "K = 2",
    "unread_b": "K = 2",
    "unread_settings": """
import sys
class Settings:
    K = 2
sys.modules[__name__] = Settings()
""",
    "unread_exits": "raise SystemExit(3)",
    "unread_heavy": "raise AssertionError('nobody takes this branch')",
    "unread": """
import time
import unread_constants as constants
import unread_package
from unread_constants import LENGTH, LEVEL, MIXED, NAME, NUMPY
from unread_package.inner import relative

START = time.time()

class Step:
    calls = 0
    seen = 0
    made = 0
    by = 2

    @staticmethod
    def forward(x):
        Step.calls += 1
        return x + Step.by

    @classmethod
    def add(cls, x):
        cls.seen += 1
        return x + cls.by

    def __call__(self, x):
        type(self).made += 1
        self.__class__.by
        return x + self.by

def class_counter(x): return Step.forward(x)
def cls_counter(x): return Step.add(x)
def type_counter(x): return Step()(x)

def made():
    count = 0
    def inner(x):
        nonlocal count
        count += 1
        return x + constants.ALIAS
    return inner

nonlocal_counter = made()
found = None

def global_cache(x):
    global found
    if found is None:
        found = constants.STATE
    return x + found.by

def global_import(x):
    global impl
    import unread_a as impl
    return x + impl.K

def import_counter(x):
    import unread_a
    unread_a.K += 1
    return x + constants.ALIAS

def from_package(x):
    from unread_package import consts
    return x + consts.K

def from_object(x):
    from unread_constants import STATE
    return x + STATE.by

def import_deep(x):
    import unread_package.deep
    return x + unread_package.deep.K

def import_as(x):
    import unread_package.deep as d
    return x + d.K

def late_part(x):
    __import__("unread_package.late")
    return x + unread_package.late.K

def two_imports(x):
    if x > 0:
        import unread_a as impl
    else:
        import unread_b as impl
    return x + impl.K

def two_froms(x):
    if x > 0:
        from unread_a import K as k
        from unread_package import consts as held
    else:
        from unread_b import K as k
        from unread_package import deep as held
    return x + k + (lambda: held.K)()

def alias(x):
    c = constants
    return x + c.ALIAS

def dead(x):
    if x == 99:
        import unread_exits, unread_heavy
        unread_heavy.go()
    return x + constants.ALIAS

def odd_module(x):
    import unread_settings
    return x + unread_settings.K

def numpy_scalar(x): return x + float(NUMPY)
def float_subclass(x): return x + LENGTH
def str_subclass(x): return x + len(NAME)
def int_enum(x): return x + LEVEL
def slots_dataclass(x): return x + constants.SLOTS.by
def slots(x): return x + constants.OLD.by
def mixed(x): return x + MIXED[0]
def held_helper(x): return constants.HELPERS[0](x)
def nest(x): return x + len(constants.NEST)
def wide(x): return x + len(constants.WIDE)
def per_process(x): return x + 0 * START

def conditional(x):
    held = constants.ONE if x else constants.OTHER
    return x + held.by

def conditional_attribute(x): return x + (constants.ONE or constants.OTHER).by
def walrus(x): return x + held.by if (held := constants.ONE) else x

def several(x):
    held = other = constants.ONE
    return x + other.by

def unpacked(x):
    held, other = constants.ONE, x
    return x + held.by

def held_partial(x): return constants.PARTIALS[0](x)
def of_object(x): return constants.ADDER.add(x)
def of_object_deep(x): return constants.ADDER.add(x)
def called_object(x): return constants.ADDER(x)
def bound_method(x): return constants.METHOD(x)
def held_class(x): return constants.CLASSES[0]().add(x)
def tensor_method(x): return x if isinstance(x, int) else constants.TENSOR_METHOD(x)
def ufunc(x): return constants.UFUNC(x)
def data_of_object(x): return x + constants.ADDER.by_class
""",
}
ARE_READ = {
    "from_package": ("unread_package.consts", "K = 2", "K = 3"),
    "from_object": ("unread_constants", "by=2", "by=3"),
    "import_deep": ("unread_package.deep", "K = 2", "K = 3"),
    "import_as": ("unread_package.deep", "K = 2", "K = 3"),
    "late_part": ("unread_package.late", "K = 2", "K = 3"),
    "relative": ("unread_package.consts", "K = 2", "K = 3"),
    "two_imports": ("unread_a", "K = 2", "K = 3"),
    "two_froms": ("unread_package.consts", "K = 2", "K = 3"),
    "global_import": ("unread_a", "K = 2", "K = 3"),
    "alias": ("unread_constants", "ALIAS = 2", "ALIAS = 3"),
    "odd_module": ("unread_settings", "K = 2", "K = 3"),
    "numpy_scalar": ("unread_constants", "np.float64(2)", "np.float64(3)"),
    "float_subclass": ("unread_constants", "Meters(2)", "Meters(3)"),
    "str_subclass": ("unread_constants", 'Name("two")', 'Name("three")'),
    "int_enum": ("unread_constants", "LOW = 2", "LOW = 3"),
    "slots_dataclass": ("unread_constants", "Slots(2)", "Slots(3)"),
    "slots": ("unread_constants", "OLD.by = 2", "OLD.by = 3"),
    "mixed": ("unread_constants", "(2, [1])", "(3, [1])"),
    "held_helper": ("unread_constants", "x + 2", "x + 3"),
    "nest": ("unread_constants", "NEST = (2,)", "NEST = (3,)"),
    "wide": ("unread_constants", "WIDE = (2,)", "WIDE = (3,)"),
    "class_counter": ("unread", "by = 2", "by = 3"),
    "cls_counter": ("unread", "by = 2", "by = 3"),
    "type_counter": ("unread", "by = 2", "by = 3"),
    "nonlocal_counter": ("unread_constants", "ALIAS = 2", "ALIAS = 3"),
    "import_counter": ("unread_constants", "ALIAS = 2", "ALIAS = 3"),
    "dead": ("unread_constants", "ALIAS = 2", "ALIAS = 3"),
    **{
        name: ("unread_constants", "Held(2)", "Held(3)")
        for name in ("conditional", "conditional_attribute", "walrus", "several", "unpacked")
    },
    "tensor_method": ("unread_constants", "torch.Tensor.__neg__", "torch.Tensor.__pos__"),
    "ufunc": ("unread_constants", "np.negative", "np.positive"),
    "held_partial": ("unread_constants", "by=2),)", "by=3),)"),
    "of_object": ("unread_constants", "self.by_class + 2", "self.by_class + 3"),
    "of_object_deep": ("unread_constants", "by_inner = 2", "by_inner = 3"),
    "called_object": ("unread_constants", "by_class = 2", "by_class = 3"),
    "bound_method": ("unread_constants", "by_class = 2", "by_class = 3"),
    "held_class": ("unread_constants", "by_class = 2", "by_class = 3"),
    "data_of_object": ("unread_constants", "by_class = 2", "by_class = 3"),
}
"""By function: an edit that another process must notice."""
Process = Callable[..., Any]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """`process(name, edit…)`: the function of this name, its modules imported anew, as in another process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def drop() -> None:
        for module in [module for module in sys.modules if module.startswith("unread")]:
            del sys.modules[module]

    def start(name: str, module: str = "", before: str = "", after: str = "") -> Any:
        drop()
        for key, source in SOURCES.items():
            path = tmp_path / (key.replace(".", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            assert key != module or before in source
            path.write_text(source.replace(before, after) if key == module else source)
        importlib.invalidate_caches()
        return getattr(importlib.import_module("unread"), name)

    yield start
    drop()


@pytest.mark.parametrize("name", [*ARE_READ, "global_cache"])
def test_another_process_gives_the_same_account_until_what_is_read_is_edited(name: str, process: Process) -> None:
    function = process(name)
    for _ in range(2):
        function(1)
    built = Account.read(function_account(function).text())
    function = process(name)
    importlib.import_module("unread_b")  # loaded for other reasons: it does not count
    found = function_account(function, Modules(built.modules))
    assert found.digest == built.digest, built.differing(found)
    assert "unread_heavy" not in sys.modules
    if name in ARE_READ:
        changed = function_account(process(name, *ARE_READ[name]), Modules(built.modules))
        assert changed.digest != built.digest and built.differing(changed)


def test_of_an_object_whose_data_is_read_the_methods_do_not_count(process: Process) -> None:
    built = function_account(process("data_of_object"))
    assert function_account(process("data_of_object", "unread_constants", "self.by_class + 2", "self.by_class + 3")).digest == built.digest


def test_what_stands_in_the_place_of_a_module_is_searched_by_name_only(process: Process) -> None:
    process("odd_module")(1)
    sys.modules["unread_settings"].held = process  # type: ignore[attr-defined]
    assert find_code("unread_settings", "odd_module") == [] and find_functions("unread_settings", "Settings") == []


def test_a_constant_of_the_process_is_named(process: Process) -> None:
    first, second = (function_account(process("per_process")) for _ in range(2))
    assert first.differs_in_values(second) == ["START (read by unread.per_process)"]
    edited = function_account(process("per_process", "unread", "0 * START", "1 * START"))
    assert first.differs_in_values(edited) == [] and "code of unread.per_process" in first.differing(edited)


def test_constants_of_the_process_in_a_long_account() -> None:
    """So that such a program does not fill the store either."""

    def account(code: str, constant: str) -> Account:
        return Account.of([code_line("f", code), *(Line(f"K{n}", "1") for n in range(300)), Line("START", constant)], ())

    built = Account.read(account("a", "1").text())
    assert len(built.text()) < 200 and built.differs_in_values(account("a", "1")) == []
    assert built.differs_in_values(account("a", "2")) == ["one of many constants"]
    assert built.differs_in_values(account("b", "2")) == [] and len(built.differing(account("b", "2"))) == 2


PROGRAMS = """
import torch, unread

AG = torch._dynamo.allow_in_graph
class_counter, import_deep, dead = map(AG, (unread.class_counter, unread.import_deep, unread.dead))

def p_class_counter(x): return class_counter(x.sum()) * 2
def p_import_deep(x): return import_deep(x.sum()) * 2
def p_dead(x): return dead(x.sum()) * 2
"""
SERVE = """
import sys, torch, precast, programs
for name in sorted(n for n in dir(programs) if n.startswith("p_")):
    with torch.no_grad():
        try:
            print(name, precast.{how}(getattr(programs, name), store="store")(torch.ones(3)).item())
        except precast.GuardMiss as miss:
            print(name, "miss", " ".join(str(miss).split()))
"""


def test_a_process_that_loads_hits_and_says_what_was_edited(tmp_path: Path) -> None:
    for name, source in SOURCES.items():
        path = tmp_path / (name.replace(".", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source.replace("x == 99", "isinstance(x, str)"))
    (tmp_path / "programs.py").write_text(PROGRAMS)
    hits = "p_class_counter 10.0\np_dead 10.0\np_import_deep 10.0\n"
    assert child(tmp_path, SERVE.format(how="compile")) == hits
    refuse = REFUSE + "refuse_tracer()\n"
    assert child(tmp_path, refuse + SERVE.format(how="load")) == hits
    (tmp_path / "unread_package" / "deep.py").write_text("K = 30")
    first, second, third = child(tmp_path, refuse + SERVE.format(how="load")).splitlines()
    assert first.endswith("10.0") and second.endswith("10.0")
    assert third.startswith("p_import_deep miss")
    assert "has changed since: unread_package.deep.K (read by unread.import_deep)" in third, third


WIDTH = 2


@torch.library.custom_op("precast_test_account::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x] * WIDTH)


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(WIDTH * x.shape[0])


def test_a_changed_operator_names_what_its_fake_implementation_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    account = operator_account("precast_test_account::twice.default")
    assert account is not None
    digests = {f"operator {__name__}:precast_test_account::twice.default#{account.digest[:6]}": account.text()}
    assert changed_code(digests, twice._init_fn.__code__) == ""
    monkeypatch.setattr(sys.modules[__name__], "WIDTH", 3)
    assert changed_code(digests, twice._init_fn.__code__).endswith(f"has changed: WIDTH (read by {__name__}._)")
