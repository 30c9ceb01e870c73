"""Small-M GEMM: f32 products of a few rows with a weight [N, K] that is read in place, without packing.

Both operands are contiguous along K, and each element of the result is the sum of a vector's lanes; a tile of such vectors is kept in
registers. For few rows a library spends more time on packing such a weight than on the product. The result of a row does not depend on the
number of rows and of threads.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Callable, Mapping

import torch

from precast.codegen.common.toolchain import compile_shared, lanes_of
from precast.codegen.cpu.vector_shuffles import totals
from precast.lowering.ir.nodes import Buffer, Gemm
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import hint

ROWS = range(2, 33)
"""Numbers of rows for which this was measured to be faster, by up to twice. A single row is bound by memory."""
LEAST_DEPTH = 64
"""K from which on it may be faster: below, summing the lanes takes as long as the products."""


def few_rows(step: Gemm, buffers: Mapping[str, Buffer]) -> bool:
    """Whether this code can compute a product, and may be the fastest; where the number of rows is symbolic, by the traced call's."""
    out = buffers[step.out]
    operands = [v for v in (step.a, step.b, step.bias) if v is not None]
    if len(step.a.size) != 2 or {out.dtype, *(v.dtype or buffers[v.buffer].dtype for v in operands)} != {DType.F32}:
        return False
    units = (step.a.stride[1], step.b.stride[0], out.stride[1], *(() if step.bias is None else step.bias.stride))
    return all(n == 1 for n in units) and hint(step.a.size[0]) in ROWS and hint(step.a.size[1]) >= LEAST_DEPTH


COLUMNS = 4
"""Columns of the results whose vectors are kept in registers, of so many rows as `_rows` tells."""


def _rows(lanes: int) -> tuple[int, ...]:
    """Numbers of rows that have code of their own, the largest first. Few, for each takes time to compile."""
    return {16: (4, 2, 1), 8: (3, 1)}.get(lanes, (2, 1))


def _dots(rows: int, lanes: int) -> str:
    """`rows` by `COLUMNS` results."""
    lines = [
        f"static void __attribute__((noinline)) dots{rows}(const float* a, int64_t lda, const float* const* b, int64_t K, I fresh,",
        "    H shift, float* c, int64_t ldc) {",
    ]
    lines += [f"  const float* const a{r} = a + {r} * lda;" for r in range(rows)]
    lines += [f"  const float* const b{s} = b[{s}];" for s in range(COLUMNS)]
    lines += [f"  V c{r}{s} = {{0}};" for r in range(rows) for s in range(COLUMNS)]
    for head, mask, ahead in (("int64_t k = 0; for (; k + L <= K; k += L)", "", True), ("if (k < K)", "fresh & ", False)):
        lines.append(f"  {head} {{")
        if mask:  # the last L elements; those summed before are zeroed in both operands, as one may be infinite
            lines.append("    k = K - L;")
        lines += [f"    const V x{r} = (V)({mask}*(const I*)(a{r} + k));" for r in range(rows)]
        for s in range(COLUMNS):
            prefetch = f"__builtin_prefetch(b{s} + k + 4 * L); " if ahead else ""
            sums = " ".join(f"c{r}{s} += x{r} * y;" for r in range(rows))
            lines.append(f"    {{ const V y = (V)({mask}*(const I*)(b{s} + k)); {prefetch}{sums} }}")
        lines.append("  }")
    low = ", ".join(str(s) for s in range(COLUMNS))
    for r in range(rows):
        lines.append(f"  {{ V {', '.join(f'v{s} = c{r}{s}' for s in range(COLUMNS))};")
        lines.append(f"    {totals(lanes, COLUMNS)}")
        lines.append(f"    *(H*)(c + {r} * ldc) = __builtin_shufflevector(v0, v0, {low}) + shift; }}")
    return "\n".join([*lines, "}"])


