/* How a dict tells that it has changed: by a version, which is another number after each change.
 *
 * From Python 3.12 on the interpreter calls before each change of a dict that is watched (PyDict_Watch). Versions are counted here then, and
 * one number counts the changes of all watched dicts: while it stands still, a table need not look at any of them. Before 3.12, and where
 * others have taken all of the interpreter's watchers, a dict's version is its own tag (PEP 509), which is looked at in every call. */
#include "native.h"

uint64_t dict_changes;

#if PY_VERSION_HEX >= 0x030C0000

struct Watched {
    PyObject *dict; /* borrowed: whoever asked for its version keeps it alive; NULL once it was freed all the same (a cycle's garbage) */
    uint64_t version;
    Py_ssize_t users;
    Watched *next; /* in the same bucket */
};

static int watcher = -1;
static Watched **buckets; /* by address; a power of two of them */
static size_t bucket_count, watched_count;

static size_t bucket_of(const void *dict, size_t count) { return ((uint64_t)(uintptr_t)dict * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (count - 1); }

static Watched *look_up(const void *dict) {
    Watched *found = bucket_count ? buckets[bucket_of(dict, bucket_count)] : NULL;
    while (found && found->dict != dict) found = found->next;
    return found;
}

static void take_out(Watched *entry) {
    Watched **place = &buckets[bucket_of(entry->dict, bucket_count)];
    while (*place != entry) place = &(*place)->next;
    *place = entry->next;
    watched_count--;
    entry->dict = NULL;
}

/* The interpreter holds its lock from here to the end of the change, so that nobody compares versions in between. */
static int before_change(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    Watched *entry = look_up(dict);
    if (!entry) return 0;
    entry->version++;
    dict_changes++;
    if (event == PyDict_EVENT_DEALLOCATED) take_out(entry);
    return 0;
}

static int grow_buckets(void) {
    size_t count = bucket_count ? bucket_count * 2 : 256;
    Watched **grown = PyMem_Calloc(count, sizeof(*grown));
    if (!grown) return -1;
    for (size_t i = 0; i < bucket_count; i++)
        for (Watched *entry = buckets[i], *next; entry; entry = next) {
            Watched **place = &grown[bucket_of(entry->dict, count)];
            next = entry->next;
            entry->next = *place;
            *place = entry;
        }
    PyMem_Free(buckets);
    buckets = grown;
    bucket_count = count;
    return 0;
}

static Watched *watch(PyObject *dict) {
    Watched *entry = look_up(dict);
    if (!entry) {
        if ((watched_count == bucket_count && grow_buckets() < 0) || !(entry = PyMem_Calloc(1, sizeof(*entry)))) {
            PyErr_NoMemory();
            return NULL;
        }
        if (PyDict_Watch(watcher, dict) < 0) {
            PyMem_Free(entry);
            return NULL;
        }
        Watched **place = &buckets[bucket_of(dict, bucket_count)];
        entry->dict = dict;
        entry->next = *place;
        *place = entry;
        watched_count++;
    }
    entry->users++;
    return entry;
}

void dict_version_release(DictVersion *version) {
    Watched *entry = version->watched;
    version->watched = NULL;
    if (!entry || --entry->users) return;
    if (entry->dict) {
        if (PyDict_Unwatch(watcher, entry->dict) < 0) PyErr_Clear(); /* it is a dict, and the watcher is ours: cannot be */
        take_out(entry);
    }
    PyMem_Free(entry);
}

void dict_versions_start(void) {
    if ((watcher = PyDict_AddWatcher(before_change)) < 0) PyErr_Clear(); /* others have taken them all */
}

int dicts_are_watched(void) { return watcher >= 0; }

#else

void dict_version_release(DictVersion *version) {}
void dict_versions_start(void) {}
int dicts_are_watched(void) { return 0; }

#endif

int dict_version(PyObject *dict, DictVersion *version) {
#if PY_VERSION_HEX >= 0x030C0000
    if (watcher >= 0) {
        version->watched = watch(dict);
        version->number = version->watched ? &version->watched->version : NULL;
        return version->watched ? 0 : -1;
    }
#endif
    version->watched = NULL;
#if PY_VERSION_HEX < 0x030E0000
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* the self-test at load decides whether the tag can be trusted */
#endif
    version->number = &((PyDictObject *)dict)->ma_version_tag;
    return 0;
#else
    PyErr_SetString(PyExc_RuntimeError, "this Python's dicts have no version, and all of its dict watchers are taken");
    return -1;
#endif
}
