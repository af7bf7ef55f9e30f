"""The controller's hold on its leadership: for a job without candidates always, else as long as the election lasts.

With candidates and no shared journal, what a successor needs is saved where the candidates meet, before an order that begins an
attempt leaves this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.controller.leadership.coordinator import Coordinator
from robust_run.launcher.controller.leadership.tenure import Leadership
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import OpenStore, Order
from robust_run.launcher.model.lease_times import leader_ttl_s, lease_times
from robust_run.launcher.model.links import Outbox

#: The state is saved at most this often, except before a new attempt.
SAVE_EVERY_S = 0.5
#: After it stood down, a node lets others have so many turns, each as long as a leader's lease.
TURNS = 2.0


class LeadershipHold:
    """The right to control. This one is for a job without candidates: nobody can take it away."""

    term = 0
    reason = ""
    is_successor = False

    is_saved = True
    """Whether a successor would know the state as it is, as far as it is not in the journal."""

    @property
    def leads_until_s(self) -> float:
        """Until when, on the monotonic clock, nobody else can lead."""
        return float("inf")

    async def load(self) -> JobState | None:
        """Return the state a predecessor saved, None if it is in the journal."""
        return None

    def changed(self, state: JobState, *, urgent: bool = False) -> None:
        """Take note that the state has changed; `urgent`: in a way that a successor cannot learn from the agents."""

    def outbox(self, outbox: Outbox) -> Outbox:
        """Return the way that orders must take."""
        return outbox

    async def lost(self) -> None:
        """Wait until somebody else may lead."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """Say that the job is over."""

    def stand_down(self, reason: str, *, turns: float = TURNS) -> None:
        """Let another candidate lead, if there is one, before this node may again: so many turns, each of a leader's lease."""

    async def rest(self) -> None:
        """Wait, after the leadership is lost, until this node may compete for it again."""


class ElectedHold(LeadershipHold):
    """The hold of an elected controller on its leadership."""

    def __init__(
        self, leadership: Leadership, coordinator: Coordinator, *, saves: bool, say: Callable[[str], None]
    ) -> None:
        self.term = leadership.term
        self.is_successor = leadership.term > 1
        self._leadership = leadership
        self._coordinator = coordinator
        self._saves = saves
        self._say = say
        self._keeping = asyncio.ensure_future(leadership.keep())
        self._state: JobState | None = None
        self._position = 0
        self._dirty = asyncio.Event()
        self._urgent = asyncio.Event()
        self._changes = self._saved_changes = 0
        self._held: list[tuple[str, Order]] = []
        self._inner: Outbox | None = None
        self._standing_down: asyncio.Future[None] | None = None
        self._saving = asyncio.ensure_future(self._save_now_and_then()) if saves else None

    @property
    def leads_until_s(self) -> float:
        """See `LeadershipHold`."""
        return float("-inf") if self._leadership.lost.is_set() else self._leadership.valid_until_s

    @property
    def is_saved(self) -> bool:  # type: ignore[override]
        """See `LeadershipHold`."""
        return not self._saves or self._saved_changes == self._changes

    @property
    def reason(self) -> str:  # type: ignore[override]
        """Why it was lost."""
        return self._leadership.reason

    async def load(self) -> JobState | None:
        """See `LeadershipHold`."""
        saved = await self._coordinator.load() if self._saves else None
        if saved is None:
            return None
        self._position = saved.position
        return msgspec.msgpack.decode(saved.state, type=JobState)

    def changed(self, state: JobState, *, urgent: bool = False) -> None:
        """See `LeadershipHold`."""
        self._state = state
        self._changes += 1
        self._dirty.set()
        if urgent:
            self._urgent.set()

    def outbox(self, outbox: Outbox) -> Outbox:
        """See `LeadershipHold`."""
        self._inner = outbox
        return self if self._saves else outbox

    def send(self, node: str, order: Order) -> None:
        """Pass an order on; one that begins an attempt, and all after it, once the attempt's number is on record."""
        assert self._inner is not None
        if isinstance(order, OpenStore) or self._held:
            self._held.append((node, order))
            self._urgent.set()
            self._dirty.set()
        else:
            self._inner.send(node, order)

    async def _save_now_and_then(self) -> None:
        """Keep the saved state close to the true one."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            self._urgent.clear()
            held, count, changes = self._held, len(self._held), self._changes
            if self._state is not None:
                self._position += 1
                try:
                    await self._leadership.save(self._position, msgspec.msgpack.encode(self._state))
                except PlatformError as error:
                    if self._leadership.lost.is_set():
                        return
                    self._say(f"the state of the job could not be saved for a successor: {error}")
                    self._dirty.set()
                    await asyncio.sleep(SAVE_EVERY_S)
                    continue
            self._saved_changes = changes
            for node, order in held[:count]:
                assert self._inner is not None
                self._inner.send(node, order)
            del held[:count]
            if not self._urgent.is_set():
                with_timeout = asyncio.wait_for(self._urgent.wait(), SAVE_EVERY_S)
                try:
                    await with_timeout
                except asyncio.TimeoutError:
                    continue

    async def lost(self) -> None:
        """See `LeadershipHold`."""
        await self._leadership.lost.wait()

    def stand_down(self, reason: str, *, turns: float = TURNS) -> None:
        """See `LeadershipHold`."""
        if self._standing_down is None:
            self._standing_down = asyncio.ensure_future(self._stand_down(reason, turns))

    async def _stand_down(self, reason: str, turns: float) -> None:
        try:
            await self._leadership.stand_down(reason)
        except PlatformError as error:
            self._say(f"candidates could not be told that this controller stands down: {error}")
        await asyncio.sleep(turns * self._leadership.ttl_s)

    async def rest(self) -> None:
        """See `LeadershipHold`."""
        if self._standing_down is not None:
            await self._standing_down

    async def leave(self) -> None:
        """See `LeadershipHold`."""
        if self._saving is not None:
            self._saving.cancel()
        try:
            await self._leadership.resign(finished=True)
        except PlatformError as error:
            self._say(f"candidates could not be told that the job is over: {error}")
        self._keeping.cancel()
        await self._coordinator.close()


async def take_hold(config: ControllerConfig, clock: Clock, say: Callable[[str], None]) -> LeadershipHold:
    """Return at once where there are no candidates; else wait until elected. Raises PlatformError, UserError."""
    many = config.spec.many
    if many is None or many.controller_standby == 0:
        return LeadershipHold()
    from robust_run.launcher.controller.leadership.choice import name_in_etcd, open_coordinator
    from robust_run.launcher.controller.leadership.types import Candidate

    run_id = config.run_path.rpartition("/")[2]
    coordinator = open_coordinator(
        many.coordinator, many.tls_ca, name_in_etcd(config.spec), config.run_path, clock, say
    )
    me = Candidate(address=config.address, host=config.host, run_id=run_id)
    leadership = await coordinator.campaign(me, leader_ttl_s(lease_times(many).lease_s))
    return ElectedHold(leadership, coordinator, saves=bool(many.coordinator), say=say)
