/* The fast path of CUDA graphs: finds the capture that answers a call, copies inputs, launches it, makes tensors on its outputs. What it
 * cannot answer goes to Python (runtime/cuda_graphs/graphs.py), which captures. */
#include "cuda_replay.h"

#define STACK_WORDS 1024
#define MOST_DIMS 64

static int in_use(Capture *capture) {
    for (Py_ssize_t i = 0; i < capture->held_count; i++) {
        Held *h = &capture->held[i];
        if (storage_holders(h->storage) != h->holders || Py_REFCNT(h->object) != h->references || *h->place != h->data) return 1;
    }
    return 0;
}

static int shape_fits(Shape *shape, void *handle) {
    int64_t dim, *sizes, *strides;
    if (layout.dim(handle, &dim) || dim != shape->dim) return 0;
    if (!dim) return 1;
    if (layout.sizes(handle, &sizes) || layout.strides(handle, &strides)) return 0;
    return !memcmp(sizes, shape->sizes, dim * sizeof(int64_t)) && !memcmp(strides, shape->strides, dim * sizeof(int64_t));
}

/* Whether a tensor is where it was: mostly it lies just as it lay, and then it need not be asked, which is many times as dear. */
static int lies_there(Capture *capture, Py_ssize_t i, void *handle) {
    Lain *lain = &capture->lain[i];
    char *impl = *(char **)handle;
    if (lain->impl == impl && *(void **)(impl + layout.storage) == lain->storage && *lain->place == lain->data &&
        *(int64_t *)(impl + layout.storage_offset) == lain->offset)
        return 1;
    void *address = NULL;
    return !capture->order->call.data(handle, &address) && address == capture->words[i];
}

static int capture_fits(Replays *self, Capture *capture, void **words, int32_t device) {
    GraphCall *graph = self->graph;
    if (capture->order->device != device || in_use(capture)) return 0;
    for (Py_ssize_t i = 0; i < graph->inputs; i++) {
        if (capture->copied[i]) continue;
        if (graph->input_kinds[i] == 't' ? !lies_there(capture, i, words[i]) : words[i] != capture->words[i]) return 0;
    }
    for (Py_ssize_t i = 0; i < capture->shape_count; i++)
        if (!shape_fits(&capture->shapes[i], words[capture->shapes[i].input])) return 0;
    return 1;
}

/* -1 with an exception set; 0: none; 1: found, with one more user. */
static int find(Replays *self, void **words, PyObject *stamp, Capture **found) {
    int32_t device = 0;
    if (!self->count || layout.device_index(words[self->first], &device)) return 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Capture *capture = self->captures[i];
        if (!capture_fits(self, capture, words, device)) continue;
        if (stamp) {
            PyObject *made_for = PyObject_GetAttrString(capture->key, "stamp");
            int same = made_for ? PyObject_RichCompareBool(made_for, stamp, Py_EQ) : -1;
            Py_XDECREF(made_for);
            if (same < 0) return -1;
            if (i >= self->count || self->captures[i] != capture) return 0; /* comparing ran Python code */
            if (!same) continue;
        }
        capture->users++;
        *found = capture;
        return 1;
    }
    return 0;
}

static void drop_handles(void **outputs, Capture *capture) {
    for (Py_ssize_t i = 0; i < capture->result_count; i++)
        if (!capture->results[i].is_number && outputs[i]) layout.delete_handle(outputs[i]);
}

/* New tensors where the replay will have written. Holding them marks the capture as in use. */
static int make_outputs(Capture *capture, void **words, void **outputs) {
    Functions *call = &capture->order->call;
    for (Py_ssize_t i = 0; i < capture->result_count; i++) {
        Result *r = &capture->results[i];
        Shape *s = &r->shape;
        int failed;
        outputs[i] = NULL;
        if (r->is_number) {
            outputs[i] = (void *)(intptr_t)r->number;
            continue;
        }
        if (r->copied) failed = call->empty_strided(s->dim, s->sizes, s->strides, r->dtype, 1, capture->order->device, &outputs[i]);
        else failed = call->reinterpret(r->tensor ? HANDLE(r->tensor) : words[s->input], s->dim, s->sizes, s->strides, s->offset, &outputs[i]);
        if (failed) {
            for (Py_ssize_t k = i; k < capture->result_count; k++) outputs[k] = NULL;
            drop_handles(outputs, capture);
            PyErr_Format(PyExc_RuntimeError, "output %zd of a replayed graph cannot be made", i);
            return -1;
        }
    }
    return 0;
}

