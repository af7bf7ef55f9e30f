"""Table of the jobs that a warm process has forked agents for: which run, and what is done when an agent ends."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress

from robust_run.launcher.agent.warm.messages import send
from robust_run.launcher.agent.workers.process_tree import Killing, Sweep, children
from robust_run.launcher.start.warm import handover
from robust_run.launcher.start.warm.lease import Buried


class DaemonJob:
    """One job that runs."""

    def __init__(self, run_id: str, connection: socket.socket) -> None:
        self.run_id = run_id
        self.connection = connection


class JobTable:
    """The agents that live, and how many there were."""

    def __init__(self) -> None:
        self._jobs: dict[int, DaemonJob] = {}
        """By the pid of the agent."""
        self.served = 0
        """Jobs that were begun, those that run included."""
        self._idle_since_s = time.monotonic()

    def __bool__(self) -> bool:
        """Whether any job runs."""
        return bool(self._jobs)

    def add(self, pid: int, run_id: str, connection: socket.socket) -> None:
        """Note that a job begins: the agent's pid, and the connection to its guard."""
        self._jobs[pid] = DaemonJob(run_id, connection)
        self.served += 1

    def idle_for_s(self) -> float:
        """Return how long no job has run."""
        return 0.0 if self._jobs else time.monotonic() - self._idle_since_s

    def run_ids(self) -> tuple[str, ...]:
        """Return what runs."""
        return tuple(job.run_id for job in self._jobs.values())

    def connections(self) -> tuple[socket.socket, ...]:
        """Return the connections to the guards of jobs that run."""
        return tuple(job.connection for job in self._jobs.values())

    def bury(self) -> None:
        """Collect agents that have ended, end what they left, and tell their guards."""
        if not self._jobs and not children(os.getpid()):
            return
        ended: list[tuple[DaemonJob, int]] = []
        for pid in list(self._jobs):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                ended.append((self._jobs.pop(pid), os.waitstatus_to_exitcode(status)))
        left = self._sweep()
        for job, exit_code in ended:
            self.served -= int(exit_code == handover.NOT_BEGUN)
            self._idle_since_s = time.monotonic()
            with suppress(OSError):  # the guard is gone
                send(job.connection, Buried(exit_code=exit_code, left=left))
            job.connection.close()
            say(f"job {job.run_id}: the agent ended ({exit_code})")

    def _sweep(self) -> tuple[str, ...]:
        """End every process below us but the agents that live and theirs: orphans of those that were killed."""
        agents = tuple(self._jobs)
        sweep = Sweep(os.getpid(), spare=lambda: agents, owned=lambda: agents)
        killing = Killing(sweep, time.monotonic())
        left, more = killing.round(time.monotonic())
        while more:
            time.sleep(0.001)
            left, more = killing.round(time.monotonic())
        return tuple(f"process {status.pid} ({status.name}, state {status.state})" for status in left)


def say(text: str) -> None:
    """Write a line to the warm process's log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
