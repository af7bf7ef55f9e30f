"""The time before a controller, from the journal of its job: read while it waits to be elected, and to the end once it is.

The journal of a job of weeks takes seconds to read, and a leader that does nothing else for so long has lost its lease before it
began. So a candidate follows the journal of the one that leads, and what is left then is read in pieces, between which
the lease is renewed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.core.step import replay
from robust_run.launcher.records.folds.past_incidents import PastIncidents
from robust_run.launcher.records.journal import Terms, events_of
from robust_run.launcher.records.journal_following import JournalFollower
from robust_run.launcher.records.journal_reading import header_of

#: How often a candidate looks what was appended.
FOLLOW_S = 1.0

Waited = TypeVar("Waited")


class Past:
    """What a journal says, as far as it was read."""

    def __init__(self, path: str, policy: CorePolicy) -> None:
        self._path = path
        self._policy = policy
        self._begin()

    def _begin(self) -> None:
        self._follower = JournalFollower(self._path)
        self._terms = Terms()
        self.state = JobState()
        """Where the job stands by it."""
        self.incidents = PastIncidents()
        self.began_at: float | None = None
        """Time of the first line; None: there is none."""

    async def beside(self, waiting: Awaitable[Waited]) -> Waited:
        """Follow the journal until what is awaited has come, and return that."""
        following = asyncio.ensure_future(self._follow())
        try:
            return await waiting
        finally:
            following.cancel()

    async def _follow(self) -> None:
        """Read what is appended. Whatever goes wrong here, all is read when it is needed."""
        try:
            while True:
                await self._catch_up(is_final=False)
                await asyncio.sleep(FOLLOW_S)
        except Exception:
            self._begin()

    async def finish(self) -> None:
        """Read to the end of what nobody else writes any more. Raises UserError for what is no journal, OSError."""
        if self._follower.has_taken and not await asyncio.to_thread(self._follower.is_unchanged):
            self._begin()
        await self._catch_up(is_final=True)

    async def _catch_up(self, *, is_final: bool) -> None:
        while True:
            piece = self._follower.read(is_final=is_final)
            if piece is None:
                self._begin()
                continue
            if piece.entries or is_final:
                header_of(self._follower.first_line, self._path)
            entries = [entry for entry in piece.entries if self._terms.hold(entry.term)]
            for entry in entries:
                self.incidents.take(entry)
            if self.began_at is None and entries:
                self.began_at = entries[0].at
            replay(self._policy, events_of(entries), self.state)
            await asyncio.sleep(0)  # who renews the lease has its turn
            if piece.is_last:
                return
