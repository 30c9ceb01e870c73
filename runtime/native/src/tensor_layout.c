/* Where torch keeps what inside a tensor: the raw reads with which runtime/native/tensor_layout.py finds out, and what it found. */
#include "native.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

Layout layout = {0};

/* read_bytes(address, count): memory as bytes. Used on torch's own objects while they are being probed. */
PyObject *layout_read_bytes(PyObject *module, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(arguments, "Kn", &address, &count)) return NULL;
    return PyBytes_FromStringAndSize((const char *)(uintptr_t)address, count);
}

size_t heap_block_size(void *address) {
#ifdef __GLIBC__
    return malloc_usable_size(address);
#else
    (void)address;
    return 0;
#endif
}

/* allocation_size(address): bytes usable at a heap address, 0 where the C library cannot tell. */
PyObject *layout_allocation_size(PyObject *module, PyObject *argument) {
    unsigned long long address = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromSize_t(heap_block_size((void *)(uintptr_t)address));
}

/* configure(tensor type, fallback of `wrap`, offsets of Layout in order, addresses of torch's C functions in order) */
PyObject *layout_configure(PyObject *module, PyObject *arguments) {
    Layout found = {0};
    PyObject *type, *steal;
    unsigned long long wrap, delete_handle, new_handle, dtype, device_type, device_index, dim, offset, sizes, strides, data;
    if (!PyArg_ParseTuple(arguments, "O!OnnnnnnnnnnKKKKKKKKKKK", &PyType_Type, &type, &steal, &found.tensor_in_object, &found.refcount,
                          &found.storage, &found.storage_offset, &found.autograd_meta, &found.requires_grad, &found.grad_fn, &found.key_set,
                          &found.version_pointer, &found.version_value, &wrap, &delete_handle, &new_handle, &dtype, &device_type, &device_index, &dim, &offset, &sizes, &strides, &data))
        return NULL;
    found.tensor_type = (PyTypeObject *)Py_NewRef(type);
    found.steal = Py_NewRef(steal);
    found.wrap = (wrap_function)(uintptr_t)wrap;
    found.delete_handle = (shim_delete)(uintptr_t)delete_handle;
    found.new_handle = (shim_new)(uintptr_t)new_handle;
    found.dtype = (shim_i32)(uintptr_t)dtype;
    found.device_type = (shim_i32)(uintptr_t)device_type;
    found.device_index = (shim_i32)(uintptr_t)device_index;
    found.dim = (shim_i64)(uintptr_t)dim;
    found.offset = (shim_i64)(uintptr_t)offset;
    found.sizes = (shim_i64s)(uintptr_t)sizes;
    found.strides = (shim_i64s)(uintptr_t)strides;
    found.data = (shim_pointer)(uintptr_t)data;
    found.ready = 1;
    layout = found;
    Py_RETURN_NONE;
}
