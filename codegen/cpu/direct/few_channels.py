"""f32 convolutions over images of few channels, such as a network's first, with bias and activation while the sums are in registers.

Vectors run along the result's channels, which lie last; the images lie in any layout, contiguous as they come from outside most of all. For
each row of the result, the input rows under its window are laid into a small buffer with the zeros around the image, so that no tap has to
ask where it is, and no copy of the whole image is made. A block of neighbours in the row shares what it reads of the weight, which is in
panels of two vectors' worth of filters, [taps][filters]: laid out once under `freeze`, and otherwise at each call, which is little work.
Each thread has its own stretch of the result's rows and helps with the others' then (`precast.codegen.cpp.sharing`). An element does not
depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from precast.codegen.common.library_steps import Pack
from precast.codegen.cpu.panel_gemm import epilogue_source
from precast.lowering.ir.nodes import Buffer, Conv
from precast.lowering.ir.sizes import known

MOST_PIXELS = {16: 14, 8: 6}
"""Neighbours by two vectors whose sums fit into the registers of a target with vectors of so many f32; 6 also where there are fewer."""
REST = (4, 1)
"""Neighbours of the blocks at the end of a row that is narrower than a block; a wider row's last block begins earlier."""


@dataclass(frozen=True, order=True)
class Tile:
    """What the code of a convolution depends on: neighbours that share the weight, and the columns from one of them to the next."""

    pixels: int
    step: int

    @property
    def tag(self) -> str:
        """The end of the names of its functions."""
        return f"{self.pixels}_{self.step}"

    @property
    def function(self) -> str:
        """The function that runs a whole convolution, within its namespace."""
        return f"conv_{self.tag}"


