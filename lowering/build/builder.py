"""The builder: buffers and steps of the program under construction, and the policy of what is computed into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    CHECK,
    LET,
    POSITION,
    RANGE,
    Alu,
    Axis,
    Bind,
    Buffer,
    Const,
    Extern,
    Index,
    Kernel,
    Load,
    Reduce,
    Scan,
    Size,
    Step,
    Store,
    StoreMode,
    Value,
    View,
    axis_symbol,
    walk,
)
from precast.lowering.ir.scalars import TRANSCENDENTAL, DType, ReduceOp
from precast.lowering.ir.sizes import Unsupported, bounds_of, is_unbacked, sizes
from precast.lowering.ir.sympy_calls import equal, same, symbols_of
from precast.lowering.ir.torch_dtypes import TORCH_NAMES, dtype_of
from precast.target_registry import HOST_DEVICE

WITHOUT_ARITHMETIC = (DType.C64, DType.C128, DType.FLOAT8, DType.OTHER)
"""Types that only library calls compute with."""

MAX_LOADS = 24
MAX_NODES = 160
"""A body beyond these is computed into memory whatever its users are."""


class Cost:
    """What evaluating a body once takes: distinct loads, nodes, and whether a transcendental function or a run-time index is among them."""

    def __init__(self, value: Value) -> None:
        self.loads, self.nodes, self.heavy = 0, 0, False
        for node in walk(value):
            if isinstance(node, Load):
                self.loads += 1
                self.heavy |= bool(node.gathers)
            elif isinstance(node, Alu):
                self.nodes += 1
                self.heavy |= node.op in TRANSCENDENTAL
            elif not isinstance(node, Const | Index):
                self.nodes += 1
                self.heavy |= isinstance(node, Reduce | Scan)

    @property
    def cheap(self) -> bool:
        """Worth computing again in each user rather than stored and loaded."""
        return self.loads <= 1 and self.nodes <= 6 and not self.heavy

    @property
    def huge(self) -> bool:
        return self.loads > MAX_LOADS or self.nodes > MAX_NODES


@dataclass(frozen=True)
class Check:
    """An assertion of the graph over sizes: where it is false, the call ends with this message."""

    condition: sympy.Basic
    message: str


class Builder:
    """Collects buffers and steps. `value` is the fake result of the node being lowered: rules may read it."""

    def __init__(self) -> None:
        self.named: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.constants: list[tuple[str, torch.Tensor]] = []
        self.origin = ""
        self.inlined: dict[Tensor, tuple[str, ...]] = {}  # of what is not in memory: names of the nodes that computing it takes in
        self.operands: tuple[str, ...] = ()  # those of the operands of the node being lowered
        self.written: set[str] = set()  # buffers that exist already
        self.value: Any = None
        self.reads = 1  # how often the node's result is read
        self.is_result = False  # whether the caller sees it
        self.feeds_library = False  # whether a user of it is a library call, which wants it in memory
        self.used_results: frozenset[int] | None = None  # which of several results are read
        self.known: set[sympy.Symbol] = set()  # data-dependent symbols that a step has bound
        self.checks: list[Check] = []  # waiting for their symbols
        self.device = HOST_DEVICE  # the type of device that the graph's tensors are on; what is in the host's memory there is marked so
        self.library_scan: int | None = None  # elements from which the scan of a single row is the library's; None: of no row
        self.own_random = False  # whether random numbers may be others than eager's
        self.keys, self._keys_at = "", 0  # the buffer of the keys of random numbers, where there are any, and the step that draws them
        self._realised: dict[Tensor, Tensor] = {}
        self._symbolic = False  # whether a buffer has a size that is not a number
        self._kernels = 0
        self._gathers = 0

    # --- buffers -----------------------------------------------------------------------------------------------------------------

    def buffer(
        self, size: Sequence[Size], dtype: DType, stride: Sequence[Size] | None = None, torch_dtype: str = "", name: str = ""
    ) -> str:
        """A new buffer; contiguous unless `stride` is given. Returns its name."""
        size = tuple(size)
        strides = tuple(stride) if stride is not None else ix.contiguous_strides(size)
        made = Buffer(name or f"b{len(self.named)}", dtype, size, strides, torch_dtype)
        self._symbolic |= not all(isinstance(n, int) for n in size)
        self.named[made.name] = made
        return made.name

    def whole(self, name: str) -> Tensor:
        """The buffer as a tensor."""
        made = self.named[name]
        return Tensor(made.size, made.dtype, View(name, made.size, made.stride))

    def output(self, position: int | None = None, kind: DType | None = None) -> Tensor:
        """A new buffer with the size, strides and dtype (or `kind`) that eager gives this node's result (one of several: `position`)."""
        value = self.value if position is None else self.value[position]
        assert isinstance(value, torch.Tensor)
        if kind is None:
            return self.whole(self.buffer_like(value))
        made = self.buffer(sizes(value.shape), kind, sizes(value.stride()))
        self.mark_place(made, value)
        return self.whole(made)

    def buffer_like(self, value: torch.Tensor, name: str = "") -> str:
        """A new buffer laid out as a fake tensor is."""
        torch_name = str(value.dtype).removeprefix("torch.")
        made = self.buffer(sizes(value.shape), dtype_of(value.dtype), sizes(value.stride()), torch_name, name)
        self.mark_place(made, value)
        return made

    def mark_place(self, name: str, value: torch.Tensor) -> None:
        """Notes that buffer `name` lies in the host's memory, where the fake tensor does and the graph is for a GPU."""
        if self.on_gpu and value.device.type == "cpu":
            self.named[name] = replace(self.named[name], on_cpu=True)

    @property
    def on_gpu(self) -> bool:
        """Whether the graph's tensors are on a device other than the host."""
        return self.device != HOST_DEVICE

    @property
    def dtype(self) -> DType:
        """The dtype of this node's (first) result."""
        value = self.value[0] if isinstance(self.value, tuple | list) else self.value
        assert isinstance(value, torch.Tensor)
        return dtype_of(value.dtype)

    def is_used(self, position: int) -> bool:
        """Whether the node's result at that position is read at all."""
        return self.used_results is None or position in self.used_results

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The dtypes of this node's results."""
        assert isinstance(self.value, tuple | list)
        return tuple(dtype_of(t.dtype) if t is not None else DType.OTHER for t in self.value)

    @staticmethod
    def sizes(value: torch.Tensor) -> tuple[Size, ...]:
        """The size of one fake tensor."""
        return sizes(value.shape)

    @property
    def size(self) -> tuple[Size, ...]:
        """The size of this node's (first) result."""
        value = self.value[0] if isinstance(self.value, tuple | list) else self.value
        assert isinstance(value, torch.Tensor)
        return sizes(value.shape)

    # --- sizes that depend on data --------------------------------------------------------------------------------------------------

    def bound(self, binds: Sequence[Bind]) -> None:
        """Steps behind the one that binds these symbols: their ranges, and the checks that waited for them, are tested at once, before
        any step rests on them.
        """
        self.known |= {b.symbol for b in binds}
        ready = [c for c in self.checks if all(s in self.known for s in c.condition.free_symbols if is_unbacked(s))]
        self.checks = [c for c in self.checks if c not in ready]
        for check in ready:
            self.steps.append(Extern(CHECK, (check.condition, check.message), (), (), (), (self.origin,)))
        for bind in binds:
            low, high = bounds_of(bind.symbol)
            if low is not None and (low > 0 or bind.out < 0) or high is not None:
                self.steps.append(Extern(RANGE, (bind.symbol, low, high), (), (), (), (self.origin,)))

    def require(self, condition: sympy.Basic, message: str) -> None:
        """A check where the condition over data-dependent sizes is not known to hold."""
        if condition is not sympy.true:
            self.steps.append(Extern(CHECK, (condition, message), (), (), (), (self.origin,)))

    def agree(self, a: Size, b: Size, message: str) -> bool:
        """Whether two sizes may be equal; where only a run can tell, it is checked there."""
        if not same(a, b):
            if isinstance(a, int) and isinstance(b, int):
                return False
            self.require(equal(a, b), message)
        return True

    def require_position(self, index: Size, size: Size, dim: int) -> None:
        """A check that a data-dependent index lies within a dimension."""
        self.steps.append(Extern(POSITION, (index, size, dim), (), (), (), (self.origin,)))

    def let(self, size: Size, value: Size) -> None:
        """`size`, which the trace could only name, is `value`."""
        solved = ix.affine_in_one(size) if is_unbacked(size) else None
        if solved is None or solved[0] in self.known:
            return
        symbol, factor, offset = solved
        bind = Bind(symbol)
        found = ix.FloorDiv(sympy.sympify(value) - offset, sympy.Integer(factor))
        self.steps.append(Extern(LET, (found,), (), (), (), (self.origin,), (bind,)))
        self.bound([bind])

    # --- memory ------------------------------------------------------------------------------------------------------------------

    def store(self, target: Tensor, source: Tensor, mode: StoreMode = "set", mask: Value | None = None) -> None:
        """A kernel that writes `source` over `target`, a window of the same size."""
        assert target.window is not None
        if any(s == 0 for s in target.size):
            self._allocate(target.window.buffer)  # nothing to write, but readers need the memory to exist
            return
        if target.dtype in WITHOUT_ARITHMETIC:
            self._library_copy(target.window, source)
            return
        names = ix.symbols(target.rank)
        stride = target.window.stride
        order = sorted((d for d in range(target.rank) if target.size[d] != 1), key=lambda d: (-_rank(stride[d]), d))
        terms = tuple((stride[d], names[d]) for d in range(target.rank) if target.size[d] != 1)
        value = self._within(tx.cast(source.body(), target.dtype), target.size)
        axes = tuple(Axis(names[d], target.size[d]) for d in order)
        self.kernel(axes, Store(target.window.buffer, ix.affine(target.window.offset, terms), value, mode, (), mask), of=source)

    def _library_copy(self, target: View, source: Tensor) -> None:
        """A copy that no kernel can make: the buffer is allocated and filled by library calls."""
        if source.window is None:
            raise Unsupported(f"{self.origin}: a {source.dtype.value} tensor would have to be computed, and no kernel does that")
        self._allocate(target.buffer)
        self.steps.append(Extern("aten::copy_", (target, source.window), (), (), (target.buffer,), (self.origin,)))

    def _allocate(self, name: str) -> None:
        """Makes a buffer that no step has written so far exist."""
        if name in self.written:
            return
        self.written.add(name)
        made = self.named[name]
        arguments = (tuple(_scalar(n) for n in made.size), tuple(_scalar(n) for n in made.stride))
        kind = TORCH_NAMES.get(made.dtype, made.torch_dtype)
        place = (("device", ("device", self.device)),) if self.on_gpu else ()
        options: tuple[tuple[str, object], ...] = (("dtype", ("dtype", kind)), *place)
        self.steps.append(Extern("aten::empty_strided", arguments, options, (name,), (), (self.origin,)))

    def random_key(self) -> Value | None:
        """A key (I64) of random numbers for one operator, new at each call of the program; None where the numbers have to be eager's."""
        if not self.own_random:
            return None
        if not self.keys:
            self.keys, self._keys_at = self.buffer((0,), DType.I64), len(self.steps)
            self.written.add(self.keys)
            self.steps.append(self._drawn_keys(0))
        (number,) = self.named[self.keys].size
        self.named[self.keys] = replace(self.named[self.keys], size=(number + 1,))
        self.steps[self._keys_at] = self._drawn_keys(number + 1)
        return Load(self.keys, sympy.sympify(number), DType.I64)

    def _drawn_keys(self, count: Size) -> Extern:
        kind = ("dtype", ("dtype", "int64"))
        options = (kind, ("device", ("device", self.device))) if self.on_gpu else (kind,)
        return Extern("aten::randint", ((1 << 63) - 1, (_scalar(count),)), options, (self.keys,), (), (self.origin,))

    def kernel(self, axes: tuple[Axis, ...], *stores: Store, of: Tensor | None = None) -> None:
        """Appends a kernel, unless it covers no point. `of`: the tensor that it computes, where that is known."""
        if any(a.extent == 0 for a in axes):
            return
        self._kernels += 1
        self.written.update(s.buffer for s in stores)
        origins = self.inlined.get(of) if of is not None else None
        self.steps.append(Kernel(f"k{self._kernels - 1}", axes, stores, self.origins if origins is None else origins))

    @property
    def origins(self) -> tuple[str, ...]:
        """The node being lowered, behind those whose results its operands take in."""
        return tuple(dict.fromkeys((*self.operands, self.origin))) if self.origin else ()

    def realise(self, t: Tensor, stride: Sequence[Size] | None = None) -> Tensor:
        """`t` in memory, as it is where it is a window already. A new buffer takes `stride` when that is dense, else is contiguous."""
        if t.window is not None:
            return t
        found = self._realised.get(t)
        if found is None:
            found = tx.located(t)
            found = self._realised[t] = found if found.window is not None else self.copy(t, stride)
        return found

    def copy(self, t: Tensor, stride: Sequence[Size] | None = None) -> Tensor:
        """`t` in a buffer of its own."""
        usable = stride is not None and is_dense(t.size, tuple(stride))
        made = self.whole(self.buffer(t.size, t.dtype, stride if usable else None))
        self.store(made, t)
        return made

    def window(self, t: Tensor, stride: Sequence[Size] | None = None) -> View:
        """Where `t` lies in memory, computing it there first if need be."""
        found = self.realise(t, stride).window
        assert found is not None
        return found

    def realised(self, t: Tensor) -> Tensor:
        """`t` in memory if that happened since."""
        return self._realised.get(t, t)

    def settle(self, t: Tensor) -> Tensor:
        """`t`, computed into memory unless reading it is cheap: for rules that use an operand more than once."""
        return t if t.window is not None or Cost(t.body()).cheap else self.realise(t)

    # --- building blocks ---------------------------------------------------------------------------------------------------------

    def lazy(self, size: Sequence[Size], dtype: DType, value: Value) -> Tensor:
        """A tensor by its body over the canonical symbols of `size`; converts to the dtype's arithmetic type."""
        return Tensor(tuple(size), dtype, value=self._within(tx.cast(value, dtype), size))

    def _within(self, value: Value, size: Sequence[Size]) -> Value:
        """The value at 0 of each dimension of one element, of which an operand's size may be a formula: that it is 1 a guard says."""
        ones = {s for s, n in zip(ix.symbols(len(size)), size, strict=True) if n == 1} if self._symbolic else set()
        read = (v.expr if isinstance(v, Index) else v.index for v in walk(value) if isinstance(v, Index | Load)) if ones else ()
        if all(ones.isdisjoint(symbols_of(expr)) for expr in read):
            return value
        zeros: tuple[tuple[sympy.Symbol, sympy.Expr], ...] = tuple((s, sympy.S.Zero) for s in ix.symbols(len(size)) if s in ones)
        return tx.substitute(value, zeros, ix.extents_of(tuple(size)))

    def reduce(
        self,
        op: ReduceOp,
        t: Tensor,
        dims: Sequence[int],
        dtype: DType,
        keepdim: bool = False,
        finish: Callable[[Value], Value] | None = None,
    ) -> Tensor:
        """A reduction over `dims`, in memory. `dtype` is the result's; sums and products accumulate in its arithmetic type.

        `finish` is applied to the reduced value before it is stored (a mean's division, a norm's root).
        """
        bound = sorted({d % max(t.rank, 1) for d in dims}) if t.rank else []
        kept = [d for d in range(t.rank) if d not in bound]
        size = tuple((1 if d in bound else s) for d, s in enumerate(t.size)) if keepdim else tuple(t.size[d] for d in kept)
        outer = ix.symbols(len(size))
        position = {d: outer[d if keepdim else kept.index(d)] for d in kept}
        axes = tuple(Axis(ix.reduction_symbol(k), t.size[d]) for k, d in enumerate(bound))
        inner = {d: a.symbol for d, a in zip(bound, axes, strict=True)}
        index = [position[d] if d in position else inner[d] for d in range(t.rank)]
        value = t.at([e if n != 1 else sympy.S.Zero for e, n in zip(index, t.size, strict=True)], tuple(zip(index, t.size, strict=True)))
        if op in (ReduceOp.SUM, ReduceOp.PROD):
            value = tx.cast(value, dtype)
        arg = op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX)
        kind = value.dtype.compute if op in (ReduceOp.MIN, ReduceOp.MAX) else DType.I64 if arg else dtype.compute
        if op in (ReduceOp.ANY, ReduceOp.ALL):
            value, kind = tx.cast(value, DType.BOOL), DType.BOOL
        axes = tuple(a for a in axes if a.extent != 1)
        alone = tx.constant(0, kind) if arg else value  # nothing to reduce over
        result: Value = Reduce(op, value, axes, kind) if axes else alone
        return self.copy(self.lazy(size, dtype, result if finish is None else finish(result)), self._stride_for(size))

    def _stride_for(self, size: tuple[Size, ...]) -> tuple[Size, ...] | None:
        """Eager's strides, where the node's (first) result has that size."""
        value = self.value[0] if isinstance(self.value, tuple | list) else self.value
        if isinstance(value, torch.Tensor) and sizes(value.shape) == size:
            return sizes(value.stride())
        return None

    def gather_symbol(self) -> sympy.Symbol:
        """A fresh symbol for a `Gather`."""
        self._gathers += 1
        return axis_symbol(f"g{self._gathers - 1}")


def _scalar(size: Size) -> int | Index:
    return size if isinstance(size, int) else Index(size)


def _rank(stride: Size) -> int:
    """Orders strides, symbolic ones by their value at a large size."""
    if isinstance(stride, int):
        return stride
    return ix.evaluate(stride, dict.fromkeys(stride.free_symbols, 1009))


def is_dense(size: tuple[Size, ...], stride: tuple[Size, ...]) -> bool:
    """Whether the strides are those of a permuted contiguous tensor."""
    if any(s == 0 for s in size):
        return True
    dims = sorted(((_rank(st), s, st) for s, st in zip(size, stride, strict=True) if s != 1), key=lambda d: d[0])
    step: Size = 1
    for _, s, st in dims:
        if st != step and ix.expand(st - step) != 0:
            return False
        step = ix.plain(step * s)
    return True
