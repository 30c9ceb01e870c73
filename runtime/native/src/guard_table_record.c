/* Recording what guards read of objects that outlive the call. Each method adds an entry to an array of the table; runtime/guards/table/heap_reads.py sees to
 * it that nothing is added twice. */
#include "guard_table.h"

#define TENSOR_MAX 512 /* bytes of a TensorImpl at most */

/* Where an object keeps the pointer of a kind; NULL: it has none of that kind. */
static void **slot_address(PyObject *owner, int kind) {
    PyFunctionObject *function = PyFunction_Check(owner) ? (PyFunctionObject *)owner : NULL;
    switch (kind) {
    case SLOT_TYPE: return (void **)&owner->ob_type;
    case SLOT_DICT: return (void **)_PyObject_GetDictPtr(owner);
    case SLOT_CELL: return PyCell_Check(owner) ? (void **)&((PyCellObject *)owner)->ob_ref : NULL;
    case SLOT_CODE: return function ? (void **)&function->func_code : NULL;
    case SLOT_DEFAULTS: return function ? (void **)&function->func_defaults : NULL;
    default: return function ? (void **)&function->func_kwdefaults : NULL; /* SLOT_KWDEFAULTS */
    }
}

/* slot(owner, kind): depend on a pointer of an object, by one of SLOT_KINDS; False where it has none. */
PyObject *table_slot(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *owner;
    int kind;
    if (!PyArg_ParseTuple(arguments, "Oi", &owner, &kind)) return NULL;
    if (kind < 0 || kind >= SLOT_COUNT) return PyErr_Format(PyExc_SystemError, "%d is no kind of slot", kind);
    void **address = slot_address(owner, kind);
    if (!address) Py_RETURN_FALSE;
    if (table_hold(self, owner) < 0 || (*address && table_hold(self, (PyObject *)*address) < 0)) return NULL;
    Slot *slot = PUSH(self, slots);
    if (!slot) return NULL;
    slot->address = address;
    slot->expected = *address;
    Py_RETURN_TRUE;
}

/* dict(d, keys, whole): depend on these keys of d (absent ones too), or on all of it. */
PyObject *table_dict(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *dict, *keys;
    int whole;
    if (!PyArg_ParseTuple(arguments, "O!O!p", &PyDict_Type, &dict, &PyTuple_Type, &keys, &whole)) return NULL;
    Dict entry = {(PyDictObject *)dict, NULL, TAG((PyDictObject *)dict), (uint32_t)self->keys_count, (uint32_t)PyTuple_GET_SIZE(keys)};
    if (table_hold(self, dict) < 0) return NULL;
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
        if (table_hold(self, name) < 0 || (value && table_hold(self, value) < 0)) return NULL;
        Key *key = PUSH(self, keys);
        if (!key) return NULL;
        *key = (Key){name, hash, value};
    }
    Dict *place = PUSH(self, dicts);
    if (!place) return NULL;
    *place = entry;
    Py_RETURN_NONE;
}

/* used(dict): depend on its number of entries; False for what is no dict */
PyObject *table_used(PyObject *object, PyObject *dict) {
    Table *self = (Table *)object;
    if (!PyDict_Check(dict)) Py_RETURN_FALSE;
    if (table_hold(self, dict) < 0) return NULL;
    Used *entry = PUSH(self, used);
    if (!entry) return NULL;
    *entry = (Used){(PyDictObject *)dict, NULL, ((PyDictObject *)dict)->ma_used};
    Py_RETURN_TRUE;
}

/* watch() -> whether all dicts of which keys or the length count are watched from now on; to be called when all have been added. The next check
 * compares them all the same: any of them may have changed between being added and being watched. */
