/* The memory of a guard table: its growing arrays, the objects that it keeps alive, and those of the caller's that it does not. */
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

void table_drop_entries(Table *self) {
    table_unwatch(self);
    for (size_t i = 0; i < self->value_checks_count; i++) PyMem_Free(self->value_checks[i].numbers);
#define EMPTY(type, name) self->name##_count = 0;
    TABLE_ARRAYS(EMPTY)
#undef EMPTY
}

int table_clear(PyObject *object) {
    Table *self = (Table *)object;
    table_drop_entries(self);
    self->forgotten = 1; /* so it holds for no call */
    Py_CLEAR(self->refs);
    Py_CLEAR(self->checker);
    Py_CLEAR(self->lent);
    return 0;
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
PyObject *table_lend(PyObject *object, PyObject *lent) {
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
