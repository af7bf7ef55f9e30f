"""Orderly departure of a node: it ends the job if it hosts the controller, and else leaves it.

With `--on-sigterm node` SIGTERM is about this node alone: it says at once that it was told, trains on for a moment, in which
others may be told too (see `core.leaving_together`), and leaves. Where it hosts the controller, that resigns then, and one of the
candidates leads (`controller.leadership.handing_over`). That is a choice of the user's, since nothing here can tell a drain
from a person who types `kill` at the first launcher, and that person wants the job to end. Ctrl-C and `robust stop` end it
anyhow.

A controller that died may not have heard or kept what it was told, so each new one is told again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from robust_run.launcher.agent.agent import Agent
from robust_run.launcher.control.messages import EventReport, FromAgent, Leaving, ToldToLeave
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.job import JobSpec
from robust_run.signals import signal_name

#: How much longer than the workers' own time a stop may take before this node goes by itself.
PATIENCE_S = 5.0
#: And when somebody asks again.
AT_ONCE_S = 2.0

#: A node that is told to leave trains on for so long: those that are told meanwhile are told together. Kubelets that delete
#: the pods of a job are seconds apart; a machine that is taken away leaves 15 s or more.
TOGETHER_S = 5.0

NOBODY_FOLLOWS = "the controller is on this node and no other is in line to lead (--controller-standby): the job ends"

SIGKILL, SIGTERM = 9, 15

Answer = Literal["end_job", "leave", "leave_soon", "leave_now"]


def answer_of(number: int, *, again: bool, on_sigterm: str, leads: bool, can_follow: bool, is_told: bool) -> Answer:
    """Return what a signal means to a node that has not begun to leave.

    `again`: its sender has waited and asks once more. `leads`: the controller is on this node; `can_follow`: another one is in
    line. `is_told`: this node is about to leave already. leave_now: without waiting for anybody, workers included.
    """
    if number != SIGTERM or on_sigterm != "node":
        return "end_job" if leads else "leave"
    if is_told and again:
        return "leave_now"
    return "end_job" if leads and not can_follow and not is_told else "leave_soon"


class Departure:
    """What this node has been told of ending, and what it does about it."""

    def __init__(
        self,
        agent: Agent,
        spec: JobSpec,
        send: Callable[[FromAgent], None],
        say: Callable[[str], None],
        leads: Callable[[], bool],
        can_follow: Callable[[], bool],
    ) -> None:
        """`send`: to the controller; what is sent while there is none is lost. `leads`, `can_follow`: see `answer_of`."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Set before anybody can tell this node to end."""
        self._agent = agent
        self._spec = spec
        self._send = send
        self._say, self._leads, self._can_follow = say, leads, can_follow
        self._told: int | None = None
        """The signal that this node leaves for in a moment, or would, if the job did not end."""
        self._going: asyncio.TimerHandle | None = None
        self._leaving: int | None = None
        """The signal that this node leaves the job for."""
        self._stop: SignalReceived | None = None
        """What ends the job, until it is over."""

    @property
    def is_told(self) -> bool:
        """Whether this node leaves the job, now or in a moment, or has asked for the end of it."""
        return self._leaving is not None or self._told is not None or self._stop is not None

    @property
    def has_begun(self) -> bool:
        """Whether this node leaves the job."""
        return self._leaving is not None

    def told_to_end(self, number: int, *, again: bool) -> None:
        """End the job, or leave it."""
        if self._leaving is not None:
            if again:
                self._agent.end_for(SIGKILL, 0.0, 0.0)
            return
        on_sigterm = self._spec.many.on_sigterm if self._spec.many is not None else "job"
        answer = answer_of(
            number,
            again=again,
            on_sigterm=on_sigterm,
            leads=self._leads(),
            can_follow=self._can_follow(),
            is_told=self._told is not None,
        )
        if answer == "end_job":
            if on_sigterm == "node" and number == SIGTERM and self._stop is None:
                self._say(NOBODY_FOLLOWS)
            self._end_job(number, again)
        elif answer == "leave":
            self.go(number)
        elif answer == "leave_now":
            self.go(number, at_once=True)
        elif self._told is None and self._stop is None:
            self._leave_soon(number)

    def _end_job(self, number: int, again: bool) -> None:
        self._stop = SignalReceived(signal=number, again=again)
        self._send(EventReport(events=(self._stop,)))
        self._go_later(AT_ONCE_S if again else self._patience_s, number, at_once=again)

    def _leave_soon(self, number: int) -> None:
        self._told = number
        self._send(ToldToLeave(signal=number))
        self._say(
            f"this node leaves the job in {TOGETHER_S:g} s (--on-sigterm node); if all nodes are told to by then, the job ends"
        )
        assert self.loop is not None
        self._going = self.loop.call_later(TOGETHER_S, self._leave_now, number)

    def _leave_now(self, number: int) -> None:
        """Leave as was said, unless whoever could have led instead is gone by now."""
        if self._leads() and not self._can_follow():
            self._say(NOBODY_FOLLOWS)
            self._end_job(number, again=False)
        else:
            self.go(number)

    def job_ends(self) -> None:
        """The job ends as a whole: wait for that instead of leaving it, but not for ever."""
        if self._told is not None and self._leaving is None:
            self._go_later(self._patience_s, self._told)

    @property
    def _patience_s(self) -> float:
        return self._spec.shutdown_timeout_s + self._spec.restart_grace_s + PATIENCE_S

    def _go_later(self, delay_s: float, number: int, *, at_once: bool = False) -> None:
        assert self.loop is not None
        if self._going is not None:
            self._going.cancel()
        self._going = self.loop.call_later(delay_s, self.go, number, at_once)

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
        elif self._told is not None:
            self._send(ToldToLeave(signal=self._told))
