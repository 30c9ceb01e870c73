/* What rewritten bytecode does to objects that it makes or changes, many steps in a call (capture/bytecode/reconstruct_peephole.py). */
#include "native.h"

static PyObject *object_setattr;           /* object.__setattr__ */
static PyObject *dict_name;                /* "__dict__" */
static setattrofunc python_setattr;        /* tp_setattro of classes that define __setattr__ in Python */
static PyTypeObject *thread_local;         /* threading.local */

int rebuild_start(void) {
    object_setattr = PyObject_GetAttrString((PyObject *)&PyBaseObject_Type, "__setattr__");
    PyObject *probe = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){sO}", "probe", "__setattr__", Py_None);
    if (probe) python_setattr = ((PyTypeObject *)probe)->tp_setattro;
    Py_XDECREF(probe);
    PyObject *threads = PyImport_ImportModule("_thread");
    thread_local = threads ? (PyTypeObject *)PyObject_GetAttrString(threads, "_local") : NULL;
    Py_XDECREF(threads);
    dict_name = PyUnicode_InternFromString("__dict__");
    return object_setattr && probe && thread_local && dict_name ? 0 : -1;
}

/* Whether object.__setattr__ may be applied, as CPython asks (Objects/typeobject.c, hackcheck): no class in C above `object` has its own. */
static int sets_as_object(PyTypeObject *type) {
    for (; type; type = type->tp_base) {
        if (type->tp_setattro == PyObject_GenericSetAttr) return 1;
        if (type->tp_setattro != python_setattr) return 0;
    }
    return 0;
}

static int set_attribute(PyObject *object, PyObject *name, PyObject *value) {
    if (PyUnicode_CheckExact(name) && sets_as_object(Py_TYPE(object))) return PyObject_GenericSetAttr(object, name, value);
    PyObject *done = PyObject_CallFunctionObjArgs(object_setattr, object, name, value, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* threading.local keeps a dict per thread, which only its own lookup finds, its subclasses' too. */
static int is_local(PyObject *object) {
    return Py_TYPE(object)->tp_getattro != PyObject_GenericGetAttr && PyObject_TypeCheck(object, thread_local);
}

static int set_own(PyObject *object, PyObject *name, PyObject *value) {
    PyObject *namespace = is_local(object) ? PyObject_GetAttr(object, dict_name) : PyObject_GenericGetAttr(object, dict_name);
    int failed = namespace ? PyObject_SetItem(namespace, name, value) : -1;
    Py_XDECREF(namespace);
    return failed;
}

static PyObject *last_first(int (*set)(PyObject *, PyObject *, PyObject *), PyObject *const *args, Py_ssize_t count) {
    if (count % 3) return PyErr_Format(PyExc_TypeError, "an object, a name and a value each, not %zd arguments", count);
    for (Py_ssize_t i = count - 3; i >= 0; i -= 3)
        if (set(args[i], args[i + 1], args[i + 2]) < 0) return NULL;
    Py_RETURN_NONE;
}

PyObject *rebuild_set_attributes(PyObject *module, PyObject *const *args, Py_ssize_t count) { return last_first(set_attribute, args, count); }

PyObject *rebuild_set_own(PyObject *module, PyObject *const *args, Py_ssize_t count) { return last_first(set_own, args, count); }

static int set_item(PyObject *base, PyObject *into, PyObject *key, PyObject *value) {
    if (base == (PyObject *)&PyDict_Type) return PyDict_SetItem(into, key, value);
    if (base == (PyObject *)&PyODict_Type) return PyODict_SetItem(into, key, value);
    PyObject *done = PyObject_CallMethod(base, "__setitem__", "OOO", into, key, value);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* refill(into, place, values): what `into` holds becomes what the mapping `values` holds, by the methods of the class at `place` of its MRO. */
PyObject *rebuild_refill(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "refill(into, place, values)");
    PyObject *into = args[0], *mro = Py_TYPE(into)->tp_mro;
    Py_ssize_t place = PyLong_AsSsize_t(args[1]);
    if (place == -1 && PyErr_Occurred()) return NULL;
    if (place < 0 || place >= PyTuple_GET_SIZE(mro)) return PyErr_Format(PyExc_IndexError, "a %s has no base %zd", Py_TYPE(into)->tp_name, place);
    PyObject *base = PyTuple_GET_ITEM(mro, place), *items = NULL, *result = NULL;
    int known = base == (PyObject *)&PyDict_Type || base == (PyObject *)&PyODict_Type;
    Py_INCREF(base);
    if (!known || PyDict_GET_SIZE(into)) {
        PyObject *done = PyObject_CallMethod(base, "clear", "O", into);
        Py_XDECREF(done);
        if (!done) goto done;
    }
    if (!(items = PyMapping_Items(args[2]))) goto done;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) {
            PyErr_SetString(PyExc_TypeError, "the items of a mapping are pairs");
            goto done;
        }
        if (set_item(base, into, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) < 0) goto done;
    }
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(items);
    Py_DECREF(base);
    return result;
}
