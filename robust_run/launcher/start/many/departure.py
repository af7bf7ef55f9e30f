"""Orderly departure of a node: it ends the job if it hosts the controller, and else leaves it.

A controller that died may not have heard or kept what it was told, so each new one is told again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.control.messages import EventReport, FromAgent, Leaving
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.job import JobSpec
from robust_run.signals import signal_name

#: How much longer than the workers' own time a stop may take before this node goes by itself.
PATIENCE_S = 5.0
#: And when somebody asks again.
AT_ONCE_S = 2.0

SIGKILL = 9


class Departure:
    """What this node has been told of ending, and what it does about it."""

    def __init__(self, agent: Agent, spec: JobSpec, send: Callable[[FromAgent], None]) -> None:
        """`send`: to the controller; what is sent while there is none is lost."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Set before anybody can tell this node to end."""
        self._agent = agent
        self._spec = spec
        self._send = send
        self._leaving: int | None = None
        """The signal that this node leaves the job for."""
        self._stop: SignalReceived | None = None
        """What ends the job, until it is over."""

    @property
    def has_begun(self) -> bool:
        """Whether this node leaves the job."""
        return self._leaving is not None

    def told_to_end(self, number: int, *, again: bool, ends_job: bool) -> None:
        """End the job, or leave it. `ends_job`: it is led from here."""
        if ends_job and self._leaving is None:
            self._stop = SignalReceived(signal=number, again=again)
            self._send(EventReport(events=(self._stop,)))
            assert self.loop is not None
            patience_s = self._spec.shutdown_timeout_s + self._spec.restart_grace_s + PATIENCE_S
            self.loop.call_later(AT_ONCE_S if again else patience_s, self.go, number, again)
        elif self._leaving is None:
            self.go(number)
        elif again:
            self._agent.end_for(SIGKILL, 0.0, 0.0)

    def go(self, number: int, at_once: bool = False) -> None:
        """Leave the job, once the workers here have ended."""
        if self._leaving is not None:
            return
        self._leaving = number
        self._send(Leaving(reason=f"it was told to by {signal_name(number)}"))
        if not self._agent.is_running:
            self._agent.leave(128 + number)
        elif at_once or number == SIGKILL:
            self._agent.end_for(SIGKILL, 0.0, 0.0)
        else:
            self._agent.end_for(number, self._spec.shutdown_timeout_s, self._spec.restart_grace_s)

    def workers_ended(self) -> None:
        """Go, if that is what was waited for."""
        if self._leaving is not None and not self._agent.is_running:
            self._agent.leave(128 + self._leaving)

    def say_again(self) -> None:
        """Tell a controller that has just let this node in."""
        if self._stop is not None:
            self._send(EventReport(events=(self._stop,)))
        if self._leaving is not None:
            self._send(Leaving(reason=f"it was told to by {signal_name(self._leaving)}"))
