/* Replaying CUDA graphs: what is shared by all captures of one device. */
#ifndef PRECAST_REPLAY_H
#define PRECAST_REPLAY_H

#include <pthread.h>

#include "graph_call.h"

#define STREAMS 256

/* CUDA's driver, and torch's C shims, by address: nothing of CUDA is linked or included. All but `data` return 0 for success. */
typedef struct {
    int (*context_get)(void **context);
    int (*context_set)(void *context);
    int (*is_capturing)(void *stream, int *status);
    int (*launch)(void *graph, void *stream);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes, void *stream);
    int (*launch_kernel)(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned shared, void *stream, void **parameters, void **extra);
    int (*record)(void *event, void *stream);
    int (*wait)(void *stream, void *event, unsigned flags);
    int32_t (*current_stream)(int32_t device, void **stream);
    int32_t (*data)(void *handle, void **pointer);
    int32_t (*reinterpret)(void *handle, int64_t dim, const int64_t *sizes, const int64_t *strides, int64_t offset, void **result);
    int32_t (*empty_strided)(int64_t dim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type, int32_t device,
                             void **result);
} Functions;

/* Captures of a device share work memory: `lock` is held from the first copy of a replay to its launch, and a stream that is not `last` waits
 * for what was enqueued there. Nobody waits for the lock with the GIL. */
typedef struct {
    PyObject_HEAD
    Functions call;
    pthread_mutex_t lock;
    void *context, *event, *last;
    void *copy_kernel; /* NULL: copies are made one by one */
    int used;
    int32_t device;
    int stream_count;
    void *streams[STREAMS]; /* on which replays are known to be all right */
} ReplayOrder;

extern PyTypeObject ReplayOrder_Type;
extern PyTypeObject Replays_Type;

/* The device's current stream of this thread, with the device's context made current. 1: replays are all right on it; 0: Python has to say. */
int order_stream(ReplayOrder *order, void **stream, void **other_context);
/* Makes `stream` the last one, after what the last one was given. The lock is held. The driver's code. */
int order_enter(ReplayOrder *order, void *stream);
/* One of the copies that go before or after a replay. */
typedef struct {
    uint64_t to, from, bytes;
} CopyRow;
/* The driver's code. */
int order_copy(ReplayOrder *order, const CopyRow *rows, Py_ssize_t count, void *stream);
void order_restore(ReplayOrder *order, void *other_context);

typedef struct {
    Py_ssize_t input;
    uint64_t buffer;
    size_t bytes;
} Copy;

/* sizes and strides that a tensor has to have, or that an output gets */
typedef struct {
    Py_ssize_t input; /* an output: -1 where it lies in memory of the capture's own */
    int64_t dim, offset;
    int64_t *sizes, *strides;
} Shape;

typedef struct {
    Shape shape;
    PyObject *tensor; /* NULL: in an input, or a number */
    int64_t number;
    int is_number;
    int32_t dtype;
    uint64_t data;
    size_t bytes; /* of the memory from its first element to its last */
    int copied;   /* the caller gets a copy of it: its own memory is free again at once */
} Result;

/* A bound input as it lay when the capture was made: while all of this is so, and its type and size are those that the graph was compiled
 * for (which its guards say), its address is what it was. `impl` NULL: not known. */
typedef struct {
    char *impl;
    void *storage, **place, *data; /* where the storage keeps the address of its memory, and that address */
    int64_t offset;
} Lain;

/* A storage of an output as it is while nobody else holds it. A storage object of Python's counts once, however many hold that object;
 * who resizes a storage replaces its memory. */
typedef struct {
    void *storage;
    PyObject *object;
    uint32_t holders;
    Py_ssize_t references;
    void **place, *data; /* where it keeps the address of its memory, and that address */
} Held;

/* One capture. Reference counted apart from Python's objects: a replay may be under way while it is dropped. */
typedef struct {
    Py_ssize_t users;
    ReplayOrder *order;
    PyObject *key;    /* the Recording */
    PyObject *replay; /* called where `launch` is NULL */
    void *launch;
    int clones;     /* all of its outputs are copied */
    void **words;   /* per input: address or number */
    char *copied;   /* per input: its address does not matter */
    Lain *lain;     /* per input */
    Copy *copies;
    CopyRow *rows; /* room for those of one replay */
    Shape *shapes;
    Result *results;
    Held *held; /* storages of its own outputs that callers get */
    Py_ssize_t copy_count, shape_count, result_count, held_count;
} Capture;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    GraphCall *graph; /* gives raw outputs */
    PyObject *finish, *slow;
    int stamped;
    Capture **captures;
    Py_ssize_t count, first; /* `first`: the first tensor among the inputs */
    unsigned long long plays;
} Replays;

/* ---- cuda_replay_capture.c */

/* How many hold a storage. */
uint32_t storage_holders(void *storage);
/* A capture with one user, of the arguments of `Replays.add`. NULL with an exception set. */
Capture *capture_make(GraphCall *graph, PyObject *arguments);
/* One user less. */
void capture_free(Capture *capture);

/* ---- cuda_replay.c, above it */

PyObject *replays_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names);
PyObject *replays_play(PyObject *object, PyObject *arguments);

#endif
