/* Guard tables: everything that a set of guards read when it last held, flat, so that "nothing has changed" is a few hundred loads.
 *
 * A guard's outcome is a function of what it reads. A table holds each of these reads once (a dict by its version tag, a pointer slot by
 * its content, a type by its version tag, a tensor by the bytes of its TensorImpl), and for a call's own arguments the values they have
 * to have. The recorder (runtime/guards/table/recorder.py) fills it; every object that it names is kept alive, so that no address is ever reused. But
 * objects that a call was given are only lent: when one of them goes, the table forgets everything, and holds for no call any more. */
#include "native.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define FREE INT64_MIN /* a size or stride that may be anything */
#define MAX_VALUES 256
#define TENSOR_MAX 512

typedef struct {
    void **address;
    void *expected;
} Slot;

typedef struct {
    PyDictObject *dict;
    Watched *watched; /* or NULL */
    uint64_t tag;
    uint32_t first_key, key_count;
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

typedef struct {
    PyObject *reference; /* a weak one */
} Lent;

enum { LOCAL, POINTER, OTHER, EQUAL, TUPLE, LIST, ITEM, OWN, DICT, TENSOR, DIFFERENT, SAME, DISTINCT, TYPE, SHAPE, APART, APART_OTHER };

typedef struct {
    int kind;
    int target, source;
    Py_ssize_t count;
    PyObject *object;
    int64_t *numbers;
} Live;

#define ARRAY(type, name) \
    type *name;           \
    size_t name##_count, name##_room

typedef struct {
    PyObject_HEAD
    ARRAY(Live, live);
    ARRAY(Slot, slots);
    ARRAY(Dict, dicts);   /* of which some keys count */
    ARRAY(Whole, wholes); /* of which everything counts */
    ARRAY(Key, keys);
    ARRAY(Used, used);
    ARRAY(Type, types);
    ARRAY(Items, items);
    ARRAY(PyObject *, pointers);
    ARRAY(Tensor, tensors);
    ARRAY(char, bytes);
    ARRAY(Data, data);
    ARRAY(Probe, probes);
    ARRAY(Lent, lent);
    PyObject *addresses; /* set of ints: of what is lent, or NULL */
    PyObject *name;    /* capsule: the table, for what is called when something lent goes; its context is set when the table is no more */
    int forgotten;     /* something lent is gone */
    int checks;        /* under way: as long as there are any nothing is let go of */
    int watched;       /* whether all dicts are */
    uint64_t quiet;    /* if so: `dict_changes` when they were last looked at and found unchanged */
    PyObject *refs;    /* list: what the pointers above point to */
    PyObject *checker; /* callable(locals tuple) -> bool for guards that only Python can evaluate, or NULL */
    int values;
} Table;

static void *grow(void **array, size_t *count, size_t *room, size_t size, size_t more) {
    if (*count + more > *room) {
        size_t wanted = (*count + more) * 2 + 8;
        void *bigger = PyMem_Realloc(*array, wanted * size);
        if (!bigger) return PyErr_NoMemory();
        *array = bigger;
        *room = wanted;
    }
    void *place = (char *)*array + *count * size;
    memset(place, 0, more * size);
    *count += more;
    return place;
}
#define PUSH(self, name) grow((void **)&(self)->name, &(self)->name##_count, &(self)->name##_room, sizeof(*(self)->name), 1)
#define PUSH_MANY(self, name, n) grow((void **)&(self)->name, &(self)->name##_count, &(self)->name##_room, sizeof(*(self)->name), n)

#if PY_VERSION_HEX >= 0x030D0000
#define WATCHER_BITS 12 /* of a tag: who watches the dict is no part of what it holds (CPython's Include/internal/pycore_dict.h) */
#elif PY_VERSION_HEX >= 0x030C0000
#define WATCHER_BITS 8
#else
#define WATCHER_BITS 0
#endif
#define TAG(dict) ((dict)->ma_version_tag >> WATCHER_BITS)

/* 1: it is; 0: it is not; -1 with an exception set. */
static int is_lent(Table *self, PyObject *object) {
    if (!self->lent_count) return 0;
    PyObject *address = PyLong_FromVoidPtr(object);
    int found = address ? PySet_Contains(self->addresses, address) : -1;
    Py_XDECREF(address);
    return found;
}

static int hold(Table *self, PyObject *object) {
    int lent = is_lent(self, object);
    if (lent) return lent < 0 ? -1 : 0;
    if (!self->refs) {
        PyErr_SetString(PyExc_ValueError, "something that the table was lent is gone");
        return -1;
    }
    return PyList_Append(self->refs, object);
}

/* ---- checking */

static int keys_unchanged(Table *self, Dict *entry) {
    uint64_t tag = TAG(entry->dict);
    for (uint32_t i = 0; i < entry->key_count; i++) {
        Key *key = &self->keys[entry->first_key + i];
        PyObject *value = _PyDict_GetItem_KnownHash((PyObject *)entry->dict, key->key, key->hash);
        if (value != key->value || self->forgotten || (!value && PyErr_Occurred())) {
            PyErr_Clear(); /* from comparing with a key of another kind: the checker meets it, too */
            return 0;
        }
    }
    entry->tag = tag;
    return 1;
}

/* A real call leaves little of all this in the caches, and the reads do not depend on one another: ask for them some entries ahead. */
#define AHEAD 16
#if defined(__GNUC__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)0)
#endif

static void prefetch_tensor(const Tensor *entry) {
    PREFETCH(entry->tensor);
    for (uint32_t at = 0; at < entry->size; at += 64) PREFETCH(entry->impl + at);
    if (entry->meta) PREFETCH(entry->meta + layout.requires_grad);
}

static int dicts_unchanged(Table *self) {
    uint64_t now = dict_changes;
    for (size_t i = 0; i < self->dicts_count; i++) {
        if (i + AHEAD < self->dicts_count) PREFETCH(&self->dicts[i + AHEAD].dict->ma_used);
        if (TAG(self->dicts[i].dict) != self->dicts[i].tag && !keys_unchanged(self, &self->dicts[i])) return 0;
    }
    for (size_t i = 0; i < self->used_count; i++) {
        if (i + AHEAD < self->used_count) PREFETCH(&self->used[i + AHEAD].dict->ma_used);
        if (self->used[i].dict->ma_used != self->used[i].used) return 0;
    }
    self->quiet = now;
    return 1;
}

/* Never by what the watcher said: a destructor of a value that is being replaced may ask in the middle of the change, when the tag is
 * still the old one. (A value that `dicts` depend on is held, and so not destroyed.) */
static int wholes_unchanged(Table *self) {
    for (size_t i = 0; i < self->wholes_count; i++)
        if (TAG(self->wholes[i].dict) != self->wholes[i].tag) return 0;
    return 1;
}

static int words_unchanged(Table *self) {
    if (!(self->watched && self->quiet == dict_changes) && !dicts_unchanged(self)) return 0;
    if (!wholes_unchanged(self)) return 0;
    for (size_t i = 0; i < self->slots_count; i++) {
        if (i + AHEAD < self->slots_count) PREFETCH(self->slots[i + AHEAD].address);
        if (*self->slots[i].address != self->slots[i].expected) return 0;
    }
    for (size_t i = 0; i < self->types_count; i++)
        if (self->types[i].type->tp_version_tag != self->types[i].tag) return 0;
    for (size_t i = 0; i < self->items_count; i++) {
        Items *entry = &self->items[i];
        if (Py_SIZE(entry->list) != entry->count) return 0;
        if (memcmp(entry->list->ob_item, self->pointers + entry->first, entry->count * sizeof(PyObject *))) return 0;
    }
    for (size_t i = 0; i < self->tensors_count; i++) {
        Tensor *entry = &self->tensors[i];
        if (i + AHEAD / 2 < self->tensors_count) prefetch_tensor(entry + AHEAD / 2);
        char *impl = IMPL(entry->tensor);
        if (impl != entry->impl) return 0;
        const char *then = self->bytes + entry->first;
        size_t after = layout.refcount + 8;
        for (size_t at = 0; at < (size_t)layout.refcount; at += 8) /* one word: too little for a call */
            if (*(const uint64_t *)(impl + at) != *(const uint64_t *)(then + at)) return 0;
        if (memcmp(impl + after, then + after, entry->size - after)) return 0;
        if (meta_requires_grad(entry->meta) != entry->requires_grad) return 0;
    }
    for (size_t i = 0; i < self->data_count; i++) { /* of tensors above */
        void *data = NULL;
        if (layout.data(HANDLE(self->data[i].tensor), &data) || data != self->data[i].data) return 0;
    }
    return 1;
}

/* -1 for the CPU, whose tensors name no index or 0. */
static int device_index(void *handle, int32_t type, int32_t *index) {
    *index = -1;
    return type == 0 ? 0 : layout.device_index(handle, index);
}

static PyObject *own_attributes(PyObject *object) {
    PyObject **attributes = _PyObject_GetDictPtr(object);
    return attributes ? *attributes : NULL;
}

#define FIXED 7 /* numbers in front of the sizes */

/* numbers: dtype, device type, device index, requires_grad, key set, storage offset, dim, sizes…, strides… */
static int tensor_fits(Live *op, PyObject *tensor) {
    if ((PyObject *)Py_TYPE(tensor) != op->object) return 0;
    const int64_t *want = op->numbers;
    char *impl = IMPL(tensor);
    void *handle = HANDLE(tensor);
    if (*(int64_t *)(impl + layout.key_set) != want[4]) return 0;
    int32_t small;
    int64_t number, *list;
    if (layout.dtype(handle, &small) || small != want[0]) return 0;
    if (layout.device_type(handle, &small) || small != want[1]) return 0;
    if (device_index(handle, small, &small) || small != want[2]) return 0;
    if (want[5] != FREE && (layout.offset(handle, &number) || number != want[5])) return 0;
    if (layout.dim(handle, &number) || number != want[6]) return 0;
    const int64_t *sizes = want + FIXED, *strides = want + FIXED + number;
    if (number && layout.sizes(handle, &list)) return 0;
    for (int64_t i = 0; i < number; i++)
        if (sizes[i] != FREE && sizes[i] != list[i]) return 0;
    if (number && layout.strides(handle, &list)) return 0;
    for (int64_t i = 0; i < number; i++)
        if (strides[i] != FREE && strides[i] != list[i]) return 0;
    PyObject *attributes = own_attributes(tensor); /* marks of dynamic dimensions live there */
    if (attributes && PyDict_GET_SIZE(attributes) != op->count) return 0;
    return meta_requires_grad(*(char **)(impl + layout.autograd_meta)) == want[3];
}

static int dict_fits(Live *op, PyObject *dict, PyObject **values) {
    Py_ssize_t position = 0, i = 0;
    PyObject *key, *value;
    if (!PyDict_CheckExact(dict) || PyDict_GET_SIZE(dict) != op->count) return 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        PyObject *wanted = PyTuple_GET_ITEM(op->object, i);
        if (key != wanted && !(PyUnicode_CheckExact(key) && PyUnicode_Compare(key, wanted) == 0)) return 0;
        values[op->target + i++] = value;
    }
    return 1;
}

