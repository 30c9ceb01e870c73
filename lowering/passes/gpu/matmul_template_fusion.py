"""Matrix-product template fusion: a generated kernel for a product, with its prologue and epilogue, in place of a library call.

A library writes the product, and a kernel reads it again for the norm, the activation, the residual that follow: more bytes, at times, than
the product itself moves. Here a 1x1 convolution or a linear layer goes into the pointwise kernel that alone reads it; and where columns are
few, what makes its rows (the norm and the relu of the convolution before) is computed as they are read. Which products that pays for is
another pass's to say: by a rule (`skinny_matmul_rule.py`), or by a measurement (`codegen/cuda/fusion_choice.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.effects import reads, store_roots, writes
from precast.lowering.analysis.kernel_facts import points
from precast.lowering.analysis.matmul_patterns import Product, product_of
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Cast, Conv, Gemm, Kernel, Program, Reduce, Scan, Step, View, walk
from precast.lowering.ir.scalars import HALVES
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.substitution import Definition, Rewriter, Uninvertible
from precast.lowering.passes.fusion.library_loops import gemm_kernel, pointwise_kernel
from precast.lowering.passes.gpu.split_reductions import gpu_reductions
from precast.lowering.passes.simplify.collapse_axes import collapse_axes

VECTOR = 8
"""Elements of a half type that one access reads: rows of other lengths are slow to read."""
MAX_SUMS = 2
"""Products in one kernel: the blocks of more do not fit into registers and shared memory."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a product: rows (a hint where they are symbolic), columns and depth."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, eq=False)
class Alternative:
    """Two ways to compute the same results: `steps`, or one `kernel`, in which the product is `product`.

    The steps are a library's product of these `sizes` and the kernels around it. Where the kernel has a prologue fused as well, `inner`
    is the alternative without it, which was decided before, and whose kernel is among the steps if it was taken.
    """

    program: Program
    traits: Traits
    sizes: Sizes
    steps: tuple[Step, ...]
    kernel: Kernel
    product: Product
    inner: Kernel | None = None

    def finished(self, *steps: Step) -> Program:
        """A program of these steps over the same buffers, after the passes that follow this one."""
        return collapse_axes(gpu_reductions(replace(self.program, steps=steps), self.traits))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A product that may go into the kernel that reads it; `position`: of its step."""

    position: int
    step: Gemm | Conv
    sizes: Sizes


class ProductFusion:
    """A program on its way to having some of its products inside of kernels. A pass goes through the candidates, through the alternatives
    of those whose sizes it likes, and takes the kernels that it prefers; which these are, it knows by a rule or by a measurement.
    """

    def __init__(self, program: Program, traits: Traits) -> None:
        self.program, self.traits = program, traits
        self._taken: set[Kernel] = set()
        self.buffers = {b.name: b for b in program.buffers}
        self.steps: list[Step | None] = list(program.steps)
        self.fixed = {i for i in program.inputs if isinstance(i, str)} | set(program.persistent)
        self.fixed |= {c.buffer for c in program.constants} | {o.view.buffer for o in program.outputs if o.view is not None}
        self.readers: dict[str, set[int]] = {}
        self.writers: dict[str, list[int]] = {}
        for position, step in enumerate(program.steps):
            self._note(position, step)

    def _note(self, position: int, step: Step) -> None:
        for name in reads(step):
            self.readers.setdefault(name, set()).add(position)
        for name in writes(step):
            self.writers.setdefault(name, []).append(position)

    def candidates(self) -> Iterator[Candidate]:
        """The products that read whole vectors, in order."""
        for position, step in enumerate(self.program.steps):
            if isinstance(step, Gemm | Conv) and self.buffers[step.out].dtype in HALVES:
                sizes = _sizes(step)
                if sizes is not None:
                    yield Candidate(position, step, sizes)

    def take(self, alternative: Alternative) -> None:
        """The kernel of the alternative that was just asked about is to take the place of its steps."""
        self._taken.add(alternative.kernel)

    def program_now(self) -> Program:
        """The program with the kernels that were taken."""
        if None not in self.steps:
            return self.program
        return without_unused_buffers(replace(self.program, steps=tuple(s for s in self.steps if s is not None)))

    def alternatives(self, candidate: Candidate) -> Iterator[Alternative]:
        """The product inside of its reader, then with what makes its rows as well, as far as either is possible. What was taken by the
        time that the last one is passed is put into the program.
        """
        position, step, sizes = candidate.position, candidate.step, candidate.sizes
        at = self._sole_reader(step.out)
        user = None if at is None else self.steps[at]
        if at is None or not isinstance(user, Kernel) or not _is_plain(user):
            return
        whole = _as_kernel(step, self.buffers)
        (store,) = whole.stores
        made = Definition(step.out, whole.axes, store.index, Cast(store.value, self.buffers[step.out].dtype))
        most = points(whole.axes) + _sums(user)

        def inside(taken: Sequence[int], *definitions: Definition) -> tuple[Kernel, Product] | None:
            kernel = _inside(user, definitions)
            product = None if kernel is None else _product(kernel)
            if kernel is None or product is None or _sums(kernel) > most or not self._unchanged(taken, at):
                return None
            return kernel, product

        first = inside([position], made)
        if first is not None:
            yield Alternative(self.program, self.traits, sizes, (step, user), *first)
        alone = first[0] if first is not None and first[0] in self._taken else None
        maker = self._maker(position, step)
        both = None if maker is None else inside([maker[0], position], made, maker[1])
        if maker is not None and both is not None:
            before = self.steps[maker[0]]
            assert before is not None
            rest = (step, user) if alone is None else (alone,)
            yield Alternative(self.program, self.traits, sizes, (before, *rest), *both, None if first is None else first[0])
            if both[0] in self._taken:
                self._replace([maker[0], position], at, both[0])
                return
        if alone is not None:
            self._replace([position], at, alone)

    def _sole_reader(self, name: str) -> int | None:
        """The position of the only reader of a temporary that one step writes; None where there are several."""
        readers, writers = self.readers.get(name, set()), self.writers[name]
        only = next(iter(readers)) if len(readers) == 1 and len(writers) == 1 and name not in self.fixed else None
        return only if only is not None and only > writers[0] else None

    def _maker(self, position: int, step: Gemm | Conv) -> tuple[int, Definition] | None:
        """How the rows of the product are computed, and where, if for it alone and of as few columns as `Traits.fused_columns`."""
        name = (step.a if isinstance(step, Gemm) else step.x).buffer
        columns = hint(self.buffers[step.out].size[1])
        if columns > self.traits.fused_columns or name not in self.writers or self._sole_reader(name) != position:
            return None
        at = self.writers[name][0]
        maker = self.steps[at]
        if not isinstance(maker, Kernel) or len(maker.stores) != 1 or not _is_plain(maker):
            return None
        (store,) = maker.stores
        if any(isinstance(v, Reduce | Scan) for v in walk(store.value)) or store.gathers:
            return None
        return at, Definition(name, maker.axes, store.index, Cast(store.value, self.buffers[name].dtype))

    def _unchanged(self, taken: Sequence[int], at: int) -> bool:
        """Whether the operands of the steps `taken` are still unchanged when step `at` runs."""
        gone = set(taken)
        for position in taken:
            step = self.steps[position]
            assert step is not None
            for name in reads(step):
                if any(position < w <= at for w in self.writers.get(name, ()) if w not in gone):
                    return False
        return True

    def _replace(self, taken: Sequence[int], at: int, kernel: Kernel) -> None:
        for position in (*taken, at):
            step = self.steps[position]
            assert step is not None
            for name in reads(step):
                self.readers[name].discard(position)
            for name in writes(step):
                self.writers[name].remove(position)
            self.steps[position] = None
        self.steps[at] = kernel
        self._note(at, kernel)


def _sizes(step: Gemm | Conv) -> Sizes | None:
    """Of a product of matrices, or a convolution of single pixels, whose operands are read in whole vectors; None for any other."""
    if isinstance(step, Conv):
        rows, columns, depth, sides = _image_rows(step), step.weight.size[0], step.weight.size[1], (step.x, step.weight)
        along = _is_pointwise(step) and step.x.stride[1] == 1 and step.weight.stride[1] == 1
    else:
        rows, columns, depth, sides = hint(step.a.size[0]), step.b.size[-1], step.a.size[-1], (step.a, step.b)
        along = len(step.a.size) == 2 and step.a.stride[1] == 1 and 1 in step.b.stride
    views = [v for v in (*sides, step.bias, step.residual) if v is not None]
    if not along or any(v.dtype is not None or 0 in v.stride for v in views) or not isinstance(columns, int) or not isinstance(depth, int):
        return None
    whole = columns % VECTOR == 0 and depth % VECTOR == 0 and all(map(_in_vectors, sides))
    return Sizes(rows, columns, depth) if whole else None


def _in_vectors(view: View) -> bool:
    """Whether each row of the operand is aligned for vector accesses."""
    apart = (s for s, n in zip(view.stride, view.size, strict=True) if n != 1 and s != 1)
    return all(isinstance(s, int) and s % VECTOR == 0 for s in (view.offset, *apart))


def _image_rows(step: Conv) -> int:
    strided = (-(-hint(n) // s) for n, s in zip(step.x.size[2:], step.stride, strict=True))
    return hint(ix.numel((step.x.size[0], *strided)))


def _is_pointwise(step: Conv) -> bool:
    plain = not step.transposed and step.groups == 1 and len(step.x.size) == 4
    return plain and all(n == 1 for n in step.weight.size[2:]) and all(n == 0 for n in step.padding)


def _as_kernel(step: Gemm | Conv, buffers: dict[str, Buffer]) -> Kernel:
    return gemm_kernel(step.out, step, buffers) if isinstance(step, Gemm) else pointwise_kernel(step.out, step, buffers)


def _is_plain(kernel: Kernel) -> bool:
    """Whether each store is made at each point of the axes, and no scan runs along one."""
    if any(s.mode != "set" or s.mask is not None or s.axes is not None for s in kernel.stores):
        return False
    return not any(isinstance(v, Scan) for v in walk(*(r for s in kernel.stores for r in store_roots(s))))


def _inside(user: Kernel, definitions: Sequence[Definition]) -> Kernel | None:
    """The kernel with these buffers computed where it reads them; None where that cannot be."""
    rewriter = Rewriter(user.axes, {d.buffer: d for d in definitions})
    try:
        stores = tuple(rewriter.store(s, rewriter.env(()), None) for s in user.stores)
    except Uninvertible:
        return None
    return replace(user, stores=stores)


def _product(kernel: Kernel) -> Product | None:
    """The kernel as products that it stores along their columns, neighbours in memory being neighbouring columns; None for any other."""
    product = product_of(kernel.axes, kernel.stores)
    if product is None or len(product.sums) > MAX_SUMS:
        return None
    last = kernel.axes[-1]
    found = (ix.coefficients(s.index, (last.symbol,)) for s in kernel.stores)
    return product if last in product.columns and all(f is not None and f[1] == (1,) for f in found) else None


def _sums(kernel: Kernel) -> int:
    """How many sums the kernel makes."""
    return points(kernel.axes) * sum(isinstance(v, Reduce) for v in walk(*(r for s in kernel.stores for r in store_roots(s))))
