"""Steps of torch's optimisers: values and state as eager's, one artifact for any size, rate and step, served without the tracer."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, optim

import precast
from precast.artifact_store import Store
from precast.runtime.common.errors import GuardMiss

SHAPES = [(3,), (7, 5), (2, 3, 4, 4), (1,), (0,), (), (300, 40)]
CASES: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.3, "maximize": True}),
    (optim.SGD, {"momentum": 0.9, "fused": True}),
    (optim.Adam, {"betas": (0.0, 0.5)}),
    (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (optim.Adam, {"fused": True}),
    (optim.AdamW, {"foreach": True}),
    (optim.AdamW, {"foreach": False, "amsgrad": True, "maximize": True}),
    (optim.AdamW, {"fused": True}),
    (optim.NAdam, {}),
    (optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    (optim.RAdam, {"weight_decay": 0.1}),
    (optim.Adamax, {"weight_decay": 0.1}),
    (optim.RMSprop, {}),
    (optim.RMSprop, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    (optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    (optim.Adagrad, {"fused": True, "initial_accumulator_value": 0.1}),
    (optim.Adadelta, {"weight_decay": 0.1}),
    (optim.Rprop, {"maximize": True}),
    (optim.ASGD, {"weight_decay": 0.1, "t0": 3}),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: Any) -> Store:
    return Store.open(tmp_path_factory.mktemp("store"))


def parameters(dtype: torch.dtype = torch.float32, shapes: list[tuple[int, ...]] | None = None) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes or SHAPES]
    return [torch.nn.Parameter(t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t) for t in made]


def give_gradients(params: list[torch.nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator))


def artifacts(store: Store) -> int:
    return sum(1 for path in (Path(store.root) / "programs").glob("optimizer.*/*") if path.suffix == ".msgpack")


def furthest(found: list[Any], exact: list[Any]) -> float:
    with torch.no_grad():
        return max(float((a.double() - b.double()).abs().max()) for a, b in zip(found, exact, strict=True) if a.numel())


def assert_same_state(found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert found["param_groups"] == wanted["param_groups"]
    assert list(found["state"]) == list(wanted["state"])
    for key, state in wanted["state"].items():
        assert list(found["state"][key]) == list(state)
        for name, value in state.items():
            ours = found["state"][key][name]
            if not isinstance(value, Tensor):
                assert ours == value
                continue
            assert (ours.shape, ours.dtype, ours.stride(), ours.device) == (value.shape, value.dtype, value.stride(), value.device)
            assert torch.allclose(ours, value, rtol=tolerance, atol=tolerance), name


IN_HALF = [(kind, options, torch.bfloat16) for kind, options in (CASES[1], CASES[7])]
"""(torch's fused SGD for CPUs is far off in bfloat16.)"""


@pytest.mark.parametrize(
    ("kind", "options", "dtype"),
    [*((*case, torch.float32) for case in CASES), *IN_HALF],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(value) if isinstance(value, dict) else str(value)[6:],
)
def test_ten_steps(kind: type[optim.Optimizer], options: dict[str, Any], dtype: torch.dtype, store: Store) -> None:
    """Against eager in double precision, no further off than eager is; the state has eager's names, shapes, dtypes and values."""
    results = []
    for compiled, of in ((True, dtype), (False, dtype), (False, torch.float64)):
        params = parameters(of)
        optimizer = kind(params, lr=0.01, **options)  # type: ignore[call-arg]
        step = precast.compile(optimizer.step, store=store) if compiled else optimizer.step
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for seed in range(10):
                give_gradients(params, seed)
                step()
        results.append((params, optimizer.state_dict()))
    (ours, state), (eager, wanted), (exact, _) = results
    resolution = torch.finfo(dtype).eps
    assert furthest(ours, exact) <= furthest(eager, exact) + 4 * resolution
    assert_same_state(state, wanted, 0.1 if dtype is torch.bfloat16 else 1e-5)  # sums of ten roundings


def test_one_kernel(store: Store) -> None:
    """An update reads and writes each tensor once: no temporaries."""
    params = parameters()
    optimizer = optim.AdamW(params, amsgrad=True)
    give_gradients(params, 0)
    precast.compile(optimizer.step, store=store)()
    assert_one_kernel(store)


def assert_one_kernel(store: Store) -> None:
    for folder in (Path(store.root) / "programs").glob("optimizer.*"):
        for manifest in store.variants(folder.name):
            text = Path(store.blob_path(manifest.graphs["forward"].blobs["schedule"])).read_text()
            assert manifest.graphs["forward"].io["workspace_bytes"] == 0, text


def test_rates_and_groups_share_one_artifact(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    params = parameters(shapes=[(4, 4), (4,), (9,)])
    optimizer = optim.AdamW([{"params": params[:1], "weight_decay": 0.1}, {"params": params[1:], "lr": 0.3}], lr=torch.tensor(0.1))
    reference = copy.deepcopy(params)
    eager = optim.AdamW([{"params": reference[:1], "weight_decay": 0.1}, {"params": reference[1:], "lr": 0.3}], lr=torch.tensor(0.1))
    optimizer.step = precast.compile(optimizer.step, store=store)  # type: ignore[method-assign]
    schedulers = [optim.lr_scheduler.CosineAnnealingLR(o, 5) for o in (optimizer, eager)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(6):
            give_gradients(params, seed)
            give_gradients(reference, seed)
            optimizer.step()
            eager.step()
            for scheduler in schedulers:
                scheduler.step()
    assert furthest(params, reference) < 1e-6
    assert artifacts(store) == 1


def test_after_a_scheduler(store: Store) -> None:
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
    step = precast.compile(optimizer.step, store=store)
    give_gradients(params, 0)
    before = [p.detach().clone() for p in params]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
        scheduler.step()
    assert furthest(params, [b - 0.1 * p.grad for b, p in zip(before, params, strict=True) if p.grad is not None]) < 1e-6


def test_parameters_without_gradients_and_of_other_ages(store: Store) -> None:
    params, reference = parameters(), parameters()
    pair = [optim.AdamW(params), optim.AdamW(reference)]
    step = precast.compile(pair[0].step, store=store)
    for seed in range(4):
        for given in (params, reference):
            give_gradients(given, seed)
            given[seed % 3].grad = None
        step()
        pair[1].step()
    assert furthest(params, reference) < 1e-6
    assert_same_state(pair[0].state_dict(), pair[1].state_dict())
    pair[0].zero_grad()
    step()  # nothing has a gradient


def test_tensors_that_lie_otherwise(store: Store) -> None:
    """Slices, gradients in another order, mixed dtypes."""
    whole = torch.randn(10, 12)
    results = []
    for compiled in (True, False):
        params = [torch.nn.Parameter(whole.clone()[:, ::2]), torch.nn.Parameter(whole.clone()), torch.nn.Parameter(whole.clone().double())]
        params[0].grad = whole[:, 1::2].clone()
        params[1].grad = whole.t().contiguous().t()
        params[2].grad = whole.double()
        optimizer = optim.Adam(params, lr=0.1)
        step = precast.compile(optimizer.step, store=store) if compiled else optimizer.step
        step()
        step()
        results.append((params, optimizer.state_dict()))
    assert furthest(results[0][0], results[1][0]) < 1e-6
    assert_same_state(results[0][1], results[1][1])


def test_hooks_closure_and_version(store: Store) -> None:
    params = parameters(shapes=[(5,)])
    optimizer = optim.SGD(params, lr=0.1)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *a: seen.append("before"))
    optimizer.register_step_post_hook(lambda *a: seen.append("after"))
    step = precast.compile(optimizer.step, store=store)
    version = params[0]._version

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = (params[0] ** 2).sum()
        loss.backward()
        return loss

    before = params[0].detach().clone()
    with torch.no_grad():
        loss = step(closure)
    assert torch.allclose(loss, (before**2).sum())
    assert torch.allclose(params[0], before * 0.8)
    assert seen == ["before", "after"]
    assert params[0]._version > version
    stale = (params[0] * params[0]).sum()
    step()
    with pytest.raises(RuntimeError, match="inplace"):
        stale.backward()


def test_gradient_scaler(store: Store) -> None:
    outcomes = []
    for compiled in (True, False):
        params = parameters(shapes=[(5,), (3, 3)])
        optimizer = optim.AdamW(params, lr=0.1, fused=True)
        if compiled:
            optimizer.step = precast.compile(optimizer.step, store=store)  # type: ignore[method-assign]
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        for infinite in (False, True, False):
            optimizer.zero_grad()
            loss = sum((p**2).sum() for p in params)
            scaler.scale(loss * (float("inf") if infinite else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        outcomes.append((params, optimizer.state_dict(), scaler.get_scale()))
    assert furthest(outcomes[0][0], outcomes[1][0]) < 1e-6
    assert_same_state(outcomes[0][1], outcomes[1][1])
    assert outcomes[0][2] == outcomes[1][2]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (optim.AdamW, {"fused": True, "amsgrad": True}),
        (optim.Adam, {"lr": torch.tensor(0.02)}),
        (optim.Adamax, {}),
        (optim.RMSprop, {"centered": True}),
        (optim.Adagrad, {"lr_decay": 0.1}),
        (optim.Adadelta, {}),
        (optim.Rprop, {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(value),
)
def test_as_where_steps_are_counted_on_the_device(
    kind: type[optim.Optimizer], options: dict[str, Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """capturable=True and fused=True on GPUs: the kernel reads the step, the rate and a scaler's findings itself. Here on a CPU."""
    monkeypatch.setattr("precast.runtime.optimizers.group_update.lies_on_device", lambda *given: True)
    params, reference = parameters(), parameters()
    pair = [kind(params, **options), kind(reference, **copy.deepcopy(options))]
    step = precast.compile(pair[0].step, store=store)
    scaled = "fused" in options
    for seed in range(5):
        give_gradients(params, seed)
        give_gradients(reference, seed)
        if scaled:
            for optimizer in pair:
                vars(optimizer).update(grad_scale=torch.tensor(2.0), found_inf=torch.tensor(float(seed == 2)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step()
        pair[1].step()
    assert furthest(params, reference) < 2e-6
    assert_same_state(pair[0].state_dict(), pair[1].state_dict())
    if scaled:
        assert furthest([p.grad for p in params], [p.grad for p in reference]) < 1e-6
    assert_one_kernel(store)


def test_state_is_saved_and_loaded(store: Store) -> None:
    params, reference = parameters(), parameters()
    pair = [optim.NAdam(params), optim.NAdam(reference)]
    step = precast.compile(pair[0].step, store=store)
    for seed in range(4):
        give_gradients(params, seed)
        give_gradients(reference, seed)
        step()
        pair[1].step()
        if seed == 1:
            states = [copy.deepcopy(o.state_dict()) for o in pair]
            for optimizer, state in zip(pair, reversed(states), strict=True):
                optimizer.load_state_dict(state)
    assert furthest(params, reference) < 1e-6
    assert_same_state(pair[0].state_dict(), pair[1].state_dict())


@pytest.mark.parametrize("kind", ["sparse", "complex", "differentiable"])
def test_what_has_no_rule_runs_eagerly(kind: str, store: Store) -> None:
    dtype = torch.complex64 if kind == "complex" else torch.float32
    param: Tensor = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    if kind == "differentiable":
        param = param.clone()
        param.retain_grad()
    param.grad = torch.ones(4, dtype=dtype).to_sparse() if kind == "sparse" else torch.ones(4, dtype=dtype)
    optimizer = optim.SGD([param], lr=0.1, foreach=False, differentiable=kind == "differentiable")
    step = precast.compile(optimizer.step, store=store)
    with pytest.warns(UserWarning, match="runs eagerly"), torch.no_grad():
        step()
    assert torch.allclose(param.detach(), torch.full((4,), 0.9, dtype=dtype))


def test_an_optimizer_without_a_rule(store: Store) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = optim.LBFGS([param], max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (param**2).sum()
        loss.backward()
        return loss

    precast.compile(optimizer.step, store=store)(closure)
    assert param.detach().abs().max() < 1


def test_a_miss_is_forbidden(tmp_path: Path) -> None:
    params = parameters(shapes=[(4,)])
    optimizer = optim.SGD(params, lr=0.1)
    step = precast.load(optimizer.step, store=tmp_path)
    give_gradients(params, 0)
    with pytest.raises(GuardMiss, match="sgd"):
        step()


TRAINING = """
import sys
import torch
{blocked}
import precast

def trained(compile):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))

    def train_step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled, step = compile(train_step), compile(optimizer.step)
    for _ in range(3):
        loss = compiled(x, y)
    step()
    return [float(loss), float(sum(p.double().abs().sum() for p in net.parameters()))]

print(*trained(lambda f: precast.compile(f, store={store!r})), *trained(lambda f: f))
print(sorted(n for n in sys.modules if n.startswith(("precast.capture", "precast.lowering", "precast.codegen", "precast.compiling"))))
"""
BLOCK = """
class No:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in [["precast", room] for room in ("capture", "lowering", "codegen", "compiling")]:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, No())
"""


def run(folder: Path, store: Path, blocked: str = "") -> tuple[list[float], str]:
    program = folder / "training_program.py"
    program.write_text(TRAINING.format(blocked=blocked, store=str(store)))
    environment = {**os.environ, "PRECAST_STRICT": "1"}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    numbers, modules = done.stdout.strip().splitlines()[-2:]
    return [float(n) for n in numbers.split()], modules


def test_a_whole_step_and_a_fresh_process(tmp_path: Path) -> None:
    """zero_grad, forward, loss, backward, step in one function: compiled, and then served without tracer and compiler."""
    cold, _ = run(tmp_path, tmp_path / "store")
    count = artifacts(Store.open(tmp_path / "store"))
    warm, modules = run(tmp_path, tmp_path / "store", blocked=BLOCK)
    assert cold[:2] == pytest.approx(cold[2:], rel=1e-5)
    assert warm == pytest.approx(cold, rel=1e-5)
    assert modules == "[]"
    assert count == artifacts(Store.open(tmp_path / "store")) == 1


def test_a_step_says_why_it_misses(tmp_path: Path) -> None:
    """By its updates; no step is taken, and no state is made."""
    parameters = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(3)]
    optimizer = torch.optim.AdamW(parameters)
    step = precast.compile(optimizer.step, store=tmp_path)
    assert "No parameter has a gradient" in str(precast.explain_miss(step))
    for parameter in parameters:
        parameter.grad = torch.randn(4, 4)
    before = [p.detach().clone() for p in parameters]
    found = precast.explain_miss(step)
    assert found.cause == "no artifact" and not found.hits and "exp_avgs float32" in str(found) and "decoupled" in str(found)
    assert not optimizer.state and all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))
    step()
    after = {p: {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
    found = precast.explain_miss(step)
    assert found.hits and not found.cause and "fits" in str(found)
    assert all(torch.equal(v, optimizer.state[p][k]) for p, s in after.items() for k, v in s.items())

    narrow = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.bfloat16))
    narrow.grad = torch.ones_like(narrow)
    other = precast.explain_miss(precast.compile(torch.optim.AdamW([narrow]).step, store=tmp_path))
    assert other.cause == "no artifact" and "1 other update of that function" in str(other)
    differentiable = precast.compile(torch.optim.SGD([narrow], differentiable=True).step, store=tmp_path)
    assert precast.explain_miss(differentiable).cause == "eager by refusal"


def test_a_step_that_another_version_stored_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.nn.Parameter(torch.randn(8))
    parameter.grad = torch.ones(8)
    optimizer = torch.optim.SGD([parameter])
    precast.compile(optimizer.step, store=tmp_path)()
    monkeypatch.setattr("precast.runtime.programs.miss_cause.LOWERING_VERSION", "later")
    monkeypatch.setattr("precast.runtime.loading.compatibility.LOWERING_VERSION", "later")
    found = precast.explain_miss(precast.compile(torch.optim.SGD([parameter]).step, store=tmp_path))
    assert found.cause == "lowering version" and not found.hits and "lowering version" in str(found)
