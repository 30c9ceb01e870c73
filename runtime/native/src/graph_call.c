/* The fast graph callable: bound tensors once, per-call tensors from the arguments, precast_run without the GIL, outputs wrapped. */
#include "graph_call.h"

#include <limits.h>

#define ERROR_CAPACITY 4096
#define STACK_WORDS 512
#define READ INT_MIN

static Stamp stamp_of(PyObject *tensor) {
    char *impl = IMPL(tensor);
    Stamp stamp = {impl, *(void **)(impl + layout.storage), 0};
    char *counter = *(char **)(impl + layout.version_pointer);
    if (counter) stamp.version = *(uint32_t *)(counter + layout.version_value);
    return stamp;
}

static void state_drop(GraphCall *self, State *state) {
    if (state && --state->users == 0) {
        if (self->release) self->release(self->table, state->value);
        PyMem_Free(state);
    }
}

/* Sets the exception that the text stands for: one place knows how (runtime/executable/run_errors.py). */
static void raise_run_error(GraphCall *self, const char *error) {
    PyObject *module = PyImport_ImportModule("precast.runtime.executable.run_errors");
    PyObject *text = module ? PyUnicode_DecodeUTF8(error, (Py_ssize_t)strlen(error), "replace") : NULL;
    PyObject *result = text ? PyObject_CallMethod(module, "raise_run_error", "OO", text, self->described) : NULL;
    if (result) PyErr_SetString(PyExc_SystemError, "raise_run_error returned");
    Py_XDECREF(result);
    Py_XDECREF(text);
    Py_XDECREF(module);
}

/* The state for the lasting bound tensors as they are now, with one more user. NULL with an exception set when preparing failed; NULL, and
 * `prepare` gone, when the library has nothing to prepare. */
static State *state_current(GraphCall *self, void **words) {
    Py_ssize_t count = self->lasting;
    int same = self->state != NULL;
    for (Py_ssize_t i = 0; same && i < count; i++) {
        Stamp now = stamp_of(PyTuple_GET_ITEM(self->bound, i));
        same = now.impl == self->stamps[i].impl && now.storage == self->stamps[i].storage && now.version == self->stamps[i].version;
    }
    if (!same) {
        char error[ERROR_CAPACITY] = "";
        State *fresh = PyMem_Calloc(1, sizeof(State));
        if (!fresh) return (State *)PyErr_NoMemory();
        if (self->prepare(self->table, words, &fresh->value, error, ERROR_CAPACITY)) {
            PyMem_Free(fresh);
            if (!strncmp(error, "E:", 2)) raise_run_error(self, error);
            else PyErr_Format(PyExc_RuntimeError, "preparing weights failed: %s", error);
            return NULL;
        }
        if (!fresh->value) { /* this library keeps no copies: nothing to look after from now on */
            PyMem_Free(fresh);
            self->prepare = NULL;
            return NULL;
        }
        fresh->users = 1;
        state_drop(self, self->state);
        self->state = fresh;
        for (Py_ssize_t i = 0; i < count; i++) self->stamps[i] = stamp_of(PyTuple_GET_ITEM(self->bound, i));
    }
    self->state->users++;
    return self->state;
}

PyObject *wrap_output(void *handle) {
    if (layout.wrap) {
        PyObject *tensor = layout.wrap(handle);
        layout.delete_handle(handle);
        return tensor;
    }
    PyObject *capsule = PyCapsule_New(handle, NULL, NULL);
    if (!capsule) return NULL;
    PyObject *tensor = PyObject_CallOneArg(layout.steal, capsule); /* takes the tensor and, in spite of its name, leaves the handle */
    Py_DECREF(capsule);
    layout.delete_handle(handle);
    return tensor;
}

int graph_word(GraphCall *self, Py_ssize_t i, PyObject *value, void **word) {
    switch (self->input_kinds[i]) {
    case 't':
        if (!is_tensor(value)) {
            PyErr_Format(PyExc_TypeError, "compiled graph input %zd: expected a tensor, got %s", i, Py_TYPE(value)->tp_name);
            return -1;
        }
        *word = HANDLE(value);
        return 0;
    case 'i': {
        long long number = PyLong_AsLongLong(value);
        if (number == -1 && PyErr_Occurred()) return -1;
        *word = (void *)(intptr_t)number;
        return 0;
    }
    default: {
        double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred()) return -1;
        memcpy(word, &number, sizeof(double));
        return 0;
    }
    }
}

