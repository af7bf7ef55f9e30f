"""What the agent of a node does about Slurm while its job runs: warns the script in time, and says what a signal means.

start ──► EndTime? ──► --warn-before seconds earlier: still so? ──► warning ──► deadline: still so? ──► the job is told to end
SIGUSR1, SIGUSR2 (to every process of the step) ──► warning         and its first process requeues it (see `requeue`)
SIGTERM ──► time limit, preemption, scancel or requeue? ──► warning, beside the usual end
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Protocol

import msgspec

from robust_run.atomic_file import write_file
from robust_run.launcher.agent.node import Node
from robust_run.launcher.agent.workers.environment import warning_file
from robust_run.launcher.model.events import LimitNear
from robust_run.launcher.model.links import ControllerLink
from robust_run.signals import signal_name
from robust_run.slurm.limit import CalendarAlarm
from robust_run.slurm.pulse import PULSE_S, beat
from robust_run.slurm.rules import limits
from robust_run.slurm.rules.reasons import SENTENCES, classify, is_over
from robust_run.slurm.rules.types import Reason, SlurmJobFacts, Warned
from robust_run.slurm.scontrol import Answer
from robust_run.slurm.scontrol_client import ScontrolClient

#: After the start, which has better things to do.
FIRST_LOOK_S = 2.0
#: How long nodes that do not lead leave the end to the one that does.
LEADER_FIRST_S = 3.0
#: A limit that is near sooner than this is near from the start: what always fails would then be requeued for ever.
EARLY_S = 10.0
#: A question that was not answered is asked again.
ASK_AGAIN_S = 5.0


class EndsJob(Protocol):
    """The agent, as far as it is told things here."""

    def told_to_end(self, number: int, *, again: bool) -> None:
        """The job is to end, or this node's part in it."""
        ...

    def pass_on(self, number: int) -> tuple[list[int], list[int]]:
        """Hand a signal to the workers that handle it."""
        ...