/* Equal exact ints, floats (by bits: 0.0 is not -0.0), strings or bytes. */
static int same_scalar(PyObject *value, PyObject *wanted) {
    if (value == wanted) return 1;
    if (Py_TYPE(value) != Py_TYPE(wanted)) return 0;
    if (PyFloat_CheckExact(value)) return memcmp(&((PyFloatObject *)value)->ob_fval, &((PyFloatObject *)wanted)->ob_fval, sizeof(double)) == 0;
    if (PyLong_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value)) return PyObject_RichCompareBool(value, wanted, Py_EQ);
    return 0;
}

/* numbers: of the values, each another object than the others; then the addresses, ascending, of objects that none of them is. */
static int all_distinct(const Live *op, PyObject *const *values) {
    const int64_t *fresh = op->numbers, *fixed = fresh + op->target;
    for (int i = 0; i < op->target; i++) {
        PyObject *value = values[fresh[i]];
        for (int j = 0; j < i; j++)
            if (value == values[fresh[j]]) return 0;
        Py_ssize_t low = 0, high = op->count;
        while (low < high) {
            Py_ssize_t middle = (low + high) / 2;
            if ((uint64_t)fixed[middle] < (uint64_t)(uintptr_t)value) low = middle + 1;
            else high = middle;
        }
        if (low < op->count && (uint64_t)fixed[low] == (uint64_t)(uintptr_t)value) return 0;
    }
    return 1;
}

