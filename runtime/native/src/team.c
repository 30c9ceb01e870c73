/* Two threads, one of which another process keeps from its core: such calls run on one thread.
 *
 * A parallel loop ends when the last of its threads is done. A thread that shares its core with somebody else's is off it for milliseconds
 * at a time, for which the other one waits, loop after loop: a call takes longer than on one thread alone. For how long the two were ready
 * to run and did not run is what Linux counts as run_delay (its Documentation/scheduler/sched-stats.rst); where it does not, all stays as
 * it is. More than two threads are left as they are: one alone would lose the others, and OpenMP ends the surplus threads of a team that
 * becomes smaller.
 *
 * The number of threads changes no result of our own code; a library may round otherwise, as after torch.set_num_threads(1). */
#define _GNU_SOURCE
#include "team.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LONG_NS 500000LL           /* shorter calls are not looked at, but one in LOOKED_AT */
#define LOOKED_AT 64
#define WINDOW_NS 20000000LL       /* of calls, after which it is judged how they fared: that costs some 20 us */
#define MOST_DELAY 0.4             /* of a window, both threads' together, above which one alone is faster (docs/benchmarks.md) */
#define BAD_WINDOWS 3              /* more than good ones, before calls run alone: what passes at once is not worth it */
#define FIRST_PAUSE_NS 100000000LL /* for which calls run alone before two threads are tried again; doubled when these fare badly again */
#define LAST_PAUSE_NS 3200000000LL
#define PAUSE_WINDOWS 8            /* and no shorter than so many times what the trial took */

typedef int (*get_function)(void);
typedef void (*set_function)(int);
typedef void (*parallel_function)(void (*)(void *), void *, unsigned, unsigned);

static get_function get_threads;
static set_function set_threads;
static pid_t process;              /* that these functions are of */
static parallel_function parallel; /* a parallel region of libgomp's, which libiomp5 has as well */

typedef struct {
    int count;
    pid_t ids[2];
} Members;

/* What the calling thread has seen: each has a team of its own. */
static __thread struct {
    int64_t alone_until, together_until, pause, spent, delay;
    Members members;
    int judging, unknown, bad, slower;
} own;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Nanoseconds for which a thread of this process was ready to run and did not run; -1: unknown. */
static int64_t run_delay(pid_t thread) {
    char text[128];
    snprintf(text, sizeof text, "/proc/self/task/%d/schedstat", (int)thread);
    int file = open(text, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    long long ran, waited;
    return sscanf(text, "%lld %lld", &ran, &waited) == 2 ? waited : -1;
}

static int64_t members_delay(void) {
    int64_t one = run_delay(own.members.ids[0]), other = run_delay(own.members.ids[1]);
    return one < 0 || other < 0 ? -1 : one + other;
}

static void sign_in(void *data) {
    Members *members = data;
    int place = __atomic_fetch_add(&members->count, 1, __ATOMIC_RELAXED);
    if (place < 2) members->ids[place] = (pid_t)syscall(SYS_gettid);
}

/* Of both threads together; -1: unknown. OpenMP may have begun the team anew since the last time. A forked child is not looked at: a parallel
 * region that its calls would not have begun may never end there. */
static int64_t team_delay(void) {
    if (getpid() != process) return -1;
    int64_t found = own.members.count == 2 ? members_delay() : -1;
    if (found >= 0) return found;
    own.members.count = 0;
    parallel(sign_in, &own.members, 2, 0);
    return own.members.count == 2 ? members_delay() : -1;
}

/* Whether the window's calls go on as two threads. */
static void judge(int64_t time) {
    int64_t delay = team_delay();
    own.judging = 0;
    own.unknown = delay < 0;
    if (own.unknown || delay - own.delay < MOST_DELAY * own.spent) {
        if (own.bad > 0) own.bad--;
        if (own.bad == 0) own.pause = 0;
        return;
    }
    if (time < own.together_until || ++own.bad < BAD_WINDOWS) return;
    own.bad = BAD_WINDOWS - 1; /* once they ran alone, one more bad window is enough */
    own.slower = 0;
    own.pause = own.pause == 0 ? FIRST_PAUSE_NS : own.pause < LAST_PAUSE_NS ? 2 * own.pause : own.pause;
    own.alone_until = time + (own.pause > PAUSE_WINDOWS * own.spent ? own.pause : PAUSE_WINDOWS * own.spent);
}

TeamCall team_begin(Pace *pace) {
    TeamCall call = {0, AS_ALWAYS};
    if (!pace->adapts || !set_threads || own.unknown) return call;
    if (pace->lasted < LONG_NS && ++pace->skipped % LOOKED_AT) return call;
    if (get_threads() != 2) return call;
    call.begun = now();
    if (call.begun < own.alone_until) {
        set_threads(1);
        call.mode = ALONE;
        return call;
    }
    call.mode = TOGETHER;
    if (!own.judging && pace->lasted >= LONG_NS) {
        own.spent = 0;
        own.delay = team_delay();
        own.judging = 1;
        own.unknown = own.delay < 0;
    }
    return call;
}

/* A call that ran alone. Where that takes longer than it took on two threads, it is left for a while. */
static void weigh(const Pace *pace, int64_t time, int64_t lasted) {
    own.slower = pace->usually && lasted > pace->usually ? own.slower + 1 : 0;
    if (own.slower < 2) return;
    own.alone_until = own.pause = own.bad = own.slower = 0;
    own.together_until = time + LAST_PAUSE_NS;
}

void team_end(Pace *pace, TeamCall call) {
    if (call.mode == AS_ALWAYS) return;
    int64_t time = now();
    if (call.mode == ALONE) {
        if (get_threads() == 1) set_threads(2); /* else the call set another number */
        weigh(pace, time, time - call.begun);
        return;
    }
    pace->lasted = time - call.begun;
    pace->usually = pace->usually ? (pace->usually + pace->lasted) / 2 : pace->lasted;
    if (!own.judging) return;
    own.spent += pace->lasted;
    if (own.spent >= WINDOW_NS) judge(time);
}

PyObject *team_adapt(PyObject *module, PyObject *arguments) {
    unsigned long long get, set, region;
    if (!PyArg_ParseTuple(arguments, "KKK", &get, &set, &region)) return NULL;
    get_threads = (get_function)(uintptr_t)get;
    set_threads = (set_function)(uintptr_t)set;
    parallel = (parallel_function)(uintptr_t)region;
    process = getpid();
    Py_RETURN_NONE;
}

PyObject *team_alone(PyObject *module, PyObject *unused) { return PyBool_FromLong(now() < own.alone_until); }
