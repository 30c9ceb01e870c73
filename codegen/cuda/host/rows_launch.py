"""The C++ of one launch over many rows: an optimiser's update of all parameters of a group (`codegen/triton/render/rows.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precast.codegen.triton.render.rows import RowsKernel
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import Program

PROGRAMS = 8192
"""Programs of a launch beyond which each takes more of a row: what has to be written down for each is eight bytes."""


@dataclass(frozen=True)
class Rows:
    """The kernel, and the number of its image."""

    kernel: RowsKernel
    image: int


def rows_function(rows: Rows, program: Program) -> str:
    """`precast_run_rows(table, words, rows, error, capacity)`: as many calls of `precast_run` as there are rows, each with its own words,
    in one launch where rows differ in their tensors and sizes only, and these fit it.
    """
    kernel = rows.kernel
    places = {name: position for position, name in enumerate(program.inputs)}
    shared = [position for position, name in enumerate(program.inputs) if not isinstance(name, str) and name is not kernel.count]
    numbers, arguments = [], ["&table_on_device", "&blocks_on_device", "&chunk"]
    for n, symbol in enumerate(kernel.numbers):
        word, kind = f"&words[{places[symbol]}]", "double" if is_real(symbol) else "int64_t"
        numbers.append(f"  {kind} n{n}; __builtin_memcpy(&n{n}, {word}, 8);")
        if not is_real(symbol):
            numbers.append(f"  int32_t m{n} = (int32_t)n{n};")
        arguments.append(f"&{'n' if is_real(symbol) else 'm'}{n}")
    same = "".join(f" && words[r * WORDS + {p}] == words[{p}]" for p in shared)
    narrow = "".join(f" && (int64_t)words[{places[s]}] == (int32_t)(int64_t)words[{places[s]}]" for s in kernel.numbers if not is_real(s))
    fields: Mapping[str, object] = {
        "words": len(program.inputs),
        "pointers": len(kernel.buffers),
        "block": kernel.block,
        "programs": PROGRAMS,
        "first": places[kernel.buffers[0]],
        "count": places[kernel.count],
        "places": ", ".join(str(places[name]) for name in kernel.buffers),
        "same": same + narrow,
        "numbers": "\n".join(numbers),
        "arguments": ", ".join(arguments),
        "image": rows.image,
    }
    return _FUNCTION.format(**fields)


_FUNCTION = """
/* Tables that kernels found their rows in, kept: a step has the addresses of the one before, as a rule. `done`: the last launch that
   read it. */
