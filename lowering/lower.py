"""From a functional ATen graph to an unscheduled `Program`: one flat walk, one rule an op.

Each kernel of the result computes one tensor. Nothing is fused across kernels here: pointwise bodies are inlined into their only
user, everything else is stored, and the scheduler decides what becomes of the stores.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

import precast.lowering.ops  # noqa: F401  (fills the table)
from precast.lowering.analysis.effects import symbols_in
from precast.lowering.analysis.symbol_bindings import symbols_used, told_by_tensors
from precast.lowering.analysis.traits import SM_90, Traits
from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build.builder import WITHOUT_ARITHMETIC, Builder, Check, Cost
from precast.lowering.build.control_flow import control_flow, is_body, is_control_flow
from precast.lowering.build.extern import extern, functional_form, is_launch, is_view, written_nodes
from precast.lowering.build.float_values import is_real
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.build.registry import LOWERINGS, VIEWS
from precast.lowering.build.triton_launches import is_uninitialised, launch
from precast.lowering.build.type_checks import fits
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import ITEM, Bind, Constant, Extern, Load, Output, Program, Size, View, walk
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import MAX_BOUND, Unsupported, is_unbacked, is_unguarded, number_of, size_symbol, sizes
from precast.lowering.ir.torch_dtypes import dtype_of
from precast.lowering.options import DEFAULTS, LoweringOptions
from precast.target_registry import HOST_DEVICE, family_on

aten = torch.ops.aten
STATIC_CHECKS = (
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)
"""Assertions about sizes and types: guards hold them, or checks where the sizes depend on data."""


COLLIDING = frozenset("index_put _unsafe_index_put scatter scatter_add scatter_reduce index_add index_copy index_reduce".split())
"""Operators that may write one element more than once: in any order here, in eager's under `torch.use_deterministic_algorithms`."""

VALUE_CHECKS = (aten._assert_async.default, aten._assert_async.msg)
"""Assertions about values, which each call makes."""


def lower(graph: fx.GraphModule, name: str, options: LoweringOptions = DEFAULTS, traits: Traits = SM_90) -> Program:
    """The graph (functional ATen ops, fake tensors in `node.meta["val"]`) as a program that computes the same.

    `traits`: of the GPU, where the graph's tensors are on one.
    Raises `Unsupported` where the graph holds what no ATen call can do for it (data-dependent sizes, higher-order ops).
    """
    with _disable_current_modes():  # a backend runs while torch still fakes tensors; the graph's own constants are real
        return _Walk(graph, name, options, traits).run()