static int live_holds(Table *self, PyObject *const *locals, Py_ssize_t count) {
    PyObject *values[MAX_VALUES];
    for (size_t i = 0; i < self->live_count; i++) {
        Live *op = &self->live[i];
        int over_many = op->kind == SHAPE || op->kind == DISTINCT;
        PyObject *value = over_many ? Py_None : op->kind == LOCAL ? (op->count < count ? locals[op->count] : NULL) : values[op->source];
        int holds = value != NULL;
        if (holds) switch (op->kind) {
            case LOCAL: values[op->target] = value; break;
            case POINTER: holds = value == op->object; break;
            case OTHER: holds = value != op->object; break;
            case EQUAL: holds = same_scalar(value, op->object); break;
            case TUPLE: holds = PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == op->count; break;
            case LIST: holds = PyList_CheckExact(value) && PyList_GET_SIZE(value) == op->count; break;
            case ITEM: values[op->target] = PyTuple_Check(value) ? PyTuple_GET_ITEM(value, op->count) : PyList_GET_ITEM(value, op->count); break;
            case OWN: holds = (values[op->target] = own_attributes(value)) != NULL; break;
            case DICT: holds = dict_fits(op, value, values); break;
            case TENSOR: holds = tensor_fits(op, value); break;
            case DIFFERENT: holds = value != values[op->target]; break;
            case SAME: holds = value == values[op->target]; break;
            case DISTINCT: holds = all_distinct(op, values); break;
            case TYPE: holds = (PyObject *)Py_TYPE(value) == op->object; break;
            case APART: holds = apart_from_ranges(value, op->numbers, op->count); break;
            case APART_OTHER: holds = apart_from_other(value, values[op->target], op->numbers); break;
            case SHAPE: holds = shape_holds(op->numbers, op->count, values); break;
            default: holds = 0;
            }
        if (holds != 1) return holds;
    }
    return 1;
}

static int probes_hold(Table *self) {
    for (size_t i = 0; i < self->probes_count; i++) {
        PyObject *result = PyObject_CallNoArgs(self->probes[i].function);
        if (!result) return -1;
        int same = result == self->probes[i].expected || same_scalar(result, self->probes[i].expected);
        Py_DECREF(result);
        if (!same || self->forgotten) return 0;
    }
    return 1;
}

static int checker_holds(Table *self, PyObject *const *locals, Py_ssize_t count) {
    PyObject *values = PyTuple_New(count);
    if (!values) return -1;
    for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(values, i, Py_NewRef(locals[i] ? locals[i] : Py_None));
    PyObject *result = PyObject_CallOneArg(self->checker, values);
    Py_DECREF(values);
    if (!result) return -1;
    int holds = PyObject_IsTrue(result);
    Py_DECREF(result);
    return holds;
}

