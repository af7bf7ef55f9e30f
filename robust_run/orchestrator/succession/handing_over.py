"""SIGTERM to the node that leads, where that is about this node alone (`--on-sigterm node`): another leads on, and it leaves.

How it is known what is meant: by the option alone. A drain, a job that is deleted as a whole and a person who types `kill` send
the same signal, so without the option the job ends. With it this node says that it was told and leads on for a moment: nodes of a
job that is deleted are told within seconds, and a voter whose connection broke just now is back. Where the other voters that are
here then, and stay, are no majority without this one, nobody could lead on, and the job ends.

What comes back: this node, as another process of the same guard. It follows, votes, ends its members in good order and leaves;
it stands for no election (`leaves` of its guard's note says so to a process that is started in its place, too). A leader that is
starved meanwhile is deposed as ever, and its next process leaves as well. A time limit of Slurm is no SIGTERM to a node: it is
about the job.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol

from robust_run.orchestrator.rules.raft.state import Followers

#: As for jobs of one role: see `launcher.start.many.departure`.
TOGETHER_S = 5.0
LOOK_S = 0.25
SAME_BREATH_S = 0.3
NOBODY_FOLLOWS = "no other node can lead the job on, so it ends"


class Voting(Protocol):
    """What it needs of `Replica`."""

    def may_act(self) -> bool:
        """Whether this node leads beyond doubt."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""

    def followers(self) -> Followers:
        """Whether others could lead on."""

    def after_commit(self, act: Callable[[], None]) -> None:
        """Do something once a majority has all that was decided."""

    def resign(self) -> None:
        """Lead no more. Does not return."""


class HandOver:
    """Of a node that leads. `end_job`: with a signal, and by whom; `note`: tells the next process why this node leaves, if so."""

    def __init__(
        self,
        voting: Voting,
        end_job: Callable[[int, str], None],
        note: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._voting, self._end_job, self._note, self._say = voting, end_job, note, say
        self._timer: asyncio.TimerHandle | None = None
        self._told_s = 0.0

    def told(self, number: int, by: str) -> None:
        """This node's guard was sent a signal."""
        now_s = asyncio.get_running_loop().time()
        if self._voting.is_over:
            return  # it lingers until the other nodes know that
        if number != signal.SIGTERM or by:
            self._end(number, by)
        elif self._timer is not None and now_s - self._told_s < SAME_BREATH_S:
            return  # some tell a process and its group
        elif self._timer is not None:
            self._go()  # who sent it has waited, and asks once more
        elif self._voting.followers() == "none":
            self._nobody_follows()
        else:
            self._told_s = now_s
            self._note("it was sent SIGTERM")
            self._say(f"this node leaves the job in {TOGETHER_S:g} s (--on-sigterm node), unless all nodes are told to")
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._go)

    def _go(self) -> None:
        self._forget()
        if self._voting.is_over:
            return
        if not self._voting.may_act():  # it is deposed within seconds, or is sure again
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._go)
        elif self._voting.followers() == "ready":
            self._voting.after_commit(self._voting.resign)
        else:
            self._nobody_follows()

    def _nobody_follows(self) -> None:
        self._say(NOBODY_FOLLOWS)
        self._end(signal.SIGTERM, "")

    def _end(self, number: int, by: str) -> None:
        self._forget()
        self._note("")  # whoever leads next, if this process dies before the end, may be this node
        self._end_job(number, by)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
