"""Targets: their names, the ladders, which devices are visible, what a graph is compiled for by its tensors."""

from __future__ import annotations

import multiprocessing
import re
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from precast.artifact_store import Guard, Predicate
from precast.artifact_store.format.records import TensorConstant
from precast.compiling.target_choice import target_of
from precast.runtime.common.errors import OptionError, Refused
from precast.runtime.executable.constants import Constants, gpu_of
from precast.runtime.guards.evaluate import compile_checker, evaluate
from precast.runtime.targets import cpu, cuda, nvidia_devices
from precast.runtime.targets import ladder as targets

A100, ADA, H200, B200, NEWER = (8, 0), (8, 9), (9, 0), (10, 0), (13, 0)
LIKE = [nvidia_devices.Device("GPU", f"GPU-{n}", H200) for n in range(3)]
MIXED = [nvidia_devices.Device("big", "GPU-a1", H200), nvidia_devices.Device("small", "GPU-a2", ADA)]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    def have(*capabilities: tuple[int, int]) -> None:
        monkeypatch.setattr(nvidia_devices, "capabilities", lambda: capabilities)

    have()
    return have


@pytest.mark.parametrize(
    ("capability", "ladder"),
    [
        (A100, ["cuda:sm_80", "cuda:ptx_80"]),
        (ADA, ["cuda:sm_89", "cuda:sm_87", "cuda:sm_86", "cuda:sm_80", "cuda:ptx_80"]),
        (H200, ["cuda:sm_90", "cuda:ptx_80"]),  # images for sm_90 use what 9.0 alone has
        (B200, ["cuda:sm_100", "cuda:ptx_80"]),
        ((10, 3), ["cuda:sm_103", "cuda:ptx_80"]),
        (NEWER, ["cuda:sm_130", "cuda:ptx_80"]),
        ((7, 5), []),
    ],
)
def test_gpu_ladder(capability: tuple[int, int], ladder: list[str]) -> None:
    assert list(cuda.cuda_ladder(capability)) == ladder


@pytest.mark.parametrize(
    ("capability", "target"), [(H200, "cuda:sm_90"), (ADA, "cuda:sm_89"), (NEWER, "cuda:ptx_80"), ((8, 8), "cuda:ptx_80"), ((7, 5), "")]
)
def test_what_is_compiled_for_the_device_at_hand(capability: tuple[int, int], target: str) -> None:
    assert cuda.native_cuda(capability) == target


def test_names() -> None:
    assert targets.resolve("native") == targets.resolve("cpu:native") == cpu.native_target()
    for name in ("cpu:x86-64-v3", "cuda:sm_80", "cuda:sm_120", "cuda:ptx_80", cpu.native_target()):
        assert targets.resolve(name) == name
    for wrong in ("cuda:sm_55", "cuda:ptx_90", "cuda", "cuda:0", "sm_90", "gpu:sm_90", "cpu:foo", "cpu:x86-64-v9"):
        with pytest.raises(OptionError, match="unknown target"):
            targets.resolve(wrong)


def test_rank_and_why_not(gpus: Any) -> None:
    assert targets.rank("cuda:sm_90") is None and re.search("no GPU|hides every GPU", targets.why_unfit("cuda:sm_90"))
    assert targets.rank("cpu:x86-64") is not None and targets.why_unfit("cpu:x86-64") == ""
    assert "CPU runs cpu:native-" in targets.why_unfit("cpu:s390x")
    gpus(H200)
    assert (targets.rank("cuda:sm_90"), targets.rank("cuda:ptx_80"), targets.rank("cuda:sm_80")) == (0, 1, None)
    assert targets.why_unfit("cuda:sm_80") == "this machine's GPUs have compute capability 9.0, which runs cuda:sm_90, cuda:ptx_80"
    gpus(H200, ADA)
    assert targets.rank("cuda:sm_80") == 3 and targets.rank("cuda:sm_90") == 0


def test_what_serves_a_request(gpus: Any) -> None:
    native = cpu.native_target()
    assert targets.serves("cuda:sm_90", "cuda:sm_90") and targets.serves("cuda:sm_90", cpu.PORTABLE)
    assert not targets.serves("cuda:sm_90", native) and not targets.serves("cuda:sm_90", "cuda:ptx_80")
    assert not targets.serves(native, "cuda:sm_90")
    gpus(H200)
    assert targets.serves(native, "cuda:sm_90") and not targets.serves(native, "cuda:ptx_80")


@pytest.mark.parametrize(
    ("machine", "found", "yes"),
    [
        ("cuda:sm_90", "cuda:sm_90", True),
        ("cuda:sm_90", "cuda:ptx_80", True),
        ("cuda:sm_90", "cuda:sm_80", False),
        ("cuda:sm_86", "cuda:sm_80", True),
        ("cuda:ptx_80", "cuda:sm_80", False),
        ("cuda:sm_90", "cpu:x86-64-v3", True),
        ("cpu:x86-64-v3", "cuda:sm_90", False),
        ("cpu:native-0123abcd", "cpu:native-0123abcd", True),
    ],
)
def test_what_another_machine_runs(gpus: Any, machine: str, found: str, yes: bool) -> None:
    assert targets.runs(machine, found) is targets.concerns(machine, found) is yes


LEVELS = ("cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2", "cpu:x86-64")


