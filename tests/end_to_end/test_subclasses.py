"""Tensor subclasses that wrap plain tensors: taken apart before the graph and put together after it, guarded, stored."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import precast
from precast import torch_backend
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from tests.end_to_end import subclass_programs as programs
from tests.end_to_end.subclass_programs import PROGRAMS, Net, Pair, Quantized, pair
from tests.support.processes import REFUSE, child

WHOLE = {"fullgraph": True}
pytestmark = pytest.mark.usefixtures("fresh_tracer", "native_store")


def variants(compiled: Any) -> int:
    return sum(len(program.variants) for program in site_of(compiled).programs)


def same(got: Any, wanted: Any) -> None:
    """Of one class, with the same metadata, and the same inner tensors in values, sizes, strides and dtypes."""
    assert type(got) is type(wanted)
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        same([*got.values()], [*wanted.values()])
    elif isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            same(one, other)
    elif is_traceable_wrapper_subclass(wanted):
        assert (got.shape, got.stride(), got.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
        names, metadata = wanted.__tensor_flatten__()
        assert repr(got.__tensor_flatten__()) == repr((names, metadata))
        for name in names:
            same(getattr(got, name), getattr(wanted, name))
    elif isinstance(wanted, torch.Tensor):
        assert (got.stride(), got.requires_grad) == (wanted.stride(), wanted.requires_grad)
        torch.testing.assert_close(got, wanted)
    else:
        assert got == wanted


def positions_of(found: Any, among: Any) -> list[list[bool]]:
    """Which results are which objects."""
    results = found if isinstance(found, (tuple, list)) else [found]
    return [[result is other for other in (*among, *results)] for result in results]


def memory(value: Any) -> set[int]:
    """Where the values lie."""
    if isinstance(value, dict):
        return set().union(*map(memory, value.values()))
    if is_traceable_wrapper_subclass(value):
        return set().union(*(memory(getattr(value, name)) for name in value.__tensor_flatten__()[0]))
    return {value.untyped_storage().data_ptr()} if isinstance(value, torch.Tensor) else set()


def shared(found: Any, among: Any) -> list[list[bool]]:
    """Which results show the memory of what."""
    results = found if isinstance(found, (tuple, list)) else [found]
    return [[bool(memory(result) & memory(other)) for other in (*among, *results)] for result in results]


def check(compiled: Any, fn: Any, args: tuple[Any, ...]) -> None:
    theirs = copy.deepcopy(args)
    wanted = fn(*theirs)
    got = compiled(*args)
    same(got, wanted)
    same(args, theirs)
    assert positions_of(got, args) == positions_of(wanted, theirs)
    assert shared(got, args) == shared(wanted, theirs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager_in_one_graph_and_again_from_the_store(name: str, store: Store, recwarn: pytest.WarningsRecorder) -> None:
    fn, make = PROGRAMS[name]
    compiled = precast.compile(fn, store=store, fullgraph=True)
    for _ in range(4):  # the native checks have taken over
        check(compiled, fn, make())
    assert variants(compiled) == 1
    loaded = precast.load(fn, store=store, options=WHOLE)
    for _ in range(3):
        check(loaded, fn, make())
    assert not recwarn.list, [str(w.message) for w in recwarn]


@pytest.mark.parametrize("name", ["pointwise", "reduced", "mixed", "module"])
def test_sizes_that_vary(name: str, store: Store) -> None:
    fn, _ = PROGRAMS[name]
    given = {
        "pointwise": lambda n: (pair(n, 6),),
        "reduced": lambda n: (pair(n, 6),),
        "mixed": lambda n: (pair(n, 6), torch.randn(n, 6)),
        "module": lambda n: (torch.randn(n, 8),),
    }[name]
    compiled = precast.compile(fn, store=store, fullgraph=True, dynamic=True)
    for n in (4, 7, 31, 2):
        check(compiled, fn, given(n))
    assert variants(compiled) == 1
    check(precast.load(fn, store=store, options={**WHOLE, "dynamic": "yes"}), fn, given(9))


def test_a_size_that_changes_becomes_symbolic_by_itself(store: Store) -> None:
    """The inner tensors' too, of nested ones as well; and a fresh program learns it from the store."""
    compiled = precast.compile(programs.pointwise, store=store)
    for n in (4, 7, 31, 9):
        check(compiled, programs.pointwise, (pair(n, 6),))
    assert variants(compiled) == 2
    for n in (4, 7, 31, 9):
        check(compiled, programs.pointwise, (Pair(pair(n, 6), pair(n, 6)),))
    assert variants(compiled) == 4
    loaded = precast.load(programs.pointwise, store=store)
    check(loaded, programs.pointwise, (pair(17, 6),))


