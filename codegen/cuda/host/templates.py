"""The fixed C++ of host programs for CUDA: entering a device, loading and launching kernels, moving what lies in the wrong place."""

RUNTIME = r"""
enum { DEVICES = 64, ALIGNED = 16 };
/* Tensors over memory of ours that library calls were given, kept for the next call: made anew where memory or device changed. A call takes
   one of a few sets; one that finds them all taken makes its own. */
struct Kept { void* data; void* handle; int32_t device; };
struct Views { Kept of[KEPT]; int taken; };
static Views all_views[4];
/* What a call works with. The device is that of its tensors; all memory of the call is given back when it ends, in stream order. */
struct Call {
  void* const* table; char* error; int64_t capacity;
  int32_t device = 0; void* stream = 0; void* guard = 0; void** functions = 0; int held = 0; void* memory[HELD]; Views* views = 0;
  Call(void* const* t, char* e, int64_t c) : table(t), error(e), capacity(c) {}
  ~Call() {
    while (held) if (void* const some = memory[--held]) aoti_torch_cuda_caching_allocator_raw_delete(some);
    if (views) __atomic_store_n(&views->taken, 0, __ATOMIC_RELEASE);
    if (guard) aoti_torch_delete_cuda_guard(guard);
  }
};
static int __attribute__((noinline, cold)) driver_error(const Call& call, int code, const char* doing, const char* what) {
  void* const* const table = call.table;
  const char *name = 0, *text = 0;
  cuGetErrorName(code, &name); cuGetErrorString(code, &text);
  if (call.capacity > 0) {
    if (!text) text = "unknown error";
    snprintf(call.error, (__SIZE_TYPE__)call.capacity, "CUDA error: %s (%s) [%s %s]", text, name ? name : "?", doing, what);
  }
  return 1;
}
/* A failed shim. Torch before 2.12 keeps no text of it; where a kernel failed before, the driver knows more. */
static int __attribute__((noinline, cold)) torch_error(const Call& call, const char* step) {
  void* const* const table = call.table;
  const char* what = torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace() : 0;
  const int code = what && *what ? 0 : cuCtxSynchronize();
  return code ? driver_error(call, code, "in", step) : fail(table, call.error, call.capacity, step);
}
static int __attribute__((noinline, cold, unused)) no_memory(const Call& call, int64_t bytes, const char* step) {
  void* const* const table = call.table;
  const char* what = torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace() : 0;
  if (what && *what) return fail(table, call.error, call.capacity, step);
  const int code = cuCtxSynchronize();
  if (code) return driver_error(call, code, "in", step);
  if (call.capacity > 0) {
    const char* text = "CUDA out of memory. Tried to allocate %lld bytes. [in %s]";
    snprintf(call.error, (__SIZE_TYPE__)call.capacity, text, (long long)bytes, step);
  }
  return 1;
}

/* One lock for what happens once a device: loading a kernel, uploading literals. */
static int busy;
struct Lock {
  Lock() { while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) sched_yield(); }
  ~Lock() { __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); }
};

/* Makes the device of `tensor` (null: the current one) current in this thread, and finds its stream. */
static int enter(Call& call, void* tensor) {
  void* const* const table = call.table;
  if (tensor ? aoti_torch_get_device_index(tensor, &call.device) : aoti_torch_get_current_device_index(&call.device)) {
    return torch_error(call, "device of the call");
  }
  if (call.device < 0 || call.device >= DEVICES) {
    say(call.error, call.capacity, "the tensors lie on a device whose number is not below 64");
    return 1;
  }
  if (aoti_torch_create_cuda_guard(call.device, &call.guard)) return torch_error(call, "device of the call");
  void* context = 0;
  int code = cuCtxGetCurrent(&context);
  if (!code && !context) { /* a thread that has not used CUDA yet: torch's guard leaves it alone where the device is the default one */
    code = cuDevicePrimaryCtxRetain(&context, call.device);
    if (!code) code = cuCtxSetCurrent(context);
  }
  if (code) return driver_error(call, code, "entering", "the device");
  if (aoti_torch_get_current_cuda_stream(call.device, &call.stream)) return torch_error(call, "current stream");
  call.functions = functions[call.device];
  for (Views& views : all_views) {
    if (!__atomic_exchange_n(&views.taken, 1, __ATOMIC_ACQUIRE)) { call.views = &views; break; }
  }
  return 0;
}
static void* __attribute__((noinline, cold)) view_of(
    Call& call, Kept* kept, void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, void** spare) {
  void* const* const table = call.table;
  void* made = 0;
  if (aoti_torch_create_tensor_from_blob(data, rank, sizes, strides, 0, dtype, 1, call.device, &made)) return 0;
  if (!kept) return *spare = made;
  if (kept->handle) aoti_torch_delete_tensor_object(kept->handle);
  kept->data = data; kept->device = call.device;
  return kept->handle = made;
}
/* A tensor over memory of ours; `spare` owns it until the call ends where it cannot be kept. */
static inline void* keep(
    Call& call, int number, void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, void** spare) {
  Kept* const kept = call.views ? &call.views->of[number] : 0;
  if (__builtin_expect(kept && kept->handle && kept->data == data && kept->device == call.device, 1)) return kept->handle;
  return view_of(call, kept, data, rank, sizes, strides, dtype, spare);
}

static void __attribute__((noinline, cold)) mark_step(const Call& call, int64_t step) {
  void* const* const table = call.table;
  Marks* const into = __atomic_load_n(&marks, __ATOMIC_ACQUIRE);
  const int64_t place = into ? __atomic_fetch_add(&into->used, 1, __ATOMIC_RELAXED) : 0;
  if (!into || place >= into->capacity) return;
  into->steps[place] = step;
  cuEventRecord((void*)into->times[place], call.stream);
}
#define MARK(step) if (__builtin_expect(marks != 0, 0)) mark_step(run, step)

/* Memory of torch's caching allocator until the call ends; 512-byte aligned. */
static char* hold(Call& call, int64_t bytes, const char* what) {
  void* const* const table = call.table;
  void* found = 0;
  if (aoti_torch_cuda_caching_allocator_raw_alloc((uint64_t)(bytes > 0 ? bytes : 1), &found)) { no_memory(call, bytes, what); return 0; }
  return (char*)(call.memory[call.held++] = found);
}
/* Memory that `hold` got, given back before the call ends: what is queued on the stream later may get it. */
static void __attribute__((unused)) give_back(Call& call, int which) {
  void* const* const table = call.table;
  aoti_torch_cuda_caching_allocator_raw_delete(call.memory[which]);
  call.memory[which] = 0;
}
static inline bool misaligned(const void* pointer) { return ((__UINTPTR_TYPE__)pointer & (ALIGNED - 1)) != 0; }
/* Kernels rely on aligned pointers: replaces a pointer that is none by one to a copy. */
static int __attribute__((noinline, cold)) align(Call& call, void** pointer, int64_t bytes) {
  void* const* const table = call.table;
  if (bytes <= 0) return 0;
  char* copy = hold(call, bytes, "copy of a misaligned input");
  if (!copy) return 1;
  const int code = cuMemcpyDtoDAsync_v2((uint64_t)copy, (uint64_t)*pointer, (__SIZE_TYPE__)bytes, call.stream);
  if (code) return driver_error(call, code, "copying", "a misaligned input");
  *pointer = copy;
  return 0;
}
/* A number that lies in the host's memory, to where kernels read it; whole words are written. By value: the tensor may change before the
   device comes to it, and a CUDA graph of the caller's that this is captured in would read this stack frame at each replay. */
static int __attribute__((unused)) put(const Call& call, void* to, const void* from, int64_t bytes) {
  void* const* const table = call.table;
  unsigned words[4] = {0, 0, 0, 0};
  __builtin_memcpy(words, from, (__SIZE_TYPE__)bytes);
  int code = 0;
  for (int i = 0; i < (bytes + 3) / 4 && !code; ++i) code = cuMemsetD32Async((uint64_t)to + 4 * i, words[i], 1, call.stream);
  return code ? driver_error(call, code, "copying", "a number to the device") : 0;
}
/* Waits for the stream and reads one element. */
static int __attribute__((unused)) fetch(const Call& call, void* to, const void* from, int64_t bytes) {
  void* const* const table = call.table;
  int code = cuMemcpyDtoHAsync_v2(to, (uint64_t)from, (__SIZE_TYPE__)bytes, call.stream);
  if (!code) code = cuStreamSynchronize(call.stream);
  return code ? driver_error(call, code, "reading", "an element") : 0;
}
/* Whether a library's result is not as planned: other strides, or a pointer that kernels cannot take. */
static bool __attribute__((unused)) unfit(void* const* table, void* tensor, int64_t rank, const int64_t* sizes, const int64_t* strides) {
  void* data = 0;
  return differs(table, tensor, rank, sizes, strides) || (!aoti_torch_get_data_ptr(tensor, &data) && misaligned(data));
}
"""
"""`HELD`, `functions` and the declarations of libc stand before it."""

