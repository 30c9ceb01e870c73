"""Runs a captured frame without codegen: the FX graph itself is the graph callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from precast.artifact_store.format.records import TensorConstant
from precast.artifact_store.trust.trusted import made_here
from precast.capture import CapturedFrame
from precast.capture.capture import called
from precast.runtime.executable.calling_convention import graph_inputs, graph_outputs
from precast.runtime.frames.entry import LocalsOf, entry_of
from precast.runtime.frames.rewritten_code import build
from precast.runtime.paths.paths import resolve


def constant_tensor(constant: TensorConstant) -> torch.Tensor:
    data = torch.frombuffer(bytearray(constant.data or b"\0"), dtype=torch.uint8)
    return data[: len(constant.data)].view(getattr(torch, constant.dtype)).reshape(constant.size)


def locals_of(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    entry = entry_of(called(fn))
    locals_of = LocalsOf(entry.function)
    return locals_of((*entry.prefix, *args), {**entry.keywords, **kwargs}) | locals_of.cells()


def rebuilt(frame: CapturedFrame, fn: Any, values: dict[str, Any], graph: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The captured frame as a callable; takes what `fn` takes. `values`: the locals to fetch bound inputs from."""
    bound = {i: resolve(inp.path, values) for i, inp in enumerate(frame.inputs) if inp.bound and inp.kind != "constant"}
    bound |= {i: constant_tensor(frame.code.tensors[inp.path[0][1]]) for i, inp in enumerate(frame.inputs) if inp.kind == "constant"}
    run = graph or frame.graph

    def graph_callable(*per_call: Any) -> Any:
        inputs = graph_inputs(frame.inputs, list(bound.values()), per_call)
        return graph_outputs(frame.outputs, run(*inputs), inputs)

    entry = entry_of(called(fn))
    function = build(made_here(frame.code), entry.function, graph_callable)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*entry.prefix, *args, **{**entry.keywords, **kwargs})

    return call


def run_frame(frame: CapturedFrame, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return rebuilt(frame, fn, locals_of(fn, args, kwargs))(*args, **kwargs)
