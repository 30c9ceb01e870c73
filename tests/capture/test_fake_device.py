"""Capture for a GPU that is not here: the guards are those that tensors on a GPU would give, and the user's objects stay as they are."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from precast.artifact_store.format.guards import Guard, Predicate
from precast.capture import CapturedFrame, CaptureRefused, capture
from precast.capture.aten.keep_attention import whole_attention
from precast.capture.fake_device import StandIns, stand_ins, without_device
from tests.capture.programs import PROGRAMS
from tests.support.needs import needs
from tests.training.gradient_programs import PROGRAMS as GRADIENTS

MIXED = ("linear algebra", "global tensor", "literal tensor")
"""They use a tensor that they make on the CPU, or find in a global: with the others on a GPU eager refuses that, too."""


def captured(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> CapturedFrame:
    """The frame as it is traced for a GPU."""
    found = stand_ins(fn, [(args, kwargs)])
    assert found is not None
    model, ((args, kwargs),) = found
    with torch.no_grad(), without_device():
        return capture(model, args, kwargs, **options)


def on_cpu(guards: tuple[Guard, ...]) -> set[tuple[str, str, str]]:
    """The guards in words, without what the device changes."""

    def anywhere(g: Guard) -> Guard:
        if g.predicate is Predicate.TENSOR:
            return dataclasses.replace(g, constant=g.constant | {"device": "any"})
        if isinstance(g.constant, list | tuple) and g.constant[:1] in (["device"], ("device",)):
            return dataclasses.replace(g, constant=["device", "any"])
        return g

    plain = [anywhere(g) for g in guards]
    return {tuple(map(str, g.sort_key())) for g in plain if g.predicate is not Predicate.SAME_DEVICE}  # type: ignore[misc]


@pytest.mark.parametrize("name", PROGRAMS)
def test_guards_are_those_of_real_tensors(name: str) -> None:
    fn, args, kwargs = PROGRAMS[name]()
    if name in MIXED:
        with pytest.raises(CaptureRefused, match="found (at least two|two different) devices"):
            captured(fn, args, kwargs)
        return
    there = captured(fn, args, kwargs)
    with torch.no_grad():
        here = capture(fn, args, kwargs)
    assert not there.uncacheable and there.inputs == here.inputs
    assert on_cpu(there.guards) == on_cpu(here.guards)
    assert {g.constant["device"] for g in there.guards if g.predicate is Predicate.TENSOR} == {"cuda"}


class Net(torch.nn.Module):
    """Weights that are tied, a buffer, a constant from literals, tensors made on the input's device, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.last = torch.nn.Linear(16, 8)
        self.head = torch.nn.Linear(8, 16, bias=False)
        self.head.weight = self.first.weight
        self.register_buffer("steps", torch.arange(8.0))
        self.plain = torch.ones(8)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        q = self.norm(torch.nn.functional.gelu(self.first(x))).view(2, -1, 2, 8).transpose(1, 2)
        seen = torch.nn.functional.scaled_dot_product_attention(q, q, q, mask, scale=0.5)
        y = self.last(seen.transpose(1, 2).flatten(2)) + torch.arange(8, device=x.device) * self.steps + self.plain
        return self.head(y * torch.tensor([2.0], device=x.device)) + torch.zeros(16, dtype=x.dtype, device=x.device)


def call() -> tuple[tuple[torch.Tensor], dict[str, torch.Tensor]]:
    return (torch.randn(2, 4, 8),), {"mask": torch.ones(4, 4, dtype=torch.bool)}


