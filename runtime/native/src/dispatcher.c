/* The dispatcher: a call's arguments become the frame's locals, the first table that holds for them names the frame function to call.
 * Everything unusual (wrong arguments, a stance, no table that holds) goes to `slow(args, kwargs)`, which is Python. */
#include "native.h"

#define STACK_WORDS 130 /* arguments and locals of one call that need no memory from the heap */

static int force_eager; /* the stance: non-zero sends every call to the slow path */

typedef struct {
    PyObject *table, *frame;
} Entry;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyFunctionObject *function; /* the original: its defaults are read at each call */
    PyObject *prefix;           /* tuple of leading arguments */
    PyObject *names;            /* tuple of the parameters' names, *args and **kwargs last */
    PyObject *slow;
    Py_ssize_t positional, positional_only, keyword_only;
    int has_varargs, has_varkw;
    Entry *entries;
    Py_ssize_t count, limit;
    unsigned long long hits, eager; /* calls that needed no Python, and those of the original function among them */
    PyObject *weakrefs;
} Dispatcher;

static PyObject *call_slow(Dispatcher *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
    PyObject *positional = PyTuple_New(count), *named = PyDict_New(), *result = NULL;
    if (!positional || !named) goto done;
    for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); i++)
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(keywords, i), args[count + i]) < 0) goto done;
    result = PyObject_CallFunctionObjArgs(self->slow, positional, named, NULL);
done:
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

static Py_ssize_t parameter(Dispatcher *self, PyObject *name) {
    Py_ssize_t count = self->positional + self->keyword_only;
    for (Py_ssize_t i = self->positional_only; i < count; i++)
        if (PyTuple_GET_ITEM(self->names, i) == name) return i;
    for (Py_ssize_t i = self->positional_only; i < count; i++)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(self->names, i), name) == 0) return i;
    return -1;
}

/* Defaults for parameters that the call left out. 0 when one has none (the slow path raises the error). */
static int fill_defaults(Dispatcher *self, PyObject **locals) {
    PyObject *defaults = self->function->func_defaults, *keyword_defaults = self->function->func_kwdefaults;
    Py_ssize_t first = self->positional - (defaults ? PyTuple_GET_SIZE(defaults) : 0);
    for (Py_ssize_t i = 0; i < self->positional; i++) {
        if (locals[i]) continue;
        if (i < first) return 0;
        locals[i] = PyTuple_GET_ITEM(defaults, i - first);
    }
    for (Py_ssize_t i = self->positional; i < self->positional + self->keyword_only; i++) {
        if (locals[i]) continue;
        if (!keyword_defaults || !(locals[i] = PyDict_GetItemWithError(keyword_defaults, PyTuple_GET_ITEM(self->names, i)))) return 0;
    }
    return 1;
}

/* Fill `locals`, which has room for two more than the named parameters, as the interpreter would. 1: done; 0: leave it to the slow path;
 * -1: error. New objects go to `made`. */
static int bind_locals(Dispatcher *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords, PyObject **locals, PyObject **made) {
    Py_ssize_t named = self->positional + self->keyword_only, taken = count < self->positional ? count : self->positional;
    if (count > self->positional && !self->has_varargs) return 0;
    memset(locals, 0, (named + 2) * sizeof(PyObject *));
    for (Py_ssize_t i = 0; i < taken; i++) locals[i] = args[i];
    if (self->has_varargs) {
        if (!(made[0] = PyTuple_New(count - taken))) return -1;
        for (Py_ssize_t i = taken; i < count; i++) PyTuple_SET_ITEM(made[0], i - taken, Py_NewRef(args[i]));
        locals[named] = made[0];
    }
    if (self->has_varkw) {
        if (!(made[1] = PyDict_New())) return -1;
        locals[named + self->has_varargs] = made[1];
    }
    for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); i++) {
        PyObject *name = PyTuple_GET_ITEM(keywords, i);
        Py_ssize_t place = parameter(self, name);
        if (place >= 0) {
            if (locals[place]) return 0;
            locals[place] = args[count + i];
        } else if (!self->has_varkw)
            return 0;
        else if (PyDict_SetItem(made[1], name, args[count + i]) < 0)
            return -1;
    }
    return fill_defaults(self, locals);
}