def test_a_size_in_metadata_holds_for_that_size(store: Store, recwarn: pytest.WarningsRecorder) -> None:
    compiled = precast.compile(programs.sized, store=store)
    for n in (4, 7, 31, 4):
        check(compiled, programs.sized, (pair(n, 6),))
    assert variants(compiled) == 3
    assert not recwarn.list, [str(w.message) for w in recwarn]


def test_an_instance_is_made_by_code_that_is_not_compiled(store: Store, recwarn: pytest.WarningsRecorder) -> None:
    """A frame that is resumed inside of it would see one without attributes."""
    check(precast.compile(programs.resized, store=store), programs.resized, (pair(4, 6),))
    assert not [w for w in recwarn if "bug" in str(w.message)], [str(w.message) for w in recwarn]


def test_metadata_inner_tensors_and_class_are_guarded(store: Store) -> None:
    compiled = precast.compile(programs.pointwise, store=store, fullgraph=True)
    kinds = [
        lambda: pair(4, 6),
        lambda: pair(4, 6, unit="kg"),
        lambda: Pair(torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)),
        lambda: Pair(torch.randn(4, 6), torch.randn(6, 4).t()),
        lambda: Pair(pair(4, 6), pair(4, 6)),
        lambda: torch.randn(4, 6),
    ]
    for known, make in enumerate(kinds):
        for _ in range(3):
            check(compiled, programs.pointwise, (make(),))
        assert variants(compiled) == known + 1
    for make in kinds:
        check(compiled, programs.pointwise, (make(),))
    assert variants(compiled) == len(kinds)


def overlapping() -> Pair:
    base = torch.randn(5, 4)
    return Pair(base[:4], base[1:])


def one() -> Pair:
    base = torch.randn(4, 4)
    return Pair(base, base)


@pytest.mark.parametrize("special", [overlapping, one])
def test_what_shares_memory_and_is_written_runs_eagerly(special: Any, store: Store) -> None:
    for first, second in ((lambda: pair(4, 4), special), (special, lambda: pair(4, 4))):
        precast.reset()
        compiled = precast.compile(programs.written_aside, store=store)
        with pytest.warns(UserWarning, match="share memory and the traced code writes one of them"):
            for make in (first, second, first, second, first, second):
                x = make()
                y = copy.deepcopy(x)
                same(compiled(x), programs.written_aside(y))
                same(x, y)


def test_inputs_that_share_inner_tensors(store: Store, recwarn: pytest.WarningsRecorder) -> None:
    compiled = precast.compile(programs.beside, store=store, fullgraph=True)
    for _ in range(3):
        x = pair(4, 4)
        for y in (pair(4, 4), x, Pair(x.a, x.b), Pair(x.b, x.a)):
            same(compiled(x, y), programs.beside(x, y))
    assert variants(compiled) == 4, "one for each way in which objects, the inner tensors too, are one"
    assert not recwarn.list, [str(w.message) for w in recwarn]
    compiled = precast.compile(programs.both, store=store)
    for _ in range(3):
        for swapped in (False, True):
            x = pair(4, 4)
            z = copy.deepcopy(x)
            y, wanted = (Pair(x.b, x.a), Pair(z.b, z.a)) if swapped else (torch.ones(4, 4), torch.ones(4, 4))
            same(compiled(x, y), programs.both(z, wanted))
            same((x, y), (z, wanted))


