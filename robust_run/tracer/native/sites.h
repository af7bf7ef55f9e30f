/* Call sites, as tracer/arm/table.py has them. Part of recorder.c. */
#pragma once
#include "core.h"

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
