"""The agent's side of the sensors' process: one socket, read by the agent's loop as lines come, so that nothing ever waits.

A process that dies is started again a few times; a job runs well without sensors, and says that it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from robust_run.health.sensors.process import (
    MOST_EVENT_BYTES,
    SensorSetup,
    WatchedAttempt,
    attempt_line,
    command,
    first_line,
    parse,
    parse_measured,
)
from robust_run.health.sensors.types import Event, EventKind

MOST_STARTS = 4
AGAIN_AFTER_S = 5.0
#: A process that says nothing for so long, not even its sign of life, stands still; how often that is looked at.
SILENT_S, LOOK_EVERY_S = 15.0, 3.0
_MOST_READ_BYTES = 1 << 16


class StartsHelpers(Protocol):
    """Starts a child process of the agent that dies with it; returns its pid."""

    def __call__(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        """Start `argv` with the descriptors in `keep` open. Raises RobustRunError, OSError."""
        ...


class SensorsHandle:
    """Starts the sensors, hands their events to `tell`, and tells them which attempt runs. Used from the loop's thread only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        start: StartsHelpers,
        env: Mapping[str, str],
        setup: SensorSetup,
        tell: Callable[[Event], None],
        silent_s: float = SILENT_S,
    ) -> None:
        self._loop = loop
        self._start = start
        self._env = env
        self._setup = setup
        self._tell = tell
        self._silent_s = silent_s
        self._heard_s: float | None = None
        """When the process last said anything; None: it has not begun to."""
        self._looked_s = 0.0
        self._look_again: asyncio.TimerHandle | None = None
        self._measured: dict[str, tuple[float, float]] = {}
        """By name: a number that a sensor measured, and until when it stands."""
        self._socket: socket.socket | None = None
        self._rest = b""
        self._attempt = WatchedAttempt()
        self._starts = 0
        self._again: asyncio.TimerHandle | None = None
        self.pid: int | None = None
        """Of the process that was started last."""

    def begin(self) -> None:
        """Start the process. One that cannot be started is told, not raised."""
        from robust_run.errors import RobustRunError

        self._again = None
        self._starts += 1
        ours, theirs = socket.socketpair()
        try:
            self.pid = self._start(command(theirs.fileno()), self._env, (theirs.fileno(),))
        except (OSError, RobustRunError) as error:
            ours.close()
            self._note(f"the sensors cannot be started, so nothing watches this node: {error}")
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket, self._rest = ours, b""
        self._send(first_line(self._setup))
        self._send(attempt_line(self._attempt))
        self._loop.add_reader(ours.fileno(), self._readable)
        self._heard_s, self._looked_s = None, self._loop.time()
        self._look_again = self._loop.call_later(min(LOOK_EVERY_S, self._silent_s), self._look)

    def attempt(self, attempt: WatchedAttempt) -> None:
        """Tell the sensors which attempt runs."""
        self._attempt = attempt
        self._send(attempt_line(attempt))

    def measured(self) -> dict[str, float]:
        """Return what the sensors measure (`usage.SAID`), without what is too old to be so still."""
        now_s = self._loop.time()
        return {name: value for name, (value, until_s) in self._measured.items() if until_s >= now_s}

    def end(self) -> None:
        """Let the process end; what it says from now on is not heard. The agent reaps it, as all its children."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._hang_up()

    def _send(self, line: bytes) -> None:
        """Lines are few and short: one that does not fit into the socket is for a process that is stuck, and lost."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(line)

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            content = self._socket.recv(_MOST_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            content = b""
        if not content:
            self._lost("ended")
            return
        if self._heard_s is None and self._starts > 1:
            self._note("the sensors' process works again", "clear")
        self._heard_s = self._loop.time()
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > MOST_EVENT_BYTES:
            self._rest = b""
        for line in lines:
            event = parse(line)
            if event is not None:
                self._tell(event)
            elif (new := parse_measured(line)) is not None:
                until_s = self._loop.time() + new.fresh_s
                self._measured.update((name, (value, until_s)) for name, value in new.values.items())

    def _look(self) -> None:
        """End a process that stands still, as if it had died."""
        now_s, before_s = self._loop.time(), self._looked_s
        self._looked_s = now_s
        if self._heard_s is not None and now_s - before_s > 2 * LOOK_EVERY_S:
            self._heard_s = now_s  # we stood still ourselves: it may have waited for us
        if self._heard_s is not None and now_s - self._heard_s > self._silent_s and self.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self._lost(f"said nothing for {now_s - self._heard_s:.0f} s and was killed")
            return
        self._look_again = self._loop.call_later(min(LOOK_EVERY_S, self._silent_s), self._look)

    def _lost(self, what: str) -> None:
        self._hang_up()
        if self._starts < MOST_STARTS:
            self._note(f"the sensors' process {what}; it is started again in {AGAIN_AFTER_S:g} s")
            self._again = self._loop.call_later(AGAIN_AFTER_S, self.begin)
        else:
            self._note(
                f"the sensors' process {what}, and ended {self._starts} times: nothing watches this node any more"
            )

    def _hang_up(self) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _note(self, detail: str, kind: EventKind = "note") -> None:
        self._tell(Event(name="sensors.ended", kind=kind, subject="", detail=detail, at_s=time.monotonic()))


def environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the agent's environment as the sensors may have it: without the job's secret."""
    return {name: value for name, value in env.items() if name != "ROBUST_TOKEN"}