def tile_of(step: Conv, out: Buffer, lanes: int) -> Tile:
    """The code that a convolution takes: the number of neighbours with which a row takes the fewest products and loads of the weight."""
    most = MOST_PIXELS.get(lanes, 6)
    wide = out.size[3]
    if not known(wide) or int(wide) < most:
        return Tile(most, step.stride[1])
    blocks = {p: -(-int(wide) // p) for p in range(most, most // 2, -1)}
    return Tile(min(blocks, key=lambda p: blocks[p] * (p + 1)), step.stride[1])


@dataclass(frozen=True)
class FewChannelsPack(Pack):
    """A copy of a weight in panels."""

    lanes: int

    @property
    def elements(self) -> int:
        assert isinstance(self.step, Conv)
        filters, *taps = (int(n) for n in self.step.weight.size)
        panel = self.lanes * (1 if filters < 2 * self.lanes else 2)
        return -(-filters // panel) * panel * prod(taps)


def _tile(pixels: int, step: int, vectors: int) -> str:
    """The sums of `pixels` neighbours and of `vectors` of filters over all taps, which lie `at` so many f32 behind `x`."""
    name = f"tile{pixels}_{step}_{vectors}"
    lines = [
        f"template <int F> static void __attribute__((noinline)) {name}(const float* x, const int32_t* at, const float* w, int64_t taps,",
        "    const float* bias, float* y, int64_t O, float low, float high) {",
        *(f"  const V from{v} = bias ? *(const V*)(bias + {v} * L) : V{{0}};" for v in range(vectors)),
        f"  V {', '.join(f'c{p}_{v} = from{v}' for p in range(pixels) for v in range(vectors))};",
        f"  for (int64_t k = 0; k < taps; ++k, w += {vectors} * L) {{",
        "    const float* const a = x + at[k];",
        f"    const V {', '.join(f'b{v} = *(const V*)(w + {v} * L)' for v in range(vectors))};",
    ]
    for p in range(pixels):
        sums = " ".join(f"c{p}_{v} += value * b{v};" for v in range(vectors))
        lines.append(f"    {{ const float value = a[{p * step}]; {sums} }}")
    lines.append("  }")
    lines += [f"  put<F>(c{p}_{v}, y + {p} * O + {v} * L, low, high);" for p in range(pixels) for v in range(vectors)]
    return "\n".join([*lines, "}"])


def _driver(tile: Tile) -> str:
    sizes = [tile.pixels, *(p for p in REST if p < tile.pixels)]
    fit = "".join(f"Wo - o >= {p} ? {p} : " for p in sizes[:-1]) + str(sizes[-1])

    def cases(vectors: int) -> str:
        return " ".join(
            f"case {p}: tile{p}_{tile.step}_{vectors}<F>(x + at * {tile.step}, where, w, taps, shift, to + at * O, O, low, high); break;"
            for p in sizes
        )

    return (
        _DRIVER.replace("@TAG", tile.tag)
        .replace("@PIXELS", str(tile.pixels))
        .replace("@STEP", str(tile.step))
        .replace("@FIT", fit)
        .replace("@ONE", cases(1))
        .replace("@TWO", cases(2))
    )


def few_channels_source(lanes: int, tiles: Iterable[Tile]) -> str:
    """C++ of `few_channels::conv_TAG` for each of these tiles, for vectors of `lanes` f32."""
    tiles = sorted(set(tiles))
    blocks = sorted({(p, t.step) for t in tiles for p in (t.pixels, *REST)})
    parts = [_SOURCE.replace("@LANES", str(lanes)).replace("@EPILOGUE", epilogue_source("x", "y", residual=False))]
    parts += [_tile(p, s, vectors) for p, s in blocks for vectors in (1, 2)]
    return "\n".join([*parts, *(_driver(t) for t in tiles), "}", "#pragma GCC pop_options", ""])


_SOURCE = r"""
#pragma GCC push_options
#pragma GCC optimize ("fp-contract=fast")
extern "C" { void* aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__); void free(void*); }
namespace few_channels {
enum : int64_t { L = @LANES, PRODUCTS_PER_NS = 2 * L };
typedef float V __attribute__((vector_size(4 * L), aligned(4), may_alias));
@EPILOGUE
/* Filters of a panel, of which the last begins earlier instead of being smaller: some filters are computed twice, alike. */
INLINE int64_t width(int64_t O) { return O < 2 * L ? L : 2 * L; }
INLINE int64_t begin(int64_t n, int64_t O) { return n + width(O) <= O ? n : O - width(O); }
/* w[O][C][kh][kw] with any strides -> panels of [C][kh][kw][width]. */
static void layout(const float* w, const int64_t* stride, int64_t O, int64_t C, int64_t kh, int64_t kw, float* to) {
  for (int64_t n = 0; n < O; n += width(O))
    for (int64_t c = 0; c < C; ++c)
      for (int64_t i = 0; i < kh; ++i)
        for (int64_t j = 0; j < kw; ++j) {
          const float* const from = w + begin(n, O) * stride[0] + c * stride[1] + i * stride[2] + j * stride[3];
          for (int64_t o = 0; o < width(O); ++o) *to++ = from[o * stride[0]];
        }
}
"""

_DRIVER = r"""
/* x[N][C][H][W] with the strides x_steps and w[O][C][kh][kw] -> y[N][Ho][Wo][O]. `packed`, or w where that is NULL; bias may be NULL.
   Columns step by @STEP. Returns 1 without memory. */
template <int F> static int conv_@TAG(
    const float* x, const int64_t* x_steps, const float* packed, const float* w, const int64_t* w_steps, const float* bias, float* y,
    int64_t N, int64_t C, int64_t H, int64_t W, int64_t O, int64_t Ho, int64_t Wo, int64_t kh, int64_t kw, int64_t down, int64_t ph,
    int64_t pw, int64_t fall, int64_t pace, float low, float high, int threads) {
  if (N <= 0 || Ho <= 0 || Wo <= 0) return 0;
  const int64_t taps = C * kh * kw, panels = (O + width(O) - 1) / width(O);
  const int64_t columns = (Wo - 1) * @STEP + (kw - 1) * pace + 1, bytes = 4 * C * kh * columns;
  /* Where the image's columns lie in the buffer. */
  const int64_t left = pw < columns ? pw : columns, right = W + pw < columns ? W + pw : columns;
  float* const own = packed ? 0 : (float*)aligned_alloc(64, (__SIZE_TYPE__)((4 * panels * width(O) * taps + 63) / 64 * 64));
  int32_t* const where = (int32_t*)aligned_alloc(64, (__SIZE_TYPE__)((4 * taps + 63) / 64 * 64));
  if ((!packed && !own) || !where) { free(own); free(where); return 1; }
  if (own) layout(w, w_steps, O, C, kh, kw, own);
  for (int64_t k = 0; k < taps; ++k) where[k] = (int32_t)(k / kw * columns + k % kw * pace);
  int failed = 0;
  Shares shares(N * Ho, threads, (double)(N * Ho * Wo) * (double)(O * taps) / PRODUCTS_PER_NS);
  #pragma omp parallel num_threads(threads) if(threads > 1 && N * Ho * Wo * O * taps > 1 << 17)
  {
    float* const rows = (float*)aligned_alloc(64, (__SIZE_TYPE__)((bytes + 63) / 64 * 64));
    if (!rows) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    for (Share share(shares); share.more();) for (int64_t line = share.from; line < share.to && rows; ++line) {
      const int64_t image = line / Ho, top = line % Ho * down - ph;
      for (int64_t c = 0; c < C; ++c)
        for (int64_t i = 0; i < kh; ++i) {
          float* const row = rows + (c * kh + i) * columns;
          const int64_t h = top + i * fall, step = x_steps[3];
          if (h < 0 || h >= H) { for (int64_t j = 0; j < columns; ++j) row[j] = 0.0f; continue; }
          const float* const from = x + image * x_steps[0] + c * x_steps[1] + h * x_steps[2] - pw * step;
          for (int64_t j = 0; j < left; ++j) row[j] = 0.0f;
          if (step == 1) for (int64_t j = left; j < right; ++j) row[j] = from[j];
          else for (int64_t j = left; j < right; ++j) row[j] = from[j * step];
          for (int64_t j = right; j < columns; ++j) row[j] = 0.0f;
        }
      const float* const x = rows;
      for (int64_t p = 0; p < panels; ++p) {
        const float* const w = (packed ? packed : own) + p * width(O) * taps;
        const int64_t first = begin(p * width(O), O);
        const float* const shift = bias ? bias + first : 0; float* const to = y + line * Wo * O + first;
        for (int64_t o = 0, pixels; o < Wo; o += pixels) {
          pixels = @FIT; int64_t at = o;
          if (Wo >= @PIXELS) { pixels = @PIXELS; at = o + @PIXELS <= Wo ? o : Wo - @PIXELS; }
          if (O < 2 * L) switch (pixels) { @ONE } else switch (pixels) { @TWO }
        }
      }
    }
    free(rows);
  }
  free(own); free(where);
  return failed;
}"""
