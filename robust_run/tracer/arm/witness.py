"""What answers for a worker that cannot: stacks on a signal, and torch's own server, which needs no Python to run.

`sitecustomize` loads this file by its path. Python's standard library only.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STACKS_SIGNAL_BELOW_MAX = 3
STACKS_DESCRIPTOR = 977  # far from what a program that closes and opens files gets
LONGEST_SOCKET_PATH = 100
ERRORS_ONLY = 2


def answer_signal(path: str) -> None:
    """Write the stacks of all threads into the file at `path` whenever the signal comes; not if the launcher made none.

    faulthandler needs no lock of the interpreter, so this works in a call that keeps it for ever.
    """
    # The C part of `signal`, which would import enum.
    import _signal  # type: ignore[import-not-found]
    import faulthandler

    number = int(_signal.SIGRTMAX) - STACKS_SIGNAL_BELOW_MAX
    if _signal.getsignal(number) != _signal.SIG_DFL:
        return  # the program's own
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    faulthandler.register(number, file=out_of_the_way(descriptor), all_threads=True, chain=False)


def out_of_the_way(descriptor: int) -> int:
    """Return a higher number for the same open file: a program may count on the low ones."""
    try:
        os.fstat(STACKS_DESCRIPTOR)
    except OSError:
        try:
            os.dup2(descriptor, STACKS_DESCRIPTOR, inheritable=False)
        except OSError:  # more than the limit allows
            return descriptor
        os.close(descriptor)
        return STACKS_DESCRIPTOR
    return descriptor


def serve(path: str, torch: Any, library: Any) -> None:
    """Start torch's worker server on a Unix socket, for as long as the process lives.

    It says so on stderr, as a warning of the C++ log, which is quiet for the moment: its level is a variable of libc10. Where
    that is not to be found, there is no server. The server is never destroyed, since it would say that too.
    """
    import ctypes

    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH or not hasattr(library, "_WorkerServer"):
        return
    try:
        libc10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        level = ctypes.c_int.in_dll(libc10, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return
    before = level.value
    level.value = max(before, ERRORS_ONLY)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        server = library._WorkerServer(path, -1)
    finally:
        level.value = before
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
