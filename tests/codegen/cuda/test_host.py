"""The host program for CUDA, run for real on a GPU that is none (`cuda_stub.py`): results, and what it asked of the driver."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sympy.core.cache import clear_cache
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from precast.codegen.common.measure import Record
from precast.codegen.triton.build.images import architecture
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Extern, axis_symbol
from precast.lowering.ir.scalars import Op
from precast.lowering.lower import lower
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import schedule
from tests.codegen.cuda.cuda_stub import STREAM, CudaStub, compile_cuda
from tests.codegen.programs import alu, axis, buffer, load, map_kernel, program, view
from tests.lowering.passes.test_schedule_models import Bottleneck, PostNorm
from tests.ops.symbolic import trace_symbolic
from tests.ops.trace import trace

ARCH = "sm_90"


def on_stub(
    fn: Callable[..., Any], *inputs: Any, dynamic: bool = False, freeze: Sequence[str] = (), tuning: Mapping[str, Record] | None = None
) -> CudaStub:
    """`fn` of CPU tensors, compiled as if they were on a GPU; `freeze` names weights that last."""
    graph = trace_symbolic(fn, inputs) if dynamic else trace(fn, inputs)[0]
    scheduled = schedule(lower(graph, "test"), f"cuda:{ARCH}", LoweringOptions(freeze=bool(freeze)), freeze, check=True)
    compiled, writer = compile_cuda(scheduled, freeze, tuning)
    return CudaStub(compiled, writer, len(scheduled.outputs))


def agree(found: Sequence[torch.Tensor], want: Any) -> None:
    wanted = list(want) if isinstance(want, tuple | list) else [want]
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def perceptron(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return F.layer_norm(F.gelu(x @ a + b) @ c + d + x, (x.shape[-1],))


def attention(x: Any, w: Any) -> Any:
    q, k, v = ((x @ w)[:, :, i * 16 : i * 16 + 16].reshape(2, -1, 2, 8).transpose(1, 2) for i in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sorted_parts(x: Any) -> Any:
    values, places = torch.sort(x, dim=-1, stable=True)
    return values * 2, places, torch.topk(x, 3)[0] + 1


def counted(x: Any) -> Any:
    return x * 2, x + torch.tensor([1.0, 2.0, 3.0, 4.0])


r = torch.randn
CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "perceptron": (perceptron, lambda: [r(12, 16), r(16, 40), r(40), r(40, 16), r(16)]),
    "batched products": (lambda x, y, z: torch.baddbmm(z, x, y).relu() @ y.mT, lambda: [r(3, 4, 5), r(3, 5, 6), r(3, 4, 6)]),
    "embedding": (lambda i, w: F.softmax(F.embedding(i, w), -1), lambda: [torch.randint(0, 30, (4, 7)), r(30, 32)]),
    "convolution": (lambda x, w, b: F.relu(F.conv2d(x, w, b, stride=2, padding=1)) + 1, lambda: [r(2, 3, 9, 9), r(4, 3, 3, 3), r(4)]),
    "transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1).sigmoid(),
        lambda: [r(2, 3, 5, 5), r(3, 4, 3, 3)],
    ),
    "attention": (attention, lambda: [r(2, 10, 16), r(16, 48)]),
    "extern calls": (sorted_parts, lambda: [r(5, 11)]),
    "literals": (counted, lambda: [r(3, 4)]),
    "views of results": (lambda x: (x + 1, (x + 1).t(), x[1:]), lambda: [r(6, 4)]),
    "several parts": (lambda x: (x.sum(), x.amax(0), x.argmin(1)), lambda: [r(40, 30)]),
    "nothing to do": (lambda x: x * 2, lambda: [r(0, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    fn, make = CASES[name]
    stub = on_stub(fn, *make())
    for _ in range(2):
        inputs = make()
        agree(stub(*inputs), fn(*inputs))
    assert all(k.stream == STREAM and k.hidden == [0, 0] for k in stub.launched)
    assert not stub.guards, "the guard was left in place"
    assert len(stub.memory) == ("cuMemAlloc_v2" in stub.calls), "memory of the call was not given back"


def test_each_kernel_is_loaded_once_and_equal_ones_share_it() -> None:
    """Two layers of the same shape run one image; the next call loads nothing."""
    stub = on_stub(lambda x, a, b: F.gelu(F.gelu(x @ a) @ b), *(inputs := [r(4, 64), r(64, 64), r(64, 64)]))
    stub(*inputs)
    assert len(stub.graph.images) == 1 and [k.image for k in stub.launched] == [0, 0]
    stub(*inputs)
    assert stub.calls.count("cuModuleLoadDataEx") == stub.calls.count("cuModuleGetFunction") == 1
    assert architecture(stub.graph.images[0].data) == ARCH
    (taken,) = stub.graph.evidence["kernels"].values()
    assert taken["warps"] in (1, 2, 4, 8, 16) and 8 <= taken["registers"] <= 255


def test_each_device_loads_for_itself() -> None:
    stub = on_stub(counted, *(inputs := [r(3, 4)]))
    for device in (0, 3, 0, 3):
        stub.device = device
        agree(stub(*inputs), counted(*inputs))
    assert stub.calls.count("cuModuleLoadDataEx") == 2 * len(stub.graph.images)
    assert stub.calls.count("cuMemAlloc_v2") == 2, "literals are uploaded once a device"
    stub.device = 64
    with pytest.raises(RuntimeError, match="not below 64"):
        stub(*inputs)


def test_operands_of_library_calls_are_made_once() -> None:
    """As long as they lie where they lay; modes of autograd come and go, and a call inside of another has its own."""

    def fn(x: Any, a: Any, b: Any) -> Any:
        return torch.exp(x @ a.t()).t() @ b

    stub = on_stub(fn, *(inputs := [r(4, 8), r(16, 8), r(4, 5)]))
    block = torch.zeros(1 << 16, dtype=torch.uint8)
    stub._allocate = lambda nbytes: (block.data_ptr() + 511) // 512 * 512  # type: ignore[method-assign]
    stub.memory = Forgetful()
    made: list[int] = []
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            agree(stub(*inputs), fn(*inputs))
        made.append(stub.calls.count("aoti_torch_create_tensor_from_blob"))
    assert made[0] > 0 and made == made[:1] * 4
    moved = [x.clone() for x in inputs]
    agree(stub(*moved), fn(*moved))
    assert stub.calls.count("aoti_torch_create_tensor_from_blob") > made[0]


def test_a_process_that_has_compiled_much() -> None:
    """sympy forgets old symbols: kernels that meet expressions remembered from others still know their axes from sizes."""

    def fn(x: Any, w: Any) -> Any:
        return torch.softmax(x @ w, -1) * 2

    on_stub(fn, *(inputs := [r(3, 4), r(4, 4)]))
    clear_cache()
    rows, columns = axis_symbol("i1"), axis_symbol("i0")
    made = [c * s for s in (rows, columns) for c in (2, 3, 4)] + [4 * rows + columns]  # remembered from now on, with these symbols in them
    made += [ix.affine(0, ((4, rows), (1, columns))), ix.affine(0, ((1, columns), (4, rows)))]
    agree(on_stub(fn, *inputs)(*inputs), fn(*inputs))
    assert len(made) == 9 and (rows, columns) == ix.symbols(2) and rows is ix.symbols(2)[0], "one symbol for one name"


class Forgetful(dict[int, torch.Tensor]):
    """Memory that is never given back."""

    def pop(self, *key: Any) -> Any:
        return None


def test_a_thread_without_a_context_takes_the_devices_own() -> None:
    stub = on_stub(counted, *(inputs := [r(3, 4)]))
    stub.context = None
    stub(*inputs)
    assert stub.context == 2 and stub.calls.count("cuDevicePrimaryCtxRetain") == 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("cuLaunchKernel", r"the stub fails \(CUDA_ERROR_STUB\) \[launching (pointwise|reduction)_"),
        ("cuModuleLoadDataEx", r"the stub fails .* \[loading (pointwise|reduction)_"),
        ("cuModuleGetFunction", r"\[preparing (pointwise|reduction)_"),
        ("cuCtxGetCurrent", r"\[entering the device\]"),
        ("cuMemAlloc_v2", r"\[uploading literals\]"),
        ("aoti_torch_cuda_caching_allocator_raw_alloc", r"\[in workspace\]"),
        ("aoti_torch_create_cuda_guard", r"device of the call"),
    ],
)
def test_failures_name_the_step_and_leave_nothing_behind(function: str, says: str) -> None:
    def fn(x: Any, w: Any) -> Any:
        return F.softmax(x @ w, -1) @ w + torch.tensor([1.0, 2.0, 3.0, 4.0])

    stub = on_stub(fn, *(inputs := [r(3, 4), r(4, 4)]))
    stub.fail[function] = 999
    with pytest.raises(RuntimeError, match=says):
        stub(*inputs)
    assert not stub.guards
    stub.fail.clear()
    agree(stub(*inputs), fn(*inputs))
    assert len(stub.memory) == 1, "only the literals stay"


def test_memory_that_runs_out_is_told_from_a_device_that_failed() -> None:
    """Where torch keeps no text of what went wrong, the driver is asked whether an earlier kernel did."""
    stub = on_stub(lambda x, w: F.softmax(x @ w, -1) @ w, *(inputs := [r(3, 4), r(4, 4)]))
    stub.fail["aoti_torch_cuda_caching_allocator_raw_alloc"] = 1
    with pytest.raises(RuntimeError, match=r"CUDA out of memory. Tried to allocate \d+ bytes. \[in workspace\]"):
        stub(*inputs)
    stub.fail["cuCtxSynchronize"] = 710
    with pytest.raises(RuntimeError, match=r"CUDA error: the stub fails \(CUDA_ERROR_STUB\) \[in workspace\]"):
        stub(*inputs)


def shifted(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The same values, not 16-byte aligned."""
    room = torch.empty(tensor.numel() + 16)
    start = -(room.data_ptr() // 4) % 4 + elements
    return room[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_input_without_memory_is_refused_before_a_kernel_reads_it(dynamic: bool) -> None:
    stub = on_stub(lambda x, y: x * 2 + y, r(6, 4), r(4), dynamic=dynamic)
    gone = r(5 if dynamic else 6, 4)
    gone.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="E:0"):
        stub(gone, r(4))
    if dynamic:
        assert stub(r(0, 4), r(4))[0].shape == (0, 4)


def test_misaligned_inputs_are_copied() -> None:
    stub = on_stub(perceptron, *(inputs := CASES["perceptron"][1]()))
    stub(*inputs)
    assert "cuMemcpyDtoDAsync_v2" not in stub.calls
    agree(stub(*[shifted(x, 1) for x in inputs]), perceptron(*inputs))
    read = stub.writer.kernel_inputs
    assert 0 < len(read) < len(inputs), "libraries take any address"
    assert stub.calls.count("cuMemcpyDtoDAsync_v2") == len(read)
    expanded = shifted(r(16), 3).expand(12, 16)
    stub = on_stub(lambda x: x.exp(), expanded)
    agree(stub(expanded), expanded.exp())


def test_misaligned_inputs_that_are_written_get_their_new_values() -> None:
    def fn(x: Any, y: Any) -> Any:
        x.add_(1)
        return x * 2, torch.sort(x, dim=-1, stable=True)[0] + y

    stub = on_stub(fn, r(4, 6), r(4, 6))
    for place in (0, 1, 3):
        x, y = shifted(r(4, 6), place), shifted(r(4, 6), place)
        mine = shifted(x, place)
        want = fn(x, y)
        agree(stub(mine, y), want)
        torch.testing.assert_close(mine, x)


def test_sizes_are_arguments_of_the_launch() -> None:
    stub = on_stub(perceptron, *CASES["perceptron"][1](), dynamic=True)
    for rows, width, inner in ((12, 16, 40), (3, 16, 40), (50, 8, 100), (1, 16, 40)):
        inputs = [r(rows, width), r(width, inner), r(inner), r(inner, width), r(width)]
        agree(stub(*inputs), perceptron(*inputs))
    grids = {k.grid for k in stub.launched}
    assert len(grids) > 2, f"grids follow the sizes: {grids}"
    numbers = [v for k in stub.launched for v in k.values if isinstance(v, int) and v < 10_000]
    assert 12 in numbers or 12 * 16 in numbers


def test_far_reaching_sizes_launch_the_wide_kernel() -> None:
    """Indices beyond 2^31 are computed in 64 bits: which kernel runs is decided at each call."""
    stub = on_stub(lambda x: x.sum(), r(4, 6), dynamic=True)
    launches = [launch for step in stub.writer.steps for launch in stub.writer.launches[step.name]]
    wide = {launch.wide.image for launch in launches if launch.wide is not None}
    assert wide
    stub(r(4, 6))
    assert not wide & {k.image for k in stub.launched}
    stub.launched.clear()
    stub.execute = lambda step: None  # type: ignore[method-assign]
    stub(torch.zeros(1).expand(1 << 16, 1 << 16))
    assert wide <= {k.image for k in stub.launched}


def test_numbers_that_depend_on_data_are_fetched() -> None:
    """`item` waits for the stream and reads; sizes that follow from it shape what comes after."""

    def fn(n: Any) -> Any:
        return torch.arange(n.item(), dtype=torch.float32) * 2

    stub = on_stub(fn, torch.tensor(7), dynamic=True)
    for n in (7, 3, 40):
        agree(stub(torch.tensor(n)), fn(torch.tensor(n)))
    assert stub.calls.count("cuMemcpyDtoHAsync_v2") == stub.calls.count("cuStreamSynchronize") == 3


def test_a_kernel_waits_for_the_number_that_it_takes() -> None:
    """Small kernels of inputs alone come first, but not before a number of theirs is read."""
    x = r(100)
    scheduled = schedule(lower(trace_symbolic(lambda x: x * x.sum().item(), (x,), [[]]), "test"), f"cuda:{ARCH}", check=True)
    stub = CudaStub(*compile_cuda(scheduled))
    agree(stub(x), x * x.sum())


def test_prepared_weights_are_computed_once() -> None:
    def fn(x: Any, w: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
        return F.relu(F.batch_norm(F.conv2d(x, w), mean, variance, gamma, beta))

    inputs = [r(2, 3, 6, 6), r(4, 3, 3, 3), r(4), r(4), r(4), r(4).abs() + 1]
    stub = on_stub(fn, *inputs, freeze=[f"in{n}" for n in range(1, 6)])
    assert stub.writer.second is not None and stub.writer.second.steps
    for _ in range(3):
        agree(stub(*inputs), fn(*inputs))
    ahead = {launch.image for step in stub.writer.second.steps for launch in stub.writer.launches[step.name]}
    assert [k.image in ahead for k in stub.launched].count(True) == len(ahead)
    assert len(stub.memory) == 1, "the prepared weights"
    stub.forget()
    assert not stub.memory and not stub.guards


def test_host_tensors_are_brought_to_the_kernels() -> None:
    """A number by value at each call, a tensor by a copy; an extern call takes the host's own."""
    i = axis("i", 6)
    x, out, other = buffer("x", (6,)), buffer("out", (6,)), buffer("other", (6,))
    scale, table = replace(buffer("s", ()), on_cpu=True), replace(buffer("t", (6,)), on_cpu=True)
    steps: list[object] = [
        map_kernel("k0", out, [i], alu(Op.ADD, alu(Op.MUL, load(x, [i]), load(scale, [])), load(table, [i]))),
        Extern("aten::neg", (view(table),), (), (other.name,)),
    ]
    made = program([x, scale, table], [out, replace(other, on_cpu=True)], steps)
    compiled, writer = compile_cuda(made)
    stub = CudaStub(compiled, writer, 2)
    for _ in range(2):
        data = [r(6), r(()), r(6)]
        agree(stub(*data), [data[0] * data[1] + data[2], -data[2]])
    assert stub.calls.count("cuMemsetD32Async") == 2
    assert not stub.memory


def test_a_graph_that_also_works_on_the_cpu() -> None:
    """Copies between the memories are library calls, numbers of the host are read by kernels, what comes out empty is on the GPU too."""
    aten, graph, mode = torch.ops.aten, torch.fx.Graph(), FakeTensorMode()

    def node(made: torch.fx.Node, device: str, *size: int) -> torch.fx.Node:
        made.meta["val"] = FakeTensor(mode, torch.empty(size, device="meta"), torch.device(device))
        return made

    def call(where: str, size: tuple[int, ...], op: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return node(graph.call_function(op, args, kwargs), where, *size)

    x, s, t = (node(graph.placeholder(n), d, *z) for n, d, z in (("x", "cuda:0", (4, 6)), ("s", "cpu", ()), ("t", "cpu", (6,))))
    moved = call("cuda:0", (6,), aten._to_copy.default, t, device=torch.device("cuda:0"))
    y = call("cuda:0", (4, 6), aten.add.Tensor, call("cuda:0", (4, 6), aten.mul.Tensor, x, s), moved)
    back = call("cpu", (4, 6), aten._to_copy.default, y, device=torch.device("cpu"))
    nothing = call("cuda:0", (0, 6), aten.exp.default, call("cuda:0", (0, 6), aten.slice.Tensor, x, 0, 0, 0))
    graph.output((y, back, nothing))
    lowered = lower(torch.fx.GraphModule({}, graph), "mixed")
    assert [b.name for b in lowered.buffers if b.on_cpu] == ["in1", "in2", lowered.outputs[1].view.buffer]  # type: ignore[union-attr]
    compiled, writer = compile_cuda(schedule(lowered, f"cuda:{ARCH}", check=True))
    ops = {step.op: dict(step.kwargs) for step in writer.steps if isinstance(step, Extern)}
    assert set(ops) == {"aten::_to_copy", "aten::empty_strided"} and ops["aten::empty_strided"]["device"] == ("device", "cuda")
    stub = CudaStub(compiled, writer, 3)
    data = [r(4, 6), r(()), r(6)]
    want = data[0] * data[1] + data[2]
    agree(stub(*data), [want, want, data[0][:0]])
    assert stub.calls.count("cuMemsetD32Async") == 1


def test_the_same_bytes_from_another_folder(tmp_path: Path) -> None:
    """Library and images depend on the program alone."""
    script = """
import hashlib, torch, torch.nn.functional as F
from tests.codegen.cuda.test_host import CASES, on_stub
fn, make = CASES["perceptron"]
torch.manual_seed(0)
graph = on_stub(fn, *make()).graph
print(hashlib.sha256(graph.library + b"".join(i.data for i in graph.images)).hexdigest(), graph.host_source.count("kernel"))
"""
    digests = set()
    for name in ("a", "much/longer/folder"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        environment = os.environ | {"PYTHONPATH": os.getcwd(), "TMPDIR": str(folder), "TRITON_CACHE_DIR": str(folder / "cache")}
        done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


def test_the_library_needs_neither_cuda_nor_openmp(tmp_path: Path) -> None:
    """It opens where no driver is; what it calls comes through the table."""
    graph = on_stub(counted, r(3, 4)).graph
    path = tmp_path / "graph.so"
    path.write_bytes(graph.library)
    needed = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    assert [line for line in needed.splitlines() if "NEEDED" in line and "libc.so" not in line] == []
    assert ctypes.CDLL(str(path)).precast_images


def test_outputs_go_into_memory_that_the_caller_lends() -> None:
    """Where the host program allocates them: not what an operator brings, and not the second view of a buffer."""

    def fn(x: Any, w: Any) -> Any:
        a = x + 1
        return torch.sort(x, dim=-1, stable=True)[0], a, a.t(), x.sum(0), (x @ w)[None, :, 1:]

    inputs = torch.randn(6, 4), torch.randn(4, 5)
    stub, want = on_stub(fn, *inputs), fn(*inputs)
    lent = (ctypes.c_int32 * 4).in_dll(stub.dll, "precast_lent")
    assert sorted(lent) == [-1, 1, 3, 4]
    part = torch.zeros(30).as_strided((1, 6, 4), (30, 5, 1), 1)  # of a product's whole storage
    homes = {1: torch.zeros(6, 4), 3: torch.zeros(4), 4: part}
    agree(stub(*inputs, homes=homes), want)
    for i, home in homes.items():
        torch.testing.assert_close(home, want[i])
    agree(stub(*inputs), want)


class Encoder(torch.nn.Module):
    """A BERT of two layers: embeddings with their norm, and a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(50, 32), torch.nn.Embedding(12, 32)
        self.norm, self.pooler = torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)
        self.layers = torch.nn.Sequential(PostNorm(), PostNorm())

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.layers(self.norm(self.words(ids) + self.places.weight))
        return found, torch.tanh(self.pooler(found[:, 0]))


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], torch.Tensor]]] = {
    "encoder": (Encoder, lambda: torch.randint(0, 50, (2, 12))),
    "residual network": (Bottleneck, lambda: r(2, 3, 32, 32)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_one_allocation_a_call_and_calls_no_python(name: str) -> None:
    """All that lives between its steps lies in one workspace; outputs are tensors of their own."""
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model, x = make().eval(), draw()
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def call(x: Any, *flat: Any) -> Any:
        return torch.func.functional_call(model, dict(zip(values, flat, strict=True)), (x,))

    inputs = [x, *(value.detach() for value in values.values())]
    with torch.no_grad():
        stub = on_stub(call, *inputs)
        assert stub.graph.python_calls == ()
        for calls in (1, 2):
            agree(stub(*inputs), model(x))
            assert stub.calls.count("aoti_torch_cuda_caching_allocator_raw_alloc") == calls
    assert len(stub.launched) > 4 and not stub.memory


def test_whether_it_may_draw_random_numbers_is_known() -> None:
    for fn, draws in ((lambda x: x.exp(), 0), (lambda x: F.dropout(x, 0.5, True) + 1, 1), (lambda x: torch.sort(x)[0], 0)):
        assert ctypes.c_int64.in_dll(on_stub(fn, torch.randn(6, 4)).dll, "precast_draws").value == draws
