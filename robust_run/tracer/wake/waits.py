"""Judges what one thread waits for: in what it is, until when, and who can wake it. Pure: from a reading alone.

What is not understood is `unknown`, and so is what was not read: nothing is said to be unable to wake a thread.
"""

from __future__ import annotations

from robust_run.tracer.wake import decode
from robust_run.tracer.wake.syscalls import FUTEX_PRIVATE, BlockingCall, blocking_call
from robust_run.tracer.wake.types import (
    Access,
    DescriptorReading,
    ProcessReading,
    SocketReading,
    ThreadReading,
    ThreadWait,
    Waker,
    WakeReading,
)
from robust_run.tracer.words import duration

#: Of several processes that may wake a thread, so many are named.
NAMED = 3
#: A connection is said to be quiet after so long.
QUIET_S = 2.0
#: Sooner it is not worth a word that a timer ends the wait.
SOON_S = 1.0
_UNKNOWN = Waker(kind="unknown")


def wait_of(reading: WakeReading, process: ProcessReading, thread: ThreadReading) -> ThreadWait:
    """Return what a thread waits for."""
    known = _by_state(process, thread)
    if known is not None:
        return known
    call = blocking_call(process.machine, thread.call)
    if call is None:
        what = f"is in system call {thread.call}" if thread.call is not None else "waits"
        within = f" ({thread.waits_in})" if thread.waits_in else ""
        return ThreadWait(doing=f"{what}{within}", wakers=(_UNKNOWN,))
    until_s, is_exact = decode.limit_s(reading, process, thread)
    is_sleep = _is_sleep(thread, call)
    wakers = () if is_sleep else _wakers(reading, process, thread, call)
    if until_s is not None:
        wakers = (Waker(kind="itself"), *wakers)
    return ThreadWait(
        doing=_sleep_words(reading, until_s, is_exact) if is_sleep else _words(reading, call, wakers, until_s),
        call=call.name,
        wakers=wakers or (_UNKNOWN,),
        until_s=until_s,
        is_exact=is_exact,
    )


def _is_sleep(thread: ThreadReading, call: BlockingCall) -> bool:
    """Whether a call only waits for time to pass. `time.sleep` of Python 3.10 is a select of no descriptors."""
    count = {"select": 0, "poll": 1}.get(call.kind)
    return call.kind == "sleep" or (count is not None and bool(thread.arguments) and not thread.arguments[count])


def _by_state(process: ProcessReading, thread: ThreadReading) -> ThreadWait | None:
    """Return what the state alone tells; None if it sleeps."""
    if process.frozen_by and thread.state not in ("Z", "X"):
        cgroup = process.frozen_by.rpartition("/")[0]
        return ThreadWait(
            doing=f"is frozen by the cgroup {cgroup}", wakers=(Waker(kind="unknown", words="a thaw of it"),)
        )
    if thread.state == "R":
        return ThreadWait(doing="runs", wakers=(Waker(kind="nothing"),))
    if thread.state == "T":
        return ThreadWait(doing="is stopped", wakers=(Waker(kind="unknown", words="a SIGCONT"),))
    if thread.state == "t":
        by = f" by pid {process.tracer}" if process.tracer else ""
        return ThreadWait(doing=f"is held by a debugger{by}", wakers=(Waker(kind="person", pid=process.tracer),))
    if thread.state in ("Z", "X"):
        return ThreadWait(doing="has ended and was not collected", wakers=(Waker(kind="nothing"),))
    return None


def _wakers(
    reading: WakeReading, process: ProcessReading, thread: ThreadReading, call: BlockingCall
) -> tuple[Waker, ...]:
    """Return who may end a call besides its time limit."""
    if call.kind == "futex":
        return _of_futex(process, thread)
    if call.kind == "child":
        return _children(reading, process, thread)
    if call.kind == "lock":
        return _lock_owner(reading, process)
    if call.kind in ("path", "sync"):
        return (Waker(kind="storage", words=_path_words(process, thread, call)),)
    found: list[Waker] = []
    for fd, wanted in decode.awaited_descriptors(process.machine, thread):
        found += of_descriptor(reading, process, fd, wanted)
    return tuple(dict.fromkeys(found))


def _of_futex(process: ProcessReading, thread: ThreadReading) -> tuple[Waker, ...]:
    """Return who may post a lock: another thread, and of shared memory any process that has it mapped too."""
    if not thread.arguments[1] & FUTEX_PRIVATE:
        return (Waker(kind="unknown", words="any process that shares the memory of the lock"),)
    owner = decode.lock_owner(process, thread)
    if owner:
        words = f"a lock that {thread_words(process, owner)} holds"
        return (Waker(kind="thread", pid=process.pid, thread=owner, words=words),)
    others = len(process.threads) + process.hidden_threads - 1
    if not others:
        return (_UNKNOWN,)
    who = "the other thread" if others == 1 else f"one of its {others} other threads"
    return (Waker(kind="thread", pid=process.pid, words=who),)


def thread_words(process: ProcessReading, tid: int) -> str:
    """Name a thread."""
    if tid == process.pid:
        return "the main thread"
    name = next((thread.name for thread in process.threads if thread.tid == tid), "")
    return f"its thread {tid}" + (f" ({_printable(name)})" if name and name != process.threads[0].name else "")


def _children(reading: WakeReading, process: ProcessReading, thread: ThreadReading) -> tuple[Waker, ...]:
    children = decode.awaited_children(process, thread)
    if not children:
        return _of_pidfd(reading, process, thread)
    return tuple(Waker(kind="process", pid=pid, words=_child(reading, pid)) for pid in children)


