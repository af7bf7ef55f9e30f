"""Being the one controller: what is saved before an order leaves, and when orders stop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from virtual import Host, Network, run_virtual

from robust_run.launcher.controller.leadership.hold import SAVE_EVERY_S, ElectedHold, LeadershipHold
from robust_run.launcher.controller.leadership.tenure import Leadership
from robust_run.launcher.controller.leadership.types import (
    Candidate,
    CoordinatorUnreachable,
    LeaderRecord,
    LostLeadership,
    RunStanding,
    SavedState,
)
from robust_run.launcher.core.state import Eviction, JobState
from robust_run.launcher.model.actions import EndAttempt, OpenStore, Order
from robust_run.launcher.model.lease_times import LEADER_TTL_S as TTL_S
from robust_run.launcher.model.lease_times import leader_ttl_s as ttl_s


class Hold:
    """What a leader holds, and a coordinator: answers as told."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, JobState]] = []
        self.released: list[bool] = []
        self.trouble: Exception | None = None

    async def renew(self, until_s: float) -> None:
        if isinstance(self.trouble, LostLeadership):
            raise self.trouble

    async def save(self, position: int, state: bytes) -> None:
        await asyncio.sleep(0.01)
        if self.trouble is not None:
            raise self.trouble
        self.saved.append((position, msgspec.msgpack.decode(state, type=JobState)))

    async def put_members(self, members: Mapping[str, bytes | None]) -> None:
        raise AssertionError(members)

    async def release(self, finished: bool) -> None:
        self.released.append(finished)

    async def load(self) -> SavedState | None:
        if not self.saved:
            return None
        position, state = self.saved[-1]
        return SavedState(term=1, position=position, state=msgspec.msgpack.encode(state))

    async def close(self) -> None:
        return

    async def campaign(self, me: Candidate, ttl_s: float) -> Leadership:
        raise AssertionError((me, ttl_s))

    async def leader(self) -> LeaderRecord | None:
        raise AssertionError

    async def standing(self) -> RunStanding | None:
        raise AssertionError

    async def load_members(self) -> dict[str, bytes]:
        raise AssertionError


class Sent:
    """Where orders arrive, with how often had been saved by then."""

    def __init__(self, hold: Hold) -> None:
        self.hold = hold
        self.orders: list[tuple[Order, int]] = []

    def send(self, node: str, order: Order) -> None:
        self.orders.append((order, len(self.hold.saved)))


def elected(hold: Hold, said: list[str], *, saves: bool, term: int = 1) -> ElectedHold:
    host = Host("host", Network(1))
    record = LeaderRecord(term=term, address="a:1", host="a", run_id="run")
    leadership = Leadership(record, hold, TTL_S, host.monotonic_s(), host, host.sleep)
    return ElectedHold(leadership, hold, saves=saves, say=said.append)


OPEN, END = OpenStore(attempt=3, node="a"), EndAttempt(attempt=2)


def test_agents_with_a_longer_lease_give_their_leader_more_time_too() -> None:
    assert [ttl_s(lease_s) for lease_s in (0.5, 3.0, 9.0)] == [TTL_S, TTL_S, 3.0]


def test_without_candidates_nobody_can_take_the_office_away() -> None:
    async def main() -> None:
        office, sent = LeadershipHold(), Sent(Hold())
        assert office.outbox(sent) is sent
        assert (office.term, office.leads_until_s, await office.load()) == (0, float("inf"), None)
        await office.leave()

    run_virtual(main())


def test_an_order_that_begins_an_attempt_waits_until_its_number_is_on_record() -> None:
    async def main() -> None:
        hold = Hold()
        office, sent = elected(hold, [], saves=True), Sent(hold)
        outbox = office.outbox(sent)
        outbox.send("a", END)
        assert sent.orders == [(END, 0)], "ending needs no record"
        office.changed(JobState(attempt=3))
        outbox.send("a", OPEN)
        outbox.send("b", END)
        assert len(sent.orders) == 1
        await asyncio.sleep(0.1)
        assert sent.orders[1:] == [(OPEN, 1), (END, 1)], "in their order, after the save"
        assert hold.saved[0][1].attempt == 3
        await office.leave()
        assert hold.released == [True]

    run_virtual(main())


def test_changes_are_saved_now_and_then_and_loaded_by_the_successor() -> None:
    async def main() -> None:
        hold = Hold()
        office = elected(hold, [], saves=True)
        for attempt in range(50):
            office.changed(JobState(attempt=attempt))
            await asyncio.sleep(SAVE_EVERY_S / 25)
        await asyncio.sleep(2 * SAVE_EVERY_S)
        assert 2 <= len(hold.saved) <= 6
        successor = elected(hold, [], saves=True, term=2)
        loaded = await successor.load()
        assert loaded is not None
        assert (loaded.attempt, successor.is_successor) == (49, True)
        successor.changed(JobState(attempt=50))
        await asyncio.sleep(0.1)
        positions = [position for position, _ in hold.saved]
        assert positions == sorted(set(positions)), "positions only grow, across terms too"
        await office.leave()
        await successor.leave()

    run_virtual(main())


def test_a_store_that_is_away_for_a_moment_holds_the_order_back_and_is_said() -> None:
    async def main() -> None:
        hold, said = Hold(), list[str]()
        office, sent = elected(hold, said, saves=True), Sent(hold)
        hold.trouble = CoordinatorUnreachable("etcd does not answer")
        office.changed(JobState(attempt=3))
        office.outbox(sent).send("a", OPEN)
        await asyncio.sleep(SAVE_EVERY_S / 2)
        assert sent.orders == []
        assert "could not be saved for a successor: etcd does not answer" in said[0]
        hold.trouble = None
        await asyncio.sleep(2 * SAVE_EVERY_S)
        assert sent.orders == [(OPEN, 1)]
        await office.leave()

    run_virtual(main())


def test_who_has_lost_the_leadership_sends_nothing_any_more() -> None:
    async def main() -> None:
        hold, said = Hold(), list[str]()
        office, sent = elected(hold, said, saves=True), Sent(hold)
        hold.trouble = LostLeadership("term 2 has been claimed")
        office.changed(JobState(attempt=3))
        office.outbox(sent).send("a", OPEN)
        await office.lost()
        await asyncio.sleep(5.0)
        assert sent.orders == []
        assert office.leads_until_s == float("-inf")
        assert "term 2 has been claimed" in office.reason
        await office.leave()
        assert hold.released == [], "there is nothing to resign from"

    run_virtual(main())


def test_with_a_shared_journal_nothing_is_saved() -> None:
    async def main() -> None:
        hold = Hold()
        office, sent = elected(hold, [], saves=False), Sent(hold)
        outbox = office.outbox(sent)
        office.changed(JobState(attempt=3))
        outbox.send("a", OPEN)
        assert sent.orders == [(OPEN, 0)]
        await asyncio.sleep(1.0)
        assert hold.saved == []
        await office.leave()

    run_virtual(main())


def test_what_agents_cannot_tell_a_successor_is_saved_at_once() -> None:
    async def main() -> None:
        hold = Hold()
        office = elected(hold, [], saves=True)
        office.changed(JobState(attempt=1))
        await asyncio.sleep(0.05)
        office.changed(JobState(attempt=1, evicted={"a": Eviction(reason="", by="me")}), urgent=True)
        await asyncio.sleep(0.05)
        assert list(hold.saved[-1][1].evicted) == ["a"]
        await office.leave()

    run_virtual(main())