static int table_clear(PyObject *object);

int table_check(PyObject *object, PyObject *const *locals, Py_ssize_t count) {
    Table *self = (Table *)object;
    self->checks++;
    int holds = live_holds(self, locals, count);
    if (holds == 1) holds = words_unchanged(self);
    if (holds == 1) holds = probes_hold(self);
    if (holds == 1 && self->checker) {
        holds = checker_holds(self, locals, count);
        if (holds == 1) holds = !self->forgotten && words_unchanged(self); /* Python ran: look again */
    }
    if (holds == 1 && self->forgotten) holds = 0;
    if (--self->checks == 0 && self->forgotten && self->refs) {
        Py_INCREF(object);
        table_clear(object);
        Py_DECREF(object);
    }
    return holds;
}

/* ---- recording */

static PyObject *table_slot(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *owner;
    const char *kind;
    void **address = NULL;
    if (!PyArg_ParseTuple(arguments, "Os", &owner, &kind)) return NULL;
    if (!strcmp(kind, "type")) address = (void **)&owner->ob_type;
    else if (!strcmp(kind, "dict")) address = (void **)_PyObject_GetDictPtr(owner);
    else if (!strcmp(kind, "cell") && PyCell_Check(owner)) address = (void **)&((PyCellObject *)owner)->ob_ref;
    else if (PyFunction_Check(owner)) {
        PyFunctionObject *function = (PyFunctionObject *)owner;
        if (!strcmp(kind, "code")) address = (void **)&function->func_code;
        else if (!strcmp(kind, "defaults")) address = (void **)&function->func_defaults;
        else if (!strcmp(kind, "kwdefaults")) address = (void **)&function->func_kwdefaults;
    }
    if (!address) Py_RETURN_FALSE;
    if (hold(self, owner) < 0 || (*address && hold(self, (PyObject *)*address) < 0)) return NULL;
    Slot *slot = PUSH(self, slots);
    if (!slot) return NULL;
    slot->address = address;
    slot->expected = *address;
    Py_RETURN_TRUE;
}

static PyObject *table_forget(PyObject *name, PyObject *reference) {
    if (PyCapsule_GetContext(name)) Py_RETURN_NONE;
    Table *table = (Table *)PyCapsule_GetPointer(name, NULL);
    table->forgotten = 1;
    if (table->checks) Py_RETURN_NONE; /* which clears when it ends */
    Py_INCREF(table);
    table_clear((PyObject *)table);
    Py_DECREF(table);
    Py_RETURN_NONE;
}

static PyMethodDef forget = {"forget", table_forget, METH_O, "Something that was lent is gone."};

/* lend(object): to be called before it is named anywhere else. False, and it is going to be kept alive, where it knows no weak references. */
static PyObject *table_lend(PyObject *object, PyObject *lent) {
    Table *self = (Table *)object;
    int known = is_lent(self, lent);
    if (known) return known < 0 ? NULL : Py_NewRef(Py_True);
    if (!self->addresses && !(self->addresses = PySet_New(NULL))) return NULL;
    if (!self->name && !(self->name = PyCapsule_New(self, NULL, NULL))) return NULL;
    PyObject *callback = PyCFunction_New(&forget, self->name);
    PyObject *reference = callback ? PyWeakref_NewRef(lent, callback) : NULL;
    Py_XDECREF(callback);
    if (!reference) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return NULL;
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    PyObject *address = PyLong_FromVoidPtr(lent);
    Lent *entry = address && PySet_Add(self->addresses, address) == 0 ? PUSH(self, lent) : NULL;
    Py_XDECREF(address);
    if (!entry) {
        Py_DECREF(reference);
        return NULL;
    }
    *entry = (Lent){reference};
    Py_RETURN_TRUE;
}

/* dict(d, keys, whole): depend on these keys of d (absent ones too), or on all of it. */
static PyObject *table_dict(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *dict, *keys;
    int whole;
    if (!PyArg_ParseTuple(arguments, "O!O!p", &PyDict_Type, &dict, &PyTuple_Type, &keys, &whole)) return NULL;
    Dict entry = {(PyDictObject *)dict, NULL, TAG((PyDictObject *)dict), (uint32_t)self->keys_count, (uint32_t)PyTuple_GET_SIZE(keys)};
    if (hold(self, dict) < 0) return NULL;
    if (whole) {
        Whole *place = PUSH(self, wholes);
        if (!place) return NULL;
        *place = (Whole){entry.dict, entry.tag};
        Py_RETURN_NONE;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *name = PyTuple_GET_ITEM(keys, i);
        Py_hash_t hash = PyObject_Hash(name);
        if (hash == -1) return NULL;
        PyObject *value = PyDict_GetItemWithError(dict, name);
        if (!value && PyErr_Occurred()) return NULL;
        if (hold(self, name) < 0 || (value && hold(self, value) < 0)) return NULL;
        Key *key = PUSH(self, keys);
        if (!key) return NULL;
        *key = (Key){name, hash, value};
    }
    Dict *place = PUSH(self, dicts);
    if (!place) return NULL;
    *place = entry;
    Py_RETURN_NONE;
}

