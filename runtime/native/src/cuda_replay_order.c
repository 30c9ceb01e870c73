/* The order of replays on one device. */
#include "cuda_replay.h"

int order_stream(ReplayOrder *order, void **stream, void **other_context) {
    void *context = NULL;
    *other_context = NULL;
    if (order->call.context_get(&context)) return 0;
    if (context != order->context) {
        if (order->call.context_set(order->context)) return 0;
        *other_context = context; /* a thread that had none keeps ours, as it would of any call of CUDA's runtime */
    }
    int capturing = 0, known = 0;
    if (order->call.current_stream(order->device, stream) || order->call.is_capturing(*stream, &capturing) || capturing) {
        order_restore(order, *other_context);
        return 0;
    }
    for (int i = 0; i < order->stream_count && !known; i++) known = order->streams[i] == *stream;
    if (!known) order_restore(order, *other_context);
    return known;
}

void order_restore(ReplayOrder *order, void *other_context) {
    if (other_context) order->call.context_set(other_context);
}

int order_enter(ReplayOrder *order, void *stream) {
    if (order->used && order->last != stream) {
        int code = order->call.record(order->event, order->last); /* an output that was dropped may still be read there */
        if (!code) code = order->call.wait(stream, order->event, 0);
        if (code) return code;
    }
    order->last = stream;
    order->used = 1;
    return 0;
}

#define ROWS 32 /* of the kernel's table (runtime/cuda_graphs/batched_copy.py) */
#define BLOCK 256
#define MOST_BLOCKS 256
#define LARGE (4 << 20) /* bytes from which the driver's own copy is the better one */

static int launch_copies(ReplayOrder *order, CopyRow *table, unsigned count, uint64_t most, void *stream) {
    uint64_t blocks = (most + 16 * BLOCK - 1) / (16 * BLOCK);
    void *parameters[] = {table};
    return order->call.launch_kernel(order->copy_kernel, blocks < MOST_BLOCKS ? (unsigned)blocks : MOST_BLOCKS, count, 1, BLOCK, 1, 1, 0, stream,
                                     parameters, NULL);
}

int order_copy(ReplayOrder *order, const CopyRow *rows, Py_ssize_t count, void *stream) {
    CopyRow table[ROWS] = {{0}};
    unsigned filled = 0;
    uint64_t most = 0;
    int code = 0;
    for (Py_ssize_t i = 0; !code && i < count; i++) {
        if (!rows[i].bytes) continue;
        if (!order->copy_kernel || count == 1 || rows[i].bytes >= LARGE) {
            code = order->call.copy(rows[i].to, rows[i].from, (size_t)rows[i].bytes, stream);
            continue;
        }
        table[filled++] = rows[i];
        if (rows[i].bytes > most) most = rows[i].bytes;
        if (filled < ROWS) continue;
        code = launch_copies(order, table, filled, most, stream);
        filled = 0;
    }
    return code || !filled ? code : launch_copies(order, table, filled, most, stream);
}

/* ReplayOrder(device, context, event, copy kernel, addresses of Functions in order) */
static PyObject *order_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    int device;
    unsigned long long context, event, copy_kernel;
    PyObject *addresses;
    if (!PyArg_ParseTuple(arguments, "iKKKO!", &device, &context, &event, &copy_kernel, &PyTuple_Type, &addresses)) return NULL;
    void *found[sizeof(Functions) / sizeof(void *)];
    Py_ssize_t count = sizeof(Functions) / sizeof(void *);
    if (PyTuple_GET_SIZE(addresses) != count) return PyErr_Format(PyExc_ValueError, "%zd addresses are needed", count);
    for (Py_ssize_t i = 0; i < count; i++) {
        found[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
        if (PyErr_Occurred()) return NULL;
        if (!found[i]) return PyErr_Format(PyExc_ValueError, "address %zd is missing", i);
    }
    ReplayOrder *self = (ReplayOrder *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    memcpy(&self->call, found, sizeof(Functions));
    pthread_mutex_init(&self->lock, NULL);
    self->device = device;
    self->context = (void *)(uintptr_t)context;
    self->copy_kernel = (void *)(uintptr_t)copy_kernel;
    self->event = (void *)(uintptr_t)event;
    return (PyObject *)self;
}

static void order_dealloc(PyObject *object) {
    pthread_mutex_destroy(&((ReplayOrder *)object)->lock);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *order_allow(PyObject *object, PyObject *argument) {
    ReplayOrder *self = (ReplayOrder *)object;
    void *stream = PyLong_AsVoidPtr(argument);
    if (PyErr_Occurred()) return NULL;
    for (int i = 0; i < self->stream_count; i++)
        if (self->streams[i] == stream) Py_RETURN_NONE;
    if (self->stream_count == STREAMS) self->stream_count = 0; /* those that are still used are asked for again */
    self->streams[self->stream_count++] = stream;
    Py_RETURN_NONE;
}

/* enter(stream) and leave() around a replay that Python does */
static PyObject *order_enter_python(PyObject *object, PyObject *argument) {
    ReplayOrder *self = (ReplayOrder *)object;
    void *stream = PyLong_AsVoidPtr(argument);
    int code;
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    code = order_enter(self, stream);
    if (code) pthread_mutex_unlock(&self->lock);
    Py_END_ALLOW_THREADS
    if (code) return PyErr_Format(PyExc_RuntimeError, "streams cannot be ordered: error %d of the driver", code);
    Py_RETURN_NONE;
}

static PyObject *order_leave_python(PyObject *object, PyObject *none) {
    pthread_mutex_unlock(&((ReplayOrder *)object)->lock);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"enter", order_enter_python, METH_O, "Take the lock; the stream waits for what the last one was given."},
    {"leave", order_leave_python, METH_NOARGS, "Give the lock back."},
    {"allow", order_allow, METH_O, "Replays are all right on this stream."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject ReplayOrder_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precast._native.ReplayOrder",
    .tp_basicsize = sizeof(ReplayOrder),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "The order of replays on one device.",
    .tp_new = order_new,
    .tp_dealloc = order_dealloc,
    .tp_methods = methods,
};
