"""What is compared: eager, torch.compile (default, freezing), AOTInductor, OpenVINO, ONNX Runtime, and precast (default, freeze).

Each contender turns a module into a callable. Rivals' own modules are imported before the clock starts (`warm_imports`);
precast gets only `import precast`, so whatever it imports lazily counts against it.
With `PRECAST_BENCH_DYNAMIC=1` in the environment (`run.py --dynamic`) each compiles for sizes of the run time.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import exported_contenders as exported
import torch

Call = Callable[..., Any]
DYNAMIC = True if os.environ.get("PRECAST_BENCH_DYNAMIC") == "1" else None


@dataclass(frozen=True)
class Contender:
    """`prepare(model, inputs, cache)` returns the callable; `cache` is the contender's own folder, empty on a cold run.

    `warm_imports` are imported before the clock starts, and `cold_imports` on a cold run: no side's time is that of reading its modules.
    `needs`: packages that are not installed with precast's tests (the extra `rivals`). `fixed`: compiled for the sizes of its inputs only.
    """

    name: str
    title: str
    prepare: Callable[[torch.nn.Module, dict[str, torch.Tensor], Path], Call]
    warm_imports: tuple[str, ...] = ()
    cold_imports: tuple[str, ...] = ()
    ours: bool = False
    needs: tuple[str, ...] = ()
    fixed: bool = False

    @property
    def absent(self) -> str | None:
        """Why it cannot take part here: the packages that are not installed."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{' and '.join(missing)} not installed: pip install 'precast[rivals]'" if missing else None


def _eager(model: torch.nn.Module, inputs: dict[str, torch.Tensor], cache: Path) -> Call:
    return model


def _inductor(model: torch.nn.Module, inputs: dict[str, torch.Tensor], cache: Path) -> Call:
    return torch.compile(model, dynamic=DYNAMIC)


def _inductor_freezing(model: torch.nn.Module, inputs: dict[str, torch.Tensor], cache: Path) -> Call:
    return torch.compile(model, dynamic=DYNAMIC, options={"freezing": True})


def _aoti(model: torch.nn.Module, inputs: dict[str, torch.Tensor], cache: Path) -> Call:
    package = cache / "model.pt2"
    if not package.exists():
        exported = torch.export.export(model, (), inputs)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
    return torch._inductor.aoti_load_package(str(package))


def _precast(model: torch.nn.Module, inputs: dict[str, torch.Tensor], cache: Path) -> Call:
    import precast

    return precast.compile(model, dynamic=DYNAMIC, store=cache)


def _precast_freeze(model: torch.nn.Module, inputs: dict[str, torch.Tensor], cache: Path) -> Call:
    import precast

    return precast.compile(model, dynamic=DYNAMIC, store=cache, options={"freeze": True})


_TRACER = ("torch._dynamo", "torch._inductor", "torch._inductor.compile_fx")
RUNTIME = ("precast", "precast.runtime.api.compile")  # what the first `precast.compile` would import
COMPILER = ("torch._dynamo", "precast.compiling.driver")  # what its first compilation would import, besides
ONNX = ("onnxruntime", "onnx", "onnxscript")
CONTENDERS = {
    c.name: c
    for c in (
        Contender("eager", "eager", _eager),
        Contender("inductor", "torch.compile", _inductor, _TRACER),
        Contender("freezing", "torch.compile freezing", _inductor_freezing, _TRACER),
        Contender("aoti", "AOTInductor", _aoti, (*_TRACER, "torch._inductor.package"), fixed=True),
        Contender("openvino", "OpenVINO", exported.openvino, ("openvino",), needs=("openvino",), fixed=True),
        Contender("onnxruntime", "ONNX Runtime", exported.onnxruntime, ("onnxruntime",), ("torch.onnx",), needs=ONNX, fixed=True),
        Contender("precast", "precast", _precast, RUNTIME, COMPILER, ours=True),
        Contender("precast_freeze", "precast freeze", _precast_freeze, RUNTIME, COMPILER, ours=True),
    )
}


EXPORTED = ("openvino", "onnxruntime")
"""Engines of their own, whose weights are constants: what they are compared with is precast's `freeze`."""


def import_first(contender: Contender, cache: Path) -> None:
    """Import what the contender may have in memory before the clock starts: where its cache is empty, its compiler as well."""
    cold = () if cache.exists() and any(cache.iterdir()) else contender.cold_imports
    for name in (*contender.warm_imports, *cold):
        importlib.import_module(name)


def environment(cache: Path) -> dict[str, str]:
    """Environment that gives a contender `cache` and nothing else to remember things in."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PRECAST_STORE": str(cache),
        "PRECAST_STRICT": "1",  # a program that precast fails to compile is a failed contender, not an eager one
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def names_of(text: str, known: Mapping[str, object], what: str) -> list[str]:
    """The names in a comma-separated list. Raises SystemExit with the known ones for any other."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise SystemExit(f"unknown {what} {name!r}; known: {', '.join(known)}")
    return names
