"""A leader knows by its own clock when it must have stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from virtual import Host, Network, run_virtual

from robust_run.errors import UserError
from robust_run.launcher.controller.leadership.tenure import Leadership, check_ttl, safety_margin_s
from robust_run.launcher.controller.leadership.types import (
    CoordinatorRefused,
    CoordinatorUnreachable,
    LeaderRecord,
    LostLeadership,
)

TTL_S = 2.0
LEADER = LeaderRecord(term=7, address="a:1", host="a", run_id="run")


class Hand:
    """A `Hold` that does as told."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.answer_after_s = 0.0
        self.error: Exception | None = None
        self.released: list[bool] = []
        self.saved: list[int] = []

    async def renew(self, until_s: float) -> None:
        await self._act()

    async def save(self, position: int, state: bytes) -> None:
        await self._act()
        self.saved.append(position)

    async def put_members(self, members: Mapping[str, bytes | None]) -> None:
        await self._act()

    async def release(self, finished: bool) -> None:
        await self._act()
        self.released.append(finished)

    async def _act(self) -> None:
        await self._host.sleep(self.answer_after_s)
        if self.error is not None:
            raise self.error


class Office:
    """A leadership just won, on a host in virtual time."""

    def __init__(self) -> None:
        self.host = Host("a", Network(0))
        self.hand = Hand(self.host)
        self.won_at_s = self.host.monotonic_s()
        self.leadership = Leadership(LEADER, self.hand, TTL_S, self.won_at_s, self.host, self.host.sleep)

    @property
    def valid(self) -> bool:
        return self.leadership.is_valid(self.host.monotonic_s())


def test_validity_counts_from_when_the_renewal_was_sent_not_answered() -> None:
    async def main() -> None:
        office = Office()
        office.hand.answer_after_s = 1.0
        sent_at_s = office.host.monotonic_s()
        assert await office.leadership.renew()
        assert office.leadership.valid_until_s == pytest.approx(sent_at_s + TTL_S - safety_margin_s(TTL_S), abs=1e-6)

    run_virtual(main())


def test_a_leader_that_keeps_renewing_stays() -> None:
    async def main() -> None:
        office = Office()
        keeping = asyncio.ensure_future(office.leadership.keep())
        await office.host.sleep(100 * TTL_S)
        assert office.valid
        assert not keeping.done()

    run_virtual(main())


def test_one_that_cannot_reach_the_coordinator_is_lost_by_itself_and_says_why() -> None:
    async def main() -> None:
        office = Office()
        office.hand.error = CoordinatorUnreachable("etcd at a:1 does not answer")
        await asyncio.wait_for(office.leadership.keep(), 2 * TTL_S)
        assert not office.valid
        assert office.leadership.lost.is_set()
        assert "etcd at a:1 does not answer" in office.leadership.reason
        assert office.host.monotonic_s() - office.won_at_s <= TTL_S

    run_virtual(main())


def test_a_failed_renewal_is_tried_again_while_there_is_time() -> None:
    async def main() -> None:
        office = Office()
        office.hand.error = CoordinatorUnreachable("no")
        keeping = asyncio.ensure_future(office.leadership.keep())
        await office.host.sleep(TTL_S / 2)
        office.hand.error = None
        await office.host.sleep(5 * TTL_S)
        assert office.valid
        assert not keeping.done()

    run_virtual(main())


def test_a_paused_leader_finds_itself_out_of_office_whatever_it_hears_then() -> None:
    async def main() -> None:
        office = Office()
        keeping = asyncio.ensure_future(office.leadership.keep())
        await office.host.sleep(0.1)
        office.host.paused_until_s = asyncio.get_running_loop().time() + 2 * TTL_S
        await office.host.sleep(0)
        assert not office.valid
        await keeping
        assert not office.valid
        assert "held up" in office.leadership.reason
        with pytest.raises(LostLeadership):
            await office.leadership.save(1, b"")
        assert office.hand.saved == []

    run_virtual(main())


def test_an_answer_that_comes_too_late_does_not_bring_the_office_back() -> None:
    async def main() -> None:
        office = Office()
        office.hand.answer_after_s = TTL_S - 0.1
        assert not await office.leadership.renew()
        assert not office.valid
        assert office.leadership.lost.is_set()

    run_virtual(main())


def test_a_refused_write_ends_it() -> None:
    async def main() -> None:
        office = Office()
        office.hand.error = LostLeadership("term 8 has been claimed")
        with pytest.raises(LostLeadership):
            await office.leadership.save(1, b"")
        assert not office.valid
        assert office.leadership.reason == "term 8 has been claimed"

    run_virtual(main())


def test_a_failure_in_renewing_that_nobody_expected_ends_it_too() -> None:
    async def main() -> None:
        office = Office()
        office.hand.error = KeyError("kvs")
        with pytest.raises(KeyError):
            await office.leadership.keep()
        assert office.leadership.lost.is_set()

    run_virtual(main())


@pytest.mark.parametrize("finished", [True, False])
def test_who_resigns_stops_before_it_says_so(finished: bool) -> None:
    async def main() -> None:
        office = Office()
        office.hand.answer_after_s = 0.5
        resigning = asyncio.ensure_future(office.leadership.resign(finished))
        await office.host.sleep(0.1)
        assert office.hand.released == []
        assert not office.valid
        await resigning
        assert office.hand.released == [finished]
        assert not office.leadership.lost.is_set()
        await asyncio.wait_for(office.leadership.keep(), 1)

    run_virtual(main())


def test_sizes_are_limited() -> None:
    async def main() -> None:
        office = Office()
        with pytest.raises(CoordinatorRefused, match="at most"):
            await office.leadership.save(1, bytes((64 << 20) + 1))
        with pytest.raises(CoordinatorRefused, match="limits"):
            await office.leadership.put_members({"a": bytes((64 << 10) + 1)})
        with pytest.raises(CoordinatorRefused, match="limits"):
            await office.leadership.put_members({"a" * 257: b""})
        assert office.valid

    run_virtual(main())


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 0.5, float("nan")])
def test_a_lease_that_nobody_could_keep_is_refused(ttl_s: float) -> None:
    with pytest.raises(UserError, match="too short"):
        check_ttl(ttl_s)
