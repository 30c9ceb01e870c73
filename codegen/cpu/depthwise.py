"""Depthwise f32 convolutions over channels-last images, with bias, activation and residual while the sums are in registers.

Vectors run along channels. A block of pixels of one row of the result shares what it reads: each input column is loaded once for all the
taps and pixels that it serves, and a row of the weight stays in registers meanwhile. Taps outside of the image are left out: of whole
rows by the loop over taps' rows, of columns by a loop of its own for the pixels at both sides. The weight, [C, 1, kh, kw], is read as
[kh, kw, C]: laid out once under `freeze`, and otherwise at each call, which is little work. Each thread has its own stretch of the
result's rows and helps with the others' then (`precast.codegen.cpp.sharing`), as the products before and behind do: on chips with more
than one last-level cache, a row that another core wrote takes several times as long to read. An element does not depend on the number of
threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from precast.codegen.common.library_steps import Pack
from precast.codegen.cpu.panel_gemm import epilogue_source
from precast.lowering.ir.nodes import Buffer, Conv
from precast.lowering.ir.sizes import known

BLOCKS = (8, 4)
"""Pixels of a row that share their inputs, the most first; the last block of a row begins earlier instead of being smaller."""

Taps = tuple[int, ...]
"""What code depends on: the window's height and width, and both strides and dilations."""


@dataclass(frozen=True, order=True)
class Form:
    """What the code of a convolution depends on: its window (height, width, both strides and both dilations) and how a row of the result is
    covered. `pixels` neighbours at a time, of whose input columns the leftmost block lacks those before `first`, and the rightmost those
    from `end` on. `pixels` 0: for widths of the run time, by blocks in the row's middle and single pixels at its sides.
    """

    taps: Taps
    pixels: int = 0
    first: int = 0
    end: int = 0

    @property
    def tag(self) -> str:
        """The end of the names of its functions."""
        return "_".join(map(str, (*self.taps, self.pixels, self.first, self.end)))


def form_of(step: Conv, out: Buffer) -> Form:
    """The code that a convolution takes."""
    taps = (*(int(n) for n in step.weight.size[2:]), *step.stride, *step.dilation)
    width, wide = step.x.size[3], out.size[3]
    return row_form(taps, int(width), int(wide), step.padding[1]) if known(width, wide) else Form(taps)


def function_of(form: Form) -> str:
    """The function that runs a whole convolution, within its namespace."""
    return f"conv_{form.tag}"


