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
#include "calls.h"

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