static void to_front(Dispatcher *self, PyObject *table) {
    for (Py_ssize_t i = 1; i < self->count; i++)
        if (self->entries[i].table == table) {
            Entry entry = self->entries[i];
            memmove(self->entries + 1, self->entries, i * sizeof(Entry));
            self->entries[0] = entry;
            return;
        }
}

/* New references to the table and frame of the entry that holds, 0 when none does, -1 on an error. Python may run during a check, and
 * change the entries: each is kept alive while it is looked at, and one that changed places may be looked at twice or not at all. */
static int find(Dispatcher *self, PyObject *const *locals, Py_ssize_t count, PyObject **frame) {
    for (Py_ssize_t i = 0; i < self->count; i++) {
        PyObject *table = Py_NewRef(self->entries[i].table), *candidate = Py_NewRef(self->entries[i].frame);
        int holds = table_check(table, locals, count);
        if (holds == 1 && i > 0) to_front(self, table);
        Py_DECREF(table);
        if (holds == 1) {
            *frame = candidate;
            return 1;
        }
        Py_DECREF(candidate);
        if (holds < 0) return -1;
    }
    return 0;
}

static PyObject *dispatch(PyObject *object, PyObject *const *given, size_t flags, PyObject *keywords) {
    Dispatcher *self = (Dispatcher *)object;
    Py_ssize_t prefix = PyTuple_GET_SIZE(self->prefix), count = PyVectorcall_NARGS(flags) + prefix;
    Py_ssize_t total = count + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
    Py_ssize_t words = 1 + total + self->positional + self->keyword_only + 2;
    PyObject *stack[STACK_WORDS], *made[2] = {NULL, NULL}, *frame = NULL, *result = NULL;
    PyObject **room = words <= STACK_WORDS ? stack : PyMem_Malloc(words * sizeof(PyObject *));
    if (!room) return PyErr_NoMemory();
    PyObject **args = room + 1, **locals = args + total; /* one free slot before the arguments, for PY_VECTORCALL_ARGUMENTS_OFFSET */
    for (Py_ssize_t i = 0; i < prefix; i++) args[i] = PyTuple_GET_ITEM(self->prefix, i);
    memcpy(args + prefix, given, (total - prefix) * sizeof(PyObject *));
    Py_INCREF(object);
    int found = 0;
    if (!force_eager && self->count) {
        found = bind_locals(self, args, count, keywords, locals, made);
        if (found == 1) found = find(self, locals, PyTuple_GET_SIZE(self->names), &frame);
        Py_XDECREF(made[0]);
        Py_XDECREF(made[1]);
    }
    if (found == 1) {
        self->hits++;
        self->eager += frame == (PyObject *)self->function;
        result = PyObject_Vectorcall(frame, args, count | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
        Py_DECREF(frame);
    } else if (found == 0)
        result = call_slow(self, args, count, keywords);
    Py_DECREF(object);
    if (room != stack) PyMem_Free(room);
    return result;
}

/* Dispatcher(function, prefix, names, counts, slow, limit); counts = (positional, positional only, keyword only, *args, **kwargs) */
static PyObject *dispatcher_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *function, *prefix, *names, *slow;
    Py_ssize_t positional, positional_only, keyword_only, limit;
    int has_varargs, has_varkw;
    if (!PyArg_ParseTuple(arguments, "O!O!O!(nnnpp)On", &PyFunction_Type, &function, &PyTuple_Type, &prefix, &PyTuple_Type, &names, &positional,
                          &positional_only, &keyword_only, &has_varargs, &has_varkw, &slow, &limit))
        return NULL;
    if (positional < 0 || keyword_only < 0 || PyTuple_GET_SIZE(names) != positional + keyword_only + has_varargs + has_varkw || limit < 1)
        return PyErr_Format(PyExc_ValueError, "counts of parameters that do not match their names");
    Dispatcher *self = (Dispatcher *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->vectorcall = dispatch;
    self->function = (PyFunctionObject *)Py_NewRef(function);
    self->prefix = Py_NewRef(prefix);
    self->names = Py_NewRef(names);
    self->slow = Py_NewRef(slow);
    self->positional = positional;
    self->positional_only = positional_only;
    self->keyword_only = keyword_only;
    self->has_varargs = has_varargs;
    self->has_varkw = has_varkw;
    self->limit = limit;
    if (!(self->entries = PyMem_Calloc(limit, sizeof(Entry)))) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void drop(Dispatcher *self, Py_ssize_t i) {
    Entry entry = self->entries[i];
    memmove(self->entries + i, self->entries + i + 1, (self->count - i - 1) * sizeof(Entry));
    self->count--;
    Py_DECREF(entry.table);
    Py_DECREF(entry.frame);
}

/* add(table, frame): look here first; the entry that was used longest ago goes when there are too many. */
static PyObject *dispatcher_add(PyObject *object, PyObject *arguments) {
    Dispatcher *self = (Dispatcher *)object;
    PyObject *table, *frame;
    if (!PyArg_ParseTuple(arguments, "O!O", &Table_Type, &table, &frame)) return NULL;
    while (self->count >= self->limit) drop(self, self->count - 1);
    memmove(self->entries + 1, self->entries, self->count * sizeof(Entry));
    self->entries[0] = (Entry){Py_NewRef(table), Py_NewRef(frame)};
    self->count++;
    Py_RETURN_NONE;
}

/* remove(table or frame): forget the entries with it. */
static PyObject *dispatcher_remove(PyObject *object, PyObject *what) {
    Dispatcher *self = (Dispatcher *)object;
    for (Py_ssize_t i = self->count - 1; i >= 0 && i < self->count; i--)
        if (self->entries[i].table == what || self->entries[i].frame == what) drop(self, i);
    Py_RETURN_NONE;
}

static PyObject *dispatcher_clear_entries(PyObject *object, PyObject *unused) {
    Dispatcher *self = (Dispatcher *)object;
    while (self->count) drop(self, self->count - 1);
    Py_RETURN_NONE;
}

static PyObject *dispatcher_hits(PyObject *object, void *unused) { return PyLong_FromUnsignedLongLong(((Dispatcher *)object)->hits); }
static PyObject *dispatcher_eager(PyObject *object, void *unused) { return PyLong_FromUnsignedLongLong(((Dispatcher *)object)->eager); }
static PyObject *dispatcher_length(PyObject *object, void *unused) { return PyLong_FromSsize_t(((Dispatcher *)object)->count); }

PyObject *dispatcher_force_eager(PyObject *module, PyObject *value) {
    int wanted = PyObject_IsTrue(value);
    if (wanted < 0) return NULL;
    force_eager = wanted;
    Py_RETURN_NONE;
}

static int dispatcher_traverse(PyObject *object, visitproc visit, void *arg) {
    Dispatcher *self = (Dispatcher *)object;
    Py_VISIT(self->function);
    Py_VISIT(self->prefix);
    Py_VISIT(self->slow);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->entries[i].table);
        Py_VISIT(self->entries[i].frame);
    }
    return 0;
}

