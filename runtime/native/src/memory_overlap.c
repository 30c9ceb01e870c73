/* Whether tensors of a call share memory with others. */
#include "native.h"

/* First byte and one past the last byte that the tensor can reach; equal for an empty one. 0: it cannot be read. */
static int span(PyObject *tensor, int64_t width, uint64_t *start, uint64_t *end) {
    void *handle = HANDLE(tensor), *data = NULL;
    int64_t dim, *sizes = NULL, *strides = NULL, reach = 0;
    if (layout.dim(handle, &dim) || layout.data(handle, &data)) return 0;
    if (dim && (layout.sizes(handle, &sizes) || layout.strides(handle, &strides))) return 0;
    *start = *end = (uint64_t)(uintptr_t)data;
    for (int64_t i = 0; i < dim; i++) {
        if (!sizes[i]) return 1;
        reach += (sizes[i] - 1) * strides[i];
    }
    *end = *start + (uint64_t)((reach + 1) * width);
    return 1;
}

int apart_from_ranges(PyObject *tensor, const int64_t *numbers, Py_ssize_t count) {
    uint64_t start, end;
    if (!is_tensor(tensor) || !span(tensor, numbers[0], &start, &end)) return 0;
    Py_ssize_t low = 0, high = count; /* the first range that ends after our start */
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if ((uint64_t)numbers[2 + 2 * middle] > start) high = middle;
        else low = middle + 1;
    }
    return start == end || low == count || (uint64_t)numbers[1 + 2 * low] >= end;
}

int apart_from_other(PyObject *tensor, PyObject *other, const int64_t *numbers) {
    uint64_t start, end, other_start, other_end;
    if (!is_tensor(tensor) || !is_tensor(other)) return 0;
    if (!span(tensor, numbers[0], &start, &end) || !span(other, numbers[1], &other_start, &other_end)) return 0;
    return start == end || other_start == other_end || end <= other_start || other_end <= start;
}
