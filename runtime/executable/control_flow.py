"""Branches and loops that depend on data: the control flow is Python's, the bodies are compiled libraries.

Each function takes its bodies first, then the operator's own tensors, and returns a flat list of new tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precast.artifact_store.format.records import GraphInput
from precast.runtime.common.errors import LoadError
from precast.runtime.executable.calling_convention import GraphSpec, run_library


class Body:
    """One compiled body. `description`: what precast/compiling/subgraphs.py wrote; `libraries`: by digest."""

    def __init__(self, description: str, libraries: Mapping[str, Any]) -> None:
        described = json.loads(description)
        self.layouts: list[Any] = described["inputs"]
        self.library = libraries.get(described["library"])
        if self.library is None:
            raise LoadError(f"the body {described['library'][:12]}… of a branch or loop is not among the artifact's libraries")
        inputs = tuple(GraphInput((), False, i, "int" if k == "int" else "tensor") for i, k in enumerate(self.layouts))
        self.spec = GraphSpec(inputs, described["results"], None)

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The body's results: each a new tensor, or an int."""
        laid_out = [_laid_out(value, layout) for value, layout in zip(values, self.layouts, strict=True)]
        return list(run_library(self.library, self.spec, laid_out, 0))  # type: ignore[arg-type]


def _laid_out(value: Any, layout: Any) -> Any:
    """The operand with the strides that the body was compiled for: a loop may bring its results back in others."""
    if layout == "int":
        return int(value)
    if layout is None:
        return value.contiguous()
    if list(value.stride()) == layout:
        return value
    return torch.empty_strided(value.shape, layout, dtype=value.dtype, device=value.device).copy_(value)


def cond(if_true: Body, if_false: Body, predicate: Any, operands: Sequence[Any]) -> list[Any]:
    """One of two bodies on the operands."""
    return (if_true if bool(predicate) else if_false)(operands)


def while_loop(condition: Body, body: Body, carried: Sequence[Any], extra: Sequence[Any]) -> list[Any]:
    """`carried = body(*carried, *extra)` for as long as the condition holds. What never went through the body is copied."""
    values = [v.clone() if isinstance(v, torch.Tensor) else v for v in carried]
    while bool(condition([*values, *extra])[0]):
        values = body([*values, *extra])
    return values


def scan(combine: Body, initial: Sequence[Any], sequences: Sequence[torch.Tensor], extra: Sequence[Any]) -> list[Any]:
    """Walks the sequences along their first dimension: the last carried values, then the rows that each step gave, stacked."""
    carried, count = list(initial), len(initial)
    rows: list[list[torch.Tensor]] = []
    for position in range(sequences[0].shape[0]):
        results = combine([*carried, *(s[position] for s in sequences), *extra])
        carried, row = results[:count], results[count:]
        rows.append(row)
    return [*carried, *(torch.stack(column) for column in zip(*rows, strict=True))]


def map_impl(body: Body, sequences: Sequence[torch.Tensor], extra: Sequence[Any]) -> list[Any]:
    """The body on each row of the sequences; its results stacked."""
    rows = [body([*(s[position] for s in sequences), *extra]) for position in range(sequences[0].shape[0])]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def formatted(text: str, *args: Any, **kwargs: Any) -> list[Any]:
    """Prints, as torch's operator of that name."""
    print(text.format(*args, **kwargs))
    return []


OPERATORS: dict[str, tuple[Callable[..., list[Any]], int]] = {
    "control::cond": (cond, 2),
    "control::while_loop": (while_loop, 2),
    "control::scan": (scan, 1),
    "control::map_impl": (map_impl, 1),
    "control::print": (formatted, 0),
}
"""Name in the record -> the function, and how many bodies it takes."""


def control_flow(name: str, libraries: Mapping[str, Any]) -> Callable[..., Any]:
    """The operator as a callable of (one description per body, then its operands). Raises LoadError where a body is missing."""
    function, count = OPERATORS[name]
    known: dict[tuple[str, ...], list[Body]] = {}

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        descriptions = args[:count]
        bodies = known.get(descriptions)
        if bodies is None:
            bodies = known[descriptions] = [Body(d, libraries) for d in descriptions]
        return function(*bodies, *args[count:], **kwargs)

    return call
