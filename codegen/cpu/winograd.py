"""Winograd's F(4x4, 3x3): a 3x3 convolution of stride one over channels-last data with a quarter of the multiplications.

Each tile of 4x4 outputs comes from 6x6 inputs: both the inputs and the weight go through small linear transforms (the weight once, when it
is prepared, or else at each call), 36 ordinary products over the channels follow, and a last transform gives the outputs; bias, residual
and relu are part of it.
The transforms' points are 0, ±3/4, ±3/2 and infinity: all of their constants are exact in f32, and the result's error was measured at about
twice that of a direct f32 convolution (the customary points 0, ±1, ±2 lose five times more).
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from precast.codegen.common.library_steps import Pack
from precast.codegen.common.measure import POST_OPS, Candidates, tensor
from precast.codegen.common.toolchain import compile_shared, lanes_of
from precast.codegen.cpu.vector_shuffles import transposed
from precast.lowering.ir.nodes import Buffer, Conv, View
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import known

A, B = 0.75, 1.5
"""The finite points besides 0, each with both signs."""
TILE = 6
FREQUENCIES = TILE * TILE


def _number(value: float) -> str:
    return f"{value!r}f"


def _inputs() -> list[str]:
    """`t0..t5`, the transform of `d0..d5`."""
    aa, bb = A * A, B * B
    both, product = _number(aa + bb), _number(aa * bb)
    return [
        f"const V t0 = {product} * d0 - {both} * d2 + d4, t5 = {product} * d1 - {both} * d3 + d5;",
        f"const V p = d4 - {_number(bb)} * d2, q = {_number(A)} * (d3 - {_number(bb)} * d1), t1 = p + q, t2 = p - q;",
        f"const V r = d4 - {_number(aa)} * d2, s = {_number(B)} * (d3 - {_number(aa)} * d1), t3 = r + s, t4 = r - s;",
    ]


def _outputs() -> list[str]:
    """`y0..y3`, the transform of `m0..m5`."""
    return [
        "const V s1 = m1 + m2, d1 = m1 - m2, s2 = m3 + m4, d2 = m3 - m4;",
        f"const V y0 = m0 + s1 + s2, y1 = {_number(A)} * d1 + {_number(B)} * d2;",
        f"const V y2 = {_number(A**2)} * s1 + {_number(B**2)} * s2, y3 = {_number(A**3)} * d1 + {_number(B**3)} * d2 + m5;",
    ]


def _weights() -> list[str]:
    """`h0..h5`, the transform of `g0..g2` but for the factors in `_scales`."""
    return [
        f"const V e1 = g0 + {_number(A * A)} * g2, o1 = {_number(A)} * g1, e2 = g0 + {_number(B * B)} * g2, o2 = {_number(B)} * g1;",
        "const V h0 = g0, h1 = e1 + o1, h2 = e1 - o1, h3 = e2 + o2, h4 = e2 - o2, h5 = g2;",
    ]


def _scales() -> str:
    """The factors of the transformed weight's 36 parts."""
    aa, bb = A * A, B * B
    fa, fb = 2 * aa * (aa - bb), 2 * bb * (bb - aa)
    row = (1 / (aa * bb), 1 / fa, 1 / fa, 1 / fb, 1 / fb, 1.0)
    return ", ".join(_number(x * y) for x in row for y in row)


def _micro(rows: int) -> str:
    """`rows` tiles by two vectors of output channels, over all input channels."""
    lines = [f"static void wino_product{rows}(const float* a, int64_t lda, const float* b, int64_t K, float* c) {{"]
    lines += [f"  const float* const a{r} = a + {r} * lda;" for r in range(rows)]
    lines += [f"  V c{r}0 = {{0}}, c{r}1 = {{0}};" for r in range(rows)]
    lines.append("  for (int64_t k = 0; k < K; ++k, b += 2 * L) {")
    lines.append("    const V b0 = *(const V*)b, b1 = *(const V*)(b + L);")
    lines += [f"    {{ const float x = a{r}[k]; c{r}0 += x * b0; c{r}1 += x * b1; }}" for r in range(rows)]
    lines.append("  }")
    lines += [f"  *(V*)(c + {r} * 2 * L) = c{r}0; *(V*)(c + {r} * 2 * L + L) = c{r}1;" for r in range(rows)]
    return "\n".join([*lines, "}"])


