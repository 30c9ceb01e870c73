/* Watching dicts: from Python 3.12 on the interpreter calls before each change of a watched dict, so that while `dict_changes` stands still
 * none of them has changed, and a table need not look at any. (Another watcher's callback that runs Python sees the dict before the change
 * and after its notice; what a table finds there it believes. torch's callback is C++.) */
#include "native.h"

uint64_t dict_changes;

#if PY_VERSION_HEX >= 0x030C0000

struct Watched {
    PyObject *dict; /* borrowed: whoever watches it keeps it alive; NULL once it was freed all the same, in a cycle's garbage */
    Py_ssize_t users;
    Watched *next; /* in the same bucket */
};

static int watcher = -1;
static Watched **buckets; /* by address; a power of two of them */
static size_t bucket_count, watched_count;

static Watched **place_of(const void *dict, Watched **all, size_t count) {
    return &all[((uint64_t)(uintptr_t)dict * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (count - 1)];
}

static Watched *look_up(const void *dict) {
    Watched *found = bucket_count ? *place_of(dict, buckets, bucket_count) : NULL;
    while (found && found->dict != dict) found = found->next;
    return found;
}

static void take_out(Watched *entry) {
    Watched **place = place_of(entry->dict, buckets, bucket_count);
    while (*place != entry) place = &(*place)->next;
    *place = entry->next;
    watched_count--;
    entry->dict = NULL;
}

static int before_change(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    dict_changes++;
    Watched *entry = event == PyDict_EVENT_DEALLOCATED ? look_up(dict) : NULL;
    if (entry) take_out(entry);
    return 0;
}

static int grow_buckets(void) {
    size_t count = bucket_count ? bucket_count * 2 : 256;
    Watched **grown = PyMem_Calloc(count, sizeof(*grown));
    if (!grown) return -1;
    for (size_t i = 0; i < bucket_count; i++)
        for (Watched *entry = buckets[i], *next; entry; entry = next) {
            Watched **place = place_of(entry->dict, grown, count);
            next = entry->next;
            entry->next = *place;
            *place = entry;
        }
    PyMem_Free(buckets);
    buckets = grown;
    bucket_count = count;
    return 0;
}

Watched *dict_watch(PyObject *dict) {
    Watched *entry = look_up(dict);
    if (PyDict_Watch(watcher, dict) < 0) return NULL; /* again, where it is watched already: see `store_is_pending` */
    if (!entry) {
        if ((watched_count == bucket_count && grow_buckets() < 0) || !(entry = PyMem_Calloc(1, sizeof(*entry)))) {
            PyErr_NoMemory();
            return NULL;
        }
        Watched **place = place_of(dict, buckets, bucket_count);
        entry->dict = dict;
        entry->next = *place;
        *place = entry;
        watched_count++;
    }
    entry->users++;
    return entry;
}

void dict_unwatch(Watched *entry) {
    if (!entry || --entry->users) return;
    if (entry->dict) {
        if (PyDict_Unwatch(watcher, entry->dict) < 0) PyErr_Clear(); /* it is a dict, and the watcher is ours: cannot be */
        take_out(entry);
    }
    PyMem_Free(entry);
}

void dict_watching_start(void) {
    if ((watcher = PyDict_AddWatcher(before_change)) < 0) PyErr_Clear(); /* others have taken them all */
}

int dicts_can_be_watched(void) { return watcher >= 0; }

#if PY_VERSION_HEX < 0x030D0000
#include <opcode.h>

/* Whether the frame is in the middle of an attribute's store. -1 with an exception set. */
static int frame_stores(PyFrameObject *frame) {
    int at = PyFrame_GetLasti(frame);
    PyCodeObject *code = PyFrame_GetCode(frame);
    PyObject *bytes = at >= 0 ? PyCode_GetCode(code) : Py_NewRef(Py_None);
    int stores = !bytes ? -1 : at >= 0 && at < PyBytes_GET_SIZE(bytes) && (unsigned char)PyBytes_AS_STRING(bytes)[at] == STORE_ATTR;
    Py_XDECREF(bytes);
    Py_DECREF(code);
    return stores;
}

/* Python 3.12's specialised store (STORE_ATTR_WITH_HINT in its Python/bytecodes.c) takes a dict's watchers down before it lets go of the old
 * value, and puts them back after: a watch that begins in between, in a destructor or in another thread, is lost. */
static int store_is_pending(void) {
    for (PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); thread; thread = PyThreadState_Next(thread)) {
        PyFrameObject *frame = PyThreadState_GetFrame(thread);
        while (frame) {
            int stores = frame_stores(frame);
            PyFrameObject *back = stores ? NULL : PyFrame_GetBack(frame);
            Py_DECREF(frame);
            if (stores) return stores;
            frame = back;
        }
    }
    return 0;
}

int dict_watch_holds(Watched *entry) { return (((PyDictObject *)entry->dict)->ma_version_tag >> watcher) & 1; }
int dict_watches_may_be_lost(void) { return store_is_pending(); }
#else
int dict_watch_holds(Watched *entry) { return 1; }
int dict_watches_may_be_lost(void) { return 0; }
#endif

#else

Watched *dict_watch(PyObject *dict) { return NULL; }
void dict_unwatch(Watched *entry) {}
void dict_watching_start(void) {}
int dicts_can_be_watched(void) { return 0; }
int dict_watch_holds(Watched *entry) { return 0; }
int dict_watches_may_be_lost(void) { return 1; }

#endif
