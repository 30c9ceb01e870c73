"""Ops without a rule run through torch's dispatcher: arguments by the schema, results with the layout that the fake tensors promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import fx

from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Bind, Extern, Index, Size
from precast.lowering.ir.sizes import Unsupported, is_unbacked, sizes
from precast.lowering.ir.torch_dtypes import dtype_of

Lookup = Callable[[fx.Node], Any]


def extern(b: Builder, node: fx.Node, lookup: Lookup) -> Any:
    """Appends the call and returns its results: a tensor, a list of them, or the mutated argument."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    schema = op._schema
    if not all(_is_tensor_type(r.type) or _is_number_type(r.type) for r in schema.returns):
        returned = [str(r.type) for r in schema.returns]
        raise Unsupported(
            f"{op} at {node.name} returns {returned}: only tensors, and numbers that the trace knows, can leave a library call"
        )
    renamed = op
    if is_view(op):
        packet = getattr(torch.ops.aten, f"{schema.name.split('::')[1]}_copy", None)
        if packet is None or op._overloadname not in packet.overloads():
            raise Unsupported(f"{op} at {node.name} returns a view that precast cannot express, and has no copying form")
        renamed = getattr(packet, op._overloadname)
    args = tuple(argument(b, a, lookup) for a in node.args)
    kwargs = tuple((k, argument(b, a, lookup)) for k, a in node.kwargs.items())
    mutated = _written_arguments(node, schema)
    results, outs, binds = _results(b, node, schema, lookup, mutated, copies=renamed is not op)
    name = renamed._schema.name + (f".{renamed._overloadname}" if renamed._overloadname != "default" else "")
    changed = tuple(_mutated_buffers(lookup, mutated.values()))
    b.steps.append(Extern(name, args, kwargs, tuple(outs), changed, (node.name,), tuple(binds)))
    b.bound(binds)
    return results


def is_view(op: object) -> bool:
    """Whether the op returns a view of its first tensor argument."""
    if not isinstance(op, torch._ops.OpOverload):
        return False
    infos = [r.alias_info for r in op._schema.returns]
    return bool(infos) and infos[0] is not None and not infos[0].is_write


def _is_tensor_type(kind: object) -> bool:
    return str(kind) in ("Tensor", "List[Tensor]", "Optional[Tensor]", "List[Optional[Tensor]]")


def _is_number_type(kind: object) -> bool:
    """Numbers that come beside tensors (the lengths that attention saw): the trace knows them, and their readers have them from there."""
    return str(kind) in ("int", "bool", "float", "number")


def _written_arguments(node: fx.Node, schema: Any) -> dict[str, fx.Node]:
    """Alias set -> the node that the op writes in place."""
    found: dict[str, fx.Node] = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        if isinstance(value, fx.Node):
            found[next(iter(argument.alias_info.before_set))] = value
        elif isinstance(value, list | tuple):
            found |= {f"{argument.name}{k}": v for k, v in enumerate(value) if isinstance(v, fx.Node)}
    return found


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """The arguments that the op mutates."""
    if is_launch(node):
        return _written_by_launch(node)
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    return list(_written_arguments(node, node.target._schema).values())


def is_launch(node: fx.Node) -> bool:
    """Whether the node launches a user's Triton kernel (lowering/build/triton_launches.py)."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and "launch" in node.kwargs


def _written_by_launch(node: fx.Node) -> list[fx.Node]:
    arguments: Any = node.kwargs["arguments"]
    names: Any = node.kwargs["written"]
    return list(dict.fromkeys(arguments[name] for name in names))


def functional_form(op: object) -> object:
    """`aten.add` for `aten.add_`: same arguments, and the result is what would have been written. None for other mutating ops."""
    assert isinstance(op, torch._ops.OpOverload)
    name = op._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") and not name.endswith("__") else None
    return getattr(packet, op._overloadname, None) if packet is not None else None


def _mutated_buffers(lookup: Lookup, nodes: Any) -> list[str]:
    return [lookup(n).window.buffer for n in nodes]


def _results(
    b: Builder, node: fx.Node, schema: Any, lookup: Lookup, mutated: dict[str, fx.Node], copies: bool
) -> tuple[Any, list[str], list[Bind]]:
    """The values that the node stands for, the new buffers behind them in return order (lists flattened), and the sizes that they tell."""
    values = node.meta["val"] if len(schema.returns) > 1 else (node.meta.get("val"),)
    outs: list[str] = []
    binds: list[Bind] = []

    def fresh(value: Any) -> Tensor | None:
        if value is None:
            outs.append("")
            return None
        size = sizes(value.shape)
        stride = ix.contiguous_strides(size) if copies else sizes(value.stride())
        binds.extend(_binds(b, len(outs), size))
        made = b.whole(b.buffer(size, dtype_of(value.dtype), stride, str(value.dtype).removeprefix("torch.")))
        assert made.window is not None
        b.mark_place(made.window.buffer, value)
        outs.append(made.window.buffer)
        b.written.add(made.window.buffer)
        return made

    results: list[Any] = []
    for declared, value in zip(schema.returns, values, strict=True) if schema.returns else ():
        info = declared.alias_info
        if info is not None and info.is_write:
            results.append(lookup(mutated[next(iter(info.before_set))]))
        elif isinstance(value, list | tuple):
            results.append([fresh(v) for v in value])
        elif _is_number_type(declared.type):
            outs.append("")
            results.append(value)
        else:
            results.append(fresh(value))
    return (results[0] if len(results) == 1 else results if results else None), outs, binds


def _binds(b: Builder, out: int, size: tuple[Size, ...]) -> list[Bind]:
    """The data-dependent sizes that the `out`-th result of a call is the first to tell."""
    found = []
    for dim, n in enumerate(size):
        solved = ix.affine_in_one(n) if is_unbacked(n) else None
        if solved is not None and solved[0] not in b.known:
            b.known.add(solved[0])
            found.append(Bind(solved[0], out, dim, *solved[1:]))
    return found


def argument(b: Builder, arg: Any, lookup: Lookup) -> Any:
    """An operand or constant of a call as the IR writes it. Raises Unsupported."""
    match arg:
        case fx.Node():
            return _operand(b, arg, lookup(arg))
        case list() | tuple():
            return tuple(argument(b, a, lookup) for a in arg)
        case torch.dtype():
            return ("dtype", str(arg).removeprefix("torch."))
        case torch.device():
            return ("device", arg.type)
        case torch.memory_format():
            return ("memory_format", str(arg).removeprefix("torch."))
        case torch.layout():
            return ("layout", str(arg).removeprefix("torch."))
        case None | bool() | int() | float() | str() | complex():
            return arg
    raise Unsupported(f"an argument of type {type(arg).__name__} cannot be passed to a library call")


def _operand(b: Builder, node: fx.Node, value: Any) -> Any:
    """A tensor operand with exactly eager's strides: results' layouts may follow from them."""
    if isinstance(value, Tensor):
        stride = sizes(node.meta["val"].stride())
        window = b.window(value, stride)
        if any(n != 1 and s != t for n, s, t in zip(value.size, window.stride, stride, strict=True)):
            window = b.copy(value, stride).window  # type: ignore[assignment]
        return window
    if isinstance(value, sympy.Expr):
        return Index(value)
    if isinstance(value, list | tuple):
        return tuple(_operand_of(b, v) for v in value)
    return value


def _operand_of(b: Builder, value: Any) -> Any:
    return b.window(value) if isinstance(value, Tensor) else value
