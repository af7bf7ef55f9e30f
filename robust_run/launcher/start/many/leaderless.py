"""Whether a node that was never told of a candidate offers to lead a job whose controller is gone; `offers` decides.

Candidates are told that they are in line a moment after the job has begun. If the controller's node is lost before that, or
when nobody else was able to lead, no process waits to be elected, and all others would wait for nobody.

How it is known: none of the places where a controller may be answers this node; nobody is in line as far as it was told; and
where candidates meet, the leader on record has shown no sign of life for as many turns as `lookout` gives it. That is the
rule by which a node that comes anew goes on with a run. To offer is not to lead: the run's own election decides, so
however many nodes offer, and whoever is back, one leads.

What looks the same. A partition: the leader's signs of life go on where candidates meet, if it still reaches that place; if it
does not, it has stopped by its own clock. A folder that is not shared has no record of that leader, and nothing is offered. A
place that does not answer says nothing, and is asked again. What two nodes see differently: when each saw the last sign of
life; so they offer at different times, and who comes later finds a leader on record. What comes later: the old leader's node
joins who leads. A starved machine sees signs of life later, and waits from the last one that it saw.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.controller.leadership.choice import name_in_etcd, open_coordinator
from robust_run.launcher.controller.leadership.types import RunStanding
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.model.lease_times import leader_ttl_s, lease_times

#: Turns of a leader's lease without a sign of life, as in `lookout`.
TURNS = 3.0
#: How long the place may take to answer.
ANSWER_S = 5.0
#: Thousands of nodes do not offer at once: each has its time within so many seconds for each node of the job, at most
SPREAD_S = 0.05
MOST_SPREAD_S = 120.0


def turn_of(node: str, nodes: int) -> float:
    """Return how much longer than others this node waits, in seconds: the same for it each time, and spread over all."""
    spread_s = min(MOST_SPREAD_S, SPREAD_S * nodes)
    return zlib.crc32(node.encode()) / 2**32 * spread_s


def offers(
    standing: RunStanding | None, *, run_id: str, silent_s: float, usual_ttl_s: float, turn_s: float, is_in_line: bool
) -> bool:
    """Return whether to offer.

    `silent_s`: without a sign of life, as seen from here; `is_in_line`: anybody is, as far as this node was told.
    """
    if is_in_line or standing is None or standing.over or standing.leader is None or standing.run_id != run_id:
        return False
    return standing.sign is not None and silent_s >= TURNS * max(usual_ttl_s, standing.ttl_s) + turn_s


class LeaderlessWatch:
    """Looks at the record for one node, whenever it asks who leads and is told nobody."""

    def __init__(
        self,
        standing: Callable[[], Awaitable[RunStanding | None]],
        *,
        run_id: str,
        usual_ttl_s: float,
        turn_s: float,
        clock: Clock,
    ) -> None:
        """`standing`: asks where candidates meet; may raise PlatformError. Times as in `offers`."""
        self._standing, self._clock = standing, clock
        self._run_id, self._usual_ttl_s, self._turn_s = run_id, usual_ttl_s, turn_s
        self._sign: str | None = None
        self._since_s: float | None = None

    async def look(self, *, is_in_line: bool) -> bool:
        """Return whether this node is to offer to lead."""
        try:
            standing = await asyncio.wait_for(self._standing(), ANSWER_S)
        except (PlatformError, asyncio.TimeoutError):
            return False
        now_s, sign = self._clock.monotonic_s(), standing.sign if standing is not None else None
        if sign is None or sign != self._sign or self._since_s is None:
            self._sign, self._since_s = sign, now_s
        return offers(
            standing,
            run_id=self._run_id,
            silent_s=now_s - self._since_s,
            usual_ttl_s=self._usual_ttl_s,
            turn_s=self._turn_s,
            is_in_line=is_in_line,
        )


def watch_of(spec: JobSpec, many: ManyNodes, run_path: str, node: str, clock: Clock) -> LeaderlessWatch:
    """Return what looks for this node at the place where the job's candidates meet."""

    async def standing() -> RunStanding | None:
        coordinator = open_coordinator(
            many.coordinator, many.tls_ca, name_in_etcd(spec), run_path, clock, lambda _: None
        )
        try:
            return await coordinator.standing()
        finally:
            await coordinator.close()

    return LeaderlessWatch(
        standing,
        run_id=run_path.rpartition("/")[2],
        usual_ttl_s=leader_ttl_s(lease_times(many).lease_s),
        turn_s=turn_of(node, many.most + many.standby),
        clock=clock,
    )