static PyObject *table_used(PyObject *object, PyObject *dict) {
    Table *self = (Table *)object;
    if (!PyDict_Check(dict)) Py_RETURN_FALSE;
    if (hold(self, dict) < 0) return NULL;
    Used *entry = PUSH(self, used);
    if (!entry) return NULL;
    *entry = (Used){(PyDictObject *)dict, NULL, ((PyDictObject *)dict)->ma_used};
    Py_RETURN_TRUE;
}

static void unwatch(Table *self) {
    self->watched = 0;
    for (size_t i = 0; i < self->dicts_count; i++) {
        dict_unwatch(self->dicts[i].watched);
        self->dicts[i].watched = NULL;
    }
    for (size_t i = 0; i < self->used_count; i++) {
        dict_unwatch(self->used[i].watched);
        self->used[i].watched = NULL;
    }
}

/* watch() -> whether all dicts of which keys or the length count are watched from now on; to be called when all are in. They are looked at
 * once more after that: by then any of them may be another one than when it was put in. */
static PyObject *table_watch(PyObject *object, PyObject *unused) {
    Table *self = (Table *)object;
    if (!dicts_can_be_watched() || self->watched) return PyBool_FromLong(self->watched);
    int holds = 1;
    for (size_t i = 0; holds && i < self->dicts_count; i++) holds = (self->dicts[i].watched = dict_watch((PyObject *)self->dicts[i].dict)) != NULL;
    for (size_t i = 0; holds && i < self->used_count; i++) holds = (self->used[i].watched = dict_watch((PyObject *)self->used[i].dict)) != NULL;
    if (holds) holds = dict_watches_may_be_lost() == 0;
    for (size_t i = 0; holds && i < self->dicts_count; i++) holds = dict_watch_holds(self->dicts[i].watched);
    for (size_t i = 0; holds && i < self->used_count; i++) holds = dict_watch_holds(self->used[i].watched);
    if (!holds) unwatch(self);
    if (PyErr_Occurred()) return NULL;
    self->watched = holds;
    self->quiet = dict_changes - 1; /* none that has been looked at */
    return PyBool_FromLong(holds);
}

static PyObject *table_type(PyObject *object, PyObject *argument) {
    Table *self = (Table *)object;
    static PyObject *name;
    if (!PyType_Check(argument)) Py_RETURN_FALSE;
    if (!name && !(name = PyUnicode_InternFromString("__class__"))) return NULL;
    PyTypeObject *type = (PyTypeObject *)argument;
    (void)_PyType_Lookup(type, name); /* a look-up gives the type a version tag; one that was just changed has 0 */
    if (type->tp_version_tag == 0) Py_RETURN_FALSE;
    if (hold(self, argument) < 0) return NULL;
    Type *entry = PUSH(self, types);
    if (!entry) return NULL;
    *entry = (Type){type, type->tp_version_tag};
    Py_RETURN_TRUE;
}

static PyObject *table_items(PyObject *object, PyObject *list) {
    Table *self = (Table *)object;
    if (!PyList_Check(list)) Py_RETURN_FALSE;
    Py_ssize_t count = PyList_GET_SIZE(list);
    if (hold(self, list) < 0) return NULL;
    size_t first = self->pointers_count;
    if (count && !PUSH_MANY(self, pointers, count)) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        self->pointers[first + i] = PyList_GET_ITEM(list, i);
        if (hold(self, PyList_GET_ITEM(list, i)) < 0) return NULL;
    }
    Items *entry = PUSH(self, items);
    if (!entry) return NULL;
    *entry = (Items){(PyListObject *)list, count, first};
    Py_RETURN_TRUE;
}

/* All of a tensor's TensorImpl except the reference count, and its requires_grad. */
static PyObject *table_tensor(PyObject *object, PyObject *tensor) {
    Table *self = (Table *)object;
    if (!is_tensor(tensor)) Py_RETURN_FALSE;
#ifdef __GLIBC__
    size_t size = malloc_usable_size(IMPL(tensor));
#else
    size_t size = 0;
#endif
    if (size < (size_t)layout.refcount + 8 || size > TENSOR_MAX) Py_RETURN_FALSE;
    char *impl = IMPL(tensor), *meta = *(char **)(impl + layout.autograd_meta);
    if (hold(self, tensor) < 0) return NULL;
    size_t first = self->bytes_count;
    if (!PUSH_MANY(self, bytes, size)) return NULL;
    memcpy(self->bytes + first, impl, size);
    Tensor *entry = PUSH(self, tensors);
    if (!entry) return NULL;
    *entry = (Tensor){tensor, impl, first, (uint32_t)size, meta, meta_requires_grad(meta)};
    Py_RETURN_TRUE;
}

static PyObject *table_probe(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *function, *expected;
    if (!PyArg_ParseTuple(arguments, "OO", &function, &expected)) return NULL;
    if (hold(self, function) < 0 || hold(self, expected) < 0) return NULL;
    Probe *entry = PUSH(self, probes);
    if (!entry) return NULL;
    *entry = (Probe){function, expected};
    Py_RETURN_NONE;
}