def winograd_source(lanes: int) -> str:
    """C++ of `winograd_weights`, `winograd_conv` and `winograd_whole` for vectors of `lanes` f32."""
    sizes = (12, 8, 4, 2, 1) if lanes == 16 else (6, 4, 2, 1)
    products = "\n".join(_micro(rows) for rows in sizes)
    steps = "\n".join(f"      for (; i + {r} <= n; i += {r}) wino_product{r}(a + i * C, C, b, C, m + i * 2 * L);" for r in sizes)
    return (
        _SOURCE.replace("@LANES", str(lanes))
        .replace("@PRODUCTS", products)
        .replace("@STEPS", steps)
        .replace("@WEIGHTS", " ".join(_weights()))
        .replace("@SCALES", _scales())
        .replace("@LOADS", "V " + ", ".join(f"v{i} = *(const V*)(p + {i} * L)" for i in range(lanes)) + ";")
        .replace("@STORES", " ".join(f"*(V*)(q + {i} * 2 * L) = v{i};" for i in range(lanes)))
        .replace("@TRANSPOSED", transposed(lanes))
        .replace("@INPUTS", " ".join(_inputs()))
        .replace("@OUTPUTS", " ".join(_outputs()))
    )


_SOURCE = r"""
#pragma GCC push_options
#pragma GCC optimize ("fp-contract=fast")
extern "C" { void* aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__); void free(void*); int omp_get_thread_num(); }
namespace wino {
enum : int64_t { L = @LANES };
typedef float V __attribute__((vector_size(4 * L), aligned(4), may_alias));
@PRODUCTS
/* w[O][C][3][3] with strides -> u[O / 2L][36][C][2L]. */
static void winograd_weights(const float* w, const int64_t* stride, int64_t C, int64_t O, float* u, int threads) {
  static const float scale[36] = {@SCALES};
  const int64_t so = stride[0], sc = stride[1], sh = stride[2], sw = stride[3];
  #pragma omp parallel for schedule(static) num_threads(threads) if(threads > 1)
  for (int64_t task = 0; task < O / L * (C / L); ++task) {
    const int64_t o0 = task / (C / L) * L, c0 = task % (C / L) * L;
    float parts[36][L][L] __attribute__((aligned(64)));
    for (int64_t o = 0; o < L; ++o) {
      const float* const g = w + (o0 + o) * so + c0 * sc;
      V half[6][3];
      for (int j = 0; j < 3; ++j) {
        V all[3];
        for (int i = 0; i < 3; ++i) {
          const float* const from = g + i * sh + j * sw;
          if (sc == 1) all[i] = *(const V*)from;
          else for (int64_t l = 0; l < L; ++l) all[i][l] = from[l * sc];
        }
        const V g0 = all[0], g1 = all[1], g2 = all[2];
        @WEIGHTS
        half[0][j] = h0; half[1][j] = h1; half[2][j] = h2; half[3][j] = h3; half[4][j] = h4; half[5][j] = h5;
      }
      for (int i = 0; i < 6; ++i) {
        const V g0 = half[i][0], g1 = half[i][1], g2 = half[i][2];
        @WEIGHTS
        const V all[6] = {h0, h1, h2, h3, h4, h5};
        for (int j = 0; j < 6; ++j) *(V*)parts[i * 6 + j][o] = all[j] * scale[i * 6 + j];
      }
    }
    float* const to = u + o0 / (2 * L) * 36 * C * 2 * L + c0 * 2 * L + o0 % (2 * L);
    for (int f = 0; f < 36; ++f) {
      const float* const p = parts[f][0]; float* const q = to + f * C * 2 * L;
      @LOADS
        @TRANSPOSED
      @STORES
    }
  }
}
/* The transformed inputs of one tile: v[36] blocks, `step` floats apart. */
static void wino_input(const float* x, int64_t h0, int64_t w0, int64_t H, int64_t W, int64_t C, float* v, int64_t step) {
  for (int64_t c = 0; c < C; c += L) {
    V part[6][6];
    for (int j = 0; j < 6; ++j) {
      const int64_t w = w0 + j; const bool inside = w >= 0 && w < W;
      #define AT(i) (inside && h0 + i >= 0 && h0 + i < H ? *(const V*)(x + ((h0 + i) * W + w) * C + c) : V{0})
      const V d0 = AT(0), d1 = AT(1), d2 = AT(2), d3 = AT(3), d4 = AT(4), d5 = AT(5);
      #undef AT
      @INPUTS
      part[0][j] = t0; part[1][j] = t1; part[2][j] = t2; part[3][j] = t3; part[4][j] = t4; part[5][j] = t5;
    }
    for (int i = 0; i < 6; ++i) {
      const V d0 = part[i][0], d1 = part[i][1], d2 = part[i][2], d3 = part[i][3], d4 = part[i][4], d5 = part[i][5];
      @INPUTS
      float* const to = v + i * 6 * step + c;
      *(V*)to = t0; *(V*)(to + step) = t1; *(V*)(to + 2 * step) = t2;
      *(V*)(to + 3 * step) = t3; *(V*)(to + 4 * step) = t4; *(V*)(to + 5 * step) = t5;
    }
  }
}
/* One tile's outputs for 2L channels from m[36], `step` floats apart. */
static void wino_output(const float* m, int64_t step, int64_t h0, int64_t w0, int64_t H, int64_t W, int64_t O, const float* bias,
                        const float* rest, float* y, int relu) {
  for (int64_t l = 0; l < 2 * L; l += L) {
    V part[4][6];
    for (int j = 0; j < 6; ++j) {
      const float* const from = m + j * step + l;
      const V m0 = *(const V*)from, m1 = *(const V*)(from + 6 * step), m2 = *(const V*)(from + 12 * step),
              m3 = *(const V*)(from + 18 * step), m4 = *(const V*)(from + 24 * step), m5 = *(const V*)(from + 30 * step);
      @OUTPUTS
      part[0][j] = y0; part[1][j] = y1; part[2][j] = y2; part[3][j] = y3;
    }
    const V shift = bias ? *(const V*)(bias + l) : V{0};
    for (int i = 0; i < 4 && h0 + i < H; ++i) {
      const V m0 = part[i][0], m1 = part[i][1], m2 = part[i][2], m3 = part[i][3], m4 = part[i][4], m5 = part[i][5];
      @OUTPUTS
      const V all[4] = {y0, y1, y2, y3};
      for (int j = 0; j < 4 && w0 + j < W; ++j) {
        const int64_t place = ((h0 + i) * W + w0 + j) * O + l;
        V value = all[j] + shift;
        if (rest) value += *(const V*)(rest + place);
        if (relu) value = value < 0.0f ? V{0} : value; /* keeps NaN */
        *(V*)(y + place) = value;
      }
    }
  }
}
/* x[N][H][W][C] and u as above -> y[N][Ho][Wo][O]; bias and rest (of y's shape) may be NULL. Returns 1 without memory. */
static int winograd_conv(const float* x, const float* u, const float* bias, const float* rest, float* y, int64_t N, int64_t H, int64_t W,
                         int64_t C, int64_t O, int64_t ph, int64_t pw, int relu, int threads) {
  const int64_t Ho = H + 2 * ph - 2, Wo = W + 2 * pw - 2, th = (Ho + 3) / 4, tw = (Wo + 3) / 4, tiles = N * th * tw;
  const int64_t some = C <= 128 ? 24 : 48;  /* tiles of one task: their transformed inputs and products stay in the second-level cache */
  int64_t block = (2 << 20) / (36 * 4 * C);
  block = block < some ? some : block;
  const int64_t blocks = (tiles + block - 1) / block;
  block = ((tiles + blocks - 1) / blocks + some - 1) / some * some;
  const int64_t step = block * C + 16, products = 36 * (some * 2 * L + 16); /* the 16: no power of two between the rows of one tile */
  const int64_t bytes = (36 * step + threads * products) * 4;
  float* const v = (float*)aligned_alloc(64, (__SIZE_TYPE__)((bytes + 63) / 64 * 64));
  if (!v) return 1;
  #pragma omp parallel num_threads(threads) if(threads > 1)
  for (int64_t b0 = 0; b0 < tiles; b0 += block) {
    const int64_t count = b0 + block < tiles ? block : tiles - b0, subs = (count + some - 1) / some;
    #pragma omp for schedule(static)
    for (int64_t t = 0; t < count; ++t) {
      const int64_t tile = b0 + t, image = tile / (th * tw), h = tile / tw % th, w = tile % tw;
      wino_input(x + image * H * W * C, h * 4 - ph, w * 4 - pw, H, W, C, v + t * C, step);
    }
    #pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < subs * (O / (2 * L)); ++task) {
      const int64_t panel = task / subs, first = task % subs * some, n = first + some < count ? some : count - first;
      float* const mine = v + 36 * step + omp_get_thread_num() * products;
      const int64_t row = some * 2 * L + 16;
      for (int64_t f = 0; f < 36; ++f) {
        const float* const a = v + f * step + first * C; const float* const b = u + (panel * 36 + f) * C * 2 * L;
        float* const m = mine + f * row; int64_t i = 0;
@STEPS
      }
      for (int64_t t = 0; t < n; ++t) {
        const int64_t tile = b0 + first + t, image = tile / (th * tw), h = tile / tw % th, w = tile % tw, start = image * Ho * Wo * O;
        const int64_t o = panel * 2 * L;
        wino_output(mine + t * 2 * L, row, h * 4, w * 4, Ho, Wo, O, bias ? bias + o : 0, rest ? rest + start + o : 0, y + start + o, relu);
      }
    }
  }
  free(v);
  return 0;
}
/* The same with an ordinary weight, which is transformed first. */
static int winograd_whole(const float* x, const float* w, const int64_t* stride, const float* bias, const float* rest, float* y, int64_t N,
                          int64_t H, int64_t W, int64_t C, int64_t O, int64_t ph, int64_t pw, int relu, int threads) {
  float* const u = (float*)aligned_alloc(64, (__SIZE_TYPE__)(36 * C * O * 4));
  if (!u) return 1;
  winograd_weights(w, stride, C, O, u, threads);
  const int failed = winograd_conv(x, u, bias, rest, y, N, H, W, C, O, ph, pw, relu, threads);
  free(u);
  return failed;
}
}
#pragma GCC pop_options
"""