static int fill_reads(GraphCall *self, void **words) {
    for (Py_ssize_t i = 0; i < self->read_count; i++) {
        Read *read = &self->reads[i];
        void *handle = words[read->from];
        int64_t dim = 0, number = 0, *list = NULL;
        int failed = layout.dim(handle, &dim);
        if (!failed && read->what == 'o') failed = layout.offset(handle, &number);
        else if (!failed) {
            failed = read->dim >= dim || (read->what == 's' ? layout.sizes : layout.strides)(handle, &list);
            if (!failed) number = list[read->dim];
        }
        if (failed) {
            PyErr_Format(PyExc_RuntimeError, "compiled graph input %zd cannot be read off input %zd", read->input, read->from);
            return -1;
        }
        words[read->input] = (void *)(intptr_t)number;
    }
    return 0;
}

int graph_words(GraphCall *self, PyObject *const *args, Py_ssize_t count, void **words) {
    if (count < self->arguments) {
        PyErr_Format(PyExc_TypeError, "a compiled graph wants %zd arguments, got %zd", self->arguments, count);
        return -1;
    }
    memcpy(words, self->bound_words, self->inputs * sizeof(void *));
    for (Py_ssize_t k = 0; k < self->given_count; k++) {
        Py_ssize_t i = self->given[k];
        if (graph_word(self, i, args[self->sources[i]], &words[i]) < 0) return -1;
    }
    return self->read_count ? fill_reads(self, words) : 0;
}

static PyObject *collect_outputs(GraphCall *self, void **outputs) {
    PyObject *raw = PyTuple_New(self->outputs);
    for (Py_ssize_t i = 0; i < self->outputs; i++) {
        if (!raw) { /* no memory: the handles still have to go */
            if (self->output_kinds[i] == 't') layout.delete_handle(outputs[i]);
            continue;
        }
        PyObject *value = self->output_kinds[i] == 't' ? wrap_output(outputs[i]) : PyLong_FromLongLong((long long)(intptr_t)outputs[i]);
        if (!value) {
            Py_CLEAR(raw);
            continue;
        }
        PyTuple_SET_ITEM(raw, i, value);
    }
    return raw;
}

PyObject *graph_finish(GraphCall *self, PyObject *finish, PyObject *raw, PyObject *const *args, void **words) {
    PyObject *inputs = PyTuple_New(self->inputs);
    if (!inputs) return NULL;
    for (Py_ssize_t i = 0; i < self->inputs; i++) {
        int source = self->sources[i];
        PyObject *value = source == READ ? PyLong_FromLongLong((long long)(intptr_t)words[i])
                                         : Py_NewRef(source >= 0 ? args[source] : PyTuple_GET_ITEM(self->bound, -1 - source));
        if (!value) {
            Py_DECREF(inputs);
            return NULL;
        }
        PyTuple_SET_ITEM(inputs, i, value);
    }
    PyObject *result = PyObject_CallFunctionObjArgs(finish, raw, inputs, NULL);
    Py_DECREF(inputs);
    return result;
}

