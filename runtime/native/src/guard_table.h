/* Guard tables: everything that a set of guards read when it last held, flat, so that "nothing has changed" is a few hundred loads.
 *
 * A guard's outcome is a function of what it reads. A table holds each of these reads once: a dict by its version tag, a pointer slot by
 * its content, a type by its version tag, a tensor by the bytes of its TensorImpl. For a call's own arguments, which are new objects each
 * time, it holds a program of checks on their values. The recorder (runtime/guards/table/recorder.py) fills a table through its methods
 * (guard_table_record.c: objects that outlive the call; guard_table_record_values.c: values of the call), the dispatcher asks whether it
 * still holds (guard_table_check.c). guard_table_memory.c owns its memory, and guard_table.c is its type.
 *
 * The table keeps every object that it names alive, so that no address is reused while it is compared with. Objects that the caller passed
 * in are the exception: of those it keeps weak references only, and when one of them is freed the table drops everything that it holds and
 * holds for no call any more.
 *
 * What a port has to look at: everything here that is no stable part of Python's, the C library's or torch's interface.
 *
 *   `ma_version_tag` of dicts (TAG below)    Python 3.11: the whole word. 3.12: its low 8 bits say who watches the dict; 3.13: the low 12 bits.
 *                                            3.14: the field is gone (PEP 699; `_ma_watcher_tag` is no version), so this does not compile there, and
 *                                            Python dispatches: `dicts` and `wholes` would have to rely on watchers.
 *                                            In 3.13.0 attribute stores do not move it: runtime/native/loader.py tests each Python when it loads this.
 *   dict watchers (dict_watch.c)                  From 3.12; 3.11 compares tags. 3.12 loses watches that begin within a specialised STORE_ATTR, and
 *                                            dict_watch.c looks for one by that opcode's number; 3.13 does not lose them.
 *   `tp_version_tag` of types                3.11 to 3.13: 0 where the type has none; `_PyType_Lookup` assigns one (guard_table_record.c).
 *   `_PyDict_GetItem_KnownHash`,             Exported, but private, in 3.11 to 3.13. The last one moves an instance's values into a dict first,
 *   `_PyObject_GetDictPtr`                   in each of these versions, so that the slot which it returns is the one that Python reads.
 *   fields of function, cell, list and       3.11 to 3.13: in the public headers under Include/cpython, which promise nothing.
 *   dict objects
 *   the GIL                                  All of this is written under it, and the types and `layout` are one per process: no free-threaded
 *                                            build, no subinterpreters.
 *   size of a heap block                     `heap_block_size` (tensor_layout.c) knows glibc's malloc_usable_size. Elsewhere it returns 0: layouts
 *                                            cannot be probed, and the runtime stays off. macOS would take malloc_size, Windows _msize.
 *   where torch keeps what in a tensor       Probed and tested when the module is loaded (runtime/native/tensor_layout.py), for every version of torch.
 *   64-bit pointers, gcc or clang            Numbers travel in pointer-sized words; shape_expression.c uses __builtin_*_overflow. */
#ifndef PRECAST_GUARD_TABLE_H
#define PRECAST_GUARD_TABLE_H

#include "native.h"

/* What is done with a value of the call. Python names these by number (runtime/native/kinds.py): each is a constant KIND_<name> of the module. */
#define VALUE_KINDS(X)                                                                                                              \
    X(LOCAL)   /* `target` becomes local variable `count` */                                                                        \
    X(ITEM)    /* `target` becomes item `count` of a tuple or list that an earlier check found long enough */                       \
    X(OWN)     /* `target` becomes the `__dict__` of the value */                                                                   \
    X(DICT)    /* a dict with exactly the keys `object`, in this order; its values become `target` and those after it */            \
    X(POINTER) /* this very `object` */                                                                                             \
    X(EQUAL)   /* equal to `object`, an int, float, string or bytes, and of the same type */                                        \
    X(TYPE)    /* of exactly the type `object` */                                                                                   \
    X(TUPLE)   /* a tuple of `count` items */                                                                                       \
    X(LIST)    /* a list of `count` items */                                                                                        \
    X(TENSOR)  /* a tensor of the type `object` with the properties in `numbers` and `count` attributes of its own */               \
    X(SAME)    /* the same object as the value `target` */                                                                          \
    X(DISTINCT) /* `target` values and `count` fixed objects, all in `numbers`: no object is among them twice */                    \
    X(SHAPE)   /* the `count` numbers of a program over sizes, strides and integers (shape_expression.c) give something other than 0 */        \
    X(APART)   /* a tensor whose memory touches none of the `count` ranges in `numbers` */                                          \
    X(DISJOINT) /* `count` tensors, in `numbers`: the first `target` of them share no memory with any other */

