/* Recording checks on values of the call: its arguments, what they hold, and numbers of their tensors. Values have numbers, in the order in which
 * they come up; a check names those that came up before it. */
#include "guard_table.h"

#include <limits.h>

/* A new check, with `kind` and the value that it looks at. NULL with an exception set. */
static ValueCheck *push_check(Table *self, int kind, int source) {
    if (source < 0 || ((size_t)source >= self->lengths_count && kind != KIND_LOCAL && kind != KIND_SHAPE && kind != KIND_DISTINCT && kind != KIND_DISJOINT)) {
        PyErr_Format(PyExc_ValueError, "there is no value %d", source);
        return NULL;
    }
    ValueCheck *op = PUSH(self, value_checks);
    if (op) {
        op->kind = kind;
        op->source = source;
    }
    return op;
}

static int is_value(const Table *self, int64_t number) {
    if (number >= 0 && (uint64_t)number < self->lengths_count) return 1;
    PyErr_Format(PyExc_ValueError, "there is no value %lld", (long long)number);
    return 0;
}

/* The number of the first of `count` new values that a check of this kind, already pushed, gives. */
static PyObject *new_values(Table *self, ValueCheck *op, Py_ssize_t count) {
    size_t first = self->lengths_count;
    if (count > INT_MAX - (Py_ssize_t)first || !(count == 0 || PUSH_MANY(self, lengths, (size_t)count))) {
        self->value_checks_count--; /* the check whose values these are */
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_OverflowError, "too many values in one call's arguments");
    }
    for (size_t i = first; i < self->lengths_count; i++) self->lengths[i] = -1;
    op->target = (int)first;
    return PyLong_FromSize_t(first);
}

/* The number of a new value: the one at `position` of the locals, or of the value `source`. */
static PyObject *value_at(Table *self, int kind, int source, Py_ssize_t position) {
    ValueCheck *op = push_check(self, kind, source);
    if (!op) return NULL;
    op->count = position;
    return new_values(self, op, 1);
}

/* local(position) -> value number */
PyObject *table_local(PyObject *object, PyObject *argument) {
    Py_ssize_t position = PyLong_AsSsize_t(argument);
    if (position < 0) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a position is needed");
    return value_at((Table *)object, KIND_LOCAL, 0, position);
}

/* item(value, position) -> value number; a check that the value is a tuple or list that long has to stand before it */
PyObject *table_item(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source;
    Py_ssize_t position;
    if (!PyArg_ParseTuple(arguments, "in", &source, &position)) return NULL;
    if (!is_value(self, source)) return NULL;
    if (position < 0 || position >= self->lengths[source])
        return PyErr_Format(PyExc_ValueError, "value %d was not checked to have an item %zd", source, position);
    return value_at(self, KIND_ITEM, source, position);
}

/* own(value) -> number of its `__dict__` */
PyObject *table_own(PyObject *object, PyObject *argument) {
    long source = PyLong_AsLong(argument);
    if (source == -1 && PyErr_Occurred()) return NULL;
    return is_value((Table *)object, source) ? value_at((Table *)object, KIND_OWN, (int)source, 0) : NULL;
}

/* fields(value, keys) -> number of the first of len(keys) values: an exact dict with these keys in this order */
PyObject *table_fields(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source;
    PyObject *keys;
    if (!PyArg_ParseTuple(arguments, "iO!", &source, &PyTuple_Type, &keys)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++)
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(keys, i))) return PyErr_Format(PyExc_TypeError, "keys of a dict of the call are strings");
    ValueCheck *op = table_hold(self, keys) == 0 ? push_check(self, KIND_DICT, source) : NULL;
    if (!op) return NULL;
    op->count = PyTuple_GET_SIZE(keys);
    op->object = keys;
    return new_values(self, op, op->count);
}