/* New handles of the tensors in `homes`, for the library to write into. */
static int lend(GraphCall *self, PyObject *homes, void **outputs) {
    if (!PyTuple_Check(homes) || PyTuple_GET_SIZE(homes) != self->outputs) {
        PyErr_Format(PyExc_TypeError, "one tensor or None for each of %zd outputs is needed", self->outputs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->outputs; i++) {
        PyObject *home = PyTuple_GET_ITEM(homes, i);
        if (is_tensor(home) && layout.new_handle(HANDLE(home), &outputs[i])) {
            PyErr_Format(PyExc_RuntimeError, "output %zd cannot be lent", i);
            return -1;
        }
    }
    return 0;
}

static void drop_outputs(GraphCall *self, void **outputs) {
    for (Py_ssize_t i = 0; i < self->outputs; i++)
        if (self->output_kinds[i] == 't' && outputs[i]) layout.delete_handle(outputs[i]);
}

/* Whether this run has a handle of its own of the input: the library frees it, or `all` that was given is let go before the run. */
static int is_held(GraphCall *self, Py_ssize_t i, int all) {
    return self->input_kinds[i] == 't' && (self->frees[i] || (all && self->sources[i] >= 0));
}

/* Drops the handles that the library has left. */
static void drop_held(GraphCall *self, void **words, Py_ssize_t count, int all) {
    for (Py_ssize_t i = 0; i < count; i++)
        if (is_held(self, i, all) && words[i]) layout.delete_handle(words[i]);
}

static int hold(GraphCall *self, void **words, int all) {
    for (Py_ssize_t i = 0; i < self->inputs; i++) {
        void *handle = NULL;
        if (!is_held(self, i, all)) continue;
        if (layout.new_handle(words[i], &handle)) {
            drop_held(self, words, i, all);
            PyErr_Format(PyExc_RuntimeError, "input %zd cannot be held", i);
            return -1;
        }
        words[i] = handle;
    }
    return 0;
}

/* `given`: the list that `args` are the items of, to be emptied before the run; NULL: the caller keeps them. */
static PyObject *run_graph(PyObject *object, PyObject *homes, PyObject *const *args, Py_ssize_t count, PyObject *given) {
    GraphCall *self = (GraphCall *)object;
    void *stack[STACK_WORDS];
    Py_ssize_t needed = self->inputs + self->outputs;
    void **words = needed <= STACK_WORDS ? stack : PyMem_Malloc(needed * sizeof(void *));
    if (!words) return PyErr_NoMemory();
    void **outputs = words + self->inputs;
    PyObject *result = NULL;
    State *state = NULL;
    char error[ERROR_CAPACITY];
    error[0] = 0;
    memset(outputs, 0, self->outputs * sizeof(void *));
    if (graph_words(self, args, count, words) < 0) goto done;
    if (self->prepare && !(state = state_current(self, words)) && self->prepare) goto done;
    if ((homes && lend(self, homes, outputs) < 0) || hold(self, words, given != NULL) < 0) {
        drop_outputs(self, outputs);
        state_drop(self, state);
        goto done;
    }
    int failed;
    Py_INCREF(object); /* the arguments and bound tensors are held by the caller and by this object */
    if (given && PyList_SetSlice(given, 0, PyList_GET_SIZE(given), NULL) < 0) PyErr_Clear(); /* they live longer then */
    Py_BEGIN_ALLOW_THREADS
    TeamCall team = team_begin(&self->pace);
    failed = self->run(self->table, words, outputs, state ? state->value : NULL, error, ERROR_CAPACITY);
    team_end(&self->pace, team);
    Py_END_ALLOW_THREADS
    drop_held(self, words, self->inputs, given != NULL);
    if (failed) {
        drop_outputs(self, outputs);
        raise_run_error(self, error);
    } else {
        result = collect_outputs(self, outputs);
        if (result && self->finish) {
            PyObject *finished = graph_finish(self, self->finish, result, args, words);
            Py_SETREF(result, finished);
        }
    }
    state_drop(self, state);
    Py_DECREF(object);
done:
    if (words != stack) PyMem_Free(words);
    return result;
}

static PyObject *graph_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *names) {
    if (names && PyTuple_GET_SIZE(names)) return PyErr_Format(PyExc_TypeError, "a compiled graph takes no keyword arguments");
    return run_graph(object, NULL, args, PyVectorcall_NARGS(flags), NULL);
}

/* into(homes, *arguments): the same, writing outputs into tensors of the caller's */
static PyObject *graph_into(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    if (count < 1) return PyErr_Format(PyExc_TypeError, "into(homes, *arguments)");
    return run_graph(object, args[0], args + 1, count - 1, NULL);
}

/* consume(arguments): the list is emptied first, so that the library may free what nobody else holds as it goes. */
static PyObject *graph_consume(PyObject *object, PyObject *given) {
    if (!PyList_CheckExact(given) || ((GraphCall *)object)->finish) return PyErr_Format(PyExc_TypeError, "consume(list), of a graph whose outputs are raw");
    return run_graph(object, NULL, ((PyListObject *)given)->ob_item, PyList_GET_SIZE(given), given);
}

