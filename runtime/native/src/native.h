/* The native runtime: Python.h and declared C prototypes only. Where torch keeps what inside its objects is probed when the module
 * loads (runtime/native/tensor_layout.py) and verified there; nothing about it is written down here. */
#ifndef PRECAST_NATIVE_H
#define PRECAST_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* ma_version_tag: the self-test at load decides whether it can be trusted */
#endif

typedef int32_t (*shim_delete)(void *handle);
typedef int32_t (*shim_pointer)(void *handle, void **value);
typedef int32_t (*shim_new)(void *handle, void **result);
typedef int32_t (*shim_i32)(void *handle, int32_t *value);
typedef int32_t (*shim_i64)(void *handle, int64_t *value);
typedef int32_t (*shim_i64s)(void *handle, int64_t **values);
typedef PyObject *(*wrap_function)(const void *tensor);

/* Offsets in bytes. */
typedef struct {
    int ready;
    PyTypeObject *tensor_type;   /* torch._C.TensorBase */
    Py_ssize_t tensor_in_object; /* at::Tensor inside the Python object; its address is an AtenTensorHandle */
    Py_ssize_t refcount;         /* in TensorImpl: the one word that changes when C++ takes a reference */
    Py_ssize_t storage;          /* in TensorImpl: pointer */
    Py_ssize_t storage_offset;   /* in TensorImpl: one word, in elements */
    Py_ssize_t autograd_meta;    /* in TensorImpl: pointer */
    Py_ssize_t requires_grad;    /* in AutogradMeta: one byte */
    Py_ssize_t grad_fn;          /* in AutogradMeta: pointer; a tensor with one requires grad, whatever that byte says */
    Py_ssize_t key_set;          /* in TensorImpl: one word */
    Py_ssize_t version_pointer;  /* in TensorImpl: pointer to the version counter */
    Py_ssize_t version_value;    /* in the version counter: 32 bits */
    wrap_function wrap;          /* NULL: `steal` is used */
    PyObject *steal;             /* torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr */
    shim_delete delete_handle;
    shim_new new_handle; /* another handle of a tensor */
    shim_i32 dtype, device_type, device_index;
    shim_i64 dim, offset;
    shim_i64s sizes, strides;
    shim_pointer data;
} Layout;

/* The layout (tensor_layout.c) and how Python fills it in. */
extern Layout layout;
PyObject *layout_read_bytes(PyObject *module, PyObject *arguments);
PyObject *layout_allocation_size(PyObject *module, PyObject *argument);
PyObject *layout_configure(PyObject *module, PyObject *arguments);
/* Bytes usable at a heap address; 0 where the C library cannot tell. */
size_t heap_block_size(void *address);

extern PyTypeObject GraphCall_Type;
extern PyTypeObject Table_Type;
extern PyTypeObject Dispatcher_Type;

PyObject *dispatcher_force_eager(PyObject *module, PyObject *value);

#define HANDLE(object) ((void *)((char *)(object) + layout.tensor_in_object))
#define IMPL(object) (*(char **)HANDLE(object))

/* Of a tensor with this AutogradMeta (or NULL). */
static inline int meta_requires_grad(const char *meta) {
    return meta && (meta[layout.requires_grad] == 1 || *(void *const *)(meta + layout.grad_fn));
}

static inline int is_tensor(PyObject *object) { return layout.ready && PyObject_TypeCheck(object, layout.tensor_type); }

/* Watching dicts (dict_watch.c). `dict_changes` moves with each change of a watched one. */
typedef struct Watched Watched;
extern uint64_t dict_changes;
void dict_watching_start(void); /* once */
int dicts_can_be_watched(void);
/* NULL with an exception set. Each call is taken back by one of `dict_unwatch`, until when the dict has to be kept alive. */
Watched *dict_watch(PyObject *dict);
void dict_unwatch(Watched *entry); /* NULL: nothing */
/* Asked in this order, without Python in between, after dicts were watched: only after 0 from the first and 1 from the second will every
 * change of the dict be seen. The first gives -1 with an exception set. */
int dict_watches_may_be_lost(void);
int dict_watch_holds(Watched *entry);

/* Memory (memory_overlap.c): whether a tensor, whose elements have `numbers[0]` bytes, reaches into none of `count` sorted disjoint ranges that
 * follow. Whether the first `written` of `count` tensors share no memory with any other of them: `numbers` holds the tensors' positions in
 * `values`, the sizes of their elements, and DISJOINT_ROOM words of room for each. */
#define DISJOINT_ROOM 3
int apart_from_ranges(PyObject *tensor, const int64_t *numbers, Py_ssize_t count);
int tensors_disjoint(int64_t *numbers, Py_ssize_t count, int written, PyObject *const *values);

/* Shape relations (shape_expression.c). 1: the program's value is not zero; 0: it is, or it overflows, divides by zero or reads what is not there. */
int shape_holds(const int64_t *program, Py_ssize_t count, PyObject *const *values);
/* -1 with an exception set where a program is malformed or names a value from `values` on. */
int shape_problem(const int64_t *program, Py_ssize_t count, int values);

/* Steps of rewritten bytecode (reconstruct.c). */
int rebuild_start(void); /* once; -1 with an exception set */
PyObject *rebuild_set_attributes(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *rebuild_set_own(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *rebuild_refill(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* What an optimiser's step asks of its tensors (update_rows.c). */
PyObject *update_facts(PyObject *module, PyObject *columns);
PyObject *update_values(PyObject *module, PyObject *list);
PyObject *update_add(PyObject *module, PyObject *arguments);

/* Guard tables (guard_table_check.c). 1: what the table recorded is unchanged, so its guards hold; 0: something changed; -1: an exception is
 * set. `locals` may hold NULLs. */
int table_check(PyObject *table, PyObject *const *locals, Py_ssize_t count);

#endif