class _Walk:
    def __init__(self, graph: fx.GraphModule, name: str, options: LoweringOptions, traits: Traits) -> None:
        self.module, self.name = graph, name
        self.nodes = list(graph.graph.nodes)
        self.env: dict[fx.Node, Any] = {}
        self.b = Builder()
        family = family_on(t.device.type for node in self.nodes for t in _tensors(node))
        self.b.device = HOST_DEVICE if family is None else family.device
        self.b.library_scan = traits.library_scan if self.b.on_gpu else None
        self.b.own_random = not options.fallback_random
        self.deterministic = options.deterministic and self.b.on_gpu
        self.inputs: list[str | sympy.Symbol] = []
        self.outputs: tuple[Output, ...] = ()
        self.derived: dict[sympy.Symbol, Size] = {}
        self.roots: dict[fx.Node, fx.Node] = {}
        self.owners: dict[str, fx.Node] = {}
        self.reads: dict[fx.Node, int] = {}
        self._analyse()

    def _analyse(self) -> None:
        """Which node's memory each node lies in, how often each is read, and which must be in memory of their own."""
        for node in self.nodes:
            self.roots[node] = self._root(node)
        for node in reversed(self.nodes):
            readers = [u for u in node.users if u.target not in STATIC_CHECKS]
            self.reads[node] = sum(self.reads[u] if is_view(u.target) or u.target is operator.getitem else 1 for u in readers)
        results = self.nodes[-1].all_input_nodes
        results += [n.args[0] for n in self.nodes if n.target is aten.as_strided.default]  # counts in the storage of its operand
        results += [w for n in self.nodes for w in written_nodes(n)]  # what is written in place must be memory of its own
        results += [
            n for node in self.nodes if is_launch(node) for n in node.all_input_nodes
        ]  # kernels count in the storage of their operands
        self.owned = {self.roots[r] for r in results if self.roots[r].op != "placeholder"}
        self.last_use = {n: i for i, user in enumerate(self.nodes) for n in user.all_input_nodes}

    def _root(self, node: fx.Node) -> fx.Node:
        if node.op != "call_function" or not node.all_input_nodes:
            return node
        source = node.all_input_nodes[0]
        if node.target is operator.getitem:
            return self.roots[source] if is_view(source.target) else node
        written = written_nodes(node)
        if written:
            return self.roots[written[0]]
        if is_view(node.target):
            return self.roots[source]
        if node.target is aten._unsafe_view.default and self.roots[source].op != "placeholder":
            return self.roots[source]  # by construction its operand is not used again
        return node

    def run(self) -> Program:
        self._collect_checks()
        for position, node in enumerate(self.nodes):
            self.b.origin = node.name
            match node.op:
                case "placeholder":
                    self._placeholder(node)
                case "get_attr" if is_body(self.module, node):
                    continue
                case "get_attr":
                    self.env[node] = self._constant(node)
                case "call_function":
                    operands = [self.b.realised(t) for n in node.all_input_nodes for t in _results(self.env.get(n))]
                    self.b.operands = tuple(dict.fromkeys(name for t in operands for name in self.b.inlined.get(t, ())))
                    self._call(node, position)
                    self.b.inlined |= {t: self.b.origins for t in _results(self.env.get(node)) if t.window is None}
                case "output":
                    self._output(node)
                case _:
                    raise Unsupported(f"the graph's node {node.name} is a {node.op}, not an ATen call")
        b = self.b
        constants = tuple(Constant(n, _raw_bytes(t)) for n, t in b.constants)
        program = Program(
            self.name,
            (),
            tuple(self.inputs),
            self.outputs,
            tuple(b.named.values()),
            tuple(b.steps),
            constants=constants,
            derived=tuple(self.derived.items()),
        )
        given = [i for i in self.inputs if isinstance(i, sympy.Symbol)]
        told = {*given, *told_by_tensors(program), *self.derived}
        used = sorted(symbols_used(program), key=str)
        unknown = [str(s) for s in used if is_unbacked(s) and s not in b.known and s not in told]
        if unknown:
            raise Unsupported(f"no step tells the number {unknown[0]}, which depends on data (such as the storage offset of a view)")
        return replace(program, symbols=tuple(dict.fromkeys([*given, *used])))

    # --- leaves ------------------------------------------------------------------------------------------------------------------

    def _placeholder(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            raise Unsupported(f"the input {node.name} has the layout {value.layout}; precast compiles strided tensors")
        if isinstance(value, torch.Tensor):
            name = f"in{len(self.inputs)}"
            self.b.buffer_like(value, name)
            self.inputs.append(name)
            self.b.written.add(name)
            self.env[node] = self.b.whole(name)
            return
        self._number_input(node, value)

    def _number_input(self, node: fx.Node, value: Any) -> None:
        """A number of the call. Where it is an expression over symbols (a guard said so), it defines what it can of them."""
        found: Any = _scalar(value)
        self.env[node] = found
        if isinstance(found, sympy.Symbol):
            self.inputs.append(found)
            return
        raw = size_symbol(f"n{len(self.inputs)}", -MAX_BOUND)
        self.inputs.append(raw)
        solved = ix.affine_in_one(found) if isinstance(found, sympy.Expr) and found.is_integer else None
        if solved is not None:
            symbol, factor, offset = solved
            self.derived.setdefault(symbol, ix.plain(ix.FloorDiv(raw - offset, sympy.Integer(factor))))

    def _constant(self, node: fx.Node) -> Any:
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"the graph's attribute {node.target} is a {type(value).__name__}, not a tensor")
        value = value.detach()
        dtype = dtype_of(value.dtype)
        if value.dim() == 0 and dtype not in WITHOUT_ARITHMETIC and type(value).__name__ in ("Tensor", "Parameter"):
            return Tensor((), dtype, value=tx.constant(value.item(), dtype))
        if value.numel() == 0 and dtype not in WITHOUT_ARITHMETIC:
            return Tensor(tuple(value.shape), dtype, value=tx.constant(0, dtype))
        name = self.b.buffer(tuple(value.shape), dtype, None, str(value.dtype).removeprefix("torch."))
        self.b.constants.append((name, value.contiguous()))
        return self.b.whole(name)

    # --- calls -------------------------------------------------------------------------------------------------------------------

    def _call(self, node: fx.Node, position: int) -> None:
        value = node.meta.get("val")
        if node.target is aten._local_scalar_dense.default:
            self.env[node] = self._item(node, value)
            return
        if isinstance(value, bool | int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
            self.env[node] = _scalar(value)
            return
        if isinstance(value, list | tuple) and value and all(isinstance(v, int | torch.SymInt) for v in value):
            self.env[node] = [_scalar(v) for v in value]  # all sizes or strides of a tensor
            return
        if node.target is operator.getitem:
            source, place = node.args
            self.env[node] = self._settle(node, self.env[source][place])  # type: ignore[index]
            return
        if is_control_flow(node.target):
            self.env[node] = control_flow(self.b, node, self._in_memory)
            return
        if is_launch(node):
            self._barrier(node, [self._argument(w) for w in written_nodes(node)], position)
            launch(self.b, node, self._in_memory)
            return
        if node.target in VALUE_CHECKS and not self.b.on_gpu:
            self._value_check(node)
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            if not node.users and value is None:
                return  # assertions on symbolic sizes: guards hold them
            raise Unsupported(f"{node.target} at {node.name} is not an ATen op")
        if node.target in STATIC_CHECKS:
            return  # their conditions were collected before the walk
        if isinstance(value, torch.Tensor) and is_uninitialised(node):
            name = self.b.buffer_like(value)
            self.b.written.add(name)
            self.owners[name] = node
            self.env[node] = self.b.whole(name)
            return
        reshaped = torch.Tag.inplace_view in node.target.tags  # `squeeze_`: no memory changes, and later nodes name the result
        written = [] if reshaped else written_nodes(node)
        if written:
            self._barrier(node, [self.env[w] for w in written], position)
        if node.target is aten.copy_.default:
            self.env[node] = self._copy_into(node)
            return
        result = self._rule(node, value)
        if result is None:
            result = extern(self.b, node, self._in_memory)
        elif written:
            result = self._write(self._argument(written[0]), result)
        self.env[node] = self._settle(node, result)

    def _item(self, node: fx.Node, value: Any) -> Any:
        """One element of a tensor as a number, which later sizes may depend on."""
        found = _scalar(value)
        unknown = [s for s in symbols_in(found) if is_unbacked(s) and s not in self.b.known]
        if len(unknown) == 1:
            binds = (Bind(unknown[0]),)
            (source,) = node.args
            self.b.steps.append(Extern(ITEM, (self.b.window(self._argument(source)),), (), (), (), (node.name,), binds))
            self.b.bound(binds)
        return found

    def _value_check(self, node: fx.Node) -> None:
        """An assertion on one element. On a GPU it is the library's call, which does not wait for the device."""
        bind = Bind(size_symbol(f"ok{len(self.b.steps)}", -MAX_BOUND, None, 1, True))
        message = str(node.args[1]) if len(node.args) > 1 else "Expected Tensor with single nonzero value, but got zero"
        self.b.steps.append(Extern(ITEM, (self.b.window(self._argument(node.args[0])),), (), (), (), (node.name,), (bind,)))
        self.b.bound((bind,))
        truth: Any = sympy.Ne
        self.b.require(truth(bind.symbol, 0), message)

    def _collect_checks(self) -> None:
        """The graph's assertions over data-dependent numbers; guards hold the others."""
        for node in self.nodes:
            if node.op != "call_function" or node.target is not aten._assert_scalar.default:
                continue
            condition, message = node.args
            value = condition.meta.get("val") if isinstance(condition, fx.Node) else condition
            found = _scalar(value) if isinstance(value, torch.SymBool) else value
            if isinstance(found, sympy.Basic) and (is_unbacked(found) or is_unguarded(value)):
                self.b.checks.append(Check(found, str(message)))
        self.b.bound(())  # what is said of the call's own sizes is checked before any step

    def _rule(self, node: fx.Node, value: Any) -> Any:
        """The rule's result, or None where there is no rule or it declines. For an op in place: what it will write."""
        target: Any = functional_form(node.target) if written_nodes(node) else node.target
        rule = LOWERINGS.get(target)
        if rule is None or (self.deterministic and target._schema.name.removeprefix("aten::") in COLLIDING):
            return None
        odd = node.target not in VIEWS and not _reads_bytes(node, value) and self._is_odd(node, value)
        if odd or self._crosses(node, value):
            return None
        if not fits(target, node.args, node.kwargs):
            return None
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(a) for k, a in node.kwargs.items() if k not in ("layout", "pin_memory", "device")}
        self.b.value = value
        self.b.reads, self.b.is_result = self.reads[node], node in self.owned
        self.b.feeds_library = any(u.target not in LOWERINGS and u.target is not operator.getitem for u in node.users)
        self.b.used_results = _used_results(node)
        try:
            found = rule(self.b, *args, **kwargs)
        except TypeError:
            if any(map(is_real, (*args, *kwargs.values()))):
                return None  # the rule asks for the value of a number that comes with each call; the library's call takes it as it is
            raise
        for t in found if isinstance(found, list | tuple) else (found,):
            if isinstance(t, Tensor) and t.window is None and t.dtype in WITHOUT_ARITHMETIC:
                return None
        return found

    def _is_odd(self, node: fx.Node, value: Any) -> bool:
        """Whether a type without arithmetic of its own (complex, float8 …) takes part."""
        values = [value, *(n.meta.get("val") for n in node.all_input_nodes)]
        flat = [t for v in values for t in (v if isinstance(v, list | tuple) else (v,)) if isinstance(t, torch.Tensor)]
        return any(dtype_of(t.dtype) in WITHOUT_ARITHMETIC or t.layout is not torch.strided for t in flat) or any(
            isinstance(a, complex) for a in node.args
        )

    def _crosses(self, node: fx.Node, value: Any) -> bool:
        """Whether a copy goes to or from the host's memory: a library call. Kernels read the host's numbers where they are."""
        if node.target is not aten._to_copy.default or not isinstance(value, torch.Tensor):
            return False
        source = node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else None
        if not isinstance(source, torch.Tensor) or source.device.type == value.device.type:
            return False
        return value.device.type == "cpu" or source.dim() > 0

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            value = self.env[arg]
            return self.b.realised(value) if isinstance(value, Tensor) else value
        if isinstance(arg, list | tuple):
            return [self._argument(a) for a in arg]
        return arg

    def _in_memory(self, node: fx.Node) -> Any:
        """The node's value; a tensor that is computed into memory now stays there for its other users."""
        value = self.env[node]
        if isinstance(value, Tensor) and value.window is None:
            value = self.env[node] = self.b.realise(value, sizes(node.meta["val"].stride()))
        return value

    # --- what becomes memory -----------------------------------------------------------------------------------------------------

    def _settle(self, node: fx.Node, result: Any) -> Any:
        """The result as later nodes see it: in memory where that pays or where the caller will see it."""
        if isinstance(result, tuple | list):
            if is_view(node.target):
                return list(result)
            return [
                self._keep(node, r, r.window is None and not Cost(r.body()).cheap, None) if isinstance(r, Tensor) else r for r in result
            ]
        if not isinstance(result, Tensor):
            return result
        stride = sizes(node.meta["val"].stride())
        if node in self.owned:
            return self._own(node, result, stride)
        if result.window is not None:
            return result
        cost = Cost(result.body())
        several = self.reads[node] > 1 and not cost.cheap
        if len(stride) == 3 and stride[-1] != 1:
            stride = ix.contiguous_strides(result.size)  # [B, S, C] behind a convolution: what follows reads rows
        return self._keep(node, result, several or cost.huge, stride)

    def _keep(self, node: fx.Node, t: Tensor, wanted: bool, stride: tuple[Size, ...] | None) -> Tensor:
        return self.b.realise(t, stride) if wanted else t

    def _own(self, node: fx.Node, t: Tensor, stride: tuple[Size, ...]) -> Tensor:
        """`t` materialised in a fresh buffer that no other result shares, with eager's strides."""
        window = t.window
        if window is not None:
            name = window.buffer
            fits = window.offset == 0 and _strides_agree(t.size, window.stride, stride)
            whole = self.b.named[name].size
            shared = name in self.owners or name in self.inputs or any(name == c for c, _ in self.b.constants)
            if fits and not shared and ix.numel(whole) == t.numel:
                self.owners[name] = node
                return Tensor(t.size, t.dtype, View(name, t.size, stride))
        made = self.b.whole(self.b.buffer(t.size, t.dtype, stride, str(node.meta["val"].dtype).removeprefix("torch.")))
        assert made.window is not None
        self.b.store(made, t)
        self.owners[made.window.buffer] = node
        return made

    # --- mutation ----------------------------------------------------------------------------------------------------------------

    def _barrier(self, node: fx.Node, targets: list[Any], position: int) -> None:
        """Before memory is written: whatever lazily reads the old contents and is still needed is computed now."""
        names = {t.window.buffer for t in targets if isinstance(t, Tensor) and t.window is not None}
        roots = {self.roots[w] for w in written_nodes(node)}
        for other, value in list(self.env.items()):
            if self.last_use.get(other, -1) < position or self.roots[other] in roots:
                continue
            only_here = self.last_use[other] == position and node.target is aten.copy_.default
            if isinstance(value, Tensor):
                value = self.b.realised(value)
                if not only_here and _reads(value) & names:
                    value = self.b.copy(value, sizes(other.meta["val"].stride()))
                self.env[other] = value
            elif isinstance(value, list):
                self.env[other] = [self.b.copy(v) if isinstance(v, Tensor) and _reads(v) & names else v for v in value]

    def _copy_into(self, node: fx.Node) -> Tensor:
        """`copy_(target, source)`: the source may read the target where it writes, and nowhere else."""
        target, source = (self._argument(a) for a in node.args[:2])
        assert isinstance(target, Tensor) and isinstance(source, Tensor)
        if target.dtype is not source.dtype and (target.dtype in WITHOUT_ARITHMETIC or source.dtype in WITHOUT_ARITHMETIC):
            extern(self.b, node, self._in_memory)
            return target
        return self._write(target, source)

    def _write(self, target: Tensor, source: Tensor) -> Tensor:
        """Stores into existing memory."""
        assert target.window is not None
        name = target.window.buffer
        if source.window is not None:
            if _same(source.window, target.window):
                return target
            if source.window.buffer == name:
                source = self.b.copy(source)
        if target.dtype in WITHOUT_ARITHMETIC:
            self.b.store(target, tx.expand(source, target.size))
            return target
        here = target.body()
        reads = [v for v in walk(source.body()) if isinstance(v, Load) and v.buffer == name]
        if any(v.index != here.index or v.gathers for v in reads):  # type: ignore[union-attr]
            source = self.b.copy(source)
        self.b.store(target, tx.expand(source, target.size))
        return target

    # --- results -----------------------------------------------------------------------------------------------------------------

    def _output(self, node: fx.Node) -> None:
        found: list[Output] = []
        results = node.args[0] if isinstance(node.args[0], list | tuple) else (node.args[0],)
        for result in results:
            if not isinstance(result, fx.Node):
                found.append(Output(None, result if isinstance(result, int) else None))
                continue
            value = self.env[result]
            if isinstance(value, Tensor):
                stride = sizes(result.meta["val"].stride())
                window = self.b.window(value, stride)
                if not _strides_agree(value.size, window.stride, stride):
                    window = self.b.window(self._own(result, value, stride))
                found.append(Output(View(window.buffer, window.size, stride, window.offset, window.dtype)))
            else:
                found.append(Output(None, value))
        self.outputs = tuple(found)