/* each(rows, *arguments): one run a row, all without the GIL; an argument is a tuple with one value a row, or what all rows get. */
static PyObject *graph_each(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    GraphCall *self = (GraphCall *)object;
    Py_ssize_t rows = count ? PyLong_AsSsize_t(args[0]) : -1;
    if (rows < 0) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "each(rows, *arguments)");
    args++, count--;
    if (self->outputs || self->prepare || self->lasting) return PyErr_Format(PyExc_TypeError, "a graph with outputs or weights has no rows");
    for (Py_ssize_t k = 0; k < count; k++)
        if (PyTuple_Check(args[k]) && PyTuple_GET_SIZE(args[k]) != rows)
            return PyErr_Format(PyExc_ValueError, "argument %zd: %zd values for %zd rows", k, PyTuple_GET_SIZE(args[k]), rows);
    void **words = PyMem_Malloc((rows * self->inputs + 1) * sizeof(void *));
    PyObject **row = PyMem_Malloc((count + 1) * sizeof(PyObject *));
    PyObject *result = NULL;
    char error[ERROR_CAPACITY];
    error[0] = 0;
    if (!words || !row) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t r = 0; r < rows; r++) {
        for (Py_ssize_t k = 0; k < count; k++) row[k] = PyTuple_Check(args[k]) ? PyTuple_GET_ITEM(args[k], r) : args[k];
        if (graph_words(self, row, count, words + r * self->inputs) < 0) goto done;
    }
    int failed = 0;
    void *none = NULL;
    Py_INCREF(object); /* the caller holds the arguments, and tuples keep what is in them */
    Py_BEGIN_ALLOW_THREADS
    if (self->run_rows) failed = self->run_rows(self->table, words, rows, error, ERROR_CAPACITY);
    else
        for (Py_ssize_t r = 0; r < rows && !failed; r++) failed = self->run(self->table, words + r * self->inputs, &none, NULL, error, ERROR_CAPACITY);
    Py_END_ALLOW_THREADS
    if (failed) raise_run_error(self, error);
    else result = Py_NewRef(Py_None);
    Py_DECREF(object);
done:
    PyMem_Free(words);
    PyMem_Free(row);
    return result;
}

/* rows_by(address): the library's own function for many rows, which `each` calls */
static PyObject *graph_rows_by(PyObject *object, PyObject *address) {
    void *found = PyLong_AsVoidPtr(address);
    if (!found && PyErr_Occurred()) return NULL;
    ((GraphCall *)object)->run_rows = (rows_function)found;
    Py_RETURN_NONE;
}

/* adapt_threads() */
static PyObject *graph_adapt_threads(PyObject *object, PyObject *unused) {
    ((GraphCall *)object)->pace.adapts = 1;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"adapt_threads", graph_adapt_threads, METH_NOARGS, "Run on one thread while another process keeps the second from its core."},
    {"rows_by", graph_rows_by, METH_O, "The address of the library's function for many rows."},
    {"consume", graph_consume, METH_O, "Run on the arguments of a list, which is emptied first."},
    {"each", (PyCFunction)(void (*)(void))graph_each, METH_FASTCALL, "Run once a row, without outputs."},
    {"into", (PyCFunction)(void (*)(void))graph_into, METH_FASTCALL, "Run, writing outputs into the tensors of a tuple (None: into new ones)."},
    {NULL, NULL, 0, NULL},
};

/* given: ("size" | "stride", input, dim) or ("offset", input) */
static int add_read(GraphCall *self, Py_ssize_t input, PyObject *given, Py_ssize_t inputs) {
    const char *what;
    Py_ssize_t from;
    long long dim = 0;
    if (!PyArg_ParseTuple(given, "sn|L", &what, &from, &dim)) return -1;
    if (from < 0 || from >= inputs || self->input_kinds[from] != 't' || dim < 0) {
        PyErr_Format(PyExc_ValueError, "input %zd: there is no tensor at %zd to read a %s off", input, from, what);
        return -1;
    }
    self->sources[input] = READ;
    self->reads[self->read_count++] = (Read){input, from, dim, !strcmp(what, "size") ? 's' : !strcmp(what, "stride") ? 'd' : 'o'};
    return 0;
}

