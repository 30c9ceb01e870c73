"""Reading and writing at run-time indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Checked, Gather, Index, Load, Reduce, Scan, Size, Store, StoreMode, Value, walk
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import is_unbacked
from precast.lowering.ir.sympy_calls import maximum, minimum, same
from precast.lowering.ops import views
from precast.lowering.ops.creation import empty_sizes, position

FEW = 4
"""A tensor is computed whole for a read at run-time positions, unless that takes at most one element in so many."""


class Places:
    """Index expressions for one access: symbols that gather run-time values are collected on the way."""

    def __init__(self, b: Builder, size: tuple[Size, ...]) -> None:
        self.b, self.size = b, size
        self.gathers: list[Gather] = []
        self.negative = False

    def at(self, value: Value, extent: Size, checked: Checked = True, wraps: bool = False) -> sympy.Expr:
        """An index expression for a value along a dimension of `extent`; where it `wraps`, negative values count from the end."""
        if extent == 1 and not checked:
            return sympy.S.Zero
        if isinstance(value, Index) and ix.in_range(value.expr, extent, ix.extents_of(self.size)):
            return value.expr
        symbol = self.b.gather_symbol()
        self.gathers.append(Gather(symbol, tx.cast(value, DType.I64), extent, checked, wraps))
        return symbol

    def load(self, source: Tensor, index: Sequence[sympy.Expr]) -> Value:
        """The element of `source`, a window, at the index."""
        window = source.window
        assert window is not None
        place = ix.affine(window.offset, tuple(zip(window.stride, index, strict=True)))
        extents = (*ix.extents_of(self.size), *((g.symbol, g.size) for g in self.gathers))
        return Load(window.buffer, ix.simplify(place, extents), source.dtype, tuple(self.gathers))

    def computed(self, source: Tensor, index: Sequence[sympy.Expr]) -> Value | None:
        """The element of `source` at the index, computed from what its body reads; None where a body cannot be computed there alone."""
        symbols = {g.symbol: g for g in self.gathers}
        extents = (*ix.extents_of(self.size), *((g.symbol, g.size) for g in self.gathers))
        body = source.at(index, extents)
        bound: set[sympy.Symbol] = set()

        def here(node: Value, get: Callable[[Value], Value]) -> Value:
            if not isinstance(node, Load):
                return tx.with_operands(node, get)
            own = tuple(g for s, g in symbols.items() if s in node.index.free_symbols)
            bound.update(g.symbol for g in own)
            inner = tuple(Gather(g.symbol, get(g.value), g.size, g.checked, g.wraps) for g in node.gathers)
            return Load(node.buffer, node.index, node.dtype, (*own, *inner))

        for node in walk(body):
            if isinstance(node, Reduce | Scan):
                return None
            if isinstance(node, Load) and (node.mask is not None or any(g.checked for g in node.gathers)):
                return None  # positions that are not taken are checked, too
            if isinstance(node, Index) and not symbols.keys().isdisjoint(node.expr.free_symbols):
                return None
        value = tx.rebuild(body, here)
        return value if bound == symbols.keys() else None

    def store(self, target: Tensor, index: Sequence[sympy.Expr], value: Value, mode: StoreMode) -> None:
        """A kernel over all points of `size` that writes `target` at the index."""
        window = target.window
        assert window is not None
        place = ix.affine(window.offset, tuple(zip(window.stride, index, strict=True)))
        names = ix.symbols(len(self.size))
        axes = tuple(Axis(n, s) for n, s in zip(names, self.size, strict=True) if s != 1)
        self.b.kernel(axes, Store(window.buffer, place, tx.cast(value, target.dtype), mode, tuple(self.gathers)))


def _names(size: tuple[Size, ...]) -> list[sympy.Expr]:
    return [s if n != 1 else sympy.S.Zero for s, n in zip(ix.symbols(len(size)), size, strict=True)]


def _nowhere(x: Tensor, dims: Sequence[int], found: Sequence[Size]) -> bool:
    """Whether there are positions, but none that could lie inside: the library call raises eager's error."""
    return not empty_sizes(found) and any(x.size[d] == 0 for d in dims)


