"""Launchers of members on this machine: started, signalled, followed. Decides nothing.

A launcher says how its workers fare in its journal, which is followed as it grows; what its workers print goes to a file, and
from there to our own output, line by line, with the member's name before it. A launcher ends in good order when this process is
killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from robust_run.launcher.agent.workers.process_tree import PR_SET_PDEATHSIG, prctl
from robust_run.orchestrator.command import command_line, environment, run_name
from robust_run.orchestrator.words import Event, MemberName, RoleSpec, StartMember, WorldEnded, WorldFailed, WorldRuns

#: How often files are looked at. What workers do themselves is known at once, by their connections.
LOOK_S = 0.1
MOST_LINE_BYTES = 64 << 10


class _Line(msgspec.Struct, frozen=True):
    event: dict[str, object] = {}
    action: dict[str, object] = {}


_lines = msgspec.json.Decoder(_Line)


class Tail:
    """Whole lines of a file that grows."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0
        self._rest = b""

    def lines(self, *, last: bool = False) -> list[bytes]:
        """Return what was added since; `last`: also what has no end of line."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            data = b""
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if (last and self._rest) or len(self._rest) > MOST_LINE_BYTES:
            whole.append(self._rest)
            self._rest = b""
        return whole


class MemberLauncher:
    """One launcher of a member."""

    def __init__(
        self,
        role: RoleSpec,
        start: StartMember,
        folder: str,
        place: str,
        env: Mapping[str, str],
        tell: Callable[[Event], None],
        show: Callable[[MemberName, bytes], None],
    ) -> None:
        """Start it. Raises OSError."""
        self.name, self.serial = start.member, start.serial
        self._role, self._tell, self._show = role, tell, show
        self._run = os.path.join(folder, run_name(start))
        self._console = f"{self._run}.out"
        self._journal = Tail(os.path.join(self._run, "journal.jsonl"))
        self._output = Tail(self._console)
        self._sentence = ""
        output = os.open(self._console, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                command_line(role, start, folder, sys.executable),
                env=environment(role, start, env, place),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_us,  # noqa: PLW1509 - one thread
            )
        finally:
            os.close(output)
        self._pidfd = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, self._ended)
        self._timer = loop.call_later(LOOK_S, self._look)

    @property
    def pid(self) -> int:
        """Of the launcher."""
        return self._process.pid

    def end(self, number: int) -> None:
        """Send it a signal, which it passes on to its workers."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _look(self) -> None:
        self._read(last=False)
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _read(self, *, last: bool) -> None:
        for line in self._output.lines(last=last):
            self._show(self.name, line)
        for line in self._journal.lines():
            with suppress(msgspec.MsgspecError):
                self._take(_lines.decode(line))

    def _take(self, line: _Line) -> None:
        if line.event.get("type") == "attempt_started":
            attempt = line.event.get("attempt")
            if isinstance(attempt, int):
                self._tell(WorldRuns(member=self.name, serial=self.serial, attempt=attempt))
        elif line.action.get("type") == "record_incident" and line.action.get("action") != "report":
            verdict = line.action.get("verdict")
            sentence = verdict.get("sentence") if isinstance(verdict, dict) else ""
            self._sentence = str(sentence or "")
            self._tell(WorldFailed(member=self.name, serial=self.serial, sentence=self._sentence))

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._timer.cancel()
        os.close(self._pidfd)
        code = self._process.wait()
        self._read(last=True)
        self._tell(WorldEnded(member=self.name, serial=self.serial, code=code, sentence=self._sentence if code else ""))


def _end_with_us() -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
