/* One capture of a CUDA graph: made of what Python hands over, and freed with its last user. */
#include "cuda_replay.h"

uint32_t storage_holders(void *storage) { return *(volatile uint32_t *)((char *)storage + layout.refcount); }

void capture_free(Capture *capture) {
    if (!capture || --capture->users) return;
    Py_XDECREF(capture->order);
    Py_XDECREF(capture->key);
    Py_XDECREF(capture->replay);
    for (Py_ssize_t i = 0; i < capture->shape_count; i++) PyMem_Free(capture->shapes[i].sizes);
    for (Py_ssize_t i = 0; i < capture->result_count; i++) {
        PyMem_Free(capture->results[i].shape.sizes);
        Py_XDECREF(capture->results[i].tensor);
    }
    PyMem_Free(capture->words);
    PyMem_Free(capture->copied);
    PyMem_Free(capture->lain);
    PyMem_Free(capture->copies);
    PyMem_Free(capture->rows);
    PyMem_Free(capture->shapes);
    PyMem_Free(capture->results);
    for (Py_ssize_t i = 0; i < capture->held_count; i++) Py_XDECREF(capture->held[i].object);
    PyMem_Free(capture->held);
    PyMem_Free(capture);
}

static int take_numbers(PyObject *tuple, int64_t *to) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) to[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    return PyErr_Occurred() ? -1 : 0;
}

/* sizes and strides, both tuples of one length */
static int take_shape(Shape *shape, PyObject *sizes, PyObject *strides) {
    if (!PyTuple_Check(sizes) || !PyTuple_Check(strides) || PyTuple_GET_SIZE(sizes) != PyTuple_GET_SIZE(strides)) {
        PyErr_SetString(PyExc_TypeError, "sizes and strides are tuples of one length");
        return -1;
    }
    shape->dim = PyTuple_GET_SIZE(sizes);
    shape->sizes = PyMem_Calloc(2 * shape->dim + 1, sizeof(int64_t));
    if (!shape->sizes) { PyErr_NoMemory(); return -1; }
    shape->strides = shape->sizes + shape->dim;
    return take_numbers(sizes, shape->sizes) || take_numbers(strides, shape->strides);
}

static int take_words(Capture *capture, PyObject *words, Py_ssize_t inputs) {
    if (PyTuple_GET_SIZE(words) != inputs) {
        PyErr_Format(PyExc_ValueError, "%zd words are needed", inputs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < inputs; i++)
        capture->words[i] = (void *)(uintptr_t)PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(words, i));
    return PyErr_Occurred() ? -1 : 0;
}

enum { STORAGE_WORDS = 6 }; /* of a StorageImpl, among which the address of its memory is */

/* Where a storage keeps the address of its memory, which is `data`; NULL where that is not to be seen. */
static void **place_of(void *storage, void *data) {
    for (int word = 0; word < STORAGE_WORDS; word++)
        if (((void **)storage)[word] == data) return (void **)storage + word;
    return NULL;
}

/* copies: (input, buffer, bytes) each */
static int take_copies(Capture *capture, PyObject *copies, Py_ssize_t inputs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(copies); i++) {
        unsigned long long buffer;
        Py_ssize_t input, bytes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(copies, i), "nKn", &input, &buffer, &bytes)) return -1;
        if (input < 0 || input >= inputs) return PyErr_Format(PyExc_ValueError, "there is no input %zd", input) ? -1 : -1;
        capture->copied[input] = 1;
        capture->copies[capture->copy_count++] = (Copy){input, buffer, (size_t)bytes};
    }
    return 0;
}

/* shapes: (input, sizes, strides) each */
static int take_shapes(Capture *capture, PyObject *shapes, Py_ssize_t inputs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shapes); i++) {
        PyObject *sizes, *strides;
        Shape *shape = &capture->shapes[capture->shape_count++];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(shapes, i), "nOO", &shape->input, &sizes, &strides) || take_shape(shape, sizes, strides)) return -1;
        if (shape->input < 0 || shape->input >= inputs) return PyErr_Format(PyExc_ValueError, "there is no input %zd", shape->input) ? -1 : -1;
    }
    return 0;
}

/* A tensor's storage as Python's object, and where its memory is. NULL with an exception set. */
static PyObject *storage_object(PyObject *tensor, void **data) {
    PyObject *object = PyObject_CallMethod(tensor, "untyped_storage", NULL);
    PyObject *address = object ? PyObject_CallMethod(object, "data_ptr", NULL) : NULL;
    if (!address) {
        Py_XDECREF(object);
        return NULL;
    }
    *data = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return object;
}

/* How the bound inputs lie that the capture only reads, where they are. What it writes is asked for its address at each call: that gives
 * memory of its own to a storage that it shares with another until one of them is written (torch._lazy_clone). */
static int take_lain(Capture *capture, GraphCall *graph) {
    for (Py_ssize_t i = 0; i < graph->inputs; i++) {
        Py_ssize_t place_in_bound = -1 - (Py_ssize_t)graph->sources[i];
        if (graph->input_kinds[i] != 't' || graph->sources[i] >= 0 || place_in_bound >= graph->lasting || capture->copied[i]) continue;
        PyObject *tensor = PyTuple_GET_ITEM(graph->bound, place_in_bound);
        void *now = NULL, *data = NULL;
        PyObject *object = storage_object(tensor, &data);
        if (!object) return -1;
        Py_DECREF(object); /* asking a subclass may have run Python; from here on nothing does */
        if (capture->order->call.data(HANDLE(tensor), &now) || !now || now != capture->words[i]) continue;
        char *impl = IMPL(tensor);
        void *storage = *(void **)(impl + layout.storage), **place = place_of(storage, data);
        if (place) capture->lain[i] = (Lain){impl, storage, place, data, *(int64_t *)(impl + layout.storage_offset)};
    }
    return 0;
}

