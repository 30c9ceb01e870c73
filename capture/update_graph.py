"""The graph of an optimiser's update: elements of flat tensors of any size, and numbers, in; the tensors that change are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from precast.artifact_store.format.records import GraphInput
from precast.capture.adapters.fake_tensors import DimDynamic, FakeTensorMode, ShapeEnv, make_fx
from precast.capture.adapters.guards import ConstantSource
from precast.capture.capture_graph import CapturedGraph, identity
from precast.capture.common.captured_frame import CaptureRefused

Update = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
_ELEMENTS = 1 << 20
"""The size that costs are estimated with."""


def update_graph(
    update: Update,
    tensors: Mapping[str, torch.dtype],
    scalars: Mapping[str, torch.dtype],
    numbers: Sequence[str],
    device: str,
    decompositions: Mapping[Any, Any],
) -> CapturedGraph:
    """The graph of `update(tensors, numbers)`, which gives new values of some of its tensors, by name. Raises CaptureRefused.

    Its inputs: the number of elements, the tensors, `scalars` (tensors without dimensions, which `update` gets with them), the numbers.
    """
    environment = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    source = ConstantSource("elements")
    symbol = environment.create_unspecified_symbol(_ELEMENTS, source, DimDynamic.DYNAMIC)
    count = environment.create_symintnode(symbol, hint=_ELEMENTS, source=source)
    with mode:
        fakes = [torch.empty_strided((count,), (1,), dtype=dtype, device=device) for dtype in tensors.values()]
        fakes += [torch.empty((), dtype=dtype, device=device) for dtype in scalars.values()]
    names = [*tensors, *scalars]
    written: list[str] = []

    def traced(count: Any, *values: Any) -> tuple[()]:
        given = dict(zip((*names, *numbers), values, strict=True))
        made = update({name: given[name] for name in names}, {name: given[name] for name in numbers})
        for name, value in made.items():
            if name not in written:
                written.append(name)
            torch.ops.aten.copy_.default(given[name], value.to(tensors[name]))
        return ()

    floats = [_float(environment, name, 0.5 + 0.001 * i) for i, name in enumerate(numbers)]
    with torch.no_grad():
        graph = make_fx(traced, decomposition_table=dict(decompositions), _allow_non_fake_inputs=True)(count, *fakes, *floats)
    if any(symbol != other for guard in environment.guards for other in guard.expr.free_symbols):
        raise CaptureRefused("the update of an optimiser depends on a number that it is given")
    graph.graph.eliminate_dead_code()
    for node in graph.graph.find_nodes(op="placeholder"):
        if isinstance(node.meta.get("val"), torch.SymFloat) and not node.users:
            node.meta["val"] = 0.0
    graph.recompile()
    kinds: list[Any] = ["int", *("tensor" for _ in names), *("float" for _ in numbers)]
    mutated = [False, *(name in written for name in names), *(False for _ in numbers)]
    inputs = tuple(
        GraphInput((("input", i),), False, i, kind, changed) for i, (kind, changed) in enumerate(zip(kinds, mutated, strict=True))
    )
    return CapturedGraph(graph, inputs, (), (), identity(graph), graph)


def _float(environment: ShapeEnv, name: str, hint: float) -> Any:
    source = ConstantSource(name)
    symbol = environment.create_unspecified_symbol(hint, source, DimDynamic.DYNAMIC)
    return environment.create_symfloatnode(symbol, hint=hint, source=source)


__all__ = ["update_graph"]
