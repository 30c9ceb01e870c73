"""The two drawings of a graph: every step, and layers of one form folded into one."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

from precast.lowering.costs.records import StepRecord
from precast.report.page.folding import Repeat, repeats
from precast.report.page.layout import Drawing, drawn

MOST_UNFOLDED = 1500
"""Steps up to which the drawing of every step is made as well."""
_TITLES = {"gemm": "matrix product", "conv": "convolution"}
_NUMBERED = re.compile(r"_\d+$")
_DULL = ("view", "unsqueeze", "squeeze", "expand", "permute", "transpose", "reshape", "slice", "select", "clone", "alias", "t", "_to_copy")


def layers_of(steps: Sequence[StepRecord]) -> list[Repeat]:
    """Layers are of one form that compute the same for the same lines of the program, whatever the sizes."""
    return repeats([_form(step) for step in steps])


def _form(step: StepRecord) -> Hashable:
    return step.kind, "" if step.kind == "kernel" else step.name, step.sources, tuple(map(plain_name, step.origins))


def plain_name(origin: str) -> str:
    """A node's name without its number: "native_layer_norm_12" is "layer_norm"."""
    name = _NUMBERED.sub("", origin)
    return name.removeprefix("native_").strip("_") or name


def title(step: StepRecord) -> str:
    """A step in a few words, for its box."""
    if step.kind == "library":
        return _TITLES.get(step.name, step.name)
    if step.kind == "operator":
        return step.name.removeprefix("aten::")
    names = list(dict.fromkeys(plain_name(origin) for origin in step.origins))
    telling = [name for name in names if name not in _DULL] or names
    return " + ".join(reversed(telling[-3:])) + (" + …" if len(telling) > 3 else "") if telling else step.name


def edges_of(steps: Sequence[StepRecord]) -> list[tuple[int, int]]:
    """Who reads what another step has written, each pair once."""
    writer: dict[str, int] = {}
    found: dict[tuple[int, int], None] = {}
    for number, step in enumerate(steps):
        for name in step.read:
            if name in writer and writer[name] != number:
                found[writer[name], number] = None
        for name in step.written:
            writer[name] = number
    return list(found)


def folded(steps: Sequence[StepRecord], edges: Sequence[tuple[int, int]], layers: Sequence[Repeat]) -> Drawing:
    """The first layer of each repeat stands for all of them. What a layer hands to the next one is left out: the frame says it."""
    stands_for = representatives(len(steps), layers)
    shown = [number for number in range(len(steps)) if stands_for[number] == number]
    kept: dict[tuple[int, int], None] = {}
    for source, target in edges:
        pair = stands_for[source], stands_for[target]
        if pair[0] < pair[1]:
            kept[pair] = None
    return drawn(shown, kept, layers)


def representatives(count: int, layers: Sequence[Repeat]) -> list[int]:
    """For each step, the step of a first layer that stands for it, or itself."""
    found = list(range(count))
    for layer in layers:
        for number in range(layer.first, layer.end):
            found[number] = layer.first + (number - layer.first) % layer.period
    return found


def drawings(steps: Sequence[StepRecord]) -> Mapping[str, object]:
    """`folded` where there is something to fold, `full` where that is not too much. Raises LayoutMissing."""
    edges, layers = edges_of(steps), layers_of(steps)
    full = drawn(range(len(steps)), edges) if not layers or len(steps) <= MOST_UNFOLDED else None
    return {"layers": layers, "folded": folded(steps, edges, layers) if layers else None, "full": full}


__all__ = ["drawings", "edges_of", "layers_of", "plain_name", "representatives", "title"]
