/* precast._native: the module with its types, functions and constants. */
#include "guard_table.h"
#include "cuda_replay.h"
#include "team.h"

static PyObject *changes(PyObject *module, PyObject *unused) {
    return dicts_can_be_watched() ? PyLong_FromUnsignedLongLong(dict_changes) : Py_NewRef(Py_None);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function)
static PyMethodDef methods[] = {
    {"read_bytes", layout_read_bytes, METH_VARARGS, "Memory as bytes."},
    {"allocation_size", layout_allocation_size, METH_O, "Bytes usable at a heap address; 0: unknown."},
    {"configure", layout_configure, METH_VARARGS, "Take the probed layout."},
    {"adapt_threads", team_adapt, METH_VARARGS, "Take the addresses of OpenMP's functions, by which calls change their number of threads."},
    {"runs_alone", team_alone, METH_NOARGS, "Whether long calls of this thread run on one thread, because another process uses the cores."},
    {"dict_changes", changes, METH_NOARGS, "How often watched dicts have changed; None where none can be watched."},
    {"force_eager", dispatcher_force_eager, METH_O, "Send every call to the slow path, or stop doing so."},
    {"set_attributes", FAST(rebuild_set_attributes), METH_FASTCALL, "object.__setattr__ of each triple, the last first."},
    {"set_own", FAST(rebuild_set_own), METH_FASTCALL, "What stands in the target's own dict, of each triple, the last first."},
    {"tensor_facts", update_facts, METH_O, "What an optimiser's step depends on, of columns of tensors, as bytes."},
    {"scalar_values", update_values, METH_O, "The values of scalar tensors on the CPU."},
    {"scalar_add", update_add, METH_VARARGS, "Adds a number to scalar tensors on the CPU."},
    {"refill", FAST(rebuild_refill), METH_FASTCALL, "What a dict holds, by the methods of one of its bases."},
    {NULL, NULL, 0, NULL},
};
#undef FAST

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "precast's native runtime.", -1, methods, NULL, NULL, NULL, NULL};

/* Numbers that Python passes to a table's methods (runtime/native/kinds.py has the same names). -1 with an exception set. */
static int add_kinds(PyObject *module) {
    static const struct {
        const char *name;
        int value;
    } constants[] = {
#define AS_ROW(name) {"KIND_" #name, KIND_##name},
        VALUE_KINDS(AS_ROW)
#undef AS_ROW
#define AS_ROW(name) {"SLOT_" #name, SLOT_##name},
        SLOT_KINDS(AS_ROW)
#undef AS_ROW
    };
    for (size_t i = 0; i < sizeof(constants) / sizeof(*constants); i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) return -1;
    return 0;
}

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    dict_watching_start();
    PyTypeObject *const types[] = {&GraphCall_Type, &Table_Type, &Dispatcher_Type, &ReplayOrder_Type, &Replays_Type};
    int failed = rebuild_start() < 0 || add_kinds(module) < 0;
    for (size_t i = 0; !failed && i < sizeof(types) / sizeof(*types); i++) failed = PyModule_AddType(module, types[i]) < 0;
    if (failed) Py_CLEAR(module);
    return module;
}