PyObject *table_watch(PyObject *object, PyObject *unused) {
    Table *self = (Table *)object;
    if (!dicts_can_be_watched() || self->watched) return PyBool_FromLong(self->watched);
    int holds = 1;
    for (size_t i = 0; holds && i < self->dicts_count; i++) holds = (self->dicts[i].watched = dict_watch((PyObject *)self->dicts[i].dict)) != NULL;
    for (size_t i = 0; holds && i < self->used_count; i++) holds = (self->used[i].watched = dict_watch((PyObject *)self->used[i].dict)) != NULL;
    if (holds) holds = dict_watches_may_be_lost() == 0;
    for (size_t i = 0; holds && i < self->dicts_count; i++) holds = dict_watch_holds(self->dicts[i].watched);
    for (size_t i = 0; holds && i < self->used_count; i++) holds = dict_watch_holds(self->used[i].watched);
    if (!holds) table_unwatch(self);
    if (PyErr_Occurred()) return NULL;
    self->watched = holds;
    self->quiet = dict_changes - 1; /* none that has been looked at */
    return PyBool_FromLong(holds);
}

/* type(cls): depend on a class and its bases; False for what is no class, or one without a version tag */
PyObject *table_type(PyObject *object, PyObject *argument) {
    Table *self = (Table *)object;
    static PyObject *name;
    if (!PyType_Check(argument)) Py_RETURN_FALSE;
    if (!name && !(name = PyUnicode_InternFromString("__class__"))) return NULL;
    PyTypeObject *type = (PyTypeObject *)argument;
    (void)_PyType_Lookup(type, name); /* a look-up gives the type a version tag; one that was just changed has 0 */
    if (type->tp_version_tag == 0) Py_RETURN_FALSE;
    if (table_hold(self, argument) < 0) return NULL;
    Type *entry = PUSH(self, types);
    if (!entry) return NULL;
    *entry = (Type){type, type->tp_version_tag};
    Py_RETURN_TRUE;
}

/* items(list): depend on its items and their number; False for what is no list */
PyObject *table_items(PyObject *object, PyObject *list) {
    Table *self = (Table *)object;
    if (!PyList_Check(list)) Py_RETURN_FALSE;
    Py_ssize_t count = PyList_GET_SIZE(list);
    if (table_hold(self, list) < 0) return NULL;
    size_t first = self->pointers_count;
    if (count && !PUSH_MANY(self, pointers, count)) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        self->pointers[first + i] = PyList_GET_ITEM(list, i);
        if (table_hold(self, PyList_GET_ITEM(list, i)) < 0) return NULL;
    }
    Items *entry = PUSH(self, items);
    if (!entry) return NULL;
    *entry = (Items){(PyListObject *)list, count, first};
    Py_RETURN_TRUE;
}

/* tensor(tensor): depend on all of its TensorImpl except the reference count, and on its requires_grad; False where its size is not known */
PyObject *table_tensor(PyObject *object, PyObject *tensor) {
    Table *self = (Table *)object;
    if (!is_tensor(tensor)) Py_RETURN_FALSE;
    size_t size = heap_block_size(IMPL(tensor));
    if (size < (size_t)layout.refcount + 8 || size > TENSOR_MAX) Py_RETURN_FALSE;
    char *impl = IMPL(tensor), *meta = *(char **)(impl + layout.autograd_meta);
    if (table_hold(self, tensor) < 0) return NULL;
    size_t first = self->bytes_count;
    if (!PUSH_MANY(self, bytes, size)) return NULL;
    memcpy(self->bytes + first, impl, size);
    Tensor *entry = PUSH(self, tensors);
    if (!entry) return NULL;
    *entry = (Tensor){tensor, impl, first, (uint32_t)size, meta, meta_requires_grad(meta)};
    Py_RETURN_TRUE;
}

/* data(tensor): depend on where its memory is */
PyObject *table_data(PyObject *object, PyObject *tensor) {
    Table *self = (Table *)object;
    void *data = NULL;
    if (!is_tensor(tensor) || layout.data(HANDLE(tensor), &data)) Py_RETURN_FALSE;
    if (table_hold(self, tensor) < 0) return NULL;
    Data *entry = PUSH(self, data);
    if (!entry) return NULL;
    *entry = (Data){tensor, data};
    Py_RETURN_TRUE;
}

/* probe(function, expected): call the function at each check and compare its result */
PyObject *table_probe(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *function, *expected;
    if (!PyArg_ParseTuple(arguments, "OO", &function, &expected)) return NULL;
    if (table_hold(self, function) < 0 || table_hold(self, expected) < 0) return NULL;
    Probe *entry = PUSH(self, probes);
    if (!entry) return NULL;
    *entry = (Probe){function, expected};
    Py_RETURN_NONE;
}

