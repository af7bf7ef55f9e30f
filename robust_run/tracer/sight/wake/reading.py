"""Asks the kernel what the threads of a rank wait for, and who holds the other ends. Nothing is stopped or changed.

It follows what it finds: from the rank to children that it waits for, to holders of pipes and owners of locks. It is bounded in
processes, threads, descriptors, and CPU time; what is left out is said, so that nothing is concluded from it.
To read system calls and memory takes the right to trace (an ancestor of the same user has it unless it was taken away).
Reading memory may block on a file system that does not answer: call it from a thread that can be given up.

Sources: proc(5), proc_pid_syscall(5), proc_locks(5).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import msgspec

from robust_run.tracer.sight import processes
from robust_run.tracer.sight.freezer import MOUNTS, frozen_by
from robust_run.tracer.sight.wake import descriptors, memory, tables
from robust_run.tracer.sight.wake.sockets import connections
from robust_run.tracer.wake import decode
from robust_run.tracer.wake.syscalls import blocking_call
from robust_run.tracer.wake.types import (
    Access,
    DescriptorReading,
    HeldLockReading,
    HolderReading,
    LockReading,
    ProcessReading,
    SocketReading,
    ThreadReading,
    WakeReading,
)

#: Of CPU time, for one rank.
BUDGET_S = 0.05
#: Processes that are followed, and threads of each that are looked at.
FOLLOWED = 12
THREADS = 64
#: Processes of this machine that are searched for the other ends of pipes.
SEARCHED = 4096
#: Descriptors of one process that are named.
DESCRIPTORS = 64
#: Of the table of file locks.
LOCKS_BYTES = 1 << 20


class _SpentError(Exception):
    """The budget is used up."""


def read(
    pid: int,
    root: str = "/proc",
    *,
    budget_s: float = BUDGET_S,
    spent_s: Callable[[], float] = time.thread_time,
    monotonic_s: Callable[[], float] = time.monotonic,
    unix_s: Callable[[], float] = time.time,
) -> WakeReading:
    """Return what a process and those that it waits for are in. Never raises: what cannot be read is named in `unread`."""
    reader = _Reader(root, budget_s, spent_s)
    at_s, now_unix_s = monotonic_s(), unix_s()
    try:
        reader.follow(pid)
    except _SpentError:
        reader.unread.append(f"not all was looked at: it took more than {budget_s * 1e3:.0f} ms")
    return WakeReading(
        at_s=at_s,
        unix_s=now_unix_s,
        pid=pid,
        processes=tuple(reader.processes.values()),
        holders=tuple(reader.holders),
        sockets=reader.sockets(pid),
        locks=tuple(reader.locks),
        unread=tuple(reader.unread),
    )


class _Reader:
    """One reading while it is made."""

    def __init__(self, root: str, budget_s: float, spent_s: Callable[[], float]) -> None:
        self._root = root
        self._spent_s = spent_s
        self._end_s = spent_s() + budget_s
        self._holders_of: dict[str, list[HolderReading]] = {}
        self.processes: dict[int, ProcessReading] = {}
        self.holders: list[HolderReading] = []
        self.locks: list[LockReading] = []
        self.unread: list[str] = []

    def follow(self, pid: int) -> None:
        """Read a process, then whom it waits for, and so on."""
        todo = [pid]
        while todo and len(self.processes) < FOLLOWED:
            self._check()
            found = self._process(todo[0]) if todo[0] not in self.processes else None
            if found is not None:
                self.processes[found.pid] = found
                todo += self._awaited_by(found)
            del todo[0]

    def sockets(self, pid: int) -> tuple[SocketReading, ...]:
        """Return the sockets among all descriptors that were read."""
        inodes = {
            int(one.target[8:-1])
            for process in self.processes.values()
            for one in process.descriptors
            if one.kind == "socket" and one.target[8:-1].isdigit()
        }
        return connections(pid, inodes, self._root) if inodes else ()

    def _check(self) -> None:
        if self._spent_s() > self._end_s:
            raise _SpentError

    def _process(self, pid: int) -> ProcessReading | None:
        """Read one process, as far as it is ours to read."""
        look = processes.look(pid, self._root)
        if look is None:
            return None
        machine = tables.machine_of(pid, self._root)
        names = tables.threads_of(pid, self._root)
        threads = [found for tid in names[:THREADS] if (found := self._thread(pid, tid, machine)) is not None]
        if not any(thread.call is not None or thread.state == "R" for thread in threads) and not look.is_gone:
            self.unread.append(f"pid {pid}: its system calls are not ours to read")
        process = ProcessReading(
            pid=pid,
            parent=look.parent,
            start_ticks=look.start_ticks,
            command=processes.command_of(pid, self._root),
            machine=machine,
            same_clocks=tables.clocks_of(pid, self._root) == tables.clocks_of(None, self._root),
            tracer=int(tables.field(f"{self._root}/{pid}/status", "TracerPid") or 0),
            threads=tuple(threads),
            hidden_threads=max(0, len(names) - THREADS),
            descriptors=tuple(self._descriptors(pid, machine, threads)),
            children=tuple(processes.children(pid, self._root)),
            caught_signals=tables.signals_in(tables.field(f"{self._root}/{pid}/status", "SigCgt")),
            frozen_by=frozen_by(pid, self._root, MOUNTS),
        )
        return msgspec.structs.replace(process, held_locks=tuple(self._held_locks(process)))

    def _held_locks(self, process: ProcessReading) -> Iterator[HeldLockReading]:
        """Yield the locks of Python that threads wait for one after the other, from the main thread on."""
        rest = {thread.tid: thread for thread in process.threads}
        tid = process.pid
        while tid in rest:
            thread = rest.pop(tid)
            call = blocking_call(process.machine, thread.call)
            if call is None or call.kind != "futex" or not thread.arguments:
                return
            self._check()
            tid = decode.lock_owner(process, thread)
            if not tid:
                tids = [each.tid for each in process.threads]
                tid = memory.rlock_owner(process.pid, process.machine, thread, tids, self._root)
                if tid:
                    yield HeldLockReading(waiter=thread.tid, word=thread.arguments[0], owner=tid)

    def _thread(self, pid: int, tid: int, machine: str) -> ThreadReading | None:
        self._check()
        task = f"{self._root}/{pid}/task/{tid}"
        stat = tables.text(f"{task}/stat")
        fields = stat.rpartition(")")[2].split()
        if not fields:
            return None
        entered = tables.text(f"{task}/syscall")
        number, arguments = tables.call_in(entered)
        call = blocking_call(machine, number)
        counted = [int(word) for word in tables.text(f"{task}/schedstat").split()[:2] if word.isdigit()]
        status = tables.text(f"{task}/status")
        return ThreadReading(
            tid=tid,
            name=stat.partition("(")[2].rpartition(")")[0][:16],
            state=fields[0][:1],
            call=number,
            arguments=arguments,
            stack=tables.stack_in(entered),
            pointed=memory.pointed(pid, call, arguments, self._root) if call is not None else (),
            waits_in=processes.waits_in(tid, self._root) if tid == pid else tables.text(f"{task}/wchan").strip(),
            run_ns=counted[0] if len(counted) == 2 else 0,
            delay_ns=counted[1] if len(counted) == 2 else 0,
            switches=sum(
                int(line.split()[1])
                for line in status.splitlines()
                if "ctxt_switches:" in line and len(line.split()) == 2
            ),
        )

    def _descriptors(self, pid: int, machine: str, threads: list[ThreadReading]) -> Iterator[DescriptorReading]:
        """Yield the descriptors that threads wait for, those in their epolls too."""
        todo = list(dict.fromkeys(fd for thread in threads for fd, _ in decode.awaited_descriptors(machine, thread)))
        seen: set[int] = set()
        while todo and len(seen) < DESCRIPTORS:
            fd = todo.pop(0)
            if fd in seen:
                continue
            seen.add(fd)
            self._check()
            found = descriptors.describe(pid, fd, self._root)
            if found is not None:
                todo += [each for each, _ in found.watched]
                yield found

    def _awaited_by(self, process: ProcessReading) -> list[int]:
        """Return the processes that a process waits for: children, holders of other ends, owners of locks."""
        found: list[int] = []
        for thread in process.threads:
            found += decode.awaited_children(process, thread)
            call = blocking_call(process.machine, thread.call)
            if call is not None and call.kind == "lock":
                found += self._lock(process.pid)
            for fd, wanted in decode.awaited_descriptors(process.machine, thread):
                found += self._others(process, fd, wanted)
        return found

    def _lock(self, pid: int) -> list[int]:
        owner = tables.lock_owner(tables.text(f"{self._root}/locks", LOCKS_BYTES), pid)
        if owner is None:
            return []
        self.locks.append(
            LockReading(waiter=pid, owner=owner, command=processes.command_of(owner, self._root) if owner > 0 else "")
        )
        return [owner] if owner > 0 else []

    def _others(self, process: ProcessReading, fd: int, wanted: Access) -> list[int]:
        """Return who holds the other end of a pipe, or stands behind a pidfd."""
        one = next((each for each in process.descriptors if each.fd == fd), None)
        if one is None:
            return []
        if one.kind not in ("pipe", "fifo"):
            return (
                [one.process]
                if one.process
                else [pid for each, what in one.watched for pid in self._others(process, each, what)]
            )
        opposite = "r" if wanted == "w" else "w"
        known = self._holders_of.get(one.target)
        if known is None:
            known = self._holders_of[one.target] = list(self._search(one.target))
            self.holders += known
        return [each.pid for each in known if opposite in each.access and each.pid != process.pid]

    def _search(self, target: str) -> Iterator[HolderReading]:
        """Yield all processes of this machine that hold a pipe, those that were read first."""
        try:
            pids = [int(name) for name in os.listdir(self._root) if name.isdigit()][:SEARCHED]
        except OSError:
            pids = []
        for pid in dict.fromkeys([*self.processes, *pids]):
            self._check()
            access = tables.access_to(pid, target, self._root)
            if access:
                yield HolderReading(
                    target=target, pid=pid, command=processes.command_of(pid, self._root), access=access
                )
