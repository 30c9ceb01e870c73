"""The loop IR: immutable, interned values over named axes; the only language between lowering and the code generators.

Semantics (every renderer keeps these; `lowering/verify/verify.py` checks the rest):

* A `Kernel` computes each of its `stores` at every point of the axes that the store mentions. Points are independent of
  one another except inside `Reduce` (over its own bound axes) and `Scan` (along one kernel axis, ascending).
* Index expressions are sympy integers over axis symbols and size symbols. `//` and `%` are `FloorDiv` and `Modulo`
  (`lowering/ir/index.py`), floor semantics; index operands are never negative unless the expression says so.
* Integers wrap (two's complement). Integer `DIV` is true division in the value's (float) dtype; `FLOORDIV`/`MOD` floor as Python does;
  `TRUNCDIV`/`REM` truncate as C does. Shifts follow ATen.
* `MIN`/`MAX` propagate NaN from either side, as `torch.minimum`/`maximum` do. `REDUCE MIN/MAX` too. Comparisons are IEEE.
* bf16/f16 are storage types: loads widen to f32, arithmetic is f32, stores round to nearest even. An explicit `Cast` to a
  half type rounds there (the graph says where eager would round; lowering drops the casts between fused ops, as
  accuracy against higher precision only gains).
* Reductions accumulate in `Reduce.dtype`: f32 or wider for floats, i64 for integers; order is unspecified.
* No contraction or reassociation other than inside Reduce; no flush of denormals.
* Scatter stores (`mode != "set"`) read-modify-write; colliding indices accumulate (any order); `"set"` collisions keep one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakValueDictionary

import sympy

from precast.lowering.ir.scalars import DType, Op, ReduceOp

Size = int | sympy.Expr
"""A dimension: an int where it is known, else a sympy integer expression over `Program.symbols`."""


class Interned(type):
    """Equal nodes are one object: `is` is equality, hashing is O(1), sharing is CSE."""

    pool: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
    __match_args__: tuple[str, ...]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        node = super().__call__(*args, **kwargs)
        parts = [getattr(node, name) for name in cls.__match_args__]  # the fields, in order
        # repr: 0.0 is not -0.0, 1 is not True, nan is nan
        key = (cls, *((type(p).__name__, repr(p)) if isinstance(p, (bool, int, float)) else p for p in parts))
        return Interned.pool.setdefault(key, node)


@dataclass(frozen=True, eq=False)
class Axis:
    """One loop dimension: `symbol` runs over `0 <= symbol < extent`. Axes are equal when they are the same object."""

    symbol: sympy.Symbol
    extent: Size

    def __repr__(self) -> str:
        return f"{self.symbol}<{self.extent}"


class AxisSymbol(sympy.Symbol):  # type: ignore[no-untyped-call]
    """A symbol of an axis, which no symbol of anybody else equals. sympy remembers expressions by equality: one over another library's
    `i0` (Inductor's are called so, too) would be handed out for ours, over a symbol that is not the axis'.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return axis_symbol, (self.name,)


AxisSymbol.__name__ = "Symbol"
"""sympy orders the terms of a sum by the names of their classes, and symbols before products."""


def axis_symbol(name: str) -> sympy.Symbol:
    """The one symbol of that name: among these too, `is` is equality. (sympy forgets all but its last thousand symbols, and would then
    make another that is equal but not the same, while expressions that are remembered still hold the first.)
    """
    known = _axis_symbols.get(name)
    return known or _axis_symbols.setdefault(name, AxisSymbol(name, integer=True, nonnegative=True))  # type: ignore[no-untyped-call]


_axis_symbols: dict[str, sympy.Symbol] = {}


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Const(metaclass=Interned):
    """A scalar. `value` is a Python bool, int or float that `dtype` can hold."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Index(metaclass=Interned):
    """An integer index expression as a value (arange, positions, sizes)."""

    expr: sympy.Expr
    dtype: DType = DType.I64


Checked = bool | Literal["RuntimeError"]
"""Whether a run-time position is checked; the name of the error that eager raises on a CPU where that is not an IndexError."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Gather(metaclass=Interned):
    """Binds `symbol` in an index expression to run-time data.

    `value` (integer) selects along a dimension of `size`. Where it `wraps`, negative values count from the end, as those of `x[i]` do.
    Anything outside `[-size, size)`, or `[0, size)` where it does not wrap, must stop the call with an IndexError, or with the error that
    `checked` names (checked by the renderer unless it is False, which means that it was proven in range).
    """

    symbol: sympy.Symbol
    value: Value
    size: Size
    checked: Checked = True
    wraps: bool = True


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Load(metaclass=Interned):
    """`buffer[index]`, as `dtype.compute`. Where `mask` is false nothing is read and the value is 0."""

    buffer: str
    index: sympy.Expr
    dtype: DType
    gathers: tuple[Gather, ...] = ()
    mask: Value | None = None


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Cast(metaclass=Interned):
    """Conversion as `Tensor.to(dtype)` does it (float to int truncates, to BOOL is `!= 0`, to half types rounds)."""

    value: Value
    dtype: DType


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Alu(metaclass=Interned):
    op: Op
    args: tuple[Value, ...]
    dtype: DType


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Reduce(metaclass=Interned):
    """`value` combined over all points of the bound `axes`. ARGMIN/ARGMAX give the linear index over `axes` (row-major), I64."""

    op: ReduceOp
    value: Value
    axes: tuple[Axis, ...]
    dtype: DType


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Scan(metaclass=Interned):
    """Inclusive running SUM, PROD, MIN, MAX of `value` along the kernel axis `axis`.

    ARGMIN/ARGMAX: index of the running extreme (the last one among equals).
    """

    op: ReduceOp
    value: Value
    axis: Axis
    dtype: DType


Value = Const | Index | Load | Cast | Alu | Reduce | Scan


@dataclass(frozen=True, eq=False)
class Buffer:
    """A strided tensor in memory. `stride` is in elements; element 0 is at the buffer's base (`offset` elements into its storage)."""

    name: str
    dtype: DType
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    torch_dtype: str = ""  # torch's own name ("float8_e4m3fn"), needed where dtype is OTHER or FLOAT8
    on_cpu: bool = False  # in a program for a GPU: lies in the host's memory (an input, or what an extern call gives)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype.value}{list(self.size)} stride {list(self.stride)}"


@dataclass(frozen=True, eq=False)
class View:
    """A strided window into a buffer, as an operand of a library or extern call."""

    buffer: str
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size = 0  # elements from the buffer's base
    dtype: DType | None = None  # None: the buffer's


StoreMode = Literal["set", "add", "mul", "min", "max"]


@dataclass(frozen=True, eq=False)
class Store:
    """`buffer[index] = value` (or combine by `mode`) at each point of the kernel axes that appear in it, where `mask` holds."""

    buffer: str
    index: sympy.Expr
    value: Value
    mode: StoreMode = "set"
    gathers: tuple[Gather, ...] = ()
    mask: Value | None = None
    axes: tuple[Axis, ...] | None = None  # the kernel axes it runs over; None: all of them


@dataclass(frozen=True, eq=False)
class Kernel:
    """One fused loop nest. `axes` are outer to inner in memory order of the main store; tiling and order are codegen's."""

    name: str
    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...] = ()  # names of the graph's nodes, for people


