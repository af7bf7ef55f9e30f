"""A node's runner (`node`) as a child: started, listened to, ended. For an agent's loop and for `here` alike."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from robust_run.errors import PlatformError
from robust_run.health.checks.types import MOST_RESULT_BYTES, NodeOrder, Said
from robust_run.health.diagnostics.children import child_environment
from robust_run.health.diagnostics.handing import hand, written
from robust_run.health.diagnostics.program import PARENT

#: A runner that is told to end kills what it started; after so long it is killed itself.
END_S = 20.0


class CheckRunner:
    """One runner process. Start it from a thread that lives as long as it does, or it is told to end with the thread."""

    def __init__(self, name: str, order: NodeOrder, env: Mapping[str, str], descriptors: Sequence[int]) -> None:
        said = written(order)
        try:
            self._start(name, (), env, said, descriptors)
        finally:
            os.close(said)

    def _start(
        self, name: str, words: Sequence[str], env: Mapping[str, str], stdin: int, descriptors: Sequence[int]
    ) -> None:
        self.name = name
        self._unread = b""
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "robust_run.health.diagnostics.node", *words],
                stdin=stdin,
                stdout=subprocess.PIPE,
                cwd="/",
                env={**child_environment(env, os.getcwd()), PARENT: str(os.getpid())},
                pass_fds=descriptors,
                start_new_session=True,  # a Ctrl-C is ours to pass on
            )
        except OSError as error:
            raise PlatformError(f"cannot start a runner of checks: {error.strerror}") from error
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()

    def read(self) -> tuple[list[Said], bool]:
        """Return what it said since, and whether it may say more."""
        data = os.read(self.output, 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > MOST_RESULT_BYTES:
            return [], False
        found: list[Said] = []
        for line in lines:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=Said))
        return found, bool(data)

    def ask_to_end(self) -> None:
        """Tell it to end everything."""
        with suppress(OSError):
            self.process.terminate()

    def end(self) -> None:
        """Wait until it has; it is not waited for without limit."""
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class StayingRunner(CheckRunner):
    """A runner that is given one order after the other; torch is imported once for all of them."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._start(name, [str(theirs.fileno())], env, subprocess.DEVNULL, [theirs.fileno()])
            except PlatformError:
                self._control.close()
                raise

    def is_there(self) -> bool:
        """Whether it lives."""
        return self.process.poll() is None

    def give(self, order: NodeOrder, descriptors: Sequence[int]) -> None:
        """Have it carry out an order: it says `Finished` when that is over. Raises PlatformError if it is gone."""
        try:
            hand(self._control, order, descriptors)
        except OSError as error:
            raise PlatformError(f"cannot reach a runner of checks: {error.strerror}") from error

    def end(self) -> None:
        """Wait until it has; it is not waited for without limit."""
        self._control.close()
        super().end()