KERNEL_INFO = r"""
struct KernelInfo { const char* name; const char* entry; unsigned threads; unsigned shared; int64_t scratch; };
extern const KernelInfo kernels[];
"""
"""What is known of a kernel once it is compiled, which is while the rest of the host program is."""

KERNELS = r"""
static const void* const* images; static int64_t image_count;
EXPORT void precast_images(const void* const* given, const int64_t* bytes, int64_t count) {
  (void)bytes; images = given; image_count = count;
}

static void* __attribute__((noinline, cold)) load_kernel(const Call& call, int number) {
  void* const* const table = call.table;
  const KernelInfo& kernel = kernels[number];
  Lock lock;
  if (call.functions[number]) return call.functions[number];
  if (number >= image_count) { say(call.error, call.capacity, "the kernels of this graph were not handed to its library"); return 0; }
  char log[1024]; log[0] = 0;
  int options[] = {5 /* CU_JIT_ERROR_LOG_BUFFER */, 6 /* … its size */};
  void* values[] = {log, (void*)sizeof log};
  void *module = 0, *function = 0;
  int code = cuModuleLoadDataEx(&module, images[number], 2, options, values);
  if (code) { driver_error(call, code, log[0] ? log : "loading", kernel.name); return 0; }
  code = cuModuleGetFunction(&function, module, kernel.entry);
  const int most_shared = 8; /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
  if (!code && kernel.shared > 48 << 10) code = cuFuncSetAttribute(function, most_shared, (int)kernel.shared);
  if (code) { driver_error(call, code, "preparing", kernel.name); return 0; }
  __atomic_store_n(&call.functions[number], function, __ATOMIC_RELEASE);
  return function;
}
/* Queues `grid` blocks of a kernel. `arguments` ends with the two hidden ones, of which `scratch` is the first. */
static int __attribute__((unused)) launch(Call& call, int number, int64_t grid, void** arguments, void** scratch) {
  void* const* const table = call.table;
  if (__builtin_expect(grid <= 0, 0)) return 0;
  void* function = __atomic_load_n(&call.functions[number], __ATOMIC_ACQUIRE);
  if (__builtin_expect(!function, 0) && !(function = load_kernel(call, number))) return 1;
  const KernelInfo& kernel = kernels[number];
  if (__builtin_expect(grid > 0x7fffffff, 0)) return driver_error(call, 1 /* INVALID_VALUE */, "too large a grid for", kernel.name);
  if (kernel.scratch) {
    if (!(*scratch = hold(call, grid * kernel.scratch, kernel.name))) return 1;
  }
  const int code = cuLaunchKernel(function, (unsigned)grid, 1, 1, kernel.threads, 1, 1, kernel.shared, call.stream, arguments, 0);
  return __builtin_expect(code != 0, 0) ? driver_error(call, code, "launching", kernel.name) : 0;
}
"""