Scalar = bool | int | float | str | None
Arg = Any
"""Argument of an extern call: View, Index (a size as a scalar), Scalar, ("dtype", name), ("device", name), or nested tuples."""


@dataclass(frozen=True, eq=False)
class Bind:
    """A symbol that a step gives its value: `factor * symbol + offset` is the size of dimension `dim` of the step's `out`-th result,
    or (out -1) the element that `precast::item` reads.
    """

    symbol: sympy.Symbol
    out: int = -1
    dim: int = 0
    factor: int = 1
    offset: int = 0


ITEM, LET, CHECK, RANGE, POSITION = "precast::item", "precast::let", "precast::check", "precast::range", "precast::position"
"""Extern ops of our own. `item(view)` binds a symbol to one element, `let(size)` to a size. `check(condition, message)` and
`range(symbol, low, high)` end the call with a RuntimeError where the condition over symbols is false or the value is out of range (None:
no bound); `position(index, size, dim)` with an IndexError where the index lies outside of the dimension.
"""
LAUNCH = "triton-kernel::"
"""Begins the op of an extern call that launches a user's Triton kernel, whose `module:qualname` follows. It may fill what nothing wrote."""


@dataclass(frozen=True, eq=False)
class Extern:
    """Any ATen overload through torch's dispatcher. `args`/`kwargs` follow its schema; `outs` name fresh buffers in return order.

    With `mutates`, the listed argument views are written in place and `outs` may be empty. `binds`: sizes that only the results tell.
    """

    op: str  # "aten::sort.stable"
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    outs: tuple[str, ...]
    mutates: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()


