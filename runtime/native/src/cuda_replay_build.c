/* The type that holds a compiled graph's captures. */
#include "cuda_replay.h"

/* Ones whose outputs are copied come last. */
static int insert(Replays *self, Capture *capture) {
    Capture **grown = PyMem_Realloc(self->captures, (self->count + 1) * sizeof(Capture *));
    if (!grown) return -1;
    self->captures = grown;
    Py_ssize_t at = self->count++;
    while (!capture->clones && at > 0 && grown[at - 1]->clones) {
        grown[at] = grown[at - 1];
        at--;
    }
    grown[at] = capture;
    return 0;
}

/* add(key, order, launch, replay, clones, words, copies, shapes, results) */
static PyObject *replays_add(PyObject *object, PyObject *arguments) {
    Replays *self = (Replays *)object;
    if (self->first >= self->graph->inputs) return PyErr_Format(PyExc_ValueError, "there is no tensor among the inputs");
    Capture *capture = capture_make(self->graph, arguments);
    if (!capture) return NULL;
    if (insert(self, capture)) {
        capture_free(capture);
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *replays_drop(PyObject *object, PyObject *key) {
    Replays *self = (Replays *)object;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Capture *capture = self->captures[i];
        if (capture->key != key) continue;
        memmove(self->captures + i, self->captures + i + 1, (self->count - i - 1) * sizeof(Capture *));
        self->count--;
        capture_free(capture);
        Py_RETURN_NONE;
    }
    return PyErr_Format(PyExc_ValueError, "there is no such capture");
}

static PyObject *replays_plays(PyObject *object, void *closure) { return PyLong_FromUnsignedLongLong(((Replays *)object)->plays); }

/* Replays(graph, finish, slow, stamped): `stamped`: every call goes to `slow`, which knows about prepared weights */
static PyObject *replays_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *graph, *finish, *slow;
    int stamped;
    if (!PyArg_ParseTuple(arguments, "O!OOp", &GraphCall_Type, &graph, &finish, &slow, &stamped)) return NULL;
    GraphCall *call = (GraphCall *)graph;
    Py_ssize_t first = 0;
    while (first < call->inputs && call->input_kinds[first] != 't') first++;
    Replays *self = (Replays *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->vectorcall = replays_call;
    self->graph = (GraphCall *)Py_NewRef(graph);
    self->finish = finish == Py_None ? NULL : Py_NewRef(finish);
    self->slow = Py_NewRef(slow);
    self->stamped = stamped;
    self->first = first;
    return (PyObject *)self;
}

static int replays_traverse(PyObject *object, visitproc visit, void *arg) {
    Replays *self = (Replays *)object;
    Py_VISIT(self->graph);
    Py_VISIT(self->finish);
    Py_VISIT(self->slow);
    return 0;
}

static int replays_clear(PyObject *object) {
    Replays *self = (Replays *)object;
    Py_CLEAR(self->finish);
    Py_CLEAR(self->slow);
    return 0;
}

static void replays_dealloc(PyObject *object) {
    Replays *self = (Replays *)object;
    PyObject_GC_UnTrack(object);
    for (Py_ssize_t i = 0; i < self->count; i++) capture_free(self->captures[i]);
    PyMem_Free(self->captures);
    Py_XDECREF(self->graph);
    Py_XDECREF(self->finish);
    Py_XDECREF(self->slow);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef methods[] = {
    {"add", replays_add, METH_VARARGS, "Take a capture."},
    {"drop", replays_drop, METH_O, "Forget a capture."},
    {"play", replays_play, METH_VARARGS, "Raw outputs for all graph inputs, or None."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {{"plays", replays_plays, NULL, "Replays so far.", NULL}, {NULL, NULL, NULL, NULL, NULL}};

PyTypeObject Replays_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precast._native.Replays",
    .tp_basicsize = sizeof(Replays),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A compiled graph's CUDA graphs.",
    .tp_new = replays_new,
    .tp_traverse = replays_traverse,
    .tp_clear = replays_clear,
    .tp_dealloc = replays_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Replays, vectorcall),
    .tp_methods = methods,
    .tp_getset = getters,
};