@pytest.mark.parametrize("given", ["cpu", "meta", "fake", "fake cuda"])
def test_models_of_every_kind_give_the_same(given: str) -> None:
    args, kwargs = call()
    net = Net().eval()
    with torch.no_grad():
        here = capture(net, args, kwargs)
    if given != "cpu":
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        device = {"fake": "cpu", "fake cuda": "cuda:1", "meta": "meta"}[given]
        with mode if given != "meta" else contextlib.nullcontext(), torch.device(device), without_device():
            net = Net().eval()
            args, kwargs = (torch.empty(2, 4, 8),), {"mask": torch.empty(4, 4, dtype=torch.bool)}
    there = captured(net, args, kwargs)
    assert there.inputs == here.inputs and on_cpu(there.guards) == on_cpu(here.guards)
    assert there.graph is not None
    values = {n: n.meta["val"] for n in there.graph.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    assert {value.device.type for value in values.values()} == {"cuda"}


@pytest.mark.parametrize(
    ("dtype", "keys", "depth", "lies"),
    [
        (torch.bfloat16, 6, 8, (144, 48, 8, 1)),
        (torch.float32, 6, 8, (144, 8, 24, 1)),
        (torch.bfloat16, 1, 8, (144, 8, 24, 1)),
        (torch.float16, 6, 12, (216, 12, 36, 1)),
    ],
    ids=["cuDNN's", "float32", "one key", "odd depth"],
)
def test_attention_promises_the_layout_of_the_kernel_that_runs(dtype: torch.dtype, keys: int, depth: int, lies: tuple[int, ...]) -> None:
    """cuDNN's lays its result out as the queries lie, the others as [B, S, H, D]; of queries that lie so, all do."""
    q, k = torch.empty(2, 3, 6, depth, dtype=dtype), torch.empty(2, 3, keys, depth, dtype=dtype)
    attend = torch.nn.functional.scaled_dot_product_attention
    for given, wanted in ((q, lies), (q.transpose(1, 2).contiguous().transpose(1, 2), (18 * depth, depth, 3 * depth, 1))):
        frame = captured(lambda q, k: attend(q, k, k), (given, k), {})
        assert frame.graph is not None
        (node,) = frame.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default)
        assert node.meta["val"].stride() == wanted


def test_attention_stays_whole_as_the_fused_kernels_lay_it_out() -> None:
    args, kwargs = call()
    frame = captured(Net().eval(), args, kwargs)
    assert frame.graph is not None
    (node,) = frame.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default)
    assert node.kwargs == {"scale": 0.5} and node.meta["val"].stride() == (64, 8, 16, 1)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    frame = captured(lambda x: layer(x, x, x, need_weights=False)[0], (torch.randn(2, 5, 16),), {})
    assert frame.graph is not None
    assert len(frame.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default)) == 1