def _reads_bytes(node: fx.Node, value: Any) -> bool:
    """Whether this converts floats of eight bits, whose bytes a kernel can read, to a type that has arithmetic."""
    source = node.args[0].meta.get("val") if node.target is aten._to_copy.default and isinstance(node.args[0], fx.Node) else None
    if not isinstance(source, torch.Tensor) or not isinstance(value, torch.Tensor) or source.layout is not torch.strided:
        return False
    return dtype_of(source.dtype) is DType.FLOAT8 and dtype_of(value.dtype) not in WITHOUT_ARITHMETIC


def _used_results(node: fx.Node) -> frozenset[int] | None:
    """Positions of a tuple's results that are read; None where the tuple itself goes somewhere."""
    if not all(u.target is operator.getitem for u in node.users):
        return None
    return frozenset(u.args[1] for u in node.users if u.users)  # type: ignore[misc]


def _strides_agree(size: tuple[Size, ...], a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    """Whether both describe the same layout: dimensions of size 1, and empty tensors, have none."""
    return any(n == 0 for n in size) or all(n == 1 or s == t for n, s, t in zip(size, a, b, strict=True))


def _same(a: View, b: View) -> bool:
    return (a.buffer, a.size, a.stride, a.offset) == (b.buffer, b.size, b.stride, b.offset)


def _reads(t: Tensor) -> set[str]:
    if t.window is not None:
        return {t.window.buffer}
    return {v.buffer for v in walk(t.body()) if isinstance(v, Load)}


def _scalar(value: Any) -> Any:
    """A number of the graph: itself, or a symbolic one's expression."""
    return number_of(value) if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    return [v for v in (value if isinstance(value, list | tuple) else (value,)) if isinstance(v, torch.Tensor)]


def _results(value: Any) -> list[Tensor]:
    """The tensors of a node's result."""
    return [t for t in (value if isinstance(value, tuple | list) else (value,)) if isinstance(t, Tensor)]


def _raw_bytes(t: torch.Tensor) -> bytes:
    return bytes(t.reshape(-1).view(torch.uint8).numpy().tobytes())