struct Table {{ char* pinned; uint64_t device; int64_t capacity; int64_t bytes; void* done; int32_t on; uint64_t used; }};
enum {{ TABLES = 16 }};
static Table tables[TABLES];
static uint64_t table_clock;
static int rows_busy;
struct RowsLock {{
  RowsLock() {{ while (__atomic_exchange_n(&rows_busy, 1, __ATOMIC_ACQUIRE)) sched_yield(); }}
  ~RowsLock() {{ __atomic_store_n(&rows_busy, 0, __ATOMIC_RELEASE); }}
}};
/* The table with this content on the call's device; the one that was used longest ago is written anew where there is none. */
static Table* table_with(const Call& call, const char* content, int64_t bytes, int* code) {{
  void* const* const table = call.table;
  Table* found = 0;
  for (Table& some : tables) {{
    if (some.bytes == bytes && some.on == call.device && some.done && !__builtin_memcmp(some.pinned, content, (__SIZE_TYPE__)bytes)) {{
      *code = cuStreamWaitEvent(call.stream, some.done, 0); /* it was written on the stream of its last launch */
      return &some;
    }}
  }}
  for (Table& some : tables) {{
    if (some.done && some.on != call.device) continue;
    if (!found || some.used < found->used) found = &some;
  }}
  if (!found) {{ *code = 2; return 0; }}
  if (found->done && (*code = cuEventSynchronize(found->done))) return 0;
  if (found->capacity < bytes) {{
    if (found->device) {{ cuMemFree_v2(found->device); cuMemFreeHost(found->pinned); }}
    found->device = 0; found->pinned = 0; found->capacity = 0; found->bytes = 0;
    if ((*code = cuMemHostAlloc((void**)&found->pinned, (__SIZE_TYPE__)bytes, 0))) return 0;
    if ((*code = cuMemAlloc_v2(&found->device, (__SIZE_TYPE__)bytes))) {{ cuMemFreeHost(found->pinned); found->pinned = 0; return 0; }}
    found->capacity = bytes;
  }}
  if (!found->done && (*code = cuEventCreate(&found->done, 2 /* without times */))) return 0;
  __builtin_memcpy(found->pinned, content, (__SIZE_TYPE__)bytes);
  found->bytes = bytes; found->on = call.device;
  *code = cuMemcpyHtoDAsync_v2(found->device, found->pinned, (__SIZE_TYPE__)bytes, call.stream);
  if (*code) found->bytes = 0;
  return found;
}}
EXPORT int precast_run_rows(void* const* table, void* const* words, int64_t rows, char* error, int64_t capacity) {{
  enum {{ WORDS = {words}, POINTERS = {pointers}, BLOCK = {block} }};
  static const int places[] = {{{places}}};
  if (rows <= 0) return 0;
  int together = 1, capturing = 0;
  int64_t blocks = 0, programs = 0;
  for (int64_t r = 0; r < rows; ++r) {{
    const int64_t count = (int64_t)words[r * WORDS + {count}];
    together = together && count < INT64_C(0x7fff0000){same};
    blocks += (count + BLOCK - 1) / BLOCK;
  }}
  int32_t chunk = (int32_t)((blocks + {programs} - 1) / {programs});
  if (chunk < 8) chunk = 8;
  for (int64_t r = 0; r < rows; ++r) {{
    const int64_t own = ((int64_t)words[r * WORDS + {count}] + BLOCK - 1) / BLOCK;
    programs += (own + chunk - 1) / chunk;
  }}
  const int64_t wide = rows * (POINTERS + 1) * 8, bytes = wide + programs * 8;
  char* const content = together ? (char*)malloc((__SIZE_TYPE__)bytes) : 0;
  if (content) {{
    Call run(table, error, capacity);
    if (enter(run, words[{first}])) {{ free(content); return 1; }}
    const int asked = cuStreamIsCapturing(run.stream, &capturing);
    if (asked) {{ free(content); return driver_error(run, asked, "asking", "the stream"); }}
    int64_t* row = (int64_t*)content;
    int32_t* block = (int32_t*)(content + wide);
    for (int64_t r = 0; r < rows && together; ++r) {{
      const int64_t count = (int64_t)words[r * WORDS + {count}];
      for (int n = 0; n < POINTERS; ++n) {{
        void* data = 0;
        const int failed = aoti_torch_get_data_ptr(words[r * WORDS + places[n]], &data);
        if (failed) {{ free(content); return torch_error(run, "address of a tensor"); }}
        together = together && !misaligned(data);
        *row++ = (int64_t)data;
      }}
      *row++ = count;
      for (int64_t b = 0; b * BLOCK < count; b += chunk) {{ *block++ = (int32_t)r; *block++ = (int32_t)b; }}
    }}
    if (together && !capturing) {{
      RowsLock lock;
      int code = 0;
      Table* const found = table_with(run, content, bytes, &code);
      free(content);
      if (code) return driver_error(run, code, "writing", "the table of an update's tensors");
      uint64_t table_on_device = found->device, blocks_on_device = found->device + (uint64_t)wide;
{numbers}
      void *scratch = 0, *profile = 0;
      void* arguments[] = {{{arguments}, &scratch, &profile}};
      if (launch(run, {image}, programs, arguments, &scratch)) return 1;
      found->used = ++table_clock;
      code = cuEventRecord(found->done, run.stream);
      return code ? driver_error(run, code, "launching", "an update") : 0;
    }}
    free(content);
  }}
  void* nothing = 0;
  for (int64_t r = 0; r < rows; ++r) if (precast_run(table, words + r * WORDS, &nothing, 0, error, capacity)) return 1;
  return 0;
}}
"""
"""`launch`, `enter` and `precast_run` stand before it. A launch that a stream captures would read the table at each replay: there each row
is launched by itself.
"""

__all__ = ["Rows", "rows_function"]
