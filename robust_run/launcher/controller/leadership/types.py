"""Leader records, candidates, and what a successor needs. No behaviour.

Leaders of a job are numbered by **term**, from 1 and strictly upwards. A leader holds a lease that it renews; it stops by its
own clock before anybody else may start, and whatever it writes is refused once a newer leader has claimed its term.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from robust_run.errors import PlatformError

MOST_STATE_BYTES = 64 << 20
"""Largest state of a job's core that is kept for a successor."""
MOST_MEMBER_BYTES = 64 << 10
"""Largest record of one member."""
MOST_MEMBER_ID_BYTES = 256


class LostLeadership(PlatformError):  # noqa: N818  says what happened
    """This process no longer leads the job; nothing that it decides from now on counts."""


class CoordinatorUnreachable(PlatformError):  # noqa: N818  says what happened
    """The place that knows who leads did not answer, or not yet. Trying again may help."""


class CoordinatorRefused(PlatformError):  # noqa: N818  says what happened
    """The place that knows who leads answered, and trying again is of no use."""


class JobFinished(PlatformError):  # noqa: N818  says what happened
    """The last leader said that the job is over: nobody is to take over."""

    def __init__(self, message: str, ended_with: int = 0) -> None:
        super().__init__(message)
        self.ended_with = ended_with
        """The job's exit code, where it is known."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who would lead."""

    address: str
    """HOST:PORT where agents will find it."""
    host: str
    run_id: str
    """The run it belongs to: a candidate never takes over another run's job."""


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads, as everybody may read it."""

    term: int
    address: str
    """HOST:PORT of its control port."""
    host: str
    run_id: str


class RunStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How the newest run under a job's name stands, for a node that has no part in it (yet)."""

    run_id: str
    """Empty: a newer robust-run wrote it, and this one cannot tell."""
    over: bool = False
    """Its last leader has said that it is over."""
    leader: LeaderRecord | None = None
    """Who led last, as far as that is on record."""
    sign: str | None = None
    """What changes as long as a leader lives. None: the place vouches for it, its lease is not over."""
    ttl_s: float = 0.0
    """How long its lease is, where that is on record."""


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader of a term left for its successors."""

    term: int
    position: int
    """How much of the journal it contains, in whatever unit the writer counts."""
    state: bytes


class Hold(Protocol):
    """What a leader has in its hands at one kind of coordinator."""

    async def renew(self, until_s: float) -> None:
        """Renew the lease, giving up at `until_s` of the monotonic clock.

        Raises LostLeadership if somebody else leads or the lease is gone, CoordinatorUnreachable, CoordinatorRefused.
        """
        ...

    async def save(self, position: int, state: bytes) -> None:
        """Replace the saved state; whole or not at all. Raises as `renew` does."""
        ...

    async def put_members(self, members: Mapping[str, bytes | None]) -> None:
        """Put these members' records, and remove those that are None. Raises as `renew` does."""
        ...

    async def release(self, finished: bool) -> None:
        """Let the next candidate lead at once or, if finished, nobody. Raises as `renew` does."""
        ...