/* Without the GIL, but where Python replays. The driver's code; -1 with an exception set (`*thread` is then current). */
static int enqueue(Capture *capture, void **words, void **outputs, void *stream, PyThreadState **thread) {
    ReplayOrder *order = capture->order;
    Functions *call = &order->call;
    pthread_mutex_lock(&order->lock);
    int code = order_enter(order, stream);
    CopyRow *rows = capture->rows; /* under the lock */
    for (Py_ssize_t i = 0; !code && i < capture->copy_count; i++) {
        void *from = NULL;
        code = call->data(words[capture->copies[i].input], &from);
        rows[i] = (CopyRow){capture->copies[i].buffer, (uint64_t)(uintptr_t)from, capture->copies[i].bytes};
    }
    if (!code) code = order_copy(order, rows, capture->copy_count, stream);
    if (!code && capture->launch) code = call->launch(capture->launch, stream);
    else if (!code) {
        PyEval_RestoreThread(*thread);
        PyObject *result = PyObject_CallNoArgs(capture->replay);
        Py_XDECREF(result);
        if (!result) code = -1;
        *thread = PyEval_SaveThread();
    }
    Py_ssize_t cloned = 0;
    for (Py_ssize_t i = 0; !code && i < capture->result_count; i++) {
        Result *r = &capture->results[i];
        void *to = NULL;
        if (!r->copied) continue;
        code = call->data(outputs[i], &to);
        rows[cloned++] = (CopyRow){(uint64_t)(uintptr_t)to, r->data, r->bytes};
    }
    if (!code) code = order_copy(order, rows, cloned, stream);
    pthread_mutex_unlock(&order->lock);
    return code;
}

static PyObject *collect(Capture *capture, void **outputs) {
    PyObject *raw = PyTuple_New(capture->result_count);
    for (Py_ssize_t i = 0; i < capture->result_count; i++) {
        int number = capture->results[i].is_number;
        if (!raw) { /* no memory: the handles still have to go */
            if (!number) layout.delete_handle(outputs[i]);
            continue;
        }
        PyObject *value = number ? PyLong_FromLongLong((long long)(intptr_t)outputs[i]) : wrap_output(outputs[i]);
        if (!value) Py_CLEAR(raw);
        else PyTuple_SET_ITEM(raw, i, value);
    }
    return raw;
}

/* Raw outputs; NULL without an exception where no capture answers. */
static PyObject *replay(Replays *self, void **words, PyObject *stamp) {
    Capture *capture = NULL;
    void *stack[MOST_DIMS], *stream = NULL, *other_context = NULL;
    PyObject *raw = NULL;
    if (find(self, words, stamp, &capture) <= 0) return NULL;
    void **outputs = capture->result_count <= MOST_DIMS ? stack : PyMem_Malloc(capture->result_count * sizeof(void *));
    if (!outputs) PyErr_NoMemory();
    else if (order_stream(capture->order, &stream, &other_context)) {
        if (!make_outputs(capture, words, outputs)) {
            self->plays++;
            PyThreadState *thread = PyEval_SaveThread();
            int code = enqueue(capture, words, outputs, stream, &thread);
            order_restore(capture->order, other_context);
            PyEval_RestoreThread(thread);
            if (!code) raw = collect(capture, outputs);
            else {
                drop_handles(outputs, capture);
                if (code > 0) PyErr_Format(PyExc_RuntimeError, "a CUDA graph cannot be launched: error %d of the driver", code);
            }
        } else order_restore(capture->order, other_context);
    }
    if (outputs != stack) PyMem_Free(outputs);
    capture_free(capture);
    return raw;
}

PyObject *replays_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names) {
    Replays *self = (Replays *)object;
    GraphCall *graph = self->graph;
    if (!self->count || self->stamped || (names && PyTuple_GET_SIZE(names))) return PyObject_Vectorcall(self->slow, args, flags, names);
    void *stack[STACK_WORDS], **words = graph->inputs <= STACK_WORDS ? stack : PyMem_Malloc(graph->inputs * sizeof(void *));
    PyObject *raw = NULL;
    if (!words) return PyErr_NoMemory();
    Py_INCREF(object);
    if (graph_words(graph, args, PyVectorcall_NARGS(flags), words) == 0) {
        raw = replay(self, words, NULL);
        if (raw && self->finish) {
            PyObject *finished = graph_finish(graph, self->finish, raw, args, words);
            Py_SETREF(raw, finished);
        } else if (!raw && !PyErr_Occurred()) raw = PyObject_Vectorcall(self->slow, args, flags, names);
    }
    if (words != stack) PyMem_Free(words);
    Py_DECREF(object);
    return raw;
}

/* play(values, stamp) -> raw outputs or None: the same for graph inputs that Python has already. */
PyObject *replays_play(PyObject *object, PyObject *arguments) {
    Replays *self = (Replays *)object;
    PyObject *values, *stamp;
    if (!PyArg_ParseTuple(arguments, "O!O", &PyList_Type, &values, &stamp)) return NULL;
    Py_ssize_t inputs = self->graph->inputs;
    if (PyList_GET_SIZE(values) != inputs) return PyErr_Format(PyExc_ValueError, "%zd inputs are needed", inputs);
    void **words = PyMem_Malloc((inputs + 1) * sizeof(void *));
    if (!words) return PyErr_NoMemory();
    PyObject *raw = NULL;
    int failed = 0;
    for (Py_ssize_t i = 0; i < inputs && !failed; i++) failed = graph_word(self->graph, i, PyList_GET_ITEM(values, i), &words[i]);
    if (!failed) raw = replay(self, words, stamp == Py_None ? NULL : stamp);
    PyMem_Free(words);
    return raw || PyErr_Occurred() ? raw : Py_NewRef(Py_None);
}
