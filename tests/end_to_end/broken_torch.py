"""A script: takes torch apart, one name at a time, each in a child of its own that calls programs, and prints what came of each as JSON.

Its argument is a JSON list of cases `[kind, name]`; kinds are the keys of `BREAK`.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.convert_frame
import torch._functorch.aot_autograd
import torch._library.custom_ops
import torch.utils._triton


def delete(name: str) -> None:
    """What "module:attribute" names is gone, from the class that defines it."""
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(module) if module != "torch._C._dynamo.eval_frame" else torch._C._dynamo.eval_frame
    *before, last = path.split(".")
    for part in before:
        owner = getattr(owner, part)
    for one in getattr(owner, "__mro__", (owner,)):
        if last in vars(one):
            delattr(one, last)
            return
    raise LookupError(f"{name} cannot be deleted")


def delete_imported(adapter: str) -> None:
    """The first name that an adapter imports and that is no module."""
    import precast

    source = (Path(precast.__file__).parent / "capture" / "adapters" / adapter).read_text("utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch."):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not isinstance(getattr(module, alias.name), types.ModuleType):
                    delattr(module, alias.name)
                    return
    raise LookupError(adapter)


def say_missing(name: str) -> None:
    """A row's check does not find a name; torch itself, which needs it, does."""
    from precast.capture import patch_rows

    asked = patch_rows._is_there
    patch_rows._is_there = lambda other: other != name and asked(other)


def no_symbol(name: str) -> None:
    """A C function, or an operator, cannot be found."""
    from precast.runtime.native import torch_symbols

    found = torch_symbols.resolve_symbol
    torch_symbols.resolve_symbol = lambda other: None if other == name else found(other)
    if "::" in name:
        from precast.torch_facts import calls

        asked = calls.is_missing
        calls.is_missing = lambda other: other == name or asked(other)


def unknown_layout(name: str) -> None:
    """Where tensors keep their reference count is not found."""
    from precast.runtime.native import tensor_layout

    def refcount(probe: Any) -> int:
        raise tensor_layout.LayoutUnknown("the reference count: candidates []")

    tensor_layout._refcount = refcount


BREAK: dict[str, Callable[[str], None]] = {
    "name": delete,
    "adapter": delete_imported,
    "row": say_missing,
    "call": no_symbol,
    "layout": unknown_layout,
    "nothing": lambda name: None,
}


def scaled(x: Any) -> Any:
    return torch.relu(x * 2 + 1)


def branch(x: Any) -> Any:
    return x.sin() if x.sum() > 0 else x - 1


def attention(x: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x), torch.bmm(x[0], x[0].mT)


def programs() -> list[tuple[Any, Any]]:
    """Programs with an argument each: a graph, several graphs, library calls."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(), torch.nn.Linear(16 * 36, 64), torch.nn.ReLU()).eval()
    x = torch.linspace(-1, 1, 12).view(3, 4)
    return [(scaled, x), (branch, x), (net, torch.randn(2, 3, 8, 8)), (attention, torch.randn(1, 4, 40, 48))]


def outcome(kind: str, name: str) -> dict[str, Any]:
    """Breaks it, calls the programs, asks the doctor."""
    chosen = programs()[: None if kind == "call" else 2]
    expected = [(program, x, program(x)) for program, x in chosen]  # by torch as it was
    if kind != "layout":
        os.environ["PRECAST_NATIVE"] = "0"  # building it takes longer than all the rest
    BREAK[kind](name)
    import precast

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for program, x, eager in expected:
            compiled: Any = precast.compile(program, store=folder)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), eager, rtol=1e-4, atol=1e-4)
        stored = sum(1 for _, _, files in os.walk(os.path.join(folder, "programs")) for _ in files)
    from precast.cli.health.doctor_torch import torch_lines

    told = [str(w.message) for w in caught if str(w.message).startswith("precast")]
    return {"warnings": told, "stored": stored, "doctor": [line.detail for line in torch_lines() if not line.good]}


def in_child(kind: str, name: str) -> dict[str, Any]:
    """The outcome in a fork of this process, which stays whole."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            torch._C._set_grad_enabled(False)  # for good: what is broken may be what sets it
            found = outcome(kind, name)
        except BaseException:  # noqa: BLE001 - told to the parent
            found = {"error": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    answer: dict[str, Any] = json.loads(text) if text else {"error": "the process ended without an answer"}
    return answer


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([in_child(kind, name) for kind, name in json.loads(sys.argv[1])]))