static PyObject *table_python(PyObject *object, PyObject *checker) {
    Table *self = (Table *)object;
    Py_XSETREF(self->checker, Py_NewRef(checker));
    Py_RETURN_NONE;
}

static Live *push_live(Table *self, int kind, int source) {
    Live *op = PUSH(self, live);
    if (op) {
        op->kind = kind;
        op->source = source;
    }
    return op;
}

static PyObject *new_values(Table *self, int count) {
    if (self->values + count > MAX_VALUES) return PyErr_Format(PyExc_OverflowError, "too many values in one call's arguments");
    int first = self->values;
    self->values += count;
    return PyLong_FromLong(first);
}

/* The number of a new value: the one at `position` of the locals, or of the value `source`. */
static PyObject *value_at(Table *self, int kind, int source, Py_ssize_t position) {
    PyObject *number = new_values(self, 1);
    Live *op = number ? push_live(self, kind, source) : NULL;
    if (!op) {
        Py_XDECREF(number);
        return NULL;
    }
    op->target = self->values - 1;
    op->count = position;
    return number;
}

/* local(position) -> value number */
static PyObject *table_local(PyObject *object, PyObject *argument) {
    Py_ssize_t position = PyLong_AsSsize_t(argument);
    if (position < 0) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a position is needed");
    return value_at((Table *)object, LOCAL, 0, position);
}

/* item(value, position) -> value number; the container's length has been checked before */
static PyObject *table_item(PyObject *object, PyObject *arguments) {
    int source;
    Py_ssize_t position;
    if (!PyArg_ParseTuple(arguments, "in", &source, &position)) return NULL;
    return value_at((Table *)object, ITEM, source, position);
}

/* own(value) -> number of its `__dict__` */
static PyObject *table_own(PyObject *object, PyObject *argument) {
    int source = (int)PyLong_AsLong(argument);
    if (source < 0) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a value's number is needed");
    return value_at((Table *)object, OWN, source, 0);
}

/* fields(value, keys) -> number of the first of len(keys) values: an exact dict with these keys in this order */
static PyObject *table_fields(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source;
    PyObject *keys;
    if (!PyArg_ParseTuple(arguments, "iO!", &source, &PyTuple_Type, &keys)) return NULL;
    PyObject *number = new_values(self, (int)PyTuple_GET_SIZE(keys));
    Live *op = number && hold(self, keys) == 0 ? push_live(self, DICT, source) : NULL;
    if (!op) {
        Py_XDECREF(number);
        return NULL;
    }
    op->target = self->values - (int)PyTuple_GET_SIZE(keys);
    op->count = PyTuple_GET_SIZE(keys);
    op->object = keys;
    return number;
}

/* live(value, kind, operand): "pointer" or "other" (not this object), "equal", "tuple" or "list" of a length, "different" from or the "same"
 * as another value, "type" */