/* GraphCall(run, prepare, release, table, sources, input_kinds, output_kinds, bound, lasting, finish, library, described inputs, freed inputs) */
static PyObject *graph_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    unsigned long long run, prepare, release, table;
    PyObject *sources, *bound, *finish, *library, *described, *frees;
    const char *input_kinds, *output_kinds;
    Py_ssize_t lasting;
    if (!PyArg_ParseTuple(arguments, "KKKKO!ssO!nOOO!O!", &run, &prepare, &release, &table, &PyTuple_Type, &sources, &input_kinds, &output_kinds,
                          &PyTuple_Type, &bound, &lasting, &finish, &library, &PyTuple_Type, &described, &PyTuple_Type, &frees))
        return NULL;
    if (!layout.ready || (prepare && layout.version_pointer < 0))
        return PyErr_Format(PyExc_RuntimeError, "the native runtime does not know this torch's tensor layout");
    Py_ssize_t inputs = PyTuple_GET_SIZE(sources), count = PyTuple_GET_SIZE(bound), arguments_needed = 0;
    if (lasting < 0 || lasting > count) return PyErr_Format(PyExc_ValueError, "%zd of %zd bound tensors cannot be lasting", lasting, count);
    if ((size_t)inputs != strlen(input_kinds)) return PyErr_Format(PyExc_ValueError, "one kind per input is needed");
    GraphCall *self = (GraphCall *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->vectorcall = graph_call;
    self->sources = PyMem_Calloc(inputs + 1, sizeof(int));
    self->stamps = PyMem_Calloc(count + 1, sizeof(Stamp));
    self->reads = PyMem_Calloc(inputs + 1, sizeof(Read));
    self->bound_words = PyMem_Calloc(inputs + 1, sizeof(void *));
    self->given = PyMem_Calloc(inputs + 1, sizeof(Py_ssize_t));
    self->input_kinds = PyMem_Malloc(inputs + 1);
    self->output_kinds = PyMem_Malloc(strlen(output_kinds) + 1);
    self->frees = PyMem_Calloc(inputs + 1, 1);
    if (!self->sources || !self->stamps || !self->reads || !self->bound_words || !self->given || !self->input_kinds || !self->output_kinds || !self->frees) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    strcpy(self->input_kinds, input_kinds);
    strcpy(self->output_kinds, output_kinds);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!is_tensor(PyTuple_GET_ITEM(bound, i))) {
            Py_DECREF(self);
            return PyErr_Format(PyExc_TypeError, "bound input %zd is not a tensor", i);
        }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(frees); k++) {
        Py_ssize_t i = PyLong_AsSsize_t(PyTuple_GET_ITEM(frees, k));
        if (i < 0 || i >= inputs || input_kinds[i] != 't') {
            Py_DECREF(self);
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there is no tensor at %zd to free", i);
        }
        self->frees[i] = 1;
    }
    for (Py_ssize_t i = 0; i < inputs; i++) {
        PyObject *given = PyTuple_GET_ITEM(sources, i);
        if (PyTuple_Check(given)) {
            if (add_read(self, i, given, inputs) < 0) {
                Py_DECREF(self);
                return NULL;
            }
            continue;
        }
        int source = (int)PyLong_AsLong(given);
        if (source < -count || PyErr_Occurred() || (source < 0 && input_kinds[i] != 't')) {
            Py_DECREF(self);
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "input %zd: there is no bound tensor %d for it", i, -1 - source);
        }
        self->sources[i] = source;
        if (source < 0) self->bound_words[i] = HANDLE(PyTuple_GET_ITEM(bound, -1 - source));
        else {
            self->given[self->given_count++] = i;
            if (source + 1 > arguments_needed) arguments_needed = source + 1;
        }
    }
    self->run = (run_function)(uintptr_t)run;
    self->prepare = (prepare_function)(uintptr_t)prepare;
    self->release = (release_function)(uintptr_t)release;
    self->table = (void *const *)(uintptr_t)table;
    self->inputs = inputs;
    self->outputs = (Py_ssize_t)strlen(output_kinds);
    self->arguments = arguments_needed;
    self->bound = Py_NewRef(bound);
    self->lasting = lasting;
    self->finish = finish == Py_None ? NULL : Py_NewRef(finish);
    self->library = Py_NewRef(library);
    self->described = Py_NewRef(described);
    return (PyObject *)self;
}

static int graph_traverse(PyObject *object, visitproc visit, void *arg) {
    GraphCall *self = (GraphCall *)object;
    Py_VISIT(self->bound);
    Py_VISIT(self->finish);
    Py_VISIT(self->library);
    Py_VISIT(self->described);
    return 0;
}

static int graph_clear(PyObject *object) {
    GraphCall *self = (GraphCall *)object;
    Py_CLEAR(self->finish);
    return 0;
}

static void graph_dealloc(PyObject *object) {
    GraphCall *self = (GraphCall *)object;
    PyObject_GC_UnTrack(object);
    state_drop(self, self->state);
    Py_XDECREF(self->bound);
    Py_XDECREF(self->finish);
    Py_XDECREF(self->library);
    Py_XDECREF(self->described);
    PyMem_Free(self->sources);
    PyMem_Free(self->stamps);
    PyMem_Free(self->reads);
    PyMem_Free(self->bound_words);
    PyMem_Free(self->given);
    PyMem_Free(self->input_kinds);
    PyMem_Free(self->output_kinds);
    PyMem_Free(self->frees);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject GraphCall_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precast._native.GraphCall",
    .tp_basicsize = sizeof(GraphCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A compiled graph with its bound tensors.",
    .tp_new = graph_new,
    .tp_traverse = graph_traverse,
    .tp_clear = graph_clear,
    .tp_dealloc = graph_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(GraphCall, vectorcall),
    .tp_methods = methods,
};
