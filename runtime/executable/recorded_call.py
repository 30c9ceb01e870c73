"""Calls that record gradients: the forward graph runs inside of an autograd Function, whose backward runs the backward graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precast.artifact_store.format.expressions import evaluate, leaves
from precast.artifact_store.format.import_names import find_object
from precast.artifact_store.format.records import AutogradRecord, GraphInput, GraphOutput
from precast.artifact_store.format.tagged_constants import untag
from precast.runtime.common.errors import LoadError, PrecastError
from precast.runtime.executable.calling_convention import Finish, GraphSpec, graph_inputs, is_recorded

Call = Callable[..., tuple[Any, ...]]
_TWICE = (
    "precast: the gradient of a gradient was asked for (create_graph=True, and then backward through it), and a compiled graph has a "
    "backward graph of its own, which records nothing. Run this call eagerly (precast.disable, or precast.set_stance('force_eager'))"
)


class Gradients:
    """The callable of a backward graph: takes a list of what `AutogradRecord.backward` lists, constants apart, which it empties, so that
    each tensor is freed after its last use; gives one value for each of `AutogradRecord.inputs`.
    """

    __slots__ = ("_constants", "_finish", "_read", "_run", "_takes")

    def __init__(
        self, record: AutogradRecord, finish: Finish | None, run: Callable[[list[Any]], tuple[Any, ...]], constants: Sequence[Any]
    ) -> None:
        """`run`: gives the graph's raw outputs for a list of its arguments, of which `finish` makes the gradients."""
        self._finish, self._run, self._constants, self._takes = finish, run, tuple(constants), len(record.backward)
        self._read = sorted({i for output in record.gradients for i in _inputs_of(output)})

    def __call__(self, arguments: list[Any]) -> tuple[Any, ...]:
        if self._finish is None:
            return self._run(arguments)
        values: list[Any] = [None] * self._takes
        for i in self._read:
            values[i] = arguments[i] if i < len(arguments) else self._constants[i - len(arguments)]
        return self._finish(self._run(arguments), values)


def _inputs_of(output: GraphOutput) -> Iterator[int]:
    """The graph's inputs that an output is made of, besides what the graph computes."""
    if output.kind in ("input", "view") and output.index is not None:
        yield output.index
    numbers = (*output.size, *output.stride, output.offset, *(() if output.value is None else (output.value,)))
    yield from (leaf[1] for number in numbers for leaf in leaves(number) if leaf[0] != "raw")