def _of_pidfd(reading: WakeReading, process: ProcessReading, thread: ThreadReading) -> tuple[Waker, ...]:
    found: list[Waker] = []
    for fd, wanted in decode.awaited_descriptors(process.machine, thread):
        found += of_descriptor(reading, process, fd, wanted)
    return tuple(found)


def _lock_owner(reading: WakeReading, process: ProcessReading) -> tuple[Waker, ...]:
    lock = next((one for one in reading.locks if one.waiter == process.pid), None)
    if lock is None or lock.owner <= 0:
        return (Waker(kind="unknown", words="the holder of the file lock"),)
    return (Waker(kind="process", pid=lock.owner, words=f"the file lock of {_pid_words(lock.owner, lock.command)}"),)


def of_descriptor(reading: WakeReading, process: ProcessReading, fd: int, wanted: Access) -> tuple[Waker, ...]:
    """Return who may make a descriptor ready."""
    one = next((each for each in process.descriptors if each.fd == fd), None)
    if one is None:
        return (_UNKNOWN,)
    if one.process:
        return (Waker(kind="process", pid=one.process, words=_child(reading, one.process)),)
    if one.watched:
        return tuple(waker for each, what in one.watched for waker in of_descriptor(reading, process, each, what))
    if one.kind in ("pipe", "fifo"):
        return _of_pipe(reading, process, one, wanted)
    if one.kind == "socket":
        return (_of_socket(reading, one),)
    if one.kind == "terminal":
        return (Waker(kind="person", words=f"a person at the terminal {one.target}"),)
    if one.kind in ("file", "folder"):
        return (Waker(kind="storage", words=_file_words(one)),)
    return (Waker(kind="unknown", words=one.target),)


def _of_pipe(
    reading: WakeReading, process: ProcessReading, one: DescriptorReading, wanted: Access
) -> tuple[Waker, ...]:
    """Return who holds the other end. None found is no proof: a holder may be hidden."""
    opposite = "r" if wanted == "w" else "w"
    others = [each for each in reading.holders if each.target == one.target and opposite in each.access]
    apart = [each for each in others if each.pid != process.pid]
    if not apart:
        whose = "only itself is seen to hold" if others else "no process seen here holds"
        return (Waker(kind="unknown", words=f"the other end of a pipe that {whose}"),)
    return tuple(Waker(kind="process", pid=each.pid, words=_pid_words(each.pid, each.command)) for each in apart)


def _of_socket(reading: WakeReading, one: DescriptorReading) -> Waker:
    found = next((each for each in reading.sockets if one.target == f"socket:[{each.inode}]"), None)
    if found is None or found.kind == "other":
        return Waker(kind="unknown", words="the other end of a socket")
    if found.is_listening:
        return Waker(kind="unknown", words=f"a client that connects to {found.here}")
    return Waker(kind="service", words=found.there + _quiet(found))


def _quiet(found: SocketReading) -> str:
    if found.quiet_s is None or found.quiet_s < QUIET_S:
        return ""
    if found.received_bytes == 0:
        return ", which has sent nothing yet"
    return f", no byte for {duration(found.quiet_s)}"


def _sleep_words(reading: WakeReading, until_s: float | None, is_exact: bool) -> str:
    """Say how long a thread still sleeps; at most, where the kernel tells the length of its sleep and not when that began."""
    if until_s is None:
        return "sleeps"
    most = "" if is_exact else "at most "
    return f"sleeps for {most}{duration(max(0.0, until_s - reading.at_s))} more"


def _words(reading: WakeReading, call: BlockingCall, wakers: tuple[Waker, ...], until_s: float | None) -> str:
    """Say what a thread waits for, and until when."""
    left_s = max(0.0, until_s - reading.at_s) if until_s is not None else None
    named = [waker.words for waker in wakers if waker.words]
    who = _listed(named)
    most = f", for {duration(left_s)} at most" if left_s is not None and left_s >= SOON_S else ""
    if call.kind == "futex":
        return f"waits for {who}{most}" if who else f"waits for a lock{most}"
    if call.kind == "path":
        return f"is in {call.name} of {who}"
    if not who:
        return f"waits in {call.name}{most}"
    if call.kind == "read" and call.name not in ("accept", "accept4"):
        return f"waits for data from {who}{most}"
    return (
        f"waits until {who} reads{most}"
        if call.kind == "write" and call.name != "connect"
        else f"waits for {who}{most}"
    )


def _listed(named: list[str]) -> str:
    if len(named) <= 1:
        return "".join(named)
    rest = f" or {len(named) - NAMED} more" if len(named) > NAMED else ""
    return " or ".join(named[:NAMED]) + rest


def _child(reading: WakeReading, pid: int) -> str:
    command = next((process.command for process in reading.processes if process.pid == pid), "")
    return f"its child {pid} ({command})" if command else f"its child {pid}"


def _pid_words(pid: int, command: str) -> str:
    return f"pid {pid} ({command})" if command else f"pid {pid}"


def _path_words(process: ProcessReading, thread: ThreadReading, call: BlockingCall) -> str:
    """Name the file that a call is about."""
    if call.kind == "sync":
        fds = [fd for fd, _ in decode.awaited_descriptors(process.machine, thread)]
        return next((_file_words(one) for one in process.descriptors if one.fd in fds), "storage")
    path = decode.pointed(thread, call.subject).split(b"\0")[0].decode("utf-8", errors="replace")
    return _printable(path) if path else "a file"


def _file_words(one: DescriptorReading) -> str:
    kind = f" ({one.file_system})" if one.file_system else ""
    return f"the storage of {_printable(one.target)}{kind}"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)[:120]