def test_dynamos_graph_is_left_as_it_was() -> None:
    gm = torch.fx.symbolic_trace(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    before = gm.code
    with whole_attention(gm):
        assert gm.code != before
    q = torch.randn(1, 2, 4, 8)
    assert gm.code == before and torch.equal(gm(q), torch.nn.functional.scaled_dot_product_attention(q, q, q))


def test_attention_on_the_cpu_stays_that_of_the_cpu() -> None:
    args, kwargs = call()
    with torch.no_grad():
        frame = capture(Net().eval(), args, kwargs)
    assert frame.graph is not None
    assert frame.graph.graph.find_nodes(op="call_function", target=torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)


def test_the_users_objects_stay_as_they_are() -> None:
    net, (args, kwargs) = Net().eval(), call()
    before = {name: (id(t), t._version, dict(t.__dict__)) for name, t in net.state_dict(keep_vars=True).items()}
    found = stand_ins(net, [(args, kwargs)])
    assert found is not None
    model, ((stood, _),) = found
    assert {name: (id(t), t._version, dict(t.__dict__)) for name, t in net.state_dict(keep_vars=True).items()} == before
    assert model.head.weight is model.first.weight and isinstance(model.first.weight, torch.nn.Parameter)
    assert stood[0].device == torch.device("cuda:0") and torch.Tensor.__deepcopy__ is type(args[0]).__deepcopy__
    assert copy.deepcopy(net).first.weight.device.type == "cpu"
    assert stand_ins(model, [(stood, {})]) == (model, ((stood, {}),))


def test_shared_memory_is_shared_by_the_stand_ins() -> None:
    x = torch.zeros(4, 4)
    a, b, c = StandIns().of(x, x[1:, ::2], torch.zeros(4, 4))
    assert a.untyped_storage()._cdata == b.untyped_storage()._cdata != c.untyped_storage()._cdata
    assert (b.storage_offset(), b.stride(), tuple(b.shape)) == (4, (4, 2), (3, 2))

    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(1) + y

    assert not captured(writes, (x, torch.zeros(4, 4)), {}).uncacheable
    with pytest.raises(CaptureRefused, match="share memory"):
        captured(writes, (x, x.t()), {})


def test_symbolic_sizes() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    program = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
    with torch.no_grad():
        here = capture(program, (x,))
    there = captured(program, (x,), {})
    assert there.symbolic and on_cpu(there.guards) == on_cpu(here.guards)


def cast(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return x @ weight


def test_autocast_for_the_gpu() -> None:
    frame = captured(cast, (torch.randn(2, 4), torch.randn(4, 4)), {})
    assert frame.graph is not None
    (product,) = frame.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    assert product.meta["val"].dtype is torch.bfloat16


def asks(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.cuda.is_available() else x - 1


def test_code_that_asks_for_a_gpu_hears_yes() -> None:
    frame = captured(asks, (torch.ones(2),), {})
    assert frame.graph is not None and frame.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    assert not torch.cuda.is_available() or torch.cuda.device_count()


@pytest.mark.parametrize("value", [torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex64).conj()])
def test_what_has_no_stand_in(value: torch.Tensor) -> None:
    with pytest.raises(CaptureRefused, match="has no stand-in"):
        StandIns().of(value)


TINY: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 32},
    "llama": TINY,
    "bert": TINY,
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers(name: str) -> None:
    transformers = needs("transformers")
    config = transformers.AutoConfig.for_model(name, use_cache=False, **MODELS[name])
    model = transformers.AutoModel.from_config(config).eval().to(torch.bfloat16)
    kwargs = {"input_ids": torch.arange(12).reshape(2, 6), "attention_mask": torch.ones(2, 6, dtype=torch.int64)}
    there = captured(model, (), kwargs)
    with torch.no_grad():
        here = capture(model, (), kwargs)
    assert not there.uncacheable and there.inputs == here.inputs
    assert on_cpu(there.guards) == on_cpu(here.guards)
    assert there.graph is not None
    assert there.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default)


def names_its_device(x: torch.Tensor) -> tuple[torch.Tensor, torch.device]:
    return x + 1, x.device


def adds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def test_gpu_inputs_are_on_one_device_and_on_which_where_the_bytecode_names_it() -> None:
    def found(fn: Any, *args: torch.Tensor) -> list[Any]:
        return [g.constant for g in captured(fn, args, {}).guards if g.predicate is Predicate.SAME_DEVICE]

    assert found(names_its_device, torch.ones(2)) == [{"paths": ((("local", "x"),),), "index": 0}]
    assert found(adds, torch.ones(2), torch.ones(2)) == [{"paths": ((("local", "x"),), (("local", "y"),)), "index": None}]
    assert found(torch.nn.ReLU(), torch.ones(2)) == []


