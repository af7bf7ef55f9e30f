"""Questions to Slurm beside an event loop: in threads that nobody waits for, by processes that outlive attempts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from robust_run.launcher.agent.node import Node
from robust_run.process_start import started_at
from robust_run.slurm.rules.types import SlurmJobFacts
from robust_run.slurm.scontrol import Answer, ask, job_facts

T = TypeVar("T")

#: Between the questions of two nodes that ask for the same reason, and at most.
SPREAD_S, LONGEST_SPREAD_S = 0.01, 10.0


class ScontrolClient:
    """Asks, and calls back in the loop. The processes of an attempt are ended by name; what is started here is spared."""

    def __init__(
        self,
        node: Node,
        loop: asyncio.AbstractEventLoop,
        env: Mapping[str, str],
        started: Callable[[int], int] = started_at,
    ) -> None:
        """`started`: when a process was started that has a number, 0 where none runs."""
        self.env = env
        self._started_at = started
        self._loop = loop
        self._started: dict[int, int] = {}
        """When those were started that are spared, by number: another may have got it since."""
        place = node.spec.slurm.node_id if node.spec.slurm is not None else 0
        self._spread_s = min(LONGEST_SPREAD_S, place * SPREAD_S)
        others = node.spare
        node.spare = lambda: [*others(), *self._spared()]

    def spare(self, pid: int) -> None:
        """Let a process live on when attempts end."""
        self._started = {each: at for each, at in self._started.items() if os.path.exists(f"/proc/{each}")}
        self._started[pid] = self._started_at(pid)

    def _spared(self) -> list[int]:
        """Return those that run, or whose exit status is not collected yet; none whose number is another's by now."""
        return [pid for pid, at in tuple(self._started.items()) if self._started_at(pid) in (0, at)]

    def job(self, job: str, then: Callable[[SlurmJobFacts | None, Answer], None]) -> None:
        """Ask what is known of a job; not on all nodes of a large one at once."""

        def now() -> None:
            self.run(lambda: job_facts(job, self.env, self.spare), lambda found: then(*found))

        self._loop.call_later(self._spread_s, now)

    def ask(self, arguments: tuple[str, ...], then: Callable[[Answer], None]) -> None:
        """Run `scontrol ARGUMENTS`."""
        self.run(lambda: ask(arguments, self.env, started=self.spare), then)

    def run(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do something that may block, and hand on what it returns. A loop that is closed meanwhile hears nothing."""

        def within() -> None:
            result = work()
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(then, result)

        threading.Thread(target=within, name="slurm", daemon=True).start()