/* live(value, kind, operand): POINTER, EQUAL or TYPE with an object; TUPLE or LIST with a length; SAME with the number of another value */
PyObject *table_live(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source, kind;
    PyObject *operand;
    if (!PyArg_ParseTuple(arguments, "iiO", &source, &kind, &operand)) return NULL;
    int by_object = kind == KIND_POINTER || kind == KIND_EQUAL || kind == KIND_TYPE, by_length = kind == KIND_TUPLE || kind == KIND_LIST;
    if (!by_object && !by_length && kind != KIND_SAME) return PyErr_Format(PyExc_SystemError, "%d is no kind of check on a value", kind);
    Py_ssize_t number = by_object ? 0 : PyLong_AsSsize_t(operand);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (by_length && number < 0) return PyErr_Format(PyExc_ValueError, "a length is needed");
    if (kind == KIND_SAME && !is_value(self, number)) return NULL;
    if (by_object && table_hold(self, operand) < 0) return NULL;
    ValueCheck *op = push_check(self, kind, source);
    if (!op) return NULL;
    if (by_object) op->object = operand;
    else if (by_length) op->count = self->lengths[source] = number;
    else op->target = (int)number;
    Py_RETURN_NONE;
}

/* The integers of a tuple, with room for `more` after them. NULL with an exception set. */
static int64_t *take_numbers(PyObject *tuple, size_t more) {
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    int64_t *numbers = PyMem_Calloc((size_t)count + more + 1, sizeof(int64_t));
    if (!numbers) return (int64_t *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (!PyErr_Occurred()) return numbers;
    PyMem_Free(numbers);
    return NULL;
}

/* A check that owns `numbers` from then on, or frees them: also where an exception is set already. */
static ValueCheck *push_numbers(Table *self, int kind, int source, int64_t *numbers) {
    ValueCheck *op = PyErr_Occurred() ? NULL : push_check(self, kind, source);
    if (op) op->numbers = numbers;
    else PyMem_Free(numbers);
    return op;
}

/* Integers, or None for any. An exception may be set. */
static void take_sizes(PyObject *tuple, int64_t *to) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple) && !PyErr_Occurred(); i++) {
        PyObject *size = PyTuple_GET_ITEM(tuple, i);
        to[i] = size == Py_None ? FREE : PyLong_AsLongLong(size);
    }
}

/* live_tensor(value, example, requires_grad, offset, sizes, strides): like the example, except for None in sizes, strides or offset; with
 * as many attributes of its own. False where that cannot be checked. */
