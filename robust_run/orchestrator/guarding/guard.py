"""Guard of a job of several roles: the pid in the user's shell. It starts the leader, and starts it again when it was killed.

    guard                          starts processes, collects their ends, passes signals on; decides nothing else
      ├─ leader                    all decisions, queues, connections; started again from its journal
      └─ launcher of each member   with its workers below; told to end (PR_SET_PDEATHSIG) when the guard is gone

How a new leader knows what runs. Launchers are children of the guard, not of the leader: the guard alone collects their ends, so
a pid cannot be another process's before it has said so, and an end between two leaders is not lost. A launcher has a name that is
used once; whether a start that is in the journal was carried out is whether the guard knows the name. What looks like a dead
leader and is none: one that is slow or stopped; only an end that was collected is acted on. If the guard is killed, launchers get
SIGTERM from the kernel and end in good order, and the leader, whose end of the link is closed, stays until they have. If both are
killed, launchers end all the same. A launcher that is killed leaves workers; its own guard's agent, or our sweep at the end,
collects them.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.agent.workers.process_tree import (
    Killing,
    Sweep,
    become_subreaper,
    send,
)
from robust_run.launcher.start.guard import ENDING, Requests
from robust_run.orchestrator.guarding.restarts import Restarts
from robust_run.orchestrator.guarding.spawning import spawn
from robust_run.orchestrator.guarding.words import (
    AllKnown,
    Asked,
    FromLeader,
    Known,
    Lease,
    Link,
    Note,
    Over,
    Send,
    Shown,
    Spawn,
)
from robust_run.signals import signal_name

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FAULT = 70
TURNED = 75
"""Exit code of a process that led the job and leads no more, or that has to begin anew (EX_TEMPFAIL): that is no failure."""
#: Launchers that are told to end because no leader can be kept have so long.
LAST_WORDS_S = 60.0


class Guard:
    """`lead`: what a leader does, with its end of the link; returns its exit code."""

    def __init__(self, lead: Callable[[socket.socket], int]) -> None:
        self._lead = lead
        self._known: dict[str, Known] = {}
        self._by_pid: dict[int, str] = {}
        self._leader = 0
        self._link: Link | None = None
        self._over: int | None = None
        self.has_left = False
        """Once it is over here: whether the job goes on without this node."""
        self._lease_over_s: float | None = None
        """When launchers may not run any more, unless a lease comes; None: there is no such time."""
        self._note = b""
        self._undelivered: list[int] = []
        self._requests = Requests()
        self._restarts = Restarts()
        self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Guard the job to its end, and return its exit code. Raises PlatformError if no process can be made."""
        become_subreaper()
        for number in (*FORWARDED, signal.SIGCHLD):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        try:
            self._start_leader()
            while (code := self._round()) is None:
                pass
        finally:
            signal.set_wakeup_fd(-1)
            left = _sweep()
        for name in left:
            print(f"robust-run: {name} could not be ended; it may hold a device", file=sys.stderr)
        return code

    def _start_leader(self) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            raise PlatformError(
                f"cannot start the process that leads the job: {error}; is the process limit (ulimit -u) reached?"
            ) from error
        if pid == 0:
            self._be_leader(ours, theirs)
        theirs.close()
        self._leader, self._link = pid, Link(ours, FromLeader)
        self._restarts.started(time.monotonic())
        self._tell(AllKnown(launchers=tuple(self._known.values()), note=self._note))
        waiting, self._undelivered = self._undelivered, []
        for number in waiting:
            self._tell_signal(number)

    def _be_leader(self, ours: socket.socket, theirs: socket.socket) -> None:
        """In the child. Never returns."""
        code = FAULT
        try:
            signal.set_wakeup_fd(-1)
            for number in (*FORWARDED, signal.SIGCHLD):
                if signal.getsignal(number) == _nothing:
                    signal.signal(number, signal.SIG_DFL)
            ours.close()
            for descriptor in self._wake:
                os.close(descriptor)
            os.setpgid(0, 0)  # a Ctrl-C reaches the guard alone, which passes it on once
            code = self._lead(theirs)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)

    def _round(self) -> int | None:
        """Wait for something, and take it in; return the exit code once the job is over."""
        poll = select.poll()
        poll.register(self._wake[0], select.POLLIN)
        if self._link is not None:
            poll.register(self._link.socket, select.POLLIN)
        left_s = None if self._lease_over_s is None else max(self._lease_over_s - time.monotonic(), 0.0)
        poll.poll(None if left_s is None else 1000 * left_s + 1)
        with suppress(BlockingIOError):
            for number in os.read(self._wake[0], 4096):
                if number in FORWARDED:
                    self._signalled(number)
        self._listen()
        self._end_without_lease()
        status = self._collect()
        return None if status is None else self._leader_ended(os.waitstatus_to_exitcode(status))

    def _listen(self) -> None:
        """Take in what the leader says, as far as it is there."""
        while self._link is not None and select.select([self._link.socket], [], [], 0)[0]:
            try:
                for message in self._link.receive():
                    self._take(message)
            except (EOFError, OSError):
                self._link.socket.close()
                self._link = None

    def _take(self, message: object) -> None:
        if isinstance(message, Spawn):
            if message.name not in self._known:
                started = self._known[message.name] = spawn(message)
                if started.code is None:
                    self._by_pid[started.pid] = message.name
            self._tell(self._known[message.name])
        elif isinstance(message, Send):
            known = self._known.get(message.name)
            if known is not None and known.code is None:
                send(known.pid, message.number)
        elif isinstance(message, Shown) and message.name in self._known:
            known = self._known[message.name]
            self._known[message.name] = msgspec.structs.replace(known, shown=message.offset)
        elif isinstance(message, Lease):
            self._lease_over_s = message.until_s
        elif isinstance(message, Note):
            self._note = message.data
        elif isinstance(message, Over):
            self._over, self.has_left = message.code, message.has_left

    def _end_without_lease(self) -> None:
        """Kill all launchers once the lease is over: who should have ended them is stopped, or has no CPU."""
        if self._lease_over_s is None or time.monotonic() < self._lease_over_s:
            return
        self._lease_over_s = None
        for pid in self._by_pid:
            send(pid, signal.SIGKILL)
        if self._by_pid:
            print(
                "robust-run: nothing was heard of the leader, nor of what follows it here: members are killed",
                file=sys.stderr,
            )

    def _collect(self) -> int | None:
        """Collect what has ended; return the leader's status once it is among it."""
        leader: int | None = None
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid == self._leader:
                    self._leader, leader = 0, status
                elif pid in self._by_pid:
                    name = self._by_pid.pop(pid)
                    code = os.waitstatus_to_exitcode(status)
                    self._known[name] = msgspec.structs.replace(self._known[name], code=code)
                    self._tell(self._known[name])
        return leader

    def _leader_ended(self, code: int) -> int | None:
        self._listen()  # its last words
        if self._link is not None:
            self._link.socket.close()
            self._link = None
        if self._over is not None:
            return self._over
        if code == TURNED:
            self._start_leader()
            return None
        died = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        if self._restarts.may_start(time.monotonic()):
            print(
                f"robust-run: the leader of the job {died}; it is started again, its members go on",
                file=sys.stderr,
                flush=True,
            )
            self._start_leader()
            return None
        print(
            f"robust-run: the leader of the job {died}, {self._restarts.count} times in a row; the job is ended",
            file=sys.stderr,
        )
        self._end_launchers()
        return 128 - code if code < 0 else (code or FAULT)

    def _end_launchers(self) -> None:
        for pid in self._by_pid:
            send(pid, signal.SIGTERM)
        give_up_at_s = time.monotonic() + LAST_WORDS_S
        while self._by_pid and time.monotonic() < give_up_at_s:
            select.select([self._wake[0]], [], [], 0.5)
            with suppress(BlockingIOError):
                os.read(self._wake[0], 4096)
            self._collect()

    def _signalled(self, number: int) -> None:
        self._tell_signal(number)
        if number in ENDING and self._requests.is_out_of_patience(time.monotonic()):
            self._over = 128 + number
            send(self._leader, signal.SIGKILL)

    def _tell_signal(self, number: int) -> None:
        if not self._tell(Asked(number=number)):
            self._undelivered.append(number)

    def _tell(self, message: Known | AllKnown | Asked) -> bool:
        """Tell the leader; False: there is none now."""
        if self._link is None:
            return False
        try:
            self._link.send(message)
        except OSError:
            return False
        return True


def _nothing(number: int, frame: object) -> None:
    """The wake-up descriptor tells of it."""


def _sweep() -> list[str]:
    """Kill everything below this process; return what could not be killed in time."""
    killing = Killing(Sweep(os.getpid(), spare=lambda: (), owned=lambda: ()), time.monotonic())
    left, more = killing.round(time.monotonic())
    while more:
        time.sleep(0.001)
        left, more = killing.round(time.monotonic())
    return [f"process {status.pid} ({status.name}, state {status.state})" for status in left]