class Cache:
    """As static caches are: it keeps the device that its memory was made on, and makes positions there."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.seen = torch.zeros(8, device=self.device)
        self.length = torch.zeros(1, dtype=torch.int64, device=self.device)


def test_a_device_that_an_object_keeps_stands_for_the_gpu() -> None:
    def step(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        place = torch.arange(x.shape[0], device=cache.device) + cache.length
        cache.seen.index_copy_(0, place, x)
        return cache.seen * 2

    cache = Cache()
    frame = captured(step, (torch.ones(2), cache), {})
    assert not frame.uncacheable and frame.graph is not None
    assert cache.device == torch.device("cpu") and copy.deepcopy(cache).device == torch.device("cpu")


ON_CPUS_ALONE = (
    "attention",
    "attention_with_a_mask",
    "SmallTransformer",
    "autocast_inside",
    "bfloat16",
    "linear_algebra",
    "graph_break_between",
)
"""The CPU's attention, autocast and statistics of norms; a tensor that is made on the CPU; a graph that ends in between."""
WITHOUT_A_SHAPE = ("Recurrent",)
"""torch would run the fused cell on the device to know what it gives."""
IN_CI = ("pointwise", "function_with_its_own_backward", "in_place_on_a_view_of_an_input", "distances")
RECORDING = [
    pytest.param(p, id=p.name, marks=[] if p.name in IN_CI else [pytest.mark.slow])
    for p in GRADIENTS
    if p.name not in (*ON_CPUS_ALONE, *WITHOUT_A_SHAPE)
]
FIRST_TRACE = ("(('module', 'torch'),)", "is", "str='torch'")
"""What Dynamo guards when it first traces torch.func in a process, and not later."""


def listing(graph: Any) -> list[tuple[str, ...]]:
    """The calls of a graph, with what they take and give, on whatever device."""
    numbers: dict[torch.fx.Node, str] = {}
    found: list[tuple[str, ...]] = []
    for node in graph.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        taken = str(torch.fx.node.map_arg((node.args, node.kwargs), lambda n: numbers[n]))
        taken = taken.replace("device(type='cuda', index=0)", "device(type='cpu')")
        value = node.meta.get("val")
        described = (str(value.shape), str(value.stride()), str(value.dtype)) if isinstance(value, torch.Tensor) else ()
        found.append((node.op, "" if node.op == "placeholder" else str(node.target), taken, *described))
    return found


@pytest.mark.parametrize("program", RECORDING)
def test_backward_graphs_are_those_of_real_tensors(program: Any) -> None:
    """The same operators in the same order as autograd's engine calls for tensors that are there."""
    fn, args = program.make(), program.inputs()
    with torch.enable_grad():
        here, there = capture(fn, args), captured_in_training(fn, *args)
    assert not there.uncacheable and there.inputs == here.inputs
    assert on_cpu(there.guards) - {FIRST_TRACE} == on_cpu(here.guards) - {FIRST_TRACE}
    assert there.autograd == here.autograd
    for ours, theirs in ((there.graph, here.graph), (there.backward, here.backward)):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert listing(ours) == listing(theirs)


def doubles(x: torch.Tensor) -> torch.Tensor:
    """Of one tensor two hooks, the first of which changes nothing; and one before the tensor is written."""
    y = x.sin()
    y.register_hook(lambda gradient: None)
    y.register_hook(lambda gradient: gradient * 3)
    z = y * 2
    z.register_hook(lambda gradient: gradient.cos())
    return z.mul_(y)


def test_hooks_on_what_is_no_leaf_are_in_the_graph() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with torch.enable_grad():
        here, there = capture(doubles, (x,)), captured_in_training(doubles, x)
    assert listing(there.backward) == listing(here.backward)
    assert sum(node.target is torch.ops.aten.cos.default for node in there.backward.graph.nodes) == 2  # type: ignore[union-attr]


def captured_in_training(fn: Any, *args: Any) -> CapturedFrame:
    found = stand_ins(fn, [(args, {})])
    assert found is not None
    model, ((stood, _),) = found
    with without_device():
        return capture(model, stood)


def test_a_gradient_that_is_taken_inside_of_the_program() -> None:
    def slope(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda v: (v.sin() * v).sum())(x)

    frame = captured(slope, (torch.randn(3),), {})
    with torch.no_grad():
        here = capture(slope, (torch.randn(3),))
    assert listing(frame.graph) == listing(here.graph)
