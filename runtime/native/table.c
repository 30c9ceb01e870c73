/* A guard table as an object of Python: its memory, the weak references to the caller's objects, its methods. */
#include "guard_table.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define MARK_SPARE(start, bytes) ASAN_POISON_MEMORY_REGION(start, bytes) /* so that a read past the last entry is reported */
#define MARK_USED(start, bytes) ASAN_UNPOISON_MEMORY_REGION(start, bytes)
#else
#define MARK_SPARE(start, bytes) ((void)0)
#define MARK_USED(start, bytes) ((void)0)
#endif

void *table_grow(void **array, size_t *count, size_t *room, size_t size, size_t more) {
    if (*count + more > *room) {
        size_t wanted = (*count + more) * 2 + 8;
        MARK_USED(*array, *room * size);
        void *bigger = PyMem_Realloc(*array, wanted * size);
        if (!bigger) return PyErr_NoMemory();
        *array = bigger;
        *room = wanted;
        MARK_SPARE((char *)bigger + *count * size, (wanted - *count) * size);
    }
    void *place = (char *)*array + *count * size;
    MARK_USED(place, more * size);
    memset(place, 0, more * size);
    *count += more;
    return place;
}

/* ---- objects of the caller's */

/* Whether there is a weak reference to the object. 1: yes; 0: no; -1 with an exception set. */
static int is_lent(Table *self, PyObject *object) {
    if (!self->lent) return 0;
    PyObject *address = PyLong_FromVoidPtr(object);
    int found = address ? PyDict_Contains(self->lent, address) : -1;
    Py_XDECREF(address);
    return found;
}

int table_hold(Table *self, PyObject *object) {
    int lent = is_lent(self, object);
    if (lent) return lent < 0 ? -1 : 0;
    if (!self->refs) {
        PyErr_SetString(PyExc_ValueError, "an object of the caller's, which the table depends on, is gone");
        return -1;
    }
    return PyList_Append(self->refs, object);
}

/* Called by Python when the object of a weak reference is freed; `name` is the table's capsule. */
static PyObject *table_forget(PyObject *name, PyObject *reference) {
    if (PyCapsule_GetContext(name)) Py_RETURN_NONE;
    Table *table = (Table *)PyCapsule_GetPointer(name, NULL);
    table->forgotten = 1;
    if (table->checks) Py_RETURN_NONE; /* the check clears the table when it ends */
    Py_INCREF(table);
    table_clear((PyObject *)table);
    Py_DECREF(table);
    Py_RETURN_NONE;
}

static PyMethodDef forget = {"forget", table_forget, METH_O, "An object of the caller's was freed."};

/* lend(object): keep no more than a weak reference to it; to be called before the table names it anywhere else. False where the object's type
 * has no weak references: the table then keeps it alive like any other. */
static PyObject *table_lend(PyObject *object, PyObject *lent) {
    Table *self = (Table *)object;
    int known = is_lent(self, lent);
    if (known) return known < 0 ? NULL : Py_NewRef(Py_True);
    if (!self->lent && !(self->lent = PyDict_New())) return NULL;
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
    int failed = !address || PyDict_SetItem(self->lent, address, reference) < 0;
    Py_XDECREF(address);
    Py_DECREF(reference);
    if (failed) return NULL;
    Py_RETURN_TRUE;
}

/* ---- other methods */

/* python(checker): what the table cannot express, checked at each call. */
static PyObject *table_python(PyObject *object, PyObject *checker) {
    Table *self = (Table *)object;
    Py_XSETREF(self->checker, Py_NewRef(checker));
    Py_RETURN_NONE;
}

static PyObject *table_check_method(PyObject *object, PyObject *locals) {
    if (!PyTuple_Check(locals)) return PyErr_Format(PyExc_TypeError, "a tuple of locals is needed");
    int holds = table_check(object, &PyTuple_GET_ITEM(locals, 0), PyTuple_GET_SIZE(locals));
    return holds < 0 ? NULL : PyBool_FromLong(holds);
}

