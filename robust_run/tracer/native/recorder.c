/* Records communication calls as tracer/arm/recorder.py and tracer/arm/hooks.py do, in a tenth of the time.
 *
 * Only what happens again and again is here: a call of a known group from a known place in the program, and its wait. Whatever
 * is seen for the first time, or looks in any way unusual, is left to the recorder in Python before anything was written; what
 * both need to know (groups, call sites, works) lies in Python's own dictionaries, or in Core. So both may take turns, and a
 * test lets both record the same programs and compares the rings.
 *
 * A wrapper calls what it wraps exactly once, with the same arguments, and passes result or exception on. All of this runs with
 * the interpreter's lock held: it gives no process anything to wait for. The layout is robust_run/tracer/files/ring_format.py's.
 */
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
    uint8_t op, state, dtype, pad;
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

/* States of calls, and waits ------------------------------------------------------------------------------------------------ */

static void settle_one(Core *core, int64_t index, int state, uint64_t now)
{
    if (index < 0)
        return;
    Slot *slot = (Slot *)((char *)core->view.buf + SLOTS_AT) + (index & (SLOTS - 1));
    if (slot->number != (uint64_t)index + 1)
        return;
    if (state == WAITING)
        slot->waiting = now;
    else if (state > WAITING)
        slot->done = now;
    __atomic_store_n(&slot->state, (uint8_t)state, __ATOMIC_RELEASE);
}

