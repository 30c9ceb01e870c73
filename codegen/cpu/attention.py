"""Scaled dot-product attention in f32 as a generated kernel: keys packed once a head, six query rows at a time, running softmax.

The library's kernel makes many small MKL products; on short sequences this one is faster, and it reads q, k and v at any strides.
Scores live in one small buffer (first cache), keys of a block in [depth][key] order (second cache), results accumulate in the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from precast.codegen.common.index_facts import free_symbols
from precast.codegen.cpp.index_printer import IndexPrinter
from precast.lowering.ir.index import is_nonnegative
from precast.lowering.ir.nodes import Attention, Buffer, Size
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import hint, known

ROWS = 6
"""Query rows of a register block: with four vectors of keys that is 24 accumulators of AVX-512's 32 registers."""

BLOCK_KEYS = 512
PARALLEL_PRODUCTS = 50_000
"""Multiplications from which a call with sizes of the run time goes parallel."""
TASK_ROWS = 1024
"""Rows of one task, which bounds its running maxima and sums on the stack."""


@dataclass(frozen=True)
class Shape:
    """Geometry of one attention call. `batch`, `heads`, `rows` and `keys` may have symbols; `names` are the C++ names of these."""

    batch: Size
    heads: Size
    groups: int
    rows: Size
    keys: Size
    depth: int
    lanes: int
    vectors: int
    names: Mapping[sympy.Symbol, str]

    def text(self, size: Size) -> str:
        return IndexPrinter({}).print(sympy.sympify(size), self.names)

    @property
    def tile(self) -> int:
        return self.lanes * self.vectors


def attention_symbols(step: Attention, out: Buffer) -> tuple[sympy.Symbol, ...]:
    """The size symbols that the generated function takes, in order (offsets are the caller's)."""
    views = [v for v in (step.q, step.k, step.v, step.mask) if v is not None]
    sizes = [n for v in views for n in (*v.size, *v.stride)] + [*out.stride]
    found = frozenset[sympy.Symbol]().union(*(free_symbols(sympy.sympify(n)) for n in sizes))
    return tuple(sorted(found, key=lambda s: s.name))


