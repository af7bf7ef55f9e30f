"""A leader's lease as the leader sees it: it knows by its own clock, without any answer, when it must have stopped.

A renewal counts from the moment its request was **sent**: the lease cannot have been prolonged earlier than that, so nobody
else can lead before `sent + ttl`. A safety margin below that covers clocks that run at slightly different speeds and the time
between asking `is_valid` and acting on the answer. A leadership that has run out once stays lost, whatever answers come later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from robust_run.clock import Clock
from robust_run.errors import PlatformError, UserError
from robust_run.launcher.controller.leadership.types import (
    MOST_MEMBER_BYTES,
    MOST_MEMBER_ID_BYTES,
    MOST_STATE_BYTES,
    CoordinatorRefused,
    CoordinatorUnreachable,
    Hold,
    LeaderRecord,
    LostLeadership,
)

Sleep = Callable[[float], Awaitable[None]]

SHORTEST_TTL_S = 1.0
"""Below it a busy machine would lose its leader for no reason."""

_RENEWALS_PER_TTL = 3
_RETRIES_PER_TTL = 10
_LOOKS_PER_TTL = 8


def safety_margin_s(ttl_s: float) -> float:
    """Return how long before its lease ends a leader stops: a tenth, at most one second."""
    return min(1.0, ttl_s / 10)


def check_ttl(ttl_s: float) -> None:
    """Raise UserError for a lease too short to be kept."""
    if not ttl_s >= SHORTEST_TTL_S:
        raise UserError(f"a leader's lease of {ttl_s:g} s is too short to be kept; give {SHORTEST_TTL_S:g} s or more")


class Campaign:
    """A candidate's patience. `on_problem` hears why it cannot even try, one line whenever that changes."""

    def __init__(self, clock: Clock, sleep: Sleep, on_problem: Callable[[str], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._on_problem = on_problem
        self._problem = ""

    async def win(self, attempt: Callable[[], Awaitable[Leadership | None]], ttl_s: float) -> Leadership:
        """Try until there is a leadership that still holds. Waits for ever. Raises UserError for a lease too short."""
        check_ttl(ttl_s)
        while True:
            try:
                leadership = await attempt()
                if leadership is not None and leadership.is_valid(self._clock.monotonic_s()):
                    return leadership
            except CoordinatorUnreachable as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    self._on_problem(self._problem)
            await self._sleep(ttl_s / _LOOKS_PER_TTL)


class Leadership:
    """One term of one leader. Run `keep` as a task; ask `is_valid` before every decision; watch `lost`."""

    def __init__(self, record: LeaderRecord, hold: Hold, ttl_s: float, sent_at_s: float, clock: Clock, sleep: Sleep):
        self.record = record
        self.ttl_s = ttl_s
        """As granted, which may be longer than what was asked for."""
        self.valid_until_s = sent_at_s + ttl_s - safety_margin_s(ttl_s)
        """On this process's monotonic clock."""
        self.lost = asyncio.Event()
        """Set once the leadership is known to be lost; not by `resign`."""
        self.reason = ""
        """Why it was lost, one line."""
        self._hold = hold
        self._clock = clock
        self._sleep = sleep
        self._over = False
        self._problem = ""

    @property
    def term(self) -> int:
        """Number of this leadership, larger than every earlier one's."""
        return self.record.term

    def is_valid(self, now_s: float) -> bool:
        """Whether this process leads at that time of its monotonic clock: nobody else does, wherever."""
        return not self._over and now_s < self.valid_until_s

    async def keep(self) -> None:
        """Renew until the leadership is lost (then `lost` is set) or resigned. The loop is never blocked."""
        while not self._over:
            try:
                renewed = await self.renew()
            except Exception as error:
                self._lose(f"the lease of term {self.term} is not kept any more: {type(error).__name__}: {error}")
                raise
            if not self._over:
                rest_s = self.valid_until_s - self._clock.monotonic_s()
                pause_s = self.ttl_s / (_RENEWALS_PER_TTL if renewed else _RETRIES_PER_TTL)
                await self._sleep(max(0.0, min(pause_s, rest_s)))

    async def renew(self) -> bool:
        """Renew once; return whether it was prolonged. Losing it for good sets `lost`."""
        sent_at_s = self._clock.monotonic_s()
        if not self._still_valid(sent_at_s):
            return False
        renewed = False
        try:
            await self._hold.renew(self.valid_until_s)
            renewed = True
        except LostLeadership as error:
            self._lose(str(error))
        except PlatformError as error:
            self._problem = str(error)
        if not self._still_valid(self._clock.monotonic_s()):
            return False
        if renewed:
            self.valid_until_s = sent_at_s + self.ttl_s - safety_margin_s(self.ttl_s)
            self._problem = ""
        return renewed

    async def save(self, position: int, state: bytes) -> None:
        """Keep the state of the job's core for a successor; `position` says how much of the journal is in it.

        Raises LostLeadership if this process does not lead any more: then nothing was kept, or no successor will use it.
        Raises CoordinatorUnreachable if nobody can tell whether it was kept: save again, or later.
        Raises CoordinatorRefused for a state larger than MOST_STATE_BYTES, or a full or misconfigured store.
        """
        if len(state) > MOST_STATE_BYTES:
            raise CoordinatorRefused(
                f"the job's state has {len(state)} bytes and a successor gets at most {MOST_STATE_BYTES}; please report it"
            )
        await self._fenced(lambda: self._hold.save(position, state))

    async def put_members(self, members: Mapping[str, bytes | None]) -> None:
        """Keep these members' records for a successor, and forget those that are None. Raises as `save` does.

        A call that is interrupted may have put some of them.
        """
        for name, record in members.items():
            if len(name.encode()) > MOST_MEMBER_ID_BYTES or len(record or b"") > MOST_MEMBER_BYTES:
                raise CoordinatorRefused(
                    f"the record of member {name[:64]!r} has {len(record or b'')} bytes and an id of {len(name.encode())};"
                    f" the limits are {MOST_MEMBER_BYTES} and {MOST_MEMBER_ID_BYTES}"
                )
        await self._fenced(lambda: self._hold.put_members(members))

    async def resign(self, finished: bool = False) -> None:
        """Stop leading now, so that the next candidate need not wait for the lease to end; if finished, nobody follows.

        Raises CoordinatorUnreachable if that could not be said: the lease ends by itself, and then a candidate takes over,
        of a finished job too. Does nothing when the leadership is lost already.
        """
        if not self._still_valid(self._clock.monotonic_s()):
            return
        self._over = True
        await self._hold.release(finished)

    async def stand_down(self, reason: str) -> None:
        """Resign although the job goes on, and count as lost from now on. Raises as `resign`; the lease ends by itself then."""
        if not self._still_valid(self._clock.monotonic_s()):
            return
        self._lose(reason)
        await self._hold.release(False)

    async def _fenced(self, write: Callable[[], Awaitable[None]]) -> None:
        if not self._still_valid(self._clock.monotonic_s()):
            raise LostLeadership(f"term {self.term} is over: {self.reason or 'it was resigned'}")
        try:
            await write()
        except LostLeadership as error:
            self._lose(str(error))
            raise

    def _still_valid(self, now_s: float) -> bool:
        if not self._over and now_s >= self.valid_until_s:
            why = f": {self._problem}" if self._problem else "; this process was held up"
            self._lose(f"the lease of term {self.term} ran out after {self.ttl_s:g} s without a renewal{why}")
        return not self._over

    def _lose(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self.reason = reason
            self.lost.set()
