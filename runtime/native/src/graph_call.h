/* A compiled graph's calling convention, shared by what runs it (graph_call.c) and what replays captures of it (cuda_replay.c). */
#ifndef PRECAST_GRAPH_H
#define PRECAST_GRAPH_H

#include "team.h"

typedef int (*run_function)(void *const *, void *const *, void **, void *, char *, int64_t);
typedef int (*prepare_function)(void *const *, void *const *, void **, char *, int64_t);
typedef void (*release_function)(void *const *, void *);
typedef int (*rows_function)(void *const *, void *const *, int64_t, char *, int64_t);

/* A prepared state (packed weights), shared by the calls that run with it; released with the last. */
typedef struct {
    void *value;
    int64_t users;
} State;

typedef struct {
    void *impl, *storage;
    uint32_t version;
} Stamp;

/* A number that is read off a tensor among the inputs: 's' size, 'd' stride, 'o' storage offset. */
typedef struct {
    Py_ssize_t input, from;
    int64_t dim;
    char what;
} Read;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    run_function run;
    rows_function run_rows; /* many rows at once, or NULL */
    prepare_function prepare;
    release_function release;
    void *const *table;
    Py_ssize_t inputs, outputs, arguments;
    int *sources;       /* per input: >= 0 argument position, < 0 bound tensor -1 - i, READ */
    void **bound_words; /* per input: the handle of its bound tensor, which is the same for good; of no meaning for the others */
    Py_ssize_t *given;  /* inputs that are arguments */
    Py_ssize_t given_count;
    Read *reads;
    Py_ssize_t read_count;
    char *input_kinds; /* 't' tensor, 'i' integer, 'f' float */
    char *output_kinds;
    char *frees; /* per input: whether the library takes a handle of it, which it frees after the last use */
    PyObject *bound;  /* tuple of tensors: first those that the graph only reads, of which alone weights are prepared */
    Py_ssize_t lasting; /* so many */
    PyObject *finish; /* (raw, inputs) -> outputs, or NULL */
    PyObject *library;
    PyObject *described; /* of the inputs, for messages: tuple of GraphInput */
    Pace pace;
    State *state;
    Stamp *stamps; /* of the lasting ones when `state` was made */
} GraphCall;

/* The words of `precast_run`'s inputs for these arguments. -1 with an exception set. */
int graph_words(GraphCall *self, PyObject *const *args, Py_ssize_t count, void **words);
/* What `finish` makes of the raw outputs. */
PyObject *graph_finish(GraphCall *self, PyObject *finish, PyObject *raw, PyObject *const *args, void **words);
int graph_word(GraphCall *self, Py_ssize_t input, PyObject *value, void **word);
/* A tensor of a handle, which is consumed. */
PyObject *wrap_output(void *handle);

#endif