def attention_fits(step: Attention, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the generated kernel takes this call: f32, known heads and depth, unit stride along the head's depth."""
    views = [v for v in (step.q, step.k, step.v, step.mask) if v is not None]
    out = buffers[step.out]
    if any(buffers[v.buffer].dtype is not DType.F32 for v in views) or out.dtype is not DType.F32:
        return False
    if not known(step.q.size[-1], step.v.size[-1], step.q.size[1], step.k.size[1]):
        return False
    depth = int(step.q.size[-1])
    unit = all(v.stride[-1] == 1 for v in (step.q, step.k, step.v)) and out.stride[-1] == 1 if depth > 1 else False
    mask = step.mask is None or len(step.mask.size) == 4
    square = step.v.size[-1] == step.q.size[-1]
    some = all(is_nonnegative(n - 1) for n in (*step.q.size, *step.k.size))
    return unit and mask and square and some and depth <= 256 and int(step.q.size[1]) % int(step.k.size[1]) == 0


def attention_source(name: str, step: Attention, buffers: Mapping[str, Buffer], lanes: int) -> str:
    """C++ of `static void name(q, k, v, mask, out, sizes…, threads)`; `lanes` is the number of f32 in the target's vectors."""
    batch, heads, rows, depth = step.q.size
    names = {s: f"s{number}" for number, s in enumerate(attention_symbols(step, buffers[step.out]))}
    groups, vectors = int(heads) // int(step.k.size[1]), 4 if lanes == 16 else 2
    shape = Shape(batch, heads, groups, rows, step.k.size[2], int(depth), lanes, vectors, names)
    return "\n".join([_open(name, step, buffers[step.out], shape), _products(shape), _softmax(step, shape), _values(shape), _close()])


def _strides(view_stride: tuple[Size, ...], names: str, s: Shape) -> list[str]:
    """Declarations of a view's strides: constants where they are known."""
    pairs = zip(names.split(), view_stride, strict=False)
    return [f"enum : int64_t {{ {n} = {x} }};" if known(x) else f"const int64_t {n} = {s.text(x)};" for n, x in pairs]


def _tasks(s: Shape) -> tuple[int, str]:
    """Room for the rows of a task, and the text of how many it has: all of a head's where heads feed the threads."""
    if known(s.batch, s.heads, s.rows):
        enough = int(s.batch) * int(s.heads) >= 8
        rows = min(TASK_ROWS, int(s.rows) if enough else max(ROWS * 8, -(-int(s.rows) // 8)))
        return rows, str(rows)
    wanted = f"({s.text(s.batch)} * {s.text(s.heads)} >= 8 ? SQ : (SQ + 7) / 8 > {ROWS * 8} ? (SQ + 7) / 8 : {ROWS * 8})"
    return TASK_ROWS, f"{wanted} < {TASK_ROWS} ? {wanted} : {TASK_ROWS}"


def _enough_work(s: Shape) -> str:
    """When threads pay: always where the call was seen to be large, else by the sizes at run time."""
    if known(s.batch, s.heads, s.rows, s.keys):
        return "threads > 1"
    return f"threads > 1 && (double)({s.text(s.batch)}) * {s.text(s.heads)} * SQ * SK * D > {PARALLEL_PRODUCTS}"


def _open(name: str, step: Attention, out: Buffer, s: Shape) -> str:
    """Tasks of (batch, head, rows), and per block of keys the packed copies."""
    padded = -(-s.depth // s.lanes) * s.lanes
    keys = hint(s.keys) if known(s.keys) else max(hint(s.keys), BLOCK_KEYS // 2)
    block = min(BLOCK_KEYS if s.depth <= 128 else BLOCK_KEYS // 2, -(-keys // s.tile) * s.tile)
    block = -(-block // s.tile) * s.tile
    room, rows = _tasks(s)
    mask: tuple[Size, ...] = (
        tuple(0 if n == 1 else t for n, t in zip(step.mask.size, step.mask.stride, strict=True)) if step.mask is not None else (0, 0, 0, 0)
    )
    places = (
        ("qb qh qs", step.q.stride),
        ("kb kh ks", step.k.stride),
        ("vb vh vs", step.v.stride),
        ("mb mh ms mk", mask),
        ("ob oh os", out.stride),
    )
    strides = "\n  ".join(line for names, values in places for line in _strides(values, names, s))
    sizes = "".join(f"const int64_t {n}, " for n in s.names.values())
    counts = [("SQ", s.text(s.rows), known(s.rows)), ("SK", s.text(s.keys), known(s.keys)), ("HEADS", s.text(s.heads), known(s.heads))]
    numbers = "\n  ".join(f"enum : int {{ {n} = {t} }};" if k else f"const int {n} = (int){t};" for n, t, k in counts)
    return f"""#pragma GCC push_options
#pragma GCC optimize ("fp-contract=fast")
static void {name}(const float* Q, const float* K, const float* VV, const float* M, float* O, {sizes}const int threads) {{
  typedef float V __attribute__((vector_size({4 * s.lanes}), aligned(4), may_alias));
  {strides}
  {numbers}
  enum : int {{ D = {s.depth}, DP = {padded}, KB = {block}, GROUP = {s.groups} }};
  const int QT = (int)({rows}), TASKS = (SQ + QT - 1) / QT;
  const float scale = {float(step.scale)!r}f;
  #pragma omp parallel for schedule(dynamic) num_threads(threads) if({_enough_work(s)})
  for (int task = 0; task < (int){s.text(s.batch)} * HEADS * TASKS; ++task) {{
    const int part = task % TASKS, h = task / TASKS % HEADS, b = task / TASKS / HEADS;
    const int first_row = part * QT, last_row = first_row + QT < SQ ? first_row + QT : SQ;
    const float* const q = Q + b * qb + h * qh;
    const float* const k = K + b * kb + h / GROUP * kh;
    const float* const vv = VV + b * vb + h / GROUP * vh;
    const float* const m = M + b * mb + h * mh;
    float* const o = O + b * ob + h * oh;
    float kt[D * KB] __attribute__((aligned(64)));
    float vp[KB * DP] __attribute__((aligned(64)));
    float sc[{ROWS} * KB] __attribute__((aligned(64)));
    float top[{room}], sum[{room}];
    const int end_key = {"last_row < SK ? last_row : SK" if step.causal else "SK"};
    for (int k0 = 0; k0 < end_key; k0 += KB) {{
      const int n = k0 + KB < end_key ? KB : end_key - k0, wide = (n + {s.tile - 1}) / {s.tile} * {s.tile};
      for (int j0 = 0; j0 < wide; j0 += 16) {{
        if (j0 + 16 <= n) {{
          for (int d = 0; d < D; ++d) {{
            float* const to = kt + d * KB + j0; const float* const from = k + (int64_t)(k0 + j0) * ks + d;
            #pragma omp simd
            for (int j = 0; j < 16; ++j) to[j] = from[j * ks];
          }}
        }} else {{
          for (int d = 0; d < D; ++d)
            for (int j = j0; j < j0 + 16 && j < wide; ++j) kt[d * KB + j] = j < n ? k[(int64_t)(k0 + j) * ks + d] : 0.0f;
        }}
      }}
      for (int j = 0; j < n; ++j) {{
        #pragma omp simd
        for (int d = 0; d < D; ++d) vp[j * DP + d] = vv[(int64_t)(k0 + j) * vs + d];
        for (int d = D; d < DP; ++d) vp[j * DP + d] = 0.0f;
      }}
      for (int i0 = first_row; i0 < last_row; i0 += {ROWS}) {{
        const int count = i0 + {ROWS} < last_row ? {ROWS} : last_row - i0;
        const int reach = {"i0 + count - k0 < n ? i0 + count - k0 : n" if step.causal else "n"};
        if (reach <= 0) continue;"""


def _products(s: Shape) -> str:
    """Scores of six rows against `reach` keys."""
    rows, vectors = range(ROWS), range(s.vectors)
    lines = [f"        const float* const q{r} = q + (int64_t)(i0 + ({r} < count ? {r} : count - 1)) * qs;" for r in rows]
    lines.append(f"        for (int j = 0; j < reach; j += {s.tile}) {{")
    lines += [f"          V {', '.join(f'a{r}{v} = {{0}}' for v in vectors)};" for r in rows]
    lines.append("          const float* key = kt + j;")
    lines.append("          for (int d = 0; d < D; ++d, key += KB) {")
    lines.append(f"            const V {', '.join(f'y{v} = *(const V*)(key + {v * s.lanes})' for v in vectors)};")
    lines += [f"            {{ const float x = q{r}[d]; {' '.join(f'a{r}{v} += x * y{v};' for v in vectors)} }}" for r in rows]
    lines.append("          }")
    lines += [f"          {' '.join(f'*(V*)(sc + {r} * KB + j + {v * s.lanes}) = a{r}{v};' for v in vectors)}" for r in rows]
    lines.append("        }")
    return "\n".join(lines)


def _softmax(step: Attention, s: Shape) -> str:
    """Scale, mask and exponentials of the six rows; a row with every key masked yields zero, as the library's kernel does."""
    masked = "x[j] * scale + mr[j * mk]" if step.mask is not None else "x[j] * scale"
    row = "const float* const mr = m + (int64_t)i * ms + (int64_t)k0 * mk;" if step.mask is not None else ""
    valid = "const int own = i + 1 - k0 < reach ? (i + 1 - k0 > 0 ? i + 1 - k0 : 0) : reach;" if step.causal else "const int own = reach;"
    return f"""        float fix[{ROWS}];
        for (int r = 0; r < count; ++r) {{
          const int i = i0 + r; float* const x = sc + r * KB; {row} {valid}
          float best = -__builtin_inff();
          #pragma omp simd reduction(max:best)
          for (int j = 0; j < own; ++j) {{ const float t = {masked}; x[j] = t; best = t > best ? t : best; }}
          const bool fresh = k0 == 0; const float before = fresh ? -__builtin_inff() : top[i - first_row];
          const float now = best > before ? best : before, base = now == -__builtin_inff() ? 0.0f : now;
          float total = 0.0f;
          #pragma omp simd reduction(+:total)
          for (int j = 0; j < own; ++j) {{
            const float t = x[j] - base;
            const float c = t < -87.0f ? -87.0f : t;
            const float z = c * 1.44269504088896341f + 12582912.0f, nn = z - 12582912.0f;
            const float u = c - nn * 0.693359375f + nn * 2.12194440e-4f;
            const float p3 = ((1.9875691500e-4f * u + 1.3981999507e-3f) * u + 8.3334519073e-3f) * u + 4.1665795894e-2f;
            const float p = ((p3 * u + 1.6666665459e-1f) * u + 5.0000001201e-1f) * (u * u) + u + 1.0f;
            int32_t bits; __builtin_memcpy(&bits, &z, 4); bits = (int32_t)((uint32_t)bits << 23) + 0x3f800000;
            float power; __builtin_memcpy(&power, &bits, 4);
            const float e = t < -87.0f ? 0.0f : p * power;
            x[j] = e; total += e;
          }}
          for (int j = own; j < reach; ++j) x[j] = 0.0f;
          const float shrink = before == -__builtin_inff() ? 0.0f : expf(before - base);
          fix[r] = shrink; top[i - first_row] = now; sum[i - first_row] = total + (fresh ? 0.0f : sum[i - first_row] * shrink);
        }}
        for (int r = count; r < {ROWS}; ++r) fix[r] = 0.0f;"""


def _values(s: Shape) -> str:
    """Adds the weighted values to the six rows of the output, a few vectors of the depth at a time."""
    padded = -(-s.depth // s.lanes)
    lines: list[str] = []
    for start in range(0, padded, s.vectors):
        vectors = range(start, min(start + s.vectors, padded))
        lines.append("        {")
        lines += [f"          V {', '.join(f'a{r}{v} = {{0}}' for v in vectors)};" for r in range(ROWS)]
        lines.append(f"          const float* value = vp + {start * s.lanes}; const float* w = sc;")
        lines.append("          for (int j = 0; j < reach; ++j, value += DP, ++w) {")
        lines.append(f"            const V {', '.join(f'y{v} = *(const V*)(value + {(v - start) * s.lanes})' for v in vectors)};")
        lines += [
            f"            {{ const float x = w[{r} * KB]; {' '.join(f'a{r}{v} += x * y{v};' for v in vectors)} }}" for r in range(ROWS)
        ]
        lines.append("          }")
        for r in range(ROWS):
            lines.append(f"          if ({r} < count) {{ float* const to = o + (int64_t)(i0 + {r}) * os;")
            lines += [_add_row(r, v, s) for v in vectors]
            lines.append("          }")
        lines.append("        }")
    return "\n".join(lines)


def _add_row(r: int, v: int, s: Shape) -> str:
    width = min(s.lanes, s.depth - v * s.lanes)
    place = f"to + {v * s.lanes}"
    if width == s.lanes:
        return f"            if (k0 == 0) *(V*)({place}) = a{r}{v}; else *(V*)({place}) = *(V*)({place}) * fix[{r}] + a{r}{v};"
    return f"            for (int l = 0; l < {width}; ++l) ({place})[l] = (k0 == 0 ? 0.0f : ({place})[l] * fix[{r}]) + a{r}{v}[l];"


def _close() -> str:
    return """      }
    }
    for (int i = first_row; i < last_row; ++i) {
      const float total = sum[i - first_row], inverse = total == 0.0f ? 0.0f : 1.0f / total;
      float* const to = o + (int64_t)i * os;
      #pragma omp simd
      for (int d = 0; d < D; ++d) to[d] = to[d] * inverse;
    }
  }
}
#pragma GCC pop_options
"""
