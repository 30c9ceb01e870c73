/* Whether a guard table still holds: the path of every call. Python code runs in few places of it (comparing unusual dict keys, probes, the
 * Python checker), and after each of them `forgotten` says whether what is compared with still exists. */
#include "guard_table.h"

#define STACK_VALUES 256 /* values of a call that need no memory from the heap */

static int keys_unchanged(Table *self, Dict *entry) {
    uint64_t tag = TAG(entry->dict);
    for (uint32_t i = 0; i < entry->key_count; i++) {
        Key *key = &self->keys[entry->first_key + i];
        PyObject *value = _PyDict_GetItem_KnownHash((PyObject *)entry->dict, key->key, key->hash);
        if (value != key->value || self->forgotten || (!value && PyErr_Occurred())) {
            PyErr_Clear(); /* raised by comparing with a key of another type: the full check in Python raises it, too */
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
        if (entry->count && memcmp(entry->list->ob_item, self->pointers + entry->first, entry->count * sizeof(PyObject *))) return 0;
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

/* numbers: dtype, device type, device index, requires_grad, key set, storage offset, dim, sizes…, strides… */
static int tensor_fits(const ValueCheck *op, PyObject *tensor) {
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

static int dict_fits(const ValueCheck *op, PyObject *dict, PyObject **values) {
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

/* 1: added to a set of addresses, whose `slots` are a power of two and at most half full; 0: it is there already. */
static int add_address(int64_t *set, size_t slots, const PyObject *object) {
    int64_t address = (int64_t)(uintptr_t)object;
    size_t at = ((uint64_t)address * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (slots - 1);
    while (set[at] && set[at] != address) at = (at + 1) & (slots - 1);
    int added = !set[at];
    set[at] = address;
    return added;
}

/* numbers: the values, each another object than the others; the addresses, ascending, of objects that none of them is; room for a set. */
static int all_distinct(const ValueCheck *op, PyObject *const *values) {
    const int64_t *fresh = op->numbers, *fixed = fresh + op->target;
    int64_t *set = op->target > FEW_DISTINCT ? op->numbers + op->target + op->count : NULL;
    size_t slots = set ? distinct_slots((size_t)op->target) : 0;
    if (set) memset(set, 0, slots * sizeof(*set));
    for (int i = 0; i < op->target; i++) {
        PyObject *value = values[fresh[i]];
        if (set && !add_address(set, slots, value)) return 0;
        for (int j = 0; !set && j < i; j++)
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

/* Runs the program of checks; `values` has room for all values of the call. 1: all hold; 0: one does not; -1 with an exception set. */
static int checks_hold(const Table *self, PyObject *const *locals, Py_ssize_t count, PyObject **values) {
    for (size_t i = 0; i < self->value_checks_count; i++) {
        const ValueCheck *op = &self->value_checks[i];
        int over_many = op->kind == KIND_SHAPE || op->kind == KIND_DISTINCT || op->kind == KIND_DISJOINT;
        PyObject *value = over_many ? Py_None : op->kind == KIND_LOCAL ? (op->count < count ? locals[op->count] : NULL) : values[op->source];
        int holds = value != NULL;
        if (holds) switch (op->kind) {
            case KIND_LOCAL: values[op->target] = value; break;
            case KIND_POINTER: holds = value == op->object; break;
            case KIND_EQUAL: holds = same_scalar(value, op->object); break;
            case KIND_TUPLE: holds = PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == op->count; break;
            case KIND_LIST: holds = PyList_CheckExact(value) && PyList_GET_SIZE(value) == op->count; break;
            case KIND_ITEM: values[op->target] = PyTuple_Check(value) ? PyTuple_GET_ITEM(value, op->count) : PyList_GET_ITEM(value, op->count); break;
            case KIND_OWN: holds = (values[op->target] = own_attributes(value)) != NULL; break;
            case KIND_DICT: holds = dict_fits(op, value, values); break;
            case KIND_TENSOR: holds = tensor_fits(op, value); break;
            case KIND_SAME: holds = value == values[op->target]; break;
            case KIND_DISTINCT: holds = all_distinct(op, values); break;
            case KIND_TYPE: holds = (PyObject *)Py_TYPE(value) == op->object; break;
            case KIND_APART: holds = apart_from_ranges(value, op->numbers, op->count); break;
            case KIND_DISJOINT: holds = tensors_disjoint(op->numbers, op->count, op->target, values); break;
            case KIND_SHAPE: holds = shape_holds(op->numbers, op->count, values); break;
            default: holds = 0;
            }
        if (holds != 1) return holds;
    }
    return 1;
}

static int values_hold(const Table *self, PyObject *const *locals, Py_ssize_t count) {
    PyObject *room[STACK_VALUES], **values = room;
    if (self->lengths_count > STACK_VALUES && !(values = PyMem_Malloc(self->lengths_count * sizeof(*values)))) {
        PyErr_NoMemory();
        return -1;
    }
    int holds = checks_hold(self, locals, count, values);
    if (values != room) PyMem_Free(values);
    return holds;
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

int table_check(PyObject *object, PyObject *const *locals, Py_ssize_t count) {
    Table *self = (Table *)object;
    if (self->forgotten) return 0; /* a check within a check, too: what the table names may be freed already */
    self->checks++;
    int holds = values_hold(self, locals, count);
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

