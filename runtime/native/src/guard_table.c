/* A guard table as an object of Python: its type and methods, which the other guard_table files implement. */
#include "guard_table.h"

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

static void table_dealloc(PyObject *object) {
    Table *self = (Table *)object;
    PyObject_GC_UnTrack(object);
    if (self->name) PyCapsule_SetContext(self->name, self);
    table_drop_entries(self);
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
    {"apart", table_apart, METH_VARARGS, "Check that the memory of a tensor of the call touches none of some ranges."},
    {"disjoint", table_disjoint, METH_VARARGS, "Check that the first of several tensors of the call share no memory with the others."},
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