/* Which pointer of an object is compared; constants SLOT_<name> of the module. */
#define SLOT_KINDS(X) X(TYPE) X(DICT) X(CELL) X(CODE) X(DEFAULTS) X(KWDEFAULTS)

#define AS_KIND(name) KIND_##name,
enum { VALUE_KINDS(AS_KIND) KIND_COUNT };
#undef AS_KIND
#define AS_SLOT(name) SLOT_##name,
enum { SLOT_KINDS(AS_SLOT) SLOT_COUNT };
#undef AS_SLOT

/* One step of the program over a call's values. The value that it looks at has the number `source`, except for LOCAL, DISTINCT, SHAPE and DISJOINT. */
typedef struct {
    int kind;
    int target, source;
    Py_ssize_t count;
    PyObject *object;
    int64_t *numbers; /* owned by the table */
} ValueCheck;

typedef struct {
    void **address;
    void *expected;
} Slot;

typedef struct {
    PyDictObject *dict;
    Watched *watched; /* or NULL */
    uint64_t tag;
    uint32_t first_key, key_count; /* in `keys` */
} Dict;

typedef struct {
    PyDictObject *dict;
    uint64_t tag;
} Whole;

typedef struct {
    PyObject *key;
    Py_hash_t hash;
    PyObject *value; /* NULL: absent */
} Key;

typedef struct {
    PyDictObject *dict;
    Watched *watched; /* or NULL */
    Py_ssize_t used;
} Used;

typedef struct {
    PyTypeObject *type;
    unsigned int tag;
} Type;

typedef struct {
    PyListObject *list;
    Py_ssize_t count;
    size_t first; /* in `pointers` */
} Items;

typedef struct {
    PyObject *tensor;
    char *impl;
    size_t first; /* in `bytes` */
    uint32_t size;
    char *meta; /* AutogradMeta or NULL: the pointer is among the bytes */
    int requires_grad;
} Tensor;

typedef struct {
    PyObject *tensor;
    void *data;
} Data;

typedef struct {
    PyObject *function, *expected;
} Probe;

/* The growable arrays: <name>, <name>_count entries, room for <name>_room. */
#define TABLE_ARRAYS(X)                                                                                    \
    X(ValueCheck, value_checks)                                                                            \
    X(Py_ssize_t, lengths) /* one entry for each value of the call: the number of items checked, or -1 */  \
    X(Slot, slots)                                                                                         \
    X(Dict, dicts)   /* of which some keys count */                                                        \
    X(Key, keys)     /* of all `dicts` */                                                                  \
    X(Whole, wholes) /* dicts of which everything counts */                                                \
    X(Used, used)    /* dicts of which the number of entries counts */                                     \
    X(Type, types)                                                                                         \
    X(Items, items)                                                                                        \
    X(PyObject *, pointers) /* what all `items` hold */                                                    \
    X(Tensor, tensors)                                                                                     \
    X(char, bytes) /* of all `tensors` */                                                                  \
    X(Data, data)                                                                                          \
    X(Probe, probes)

typedef struct {
    PyObject_HEAD
#define AS_FIELDS(type, name) \
    type *name;               \
    size_t name##_count, name##_room;
    TABLE_ARRAYS(AS_FIELDS)
#undef AS_FIELDS
    PyObject *lent;    /* dict: address of an object of the caller's -> weak reference to it; NULL: there is none */
    PyObject *name;    /* capsule with the table for the callbacks of those weak references; its context is set once the table is freed */
    int forgotten;     /* one of those objects was freed */
    int checks;        /* checks under way: while there are any, nothing is dropped */
    int watched;       /* whether all `dicts` and `used` are */
    uint64_t quiet;    /* if so: `dict_changes` when they were last compared and found unchanged */
    PyObject *refs;    /* list: the objects that the arrays point to */
    PyObject *checker; /* callable(locals tuple) -> bool for guards that only Python can evaluate, or NULL */
} Table;

