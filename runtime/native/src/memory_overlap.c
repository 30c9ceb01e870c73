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

typedef struct {
    uint64_t start, end;
    int64_t written;
} Span;

_Static_assert(sizeof(Span) == DISJOINT_ROOM * sizeof(int64_t), "the room of a tensor holds its span");

static int by_start(const void *a, const void *b) {
    uint64_t first = ((const Span *)a)->start, second = ((const Span *)b)->start;
    return first < second ? -1 : first > second;
}

int tensors_disjoint(int64_t *numbers, Py_ssize_t count, int written, PyObject *const *values) {
    Span *spans = (Span *)(numbers + 2 * count);
    size_t used = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *tensor = values[numbers[i]];
        Span *at = &spans[used];
        if (!is_tensor(tensor) || !span(tensor, numbers[count + i], &at->start, &at->end)) return 0;
        at->written = i < written;
        used += at->start != at->end;
    }
    qsort(spans, used, sizeof(*spans), by_start);
    uint64_t any_end = 0, written_end = 0; /* the furthest ends so far */
    for (size_t i = 0; i < used; i++) {
        if (spans[i].start < (spans[i].written ? any_end : written_end)) return 0;
        if (spans[i].end > any_end) any_end = spans[i].end;
        if (spans[i].written && spans[i].end > written_end) written_end = spans[i].end;
    }
    return 1;
}