def _fits(size: Sequence[Size], into: Sequence[Size]) -> bool:
    """Whether a tensor of `size` is written to places of the size `into` without being spread: known now, not taken for granted."""
    return len(size) == len(into) and all(same(n, m) for n, m in zip(size, into, strict=True))


def _spreads(size: Sequence[Size], over: Sequence[Size]) -> bool:
    """Whether `size` broadcasts to `over`."""
    extra = len(over) - len(size)
    return extra >= 0 and all(n == 1 or same(n, m) for n, m in zip(size, over[extra:], strict=True))


@lowering("embedding")
def embedding(b: Builder, weight: Tensor, found: Tensor, *ignored: object, **more: object) -> Result:
    return _take(b, weight, 0, found)


def _take(b: Builder, x: Tensor, dim: int, found: Tensor, checked: Checked = True) -> Result:
    """`x` with `dim` replaced by the dimensions of the index tensor."""
    size = (*x.size[:dim], *found.size, *x.size[dim + 1 :])
    if _nowhere(x, [dim], found.size):
        return None
    if empty_sizes(size):
        return b.lazy(size, x.dtype, tx.constant(0, x.dtype))
    names = _names(size)
    places = Places(b, size)
    body = found.at(names[dim : dim + found.rank], ix.extents_of(size))
    index = [*names[:dim], places.at(body, x.size[dim], checked), *names[dim + found.rank :]]
    return _read(b, places, x, index, size)


def _read(b: Builder, places: Places, x: Tensor, index: list[sympy.Expr], size: tuple[Size, ...]) -> Tensor:
    if not places.gathers:
        return tx.indexed(x, size, index)
    if x.window is None and _few(size, x.size) and (value := places.computed(x, index)) is not None:
        return b.lazy(size, x.dtype, value)
    return b.lazy(size, x.dtype, places.load(b.realise(x), index))


def _few(taken: Sequence[Size], of: Sequence[Size]) -> bool:
    """Whether so few elements are taken that computing these alone is the least work."""
    one, whole = ix.numel(taken), ix.numel(of)
    return isinstance(one, int) and isinstance(whole, int) and FEW * one <= whole


@lowering("index_select")
def index_select(b: Builder, x: Tensor, dim: int, found: Tensor) -> Result:
    if x.rank == 0 or found.rank > 1:
        return None
    dim %= x.rank  # of the second dimension eager has another kernel
    return _take(b, x, dim, tx.reshape(found, (found.numel,)), "RuntimeError" if dim == 1 else True)


@lowering("gather")
def gather(b: Builder, x: Tensor, dim: int, found: Tensor, *, sparse_grad: bool = False) -> Result:
    """`sparse_grad`, which is of its gradient, stands for a loss's choice by class (lowering/build/loss_rules.py)."""
    if x.rank == 0 or found.rank == 0 or empty_sizes(found.size):
        return None if not empty_sizes(found.size) else b.lazy(b.size, b.dtype, tx.constant(0, b.dtype))
    dim %= x.rank
    if _nowhere(x, [dim], found.size):
        return None
    places = Places(b, found.size)
    index = _names(found.size)
    index[dim] = places.at(found.body(), x.size[dim], True if sparse_grad else "RuntimeError")
    return _read(b, places, x, index, found.size)


class Advanced:
    """`x[indices]` with tensors and gaps: where each dimension of the result comes from."""

    def __init__(self, b: Builder, x: Tensor, indices: Sequence[Tensor | None], size: tuple[Size, ...], checked: bool) -> None:
        """`size` is the result's; indices are broadcast together and stand where the first is, or in front when a gap splits them."""
        given = [(d, t) for d, t in enumerate(indices) if t is not None]
        self.rank = max(t.rank for _, t in given)
        dims = [d for d, _ in given]
        together = dims == list(range(dims[0], dims[-1] + 1))
        self.first = dims[0] if together else 0
        self.places = Places(b, size)
        names = _names(size)
        own = names[self.first : self.first + self.rank]
        rest = iter(names[: self.first] + names[self.first + self.rank :])
        extents = ix.extents_of(size)
        at = {d: t.at(own[self.rank - t.rank :], extents) for d, t in given}
        self.index = [self.places.at(at[d], x.size[d], checked, wraps=True) if d in at else next(rest) for d in range(x.rank)]