#if PY_VERSION_HEX >= 0x030D0000
#define WATCHER_BITS 12 /* of a tag: who watches the dict is no part of what it holds (CPython's Include/internal/pycore_dict.h) */
#elif PY_VERSION_HEX >= 0x030C0000
#define WATCHER_BITS 8
#else
#define WATCHER_BITS 0
#endif
#define TAG(dict) ((dict)->ma_version_tag >> WATCHER_BITS)

#define FREE INT64_MIN /* a size or stride that may be anything */
#define FIXED 7        /* numbers of a TENSOR check in front of the sizes: dtype, device type, device index, requires_grad, key set, offset, rank */
#define FEW_DISTINCT 16 /* values of a DISTINCT check that are compared pair by pair; more of them go through a hash set */

/* Slots of the hash set of a DISTINCT check: a power of two, at least twice the number of values. It follows the addresses in `numbers`. */
static inline size_t distinct_slots(size_t values) {
    size_t slots = 64;
    while (slots < 2 * values) slots *= 2;
    return slots;
}

/* -1 for the CPU, whose tensors name no index or 0. */
static inline int device_index(void *handle, int32_t type, int32_t *index) {
    *index = -1;
    return type == 0 ? 0 : layout.device_index(handle, index);
}

/* The `__dict__` that the object has at present, borrowed; NULL: none. */
static inline PyObject *own_attributes(PyObject *object) {
    PyObject **attributes = _PyObject_GetDictPtr(object);
    return attributes ? *attributes : NULL;
}

/* ---- guard_table_memory.c */

/* The first of `more` new zeroed entries of an array; NULL with an exception set. */
void *table_grow(void **array, size_t *count, size_t *room, size_t size, size_t more);
#define PUSH_MANY(self, name, n) table_grow((void **)&(self)->name, &(self)->name##_count, &(self)->name##_room, sizeof(*(self)->name), n)
#define PUSH(self, name) PUSH_MANY(self, name, 1)

/* Empty all arrays. They keep their room until the table is freed. */
void table_drop_entries(Table *self);
void table_unwatch(Table *self);
/* Drop everything: the table holds for no call any more. */
int table_clear(PyObject *table);
/* Keep an object alive that the table names, unless there is a weak reference to it. -1 with an exception set. */
int table_hold(Table *self, PyObject *object);
PyObject *table_lend(PyObject *table, PyObject *lent);

/* ---- guard_table_record.c: reads of objects that outlive the call */
PyObject *table_slot(PyObject *table, PyObject *arguments);
PyObject *table_dict(PyObject *table, PyObject *arguments);
PyObject *table_used(PyObject *table, PyObject *dict);
PyObject *table_watch(PyObject *table, PyObject *unused);
PyObject *table_type(PyObject *table, PyObject *type);
PyObject *table_items(PyObject *table, PyObject *list);
PyObject *table_tensor(PyObject *table, PyObject *tensor);
PyObject *table_data(PyObject *table, PyObject *tensor);
PyObject *table_probe(PyObject *table, PyObject *arguments);

/* ---- guard_table_record_values.c: checks on values of the call */
PyObject *table_local(PyObject *table, PyObject *position);
PyObject *table_item(PyObject *table, PyObject *arguments);
PyObject *table_own(PyObject *table, PyObject *value);
PyObject *table_fields(PyObject *table, PyObject *arguments);
PyObject *table_live(PyObject *table, PyObject *arguments);
PyObject *table_live_tensor(PyObject *table, PyObject *arguments);
PyObject *table_distinct(PyObject *table, PyObject *arguments);
PyObject *table_shape(PyObject *table, PyObject *program);
PyObject *table_apart(PyObject *table, PyObject *arguments);
PyObject *table_disjoint(PyObject *table, PyObject *arguments);

#endif