def test_an_attribute_that_is_set_runs_eagerly(store: Store) -> None:
    compiled = precast.compile(programs.attribute, store=store)
    with pytest.warns(UserWarning, match="sets the attribute b of a tensor subclass"):
        for _ in range(3):
            x = pair(4, 4)
            y = copy.deepcopy(x)
            same((compiled(x), x), (programs.attribute(y), y))


def test_graph_breaks(store: Store) -> None:
    compiled = precast.compile(programs.broken, store=store)
    for _ in range(5):
        x = pair(4, 6)
        same(compiled(x), programs.broken(x))
    loaded = precast.load(programs.broken, store=store)
    for _ in range(4):
        same(loaded(x), programs.broken(x))


def test_the_native_table_takes_over(store: Store) -> None:
    compiled = precast.compile(programs.beside, store=store, fullgraph=True)
    for _ in range(4):
        compiled(pair(4, 4), pair(4, 4))
    (program,) = site_of(compiled).programs
    found = sum(variant.hits for variant in program.variants)
    for _ in range(5):
        x, y = pair(4, 4), pair(4, 4)
        same(compiled(x, y), programs.beside(x, y))
    assert sum(variant.hits for variant in program.variants) == found, "found by Python"
    for x, y in ((pair(4, 4), pair(4, 4, unit="s")), (pair(4, 5), pair(4, 5))):
        same(compiled(x, y), programs.beside(x, y))
    x, y = pair(4, 4), pair(4, 4)
    x.note = "an attribute more"  # type: ignore[attr-defined]
    same(compiled(x, y), programs.beside(x, y))


def test_inner_tensors_of_a_parameter_may_be_replaced(store: Store) -> None:
    net = Net()
    compiled = precast.compile(net, store=store, fullgraph=True)
    x = torch.randn(3, 8)
    for _ in range(4):
        check(compiled, net, (x,))
    weight: Any = net.first.weight
    weight.values = torch.randint(-99, 99, (16, 8), dtype=torch.int8)
    for _ in range(3):
        check(compiled, net, (x,))
    weight.scale.mul_(2)
    check(compiled, net, (x,))
    net.first.weight = torch.nn.Parameter(programs.quantized(torch.randn(16, 8)), requires_grad=False)
    check(compiled, net, (x,))
    assert variants(compiled) == 1
    weight = net.first.weight
    weight.how = programs.PerRow(1)
    check(compiled, net, (x,))
    assert variants(compiled) == 2, "the metadata says otherwise"
    weight.scale = weight.scale.double()
    with pytest.raises(RuntimeError):
        net(x)


def test_frozen_weights_follow_the_inner_tensors(store: Store) -> None:
    net = Net()
    compiled = precast.compile(net, store=store, fullgraph=True, options={"freeze": True})
    x = torch.randn(3, 8)
    for _ in range(3):
        check(compiled, net, (x,))
    weight: Any = net.second.weight
    weight.scale.mul_(3)
    check(compiled, net, (x,))
    assert variants(compiled) == 1


def test_torchs_own_door(store: Store) -> None:
    net = Net()
    backend = functools.partial(torch_backend.precast, store=store)
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    alike = torch.compile(programs.pointwise, backend=backend, fullgraph=True)
    for _ in range(2):
        check(compiled, net, (torch.randn(3, 8),))
        check(alike, programs.pointwise, (pair(4, 6),))


def test_gradients_are_recorded_eagerly(store: Store) -> None:
    x = pair(4, 6).requires_grad_()
    compiled = precast.compile(programs.pointwise, store=store)
    with torch.enable_grad(), pytest.warns(UserWarning, match="gradient|backward"):
        compiled(x).sum().backward()
    wanted = copy.deepcopy(x.detach()).requires_grad_()
    with torch.enable_grad():
        programs.pointwise(wanted).sum().backward()
    same(x.grad, wanted.grad)