/* The number of a call, or of the first of a list of them. */
static int first_number(PyObject *linked, int64_t *number)
{
    if (PyList_Check(linked)) {
        if (PyList_GET_SIZE(linked) == 0) {
            PyErr_SetString(PyExc_IndexError, "a work of no calls");
            return -1;
        }
        linked = PyList_GET_ITEM(linked, 0);
    }
    *number = PyLong_AsLongLong(linked);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int settle(Core *core, PyObject *linked, int state, uint64_t now)
{
    int64_t index;
    put(core, LAST_EVENT, now);
    if (state == FAILED)
        put(core, DOUBT, core->cells[DOUBT] | SURVIVED);
    if (!PyList_Check(linked)) {
        if (first_number(linked, &index) < 0)
            return -1;
        settle_one(core, index, state, now);
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(linked); i++) {
        if (first_number(PyList_GET_ITEM(linked, i), &index) < 0)
            return -1;
        settle_one(core, index, state, now);
    }
    return 0;
}

/* Put the oldest wait into the header. */
static void publish_waits(Core *core)
{
    Wait oldest = {0, 0, 0};
    for (Py_ssize_t i = 0; i < core->waiting; i++) {
        Wait *wait = &core->waits[i];
        if (i == 0 || wait->since_ns < oldest.since_ns
            || (wait->since_ns == oldest.since_ns && wait->number < oldest.number))
            oldest = *wait;
    }
    put(core, WAITING_INDEX, (uint64_t)oldest.number);
    put(core, WAITING_SINCE, oldest.since_ns);
}

static Py_ssize_t wait_of(Core *core, unsigned long thread)
{
    for (Py_ssize_t i = 0; i < core->waiting; i++)
        if (core->waits[i].thread == thread)
            return i;
    return -1;
}

static int begin_wait(Core *core, PyObject *linked)
{
    int64_t index;
    uint64_t now = now_ns();
    unsigned long thread = PyThread_get_thread_ident();
    if (first_number(linked, &index) < 0)
        return -1;
    if (wait_of(core, thread) < 0) {
        if (core->waiting == core->room) {
            Py_ssize_t room = core->room ? 2 * core->room : 8;
            Wait *waits = PyMem_Realloc(core->waits, (size_t)room * sizeof(Wait));
            if (waits == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            core->waits = waits;
            core->room = room;
        }
        core->waits[core->waiting++] = (Wait){thread, now, index + 1};
        publish_waits(core);
    }
    return settle(core, linked, WAITING, now);
}

static int end_wait(Core *core, PyObject *linked, int state)
{
    int64_t index;
    uint64_t now = now_ns();
    unsigned long thread = PyThread_get_thread_ident();
    if (first_number(linked, &index) < 0)
        return -1;
    Py_ssize_t at = wait_of(core, thread);
    if (at >= 0 && core->waits[at].number == index + 1) {
        uint64_t since_ns = core->waits[at].since_ns;
        core->waits[at] = core->waits[--core->waiting];
        put(core, WAITING_SINCE, 0);
        if (core->waiting)
            publish_waits(core);
        if (thread == core->main_thread)
            put(core, BLOCKED, core->cells[BLOCKED] + (now - since_ns));
    }
    return settle(core, linked, state, now);
}

static PyObject *core_set_state(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    if (core->recording && nargs == 2) {
        int state = (int)PyLong_AsLong(args[1]);
        if (((state == -1 && PyErr_Occurred()) || settle(core, args[0], state, now_ns()) < 0) && give_up(core) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *core_begin_wait(Core *core, PyObject *linked)
{
    if (core->recording && begin_wait(core, linked) < 0 && give_up(core) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *core_end_wait(Core *core, PyObject *const *args, Py_ssize_t nargs)
{
    if (core->recording && nargs == 2) {
        int state = (int)PyLong_AsLong(args[1]);
        if (((state == -1 && PyErr_Occurred()) || end_wait(core, args[0], state) < 0) && give_up(core) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *core_next_index(Core *core, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(core->next_index++);
}

static PyObject *core_forget(Core *core, PyObject *Py_UNUSED(ignored))
{
    memset(core->site_cache, 0, sizeof core->site_cache);
    memset(core->kind_cache, 0, sizeof core->kind_cache);
    Py_RETURN_NONE;
}

/* Call sites ---------------------------------------------------------------------------------------------------------------- */

static int lasti_of(PyFrameObject *frame)
{
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return frame->f_lasti < 0 ? -1 : frame->f_lasti * 2; /* as the attribute of that name has it; there is no function yet */
#endif
}

/* A number in one of the table's dictionaries; -1: it is not there, or is none. */
static int64_t number_at(PyObject *dictionary, PyObject *key)
{
    PyObject *found = key == NULL ? NULL : PyDict_GetItemWithError(dictionary, key);
    int64_t number = -1;
    if (found != NULL && PyTuple_CheckExact(found) && PyTuple_GET_SIZE(found) == 2)
        found = PyTuple_GET_ITEM(found, 0);
    if (found != NULL && PyLong_Check(found))
        number = PyLong_AsLongLong(found);
    Py_XDECREF(key);
    PyErr_Clear();
    return number;
}

/* Whose code this is; -1: Python is to find out. */
static int kind_of(Core *core, PyCodeObject *code)
{
    CodeKind *cached = &core->kind_cache[((uintptr_t)code >> 4) % KINDS_CACHED];
    if (cached->code == code)
        return cached->kind;
    int64_t kind = number_at(core->kinds, PyLong_FromVoidPtr(code));
    if (kind < USER || kind > MACHINERY)
        return -1;
    *cached = (CodeKind){code, (int)kind};
    return (int)kind;
}

/* The site of a frame of the user's program or of a package; NULL: Python is to enter it into the table. */
static CallSite *cached_site(Core *core, PyCodeObject *code, int lasti)
{
    CallSite *cached = &core->site_cache[(((uintptr_t)code >> 4) * 31 + (unsigned)lasti) % SITES_CACHED];
    if (cached->code == code && cached->lasti == lasti)
        return cached;
    PyObject *id = PyLong_FromVoidPtr(code);
    int64_t site = number_at(core->sites, id == NULL ? NULL : Py_BuildValue("(Ni)", id, lasti));
    if (site <= 0 || site > UINT32_MAX)
        return NULL;
    *cached = (CallSite){code, lasti, (uint32_t)site};
    return cached;
}

/* The site that table.Table.site would return; LEFT_TO_PYTHON where it would have to make one. */
static int64_t site_of(Core *core)
{
    int64_t site = LEFT_TO_PYTHON;
    PyCodeObject *package = NULL; /* the innermost; alive, as its frame is */
    int package_lasti = 0;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    for (int walked = 0;; walked++) {
        if (frame == NULL || walked == FRAMES_WALKED) {
            if (package != NULL) {
                CallSite *cached = cached_site(core, package, package_lasti);
                site = cached == NULL ? LEFT_TO_PYTHON : (int64_t)cached->site;
            } else
                site = 0;
            break;
        }
        PyCodeObject *code = PyFrame_GetCode(frame);
        Py_DECREF(code); /* the frame has it */
        int kind = kind_of(core, code);
        if (kind == USER) {
            CallSite *cached = cached_site(core, code, lasti_of(frame));
            site = cached == NULL ? LEFT_TO_PYTHON : (int64_t)cached->site;
        }
        if (kind < 0 || kind == USER)
            break;
        if (kind == PACKAGE && package == NULL) {
            package = code;
            package_lasti = lasti_of(frame);
        }
        PyFrameObject *above = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = above;
    }
    Py_XDECREF(frame);
    return site;
}

/* What a call moves --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t numel, peer;
    PyObject *dtype; /* ours; NULL: none */
} Moved;

static int integer_of(PyObject *value, int64_t *number)
{
    if (value == NULL || !PyLong_Check(value))
        return -1;
    *number = PyLong_AsLongLong(value);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int numel_of(PyObject *tensor, int64_t *numel)
{
    PyObject *found = PyObject_CallMethodNoArgs(tensor, name_numel);
    int result = integer_of(found, numel);
    Py_XDECREF(found);
    return result;
}

/* calls.size. `dtype` NULL: it is not asked for. -1: Python is to say. */
static int size_of(PyObject *tensors, int64_t *numel, PyObject **dtype, int depth)
{
    int is_list = PyList_CheckExact(tensors), is_tuple = PyTuple_CheckExact(tensors);
    if (!is_list && !is_tuple) {
        if (PyList_Check(tensors) || PyTuple_Check(tensors) || numel_of(tensors, numel) < 0)
            return -1;
        if (dtype != NULL)
            *dtype = PyObject_GetAttr(tensors, name_dtype);
        return dtype != NULL && *dtype == NULL ? -1 : 0;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(tensors);
    int64_t sum = 0;
    if (depth == DEEPEST)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t one;
        if (i >= PySequence_Fast_GET_SIZE(tensors)) /* a tensor's own `numel` may be anything */
            return -1;
        PyObject *tensor = PySequence_Fast_GET_ITEM(tensors, i);
        Py_INCREF(tensor);
        int result = count == 1 && PyTuple_Check(tensor) ? -1 : size_of(tensor, &one, i == 0 ? dtype : NULL, depth + 1);
        Py_DECREF(tensor);
        if (result < 0)
            return -1;
        if (count > TENSORS_ADDED)
            return __builtin_mul_overflow(one, (int64_t)count, numel) ? -1 : 0;
        if (__builtin_add_overflow(sum, one, &sum))
            return -1;
    }
    *numel = sum;
    return 0;
}

/* calls.exchanges_lists. */
static int even_size_of(PyObject *tensors, Moved *moved)
{
    if (!PyList_CheckExact(tensors) || PyList_GET_SIZE(tensors) == 0)
        return -1;
    Py_ssize_t count = PyList_GET_SIZE(tensors);
    int64_t first = 0, one = 0;
    int is_even = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_GET_SIZE(tensors) != count)
            return -1;
        PyObject *tensor = PyList_GET_ITEM(tensors, i);
        Py_INCREF(tensor);
        int result = numel_of(tensor, &one);
        if (i == 0 && result == 0) {
            first = one;
            moved->dtype = PyObject_GetAttr(tensor, name_dtype);
            result = moved->dtype == NULL ? -1 : 0;
        }
        Py_DECREF(tensor);
        if (result < 0)
            return -1;
        is_even = is_even && one == first;
    }
    if (is_even && __builtin_mul_overflow(first, (int64_t)count, &moved->numel))
        return -1;
    return 0;
}

static int root_of(PyObject *given, int64_t *root)
{
    if (PyLong_Check(given))
        return integer_of(given, root);
    PyObject *found = PyObject_GetAttr(given, name_root);
    int result = integer_of(found, root);
    Py_XDECREF(found);
    return result;
}

/* What tracer/arm/calls.py says of these arguments; -1: ask it. `args` begin after the group. */
static int describe(int shape, PyObject *const *args, Py_ssize_t nargs, Moved *moved)
{
    static const char needed[] = {0, 1, 2, 2, 3, 3, 2, 4, 0, 2};
    if (shape == AS_PYTHON_SAYS || nargs < needed[shape])
        return -1;
    switch (shape) {
    case FIRST:
        return size_of(args[0], &moved->numel, &moved->dtype, 0);
    case SECOND:
        return size_of(args[1], &moved->numel, &moved->dtype, 0);
    case FIRST_ROOT:
        return size_of(args[0], &moved->numel, &moved->dtype, 0) < 0 ? -1 : root_of(args[1], &moved->peer);
    case GATHERS:
        return size_of(args[1], &moved->numel, &moved->dtype, 0) < 0 ? -1 : root_of(args[2], &moved->peer);
    case SCATTERS:
        return size_of(args[0], &moved->numel, &moved->dtype, 0) < 0 ? -1 : root_of(args[2], &moved->peer);
    case EXCHANGES_LISTS:
        return even_size_of(args[1], moved);
    case EXCHANGES: {
        int uneven = PyObject_IsTrue(args[2]);
        uneven = uneven == 0 ? PyObject_IsTrue(args[3]) : uneven;
        if (uneven < 0 || size_of(args[1], &moved->numel, &moved->dtype, 0) < 0)
            return -1;
        if (uneven)
            moved->numel = -1;
        return 0;
    }
    case MEETS:
        moved->numel = 0;
        return 0;
    default: /* SENDS */
        return size_of(args[0], &moved->numel, &moved->dtype, 0) < 0 ? -1 : integer_of(args[1], &moved->peer);
    }
}

/* calls.tag_of, of a group whose calls meet by tags. */
static int tag_of(PyObject *const *args, Py_ssize_t nargs, int32_t *tag)
{
    int64_t given = 0;
    if (nargs > 1 && !PyLong_Check(args[nargs - 1]))
        return 0;
    if (nargs < 1 || (nargs > 1 && integer_of(args[nargs - 1], &given) < 0))
        return -1;
    if (given < 0 || given > INT32_MAX)
        return 0;
    if (!PyList_CheckExact(args[0]) || PyList_GET_SIZE(args[0]) == 0)
        return -1;
    PyObject *tensor = PyList_GET_ITEM(args[0], 0);
    Py_INCREF(tensor);
    PyObject *device = PyObject_GetAttr(tensor, name_device);
    Py_DECREF(tensor);
    PyObject *type = device == NULL ? NULL : PyObject_GetAttr(device, name_type);
    int result = type != NULL && PyUnicode_Check(type) ? 0 : -1;
    if (result == 0 && PyUnicode_CompareWithASCIIString(type, "cpu") == 0)
        *tag = (int32_t)given;
    Py_XDECREF(type);
    Py_XDECREF(device);
    return result;
}

/* Calls --------------------------------------------------------------------------------------------------------------------- */

static int attribute_number(PyObject *of, PyObject *name, int64_t *number)
{
    PyObject *found = PyObject_GetAttr(of, name);
    int result = integer_of(found, number);
    Py_XDECREF(found);
    return result;
}

/* GroupEntry.global_rank. */
static int global_rank(PyObject *group, int64_t *peer)
{
    PyObject *ranks = PyObject_GetAttr(group, name_ranks);
    int result = -1;
    if (ranks != NULL && PyTuple_CheckExact(ranks)) {
        if (*peer < PyTuple_GET_SIZE(ranks))
            result = integer_of(PyTuple_GET_ITEM(ranks, *peer), peer);
        else
            *peer = -1, result = 0;
    }
    Py_XDECREF(ranks);
    return result;
}

/* GroupEntry.next_turn. */
static int next_turn(PyObject *group, Wrapper *wrapper, int64_t peer, int32_t tag, int64_t *turn)
{
    PyObject *turns = PyObject_GetAttr(group, name_turns), *next = NULL;
    PyObject *key = Py_BuildValue("(OLi)", wrapper->op_object, (long long)peer, (int)tag);
    int result = -1;
    if (turns == NULL || key == NULL || !PyDict_CheckExact(turns))
        goto end;
    PyObject *before = PyDict_GetItemWithError(turns, key);
    *turn = 0;
    if ((before == NULL && PyErr_Occurred()) || (before != NULL && integer_of(before, turn) < 0))
        goto end;
    if (before != NULL && PyDict_DelItem(turns, key) < 0)
        goto end;
    *turn += 1;
    if (PyDict_GET_SIZE(turns) >= TURNS_KEPT) {
        if (before != NULL && PyDict_SetItem(turns, key, next = PyLong_FromLongLong(*turn - 1)) < 0)
            goto end;
        Py_XDECREF(next);
        next = PyObject_CallMethodObjArgs(group, name_turn, PyTuple_GET_ITEM(key, 0), PyTuple_GET_ITEM(key, 1),
                                          PyTuple_GET_ITEM(key, 2), NULL);
        result = integer_of(next, turn);
        goto end;
    }
    next = PyLong_FromLongLong(*turn);
    result = next == NULL ? -1 : PyDict_SetItem(turns, key, next);
end:
    Py_XDECREF(next);
    Py_XDECREF(key);
    Py_XDECREF(turns);
    return result;
}

static int next_number(PyObject *group, int64_t *number)
{
    PyObject *counter = PyObject_GetAttr(group, name_number);
    PyObject *next = counter == NULL ? NULL : PyObject_CallNoArgs(counter);
    int result = integer_of(next, number);
    Py_XDECREF(next);
    Py_XDECREF(counter);
    return result;
}

/* Hooks.begin of a call of a known group. From the first count on, what fails is no longer left to Python, but the end of the
 * recording: a call must not be counted twice. */
static int64_t begin_known(Core *core, Wrapper *wrapper, PyObject *group, PyObject *const *args, Py_ssize_t nargs,
                           uint64_t now, Moved *moved)
{
    int64_t group_index, dtype, thread = 0, site, seq, has_tags;
    int32_t tag = 0;
    if (describe(wrapper->shape, args + 1, nargs - 1, moved) < 0)
        return to_python();
    PyObject *code = PyDict_GetItemWithError(core->dtype_codes, moved->dtype == NULL ? Py_None : moved->dtype);
    if (integer_of(code, &dtype) < 0 || attribute_number(group, name_index, &group_index) < 0)
        return to_python();
    if (moved->peer >= 0 && global_rank(group, &moved->peer) < 0)
        return to_python();
    if (wrapper->is_p2p) {
        if (attribute_number(group, name_has_tags, &has_tags) < 0)
            return to_python();
        if (has_tags && tag_of(args + 1, nargs - 1, &tag) < 0)
            return to_python();
    }
    unsigned long ident = PyThread_get_thread_ident();
    if (ident != core->main_thread && (thread = number_at(core->threads, PyLong_FromUnsignedLong(ident))) < 0)
        return to_python();
    if ((site = site_of(core)) < 0)
        return to_python();
    if (!core->recording || moved->peer < INT32_MIN || moved->peer > INT32_MAX || thread > 0xFFFF || dtype > 0xFF
        || dtype < 0 || group_index < 0 || group_index > 0xFFFF)
        return to_python();

    int counted = wrapper->is_p2p ? next_turn(group, wrapper, moved->peer, tag, &seq) : next_number(group, &seq);
    if (counted == 0 && (seq < 0 || seq > UINT32_MAX)) {
        PyErr_Format(PyExc_OverflowError, "call %lld of a group", (long long)seq);
        counted = -1;
    }
    if (counted < 0)
        return give_up(core) < 0 ? RAISED : UNKNOWN;
    int64_t index = core->next_index++;
    Slot *slot = (Slot *)((char *)core->view.buf + SLOTS_AT) + (index & (SLOTS - 1));
    __atomic_store_n(&slot->number, 0, __ATOMIC_SEQ_CST); /* nobody reads it until it is whole again */
    slot->entered = now;
    slot->waiting = slot->done = 0;
    slot->numel = moved->numel;
    slot->seq = (uint32_t)seq;
    slot->site = (uint32_t)site;
    slot->peer = (int32_t)moved->peer;
    slot->group = (uint16_t)group_index;
    slot->thread = (uint16_t)thread;
    slot->op = (uint8_t)wrapper->op;
    slot->state = ENTERED;
    slot->dtype = (uint8_t)dtype;
    slot->tag = tag;
    __atomic_store_n(&slot->number, (uint64_t)index + 1, __ATOMIC_RELEASE);
    put(core, HEAD, (uint64_t)index + 1);
    put(core, LAST_EVENT, now);
    return index;
}

static int64_t begin_fast(Core *core, Wrapper *wrapper, PyObject *const *args, Py_ssize_t nargs)
{
    if (!core->recording)
        return LEFT_TO_PYTHON;
    uint64_t now = now_ns();
    PyObject *key = PyLong_FromVoidPtr(args[0]);
    PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(core->known, key);
    Py_XDECREF(key);
    if (known == NULL || !PyTuple_CheckExact(known) || PyTuple_GET_SIZE(known) != 2)
        return to_python();
    PyObject *group = PyTuple_GET_ITEM(known, 1);
    if ((PyObject *)Py_TYPE(group) != core->entry_type)
        return to_python();
    Moved moved = {-1, -1, NULL};
    Py_INCREF(group); /* a tensor's own `numel` may be anything, the end of the group, too */
    int64_t index = begin_known(core, wrapper, group, args, nargs, now, &moved);
    Py_DECREF(group);
    Py_XDECREF(moved.dtype);
    return index;
}

static PyObject *tuple_of(PyObject *const *args, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        Py_INCREF(args[i]);
        PyTuple_SET_ITEM(tuple, i, args[i]);
    }
    return tuple;
}

/* Hooks.begin itself, which handles what it may. */
static int64_t begin_in_python(Core *core, Wrapper *wrapper, PyObject *const *args, Py_ssize_t nargs)
{
    int64_t index;
    PyObject *arguments = tuple_of(args + 1, nargs - 1);
    PyObject *found = arguments == NULL ? NULL
                                        : PyObject_CallFunctionObjArgs(core->begin, args[0], wrapper->op_object,
                                                                       wrapper->describe, arguments, NULL);
    int result = integer_of(found, &index);
    Py_XDECREF(arguments);
    Py_XDECREF(found);
    if (result < 0)
        return PyErr_Occurred() ? RAISED : UNKNOWN;
    return index;
}

/* Hooks.issued. */
static int issued(Core *core, int64_t index, PyObject *group, PyObject *work)
{
    PyObject *number = PyLong_FromLongLong(index);
    int result = number == NULL ? -1 : 0;
    if (result == 0 && (PyDict_GET_SIZE(core->gathered) != 0 || PyDict_Size(core->links) >= LINKS_KEPT)) {
        PyObject *done = PyObject_CallFunctionObjArgs(core->issued, number, group, work, NULL);
        Py_DECREF(number);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0; /* what it could handle is handled */
    }
    if (result == 0 && work != Py_None) {
        PyObject *key = PyLong_FromVoidPtr(work);
        result = key == NULL ? -1 : PyDict_SetItem(core->links, key, number);
        Py_XDECREF(key);
    }
    if (result == 0 && core->recording)
        result = settle(core, number, work == Py_None ? DONE : ISSUED, now_ns());
    Py_XDECREF(number);
    return result < 0 ? give_up(core) : 0;
}

/* The numbers that a work stands for, taken out of the dictionary; -1 as Python's where there are none. */
static PyObject *pop_link(Core *core, PyObject *work)
{
    PyObject *key = PyLong_FromVoidPtr(work);
    PyObject *linked = key == NULL ? NULL : PyDict_GetItemWithError(core->links, key);
    Py_XINCREF(linked);
    if (linked != NULL && PyDict_DelItem(core->links, key) < 0)
        PyErr_Clear();
    Py_XDECREF(key);
    if (linked == NULL && !PyErr_Occurred())
        linked = PyLong_FromLong(UNKNOWN);
    return linked;
}

static PyObject *wrapped_call(PyObject *self, PyObject *const *args, size_t flagged, PyObject *names)
{
    Wrapper *wrapper = (Wrapper *)self;
    Core *core = wrapper->core;
    Py_ssize_t nargs = PyVectorcall_NARGS(flagged);
    if (nargs < 1 || core->begin == NULL)
        return PyObject_Vectorcall(wrapper->original, args, flagged, names);
    int64_t index = begin_fast(core, wrapper, args, nargs);
    if (index == LEFT_TO_PYTHON)
        index = begin_in_python(core, wrapper, args, nargs);
    if (index == RAISED)
        return NULL;
    PyObject *work = PyObject_Vectorcall(wrapper->original, args, flagged, names);
    if (work == NULL) {
        Aside aside = set_aside();
        PyObject *number = PyLong_FromLongLong(index);
        if (core->recording && (number == NULL || settle(core, number, FAILED, now_ns()) < 0))
            (void)give_up(core);
        Py_XDECREF(number);
        put_back(aside);
        return NULL;
    }
    if (index >= 0 && issued(core, index, args[0], work) < 0) {
        Py_DECREF(work);
        return NULL;
    }
    return work;
}

/* limits.Notes.note_wait: a wait that was given arguments. */
static int note_limit(Core *core, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (nargs == 1 && named == 0)
        return 0;
    PyObject *arguments = tuple_of(args + 1, nargs - 1), *by_name = PyDict_New(), *noted = NULL;
    int result = arguments == NULL || by_name == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; result == 0 && i < named; i++)
        result = PyDict_SetItem(by_name, PyTuple_GET_ITEM(names, i), args[nargs + i]);
    if (result == 0)
        noted = PyObject_CallFunctionObjArgs(core->limited, arguments, by_name, NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(by_name);
    Py_XDECREF(noted);
    return noted == NULL ? -1 : 0;
}

static PyObject *wrapped_wait(PyObject *self, PyObject *const *args, size_t flagged, PyObject *names)
{
    Wrapper *wrapper = (Wrapper *)self;
    Core *core = wrapper->core;
    Py_ssize_t nargs = PyVectorcall_NARGS(flagged);
    if (nargs < 1 || core->begin == NULL)
        return PyObject_Vectorcall(wrapper->original, args, flagged, names);
    PyObject *linked = pop_link(core, args[0]);
    if (linked == NULL || note_limit(core, args, nargs, names) < 0) {
        Py_XDECREF(linked);
        return NULL;
    }
    if (core->recording && begin_wait(core, linked) < 0 && give_up(core) < 0) {
        Py_DECREF(linked);
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(wrapper->original, args, flagged, names);
    if (core->recording) {
        Aside aside = set_aside();
        if (end_wait(core, linked, result == NULL ? FAILED : DONE) < 0)
            (void)give_up(core);
        put_back(aside);
    }
    Py_DECREF(linked);
    return result;
}

static PyObject *wrapped_poll(PyObject *self, PyObject *const *args, size_t flagged, PyObject *names)
{
    Wrapper *wrapper = (Wrapper *)self;
    Core *core = wrapper->core;
    PyObject *completed = PyObject_Vectorcall(wrapper->original, args, flagged, names);
    if (completed == NULL || PyVectorcall_NARGS(flagged) < 1 || core->begin == NULL || PyDict_Size(core->links) == 0)
        return completed;
    int is_completed = PyObject_IsTrue(completed);
    PyObject *key = PyLong_FromVoidPtr(args[0]);
    int is_linked = is_completed <= 0 || key == NULL ? 0 : PyDict_Contains(core->links, key);
    PyObject *linked = is_linked == 1 ? pop_link(core, args[0]) : NULL;
    Py_XDECREF(key);
    if (linked != NULL && core->recording && settle(core, linked, DONE, now_ns()) < 0)
        (void)give_up(core);
    Py_XDECREF(linked);
    if (PyErr_Occurred()) {
        Py_DECREF(completed);
        return NULL;
    }
    return completed;
}

/* The types ----------------------------------------------------------------------------------------------------------------- */

static int wrapper_traverse(Wrapper *self, visitproc visit, void *arg)
{
    Py_VISIT(self->attributes);
    Py_VISIT(self->core);
    Py_VISIT(self->original);
    Py_VISIT(self->op_object);
    Py_VISIT(self->describe);
    return 0;
}

static int wrapper_clear(Wrapper *self)
{
    Py_CLEAR(self->attributes);
    return 0; /* what calls need stays until the end */
}

static void wrapper_dealloc(Wrapper *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Py_CLEAR(self->attributes);
    Py_CLEAR(self->core);
    Py_CLEAR(self->original);
    Py_CLEAR(self->op_object);
    Py_CLEAR(self->describe);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *wrapper_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    if (object == NULL || object == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyMethod_New(self, object);
}

static PyObject *wrapper_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyObject_GetAttrString(self, "__qualname__"); /* as functions: copied as themselves, pickled by name */
}

static PyMethodDef wrapper_methods[] = {
    {"__reduce__", wrapper_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef wrapper_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject wrapper_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "robust_run_native.method",
    .tp_basicsize = sizeof(Wrapper),
    .tp_dealloc = (destructor)wrapper_dealloc,
    .tp_vectorcall_offset = offsetof(Wrapper, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_traverse = (traverseproc)wrapper_traverse,
    .tp_clear = (inquiry)wrapper_clear,
    .tp_weaklistoffset = offsetof(Wrapper, weak),
    .tp_methods = wrapper_methods,
    .tp_getset = wrapper_getset,
    .tp_descr_get = wrapper_bind,
    .tp_dictoffset = offsetof(Wrapper, attributes),
};

static PyObject *wrap(Core *core, PyObject *original, vectorcallfunc how)
{
    Wrapper *wrapper = PyObject_GC_New(Wrapper, &wrapper_type);
    if (wrapper == NULL)
        return NULL;
    if (PyInstanceMethod_Check(original)) /* pybind's; called with an instance it is the function in it */
        original = PyInstanceMethod_GET_FUNCTION(original);
    memset((char *)wrapper + sizeof(PyObject), 0, sizeof(Wrapper) - sizeof(PyObject));
    Py_INCREF(core);
    Py_INCREF(original);
    wrapper->vectorcall = how;
    wrapper->core = core;
    wrapper->original = original;
    PyObject_GC_Track(wrapper);
    return (PyObject *)wrapper;
}

static PyObject *core_call(Core *core, PyObject *args)
{
    PyObject *original, *op, *description;
    int shape, is_p2p;
    if (!PyArg_ParseTuple(args, "OO!Oip:call", &original, &PyLong_Type, &op, &description, &shape, &is_p2p))
        return NULL;
    long code = PyLong_AsLong(op);
    if (code < 0 || code > 0xFF || shape < AS_PYTHON_SAYS || shape > SENDS) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "operation %ld, shape %d", code, shape);
        return NULL;
    }
    Wrapper *wrapper = (Wrapper *)wrap(core, original, wrapped_call);
    if (wrapper != NULL) {
        Py_INCREF(op);
        Py_INCREF(description);
        wrapper->op_object = op;
        wrapper->describe = description;
        wrapper->op = (int)code;
        wrapper->shape = shape;
        wrapper->is_p2p = is_p2p;
    }
    return (PyObject *)wrapper;
}

static PyObject *core_wait(Core *core, PyObject *original)
{
    return wrap(core, original, wrapped_wait);
}

static PyObject *core_poll(Core *core, PyObject *original)
{
    return wrap(core, original, wrapped_poll);
}

/* Take a reference in place of another. */
static void take(PyObject **place, PyObject *value)
{
    PyObject *before = *place;
    Py_INCREF(value);
    *place = value;
    Py_XDECREF(before);
}

static PyObject *core_join(Core *core, PyObject *args)
{
    PyObject *known, *links, *gathered, *codes, *begin, *issued_, *limited;
    if (!PyArg_ParseTuple(args, "O!O!O!O!OOO:join", &PyDict_Type, &known, &PyDict_Type, &links, &PyDict_Type, &gathered,
                          &PyDict_Type, &codes, &begin, &issued_, &limited))
        return NULL;
    take(&core->known, known);
    take(&core->links, links);
    take(&core->gathered, gathered);
    take(&core->dtype_codes, codes);
    take(&core->issued, issued_);
    take(&core->limited, limited);
    take(&core->begin, begin);
    Py_RETURN_NONE;
}

static PyMethodDef core_methods[] = {
    {"set_state", (PyCFunction)(void (*)(void))core_set_state, METH_FASTCALL, "As Ring.set_state."},
    {"begin_wait", (PyCFunction)core_begin_wait, METH_O, "As Ring.begin_wait."},
    {"end_wait", (PyCFunction)(void (*)(void))core_end_wait, METH_FASTCALL, "As Ring.end_wait."},
    {"next_index", (PyCFunction)core_next_index, METH_NOARGS, "As Ring.next_index."},
    {"forget", (PyCFunction)core_forget, METH_NOARGS, "Forget what code was seen: the table holds on to it no more."},
    {"join", (PyCFunction)core_join, METH_VARARGS, "Share what the hooks know."},
    {"call", (PyCFunction)core_call, METH_VARARGS, "As Hooks.call."},
    {"wait", (PyCFunction)core_wait, METH_O, "As Hooks.wait."},
    {"poll", (PyCFunction)core_poll, METH_O, "As Hooks.is_completed."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef core_members[] = {
    {"recording", T_BOOL, offsetof(Core, recording), 0, "As Ring.recording."},
    {NULL, 0, 0, 0, NULL},
};

static int core_init(Core *core, PyObject *args, PyObject *Py_UNUSED(named))
{
    PyObject *octets, *stop, *threads, *kinds, *sites, *entry_type;
    if (core->view.obj != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a core is made once");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "OkOO!O!O!O!:Core", &octets, &core->main_thread, &stop, &PyDict_Type, &threads,
                          &PyDict_Type, &kinds, &PyDict_Type, &sites, &PyType_Type, &entry_type))
        return -1;
    if (PyObject_GetBuffer(octets, &core->view, PyBUF_WRITABLE) < 0)
        return -1;
    if (core->view.len < RING_BYTES || (uintptr_t)core->view.buf % 8 != 0) {
        PyErr_Format(PyExc_ValueError, "a ring of %zd bytes", core->view.len);
        return -1;
    }
    core->cells = core->view.buf;
    take(&core->stop, stop);
    take(&core->threads, threads);
    take(&core->kinds, kinds);
    take(&core->sites, sites);
    take(&core->entry_type, entry_type);
    return 0;
}

static int core_traverse(Core *self, visitproc visit, void *arg)
{
    Py_VISIT(self->stop);
    Py_VISIT(self->threads);
    Py_VISIT(self->kinds);
    Py_VISIT(self->sites);
    Py_VISIT(self->entry_type);
    Py_VISIT(self->known);
    Py_VISIT(self->links);
    Py_VISIT(self->gathered);
    Py_VISIT(self->dtype_codes);
    Py_VISIT(self->begin);
    Py_VISIT(self->issued);
    Py_VISIT(self->limited);
    return 0;
}

/* `begin` first: wrappers that outlive it call what they wrap, and nothing else. */
static int core_clear(Core *self)
{
    self->recording = 0;
    Py_CLEAR(self->begin);
    Py_CLEAR(self->stop);
    return 0;
}

static void core_dealloc(Core *self)
{
    PyObject_GC_UnTrack(self);
    (void)core_clear(self);
    Py_CLEAR(self->threads);
    Py_CLEAR(self->kinds);
    Py_CLEAR(self->sites);
    Py_CLEAR(self->entry_type);
    Py_CLEAR(self->known);
    Py_CLEAR(self->links);
    Py_CLEAR(self->gathered);
    Py_CLEAR(self->dtype_codes);
    Py_CLEAR(self->issued);
    Py_CLEAR(self->limited);
    if (self->view.obj != NULL)
        PyBuffer_Release(&self->view);
    PyMem_Free(self->waits);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject core_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "robust_run_native.Core",
    .tp_basicsize = sizeof(Core),
    .tp_dealloc = (destructor)core_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "What the wrappers of a process share: its ring, its waits, and what Python's half knows.",
    .tp_traverse = (traverseproc)core_traverse,
    .tp_clear = (inquiry)core_clear,
    .tp_methods = core_methods,
    .tp_members = core_members,
    .tp_init = (initproc)core_init,
    .tp_new = PyType_GenericNew,
};

/* The module ---------------------------------------------------------------------------------------------------------------- */

static int execute(PyObject *module)
{
    static const struct {
        PyObject **place;
        const char *name;
    } names[] = {
        {&name_numel, "numel"}, {&name_dtype, "dtype"}, {&name_root, "rootRank"}, {&name_index, "index"},
        {&name_number, "next_number"}, {&name_ranks, "ranks"}, {&name_turns, "turns"}, {&name_turn, "next_turn"},
        {&name_has_tags, "has_tags"}, {&name_device, "device"}, {&name_type, "type"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (*names[i].place == NULL && (*names[i].place = PyUnicode_InternFromString(names[i].name)) == NULL)
            return -1;
    if (PyType_Ready(&wrapper_type) < 0 || PyType_Ready(&core_type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Core", (PyObject *)&core_type);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "robust_run_native",
    .m_doc = "The recorder's fast half.",
    .m_slots = slots,
};

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit_robust_run_native(void)
{
    return PyModuleDef_Init(&definition);
}
