/* precast._native: module, and the raw reads that probing needs. */
#include "cuda_replay.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

Layout layout = {0};

/* read_bytes(address, count): memory as bytes. Used on torch's own objects while they are being probed. */
static PyObject *read_bytes(PyObject *module, PyObject *arguments) {
    unsigned long long address;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(arguments, "Kn", &address, &count)) return NULL;
    return PyBytes_FromStringAndSize((const char *)(uintptr_t)address, count);
}

/* allocation_size(address): bytes usable at a heap address, 0 where the C library cannot tell. */
static PyObject *allocation_size(PyObject *module, PyObject *argument) {
    unsigned long long address = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return NULL;
#ifdef __GLIBC__
    return PyLong_FromSize_t(malloc_usable_size((void *)(uintptr_t)address));
#else
    (void)address;
    return PyLong_FromLong(0);
#endif
}

static PyObject *configure(PyObject *module, PyObject *arguments) {
    Layout found = {0};
    PyObject *type, *steal;
    unsigned long long wrap, delete_handle, new_handle, dtype, device_type, device_index, dim, offset, sizes, strides, data;
    if (!PyArg_ParseTuple(arguments, "O!OnnnnnnnnnnKKKKKKKKKKK", &PyType_Type, &type, &steal, &found.tensor_in_object, &found.refcount, &found.storage,
                          &found.storage_offset, &found.autograd_meta, &found.requires_grad, &found.grad_fn, &found.key_set, &found.version_pointer, &found.version_value, &wrap,
                          &delete_handle, &new_handle, &dtype, &device_type, &device_index, &dim, &offset, &sizes, &strides, &data))
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

static PyObject *changes(PyObject *module, PyObject *unused) {
    return dicts_can_be_watched() ? PyLong_FromUnsignedLongLong(dict_changes) : Py_NewRef(Py_None);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function)
static PyMethodDef methods[] = {
    {"read_bytes", read_bytes, METH_VARARGS, "Memory as bytes."},
    {"allocation_size", allocation_size, METH_O, "Bytes usable at a heap address; 0: unknown."},
    {"configure", configure, METH_VARARGS, "Take the probed layout."},
    {"dict_changes", changes, METH_NOARGS, "How often watched dicts have changed; None where none can be watched."},
    {"force_eager", dispatcher_force_eager, METH_O, "Send every call to the slow path, or stop doing so."},
    {"set_attributes", FAST(rebuild_set_attributes), METH_FASTCALL, "object.__setattr__ of each triple, the last first."},
    {"set_own", FAST(rebuild_set_own), METH_FASTCALL, "What stands in the target's own dict, of each triple, the last first."},
    {"refill", FAST(rebuild_refill), METH_FASTCALL, "What a dict holds, by the methods of one of its bases."},
    {NULL, NULL, 0, NULL},
};
#undef FAST

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "precast's native runtime.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    dict_watching_start();
    if (rebuild_start() < 0 || PyModule_AddType(module, &GraphCall_Type) < 0 || PyModule_AddType(module, &Table_Type) < 0 || PyModule_AddType(module, &Dispatcher_Type) < 0 ||
        PyModule_AddType(module, &ReplayOrder_Type) < 0 || PyModule_AddType(module, &Replays_Type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
