/* The wrappers of calls, waits and polls, as tracer/arm/hooks.py has them. Part of recorder.c. */
#pragma once
#include "moves.h"
#include "sites.h"
#include "waits.h"

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
    if (counted == 0 && seq < 0) {
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
    slot->seq_high = (uint8_t)(seq >> 32);
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