PyObject *table_live_tensor(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source, grad;
    PyObject *example, *offset, *sizes, *strides;
    if (!PyArg_ParseTuple(arguments, "iOpOO!O!", &source, &example, &grad, &offset, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) return NULL;
    if (!is_tensor(example) || layout.key_set < 0 || layout.autograd_meta < 0) Py_RETURN_FALSE;
    Py_ssize_t dim = PyTuple_GET_SIZE(sizes);
    if (PyTuple_GET_SIZE(strides) != dim) return PyErr_Format(PyExc_ValueError, "one stride for each size is needed");
    int64_t *numbers = PyMem_Calloc(FIXED + 2 * dim, sizeof(int64_t));
    if (!numbers) return PyErr_NoMemory();
    int32_t dtype = 0, device_type = 0, index = 0;
    void *handle = HANDLE(example);
    if (layout.dtype(handle, &dtype) || layout.device_type(handle, &device_type) || device_index(handle, device_type, &index)) {
        PyMem_Free(numbers);
        Py_RETURN_FALSE;
    }
    const int64_t fixed[FIXED] = {dtype, device_type, index, grad, *(int64_t *)(IMPL(example) + layout.key_set),
                                  offset == Py_None ? FREE : PyLong_AsLongLong(offset), dim};
    memcpy(numbers, fixed, sizeof(fixed));
    take_sizes(sizes, numbers + FIXED);
    take_sizes(strides, numbers + FIXED + dim);
    if (!PyErr_Occurred()) table_hold(self, (PyObject *)Py_TYPE(example));
    ValueCheck *op = push_numbers(self, KIND_TENSOR, source, numbers);
    if (!op) return NULL;
    PyObject *attributes = own_attributes(example);
    op->object = (PyObject *)Py_TYPE(example);
    op->count = attributes ? PyDict_GET_SIZE(attributes) : 0;
    Py_RETURN_TRUE;
}

/* shape(program): a relation between numbers of the values, as runtime/native/src/shape_expression.c evaluates it */
PyObject *table_shape(PyObject *object, PyObject *program) {
    Table *self = (Table *)object;
    if (!PyTuple_Check(program)) return PyErr_Format(PyExc_TypeError, "a tuple of integers is needed");
    int64_t *numbers = take_numbers(program, 0);
    if (!numbers) return NULL;
    shape_problem(numbers, PyTuple_GET_SIZE(program), (int)self->lengths_count); /* sets an exception */
    ValueCheck *op = push_numbers(self, KIND_SHAPE, 0, numbers);
    if (!op) return NULL;
    op->count = PyTuple_GET_SIZE(program);
    Py_RETURN_NONE;
}

static int ascending(const void *a, const void *b) {
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return first < second ? -1 : first > second;
}

/* distinct(values, objects): each of the values is another object than the others, and none of them is one of the objects */
PyObject *table_distinct(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *values, *objects;
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &values, &PyTuple_Type, &objects)) return NULL;
    Py_ssize_t fresh = PyTuple_GET_SIZE(values), fixed = PyTuple_GET_SIZE(objects);
    int64_t *numbers = take_numbers(values, (size_t)fixed + (fresh > FEW_DISTINCT ? distinct_slots((size_t)fresh) : 0));
    if (!numbers) return NULL;
    for (Py_ssize_t i = 0; i < fresh && !PyErr_Occurred(); i++) is_value(self, numbers[i]);
    for (Py_ssize_t i = 0; i < fixed && !PyErr_Occurred(); i++) {
        numbers[fresh + i] = (int64_t)(uintptr_t)PyTuple_GET_ITEM(objects, i);
        table_hold(self, PyTuple_GET_ITEM(objects, i));
    }
    qsort(numbers + fresh, (size_t)fixed, sizeof(int64_t), ascending);
    ValueCheck *op = push_numbers(self, KIND_DISTINCT, 0, numbers);
    if (!op) return NULL;
    op->target = (int)fresh;
    op->count = fixed;
    Py_RETURN_NONE;
}

/* apart(value, numbers): its memory touches none of the ranges. numbers: the size of an element, then the ends of sorted disjoint ranges. */
PyObject *table_apart(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    int source;
    PyObject *given;
    if (!PyArg_ParseTuple(arguments, "iO!", &source, &PyTuple_Type, &given)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (count % 2 != 1) return PyErr_Format(PyExc_ValueError, "malformed ranges");
    int64_t *numbers = take_numbers(given, 0);
    ValueCheck *op = numbers ? push_numbers(self, KIND_APART, source, numbers) : NULL;
    if (!op) return NULL;
    op->count = count / 2;
    Py_RETURN_NONE;
}

/* disjoint(values, widths, written): tensors of elements of so many bytes, of which the first `written` share no memory with any other */
PyObject *table_disjoint(PyObject *object, PyObject *arguments) {
    Table *self = (Table *)object;
    PyObject *values, *widths;
    int written;
    if (!PyArg_ParseTuple(arguments, "O!O!i", &PyTuple_Type, &values, &PyTuple_Type, &widths, &written)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(values);
    if (PyTuple_GET_SIZE(widths) != count || written < 0 || written > count)
        return PyErr_Format(PyExc_ValueError, "one width for each tensor is needed, and no more written ones than there are");
    int64_t *numbers = take_numbers(values, (size_t)count * (1 + DISJOINT_ROOM));
    if (!numbers) return NULL;
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
        if (is_value(self, numbers[i])) numbers[count + i] = PyLong_AsLongLong(PyTuple_GET_ITEM(widths, i));
    ValueCheck *op = push_numbers(self, KIND_DISJOINT, 0, numbers);
    if (!op) return NULL;
    op->count = count;
    op->target = written;
    Py_RETURN_NONE;
}
