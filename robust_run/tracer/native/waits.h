/* States of calls, and waits, as tracer/arm/recorder.py has them. Part of recorder.c. */
#pragma once
#include "core.h"

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