_EXPORTS = r"""
extern "C" __attribute__((visibility("default"))) void weights(const float* w, const int64_t* stride, int64_t C, int64_t O, float* u,
                                                               int threads) { wino::winograd_weights(w, stride, C, O, u, threads); }
extern "C" __attribute__((visibility("default"))) int conv(
    const float* x, const float* w, const int64_t* stride, const float* bias, const float* rest, float* y, int64_t N, int64_t H, int64_t W,
    int64_t C, int64_t O, int64_t ph, int64_t pw, int relu, int threads) {
  return stride ? wino::winograd_whole(x, w, stride, bias, rest, y, N, H, W, C, O, ph, pw, relu, threads)
                : wino::winograd_conv(x, w, bias, rest, y, N, H, W, C, O, ph, pw, relu, threads);
}
"""


@functools.cache
def _compiled() -> ctypes.CDLL:
    """The functions for this machine, to be measured (and tested) outside of a program."""
    unit = "#include <stdint.h>\n" + winograd_source(lanes_of("cpu:native")) + _EXPORTS
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(compile_shared(unit, "cpu:native"))
        file.flush()
        return ctypes.CDLL(file.name)


@dataclass(frozen=True)
class Shape:
    """Sizes of one convolution; what `winograd_conv` is called with."""

    images: int
    height: int
    width: int
    channels: int
    filters: int
    padding: tuple[int, int]

    @property
    def weight_elements(self) -> int:
        return FREQUENCIES * self.channels * self.filters

    @property
    def pays(self) -> bool:
        """Whether to take it unmeasured, with a prepared weight: the saved multiplications outweigh the transforms' memory traffic."""
        return min(self.channels, self.filters) >= 64