class RecordedCall:
    """The callable of a frame whose forward and backward graphs are compiled: takes the per-call inputs, as other graph callables do.

    `forward`: gives the forward graph's raw outputs for the per-call inputs.
    """

    __slots__ = ("_backward", "_bound", "_dtensors", "_finish", "_forward", "_inputs", "_record", "_undifferentiable")

    def __init__(self, record: AutogradRecord, spec: GraphSpec, forward: Call, backward: Gradients, bound: Sequence[Any]) -> None:
        self._record = record
        self._inputs = spec.inputs
        self._finish = spec.finish
        self._forward = forward
        self._backward = backward
        self._bound = tuple(bound)
        self._dtensors: dict[int | None, _OfDTensor] = {
            item.position: _OfDTensor.read(item) for item in spec.inputs if item.position is not None and is_recorded(item)
        }
        self._undifferentiable = tuple(i for i, recorded in enumerate(record.results) if not recorded)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            return self._recorded(args)
        with torch.enable_grad():  # the traced code enables it for itself
            return self._recorded(args)

    def _recorded(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        record, seen = self._record, args
        if self._dtensors:
            args = tuple([arg._local_tensor if position in self._dtensors else arg for position, arg in enumerate(args)])
        values = graph_inputs(self._inputs, self._bound, args)
        differentiable = graph_inputs(self._inputs, self._bound, seen) if self._dtensors else values
        results = _Recorded.apply(self, values, args, *[differentiable[i] for i in record.inputs])  # type: ignore[no-untyped-call]
        for index, result, hidden in record.written:
            target = values[index]
            if hidden or target.is_leaf and target.requires_grad:  # a leaf may be written where autograd does not see it, and nowhere else
                target = target.detach()
            target.copy_(results[result])
        return results if self._finish is None else self._finish(results, values)

    def run(self, ctx: Any, values: Sequence[Any], args: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The forward graph's results; what its backward graph needs is kept in `ctx`. `inputs`: those that require gradients."""
        record = self._record
        if self._dtensors:
            known = (self._inputs[i].position in self._dtensors for i in record.inputs)
            ctx.meshes = [x.device_mesh if there else None for there, x in zip(known, inputs, strict=True)]
        raw = self._forward(*args)
        saved = [values[i] if source == "input" else raw[i] for source, i in record.saved]
        ctx.save_for_backward(*saved)
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        ctx.kept = [(t.shape, t.stride(), t.dtype, t.device) for t in saved] if hooked else None
        ctx.numbers = [evaluate(number, values, raw) for number in record.numbers]
        ctx.results = [(raw[i].shape, raw[i].dtype, raw[i].device) for i, _, _ in record.tangents]
        ctx.set_materialize_grads(False)
        results = raw[: len(record.results)]
        if self._undifferentiable:
            ctx.mark_non_differentiable(*[t for i in self._undifferentiable if isinstance(t := results[i], torch.Tensor)])
        return results

    def gradients(self, ctx: Any, given: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of `AutogradRecord.inputs`, from those of the results."""
        arguments = [*ctx.numbers, *_saved(ctx)]  # nothing else holds them: each is freed after its last use
        arguments += [
            _tangent(given[i], stride or _dense(order, described[0]), *described)
            for (i, order, stride), described in zip(self._record.tangents, ctx.results, strict=True)
        ]
        ctx.maybe_clear_saved_tensors()  # they stay where the graph is kept
        made = self._backward(arguments)
        if any(self._record.reached):
            there = {place for place, (i, _, _) in enumerate(self._record.tangents) if given[i] is not None}
            pairs = zip(made, self._record.reached, strict=True)
            made = tuple(None if sources and there.isdisjoint(sources) else gradient for gradient, sources in pairs)
        if torch.is_grad_enabled():
            kept = [i for i, gradient in enumerate(made) if gradient is not None]
            delayed = torch._C._functions.DelayedError(_TWICE.encode(), len(kept))
            wrapped = delayed(*[made[i].detach().requires_grad_() for i in kept])  # of one tensor it gives that, and no tuple
            found = dict(zip(kept, (wrapped,) if len(kept) == 1 else wrapped, strict=True))
            made = tuple(found.get(i) for i in range(len(made)))
        if self._dtensors:
            places = [self._dtensors.get(self._inputs[i].position) for i in self._record.inputs]
            made = tuple(
                gradient if place is None or gradient is None else place.made(gradient, mesh)
                for gradient, place, mesh in zip(made, places, ctx.meshes, strict=True)
            )
        return made


@dataclass(frozen=True)
class _OfDTensor:
    """How the gradient of a DTensor lies on its mesh."""

    placements: tuple[Any, ...]
    size: torch.Size
    stride: tuple[int, ...]

    @staticmethod
    def read(item: GraphInput) -> _OfDTensor:
        """Raises LoadError."""
        _, placements, size, stride = item.part[0]
        try:
            return _OfDTensor(untag(placements), torch.Size(size), tuple(stride))
        except (LookupError, ValueError) as error:
            raise LoadError(f"it takes a DTensor, and how its gradient lies on the mesh cannot be read here: {error}") from error

    def made(self, local: torch.Tensor, mesh: Any) -> Any:
        from_local = find_object("torch.distributed.tensor:DTensor").from_local
        return from_local(local, mesh, self.placements, run_check=False, shape=self.size, stride=self.stride)


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: RecordedCall, values: Sequence[Any], args: Sequence[Any], *inputs: Any) -> Any:
        ctx.call = call
        return call.run(ctx, values, args, inputs)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        with torch._C._DisableAutocast():
            return (None, None, None, *ctx.call.gradients(ctx, given))


def _dense(order: Sequence[int], size: Sequence[int]) -> list[int]:
    """The strides of a tensor whose dimensions lie in that order in memory, outermost first, without gaps."""
    stride, step = [0] * len(size), 1
    for dim in reversed(order):
        stride[dim] = step
        step *= max(int(size[dim]), 1)
    return stride


def _saved(ctx: Any) -> Sequence[torch.Tensor]:
    found: Sequence[torch.Tensor] = ctx.saved_tensors
    if ctx.kept is None:
        return found
    return [_as_kept(tensor, *kept) for tensor, kept in zip(found, ctx.kept, strict=True)]


def _as_kept(given: Any, size: torch.Size, stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What a hook on saved tensors gave back, as it lay in memory when it was saved: the backward graph reads it by these strides."""
    plain = isinstance(given, torch.Tensor) and given.layout is torch.strided
    if not plain or (given.shape, given.dtype, given.device) != (size, dtype, device):
        found = f"a {type(given).__name__}"
        if isinstance(given, torch.Tensor):
            layout = "" if given.layout is torch.strided else f"{given.layout} "
            found = f"{layout}{given.dtype} {list(given.shape)} on {given.device}"
        raise PrecastError(
            f"a hook on saved tensors (torch.autograd.graph.saved_tensors_hooks) gave back {found} where {dtype} {list(size)} on {device} "
            "was saved: let its unpack function give a dense tensor of that size, dtype and device, or run it eagerly (precast.disable)"
        )
    kept: torch.Tensor = given.resolve_conj().resolve_neg()
    if all(n == 1 or a == b for n, a, b in zip(size, kept.stride(), stride, strict=True)):
        return kept
    once = kept[tuple([slice(0, 1) if step == 0 else slice(None) for step in stride])]  # what is repeated lies there once
    return torch.empty_strided(once.shape, stride, dtype=dtype, device=device).copy_(once).expand(size)


def _tangent(given: Any, stride: Sequence[int], size: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The gradient of a result as the backward graph takes it, with these strides; zeros where there is none."""
    if given is None:
        return torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()
    if type(given) is not torch.Tensor and type(given) is not torch.nn.Parameter:
        raise PrecastError(
            f"a gradient of type {type(given).__name__} reached a compiled graph, whose backward graph takes plain tensors: "
            "run this call eagerly (precast.disable)"
        )
    if given.is_conj() or given.is_neg():
        given = given.resolve_conj().resolve_neg()
    if given.layout is not torch.strided:
        given = given.to_dense()
    dense: torch.Tensor = given
    if all(n == 1 or a == b for n, a, b in zip(size, dense.stride(), stride, strict=True)) and dense.dtype == dtype:
        return dense
    laid_out: torch.Tensor = torch.empty_strided(size, stride, dtype=dtype, device=device).copy_(given)
    return laid_out


__all__ = ["Gradients", "RecordedCall"]
