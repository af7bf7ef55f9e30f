"""Removing of older checkpoints by a process of its own, one at a time, while it is known that nobody starts from them.

That is as long as all workers here are in the attempt that they saved in: all of its ranks have loaded then, and no other attempt
is chosen a start for before they have ended. The first that hangs up ends it, an attempt that begins does, too. Or when the job
is over. What a process is at when it is told to end it finishes; it is killed if that takes long.
"""

from __future__ import annotations

from collections.abc import Callable

from robust_run.ckpt_io.memory.agent_protocol import KeeperNote
from robust_run.ckpt_io.memory.flushing.running import Process, Runs, Starts
from robust_run.ckpt_io.memory.flushing.words import FlushAnswer, FlushDone, FlushSilent, RemoveOld

#: How long the end of a job waits for it.
AT_THE_END_S = 10.0


class Removals:
    """Of one node. Used from the keeper's thread."""

    def __init__(self, start: Starts, tell: Callable[[KeeperNote], None], run: Runs) -> None:
        self._start, self._tell, self._run = start, tell, run
        self._process: Process | None = None
        self._are_all_there = False
        self._next: tuple[RemoveOld, float | None, Callable[[], None]] | None = None
        """At the end of the job, after the one that is under way."""
        self._told = ""

    @property
    def is_busy(self) -> bool:
        """Whether one is under way."""
        return self._process is not None

    def attempt_begins(self) -> None:
        """Workers of another attempt come: what it starts from was chosen."""
        self.stop()
        self._are_all_there = True

    def worker_gone(self) -> None:
        """A worker of the attempt has ended, and others may follow."""
        self.stop()
        self._are_all_there = False

    def begin(self, order: RemoveOld, until_s: float | None, then: Callable[[], None], *, is_job_over: bool) -> bool:
        """Begin; `then` is called when it is over. False: it is not the time for it, and nothing was begun.

        At the end of a job one that is under way is waited for: it has been told to end.
        """
        if not (self._are_all_there or is_job_over):
            return False
        if self._process is not None:
            self._next = (order, until_s, then) if is_job_over else None
            return is_job_over
        try:
            self._process = self._start(order, (), until_s)
        except OSError:  # after the next save it is tried again
            return False
        self._wait_for(self._process, then)
        return True

    def stop(self) -> None:
        """Have it end."""
        if self._process is not None:
            self._process.stop()

    def _begin_next(self) -> None:
        waiting, self._next = self._next, None
        if waiting is not None and not self.begin(*waiting, is_job_over=True):
            waiting[2]()

    def _wait_for(self, process: Process, then: Callable[[], None]) -> None:
        def heard(answer: FlushAnswer | FlushSilent | Exception) -> None:
            if isinstance(answer, FlushSilent):  # nobody waits for it
                self._wait_for(process, then)
                return
            self._process = None
            text = answer.text if isinstance(answer, FlushDone) and not answer.is_left else ""
            if text and text != self._told:
                self._told = text
                self._tell(KeeperNote(text=text))
            then()
            self._begin_next()

        self._run(process.next, heard, is_long=True)