static int dispatcher_tp_clear(PyObject *object) {
    Dispatcher *self = (Dispatcher *)object;
    while (self->count) drop(self, self->count - 1);
    return 0; /* the rest is needed for as long as the object can be called, and the cycle is broken */
}

static void dispatcher_dealloc(PyObject *object) {
    Dispatcher *self = (Dispatcher *)object;
    PyObject_GC_UnTrack(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    while (self->count) drop(self, self->count - 1);
    PyMem_Free(self->entries);
    Py_XDECREF(self->function);
    Py_XDECREF(self->prefix);
    Py_XDECREF(self->names);
    Py_XDECREF(self->slow);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef dispatcher_methods[] = {
    {"add", dispatcher_add, METH_VARARGS, "add(table, frame): call frame where table holds."},
    {"remove", dispatcher_remove, METH_O, "Forget the entries with this table or frame."},
    {"clear", dispatcher_clear_entries, METH_NOARGS, "Forget all entries."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef dispatcher_getset[] = {
    {"hits", dispatcher_hits, NULL, "Calls that needed no Python.", NULL},
    {"eager", dispatcher_eager, NULL, "Those of them that ran the original function.", NULL},
    {"entries", dispatcher_length, NULL, "How many tables there are.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject Dispatcher_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precast._native.Dispatcher",
    .tp_basicsize = sizeof(Dispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Calls the frame whose guards hold, else slow(args, kwargs).",
    .tp_new = dispatcher_new,
    .tp_traverse = dispatcher_traverse,
    .tp_clear = dispatcher_tp_clear,
    .tp_dealloc = dispatcher_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Dispatcher, vectorcall),
    .tp_weaklistoffset = offsetof(Dispatcher, weakrefs),
    .tp_methods = dispatcher_methods,
    .tp_getset = dispatcher_getset,
};
