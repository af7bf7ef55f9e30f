/* What a call moves, as tracer/arm/calls.py has it. Part of recorder.c. */
#pragma once
#include "core.h"

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
