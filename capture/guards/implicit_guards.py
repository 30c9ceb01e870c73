"""Guards that Dynamo leaves implicit or checks elsewhere: torch's global state, that inputs do not alias, that they are on one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.records import FrameRecord, GraphInput
from precast.capture.common.source_paths import SourceContext
from precast.runtime.paths.torch_state import global_state
from precast.target_registry import computes_on


def state_guard() -> Guard:
    """torch's global state as it is now."""
    return Guard((("state",),), Predicate.GLOBAL_STATE, global_state())


def aliasing_guards(inputs: Sequence[GraphInput], written: frozenset[int]) -> list[Guard]:
    """Nothing overlaps what the graph writes, or what is `written` (indices of inputs) when it has run. (Which tensors are one and the same
    object: capture/guards/identity.py.)
    """
    tensors = [  # a drawn number is a tensor of its own
        (i.path, i.mutated or k in written) for k, i in enumerate(inputs) if i.kind == "tensor" and i.path[0][0] != "random"
    ]
    mutated = tuple(sorted((path for path, changes in tensors if changes), key=repr))
    others = tuple(sorted((path for path, changes in tensors if not changes), key=repr))
    return [Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": (), "mutated": mutated, "others": others})] if mutated else []


def whole_tensors(inputs: Sequence[GraphInput]) -> list[Path]:
    """The paths of the graph's tensors; of a tensor subclass that of the whole."""
    return [i.path[: len(i.path) - len(i.part)] for i in inputs if i.kind == "tensor" and i.path[0][0] not in ("random", "constant")]


def device_guards(inputs: Sequence[GraphInput], sources: SourceContext, record: FrameRecord | None) -> list[Guard]:
    """The graph's inputs on GPUs are on one and the same: TENSOR guards leave the index open. The rewritten bytecode may name it."""
    tensors = [i.path for i in inputs if i.kind == "tensor" and i.path[0][0] != "random"]
    paths = tuple(sorted((path for path in tensors if computes_on(sources.value(path).device.type)), key=repr))
    named = set(_indices(record.constants if record is not None else ()))
    if not paths or (len(paths) == 1 and not named):
        return []
    return [Guard((("state",),), Predicate.SAME_DEVICE, {"paths": paths, "index": min(named, default=None)})]


def _indices(tagged: Any) -> Iterator[int]:
    """Indices of the GPUs among tagged constants."""
    if isinstance(tagged, tuple):
        if len(tagged) == 3 and tagged[0] == "device" and computes_on(tagged[1]) and tagged[2] is not None:
            yield tagged[2]
        for item in tagged:
            yield from _indices(item)


def apart(inputs: Sequence[GraphInput]) -> tuple[Guard, ...]:
    """That no two tensor inputs share memory."""
    tensors = tuple(sorted((i.path for i in inputs if i.kind == "tensor"), key=repr))
    return (Guard((("state",),), Predicate.NOT_ALIASED, {"distinct": (), "mutated": tensors, "others": ()}),)