Unary = Literal["none", "relu", "gelu", "gelu_tanh", "sigmoid", "tanh", "silu", "hardswish", "hardtanh", "leaky_relu"]


@dataclass(frozen=True, eq=False)
class Gemm:
    """`out = act(a @ b + bias) (+ residual)`; `a`: [(B,) M, K], `b`: [(B,) K, N], any strides; `bias`: [N] or None.

    Batches are equal: no leading dimension is broadcast.

    `residual` has out's shape and is added after the activation when `residual_order` is "after", else before it.
    """

    a: View
    b: View
    bias: View | None
    out: str
    activation: Unary = "none"
    activation_args: tuple[float, ...] = ()
    residual: View | None = None
    residual_order: Literal["before", "after"] = "before"
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Conv:
    """N-d convolution, weights [O, I/groups, *k] (transposed: [I, O/groups, *k]); epilogue as in `Gemm`. Layout is that of the views.

    `padding_behind`: zeros behind each spatial dimension, where they are not as many as those before it, `padding`.
    """

    x: View
    weight: View
    bias: View | None
    out: str
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    activation: Unary = "none"
    activation_args: tuple[float, ...] = ()
    residual: View | None = None
    residual_order: Literal["before", "after"] = "before"
    origins: tuple[str, ...] = ()
    padding_behind: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Attention:
    """Scaled dot-product attention, kept whole. q, k, v: [B, H, S, D] (k and v may have fewer heads).

    `mask`: broadcastable to [B, H, Sq, Sk], additive, or None.
    """

    q: View
    k: View
    v: View
    mask: View | None
    out: str
    causal: bool
    scale: float
    origins: tuple[str, ...] = ()
    written_out: bool = False
    """Whether the program had it as products and a softmax of matrices in the operands' half type: then it may run as those."""


Step = Kernel | Extern | Gemm | Conv | Attention


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a temporary lives: byte `offset` in the call's one workspace. Buffers whose lifetimes do not meet share bytes."""

    buffer: str
    offset: Size
    nbytes: Size


@dataclass(frozen=True, eq=False)
class Part:
    """Bytes of the workspace, from `offset` on, that need to be there only from the first to the last step that uses a buffer in them."""

    offset: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class Constant:
    """A buffer whose contents are part of the program (a tensor literal of the user's code): `data` in the buffer's dtype, contiguous."""

    buffer: str
    data: bytes


@dataclass(frozen=True, eq=False)
class Output:
    """What the caller gets back at one position: a buffer (fresh or an input's own), a view of it, a symbolic integer, or None."""

    view: View | None
    scalar: Size | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """A graph: `steps` in order over `buffers`. Input buffers are named in `inputs` in calling order; integer inputs are symbols."""

    name: str
    symbols: tuple[sympy.Symbol, ...]
    inputs: tuple[str | sympy.Symbol, ...]
    outputs: tuple[Output, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    workspace: tuple[Slot, ...] = ()
    workspace_bytes: Size = 0
    parts: tuple[Part, ...] = ()  # of the workspace, each allocated apart; none: it is one piece, there for the whole call
    prepare: tuple[Step, ...] = ()  # `freeze`: run once per binding of the weights, writes `persistent` buffers
    persistent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # why-not-fused and other remarks for people
    constants: tuple[Constant, ...] = ()  # buffers that are filled before the first step and never written
    derived: tuple[
        tuple[sympy.Symbol, Size], ...
    ] = ()  # symbols that are expressions over others; `symbol_bindings.py` says where the rest come from

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)


def operands(value: Value) -> tuple[Value, ...]:
    """The values that `value` is computed from, gathers and masks included."""
    match value:
        case Alu(args=args):
            return args
        case Load(gathers=gathers, mask=mask):
            if not gathers:
                return () if mask is None else (mask,)
            return (*(g.value for g in gathers), *((mask,) if mask is not None else ()))
        case Cast(value=v) | Reduce(value=v) | Scan(value=v):
            return (v,)
        case Const() | Index():
            return ()


def walk(*roots: Value) -> Iterator[Value]:
    """Each distinct value under `roots` once, operands before users (iterative: production graphs are deep)."""
    seen: set[int] = set()
    stack: list[tuple[Value, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        below = operands(node)
        if not below:
            yield node
            continue
        stack.append((node, True))
        for child in reversed(below):
            stack.append((child, False))