static PyObject *table_live(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source, kind;
    const char *name;
    PyObject *operand;
    if (!PyArg_ParseTuple(arguments, "isO", &source, &name, &operand)) return NULL;
    static const struct { const char *name; int kind; } kinds[] = {
        {"pointer", POINTER}, {"other", OTHER}, {"equal", EQUAL}, {"tuple", TUPLE}, {"list", LIST}, {"different", DIFFERENT}, {"same", SAME}, {"type", TYPE}};
    kind = -1;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (!strcmp(name, kinds[i].name)) kind = kinds[i].kind;
    if (kind < 0) return PyErr_Format(PyExc_ValueError, "unknown check %s", name);
    Live *op = push_live(self, kind, source);
    if (!op) return NULL;
    if (kind == TUPLE || kind == LIST) op->count = PyLong_AsSsize_t(operand);
    else if (kind == DIFFERENT || kind == SAME) {
        op->target = (int)PyLong_AsLong(operand);
        if (!PyErr_Occurred() && (op->target < 0 || op->target >= self->values)) PyErr_Format(PyExc_ValueError, "no value %d", op->target);
    } else {
        op->object = operand;
        if (hold(self, operand) < 0) return NULL;
    }
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* live_tensor(value, example, requires_grad, offset, sizes, strides): like the example, except for None in sizes, strides or offset; with
 * as many attributes of its own */
static PyObject *table_live_tensor(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source, grad;
    PyObject *example, *offset, *sizes, *strides;
    if (!PyArg_ParseTuple(arguments, "iOpOO!O!", &source, &example, &grad, &offset, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) return NULL;
    if (!is_tensor(example) || layout.key_set < 0 || layout.autograd_meta < 0) Py_RETURN_FALSE;
    Py_ssize_t dim = PyTuple_GET_SIZE(sizes);
    int64_t *numbers = PyMem_Calloc(FIXED + 2 * dim, sizeof(int64_t));
    if (!numbers) return PyErr_NoMemory();
    int32_t small;
    void *handle = HANDLE(example);
    layout.dtype(handle, &small);
    numbers[0] = small;
    layout.device_type(handle, &small);
    numbers[1] = small;
    device_index(handle, small, &small);
    numbers[2] = small;
    numbers[3] = grad;
    numbers[4] = *(int64_t *)(IMPL(example) + layout.key_set);
    numbers[5] = offset == Py_None ? FREE : PyLong_AsLongLong(offset);
    numbers[6] = dim;
    for (Py_ssize_t i = 0; i < dim; i++) {
        PyObject *size = PyTuple_GET_ITEM(sizes, i), *stride = PyTuple_GET_ITEM(strides, i);
        numbers[FIXED + i] = size == Py_None ? FREE : PyLong_AsLongLong(size);
        numbers[FIXED + dim + i] = stride == Py_None ? FREE : PyLong_AsLongLong(stride);
    }
    Live *op = PyErr_Occurred() || hold(self, (PyObject *)Py_TYPE(example)) < 0 ? NULL : push_live(self, TENSOR, source);
    if (!op) {
        PyMem_Free(numbers);
        return NULL;
    }
    PyObject *attributes = own_attributes(example);
    op->object = (PyObject *)Py_TYPE(example);
    op->numbers = numbers;
    op->count = attributes ? PyDict_GET_SIZE(attributes) : 0;
    Py_RETURN_TRUE;
}

/* shape(program): a relation between numbers of the values, as runtime/native/src/shape_expression.c evaluates it */
static PyObject *table_shape(PyObject *object, PyObject *program) {
    Table *self = (Table *)object;
    if (!PyTuple_Check(program)) return PyErr_Format(PyExc_TypeError, "a tuple of integers is needed");
    Py_ssize_t count = PyTuple_GET_SIZE(program);
    int64_t *numbers = PyMem_Calloc(count + 1, sizeof(int64_t));
    if (!numbers) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(program, i));
    Live *op = PyErr_Occurred() || shape_problem(numbers, count, self->values) < 0 ? NULL : push_live(self, SHAPE, 0);
    if (!op) {
        PyMem_Free(numbers);
        return NULL;
    }
    op->numbers = numbers;
    op->count = count;
    Py_RETURN_NONE;
}

static int ascending(const void *a, const void *b) {
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return first < second ? -1 : first > second;
}

/* distinct(values, objects): each of the values is another object than the others, and none of them is one of the objects */
static PyObject *table_distinct(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *values, *objects;
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &values, &PyTuple_Type, &objects)) return NULL;
    Py_ssize_t fresh = PyTuple_GET_SIZE(values), fixed = PyTuple_GET_SIZE(objects);
    int64_t *numbers = PyMem_Calloc(fresh + fixed + 1, sizeof(int64_t));
    if (!numbers) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < fresh && !PyErr_Occurred(); i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(values, i));
        if (!PyErr_Occurred() && (numbers[i] < 0 || numbers[i] >= self->values)) PyErr_Format(PyExc_ValueError, "no value %lld", (long long)numbers[i]);
    }
    for (Py_ssize_t i = 0; i < fixed && !PyErr_Occurred(); i++) {
        numbers[fresh + i] = (int64_t)(uintptr_t)PyTuple_GET_ITEM(objects, i);
        hold(self, PyTuple_GET_ITEM(objects, i));
    }
    qsort(numbers + fresh, fixed, sizeof(int64_t), ascending);
    Live *op = PyErr_Occurred() ? NULL : push_live(self, DISTINCT, 0);
    if (!op) {
        PyMem_Free(numbers);
        return NULL;
    }
    op->numbers = numbers;
    op->target = (int)fresh;
    op->count = fixed;
    Py_RETURN_NONE;
}

/* data(tensor): where its memory is */
static PyObject *table_data(PyObject *object, PyObject *tensor) {
    Table *self = (Table *)object;
    void *data = NULL;
    if (!is_tensor(tensor) || layout.data(HANDLE(tensor), &data)) Py_RETURN_FALSE;
    if (hold(self, tensor) < 0) return NULL;
    Data *entry = PUSH(self, data);
    if (!entry) return NULL;
    *entry = (Data){tensor, data};
    Py_RETURN_TRUE;
}

/* apart(value, numbers): reaches into none of the ranges; apart(value, numbers, other): shares no memory with the value `other` */
static PyObject *table_apart(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source, other = -1;
    PyObject *given;
    if (!PyArg_ParseTuple(arguments, "iO!|i", &source, &PyTuple_Type, &given, &other)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (other >= 0 ? count != 2 || other >= self->values : count % 2 != 1) return PyErr_Format(PyExc_ValueError, "malformed ranges");
    int64_t *numbers = PyMem_Calloc(count, sizeof(int64_t));
    if (!numbers) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(given, i));
    Live *op = PyErr_Occurred() ? NULL : push_live(self, other >= 0 ? APART_OTHER : APART, source);
    if (!op) {
        PyMem_Free(numbers);
        return NULL;
    }
    op->numbers = numbers;
    op->count = count / 2;
    op->target = other;
    Py_RETURN_NONE;
}

static PyObject *table_check_method(PyObject *object, PyObject *locals) {
    if (!PyTuple_Check(locals)) return PyErr_Format(PyExc_TypeError, "a tuple of locals is needed");
    int holds = table_check(object, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals));
    return holds < 0 ? NULL : PyBool_FromLong(holds);
}