class SlurmWatch:
    """One node's view of Slurm."""

    def __init__(self, agent: EndsJob, node: Node, link: ControllerLink, loop: asyncio.AbstractEventLoop) -> None:
        assert node.spec.slurm is not None
        self._agent = agent
        self._node = node
        self._link = link
        self._loop = loop
        self._use = node.spec.slurm
        self._aside = ScontrolClient(node, loop, os.environ)
        self._alarm = CalendarAlarm(loop)
        self._warned: Warned | None = None
        self._is_ending = False
        self._began_s = loop.time()
        loop.call_later(FIRST_LOOK_S, self._begin)
        if node.spec.many is not None:
            self._pulse()

    def _pulse(self) -> None:
        if self._link.is_led_from_here:
            beat(self._node.run_directory.path)
        self._loop.call_later(PULSE_S, self._pulse)

    # --- the time limit

    def _begin(self) -> None:
        if self._node.spec.many is not None:
            self._begin_more()
        if self._use.end_unix_s is not None:
            self._plan(self._use.end_unix_s)
        else:
            self._aside.job(self._use.job, self._learn_end)

    def _begin_more(self) -> None:
        from robust_run.slurm.revive import Reviver

        Reviver(self._aside, self._node, self._link, self._loop)
        if self._use.node_id == 0:
            from robust_run.slurm.flags import advise

            advise(self._aside, self._use, self._node.say)

    def _learn_end(self, facts: SlurmJobFacts | None, answer: Answer) -> None:
        if facts is None:
            if self._use.node_id == 0 and answer.is_missing:
                self._node.say(
                    "there is no scontrol here (a container?): the time limit is not known and the job cannot be requeued; "
                    "docs/slurm.md says how to show it inside"
                )
            elif not answer.is_missing:
                self._alarm.set_in(ASK_AGAIN_S, self._begin_again)
        elif facts.end_unix_s is not None and not is_over(facts):
            self._plan(facts.end_unix_s)

    def _begin_again(self) -> None:
        self._aside.job(self._use.job, self._learn_end)

    def _plan(self, end_unix_s: float) -> None:
        self._alarm.set(end_unix_s - self._use.warn_before_s, lambda: self._aside.job(self._use.job, self._near))

    def _near(self, facts: SlurmJobFacts | None, answer: Answer) -> None:
        """It is time to warn, unless the limit was moved meanwhile. Without an answer, what was known counts."""
        if facts is not None and is_over(facts):
            return  # its EndTime is when it was ended; why, the signal's handler asks
        end_unix_s = facts.end_unix_s if facts is not None else self._use.end_unix_s
        if end_unix_s is None:
            if facts is None and not answer.is_missing:
                self._alarm.set_in(ASK_AGAIN_S, self._begin_again)
            return
        if limits.is_far(self._use, end_unix_s, time.time()):
            if self._warned is not None and self._warned.reason == "time_limit":
                self._moved(end_unix_s)  # Slurm did not answer then, and this clock was wrong
            else:
                self._plan(end_unix_s)
            return
        self._warn_of_limit(facts, end_unix_s, "")
        if facts is None and not answer.is_missing and self._link.is_led_from_here:
            # whether it may be requeued, and so is ended in time, is still to be heard
            self._alarm.set_in(ASK_AGAIN_S, lambda: self._aside.job(self._use.job, self._near))

    def _warn_of_limit(self, facts: SlurmJobFacts | None, end_unix_s: float, by: str) -> None:
        found = limits.limit(self._use, facts, end_unix_s, self._node.spec.shutdown_timeout_s, time.time())
        self._warn("time_limit", found.deadline_unix_s, by, found.text)
        if found.goes_on:
            if self._link.is_led_from_here and self._loop.time() - self._began_s >= EARLY_S:
                self._link.report(LimitNear())
            self._alarm.set(found.deadline_unix_s, lambda: self._aside.job(self._use.job, self._deadline))

    def _deadline(self, facts: SlurmJobFacts | None, _: Answer) -> None:
        """Time is over: end the job, so that it can be requeued; unless the limit was moved."""
        if facts is not None and is_over(facts):
            return
        if facts is not None and (facts.end_unix_s is None or limits.is_far(self._use, facts.end_unix_s, time.time())):
            self._moved(facts.end_unix_s)
            return
        if self._link.is_led_from_here:
            self._end()
        else:
            self._loop.call_later(LEADER_FIRST_S, self._end)

    def _moved(self, end_unix_s: float | None) -> None:
        """Take the warning back."""
        self._warned = None
        self._remove()
        if self._link.is_led_from_here:
            self._link.report(LimitNear(near=False))
        self._node.say("the time limit was moved, the job goes on")
        if end_unix_s is not None:
            self._plan(end_unix_s)

    def _end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._agent.told_to_end(int(signal.SIGTERM), again=False)

    # --- signals

    def on_signal(self, number: int, *, ends: bool) -> bool:
        """See `agent.signals.Watches`. Slurm sends to every process of a step, the workers too; some of it twice."""
        if number in (signal.SIGUSR1, signal.SIGUSR2) and not ends:
            self._aside.job(self._use.job, lambda facts, _: self._warned_by(number, facts))
            return True
        if not ends or number == signal.SIGINT:
            return False
        if self._is_ending:
            return True
        self._is_ending = True
        self._aside.job(self._use.job, lambda facts, _: self._told_to_end(number, facts))
        return False

    def _warned_by(self, number: int, facts: SlurmJobFacts | None) -> None:
        name = signal_name(number)
        if facts is not None and is_over(facts):
            return
        end_unix_s = facts.end_unix_s if facts is not None else self._use.end_unix_s
        if end_unix_s is not None and limits.is_meant(self._use, end_unix_s, time.time()):
            self._warn_of_limit(facts, end_unix_s, name)
        else:
            self._warn("warned", end_unix_s, name, f"{name}: the script is warned")

    def _told_to_end(self, number: int, facts: SlurmJobFacts | None) -> None:
        reason: Reason = classify(facts, self._use.restart, time.time()) if facts is not None else ""
        if reason:
            self._warn(reason, None, signal_name(number), f"{signal_name(number)} because {SENTENCES[reason]}")

    # --- the warning

    def _warn(self, reason: Reason, deadline: float | None, by: str, text: str) -> None:
        """Write the file, and tell the workers by a signal if Slurm has not. A second warning only replaces the file."""
        is_first = self._warned is None
        self._warned = Warned(reason=reason, deadline=deadline, at=time.time(), signal=by, text=text)
        path = self._path
        try:
            write_file(path, msgspec.json.encode(self._warned) + b"\n")
        except OSError as error:
            self._node.say(f"the warning could not be written to {path}: {error.strerror}")
        if is_first and (self._link.is_led_from_here or not self._node.spec.many):
            self._node.say(text)
        if is_first and not by:
            self._agent.pass_on(int(signal.SIGUSR1))

    def _remove(self) -> None:
        try:
            os.unlink(self._path)
        except OSError:
            return

    @property
    def _path(self) -> str:
        return warning_file(self._node.run_directory.path, self._use)
