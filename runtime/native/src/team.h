/* How many threads a call runs on where another process uses the cores, too (team.c). */
#ifndef PRECAST_TEAM_H
#define PRECAST_TEAM_H

#include "native.h"

/* Of one graph: whether its calls adapt, and how long they take. */
typedef struct {
    char adapts;
    unsigned char skipped;
    int64_t lasted;  /* nanoseconds, of the last call that was timed */
    int64_t usually; /* about that, of the last few calls on two threads */
} Pace;

typedef struct {
    int64_t begun;
    enum { AS_ALWAYS, TOGETHER, ALONE } mode;
} TeamCall;

/* Around a call, in one thread; the GIL is not needed. */
TeamCall team_begin(Pace *pace);
void team_end(Pace *pace, TeamCall call);

/* adapt_threads(omp_get_max_threads, omp_set_num_threads, GOMP_parallel): addresses; until then nothing adapts. */
PyObject *team_adapt(PyObject *module, PyObject *arguments);
/* Whether long calls of the calling thread run on one thread at the moment. */
PyObject *team_alone(PyObject *module, PyObject *unused);

#endif