def _indices(x: Tensor, indices: Sequence[Tensor | None]) -> Sequence[Tensor | None] | None:
    """The index tensors, or None where one of them is a mask (whose count depends on data)."""
    if any(t is not None and t.dtype in (DType.BOOL, DType.U8) for t in indices) or all(t is None for t in indices):
        return None
    return indices


@lowering("index.Tensor")
def index(b: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Result:
    return _index(b, x, indices, checked=True)


@lowering("_unsafe_index.Tensor")
def unsafe_index(b: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Result:
    return _index(b, x, indices, checked=False)


def _index(b: Builder, x: Tensor, indices: Sequence[Tensor | None], checked: bool) -> Result:
    found = _indices(x, indices)
    if found is not None and empty_sizes(b.size):
        return b.lazy(b.size, b.dtype, tx.constant(0, b.dtype))
    if found is None or empty_sizes(x.size):
        return None
    advanced = Advanced(b, x, found, b.size, checked)
    return _read(b, advanced.places, x, advanced.index, b.size)


def fresh_copy(b: Builder, x: Tensor) -> Tensor:
    """`x` in new memory with eager's layout, to be written into."""
    out = b.output()
    b.store(out, x)
    return out


def accumulator(b: Builder, x: Tensor, mode: StoreMode) -> Tensor:
    """`x` in new memory with eager's layout, to be combined into: sums and products of many elements are kept in the arithmetic type."""
    kind = x.dtype.compute
    if mode not in ("add", "mul") or kind is x.dtype:
        return fresh_copy(b, x)
    out = b.output(kind=kind)
    b.store(out, x)
    return out


def _rounded(b: Builder, out: Tensor, dtype: DType) -> Tensor:
    """What an accumulator holds, in the dtype of the result."""
    return out if out.dtype is dtype else b.lazy(out.size, dtype, out.body())


@lowering("index_put", "_unsafe_index_put")
def index_put(b: Builder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *more: object) -> Result:
    masks = [t for t in indices if t is not None and t.dtype is DType.BOOL]
    if len(masks) == 1 and indices[0] is masks[0] and len(indices) == 1 and values.numel == 1 and not accumulate:
        if not _fits(masks[0].size, x.size[: masks[0].rank]):
            return None
        mask = tx.reshape(masks[0], (*masks[0].size, *(1 for _ in range(x.rank - masks[0].rank))))
        return v.lazy(b, v.where(mask.body(), tx.reshape(values, ()).body(), x.body()))
    found = _indices(x, indices)
    if found is None or x.dtype is DType.BOOL and accumulate:
        return None
    given = [t for t in found if t is not None]
    rank = max(t.rank for t in given)
    shape: list[Size] = [1] * rank
    for t in given:
        for d, n in enumerate(t.size):
            at = d + rank - t.rank
            if n != 1 and shape[at] != 1 and not same(n, shape[at]):
                return None
            shape[at] = n if n != 1 else shape[at]
    dims = [d for d, t in enumerate(found) if t is not None]
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    others = [n for d, n in enumerate(x.size) if d not in dims]
    size = (*others[:first], *shape, *others[first:])
    if _nowhere(x, dims, shape) or not _spreads(values.size, size):
        return None
    values = b.settle(values)
    mode: StoreMode = "add" if accumulate else "set"
    if empty_sizes(size):
        return fresh_copy(b, x)
    out = accumulator(b, x, mode)
    advanced = Advanced(b, x, found, size, checked=True)
    advanced.places.store(out, advanced.index, v.value_of(values, x.dtype), mode)
    return _rounded(b, out, x.dtype)


def _scatter(b: Builder, x: Tensor, dim: int, found: Tensor, source: v.Operand, mode: StoreMode) -> Result:
    if (
        x.rank == 0
        or found.rank == 0
        or not v.fits(source, x.dtype)
        or (x.dtype is DType.BOOL and mode != "set")
        or _nowhere(x, [dim], found.size)
    ):
        return None
    return _scatter_into(b, x, dim, found, source, mode)


def _scatter_into(b: Builder, x: Tensor, dim: int, found: Tensor, source: v.Operand, mode: StoreMode) -> Tensor:
    """A copy of `x` with `source` combined into it at `found` along `dim`."""
    if empty_sizes(found.size):
        return fresh_copy(b, x)
    out = accumulator(b, x, mode)
    dim %= x.rank
    places = Places(b, found.size)
    index = _names(found.size)
    index[dim] = places.at(found.body(), x.size[dim], "RuntimeError")
    if isinstance(source, Tensor):
        value = tx.cast(source.at(_names(found.size), ix.extents_of(found.size)), x.dtype)
    else:
        value = v.number(source, x.dtype)
    places.store(out, index, value, mode)
    return _rounded(b, out, x.dtype)


@lowering("scatter.src", "scatter.value")
def scatter(b: Builder, x: Tensor, dim: int, found: Tensor, source: v.Operand) -> Result:
    return _scatter(b, x, dim, found, source, "set")


@lowering("scatter_add")
def scatter_add(b: Builder, x: Tensor, dim: int, found: Tensor, source: Tensor) -> Result:
    return _scatter(b, x, dim, found, source, "add")


REDUCE_MODES: dict[str, StoreMode] = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@lowering("scatter.reduce", "scatter.value_reduce")
def scatter_with(b: Builder, x: Tensor, dim: int, found: Tensor, source: v.Operand, *, reduce: str) -> Result:
    return _scatter(b, x, dim, found, source, REDUCE_MODES[reduce])


@lowering("scatter_reduce.two")
def scatter_reduce(b: Builder, x: Tensor, dim: int, found: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Result:
    """Without `include_self`, the places that are hit start from the operation's neutral value."""
    if x.rank == 0 or found.rank == 0 or x.dtype is DType.BOOL or reduce == "mean" and not x.dtype.is_float:
        return None
    if _nowhere(x, [dim], found.size):
        return None
    mode = REDUCE_MODES.get(reduce, "add")
    found = b.settle(found)
    if not include_self:
        x = _scatter_into(b, x, dim, found, NEUTRAL[mode](x.dtype), "set")
    total = _scatter_into(b, x, dim, found, source, mode)
    if reduce != "mean":
        return total
    ones = b.lazy(x.size, x.dtype, tx.constant(1 if include_self else 0, x.dtype))
    count = _scatter_into(b, ones, dim, found, 1, "add").body()
    return b.lazy(x.size, x.dtype, v.div(total.body(), v.maximum(count, v.const(count, 1.0))))


NEUTRAL: dict[StoreMode, Callable[[DType], v.Number]] = {
    "add": lambda dtype: 0,
    "mul": lambda dtype: 1,
    "max": lambda dtype: -math.inf if dtype.is_float else 0 if dtype is DType.U8 else -(1 << (8 * dtype.itemsize - 1)),
    "min": lambda dtype: math.inf if dtype.is_float else 255 if dtype is DType.U8 else (1 << (8 * dtype.itemsize - 1)) - 1,
}


@lowering("index_add")
def index_add(b: Builder, x: Tensor, dim: int, found: Tensor, source: Tensor, *, alpha: v.Number = 1) -> Result:
    if x.rank == 0 or x.dtype is DType.BOOL or source.rank != x.rank:
        return None
    value = source if alpha == 1 else b.lazy(source.size, x.dtype, v.mul(v.value_of(source, x.dtype), v.number(alpha, x.dtype)))
    return _index_store(b, x, dim, found, value, "add", checked="RuntimeError" if x.rank > 1 else True)


@lowering("index_copy")
def index_copy(b: Builder, x: Tensor, dim: int, found: Tensor, source: Tensor) -> Result:
    return _index_store(b, x, dim, found, source, "set") if x.rank and source.rank == x.rank else None


@lowering("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(b: Builder, x: Tensor, dim: int, found: Tensor, value: v.Operand) -> Result:
    if not x.rank or not v.fits(value, x.dtype):
        return None
    dim %= x.rank
    size = (*x.size[:dim], found.numel, *x.size[dim + 1 :])
    return _index_store(b, x, dim, found, b.lazy(size, x.dtype, v.value_of(value, x.dtype)), "set", wraps=True)


def _index_store(
    b: Builder, x: Tensor, dim: int, found: Tensor, source: Tensor, mode: StoreMode, wraps: bool = False, checked: Checked = True
) -> Result:
    """`x` with whole slices written at the positions that a vector gives."""
    dim %= x.rank
    if found.rank > 1 or _nowhere(x, [dim], found.size) or not _fits(source.size, (*x.size[:dim], found.numel, *x.size[dim + 1 :])):
        return None
    if empty_sizes(source.size):
        return fresh_copy(b, x)
    out = accumulator(b, x, mode)
    places = Places(b, source.size)
    names = _names(source.size)
    flat = tx.reshape(found, (found.numel,))
    body = flat.at([names[dim]], ix.extents_of(source.size))
    names[dim] = places.at(body, x.size[dim], checked, wraps)
    places.store(out, names, v.value_of(source, x.dtype), mode)
    return _rounded(b, out, x.dtype)


@lowering("select_scatter")
def select_scatter(b: Builder, x: Tensor, source: Tensor, dim: int, place: Size) -> Result:
    dim %= x.rank
    extent = x.size[dim]
    outside = isinstance(place, int) and isinstance(extent, int) and not -extent <= place < extent
    if outside or not _fits(source.size, (*x.size[:dim], *x.size[dim + 1 :])):
        return None
    if not isinstance(extent, int) and not is_unbacked(place):
        b.require_position(place, extent, dim)
    place = views.place_of(b, place, x.size[dim], dim)
    hit = v.eq(position(dim, x.size), Index(sympy.sympify(place)))
    spread = tx.unsqueeze(source, dim)
    return v.lazy(b, v.where(hit, v.value_of(spread, b.dtype), x.body()))


@lowering("slice_scatter")
def slice_scatter(
    b: Builder, x: Tensor, source: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: Size = 1
) -> Result:
    if not isinstance(step, int):
        return None
    dim %= x.rank
    first = views.slice_start(x.size[dim], start)
    length = source.size[dim]
    taken = views.slice_length(x.size[dim], first, end, step)
    if not _fits((*source.size[:dim], 1, *source.size[dim + 1 :]), (*x.size[:dim], 1, *x.size[dim + 1 :])):
        return None
    if not b.agree(taken, length, "slice_scatter: the source is not as long as the slice"):
        return None
    if length == 0:
        return x
    if first == 0 and step == 1 and length == x.size[dim]:
        return v.lazy(b, v.value_of(source, b.dtype))
    out = fresh_copy(b, x)
    b.store(tx.narrow(out, dim, first, length, step), source)
    return out


@lowering("diagonal_scatter")
def diagonal_scatter(b: Builder, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Result:
    rows, columns = x.size[dim1], x.size[dim2]
    others = [n for d, n in enumerate(x.size) if d not in (dim1 % x.rank, dim2 % x.rank)]
    length = maximum(ix.plain(minimum(ix.plain(rows + min(offset, 0)), ix.plain(columns - max(offset, 0)))), 0)
    if not source.rank or not _fits(source.size[:-1], others):
        return None
    if not b.agree(length, source.size[-1], "diagonal_scatter: the source is not as long as the diagonal"):
        return None
    out = fresh_copy(b, x)
    b.store(views.diagonal_of(out, source.size, offset, dim1, dim2), source)
    return out
