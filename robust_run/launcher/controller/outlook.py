"""Compares what nodes do with what their peers do, while an attempt trains: the live form of `robust outliers`.

The comparing is done in a child process, so that the controller never imports numpy; a row that the child does not take at once
is left out. What it says becomes an event like that of any sensor, and the rules say what follows. A node that stands out is a
symptom: nothing is done for that alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock
from robust_run.health.outliers.types import Verdict
from robust_run.health.sensors.usage import METRICS
from robust_run.health.types import Event
from robust_run.launcher.core import JobState, name_of
from robust_run.launcher.health_events import HealthSeen

if TYPE_CHECKING:
    import asyncio

#: Fewer nodes have no peers to be compared with.
LEAST_NODES = 3
_BOOT = "import sys; del sys.path[0]; from robust_run.robust_cli import main; main()"
_MOST_LINE_BYTES = 1 << 16


class Outlook:
    """The comparing of one job's nodes; begins anew with each attempt."""

    def __init__(
        self, state: JobState, clock: Clock, loop: asyncio.AbstractEventLoop, tell: Callable[[HealthSeen], None]
    ) -> None:
        self._state = state
        self._clock = clock
        self._loop = loop
        self._tell = tell
        self._attempt = -1
        self._child: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def begin(self, attempt: int) -> None:
        """Compare from now on: the workers of this attempt have made their first step. Only the first call of each counts."""
        if attempt <= self._attempt or len(self._state.layout) < LEAST_NODES:
            return
        self.end()
        self._attempt = attempt
        from importlib.util import find_spec

        if find_spec("numpy") is None:
            return
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", _BOOT, "outliers", "--json"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return
        assert child.stdin is not None and child.stdout is not None
        os.set_blocking(child.stdin.fileno(), False)
        self._child, self._rest = child, b""
        self._loop.add_reader(child.stdout.fileno(), self._read)

    @property
    def is_running(self) -> bool:
        """Whether nodes are compared."""
        return self._child is not None

    def take(self, node: str, usage: Sequence[float]) -> bool:
        """Take in what a node did in the last second; False: the child has no time for it."""
        child, state = self._child, self._state
        if child is None or state.attempt != self._attempt or state.phase != "running" or node not in state.places:
            return True
        values = dict(zip(METRICS, usage, strict=False))
        row = {"time": self._clock.monotonic_s(), "machine": name_of(state, node), **values}
        assert child.stdin is not None
        try:
            os.write(
                child.stdin.fileno(), msgspec.json.encode(row) + b"\n"
            )  # a pipe takes so short a line whole or not
        except BlockingIOError:
            return False
        except OSError:
            self.end()
        return True

    def finish_rows(self) -> None:
        """No more rows come: the child ends when it has said all."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()

    def end(self) -> None:
        """Compare no more."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None and child.stdout is not None
        self._loop.remove_reader(child.stdout.fileno())
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()

    def _read(self) -> None:
        assert self._child is not None and self._child.stdout is not None
        content = os.read(self._child.stdout.fileno(), _MOST_LINE_BYTES)
        if not content:
            self.end()
            return
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[-_MOST_LINE_BYTES:]
        for line in lines:
            self._say(line)

    def _say(self, line: bytes) -> None:
        try:
            verdict = msgspec.json.decode(line, type=Verdict)
        except msgspec.MsgspecError:
            return
        nodes = [place.node for place in self._state.layout if name_of(self._state, place.node) == verdict.machine]
        if not nodes or verdict.metric == "silence":  # a lease says that sooner
            return
        event = event_of(verdict, self._clock.monotonic_s())
        self._tell(HealthSeen(node=nodes[0], event=event, at_unix_s=self._clock.unix_s()))


def event_of(verdict: Verdict, now_s: float) -> Event:
    """Return what is said of a node that stands out, as a sensor would say it."""
    value = "?" if verdict.value is None else f"{verdict.value:.4g}"
    peers = "?" if verdict.peers is None else f"{verdict.peers:.4g}"
    also = f"; also {', '.join(verdict.also)}" if verdict.also else ""
    lasted_s = verdict.at_s - verdict.since_s
    return Event(
        name=f"outlier.{verdict.metric}",
        kind="alert",
        subject="",
        detail=f"{verdict.metric} is {value}, of its peers {peers}, for {lasted_s:.0f} s now"
        f" (confidence {verdict.confidence:.2f}{also})",
        at_s=now_s,
        value=verdict.value,
        limit=verdict.peers,
    )