static PyObject *table_sizes(PyObject *object, PyObject *unused) {
    Table *self = (Table *)object;
    return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:O}", "live", self->live_count, "slots", self->slots_count, "dicts", self->dicts_count,
                         "whole dicts", self->wholes_count,
                         "used", self->used_count, "types", self->types_count, "lists", self->items_count, "tensors", self->tensors_count, "probes",
                         self->probes_count, "python", self->checker ? Py_True : Py_False);
}

static PyObject *table_forgotten(PyObject *object, void *unused) { return PyBool_FromLong(((Table *)object)->forgotten); }

static PyGetSetDef table_getset[] = {
    {"forgotten", table_forgotten, NULL, "Whether something that it was lent is gone: it holds for no call any more.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyObject *table_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    Table *self = (Table *)type->tp_alloc(type, 0);
    if (self && !(self->refs = PyList_New(0))) Py_CLEAR(self);
    return (PyObject *)self;
}

static int table_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((Table *)object)->refs);
    Py_VISIT(((Table *)object)->checker);
    return 0;
}

static void return_lent(Table *self) {
    while (self->lent_count) {
        PyObject *reference = self->lent[--self->lent_count].reference;
        Py_DECREF(reference);
    }
    Py_CLEAR(self->addresses);
}

static int table_clear(PyObject *object) {
    Table *self = (Table *)object;
    unwatch(self);
    for (size_t i = 0; i < self->live_count; i++) PyMem_Free(self->live[i].numbers);
    self->live_count = self->slots_count = self->dicts_count = self->wholes_count = self->used_count = self->types_count = 0;
    self->items_count = self->tensors_count = self->probes_count = self->data_count = 0;
    self->forgotten = 1;
    Live *op = PUSH(self, live); /* a cleared table holds for no call */
    if (op) *op = (Live){.kind = LOCAL, .count = PY_SSIZE_T_MAX};
    PyErr_Clear();
    Py_CLEAR(self->refs);
    Py_CLEAR(self->checker);
    return_lent(self);
    return 0;
}

static void table_dealloc(PyObject *object) {
    Table *self = (Table *)object;
    PyObject_GC_UnTrack(object);
    unwatch(self);
    if (self->name) PyCapsule_SetContext(self->name, self);
    return_lent(self);
    Py_XDECREF(self->name);
    for (size_t i = 0; i < self->live_count; i++) PyMem_Free(self->live[i].numbers);
    Py_XDECREF(self->refs);
    Py_XDECREF(self->checker);
    void *arrays[] = {self->live,     self->slots,   self->dicts, self->wholes, self->keys,   self->used, self->types, self->items,
                      self->pointers, self->tensors, self->bytes, self->data,   self->probes, self->lent};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) PyMem_Free(arrays[i]);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef table_methods[] = {
    {"lend", table_lend, METH_O, "Keep no reference to an object, and forget everything when it goes; False where that cannot be."},
    {"slot", table_slot, METH_VARARGS, "slot(owner, kind): depend on a pointer of an object; False where it has none."},
    {"dict", table_dict, METH_VARARGS, "dict(d, keys, whole): depend on keys of a dict, or on all of it."},
    {"used", table_used, METH_O, "Depend on the number of entries of a dict."},
    {"watch", table_watch, METH_NOARGS, "Watch all dicts, so that only a change makes a check look at them; False where that cannot be."},
    {"type", table_type, METH_O, "Depend on a class and its bases; False where it has no version."},
    {"items", table_items, METH_O, "Depend on the items of a list."},
    {"tensor", table_tensor, METH_O, "Depend on all properties of a tensor."},
    {"probe", table_probe, METH_VARARGS, "Call a function and compare its result."},
    {"python", table_python, METH_O, "Call a checker with the tuple of locals."},
    {"local", table_local, METH_O, "A local as a value."},
    {"item", table_item, METH_VARARGS, "An item of a value."},
    {"own", table_own, METH_O, "The `__dict__` of a value."},
    {"fields", table_fields, METH_VARARGS, "The entries of a dict value."},
    {"live", table_live, METH_VARARGS, "Check a value."},
    {"live_tensor", table_live_tensor, METH_VARARGS, "Check a tensor value."},
    {"distinct", table_distinct, METH_VARARGS, "Check that values are objects different from one another and from others."},
    {"data", table_data, METH_O, "Depend on where a tensor's memory is."},
    {"apart", table_apart, METH_VARARGS, "Check that a tensor of the call shares no memory with others."},
    {"shape", table_shape, METH_O, "Check a relation between sizes and numbers."},
    {"check", table_check_method, METH_O, "Whether everything recorded still holds."},
    {"sizes", table_sizes, METH_NOARGS, "How many entries of each kind."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Table_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precast._native.Table",
    .tp_basicsize = sizeof(Table),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "What a set of guards read when it last held.",
    .tp_new = table_new,
    .tp_traverse = table_traverse,
    .tp_clear = table_clear,
    .tp_dealloc = table_dealloc,
    .tp_methods = table_methods,
    .tp_getset = table_getset,
};
