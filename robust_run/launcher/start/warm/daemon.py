"""A per-user warm process: imports once, and then forks the agent of every job that fits, for as long as it is wanted.

Like a job's own warm process it is an interpreter that stops before its program (see `start_up`); `main` returns only in a
worker. It has one thread, always. Agents are its children; a job whose agent was killed leaves orphans, which are ours, since
we are a subreaper, and are ended. A job does not need us once its agent runs: if we are killed, it goes on.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from robust_run.launcher.agent.warm.huge_pages import collapse
from robust_run.launcher.agent.warm.messages import LARGEST_BYTES, WarmStartRefused, send
from robust_run.launcher.agent.warm.process import WarmProcess
from robust_run.launcher.agent.workers.process_tree import (
    PR_SET_PDEATHSIG,
    become_subreaper,
    prctl,
)
from robust_run.launcher.start.warm import handover, origins, registry, surroundings
from robust_run.launcher.start.warm.job_table import JobTable, say
from robust_run.launcher.start.warm.key import PROTOCOL, Announcement
from robust_run.launcher.start.warm.lease import (
    AskWarmStatus,
    Listening,
    TakeJob,
    ToWarmProcess,
    WarmConfig,
    WarmRefusal,
    WarmStatus,
)
from robust_run.version import __version__

#: All that an agent imports in time: it is imported here, once, and not in every agent.
OF_AGENTS = (
    "asyncio",
    "robust_run.health.output",
    "robust_run.launcher.controller.comparing.pacing",
    "robust_run.launcher.controller.parts",
    "robust_run.launcher.agent.ending",
    "robust_run.launcher.agent.parts",
    "robust_run.launcher.agent.warm.host",
    "robust_run.launcher.agent.warm.known",
    "robust_run.launcher.agent.watching.pacing",
    "robust_run.launcher.agent.watching.rank_watch",
    "robust_run.launcher.agent.watching.ring_files",
)

BACKLOG = 64

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Daemon:
    """Listens, and forks an agent for each job; its job table buries them."""

    def __init__(self, config: WarmConfig, modules: tuple[str, ...], lock: int) -> None:
        self._config = config
        self._modules = modules
        self._lock = lock
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking: dict[int, socket.socket] = {}
        """Connections that have not said what they want, by descriptor."""
        self._jobs = JobTable()
        self._retired = False
        self._stops = 0
        """How often we were told to end: the first time running jobs are waited for."""
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._idle_work: Iterator[object] = collapse()
        """What is done, step by step, while nothing is asked for: each fork takes less time then."""

    def open(self) -> None:
        """Listen, and be announced. Raises OSError."""
        config = self._config
        path = registry.path_of(config.folder, config.name, "sock")
        if os.path.lexists(path):
            os.unlink(path)  # of one that was killed: the lock is ours
        umask = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(umask)
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in STOPPING:
            signal.signal(number, self._on_stop)
        announcement = Announcement(
            protocol=PROTOCOL,
            version=__version__,
            pid=os.getpid(),
            fingerprint=msgspec.structs.replace(config.fingerprint, preload=self._modules),
            wanted=config.fingerprint.preload,
            started_unix_s=time.time(),
            idle_limit_s=config.idle_limit_s,
            folders=origins.package_folders(),
            files=origins.own_files(),
        )
        os.pwrite(self._lock, msgspec.json.encode(announcement), 0)

    def _on_stop(self, number: int, frame: object) -> None:  # noqa: ARG002 - Python's signature
        self._stops += 1

    def _retire(self) -> None:
        """Take no more jobs, and be found no more."""
        self._retired = True
        for ending in ("sock", "lock"):
            _unlink(registry.path_of(self._config.folder, self._config.name, ending))
        self._listener.close()
        os.close(self._lock)

    def serve(self) -> None:
        """Do what is asked for. Returns in workers only; ends this process when it is no longer wanted."""
        while True:
            self._end_if_unwanted()
            for descriptor in self._wait():
                if descriptor == self._woken:
                    os.read(self._woken, 4096)
                elif not self._retired and descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._asking and self._answer(self._asking.pop(descriptor)):
                    return
            self._jobs.bury()

    def _end_if_unwanted(self) -> None:
        limit_s = self._config.idle_limit_s
        if not self._retired and self._stops:
            say("is stopped")
            self._retire()
        elif not self._retired and limit_s is not None and self._jobs.idle_for_s() >= limit_s:
            say(f"had no job for {limit_s:g} s, which is its limit; ends")
            self._retire()
        if self._stops > 1 or (self._retired and not self._jobs):
            os._exit(0)

    def _wait(self) -> list[int]:
        poll = select.poll()
        listening = () if self._retired else (self._listener.fileno(),)
        for descriptor in (self._woken, *listening, *self._asking):
            poll.register(descriptor, select.POLLIN)
        limit_s = self._config.idle_limit_s
        forever = limit_s is None or self._jobs or self._retired
        left_s = None if forever or limit_s is None else max(limit_s - self._jobs.idle_for_s(), 0.0)
        ready = poll.poll(0)
        # Not while a job runs, which shares this memory: what is moved is no longer shared, and there twice.
        while not (ready or self._jobs) and next(self._idle_work, None):
            ready = poll.poll(0)
        # poll takes no more than some weeks; waking up now and then does no harm.
        ready = ready or poll.poll(None if left_s is None else min(left_s, 86400.0) * 1000 + 1)
        return [descriptor for descriptor, _ in ready]

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        _, user = surroundings.peer(connection)
        if user != os.getuid():
            say(f"user {user} was refused")
            connection.close()
            return
        connection.setblocking(False)
        self._asking[connection.fileno()] = connection

    # --- what is asked for ---

    def _answer(self, connection: socket.socket) -> bool:
        """Read what a connection wants and do it. True in a worker."""
        try:
            data = connection.recv(LARGEST_BYTES)
            wish = msgspec.json.decode(data, type=ToWarmProcess) if data else None
            if isinstance(wish, AskWarmStatus):
                send(connection, self._status(connection))
            elif isinstance(wish, TakeJob) and (reason := self._why_not(wish, connection)):
                send(connection, WarmRefusal(reason))
            elif isinstance(wish, TakeJob):
                return self._begin(wish, connection)
        except (OSError, msgspec.MsgspecError) as error:
            say(f"a connection was dropped: {error}")
        connection.close()
        return False

    def _status(self, connection: socket.socket) -> WarmStatus:
        return WarmStatus(
            idle_s=self._jobs.idle_for_s(),
            running=self._jobs.run_ids(),
            served=self._jobs.served,
            differs=surroundings.why_not(connection),
        )

    def _why_not(self, job: TakeJob, connection: socket.socket) -> str:
        if (job.protocol, job.version) != (PROTOCOL, __version__):
            return f"it is of robust-run {__version__}, this is {job.version}"
        if self._retired:
            return "it takes no more jobs"
        if len(os.listdir("/proc/self/task")) != 1:
            return "it has more than one thread"
        return surroundings.why_not(connection)

    def _begin(self, job: TakeJob, connection: socket.socket) -> bool:
        """Fork an agent. True in a worker. Raises OSError."""
        connection.setblocking(True)  # it is one for both of us
        guard_pid, _ = surroundings.peer(connection)
        daemon_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._let_go(connection)
                handover.become_agent(
                    handover.Taken(
                        job=job,
                        connection=connection.detach(),
                        guard_pid=guard_pid,
                        daemon_pid=daemon_pid,
                        modules=self._modules,
                    )
                )
            except BaseException as error:
                handover.fail(error)
            return True
        self._jobs.add(pid, job.spec.run_id, connection)
        say(f"job {job.spec.run_id}: agent {pid} for process {guard_pid}")
        return False

    def _let_go(self, connection: socket.socket) -> None:
        """Close, in a fork, all that is the daemon's."""
        signal.set_wakeup_fd(-1)
        for sock in (self._listener, *self._asking.values(), *self._jobs.connections()):
            if sock is not connection:
                sock.close()
        for descriptor in (self._woken, self._waker) if self._retired else (self._woken, self._waker, self._lock):
            os.close(descriptor)


def _unlink(path: str) -> None:
    with suppress(OSError):  # somebody tidied up before us
        os.unlink(path)


def main(descriptor: str) -> None:
    """Be a warm process, as the first message on an inherited descriptor says. Called by `start/sitecustomize.py`."""
    control = socket.socket(fileno=int(descriptor))
    os.set_inheritable(control.fileno(), False)
    config = msgspec.json.decode(control.recv(LARGEST_BYTES), type=WarmConfig)
    if config.ends_with_parent:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    lock = registry.lock(registry.path_of(config.folder, config.name, "lock"))
    if lock is None:
        send(control, WarmStartRefused("another one was started at the same time"))
        os._exit(0)
    os.ftruncate(lock, 0)
    become_subreaper()
    for name in OF_AGENTS:
        importlib.import_module(name)
    WarmProcess(control, 0, niceness=0).preload(config.fingerprint.preload)  # somebody has typed it, and waits
    modules = tuple(name for name in config.fingerprint.preload if name in sys.modules)
    daemon = Daemon(config, modules, lock)
    daemon.open()
    send(control, Listening())
    control.close()
    say(f"listens; has imported {', '.join(modules)}")
    daemon.serve()
