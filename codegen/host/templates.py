"""The fixed C++ of host programs: error messages on every device; the cached workspace and the frames of the entry points on the CPU."""

ERROR = """
struct Error { int set; int dimension; int64_t index; int64_t size; };
"""
"""What a kernel or a check says of an index out of range (where that is no IndexError, 1 << 16 is added to the dimension), or
(dimension -2) of an integer that was divided by 0, or (dimension -3) that it found no memory."""

MESSAGES = r"""
#define EXPORT extern "C" __attribute__((visibility("default")))
extern "C" { void* aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__); void free(void*);
             int snprintf(char*, __SIZE_TYPE__, const char*, ...);
             int madvise(void*, __SIZE_TYPE__, int); }
static void say(char* error, int64_t capacity, const char* text) { if (capacity > 0) snprintf(error, (__SIZE_TYPE__)capacity, "%s", text); }
static int fail(void* const* table, char* error, int64_t capacity, const char* step) {
  const char* what = "the library call failed; torch before 2.12 keeps no text of why: it is on stderr";
  if (torch_exception_get_what_without_backtrace) what = torch_exception_get_what_without_backtrace();
  if (capacity > 0) snprintf(error, (__SIZE_TYPE__)capacity, "%s [in %s]", what && *what ? what : "the library call failed", step);
  return 1;
}
static int say_index(const Error& fault, char* error, int64_t capacity) {
  if (capacity <= 0) return 1;
  const __SIZE_TYPE__ room = (__SIZE_TYPE__)capacity;
  const long long index = (long long)fault.index, size = (long long)fault.size;
  const bool plain = fault.dimension >= (1 << 16) - 1; /* -1, a dimension that is not known, becomes that */
  const int dimension = plain ? fault.dimension - (1 << 16) : fault.dimension;
  const char* const kind = plain ? "" : "I: ";
  if (dimension == -2) snprintf(error, room, "ZeroDivisionError: an integer was divided by 0");
  else if (dimension == -3) snprintf(error, room, "out of memory: the sums of a matrix's columns could not be allocated");
  else if (dimension >= 0)
    snprintf(error, room, "%sindex %lld is out of bounds for dimension %d with size %lld", kind, index, dimension, size);
  else snprintf(error, room, "%sindex %lld is out of bounds for a dimension with size %lld", kind, index, size);
  return 1;
}
static int __attribute__((noinline, cold, unused)) say_no_memory(int position, char* error, int64_t capacity) {
  if (capacity > 0) snprintf(error, (__SIZE_TYPE__)capacity, "E:%d", position);
  return 1;
}
static int64_t __attribute__((unused)) double_bits(double x) { int64_t bits; __builtin_memcpy(&bits, &x, 8); return bits; }
static bool differs(void* const* table, void* tensor, int64_t rank, const int64_t* sizes, const int64_t* strides) {
  int64_t* have = 0;
  if (aoti_torch_get_strides(tensor, &have)) return false;
  for (int64_t i = 0; i < rank; ++i) if (sizes[i] > 1 && have[i] != strides[i]) return true;
  return false;
}
"""
"""Messages of failed calls, on every device."""

ENTERED = -1
"""The number of the mark with which a run begins."""

MARKS = r"""
/* What a profiler gets of the runs of this library while it asks: the number of a step about to begin (-1: the run itself; the count of
   steps: the last one has ended) beside a time, which is nanoseconds on a CPU and on a device an event of the profiler's. */
struct Marks { int64_t* steps; int64_t* times; int64_t capacity; int64_t used; };
static Marks* marks;
EXPORT void precast_profile(Marks* given) { __atomic_store_n(&marks, given, __ATOMIC_RELEASE); }
"""
"""Marks of the steps, on every device; `MARK` leaves one."""

CPU_MARK = r"""
extern "C" int clock_gettime(int, int64_t*);
static void __attribute__((noinline, cold)) mark_step(int64_t step) {
  Marks* const into = __atomic_load_n(&marks, __ATOMIC_ACQUIRE);
  const int64_t place = into ? __atomic_fetch_add(&into->used, 1, __ATOMIC_RELAXED) : 0;
  if (!into || place >= into->capacity) return;
  int64_t now[2]; clock_gettime(1 /* CLOCK_MONOTONIC */, now);
  into->steps[place] = step; into->times[place] = now[0] * 1000000000 + now[1];
}
#define MARK(step) if (__builtin_expect(marks != 0, 0)) mark_step(step)
"""