def few_rows_source(lanes: int) -> str:
    """C++ of `few::product` for vectors of `lanes` f32."""
    rows = _rows(lanes)
    return (
        _SOURCE.replace("@LANES", str(lanes))
        .replace("@ROWS", str(rows[0]))
        .replace("@COLUMNS", str(COLUMNS))
        .replace("@DOTS", "\n".join(_dots(r, lanes) for r in rows))
        .replace("@FIT", "".join(f"M - m >= {r} ? {r} : " for r in rows[:-1]) + "1")
        .replace("@CASES", " ".join(f"case {r}: dots{r}(from, lda, w, K, fresh, shift, to, step); break;" for r in rows))
    )


_SOURCE = r"""
#pragma GCC push_options
#pragma GCC optimize ("fp-contract=fast", "no-tree-loop-vectorize", "no-tree-slp-vectorize")
namespace few {
enum : int64_t { L = @LANES, ROWS = @ROWS, COLUMNS = @COLUMNS };
typedef float V __attribute__((vector_size(4 * L), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * L), aligned(4), may_alias));
typedef float H __attribute__((vector_size(4 * COLUMNS), aligned(4), may_alias));
@DOTS
/* c[M][N] = a[M][K] * b[N][K] + bias[N], which may be NULL; K is L at least. The columns are dealt to threads. */
static void product(const float* a, int64_t lda, const float* b, int64_t ldb, const float* bias, float* c, int64_t ldc, int64_t M,
                    int64_t N, int64_t K, int threads) {
  I fresh; for (int64_t i = 0; i < L; ++i) fresh[i] = i < L - K % L ? 0 : -1;
  #pragma omp parallel for schedule(static) num_threads(threads) if(threads > 1 && M * N * K > 1 << 17)
  for (int64_t n = 0; n < N; n += COLUMNS) {
    const int64_t columns = N - n < COLUMNS ? N - n : COLUMNS;
    const float* w[COLUMNS]; H shift = {0}; float tile[ROWS * COLUMNS];
    for (int64_t s = 0; s < COLUMNS; ++s) w[s] = b + (n + (s < columns ? s : 0)) * ldb;
    if (bias) for (int64_t s = 0; s < columns; ++s) shift[s] = bias[n + s];
    const bool whole = columns == COLUMNS; const int64_t step = whole ? ldc : COLUMNS;
    for (int64_t m = 0, rows; m < M; m += rows) {
      rows = @FIT;
      const float* const from = a + m * lda; float* const result = c + m * ldc + n; float* const to = whole ? result : tile;
      switch (rows) { @CASES }
      if (!whole) for (int64_t r = 0; r < rows; ++r) for (int64_t s = 0; s < columns; ++s) result[r * ldc + s] = tile[r * COLUMNS + s];
    }
  }
}
}
#pragma GCC pop_options
"""

_EXPORT = r"""
extern "C" __attribute__((visibility("default"))) void product(
    const float* a, int64_t lda, const float* b, int64_t ldb, const float* bias, float* c, int64_t ldc, int64_t M, int64_t N, int64_t K,
    int threads) { few::product(a, lda, b, ldb, bias, c, ldc, M, N, K, threads); }
"""


@functools.cache
def _compiled() -> Callable[..., None]:
    """The function for this machine, to be measured outside of a program."""
    unit = "#include <stdint.h>\n" + few_rows_source(lanes_of("cpu:native")) + _EXPORT
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(compile_shared(unit, "cpu:native"))
        file.flush()
        function: Callable[..., None] = ctypes.CDLL(file.name).product
    return function


def product_call(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, threads: int) -> Callable[[], object]:
    """A function that computes `out = a @ b` with little overhead; b is a transposed weight."""
    function = _compiled()
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, out)]
    steps = [ctypes.c_int64(n) for n in (a.stride(0), b.stride(1), out.stride(0))]
    sizes = [ctypes.c_int64(n) for n in (a.shape[0], b.shape[1], b.shape[0])]
    arguments = (pointers[0], steps[0], pointers[1], steps[1], None, pointers[2], steps[2], *sizes, threads)

    def call() -> object:
        function(*arguments)
        return a, b, out

    return call
