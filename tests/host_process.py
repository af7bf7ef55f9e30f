"""Processes on simulated hosts (see hosts.py), as the harness holds them: the part of `subprocess.Popen` that tests need."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from host_warmth import Zygote

#: A host that takes longer than this to come up, or to start a process, is broken.
READY_S = 60.0
DIED_WITH_ITS_HOST = -signal.SIGKILL


class HostProcess:
    """One process on a host, the leader of its own session. Its output goes to files, readable while it runs."""

    def __init__(self, args: Sequence[str], said: socket.socket, out_path: Path, err_path: Path) -> None:
        self.args = list(args)
        self.out_path, self.err_path = out_path, err_path
        self.returncode: int | None = None
        self.stdout = self.stderr = None  # no pipes: what closes those of a Popen finds none
        self._said = said
        self.pid = 0
        """As the harness sees it, not as the host does."""
        self._hear(READY_S)
        assert self.pid or self.returncode is not None, f"{self.args[0]} not started within {READY_S:g} s"

    @property
    def out(self) -> str:
        """What it has written to standard output so far."""
        return self.out_path.read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has written to standard error so far."""
        return self.err_path.read_text(errors="replace")

    def lines(self) -> list[str]:
        """Return the whole lines of its standard output so far."""
        return self.out.split("\n")[:-1]

    def poll(self) -> int | None:
        """Return how it ended, as `subprocess` says it; None while it runs; -9 if it died with its host."""
        while self.returncode is None and self._hear(0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raise `subprocess.TimeoutExpired` if it takes longer."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if give_up_at is None else give_up_at - time.monotonic()
            if not self._hear(left if left is None else max(left, 0)) and left is not None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0, self.out.encode(), self.err.encode())
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return all output."""
        self.wait(timeout)
        return self.out, self.err

    def signal(self, number: int) -> None:
        """Signal it (not its children), if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.signal(signal.SIGKILL)

    def _hear(self, timeout_s: float | None) -> bool:
        """Take in one message about it; return whether there was one."""
        poller = select.poll()
        poller.register(self._said, select.POLLIN)
        if not poller.poll(None if timeout_s is None else timeout_s * 1000):
            return False
        try:
            word, _, number = self._said.recv(64).partition(b" ")
        except ConnectionResetError:
            word, number = b"", b""
        if word == b"pid":
            self.pid = int(number)
        else:
            self.returncode = int(number) if word == b"exit" else int(DIED_WITH_ITS_HOST)
            self._said.close()
        return True


class Init:
    """The harness's end of a process 1 (host_init.py)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        """As the harness sees it, once it is ready."""
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def wait_ready(self, log: Path) -> None:
        """Wait until it serves. `log` says why it does not."""
        self.theirs.close()
        self.ours.settimeout(READY_S)
        try:
            word, _, pid = self.ours.recv(64).partition(b" ")
        except OSError as error:
            word, pid = b"", str(error).encode()
        assert word == b"ready", (
            f"{self.name} did not come up: {log.read_text(errors='replace')} {pid.decode()}".strip()
        )
        self.pid = int(pid)

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | str,
        out_path: Path,
        err_path: Path,
        stdin: int | None = None,
    ) -> HostProcess:
        """Start a process below it. A program that cannot be started ends with 127, as in a shell."""
        heard, said = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with said, out_path.open("ab") as out, err_path.open("ab") as err, Path(os.devnull).open("rb") as null:
            descriptors = [null.fileno() if stdin is None else stdin, out.fileno(), err.fileno(), said.fileno()]
            request = json.dumps({"argv": list(argv), "env": dict(env), "cwd": str(cwd)}).encode()
            try:
                socket.send_fds(self.ours, [request], descriptors)
            except BaseException:
                heard.close()
                raise
        return HostProcess(argv, heard, out_path, err_path)

    def fork(
        self,
        zygote: Zygote,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | str,
        cgroup: Path | None,
        pod: str,
        out_path: Path,
        err_path: Path,
    ) -> HostProcess:
        """The same of a launcher that is forked (see host_warmth.py). It goes on when process 1 knows whom to tell of its end."""
        heard, said = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        waits, go = os.pipe()
        with said, out_path.open("ab") as out, err_path.open("ab") as err, Path(os.devnull).open("rb") as null:
            request = {"argv": list(argv), "env": dict(env), "cwd": str(cwd)}
            request |= {"init_pid": self.pid, "cgroup": str(cgroup or ""), "pod": pod}
            try:
                outer, inner = zygote.fork(request, [null.fileno(), out.fileno(), err.fileno(), waits])
                said.send(b"pid %d" % outer)
                socket.send_fds(self.ours, [json.dumps({"adopt": inner}).encode()], [said.fileno(), go])
            except BaseException:
                heard.close()
                raise
            finally:
                os.close(waits)
                os.close(go)
        return HostProcess(argv, heard, out_path, err_path)

    def close(self) -> None:
        """Let go of it: it ends, and so does all below it."""
        self.theirs.close()
        self.ours.close()