static PyObject *table_sizes(PyObject *object, PyObject *unused) {
    Table *self = (Table *)object;
    return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:O}", "live", self->value_checks_count, "slots", self->slots_count, "dicts",
                         self->dicts_count, "whole dicts", self->wholes_count, "used", self->used_count, "types", self->types_count, "lists",
                         self->items_count, "tensors", self->tensors_count, "probes", self->probes_count, "python",
                         self->checker ? Py_True : Py_False);
}

static PyObject *table_forgotten(PyObject *object, void *unused) { return PyBool_FromLong(((Table *)object)->forgotten); }

/* ---- memory */

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

void table_unwatch(Table *self) {
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

/* Entries are dropped, their arrays stay: what is recorded after this is dropped with the table. */
static void drop_entries(Table *self) {
    table_unwatch(self);
    for (size_t i = 0; i < self->value_checks_count; i++) PyMem_Free(self->value_checks[i].numbers);
#define EMPTY(type, name) self->name##_count = 0;
    TABLE_ARRAYS(EMPTY)
#undef EMPTY
}

int table_clear(PyObject *object) {
    Table *self = (Table *)object;
    drop_entries(self);
    self->forgotten = 1; /* so it holds for no call */
    Py_CLEAR(self->refs);
    Py_CLEAR(self->checker);
    Py_CLEAR(self->lent);
    return 0;
}

static void table_dealloc(PyObject *object) {
    Table *self = (Table *)object;
    PyObject_GC_UnTrack(object);
    if (self->name) PyCapsule_SetContext(self->name, self);
    drop_entries(self);
    Py_XDECREF(self->lent);
    Py_XDECREF(self->name);
    Py_XDECREF(self->refs);
    Py_XDECREF(self->checker);
#define RELEASE(type, name) PyMem_Free(self->name);
    TABLE_ARRAYS(RELEASE)
#undef RELEASE
    Py_TYPE(object)->tp_free(object);
}

static PyGetSetDef table_getset[] = {
    {"forgotten", table_forgotten, NULL, "Whether an object of the caller's, which it depends on, was freed: it holds for no call any more.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef table_methods[] = {
    {"lend", table_lend, METH_O, "Keep a weak reference to an object, and drop everything when it is freed; False where it has none."},
    {"slot", table_slot, METH_VARARGS, "slot(owner, kind): depend on a pointer of an object; False where it has none."},
    {"dict", table_dict, METH_VARARGS, "dict(d, keys, whole): depend on keys of a dict, or on all of it."},
    {"used", table_used, METH_O, "Depend on the number of entries of a dict."},
    {"watch", table_watch, METH_NOARGS, "Watch all dicts, so that only a change makes a check look at them; False where that cannot be."},
    {"type", table_type, METH_O, "Depend on a class and its bases; False where it has no version."},
    {"items", table_items, METH_O, "Depend on the items of a list."},
    {"tensor", table_tensor, METH_O, "Depend on all properties of a tensor."},
    {"data", table_data, METH_O, "Depend on where a tensor's memory is."},
    {"probe", table_probe, METH_VARARGS, "Call a function and compare its result."},
    {"python", table_python, METH_O, "Call a checker with the tuple of locals."},
    {"local", table_local, METH_O, "A local as a value."},
    {"item", table_item, METH_VARARGS, "An item of a value."},
    {"own", table_own, METH_O, "The `__dict__` of a value."},
    {"fields", table_fields, METH_VARARGS, "The entries of a dict value."},
    {"live", table_live, METH_VARARGS, "live(value, kind, operand): check a value."},
    {"live_tensor", table_live_tensor, METH_VARARGS, "Check a tensor value."},
    {"distinct", table_distinct, METH_VARARGS, "Check that values are objects different from one another and from others."},
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
