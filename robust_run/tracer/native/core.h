/* What all parts share: the slot, the state of a process, and what becomes of mistakes of ours. Part of recorder.c. */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif

#if PY_VERSION_HEX < 0x030A0000
#error "Python 3.10 is the oldest"
#endif
#ifdef Py_GIL_DISABLED
#error "without the interpreter's lock two threads would write over each other"
#endif

enum { HEAD = 5, LAST_EVENT = 7, BLOCKED = 8, WAITING_SINCE = 9, WAITING_INDEX = 10, DOUBT = 13 };
enum { ENTERED, ISSUED, WAITING, DONE, FAILED };
enum { SLOTS = 4096, SLOTS_AT = 4096, RING_BYTES = SLOTS_AT + SLOTS * 64, SURVIVED = 4 };
enum { USER, PACKAGE, MACHINERY };
enum { LINKS_KEPT = 4096, TURNS_KEPT = 4096, FRAMES_WALKED = 11, TENSORS_ADDED = 16, DEEPEST = 4 };
enum { KINDS_CACHED = 512, SITES_CACHED = 1024 };
/* What the functions of tracer/arm/calls.py find among the arguments; AS_PYTHON_SAYS: ask them. */
enum { AS_PYTHON_SAYS, FIRST, SECOND, FIRST_ROOT, GATHERS, SCATTERS, EXCHANGES_LISTS, EXCHANGES, MEETS, SENDS };
/* Instead of the number of a call. */
enum { UNKNOWN = -1, LEFT_TO_PYTHON = -2, RAISED = -3 };

typedef struct {
    uint64_t entered, waiting, done;
    int64_t numel;
    uint32_t seq, site;
    int32_t peer;
    uint16_t group, thread;
    uint8_t op, state, dtype, seq_high;
    int32_t tag;
    uint64_t number; /* index + 1 */
} Slot;
_Static_assert(sizeof(Slot) == 64 && offsetof(Slot, state) == 49 && offsetof(Slot, number) == 56, "ring_format.py's");

typedef struct {
    unsigned long thread;
    uint64_t since_ns;
    int64_t number;
} Wait;

typedef struct {
    PyCodeObject *code; /* lives as long as the table's `kinds` are not cleared, which calls `forget` */
    int lasti;
    uint32_t site;
} CallSite;

typedef struct {
    PyCodeObject *code;
    int kind;
} CodeKind;

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    uint64_t *cells;
    char recording;
    int64_t next_index;
    unsigned long main_thread;
    Wait *waits; /* the outermost of each thread */
    Py_ssize_t waiting, room;
    PyObject *stop;                       /* Ring.stop */
    PyObject *threads, *kinds, *sites;    /* dictionaries of the ring and of its table */
    PyObject *entry_type;                 /* table.GroupEntry */
    PyObject *known, *links, *gathered, *dtype_codes; /* dictionaries of the hooks */
    PyObject *begin, *issued, *limited;   /* what the hooks do where it is left to Python */
    CallSite site_cache[SITES_CACHED];
    CodeKind kind_cache[KINDS_CACHED];
} Core;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *attributes, *weak;
    Core *core;
    PyObject *original, *op_object, *describe;
    int op, shape, is_p2p;
} Wrapper;

static PyObject *name_numel, *name_dtype, *name_root, *name_index, *name_number, *name_ranks, *name_turns, *name_turn,
    *name_has_tags, *name_device, *name_type;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void put(Core *core, int cell, uint64_t value)
{
    __atomic_store_n(&core->cells[cell], value, __ATOMIC_RELEASE);
}

/* Mistakes of ours --------------------------------------------------------------------------------------------------------- */

/* Take the exception that is set; at most one is. */
static PyObject *take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL)
        return NULL;
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Set the program's own exception aside while we take notes, and put it back as it was. */
typedef struct {
    PyObject *type, *value, *traceback;
} Aside;

static Aside set_aside(void)
{
    Aside aside = {NULL, NULL, NULL};
#if PY_VERSION_HEX >= 0x030C0000
    aside.value = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&aside.type, &aside.value, &aside.traceback);
#endif
    return aside;
}

static void put_back(Aside aside)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(aside.value);
#else
    PyErr_Restore(aside.type, aside.value, aside.traceback);
#endif
}

/* What was raised is a mistake of ours: end the recording. What is no Exception is the program's. */
static int give_up(Core *core)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "what was counted is no number");
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyObject *error = take_exception();
    core->recording = 0;
    PyObject *result = core->stop == NULL ? NULL : PyObject_CallFunctionObjArgs(core->stop, error, NULL);
    Py_XDECREF(error);
    Py_XDECREF(result);
    if (result == NULL)
        PyErr_Clear();
    return 0;
}

/* Something is not as it usually is: what was raised, if anything was, Python's recorder will find too. */
static int64_t to_python(void)
{
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return RAISED;
        PyErr_Clear();
    }
    return LEFT_TO_PYTHON;
}
