"""When a node that finds no leader gives up: it asks its clock, Slurm, and what was said where it looked."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.control.errors import ProtocolError
from robust_run.orchestrator.listening import is_taken
from robust_run.orchestrator.model.node_words import Several
from robust_run.orchestrator.nodes.finding import Finding
from robust_run.orchestrator.nodes.under_slurm import ASK_S, LOST_S, UnderSlurm
from robust_run.orchestrator.rules.looking import STRANGE_S, limit_s, why_strange

SILENT = 69
"""Exit code of a node that has found no leader for too long (EX_UNAVAILABLE)."""


class Search:
    """Of one node. `say`: tells people a line."""

    def __init__(
        self, meeting: Several, finding: Finding, slurm: UnderSlurm | None, clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._meeting, self._finding, self._slurm, self._clock, self._say = meeting, finding, slurm, clock, say
        self._heard_s = clock.monotonic_s()
        self._ask_at_s = 0.0

    def heard(self) -> None:
        """A leader has said something, or let this node in."""
        self._heard_s = self._clock.monotonic_s()

    def silent_s(self) -> float:
        """Return for how long nothing was heard."""
        return self._clock.monotonic_s() - self._heard_s

    async def given_up(self, leaves: str, *, is_in: bool) -> int | None:
        """Return the exit code once it is of no use to look on. `leaves`: why this node leaves; `is_in`: it has been let in.

        Raises PlatformError where it is another program that listens where the nodes meet.
        """
        most_s = limit_s(self._meeting.join_timeout_s, taken=self._meeting.taken, leaves=leaves, is_in=is_in)
        if self.silent_s() > most_s:
            self._refuse("" if most_s == STRANGE_S and not leaves else None, is_in=is_in)
            self._say(f"no leader was found at {self._finding.places()} for {most_s:.0f} s; is it started?")
            return 128 + signal.SIGTERM if leaves else SILENT
        return SILENT if await self._is_leader_lost() else None

    def refuse_strangers(self, error: PlatformError, *, is_in: bool) -> None:
        """Somebody has answered, and this is what was wrong. Raises PlatformError as `given_up`."""
        self._refuse(str(error) if isinstance(error, ProtocolError) else None, is_in=is_in)

    def _refuse(self, heard: str | None, *, is_in: bool) -> None:
        if why := why_strange(self._meeting.taken, heard, is_in=is_in):
            raise PlatformError(is_taken(self._meeting.port, why))

    async def _is_leader_lost(self) -> bool:
        """Whether Slurm says that the node that leads is down: another one never leads."""
        now_s = self._clock.monotonic_s()
        if self._slurm is None or self.silent_s() < LOST_S or now_s < self._ask_at_s:
            return False
        self._ask_at_s = now_s + ASK_S
        if not await asyncio.to_thread(self._slurm.is_leader_lost):
            return False
        self._say(f"Slurm says that the node that leads, {self._meeting.host}, is down")
        return True