@dataclass(frozen=True)
class WinogradPack(Pack):
    """A transformed copy of a convolution's weight."""

    shape: Shape


def _pointer(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def transformed(weight: torch.Tensor) -> torch.Tensor:
    """The transformed copy of an f32 weight [O, C, 3, 3], for this machine's vectors."""
    strides = (ctypes.c_int64 * 4)(*weight.stride())
    filters, channels = weight.shape[:2]
    result = torch.empty(FREQUENCIES * channels * filters)
    _compiled().weights(_pointer(weight), strides, *(ctypes.c_int64(n) for n in (channels, filters)), _pointer(result), 1)
    return result


def convolve(
    shape: Shape,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    relu: bool,
    threads: int,
) -> None:
    """`out = conv(x)` with a weight from `transformed`, or an ordinary 4-d one; x, residual and out are dense channels-last."""
    sizes = (shape.images, shape.height, shape.width, shape.channels, shape.filters, *shape.padding)
    strides = (ctypes.c_int64 * 4)(*weight.stride()) if weight.dim() == 4 else None
    operands = [_pointer(t) for t in (bias, residual, out)]
    if _compiled().conv(_pointer(x), _pointer(weight), strides, *operands, *(ctypes.c_int64(n) for n in sizes), int(relu), threads):
        raise MemoryError("no memory for the transformed inputs of a convolution")


def winograd_shape(step: Conv, buffers: Mapping[str, Buffer], lanes: int) -> Shape | None:
    """The sizes of a convolution that this algorithm can run; None for any other."""
    out = buffers[step.out]
    views = [v for v in (step.x, View(step.out, out.size, out.stride), step.residual) if v is not None]
    same = {buffers[v.buffer].dtype for v in (step.x, step.weight, step.bias, step.residual) if v is not None} | {out.dtype}
    if len(step.x.size) != 4 or step.transposed or step.groups != 1 or same != {DType.F32} or any(v.dtype is not None for v in views):
        return None
    if not all(known(*v.size, *v.stride, v.offset) for v in [*views, step.weight]) or tuple(step.weight.size[2:]) != (3, 3):
        return None
    if any(n != 1 for n in (*step.stride, *step.dilation)) or any(p not in (0, 1) for p in step.padding):
        return None
    if step.activation not in ("none", "relu") or (step.residual is not None and step.residual_order != "before"):
        return None
    if step.bias is not None and tuple(step.bias.stride) != (1,):
        return None
    images, channels, height, width = (int(n) for n in step.x.size)
    filters = int(out.size[1])
    if channels % lanes or filters % (2 * lanes) or min(out.size[2:]) < 1 or not all(_dense(v) for v in views):
        return None
    return Shape(images, height, width, channels, filters, (step.padding[0], step.padding[1]))


def _dense(view: View) -> bool:
    """Channels-last without gaps."""
    n, c, h, w = (int(s) for s in view.size)
    wanted = (h * w * c, 1, w * c, c)
    return all(size == 1 or int(have) == want for size, have, want in zip((n, c, h, w), view.stride, wanted, strict=True))


def winograd_candidates(step: Conv, shape: Shape, buffers: Mapping[str, Buffer], packed: bool) -> Candidates:
    """Our own code against oneDNN's convolution, both with an ordinary or a prepared (`packed`) weight."""
    apart = step.activation not in POST_OPS
    name, algorithm = POST_OPS.get(step.activation, ("none", "none"))

    def make() -> dict[str, Callable[[], object]]:
        _compiled()
        x, w = tensor(step.x, torch.float32), tensor(step.weight, torch.float32)
        out = buffers[step.out]
        result = tensor(View(step.out, out.size, out.stride), torch.float32)
        own = torch.full((shape.weight_elements,), 0.5) if packed else w
        bias = None if step.bias is None else torch.full((shape.filters,), 0.5)
        residual = None if step.residual is None else result.clone()
        ones, padding, threads = [1, 1], list(step.padding), torch.get_num_threads()
        theirs = torch.ops.mkldnn._reorder_convolution_weight(w, padding, ones, ones, 1, list(x.shape)) if packed else w
        shaped = (padding, ones, ones, 1)

        def direct() -> object:
            if residual is None or apart:
                found = torch.ops.mkldnn._convolution_pointwise.default(x, theirs, bias, *shaped, name, [], algorithm)
                return torch.relu_(found) if apart else found
            return torch.ops.mkldnn._convolution_pointwise.binary(x, residual, theirs, bias, *shaped, "add", None, None, [], None)

        relu = step.activation == "relu"
        return {"onednn": direct, "winograd": lambda: convolve(shape, x, own, bias, residual, result, relu, threads)}

    return make