LITERALS = r"""
alignas(64) static const uint64_t literals[] = {LITERAL_WORDS};
static char* literal_memory[DEVICES];
/* The user's literals in the memory of the call's device: uploaded once, kept for the life of the process. */
static char* literals_on_device(const Call& call) {
  void* const* const table = call.table;
  char* found = __atomic_load_n(&literal_memory[call.device], __ATOMIC_ACQUIRE);
  if (__builtin_expect(found != 0, 1)) return found;
  Lock lock;
  if (literal_memory[call.device]) return literal_memory[call.device];
  uint64_t address = 0;
  int code = cuMemAlloc_v2(&address, sizeof literals);
  if (!code) code = cuMemcpyHtoD_v2(address, literals, sizeof literals);
  if (!code) code = cuCtxSynchronize(); /* any stream may read them next */
  if (code) { driver_error(call, code, "uploading", "literals"); return 0; }
  __atomic_store_n(&literal_memory[call.device], (char*)address, __ATOMIC_RELEASE);
  return (char*)address;
}
"""

OWNED = """
struct Owned {{
  void* h[{owned}] = {{0}}; void* const* table;
  explicit Owned(void* const* t) : table(t) {{}}
  ~Owned() {{ for (void* x : h) if (x) aoti_torch_delete_tensor_object(x); }}
}};
"""

CUDA_RUN = (
    OWNED
    + """
EXPORT int precast_run(void* const* table, void* const* inputs, void** outputs, void* state, char* error, int64_t capacity) {{
  (void)inputs; void* nothing = 0; (void)nothing;
{state}  Owned own(table); Call run(table, error, capacity);
  if (enter(run, {first})) return 1;
{pointers}{body}
  return 0;
}}
"""
)

CUDA_PREPARE = """
static void release_state(void* const* table, State* s) {{
  for (void* h : s->packed) if (h) aoti_torch_delete_tensor_object(h);
  cuCtxSynchronize(); /* calls on other streams may still read it */
  if (s->memory) aoti_torch_cuda_caching_allocator_raw_delete(s->memory);
  delete s;
}}
struct Keeper {{ void* const* table; State* state; ~Keeper() {{ if (state) release_state(table, state); }} }};
struct PrepareOwned {{
  void* h[{owned}] = {{0}}; void* const* table;
  explicit PrepareOwned(void* const* t) : table(t) {{}}
  ~PrepareOwned() {{ for (void* x : h) if (x) aoti_torch_delete_tensor_object(x); }}
}};
EXPORT int precast_prepare(void* const* table, void* const* inputs, void** state, char* error, int64_t capacity) {{
  (void)inputs; void* nothing = 0; (void)nothing; *state = 0;
  State* const prepared = new State(); Keeper keeper = {{table, prepared}};
  PrepareOwned own(table); Call run(table, error, capacity);
  if (enter(run, {first})) return 1;
  if (aoti_torch_cuda_caching_allocator_raw_alloc({bytes}, (void**)&prepared->memory)) return no_memory(run, {bytes}, "prepared weights");
{pointers}{body}
  const int code = cuStreamSynchronize(run.stream); /* calls on other streams may come next */
  if (code) return driver_error(run, code, "preparing", "weights");
  keeper.state = 0; *state = prepared;
  return 0;
}}
EXPORT void precast_release(void* const* table, void* state) {{
  if (state) release_state(table, (State*)state);
}}
"""
