"""Tensor subclasses at the border of a compiled graph: instances are flattened to plain tensors before the call, and rebuilt after it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from precast.artifact_store.format.import_names import find_object
from precast.artifact_store.format.records import GraphInput, Wrap
from precast.artifact_store.format.tagged_constants import untag
from precast.runtime.common.errors import LoadError
from precast.runtime.executable.calling_convention import GraphSpec, is_recorded
from precast.runtime.frames.call_interception import paused

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
GraphCall = Callable[..., tuple[Any, ...]]


def wrapped_call(
    made: Callable[[GraphSpec], GraphCall], spec: GraphSpec, wraps: Sequence[Wrap] | None, objects: Sequence[Any] = ()
) -> GraphCall:
    """The callable that the bytecode calls: flattens, calls what `made` made for plain tensors, rebuilds. Raises LoadError.

    `objects`: what instances hold besides tensors, and no argument brings.
    """
    if wraps is None and not any(item.part for item in spec.inputs):
        return made(spec)
    taken, inputs = _passed(spec.inputs)
    call = made(replace(spec, inputs=inputs))
    given = None if wraps is None else tuple(_maker(wrap, objects) for wrap in wraps)

    def run(*args: Any) -> tuple[Any, ...]:
        with paused():  # the class's own methods are no calls between graphs
            found = call(*[part_of(args[position], steps) for position, steps in taken])
            return found if given is None else tuple([make(found, args) for make in given])

    return run


def _passed(inputs: Sequence[GraphInput]) -> tuple[list[tuple[int, tuple[Any, ...]]], tuple[GraphInput, ...]]:
    """The plain tensors to pass, each as (position of an argument, steps from it), and the inputs renumbered for them."""
    taken: list[tuple[int, tuple[Any, ...]]] = []
    renumbered = []
    for item in inputs:
        if item.position is not None and item.read is None:
            whole = is_recorded(item)  # autograd sees the DTensor itself
            taken.append((item.position, () if whole else item.part))
            item = replace(item, position=len(taken) - 1, part=item.part if whole else ())
        renumbered.append(item)
    return taken, tuple(renumbered)


def part_of(value: Any, steps: tuple[Any, ...]) -> Any:
    """The inner value of an object to which the steps of `GraphInput.part` lead."""
    for step in steps:
        value = getattr(value, step) if isinstance(step, str) else getattr(value, step[0])(step[1])
    return value


def _maker(wrap: Wrap, objects: Sequence[Any]) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    """A function of (outputs of the graph, arguments of the call) that makes the output which the bytecode gets."""
    if isinstance(wrap, int):
        return lambda found, args: found[wrap]
    if wrap[0] == "input":
        return lambda found, args: args[wrap[1]]
    if wrap[0] == "part":
        return lambda found, args: part_of(args[wrap[1]], wrap[2])
    if wrap[0] == "object":
        return lambda found, args: objects[wrap[1]]
    if wrap[0] == "dtensor":
        return _dtensor(wrap, objects)
    _, name, metadata, attributes, size, stride = wrap
    try:
        unflatten, told = find_object(name).__tensor_unflatten__, untag(metadata)
        anew = not _immutable(told)  # the caller may write what it gets
    except (LookupError, AttributeError, ValueError) as error:
        raise LoadError(f"it makes a {name}, and that cannot be made here: {error}") from error
    inner = tuple((attribute, _maker(made, objects)) for attribute, made in attributes)
    size, stride = (tuple(_number(n) for n in numbers) for numbers in (size, stride))

    def make(found: Sequence[Any], args: Sequence[Any]) -> Any:
        tensors = {attribute: build(found, args) for attribute, build in inner}
        return unflatten(tensors, untag(metadata) if anew else told, tuple(n(found) for n in size), tuple(n(found) for n in stride))

    return make


def _dtensor(wrap: tuple[Any, ...], objects: Sequence[Any]) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    """A DTensor of a local tensor that records gradients."""
    _, index, laid, size, stride, of_gradient, held = wrap
    mesh = _maker(held, objects)
    try:
        from_local = find_object("torch.distributed.tensor:DTensor").from_local
        placements, gradient = untag(laid), None if of_gradient is None else untag(of_gradient)
    except (LookupError, ValueError) as error:
        raise LoadError(f"it makes a DTensor, and that cannot be made here: {error}") from error
    more = {"run_check": False, "shape": torch.Size(size), "stride": tuple(stride), "grad_placements": gradient}
    return lambda found, args: from_local(found[index], mesh(found, args), placements, **more)


def _immutable(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_immutable, value)) or isinstance(value, _ATOMS)


def _number(number: Any) -> Callable[[Sequence[Any]], int]:
    return (lambda found: number) if isinstance(number, int) else (lambda found: int(found[number[1]]))


__all__ = ["part_of", "wrapped_call"]
