"""Asks a process for its stacks with a signal that faulthandler answers into a file: on request, where py-spy may not look.

It needs no right to trace. But faulthandler walks frames that belong to running threads: a process that computes in Python dies
of every hundredth signal (CPython 3.11: SIGSEGV in `dump_traceback`), and a signal ends what no handler may interrupt, as
`signal.pause`. So the signal is sent only

- to a process at rest: no thread of it has run for a while, nor runs now;
- that catches no signal that it may be waiting for;
- that has the handler, without which it would die, and holds the very file open;
- if it is the one that was looked at, and old enough not to be on its way from fork to exec.

Children by fork inherit handler and file, so one process is asked at a time, and what the file grew by is the answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable
from weakref import WeakValueDictionary

from robust_run.tracer.sight import processes
from robust_run.tracer.sight.rest import Rest, at_rest
from robust_run.tracer.stacks.dumps import ends_whole, parse_dump
from robust_run.tracer.types import ThreadStack

#: How long an answer may take.
ANSWER_S = 0.2
POLL_S = 0.002
#: An answer that does not plainly end ends when nothing was added for so long.
STILL_S = 0.04
#: Of one answer.
ANSWER_BYTES = 1024 * 1024
#: The file is emptied before it is longer; writers append.
FILE_BYTES = 4 * 1024 * 1024
#: For so long a process has been at rest before it is asked.
REST_S = 0.2
#: Handled signals that no program waits for: what ends a program and what Python, torch and faulthandler handle in any program.
USUAL = frozenset(
    {
        signal.SIGINT, signal.SIGCHLD, signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, 32, 33,
    }
)  # fmt: skip
#: Between fork and exec a child still shows the handlers of its parent.
CHILD_AGE_S = 1.0


#: Two looks at one rank at a time ask it one after the other.
_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()


class StacksFile:
    """The stacks file of one rank."""

    def __init__(self, path: str, signal_number: int, clock: Callable[[], float], root: str = "/proc") -> None:
        self.path = path
        self.written: dict[int, int] = {}
        """Bytes that processes wrote only because they were asked, by pid."""
        self._signal_number = signal_number
        self._clock = clock
        self._root = root
        self._deaf: set[int] = set()
        """Did not answer: the signal waits for them, another one would only be added to it."""

    async def stacks(self, seen: processes.ProcessLook, rest: Rest | None, is_rank: bool) -> tuple[ThreadStack, ...]:
        """Return the stacks of a process; none if it may not be asked or does not answer in time.

        `rest`: what `at_rest` said of it `REST_S` ago.
        """
        if seen.pid in self._deaf or rest is None:
            return ()
        async with _lock_of(self.path):
            return await self._ask(seen, rest, is_rank)

    async def _ask(self, seen: processes.ProcessLook, rest: Rest, is_rank: bool) -> tuple[ThreadStack, ...]:
        descriptor = self._open()
        if descriptor < 0:
            return ()
        try:
            start = os.fstat(descriptor).st_size
            if not self._send(seen, rest, is_rank):
                return ()
            answer = await self._answer(descriptor, start)
        except OSError:
            return ()
        finally:
            os.close(descriptor)
        self.written[seen.pid] = self.written.get(seen.pid, 0) + len(answer)
        found = parse_dump(answer.decode("utf-8", errors="replace"))
        if not found:
            self._deaf.add(seen.pid)
        return found

    def _open(self) -> int:
        """Return a descriptor of the file, emptied if it has grown too long; -1 if it is missing or no regular file."""
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path, os.O_RDONLY | flags)
        except (OSError, ValueError):
            return -1
        told = os.fstat(descriptor)
        if not stat.S_ISREG(told.st_mode):
            os.close(descriptor)
            return -1
        if told.st_size > FILE_BYTES - ANSWER_BYTES:
            try:
                os.truncate(f"/proc/self/fd/{descriptor}", 0)
            except OSError:
                os.close(descriptor)
                return -1
        return descriptor

    def _send(self, seen: processes.ProcessLook, rest: Rest, is_rank: bool) -> bool:
        """Send the signal if that cannot do harm."""
        if not is_rank and processes.age_s(seen) < CHILD_AGE_S:
            return False
        if not processes.has_open(seen.pid, self.path, self._root):
            return False
        try:
            handle = os.pidfd_open(seen.pid)
        except (OSError, AttributeError):
            return self._may(seen, rest) and _kill(seen.pid, self._signal_number)
        try:
            # From here on the handle means the process that is examined now, also if another gets its pid later.
            if not self._may(seen, rest):
                return False
            signal.pidfd_send_signal(handle, self._signal_number)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def _may(self, seen: processes.ProcessLook, rest: Rest) -> bool:
        """Whether it is still the process that was looked at, has a handler, and is at rest."""
        now = processes.look(seen.pid, self._root)
        if now is None or now.start_ticks != seen.start_ticks:
            return False
        caught = processes.caught(seen.pid, self._root)
        if self._signal_number not in caught or caught - USUAL - {self._signal_number}:
            return False
        return at_rest(seen.pid, self._root) == rest

    async def _answer(self, descriptor: int, start: int) -> bytes:
        """Return what is added to the file from `start` on until it ends or time is up."""
        began = grew = self._clock()
        answer = b""
        while len(answer) < ANSWER_BYTES:
            more = os.pread(descriptor, ANSWER_BYTES - len(answer), start + len(answer))
            now = self._clock()
            if more:
                answer += more
                grew = now
            elif (answer and _is_whole(answer)) or (answer.endswith(b"\n") and now - grew >= STILL_S):
                break
            if now - began >= ANSWER_S:
                break
            await asyncio.sleep(POLL_S)
        return answer


def _is_whole(answer: bytes) -> bool:
    return answer.endswith(b"\n") and ends_whole(answer.decode("utf-8", errors="replace"))


def _lock_of(path: str) -> asyncio.Lock:
    """Return the lock of a stacks file, the same for all who ask through it."""
    lock = _locks.get(path)
    if lock is None:
        lock = _locks[path] = asyncio.Lock()
    return lock


def _kill(pid: int, signal_number: int) -> bool:
    try:
        os.kill(pid, signal_number)
    except OSError:
        return False
    return True