def row_form(taps: Taps, width: int, wide: int, padding: int) -> Form:
    """How rows of `wide` pixels are covered, over images of this width."""
    _, reach, _, step, _, pace = taps
    pixels = _pixels(taps, wide)
    columns = (pixels - 1) * step + (reach - 1) * pace + 1
    right = (wide - pixels) * step - padding  # the input column where the rightmost block begins
    first, end = min(padding, columns), max(0, min(columns, width - right))
    if wide > pixels:
        inner = pixels * step - padding, ((wide - 1) // pixels - 1) * pixels * step - padding + columns
        if inner[0] < 0 or (wide > 2 * pixels and inner[1] > width) or padding > pixels * step or right < 0 or columns - padding > width:
            return Form(taps)
    return Form(taps, pixels, first, end)


def _pixels(taps: Taps, wide: int) -> int:
    """How many neighbours share their inputs: the number with which a row takes the fewest products and loads."""
    if wide <= BLOCKS[0]:
        return wide
    return min(range(BLOCKS[0], BLOCKS[1], -1), key=lambda p: -(-wide // p) * ((p + 1) * taps[1] + _columns(taps, p)))


@dataclass(frozen=True)
class DepthwisePack(Pack):
    """A copy of a weight as [kh, kw, C]."""

    @property
    def elements(self) -> int:
        assert isinstance(self.step, Conv)
        return prod(int(n) for n in self.step.weight.size)


def _block(taps: Taps, pixels: int) -> str:
    """`pixels` neighbours in a row over `rows` rows of taps and all channels. Only input columns from FIRST to END are inside the image."""
    _, width, _, step, _, pace = taps
    columns = sorted({p * step + k * pace for p in range(pixels) for k in range(width)})
    lines = [
        f"template <int F, int REST, int FIRST, int END> static void __attribute__((noinline)) block{pixels}_{_named(taps)}(",
        "    const float* x, int64_t sh, int64_t sw, const float* w, int64_t C, int64_t rows, const float* bias, const float* rest,",
        "    float* y, float low, float high) {",
        "  for (int64_t c = 0;; c = c + 2 * L <= C ? c + L : C - L) {",
        "    const V start = bias ? *(const V*)(bias + c) : V{0};",
        f"    V {', '.join(f'a{p} = start' for p in range(pixels))};",
        "    const float *p = x + c, *q = w + c;",
        f"    for (int64_t r = 0; r < rows; ++r, p += sh, q += {width} * C) {{",
        f"      const V {', '.join(f'w{k} = *(const V*)(q + {k} * C)' for k in range(width))};",
    ]
    for j in columns:
        users = [
            (i, (j - i * step) // pace) for i in range(pixels) if (j - i * step) % pace == 0 and 0 <= j - i * step <= (width - 1) * pace
        ]
        sums = " ".join(f"a{i} += v * w{k};" for i, k in users)
        lines.append(f"      if (FIRST <= {j} && {j} < END) {{ const V v = *(const V*)(p + {j} * sw); {sums} }}")
    lines.append("    }")
    lines += [f"    put<F, REST>(a{i}, rest + {i} * C + c, y + {i} * C + c, low, high);" for i in range(pixels)]
    return "\n".join([*lines, "    if (c + L == C) break;", "  }", "}"])


def _named(taps: Taps) -> str:
    return "_".join(map(str, taps))


def _columns(taps: Taps, pixels: int) -> int:
    """Input columns from the first to the last that neighbours read."""
    return (pixels - 1) * taps[3] + (taps[1] - 1) * taps[5] + 1


def _row(form: Form) -> str:
    """The C++ that computes one row of the result."""
    taps, name = form.taps, _named(form.taps)
    _, width, _, step, fall, pace = taps

    def block(pixels: int, at: str, first: int, end: int) -> str:
        operands = f"row + ({at} * {step} - pw) * sw, {fall} * sh, sw, first, C, rows, bias, more + {at} * C, to + {at} * C, low, high"
        return f"block{pixels}_{name}<F, REST, {first}, {end}>({operands});"

    pixels, columns = form.pixels, _columns(taps, form.pixels)
    if pixels:
        left, middle, right = block(pixels, "0", form.first, columns), block(pixels, "o", 0, columns), block(pixels, "o", 0, form.end)
        alone = block(pixels, "0", form.first, form.end)
        return f"""    if (Wo == {pixels}) {{ {alone} continue; }}
    {left}
    int64_t o = {pixels};
    for (; o + {pixels} < Wo; o += {pixels}) {middle}
    o = Wo - {pixels};
    {right}"""
    middles = "\n".join(
        f"""        if (high_column - o >= {p} || high_column - low_column >= {p}) {{
          for (; o + {p} <= high_column; o += {p}) {block(p, "o", 0, _columns(taps, p))}
          if (o < high_column) {{ o = high_column - {p}; {block(p, "o", 0, _columns(taps, p))} o = high_column; }}
        }}"""
        for p in BLOCKS
    )
    return f"""    for (int64_t o = 0; o < Wo;) {{
      if (o >= low_column && o < high_column) {{
{middles}
      }}
      if (o >= Wo) break;
      const int64_t left = o * {step} - pw, k0 = left < 0 ? ceiling(-left, {pace}) : 0;
      const int64_t k1 = W > left ? least(ceiling(W - left, {pace}), {width}) : 0;
      side<F, REST>(row + (left + k0 * {pace}) * sw, {fall} * sh, {pace} * sw, first + k0 * C, {width} * C, C, rows, k1 - k0, bias,
                    more + o * C, to + o * C, low, high);
      ++o;
    }}"""


def _driver(form: Form) -> str:
    """All rows of the result, which go to threads."""
    height, width, down, step, fall, pace = form.taps
    return f"""
template <int F, int REST> static int {function_of(form)}(
    const float* x, int64_t sn, int64_t sh, int64_t sw, const float* packed, const float* w, const int64_t* stride, const float* bias,
    const float* rest, float* y, int64_t N, int64_t H, int64_t W, int64_t C, int64_t Ho, int64_t Wo, int64_t ph, int64_t pw, float low,
    float high, int threads) {{
  float* const own = packed ? 0 : (float*)aligned_alloc(64, (__SIZE_TYPE__)(({height * width} * C + 15) / 16 * 64));
  if (!packed && !own) return 1;
  if (own) layout(w, stride, {height}, {width}, C, own);
  const float* const taps = packed ? packed : own;
  int64_t low_column = least(ceiling(pw, {step}), Wo), high_column = W + pw - {(width - 1) * pace + 1};
  high_column = high_column < 0 ? 0 : least(high_column / {step} + 1, Wo);
  if (high_column < low_column) high_column = low_column;
  Shares shares(N * Ho, threads, (double)(N * Ho * Wo) * (double)(C * {height * width}) / PRODUCTS_PER_NS);
  #pragma omp parallel num_threads(threads) if(threads > 1 && N * Ho * Wo * C > 1 << 14)
  for (Share share(shares); share.more();) for (int64_t line = share.from; line < share.to; ++line) {{
    const int64_t n = line / Ho, h = line % Ho, top = h * {down} - ph;
    const int64_t r0 = top < 0 ? ceiling(-top, {fall}) : 0, r1 = H > top ? least(ceiling(H - top, {fall}), {height}) : 0;
    const int64_t rows = r1 > r0 ? r1 - r0 : 0;
    const float* const row = rows ? x + n * sn + (top + r0 * {fall}) * sh : x;
    const float* const first = rows ? taps + r0 * {width} * C : taps;
    const float* const more = REST ? rest + line * Wo * C : y; float* const to = y + line * Wo * C;
{_row(form)}
  }}
  free(own);
  return 0;
}}"""


def depthwise_source(lanes: int, forms: Iterable[Form]) -> str:
    """C++ of `depthwise::conv_TAG` for each of these forms, for vectors of `lanes` f32."""
    forms = sorted(set(forms))
    blocks = sorted({(f.taps, p) for f in forms for p in ((f.pixels,) if f.pixels else BLOCKS)})
    parts = [_SOURCE.replace("@LANES", str(lanes)).replace("@EPILOGUE", epilogue_source("a", "y"))]
    parts += [*(_block(*b) for b in blocks), *(_driver(f) for f in forms)]
    return "\n".join([*parts, "}", "#pragma GCC pop_options", ""])


_SOURCE = r"""
#pragma GCC push_options
#pragma GCC optimize ("fp-contract=fast")
extern "C" { void* aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__); void free(void*); }
namespace depthwise {
enum : int64_t { L = @LANES, PRODUCTS_PER_NS = L };
typedef float V __attribute__((vector_size(4 * L), aligned(4), may_alias));
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }
@EPILOGUE
/* w[C][1][kh][kw] with any strides -> [kh][kw][C]. */
static void layout(const float* w, const int64_t* stride, int64_t height, int64_t width, int64_t C, float* to) {
  for (int64_t i = 0; i < height; ++i)
    for (int64_t j = 0; j < width; ++j) {
      const float* const from = w + i * stride[2] + j * stride[3]; float* const row = to + (i * width + j) * C;
      for (int64_t c = 0; c < C; ++c) row[c] = from[c * stride[0]];
    }
}
/* One pixel, of some rows and columns of taps. */
template <int F, int REST> static void __attribute__((noinline)) side(
    const float* x, int64_t sh, int64_t sw, const float* w, int64_t wh, int64_t C, int64_t rows, int64_t columns, const float* bias,
    const float* rest, float* y, float low, float high) {
  for (int64_t c = 0;; c = c + 2 * L <= C ? c + L : C - L) {
    V a = bias ? *(const V*)(bias + c) : V{0};
    for (int64_t r = 0; r < rows; ++r) {
      const float *p = x + r * sh + c, *q = w + r * wh + c;
      for (int64_t k = 0; k < columns; ++k, p += sw, q += C) a += *(const V*)p * *(const V*)q;
    }
    put<F, REST>(a, rest + c, y + c, low, high);
    if (c + L == C) break;
  }
}
"""
