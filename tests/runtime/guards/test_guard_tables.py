"""What guard tables must notice: every change to what the guards read sends the call to the full check. The table says which is which."""

from __future__ import annotations

import gc
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.nn.modules import module as torch_module

from precast.artifact_store import Guard, Predicate, Store
from precast.runtime.frames.entry import LocalsOf, parameters
from precast.runtime.guards.evaluate import compile_checker
from precast.runtime.guards.table import known_getattribute
from precast.runtime.guards.table.heap_reads import _has_its_type_for_good
from precast.runtime.guards.table.plan import Plan
from precast.runtime.guards.table.recorder import record
from precast.runtime.native import loader

FACTOR = 2


class Nested:
    def __init__(self) -> None:
        self.level = 1


class Config:
    def __init__(self) -> None:
        self.n = 1
        self.nested = Nested()


class Base(torch.nn.Module):
    kind = "base"


class Model(Base):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(2, 2)
        self.cfg = Config()
        self.sizes = [1, 2, 3]
        self.mode = "fast"
        self.scale = 1.5
        self.register_buffer("count", torch.zeros(1))
        self.frozen = torch.nn.Parameter(torch.zeros(2)).requires_grad_(False)

    def forward(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        return helper(self.lin(x)) * FACTOR


class Child(Model):
    pass


def helper(x: torch.Tensor, amount: float = 1.0) -> torch.Tensor:
    return x + amount


def other(x: torch.Tensor, amount: float = 1.0) -> torch.Tensor:
    return x - amount


HERE = __name__
SELF = ("local", "self")
WEIGHT = (SELF, ("submodule", "lin"), ("param", "weight"))


def spec(tensor: torch.Tensor, offset: Any = None) -> dict[str, Any]:
    kind = type(tensor)
    return {
        "type": "torch.nn.parameter:Parameter" if kind is torch.nn.Parameter else "torch:Tensor",
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": "cpu",
        "layout": "strided",
        "requires_grad": tensor.requires_grad,
        "size": tuple(tensor.shape),
        "stride": tensor.stride(),
        "conj": False,
        "neg": False,
        "offset": offset,
    }


def guards_of(model: Model, x: torch.Tensor) -> list[Guard]:
    name = f"{HERE}:Model"
    rows: list[tuple[Any, Predicate, Any]] = [
        ((SELF,), Predicate.TYPE, name),
        ((("local", "x"),), Predicate.TENSOR, spec(x)),
        ((("local", "x"),), Predicate.UNMARKED, None),
        ((("local", "flag"),), Predicate.EQUALS, ("bool", False)),
        ((SELF, ("attr", "cfg"), ("attr", "n")), Predicate.EQUALS, ("int", 1)),
        ((SELF, ("attr", "cfg"), ("attr", "nested"), ("attr", "level")), Predicate.EQUALS, ("int", 1)),
        ((SELF, ("attr", "sizes")), Predicate.LENGTH, 3),
        ((SELF, ("attr", "sizes"), ("item", ("int", 1))), Predicate.EQUALS, ("int", 2)),
        ((SELF, ("attr", "mode")), Predicate.EQUALS, ("str", "fast")),
        ((SELF, ("attr", "scale")), Predicate.EQUALS, ("float", (1.5).hex())),
        ((SELF, ("attr", "kind")), Predicate.EQUALS, ("str", "base")),
        ((SELF, ("attr", "training")), Predicate.EQUALS, ("bool", True)),
        ((SELF,), Predicate.LACKS_OWN, {"__dict__": ("count", "forward", "lin"), "_buffers": ("lin",), "_parameters": ("count", "lin")}),
        ((SELF,), Predicate.HAS_ATTR, "forward"),
        ((SELF,), Predicate.LACKS_ATTR, "brand_new"),
        ((SELF, ("attr", "forward")), Predicate.CODE, code_digest(Model.forward)),
        ((SELF, ("attr", "_forward_hooks")), Predicate.EMPTY, None),
        ((SELF, ("submodule", "lin"), ("attr", "_forward_hooks")), Predicate.EMPTY, None),
        ((("global", torch_module.__name__, "_global_forward_hooks"),), Predicate.EMPTY, None),
        ((SELF, ("attr", "_modules")), Predicate.KEYS, {"keys": (("str", "lin"),), "ordered": True}),
        (WEIGHT, Predicate.TENSOR, spec(model.lin.weight)),
        ((SELF, ("buffer", "count")), Predicate.TENSOR, spec(model.count)),
        ((SELF, ("param", "frozen")), Predicate.TENSOR, spec(model.frozen)),
        ((("global", HERE, "FACTOR"),), Predicate.EQUALS, ("int", 2)),
        ((("global", HERE, "helper"),), Predicate.CODE, code_digest(helper)),
        ((("global", HERE, "helper"), ("default", 0)), Predicate.EQUALS, ("float", (1.0).hex())),
        ((("state",),), Predicate.GLOBAL_STATE, global_state()),
    ]
    return [Guard(path, predicate, constant) for path, predicate, constant in rows]


def code_digest(function: Any) -> str:
    from precast.runtime.fingerprint.bytecode import digest

    return digest(function.__code__)


def global_state() -> dict[str, Any]:
    from precast.runtime.paths import torch_state as module

    return module.global_state()


@dataclass
class Setup:
    """A model, its guards, and a table recorded from a call for which they hold."""

    model: Model
    x: torch.Tensor
    table: Any
    values: tuple[Any, ...]
    check: Callable[[], bool]

    def table_holds(self, **changes: Any) -> bool:
        values = [changes.get(name, value) for name, value in zip(("model", "x", "flag"), self.values, strict=True)]
        return bool(self.table.check(tuple(values)))


@pytest.fixture
def setup(native_store: Store) -> Setup:
    model, x = Model(), torch.zeros(3, 2)
    names = parameters(Model.forward.__code__)
    locals_of = LocalsOf(Model.forward)  # type: ignore[arg-type]
    guards = guards_of(model, x)
    local_values = locals_of((model, x), {})
    checker = compile_checker(guards)
    plan = Plan(guards, names, Model.forward)  # type: ignore[arg-type]
    table = record(loader.loaded(), plan, local_values, locals_of.cells)
    assert checker(local_values, {}), "the guards do not hold for their own call"
    assert not table.sizes()["python"], "some guard was not expressed natively, so the table below proves nothing about it"
    values = tuple(local_values[name] for name in names)
    made = Setup(model, x, table, values, lambda: checker(local_values, {}))
    assert made.table_holds()
    return made


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Sets an attribute, and gives what undoes it."""
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before) if had else delattr(owner, name)


def _hook(register: Callable[..., Any]) -> Callable[[], None]:
    handle = register(lambda *args: None)
    return lambda: handle.remove()


def _global(name: str, value: Any) -> Callable[[], None]:
    before = globals()[name]
    globals()[name] = value
    return lambda: globals().__setitem__(name, before)


def _replace_dict(model: Model) -> Callable[[], None]:
    model.__dict__ = {**model.__dict__, "mode": "slow"}
    return lambda: None


def _resized(model: Model) -> Callable[[], None]:
    model.count.resize_(2)
    return lambda: None


def _given_a_grad_fn(model: Model, name: str = "frozen") -> None:
    with torch.enable_grad():
        getattr(model, name).add_(torch.ones(1, requires_grad=True))


def _state(function: Callable[[Any], Any], value: Any, before: Any) -> Callable[[], None]:
    function(value)
    return lambda: function(before)


def nothing() -> None:
    """What undoes a change to an object that is thrown away."""


CHANGES: list[tuple[str, Callable[[Model], Any]]] = [
    ("attribute", lambda m: _set(m, "mode", "slow")),
    ("attribute, through the dict", lambda m: m.__dict__.__setitem__("mode", "slow")),
    ("attribute, equal to the old one in value but not in type", lambda m: setattr(m.cfg, "n", 1.0)),
    ("attribute, deleted", lambda m: delattr(m, "mode")),
    ("attribute, new, whose absence was read", lambda m: setattr(m, "brand_new", 1)),
    ("train()", lambda m: m.eval()),
    ("nested config", lambda m: setattr(m.cfg, "n", 2)),
    ("config of a config", lambda m: setattr(m.cfg.nested, "level", 2)),
    ("config replaced", lambda m: (setattr(m, "cfg", Config()), setattr(m.cfg, "n", 7))),
    ("list item", lambda m: m.sizes.__setitem__(1, 5)),
    ("list length", lambda m: m.sizes.append(4)),
    ("list replaced", lambda m: setattr(m, "sizes", [1, 9, 3])),
    ("forward hook on the model", lambda m: _hook(m.register_forward_hook)),
    ("forward hook on a submodule", lambda m: _hook(m.lin.register_forward_hook)),
    ("global forward hook", lambda m: _hook(torch_module.register_module_forward_hook)),
    ("entry over a submodule", lambda m: vars(m).__setitem__("lin", other)),
    ("entry over a buffer", lambda m: vars(m).__setitem__("count", 1)),
    ("parameter over a buffer", lambda m: m._parameters.__setitem__("count", None)),
    ("parameter over a submodule", lambda m: m._parameters.__setitem__("lin", None)),
    ("buffer over a submodule", lambda m: m._buffers.__setitem__("lin", None)),
    ("instance forward", lambda m: setattr(m, "forward", lambda x: x)),
    ("class forward", lambda m: _set(Model, "forward", other)),
    ("class attribute", lambda m: _set(Model, "kind", "other")),
    ("base class attribute", lambda m: _set(Base, "kind", "other")),
    ("__class__", lambda m: setattr(m, "__class__", Child)),
    ("__dict__ replaced", _replace_dict),
    ("submodule replaced, other shape", lambda m: setattr(m, "lin", torch.nn.Linear(2, 3))),
    ("submodule added", lambda m: m.add_module("extra", torch.nn.Identity())),
    ("parameter replaced, other shape", lambda m: setattr(m.lin, "weight", torch.nn.Parameter(torch.zeros(3, 2)))),
    ("parameter .data replaced, other shape", lambda m: setattr(m.lin.weight, "data", torch.zeros(3, 2))),
    ("parameter .data replaced, other dtype", lambda m: setattr(m.lin.weight, "data", torch.zeros(2, 2, dtype=torch.float64))),
    ("parameter .data replaced, other strides", lambda m: setattr(m.lin.weight, "data", torch.zeros(2, 2).t())),
    ("half()", lambda m: m.half()),
    ("double()", lambda m: m.double()),
    ("requires_grad_(False)", lambda m: m.lin.weight.requires_grad_(False)),
    ("buffer resized in place", _resized),
    ("frozen parameter thawed", lambda m: m.frozen.requires_grad_(True)),
    ("frozen parameter given a grad_fn", _given_a_grad_fn),
    ("buffer given a grad_fn", lambda m: _given_a_grad_fn(m, "count")),
    ("buffer made to require grad", lambda m: m.count.requires_grad_(True)),
    ("global", lambda m: _global("FACTOR", 3)),
    ("global function replaced", lambda m: _global("helper", other)),
    ("code of an inlined function swapped", lambda m: _set_code(helper, other)),
    ("code of a method swapped", lambda m: _set_code(Model.forward, _other_forward)),
    ("default of an inlined function", lambda m: _set_defaults(helper, (2.0,))),
    ("grad mode", lambda m: _state(torch.set_grad_enabled, True, False)),
    ("default dtype", lambda m: _state(torch.set_default_dtype, torch.float64, torch.float32)),
    ("default device", lambda m: _state(torch.set_default_device, "meta", None)),
    ("deterministic algorithms", lambda m: _state(torch.use_deterministic_algorithms, True, False)),
    ("matmul precision", lambda m: _state(torch.set_float32_matmul_precision, "medium", "highest")),
    ("autocast", lambda m: _autocast()),
]


def _other_forward(self: Any, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
    return x


def _set_code(function: Any, source: Any) -> Callable[[], None]:
    before = function.__code__
    function.__code__ = source.__code__
    return lambda: setattr(function, "__code__", before)


def _set_defaults(function: Any, defaults: tuple[Any, ...]) -> Callable[[], None]:
    before = function.__defaults__
    function.__defaults__ = defaults
    return lambda: setattr(function, "__defaults__", before)


def _autocast() -> Callable[[], None]:
    context = torch.autocast("cpu", dtype=torch.bfloat16)
    context.__enter__()
    return lambda: context.__exit__(None, None, None)


@pytest.mark.parametrize("name, change", CHANGES, ids=[name for name, _ in CHANGES])
def test_a_change_that_breaks_a_guard_is_noticed(setup: Setup, name: str, change: Callable[[Model], Any]) -> None:
    undo = change(setup.model)
    try:
        assert not setup.check(), f"the full check does not see this change either, so the row tests nothing: {name}"
        assert not setup.table_holds(), f"not noticed: {name}"
    finally:
        if isinstance(undo, FunctionType):
            undo()


KEPT: list[tuple[str, Callable[[Model], Any]]] = [
    ("weights written in place", lambda m: m.lin.weight.add_(1)),
    ("weights written through .data", lambda m: m.lin.weight.data.add_(1)),
    ("frozen weights written in place", lambda m: m.frozen.add_(1)),
    ("an unrelated attribute", lambda m: setattr(m, "unrelated", 1)),
    ("the same value set again", lambda m: setattr(m, "mode", m.mode)),
    ("an unrelated global", lambda m: _global("UNRELATED", 1)),
    ("an unrelated module imported", lambda m: __import__("colorsys")),
]
UNRELATED = 0


@pytest.mark.parametrize("name, change", KEPT, ids=[name for name, _ in KEPT])
def test_a_change_that_no_guard_reads_still_hits(setup: Setup, name: str, change: Callable[[Model], Any]) -> None:
    undo = change(setup.model)
    try:
        assert setup.table_holds(), name
    finally:
        if isinstance(undo, FunctionType):
            undo()


BAD_INPUTS: list[tuple[str, Callable[[], Any]]] = [
    ("other size", lambda: torch.zeros(4, 2)),
    ("other strides", lambda: torch.zeros(2, 3).t()),
    ("other dtype", lambda: torch.zeros(3, 2, dtype=torch.float64)),
    ("other rank", lambda: torch.zeros(3, 2, 1)),
    ("0-d", lambda: torch.zeros(())),
    ("other device", lambda: torch.zeros(3, 2, device="meta")),
    ("requires grad", lambda: torch.zeros(3, 2, requires_grad=True)),
    ("requires grad through a graph", lambda: _non_leaf()),
    ("subclass", lambda: torch.nn.Parameter(torch.zeros(3, 2), requires_grad=False)),
    ("sparse", lambda: torch.zeros(3, 2).to_sparse()),
    ("negative view", lambda: torch._neg_view(torch.zeros(3, 2))),
    ("marked dynamic", lambda: _marked()),
    ("no tensor", lambda: [[0.0, 0.0]] * 3),
    ("None", lambda: None),
]


def _non_leaf() -> torch.Tensor:
    with torch.enable_grad():
        return torch.zeros(3, 2, requires_grad=True) * 2


def _marked() -> torch.Tensor:
    tensor = torch.zeros(3, 2)
    tensor._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize("name, make", BAD_INPUTS, ids=[name for name, _ in BAD_INPUTS])
def test_inputs_that_do_not_fit(setup: Setup, name: str, make: Callable[[], Any]) -> None:
    assert not setup.table_holds(x=make()), name


def test_inputs_that_fit(setup: Setup) -> None:
    assert setup.table_holds(x=torch.ones(3, 2))
    assert setup.table_holds(x=torch.ones(6, 2)[3:]), "a storage offset is not guarded here"


@pytest.mark.parametrize("flag", [True, 0, 0.0, None, "False"])
def test_a_scalar_is_compared_by_type_and_value(setup: Setup, flag: Any) -> None:
    assert not setup.table_holds(flag=flag)


def test_another_module_with_equal_state_is_not_this_one(setup: Setup) -> None:
    assert not setup.table_holds(model=Model())


def test_a_replaced_object_at_a_reused_address_is_not_taken_for_the_old_one(setup: Setup) -> None:
    for number in range(200):  # freed and made again until an address comes back
        setup.model.cfg = Config()
        setup.model.cfg.n = 2
        gc.collect(0)
        assert not setup.table_holds(), number


def test_hot_writes_are_seen(setup: Setup) -> None:
    def write(target: Any, value: str) -> None:
        target.mode = value

    for _ in range(300):  # the interpreter specialises the store
        write(setup.model, "fast")
    assert setup.table_holds()
    write(setup.model, "slow")
    assert not setup.table_holds()


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_getters_of_transformers_configs_are_known_however_their_module_is_compiled(future: str) -> None:
    """Postponed annotations leave a flag in compiled code, and have come and gone in these modules."""
    for kind, source in known_getattribute._KNOWN.items():
        namespace: dict[str, Any] = {"Any": Any}
        exec(compile(future + source, "<test>", "exec", dont_inherit=True), namespace)
        assert known_getattribute.known_kind(namespace["Config"].__getattribute__) == kind
    other: dict[str, Any] = {}
    exec(compile(known_getattribute._ALIASING.replace("return super", "return object"), "<test>", "exec", dont_inherit=True), other)
    assert known_getattribute.known_kind(other["Config"].__getattribute__) is None


def test_the_installed_transformers_has_getters_that_are_known() -> None:
    """Otherwise every Hugging Face model pays for Python guards at each call: the source here has to follow the library's."""
    from transformers import PreTrainedConfig

    own = [base.__dict__["__getattribute__"] for base in PreTrainedConfig.__mro__[:-1] if "__getattribute__" in base.__dict__]
    assert own and all(known_getattribute.known_kind(getter) for getter in own)


class Shifter:
    def by(self, first: int = 1, second: int = 2) -> int:
        return first + second


SHIFT = Shifter().by


def test_what_cannot_be_watched_is_left_to_python_for_each_guard_on_it(native_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound method's defaults are its function's, which may be given others."""
    guards = [
        Guard((("global", HERE, "SHIFT"), ("default", at)), Predicate.EQUALS, ("int", value)) for at, value in enumerate(SHIFT.__defaults__)
    ]
    x = torch.zeros(1)
    table = record(loader.loaded(), Plan(guards, ("x",), helper), {"x": x}, dict)  # type: ignore[arg-type]
    assert table.check((x,))
    for changed in ((3, 2), (1, 3)):
        with monkeypatch.context() as patch:
            patch.setattr(Shifter.by, "__defaults__", changed)
            assert not table.check((x,)), changed


class _Subclasses:
    """Of built-in classes, made at run time."""

    class Dict(dict[str, int]):
        pass

    class OtherDict(dict[str, int]):
        pass


def _derived(kind: type) -> type:
    try:
        return type("Derived", (kind,), {})
    except TypeError:  # bool and functions have no subclasses
        return kind


@pytest.mark.parametrize(
    ("thing", "for_good"),
    [
        ({}, True),
        ([], True),
        ((), True),
        (OrderedDict(), True),
        (len, True),
        (other, True),
        (True, True),
        (Config, True),
        (types, False),
        (Config(), False),
        (_Subclasses.Dict(), False),
        (torch.zeros(1), False),
        (torch.nn.Linear(1, 1), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whose_class_may_be_assigned(thing: Any, for_good: bool) -> None:
    """A table reads the type only of what may be given another one; Python itself says what that is."""
    kind = type(thing)
    assigned = False
    for candidate in (_derived(kind), _Subclasses.OtherDict, Config, types.ModuleType):
        try:
            thing.__class__ = candidate
        except TypeError:
            continue
        assigned = True
        thing.__class__ = kind
    assert _has_its_type_for_good(thing) == for_good
    assert assigned is not for_good


def test_whose_class_may_be_assigned_is_not_asked_of_what_an_object_stands_for() -> None:
    config = Config()
    proxy = weakref.proxy(config)
    del config
    assert _has_its_type_for_good(proxy)
