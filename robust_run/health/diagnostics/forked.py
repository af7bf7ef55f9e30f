"""Check programs as forks of a process that has imported torch (`nursery`): the runner's side.

Each wait has a limit, and each failure has one consequence: None instead of a program, which is then started from nothing, as
are all that follow.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import IO, Protocol

import msgspec

from robust_run.health.checks.types import CheckName, CheckProgramOrder
from robust_run.health.diagnostics.nursery import GO, READY, WITH_TORCH, ForkOrder
from robust_run.health.diagnostics.program import PARENT

#: Variable that has all programs started from nothing, with the value 0.
VARIABLE = "ROBUST_CHECK_FORK"
#: How long the imports may take. Whoever waits for the results of a node waits for 15 s longer than its programs may run.
IMPORT_S = 10.0
#: How long the forks of one step may take together, which is milliseconds for each: with the imports less than those 15 s.
FORK_S = 3.0


class CheckProcess(Protocol):
    """A program that runs, however it came to be; the part of `subprocess.Popen` that is needed."""

    pid: int
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None: it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for it. Raises subprocess.TimeoutExpired."""
        ...


class Forked:
    """A program that is our child although we did not start it."""

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = os.fdopen(stdout, "rb", buffering=0)
        self.stderr: IO[bytes] | None = os.fdopen(stderr, "rb", buffering=0)
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None: it runs."""
        if self._exit_code is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for it. Raises subprocess.TimeoutExpired."""
        exit_code = self.poll()
        if exit_code is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            exit_code = self.poll()
        if exit_code is None:
            raise subprocess.TimeoutExpired("a check program", timeout or 0.0)
        return exit_code


class Nursery:
    """The process that forks programs; started when the first is wanted."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._until_s = 0.0
        """When the forks of this step are to be there."""

    def pids(self) -> list[int]:
        """Return its pid while it may be asked: it lives on between programs."""
        return [self._process.pid] if self._process is not None and self._control is not None else []

    def get_ready(self) -> None:
        """Have everything imported, once, before the first program of each step is forked."""
        if self._process is None:
            self._begin()
        self._until_s = time.monotonic() + FORK_S

    def _begin(self) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "robust_run.health.diagnostics.nursery", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={**self._env, PARENT: str(os.getpid())},
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                )
            except OSError:
                ours.close()
                return
        self._control = ours
        if _receive(ours, IMPORT_S) != READY:
            self.end()

    def fork(self, order: CheckProgramOrder, stdin: int) -> Forked | None:
        """Return a program that has just begun, None if there is none."""
        if self._control is None or order.check not in WITH_TORCH:
            return None
        listen_fd = order.meeting.listen_fd if order.meeting else -1
        try:
            gate, its_gate, stdout, its_stdout, stderr, its_stderr = _channels()
        except OSError:  # no descriptors are left: a program that is started needs fewer
            self.end()
            return None
        passed = [its_gate.fileno(), stdin, its_stdout, its_stderr, *([listen_fd] if listen_fd >= 0 else [])]
        with gate:
            pid = 0
            try:
                with its_gate:
                    data = msgspec.json.encode(ForkOrder(check=order.check, listen_fd=listen_fd))
                    socket.send_fds(self._control, [data], passed)
                pid = int(_receive(gate, max(self._until_s - time.monotonic(), 0.001)) or 0)
                gate.send(GO if pid else b"")
            except OSError:
                pid = 0
            for each in (its_stdout, its_stderr):
                os.close(each)
            if pid:
                return Forked(pid, stdout, stderr)
        os.close(stdout)
        os.close(stderr)
        self.end()
        return None

    def end(self) -> None:
        """Let it go: it is not asked again, and what hangs of it is killed. `sweep` collects it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None and self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _channels() -> tuple[socket.socket, socket.socket, int, int, int, int]:
    """Return both ends of a gate and of two pipes, or none of them. Raises OSError."""
    with ExitStack() as opened:
        gate, its_gate = [opened.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
        stdout, its_stdout = os.pipe()
        opened.callback(os.close, stdout)
        opened.callback(os.close, its_stdout)
        stderr, its_stderr = os.pipe()
        opened.pop_all()
    return gate, its_gate, stdout, its_stdout, stderr, its_stderr


def nursery_for(checks: Iterable[CheckName], env: Mapping[str, str]) -> Nursery | None:
    """Return a nursery for the programs of these checks; None where a single one needs torch, or it is not wanted."""
    count = sum(check in WITH_TORCH for check in checks)
    return Nursery(env) if count > 1 and env.get(VARIABLE) != "0" else None


def _receive(sock: socket.socket, limit_s: float) -> bytes:
    """Return what is said within the limit; nothing where the other end is gone or silent."""
    sock.settimeout(limit_s)
    try:
        return sock.recv(64)
    except OSError:
        return b""
