/* What an optimiser's step asks of hundreds of tensors: whether they are as they were at the last step, and the scalars of their state. */
#include "native.h"

#define MAX_DIMS 16

typedef struct {
    void *type;
    uint64_t keys;
    int32_t dtype;
    int16_t device;
    int16_t fits; /* elements fill a piece of memory, in the order of the row's first tensor */
} Facts;

/* Whether the elements fill a piece of memory, in whatever order. */
static int is_dense(int64_t dim, const int64_t *sizes, const int64_t *strides) {
    int64_t expected = 1;
    uint32_t left = (1u << dim) - 1;
    for (int64_t d = 0; d < dim; d++)
        if (sizes[d] == 0) return 1;
        else if (sizes[d] == 1) left &= ~(1u << d);
    for (int64_t d = dim - 1; d >= 0; d--) /* the usual order, and most others, in one pass */
        if (left >> d & 1 && strides[d] == expected) {
            expected *= sizes[d];
            left &= ~(1u << d);
        }
    while (left) {
        int64_t found = -1;
        for (int64_t d = 0; d < dim; d++)
            if (left >> d & 1 && strides[d] == expected) found = d;
        if (found < 0) return 0;
        expected *= sizes[found];
        left &= ~(1u << found);
    }
    return 1;
}

static int alike(int64_t dim, const int64_t *sizes, const int64_t *a, const int64_t *b) {
    for (int64_t d = 0; d < dim; d++)
        if (sizes[d] > 1 && a[d] != b[d]) return 0;
    return 1;
}

/* tensor_facts(columns): bytes that change whenever a tensor's type, dtype, device, kind or layout does. A column is a list of tensors
 * (or None); the elements at one place of all columns are a row. */
PyObject *update_facts(PyObject *module, PyObject *columns) {
    if (!layout.ready || !PyTuple_Check(columns) || !PyTuple_GET_SIZE(columns)) return PyErr_Format(PyExc_TypeError, "tensor_facts(columns)");
    Py_ssize_t count = PyTuple_GET_SIZE(columns), rows = -1;
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *column = PyTuple_GET_ITEM(columns, k);
        if (!PyList_Check(column) || (rows >= 0 && PyList_GET_SIZE(column) != rows))
            return PyErr_Format(PyExc_TypeError, "columns are lists of one length");
        rows = PyList_GET_SIZE(column);
    }
    Py_ssize_t bytes = rows * (count * (Py_ssize_t)sizeof(Facts) + (Py_ssize_t)sizeof(int64_t));
    PyObject *result = PyBytes_FromStringAndSize(NULL, bytes);
    if (!result) return NULL;
    memset(PyBytes_AS_STRING(result), 0, (size_t)bytes);
    char *at = PyBytes_AS_STRING(result);
    for (Py_ssize_t r = 0; r < rows; r++) {
        int64_t first_dim = -1, *first_sizes = NULL, *first_strides = NULL, elements = 0;
        int dense = 0;
        for (Py_ssize_t k = 0; k < count; k++, at += sizeof(Facts)) {
            PyObject *value = PyList_GET_ITEM(PyTuple_GET_ITEM(columns, k), r);
            Facts facts = {Py_TYPE(value), 0, 0, 0, 0};
            if (is_tensor(value)) {
                void *handle = HANDLE(value);
                int64_t dim = 0, *sizes = NULL, *strides = NULL;
                int32_t index = 0;
                facts.keys = *(uint64_t *)(IMPL(value) + layout.key_set);
                if (layout.dtype(handle, &facts.dtype) || layout.device_index(handle, &index) || layout.dim(handle, &dim)) goto failed;
                facts.device = (int16_t)index;
                /* the strides of others than plain tensors may not be there to read; their keys and types say so */
                if (dim <= MAX_DIMS && !layout.sizes(handle, &sizes) && !layout.strides(handle, &strides)) {
                    if (k == 0) {
                        first_dim = dim, first_sizes = sizes, first_strides = strides;
                        dense = is_dense(dim, sizes, strides);
                        elements = 1;
                        for (int64_t d = 0; d < dim; d++) elements *= sizes[d];
                    }
                    facts.fits = dense && dim == first_dim && !memcmp(sizes, first_sizes, (size_t)dim * sizeof(int64_t)) && alike(dim, sizes, strides, first_strides);
                }
            }
            memcpy(at, &facts, sizeof(Facts));
        }
        memcpy(at, &elements, sizeof(elements));
        at += sizeof(elements);
    }
    return result;
failed:
    Py_DECREF(result);
    return PyErr_Format(PyExc_RuntimeError, "a tensor cannot be looked at");
}

/* The memory of a scalar on the CPU, and whether it is a double; NULL where it is none of float32 or float64. */
static void *scalar_at(PyObject *value, int *wide) {
    int32_t dtype = 0, device = 0;
    int64_t dim = 0, *sizes = NULL;
    void *data = NULL;
    if (!is_tensor(value)) return NULL;
    void *handle = HANDLE(value);
    if (layout.device_type(handle, &device) || device || layout.dtype(handle, &dtype) || (dtype != 6 && dtype != 7)) return NULL;
    if (layout.dim(handle, &dim) || dim > 1 || (dim && (layout.sizes(handle, &sizes) || sizes[0] != 1)) || layout.data(handle, &data)) return NULL;
    *wide = dtype == 7;
    return data;
}

/* scalar_values(list): the values of scalar tensors as the bytes of doubles; None where one is none on the CPU. */
PyObject *update_values(PyObject *module, PyObject *list) {
    if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "scalar_values(list)");
    Py_ssize_t count = PyList_GET_SIZE(list);
    PyObject *result = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(double));
    if (!result) return NULL;
    double *values = (double *)PyBytes_AS_STRING(result);
    for (Py_ssize_t i = 0; i < count; i++) {
        int wide = 0;
        void *data = scalar_at(PyList_GET_ITEM(list, i), &wide);
        if (!data) {
            Py_DECREF(result);
            Py_RETURN_NONE;
        }
        values[i] = wide ? *(double *)data : (double)*(float *)data;
    }
    return result;
}

/* scalar_add(list, amount): adds to scalar tensors, in their own precision. They were read by `scalar_values`. */
PyObject *update_add(PyObject *module, PyObject *arguments) {
    PyObject *list;
    double amount;
    if (!PyArg_ParseTuple(arguments, "O!d", &PyList_Type, &list, &amount)) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        int wide = 0;
        void *data = scalar_at(PyList_GET_ITEM(list, i), &wide);
        if (!data) return PyErr_Format(PyExc_TypeError, "no scalar on the CPU");
        if (wide) *(double *)data += amount;
        else *(float *)data += (float)amount;
    }
    Py_RETURN_NONE;
}
