"""The end of a node's part in a job: what its keeper holds goes to storage before the keeper is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from robust_run.ckpt_io.memory.agent_protocol import Flushed

#: Where nobody waits for the job to end: its keeper says every 10 s how far it is.
UNASKED_S = 600.0
#: Where it was told to end: what schedulers leave between their two signals, and no more than that is left of.
TOLD_S = 30.0
#: Of that time, what workers may take to end (`JobSpec.shutdown_timeout_s`); and what the rest of the end takes.
WORKERS_SHARE = 2 / 3
REST_S = 2.0
LEAST_S = 3.0
#: How long the other nodes may show no sign of ending, too; and where it is not known whether they do.
OTHERS_S = 60.0
PERHAPS_S = 8.0
#: How much longer than its time the keeper may take to say what came of it.
ANSWER_S = 10.0


class Keeper(Protocol):
    """See `memory_keeper.MemoryKeeper`."""

    def flush(
        self,
        limit_s: float,
        others_s: float,
        then: Callable[[Flushed | None], None],
        *,
        is_job_over: bool,
        stands_in: tuple[int, ...],
    ) -> None:
        """Have what is newest written."""
        ...


class LastFlush:
    """One. Used from the agent's thread."""

    def __init__(
        self,
        keeper: Keeper,
        say: Callable[[str], None],
        loop: asyncio.AbstractEventLoop,
        shutdown_timeout_s: float,
        *,
        is_job_over: bool = True,
        stands_in: tuple[int, ...] = (),
    ) -> None:
        """`is_job_over`: as far as is known; else this node was told to go, and it may be that all others were, too.

        `stands_in`: ranks of lost nodes whose copies this node has, and writes in their place.
        """
        self._keeper, self._say, self._loop = keeper, say, loop
        self._shutdown_timeout_s = shutdown_timeout_s
        self._is_job_over, self._stands_in = is_job_over, stands_in
        self._over = asyncio.Event()
        self._answer: Flushed | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, told_at_s: float | None) -> None:
        """Return when it is over, one way or another; what came of it is said. `told_at_s`: when the job was told to end."""
        self._ask(UNASKED_S if told_at_s is None else left_s(self._loop.time() - told_at_s, self._shutdown_timeout_s))
        await self._over.wait()
        if self._timer is not None:
            self._timer.cancel()
        is_told = self._is_job_over or (self._answer is not None and self._answer.is_stored)
        if self._answer is not None and self._answer.text and is_told:
            self._say(self._answer.text)

    def told_to_end(self, *, again: bool) -> None:
        """Take less time; none, where it is asked for again."""
        if not self._over.is_set():
            self._ask(0.0 if again else TOLD_S)

    def _ask(self, limit_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(limit_s + ANSWER_S, self._give_up)
        others_s = OTHERS_S if self._is_job_over else PERHAPS_S
        self._keeper.flush(limit_s, others_s, self._hear, is_job_over=self._is_job_over, stands_in=self._stands_in)

    def _give_up(self) -> None:
        self._hear(Flushed(number=0, text="what is in memory was not written to storage: its keeper does not answer"))

    def _hear(self, answer: Flushed | None) -> None:
        self._answer = answer
        self._over.set()


def left_s(since_told_s: float, shutdown_timeout_s: float) -> float:
    """Return how long it may take, so long after the job was told to end."""
    return max(LEAST_S, min(TOLD_S, shutdown_timeout_s / WORKERS_SHARE - since_told_s - REST_S))
