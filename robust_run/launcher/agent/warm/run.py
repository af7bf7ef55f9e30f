"""Runs the user's program in this interpreter, which was started for another one, or for none.

The process must still be before its program: inside `sitecustomize` (see `start_up`). There it is enough to give the
interpreter the worker's command line and to return; it then runs the program as `python -u ...` does, because it is that.
Tracebacks, exit codes, `__main__`, `sys.path[0]`, atexit and the depth of the stack are Python's own.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

from robust_run.launcher.agent.warm.become import CannotBecome
from robust_run.launcher.agent.warm.identity import Identity

#: More than PyConfig takes in any Python so far (about 500 bytes in 3.13).
PYCONFIG_BYTES = 1 << 14


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was removed


_STARTED_IN = _folder()


def run(identity: Identity) -> None:
    """Prepare the interpreter to run the identity's program, which begins when all our callers have returned.

    Call it after `become`, in the main thread. Raises CannotBecome if the interpreter is past its start, or does not take the
    command line.
    """
    if not _before_program():
        raise CannotBecome("this interpreter runs a program already; start the warm process through start_environment")
    argv = [sys.orig_argv[0], "-u", *identity.argv]
    if sys.orig_argv != argv or identity.cwd != _STARTED_IN:  # the script's path is complete since the start
        _change_command_line(argv)
    # What the warm process imported is not looked at for garbage, but is once the program has ended, after all that it has
    # registered itself: a file that one of those modules has opened since and that nobody closed is written by that alone.
    atexit.register(gc.unfreeze)
    _forget_ourselves()


def _before_program() -> bool:
    """Whether the outermost frame is the importer's, which imports `site` at the interpreter's start."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__") in ("_frozen_importlib", "importlib._bootstrap")


def _change_command_line(argv: Sequence[str]) -> None:
    """Let the interpreter read its command line again, from `argv`. Raises CannotBecome.

    Initialising an initialised Python is allowed, and makes it take on the new configuration; the rest of its state stays.
    """
    import ctypes

    class PyStatus(ctypes.Structure):
        _fields_ = (
            ("type", ctypes.c_int),
            ("function", ctypes.c_char_p),
            ("message", ctypes.c_char_p),
            ("exit_code", ctypes.c_int),
        )

    api = ctypes.pythonapi
    api.PyConfig_InitPythonConfig.restype = api.PyConfig_Clear.restype = None
    api.PyConfig_SetBytesArgv.restype = api.Py_InitializeFromConfig.restype = PyStatus
    config = ctypes.create_string_buffer(PYCONFIG_BYTES)
    words = [os.fsencode(word) for word in argv]
    api.PyConfig_InitPythonConfig(config)
    kept, path = dict(vars(sys)), list(sys.path)
    try:
        array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        status = api.PyConfig_SetBytesArgv(config, ctypes.c_ssize_t(len(words)), array)
        if status.type == 0:
            status = api.Py_InitializeFromConfig(config)
    finally:
        api.PyConfig_Clear(config)
    if status.type != 0 or sys.orig_argv != list(argv):
        reason = (status.message or b"no reason given").decode(errors="replace")
        raise CannotBecome(f"the interpreter does not take the command line {' '.join(argv)!r}: {reason}")
    _restore(kept, path)


def _restore(kept: dict[str, object], path: list[str]) -> None:
    """Put back what `site` and the preloaded modules had made of `sys`: all but the command line."""
    command_line = {"argv": sys.argv, "orig_argv": sys.orig_argv}
    for name in set(vars(sys)) - set(kept):
        delattr(sys, name)
    vars(sys).update({**kept, **command_line})
    sys.path[:] = path


def _forget_ourselves() -> None:
    """Leave no module of ours: the program may import robust_run itself, and the one on its own path."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "robust_run"]:
        del sys.modules[name]