static int add_storage(Capture *capture, PyObject *tensor) {
    void *storage = *(void **)(IMPL(tensor) + layout.storage);
    for (Py_ssize_t i = 0; i < capture->held_count; i++)
        if (capture->held[i].storage == storage) return 0;
    Held *h = &capture->held[capture->held_count++];
    h->storage = storage;
    if (!(h->object = storage_object(tensor, &h->data))) return -1;
    h->place = place_of(storage, h->data);
    h->holders = storage_holders(storage);
    h->references = Py_REFCNT(h->object);
    return h->place ? 0 : -1;
}

/* results: (tensor, sizes, strides, bytes, copied) | (input, sizes, strides, offset, 0) | (number,) each */
static int take_results(Capture *capture, PyObject *results, Py_ssize_t inputs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); i++) {
        PyObject *given = PyTuple_GET_ITEM(results, i), *what, *sizes, *strides;
        Result *r = &capture->results[capture->result_count++];
        long long number;
        int copied;
        if (PyTuple_Check(given) && PyTuple_GET_SIZE(given) == 1) {
            r->is_number = 1;
            r->number = PyLong_AsLongLong(PyTuple_GET_ITEM(given, 0));
            if (PyErr_Occurred()) return -1;
            continue;
        }
        if (!PyArg_ParseTuple(given, "OOOLp", &what, &sizes, &strides, &number, &copied) || take_shape(&r->shape, sizes, strides)) return -1;
        if (is_tensor(what)) {
            void *data = NULL;
            r->tensor = Py_NewRef(what);
            r->bytes = (size_t)number;
            r->copied = copied;
            r->shape.input = -1;
            if (capture->order->call.data(HANDLE(what), &data) || layout.dtype(HANDLE(what), &r->dtype) || (!copied && add_storage(capture, what)))
                return PyErr_Format(PyExc_RuntimeError, "output %zd cannot be read", i) ? -1 : -1;
            r->data = (uint64_t)(uintptr_t)data;
        } else {
            r->shape.input = PyLong_AsSsize_t(what);
            r->shape.offset = number;
            if (PyErr_Occurred()) return -1;
            if (r->shape.input < 0 || r->shape.input >= inputs) return PyErr_Format(PyExc_ValueError, "output %zd lies in no input", i) ? -1 : -1;
        }
    }
    return 0;
}

static Capture *capture_new(PyObject *key, ReplayOrder *order, PyObject *replay, Py_ssize_t inputs, Py_ssize_t copies, Py_ssize_t shapes,
                            Py_ssize_t results) {
    Capture *capture = PyMem_Calloc(1, sizeof(Capture));
    if (!capture) return NULL;
    capture->users = 1;
    capture->order = (ReplayOrder *)Py_NewRef((PyObject *)order);
    capture->key = Py_NewRef(key);
    capture->replay = Py_NewRef(replay);
    capture->words = PyMem_Calloc(inputs + 1, sizeof(void *));
    capture->copied = PyMem_Calloc(inputs + 1, 1);
    capture->lain = PyMem_Calloc(inputs + 1, sizeof(Lain));
    capture->copies = PyMem_Calloc(copies + 1, sizeof(Copy));
    capture->rows = PyMem_Calloc((copies > results ? copies : results) + 1, sizeof(CopyRow));
    capture->shapes = PyMem_Calloc(shapes + 1, sizeof(Shape));
    capture->results = PyMem_Calloc(results + 1, sizeof(Result));
    capture->held = PyMem_Calloc(results + 1, sizeof(Held));
    if (capture->words && capture->copied && capture->lain && capture->copies && capture->rows && capture->shapes && capture->results && capture->held)
        return capture;
    capture_free(capture);
    return NULL;
}

Capture *capture_make(GraphCall *graph, PyObject *arguments) {
    PyObject *key, *order, *replay, *words, *copies, *shapes, *results;
    unsigned long long launch;
    int clones;
    if (!PyArg_ParseTuple(arguments, "OO!KOpO!O!O!O!", &key, &ReplayOrder_Type, &order, &launch, &replay, &clones, &PyTuple_Type, &words,
                          &PyTuple_Type, &copies, &PyTuple_Type, &shapes, &PyTuple_Type, &results))
        return NULL;
    Py_ssize_t inputs = graph->inputs;
    Capture *capture = capture_new(key, (ReplayOrder *)order, replay, inputs, PyTuple_GET_SIZE(copies), PyTuple_GET_SIZE(shapes),
                                   PyTuple_GET_SIZE(results));
    if (!capture) return (Capture *)PyErr_NoMemory();
    capture->launch = (void *)(uintptr_t)launch;
    capture->clones = clones;
    if (take_words(capture, words, inputs) || take_copies(capture, copies, inputs) || take_shapes(capture, shapes, inputs) ||
        take_lain(capture, graph) || take_results(capture, results, inputs)) {
        capture_free(capture);
        return NULL;
    }
    return capture;
}
