"""Process containment (a PID namespace): nothing that is run can outlive this process, however this process ends.

What it starts is in a process namespace: when the first process of that ends, the kernel ends all others, and the first one ends
with us. No signal, session or orphan gets out of it. (pid_namespaces(7); containers are ended in this way, too.)

    this process
      `- between      makes the namespace, ends with this process
           `- first   does the work, ends with that one
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from robust_run.mounts import syscalls
from robust_run.snapshot.errors import SnapshotError

#: What the first process says when it begins; before that nothing was done.
_BEGUN = b"+"
_REPORT_BYTES = 1 << 20


def run(work: Callable[[], Sequence[int]]) -> tuple[int, ...] | None:
    """Do the work, enclosed, and return what it does. None: the kernel does not let us, and nothing was done.

    For a process with one thread that has adopted its orphans. Raises `SnapshotError` if the work is killed.
    """
    reader, writer = os.pipe()
    lifeline, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.close(ours)
        _end_with(lambda: _between(work, writer, lifeline))
    os.close(writer)
    os.close(lifeline)
    try:
        said = _read(reader)
    except BaseException:  # a signal handler ends this process
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        for descriptor in (reader, ours):
            os.close(descriptor)
    if not said:
        return None
    try:
        return msgspec.json.decode(said[len(_BEGUN) :], type=tuple[int, ...])
    except msgspec.MsgspecError as error:
        raise SnapshotError(
            "the process that runs the set-up commands was killed: see dmesg (out of memory?)"
        ) from error


def _between(work: Callable[[], Sequence[int]], writer: int, lifeline: int) -> None:
    _die_with(lifeline)
    syscalls.unshare(syscalls.NEW_PROCESSES)  # the next child is the first of it; raises where that is not allowed
    own_lifeline, ours = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _end_with(lambda: _first(work, writer, own_lifeline))
    os.close(writer)
    os.waitpid(pid, 0)


def _first(work: Callable[[], Sequence[int]], writer: int, lifeline: int) -> None:
    _die_with(lifeline)
    syscalls.unshare(syscalls.NEW_MOUNTS)
    syscalls.make_private()
    flags = syscalls.NO_SETUID | syscalls.NO_DEVICES | syscalls.NO_PROGRAMS
    syscalls.mount("proc", "/proc", source="proc", flags=flags)
    os.write(writer, _BEGUN)
    os.write(writer, msgspec.json.encode(list(work())))


def _die_with(lifeline: int) -> None:
    """Be killed when the parent ends; also if it has ended already, which shows as no process holding the other end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    syscalls.die_with_parent()
    poll = select.poll()
    poll.register(lifeline, 0)
    if any(events & select.POLLHUP for _, events in poll.poll(0)):
        os._exit(1)


def _end_with(body: Callable[[], None]) -> None:
    """Never returns: a child must not run on in the code of its parent."""
    try:
        body()
    except BaseException:
        os._exit(1)
    os._exit(0)


def _read(descriptor: int) -> bytes:
    said = b""
    while len(said) < _REPORT_BYTES:
        data = os.read(descriptor, 65536)
        if not data:
            break
        said += data
    return said
