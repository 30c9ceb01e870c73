"""Facts that are tried: small programs are traced, compiled and run; the native runtime looks into tensors; Triton compiles."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precast.artifact_store import Store
from precast.capture import CaptureOptions, Dynamic, capture
from precast.runtime.common import torch_support
from precast.runtime.native import loader
from precast.torch_facts.fact import EAGER, OK, Answer, Fact, answer_of


def _scaled(x: Any) -> Any:
    return torch.relu(x * 2 + 1)


def _branch(x: Any) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


def _written(x: Any, found: Any) -> Any:
    found.append(x.add_(1))
    return found[0].view(-1)


def facts() -> Iterator[Fact]:
    """From the smallest trace to a compiled program."""
    tried: tuple[tuple[str, str, Callable[[], Answer]], ...] = (
        ("a function is one graph of ATen operators", "captures", _one_graph),
        ("a branch on a tensor is a graph break", "programs of several graphs", _graph_break),
        ("a size is symbolic", "dynamic shapes", _symbolic_size),
        ("writes to arguments are part of the graph", "side effects", _mutation),
    )
    for name, needed_for, check in tried:
        yield Fact("tried", name, needed_for, EAGER, check, stops=True, deep=True)
    yield Fact("tried", "a compiled program gives eager's answer", "all", EAGER, _compiled, stops=True, deep=True)
    yield Fact("tried", loader.LAYOUT, "the native runtime", loader.WITHOUT_LAYOUT, _layout, deep=True)
    yield Fact("tried", "Triton compiles a kernel", "CUDA targets", "targets of GPUs cannot be compiled here", _triton, deep=True)


def _one_graph() -> Answer:
    frame = capture(_scaled, (torch.ones(4),))
    assert frame.graph is not None
    names = [str(node.target) for node in frame.graph.graph.nodes if node.op == "call_function"]
    return answer_of(
        [f"its graph holds {name}" for name in names if not name.startswith("aten.")] or ([] if names else ["its graph is empty"])
    )


def _graph_break() -> Answer:
    frame = capture(_branch, (torch.ones(4),), options=CaptureOptions(one_graph=False))
    return answer_of([] if frame.broke is not None else ["there is none"])


def _symbolic_size() -> Answer:
    frame = capture(_scaled, (torch.ones(4, 3),), options=CaptureOptions(dynamic=Dynamic("yes")))
    return answer_of([] if frame.symbolic else ["its size is fixed"])


def _mutation() -> Answer:
    frame = capture(_written, (torch.ones(4), []))
    return answer_of([] if any(item.mutated for item in frame.inputs) else ["its argument is not marked as written"])


def _compiled() -> Answer:
    import precast

    x = torch.linspace(-1, 1, 12).view(3, 4)
    with tempfile.TemporaryDirectory(prefix="precast-probe-") as folder, torch.no_grad():
        compiled: Any = precast.compile(_scaled, store=folder)
        same = [torch.equal(compiled(x), _scaled(x)) for _ in range(3)]
        stored = list(Store.open(folder).programs())
    return answer_of(([] if all(same) else ["it gives another"]) + ([] if stored else [torch_support.broken() or "nothing was compiled"]))


def _layout() -> Answer:
    with tempfile.TemporaryDirectory(prefix="precast-probe-") as folder:
        found = loader.ensure(Store.open(folder))
    if found is not None:
        return OK
    for difference in torch_support.differences():
        if difference.fact == loader.LAYOUT:
            return Answer("fails", difference.detail)
    return Answer("absent", loader.reason() or "PRECAST_NATIVE=0")


def _triton() -> Answer:
    if importlib.util.find_spec("triton") is None:
        return Answer("absent", "it is not installed")
    from precast.codegen.triton.build import worker

    head = "import triton\nimport triton.language as tl\n\n@triton.jit\ndef twice(x, y):\n"
    source = f"{head}    i = tl.arange(0, 128)\n    tl.store(y + i, tl.load(x + i) * 2)\n"
    task = {"arguments": [("x", "*fp32", True), ("y", "*fp32", True)], "num_warps": 4, "num_stages": 1, "checks": False, "arch": "sm_80"}
    with tempfile.TemporaryDirectory(prefix="precast-probe-") as folder, worker.clean_settings(folder):
        from triton.compiler import ASTSource

        image, _ = worker.image_of(worker.function_of("twice", source), {"entry": "twice", **task}, ASTSource)
    return answer_of([] if image else ["its image is empty"])


__all__ = ["facts"]