@pytest.mark.parametrize("here", ["v4", "v3", "v2"])
@pytest.mark.parametrize("machine", LEVELS)
def test_a_level_runs_what_lies_below_it_whatever_this_machine_is(here: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ladder` says it of this machine: `check --target` answers for machines as their loader would."""
    flags = {"v4": cpu._V4, "v3": cpu._V3, "v2": cpu._V2}[here]
    for function in (cpu.ladder, cpu.native_target):
        function.cache_clear()
    monkeypatch.setattr(cpu, "cpu_flags", lambda: flags)
    try:
        assert [found for found in LEVELS if targets.runs(machine, found)] == list(LEVELS[LEVELS.index(machine) :])
        native = cpu.native_target()
        assert not targets.runs(machine, native) and not targets.runs(machine, "cpu:native-0123abcd")
        assert [found for found in (native, *LEVELS) if targets.runs(native, found)] == list(cpu.ladder())
        assert not any(targets.runs("cpu:native-0123abcd", found) for found in (native, *LEVELS))
    finally:
        monkeypatch.undo()
        for function in (cpu.ladder, cpu.native_target):
            function.cache_clear()


@pytest.mark.parametrize(
    ("listed", "setting", "seen"),
    [
        (LIKE, None, ["GPU-0", "GPU-1", "GPU-2"]),
        (LIKE, "", []),
        (LIKE, "2,0", ["GPU-2", "GPU-0"]),
        (LIKE, "1,-1,0", ["GPU-1"]),
        (LIKE, "0,7,1", ["GPU-0"]),
        (LIKE, "GPU-2", ["GPU-2"]),
        (MIXED, "GPU-a2", ["GPU-a2"]),
        (MIXED, "1", ["GPU-a1", "GPU-a2"]),  # CUDA counts the fastest first, NVML along the bus
        (MIXED, "MIG-4f", ["GPU-a1", "GPU-a2"]),
    ],
)
def test_visible_devices(listed: list[nvidia_devices.Device], setting: str | None, seen: list[str]) -> None:
    assert [device.uuid for device in nvidia_devices.visible(listed, setting)] == seen


def test_cuda_version() -> None:
    assert nvidia_devices.cuda_version(13000) == (13, 0) and nvidia_devices.cuda_version(12080) == (12, 8)


def _look(queue: Any) -> None:
    queue.put((targets.rank("cuda:sm_90"), torch.cuda.is_initialized()))


def test_looking_starts_no_cuda_and_a_fork_may_look_too() -> None:
    targets.rank("cuda:sm_90")
    assert not torch.cuda.is_initialized()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_look, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == (targets.rank("cuda:sm_90"), False)
    child.join()


def graph(*wanted: str) -> torch.fx.GraphModule:
    mode = FakeTensorMode()
    with mode:
        values = [torch.empty(2, device=device) for device in wanted]
        return make_fx(lambda *xs: tuple(x.neg() for x in xs))(*values)


def test_a_graph_goes_where_its_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    native = cpu.native_target()
    assert target_of(graph("cpu"), native) == native and target_of(None, native) == native
    assert target_of(graph("cpu"), "cuda:sm_90") == target_of(None, "cuda:sm_90") == "cpu:x86-64-v3"
    assert target_of(graph("cuda:0"), "cuda:sm_80") == target_of(graph("cuda:5"), "cuda:sm_80") == "cuda:sm_80"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: [H200, ADA][index])
    assert target_of(graph("cuda:0"), native) == "cuda:sm_90" and target_of(graph("cuda:1"), "cpu:x86-64-v4") == "cuda:sm_89"
    for devices_of, reason in (
        (["cuda:0", "cuda:1"], "several GPUs"),
        (["cuda:2"], "does not have"),
        (["mps"], "mps"),
    ):
        with pytest.raises(Refused, match=reason):
            target_of(graph(*devices_of), native)


ROOTS = (("local", "a"),), (("local", "b"),)


@pytest.mark.parametrize(
    ("index", "where", "holds"),
    [(None, (0, 0), True), (None, (1, 1), True), (None, (0, 1), False), (0, (0, 0), True), (0, (1, 1), False), (1, (0, 1), False)],
)
def test_same_device_guard(index: int | None, where: tuple[int, int], holds: bool) -> None:
    with FakeTensorMode():
        values = {name: torch.empty(2, device=f"cuda:{number}") for name, number in zip("ab", where, strict=True)}
    guard = Guard((("state",),), Predicate.SAME_DEVICE, {"paths": ROOTS, "index": index})
    assert Guard.from_data(guard.to_data()) == guard
    verdict = evaluate(guard, values)
    assert verdict.holds is compile_checker([guard])(values, {}) is holds
    assert holds or ("cuda:" in verdict.expected and "cuda:" in verdict.found)


def test_gpus_of_several_kinds_ask_for_the_device_of_the_tensors(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: [H200, ADA][device.index])
    with FakeTensorMode():
        values = {"a": torch.empty(2, device="cuda:1")}
    for target, holds in (("cuda:sm_90", False), ("cuda:sm_89", True), ("cuda:sm_80", True), ("cuda:ptx_80", True)):
        guard = Guard((("local", "a"),), Predicate.RUNS_ON, target)
        verdict = evaluate(guard, values)
        assert verdict.holds is compile_checker([guard])(values, {}) is holds
        assert holds or "compute capability 8.9" in verdict.found


def test_literals_go_where_the_graphs_tensors_are() -> None:
    records = (TensorConstant("float32", (2,), b"\0" * 8, "cuda"), TensorConstant("int64", (), b"\1" + b"\0" * 7))
    constants = Constants(records)
    assert constants.placed and not Constants(records[1:]).placed
    there, here = constants.on(torch.device("meta"))
    assert (there.device.type, here.device.type, here.item()) == ("meta", "cpu", 1)
    assert constants.on(torch.device("meta"))[0] is there
    with FakeTensorMode():
        assert gpu_of([3, torch.ones(1), torch.ones(1, device="cuda:1")]) == torch.device("cuda:1")
    assert gpu_of([torch.ones(1)]) is None
