"""Autograd's backward pass in Python, for fake tensors on a GPU that is not there.

torch's engine orders gradients on an accelerator by streams. Where it has no stream for the node that made a gradient, it asks for the
current one, and `at::accelerator` raises where the machine has no accelerator. What the engine does besides is small: it visits the nodes
that lead to the inputs, latest recorded first, adds up the gradients that reach a node, and gives each the size and dtype of what it is the
gradient of.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.common.patching import patched
from precast.target_registry import computes_on

Place = tuple[Any, int]
"""A node of autograd's graph, and which of its gradients."""
_ENGINE = torch.autograd.graph._engine_run_backward
_REGISTER: Any = torch.Tensor.register_hook


Hooks = dict[Place, list[Mapping[int, Callable[[torch.Tensor], torch.Tensor | None]]]]
"""Hooks on tensors, by the gradient that they get; those of one tensor are in one table."""


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """`torch.autograd.grad` visits the nodes in Python, where gradients lie on a GPU that is not here."""
    hooks: Hooks = {}
    with (
        patched(torch.autograd, "_engine_run_backward", functools.partial(run_backward, hooks)),
        patched(torch.Tensor, "register_hook", functools.partialmethod(_register_hook, hooks)),
    ):
        yield


def _register_hook(tensor: Any, hooks: Hooks, hook: Any) -> Any:
    """`torch.Tensor.register_hook`, which tells nobody but the engine of a hook on what is no leaf."""
    new = tensor.grad_fn is not None and tensor._backward_hooks is None
    handle = _REGISTER(tensor, hook)
    tables = hooks.setdefault((tensor.grad_fn, tensor.output_nr), []) if new else []
    if new and not any(table is tensor._backward_hooks for table in tables):  # a subclass's dispatch comes here again
        tables.append(tensor._backward_hooks)
    return handle


def run_backward(
    hooks: Hooks,
    outputs: Sequence[Any],
    given: Sequence[Any],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[Any],
    *rest: Any,
    **more: Any,
) -> tuple[Any, ...]:
    """What `torch.autograd.graph._engine_run_backward` gives: the gradients of `inputs`, None where there is none.

    What lies on a device that is here is left to the engine. Raises CaptureRefused where gradients are to be added to leaves.
    """
    if not any(_lacks_device(output) for output in outputs):
        return _ENGINE(outputs, given, keep_graph, create_graph, inputs, *rest, **more)
    if more.get("accumulate_grad", rest[1] if len(rest) > 1 else False):
        raise CaptureRefused("the traced code adds gradients to leaves (backward), for a GPU that is not here")
    edges = [_edge(value) for value in inputs]
    roots = [_edge(value) for value in outputs]
    with torch.set_grad_enabled(create_graph):
        found = _walk(roots, given, edges, hooks)
    allow_unused = more.get("allow_unreachable", rest[0] if rest else False)
    if not allow_unused and any(gradient is None for gradient in found):
        raise RuntimeError("One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True")
    return tuple(found)


def _walk(roots: Sequence[Place], given: Sequence[Any], edges: Sequence[Place], hooks: Hooks) -> list[Any]:
    captured: dict[Place, Any] = dict.fromkeys(edges)
    leads, waits = _graph([node for node, _ in roots], {node for node, _ in edges})
    gradients: dict[Any, list[Any]] = {}
    ready = _Queue()

    def arrives(place: Place, gradient: Any) -> None:
        node, index = place
        held = gradients.setdefault(node, [None] * len(node._input_metadata))
        if gradient is not None:
            held[index] = gradient if held[index] is None else held[index] + gradient

    for place, gradient in zip(roots, given, strict=True):
        arrives(place, _as_described(gradient, place))
    for node in dict.fromkeys(node for node, _ in roots):
        if not waits[node]:
            ready.put(node)
    for node in ready:
        held = [_hooked(value, hooks.get((node, i), ())) for i, value in enumerate(gradients.pop(node, []))]
        captured |= {(node, i): value for i, value in enumerate(held) if (node, i) in captured}
        if node not in leads:
            continue
        reached = [place for place in zip(node.next_functions, _called(node, held), strict=False) if place[0][0] is not None]
        for place, gradient in [(place, _as_described(gradient, place)) for place, gradient in reached]:  # all of them before any sum
            arrives(place, gradient)
            waits[place[0]] -= 1
            if not waits[place[0]]:
                ready.put(place[0])
    return [captured[edge] for edge in edges]


def _graph(roots: Sequence[Any], wanted: set[Any]) -> tuple[set[Any], Counter[Any]]:
    """The nodes from which a wanted one is reached, and how many gradients each node waits for."""
    following: dict[Any, list[Any]] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in following:
            following[node] = [f for f, _ in node.next_functions if f is not None]
            stack += following[node]
    made_from: dict[Any, list[Any]] = {}
    for node, found in following.items():
        for after in found:
            made_from.setdefault(after, []).append(node)
    leads: set[Any] = set()
    stack = [node for node in wanted if node in following]
    while stack:
        for before in made_from.get(stack.pop(), []):
            if before not in leads:
                leads.add(before)
                stack.append(before)
    return leads, Counter(after for node in leads for after in following[node])


class _Queue:
    """Nodes that have all of their gradients; the one that was recorded last comes first, as in the engine."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int, Any]] = []
        self._count = 0

    def put(self, node: Any) -> None:
        self._count += 1
        heapq.heappush(self._nodes, (-node._sequence_nr(), self._count, node))

    def __iter__(self) -> Iterator[Any]:
        while self._nodes:
            yield heapq.heappop(self._nodes)[2]


def _edge(value: Any) -> Place:
    node, index = (value if isinstance(value, GradientEdge) else get_gradient_edge(value))[:2]
    return node, index


def _hooked(gradient: Any, tables: Iterable[Mapping[int, Callable[[torch.Tensor], torch.Tensor | None]]]) -> Any:
    for hook in [hook for table in tables for hook in table.values()]:
        if gradient is not None and (changed := hook(gradient)) is not None:
            gradient = changed
    return gradient


def _called(node: Any, held: list[Any]) -> Sequence[Any]:
    """The gradients of what the node was made from."""
    if not callable(node):  # a torch.autograd.Function, which gets zeros where there is no gradient
        held = [_zeros(described) if value is None else value for value, described in zip(held, node._input_metadata, strict=True)]
        made = node.apply(*held)
    else:
        made = node(*held)
    return made if isinstance(made, tuple | list) else (made,)


def _zeros(described: Any) -> torch.Tensor:
    return torch.zeros(described.shape, dtype=described.dtype, device=described.device)


def _as_described(gradient: torch.Tensor | None, place: Place) -> torch.Tensor | None:
    """The gradient in the size and dtype of what it is the gradient of."""
    if gradient is None:
        return None
    described = place[0]._input_metadata[place[1]]
    if not described.is_nested_tensor and tuple(gradient.shape) != tuple(described.shape):
        gradient = gradient.sum_to_size(described.shape)
    if gradient.is_complex() and not described.dtype.is_complex:
        gradient = gradient.real
    if gradient.dtype != described.dtype:
        gradient = gradient.to(described.dtype)
    return gradient if gradient.device == described.device or gradient.ndim else gradient.to(described.device)


def _lacks_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and computes_on(value.device.type) and not torch.cuda.is_available()


__all__ = ["in_python", "run_backward"]