WARM = f"""
{REFUSE}
refuse_tracer()
import sys, torch, precast
from precast.artifact_store import Store
from tests.end_to_end import subclass_programs as programs
store, WHOLE = Store.open(sys.argv[1]), {{"fullgraph": True}}
with torch.no_grad():
    torch.manual_seed(0)
    net = programs.Net()
    compiled = precast.load(net, store=store, options=WHOLE)
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), net(x))
    alike = precast.load(programs.pointwise, store=store, options=WHOLE)
    y = programs.pair(4, 6)
    got = alike(y)
    torch.testing.assert_close(got.b, programs.pointwise(y).b)
    print(type(got).__name__, got.unit)
"""


def test_in_a_fresh_process_without_the_tracer_and_not_after_an_edit(store: Store, tmp_path: Path) -> None:
    net = Net()
    precast.compile(net, store=store, fullgraph=True)(torch.randn(3, 8))
    precast.compile(programs.pointwise, store=store, fullgraph=True)(pair(4, 6))
    source = Path(programs.__file__).read_text()
    module = tmp_path / "tests" / "end_to_end" / "subclass_programs.py"
    module.parent.mkdir(parents=True)
    (tmp_path / "tests" / "__init__.py").touch()
    module.write_text(f"# stands elsewhere\n\n{source}")
    assert child(tmp_path, WARM, str(store.root)).split() == ["Pair", "m"]
    for old, new in {
        "* weight.scale.view(-1)": "* (weight.scale.view(-1) * 1)",  # a function of the table
        'for side in ("a", "b")': 'for side in ("a", "b", "a")[:2]',  # the dispatch
        "aten.clone.default, aten.alias.default": "aten.clone.default",  # what the table serves
    }.items():
        assert source.count(old) == 1
        module.write_text(source.replace(old, new))
        assert "GuardMiss" in child(tmp_path, WARM, str(store.root), expect=1), old


def test_a_handler_that_is_replaced_is_noticed(store: Store) -> None:
    def other(func: Any, args: Any, kwargs: Any) -> Any:
        return args[0] @ args[1].values.to(args[0].dtype).t()

    net = Net()
    precast.compile(net, store=store, fullgraph=True)(torch.randn(3, 8))
    linear = torch.ops.aten.linear.default
    kept = Quantized.TABLE[linear]
    Quantized.TABLE[linear] = other
    try:
        precast.reset()
        with pytest.raises(precast.GuardMiss):
            precast.load(net, store=store, options=WHOLE)(torch.randn(3, 8))
    finally:
        Quantized.TABLE[linear] = kept
    precast.reset()
    check(precast.load(net, store=store, options=WHOLE), net, (torch.randn(3, 8),))


@pytest.mark.parametrize("options", [{}, {"freeze": True}, {"dynamic": "yes"}])
def test_a_compiled_module_may_be_moved(options: dict[str, Any], store: Store) -> None:
    """torch swaps such parameters, and refuses to where anything holds on to them: the tracer's leftovers did."""
    net, moved = Net(), Net()
    moved.load_state_dict(net.state_dict(), assign=True)
    compiled = precast.compile(moved, store=store, options=options)
    x = torch.randn(3, 8)
    same(compiled(x), net(x))
    moved.to("cpu")
    same(compiled(x), net(x))


def test_jagged_tensors_run_eagerly_with_the_reason(store: Store) -> None:
    def fn(x: Any) -> Any:
        return x.sin() * 2

    x = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    compiled = precast.compile(fn, store=store)
    with pytest.warns(UserWarning, match="runs eagerly"):
        got = compiled(x)
    torch.testing.assert_close(got.values(), fn(x).values())