MEMORY = r"""
/* Asks for huge pages before the first write: a large fresh block otherwise costs a page fault every 4 KiB. The kernel may refuse. */
static void huge_pages(void* memory, int64_t bytes) {
  const __UINTPTR_TYPE__ huge = 2 << 20, from = ((__UINTPTR_TYPE__)memory + huge - 1) & ~(huge - 1);
  const __UINTPTR_TYPE__ to = ((__UINTPTR_TYPE__)memory + (__UINTPTR_TYPE__)bytes) & ~(huge - 1);
  if (memory && to > from) (void)madvise((void*)from, to - from, 14 /* MADV_HUGEPAGE */);
}
/* Where glibc puts the results of libraries, which it allocates itself: in the heap, and they stay mapped between runs, else each run would
   meet fresh pages, glibc unmapping what is large. The first run also makes blocks that stay (oneDNN's primitives, small blocks that malloc
   keeps for each thread) and lie scattered among large results: these, freed, cannot grow together again, and later runs take other memory.
   So what the first run freed goes back to the system, once. (Mapping its results apart keeps the heap tidier still, but each then meets
   fresh pages: a ResNet's first call took 90 ms more.) */
extern "C" int mallopt(int, int) __attribute__((weak));
extern "C" int malloc_trim(__SIZE_TYPE__) __attribute__((weak));
extern "C" char* getenv(const char*);
static bool malloc_is_tuned() {
  static const char* const names[] = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"};
  for (const char* name : names) if (getenv(name)) return true;
  const char* const tunables = getenv("GLIBC_TUNABLES");
  return tunables && __builtin_strstr(tunables, "glibc.malloc.");
}
struct LibraryBlocks {
  enum { TRIM = -1, MAP = -3 }; /* M_TRIM_THRESHOLD, M_MMAP_THRESHOLD */
  bool first = false;
  LibraryBlocks() {
    static int begun;
    if (!mallopt || __atomic_exchange_n(&begun, 1, __ATOMIC_RELAXED) || malloc_is_tuned()) return;
    first = true;
    mallopt(MAP, 32 << 20); mallopt(TRIM, 128 << 20); /* the highest that glibc allows, and room for four such results */
  }
  ~LibraryBlocks() { if (first && malloc_trim) malloc_trim(0); }
};
/* Copies `rows` rows of `width` bytes, `step` apart in `to`: the columns of one part of a product into the whole. */
static void __attribute__((unused)) put_columns(char* to, int64_t step, const char* from, int64_t width, int64_t rows, int threads) {
  #pragma omp parallel for schedule(static) num_threads(threads) if(threads > 1)
  for (int64_t i = 0; i < rows; ++i) __builtin_memcpy(to + i * step, from + i * width, (__SIZE_TYPE__)width);
}
struct Block { char* memory; int64_t capacity; };
static Block shared_block; static int shared_taken;
/* One cached block a library, so that calls meet no fresh pages; a reentrant call has its own. */
struct Workspace {
  Block own = {0, 0}; Block* block = 0;
  char* get(int64_t bytes) {
    block = __atomic_exchange_n(&shared_taken, 1, __ATOMIC_ACQUIRE) ? &own : &shared_block;
    if (block->capacity < bytes || !block->memory) {
      free(block->memory);
      const int64_t rounded = (bytes + 4095) / 4096 * 4096 + 4096;
      block->memory = (char*)aligned_alloc(64, (__SIZE_TYPE__)rounded);
      block->capacity = block->memory ? rounded : 0;
      if (rounded >= 4 << 20) huge_pages(block->memory, rounded);
    }
    return block->memory;
  }
  ~Workspace() { if (block == &own) free(own.memory); else if (block) __atomic_store_n(&shared_taken, 0, __ATOMIC_RELEASE); }
};
"""

RUN = """
struct Owned {{
  void* h[{owned}] = {{0}}; void* const* table;
  explicit Owned(void* const* t) : table(t) {{}}
  ~Owned() {{ for (void* x : h) if (x) aoti_torch_delete_tensor_object(x); }}
}};
EXPORT int precast_run(void* const* table, void* const* inputs, void** outputs, void* state, char* error, int64_t capacity) {{
  (void)inputs;
{state}  Owned own(table); Workspace workspace; Error fault = {{0, 0, 0, 0}};
  uint32_t threads_now = 1; {threads}(&threads_now); const int threads = (int)threads_now;
  (void)threads; (void)fault;
{pointers}{body}
  return 0;
}}
"""

NEEDS_STATE = """  if (!state) { say(error, capacity, "the weights of this artifact were not prepared"); return 1; }
  State* const prepared = (State*)state; (void)prepared;
"""

STATE = """
struct State {{ char* memory; void* packed[{packs}]; }};
"""

PREPARE = """
static void release_state(void* const* table, State* s) {{
  for (void* h : s->packed) if (h) aoti_torch_delete_tensor_object(h);
  free(s->memory); delete s;
}}
struct Keeper {{ void* const* table; State* state; ~Keeper() {{ if (state) release_state(table, state); }} }};
EXPORT int precast_prepare(void* const* table, void* const* inputs, void** state, char* error, int64_t capacity) {{
  struct Owned {{
    void* h[{owned}] = {{0}}; void* const* table;
    explicit Owned(void* const* t) : table(t) {{}}
    ~Owned() {{ for (void* x : h) if (x) aoti_torch_delete_tensor_object(x); }}
  }} own(table);
  (void)inputs; *state = 0;
  State* const prepared = new State(); Keeper keeper = {{table, prepared}};
  prepared->memory = (char*)aligned_alloc(64, {bytes});
  if (!prepared->memory) {{ say(error, capacity, "out of memory: the prepared weights could not be allocated"); return 1; }}
  huge_pages(prepared->memory, {bytes});
  Error fault = {{0, 0, 0, 0}}; uint32_t threads_now = 1; {threads}(&threads_now); const int threads = (int)threads_now;
  (void)threads; (void)fault;
{pointers}{body}
  keeper.state = 0; *state = prepared;
  return 0;
}}
EXPORT void precast_release(void* const* table, void* state) {{
  if (state) release_state(table, (State*)state);
}}
"""
