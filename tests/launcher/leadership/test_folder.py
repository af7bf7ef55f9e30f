"""Leadership by a real folder: one successor, fenced writes, a folder that hangs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest
from following import wait_for_leader

from robust_run.clock import SystemClock
from robust_run.launcher.controller.leadership.folder import FolderCoordinator
from robust_run.launcher.controller.leadership.folder_files import SharedFolder
from robust_run.launcher.controller.leadership.folder_records import LeaderSign, LeaderSuspicion, newest_term, numbered
from robust_run.launcher.controller.leadership.tenure import Leadership
from robust_run.launcher.controller.leadership.threads import MOST_STUCK, in_thread
from robust_run.launcher.controller.leadership.types import (
    Candidate,
    CoordinatorRefused,
    CoordinatorUnreachable,
    JobFinished,
    LostLeadership,
)

T = TypeVar("T")
TTL_S = 6.0
"""Of a leader whose end is waited for: a busy machine that stands still for some seconds ends nobody's lease."""
KEPT_S = 30.0
"""Of one that is to lead for the whole test, without a renewal."""
STUCK_S = 120.0
CLOCK = SystemClock()


def bounded(main: Awaitable[T]) -> T:
    async def within() -> T:
        return await asyncio.wait_for(main, STUCK_S)

    return asyncio.run(within())


def coordinator(folder: Path) -> FolderCoordinator:
    return FolderCoordinator(SharedFolder(str(folder)), CLOCK)


def named(name: str) -> Candidate:
    return Candidate(address=f"{name}:29400", host=name, run_id="run")


async def elected(folder: Path, name: str = "a", ttl_s: float = KEPT_S) -> Leadership:
    return await coordinator(folder).campaign(named(name), ttl_s)


def test_of_three_one_leads_and_when_it_stops_renewing_one_other_follows(tmp_path: Path) -> None:
    async def main() -> None:
        names = ["a", "b", "c"]
        campaigns = {asyncio.ensure_future(elected(tmp_path, name, TTL_S)): name for name in names}
        done, waiting = await asyncio.wait(campaigns, return_when=asyncio.FIRST_COMPLETED)
        first = next(iter(done)).result()
        keeping = asyncio.ensure_future(first.keep())
        await asyncio.sleep(1.5 * TTL_S)
        assert first.term == 1
        assert first.is_valid(CLOCK.monotonic_s())
        assert not any(task.done() for task in waiting), "nobody follows a leader that lives"
        keeping.cancel()
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        second = next(iter(done)).result()
        assert second.term > first.term
        assert not first.is_valid(CLOCK.monotonic_s())
        assert len(waiting) == 1
        leader = await coordinator(tmp_path).leader()
        assert leader == second.record
        next(iter(waiting)).cancel()

    bounded(main())


def test_a_leader_that_was_lost_at_once_is_followed_by_one_with_a_longer_lease_and_who_looks_knows_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        first = await elected(tmp_path, ttl_s=1.0)
        second = await elected(tmp_path, "b", ttl_s=1.0)
        assert (first.ttl_s, second.ttl_s) == (1.0, 2.0)
        assert not first.is_valid(CLOCK.monotonic_s())
        standing = await coordinator(tmp_path).standing()
        assert standing is not None and standing.ttl_s == 2.0
        await second.resign()
        assert (await elected(tmp_path, "c", ttl_s=1.0)).ttl_s == 1.0, "who resigns was not held up"

    bounded(main())


def test_who_resigns_is_followed_by_the_next_term(tmp_path: Path) -> None:
    async def main() -> None:
        first = await elected(tmp_path)
        await first.resign()
        assert await coordinator(tmp_path).leader() is None
        second = await elected(tmp_path, "b")
        assert (first.term, second.term) == (1, 2)

    bounded(main())


def test_a_finished_job_gets_no_successor(tmp_path: Path) -> None:
    async def main() -> None:
        first = await elected(tmp_path)
        waiting = asyncio.ensure_future(elected(tmp_path, "b", TTL_S))
        await first.resign(finished=True)
        with pytest.raises(JobFinished, match="run 'run'"):
            await waiting
        with pytest.raises(JobFinished):
            await wait_for_leader(coordinator(tmp_path), newer_than=1, every_s=0.01)

    bounded(main())


def test_a_successor_finds_what_was_saved_last(tmp_path: Path) -> None:
    async def main() -> None:
        first = await elected(tmp_path)
        assert await coordinator(tmp_path).load() is None
        await first.save(3, b"old")
        await first.save(5, b"new")
        await first.put_members({"n1": b"1", "n2": b"2"})
        await first.put_members({"n1": None, "n3": b"3", "n2": b"two"})
        await first.resign()
        second = await elected(tmp_path, "b")
        saved = await coordinator(tmp_path).load()
        assert saved is not None
        assert (saved.term, saved.position, saved.state) == (1, 5, b"new")
        assert await coordinator(tmp_path).load_members() == {"n2": b"two", "n3": b"3"}
        await second.put_members({"n4": b"4"})
        assert await coordinator(tmp_path).load_members() == {"n2": b"two", "n3": b"3", "n4": b"4"}

    bounded(main())


def test_many_saves_leave_few_files(tmp_path: Path) -> None:
    async def main() -> None:
        first = await elected(tmp_path)
        keeping = asyncio.ensure_future(first.keep())
        for number in range(100):
            await first.put_members({f"n{number % 7}": b"%d" % number})
            await first.save(number, b"state")
        assert len(await coordinator(tmp_path).load_members()) == 7
        names = os.listdir(tmp_path)
        assert len(numbered(names, "state")) == 1
        assert len(numbered(names, "members")) < 40
        keeping.cancel()

    bounded(main())


def test_what_a_deposed_leader_writes_is_refused_and_never_read(tmp_path: Path) -> None:
    async def main() -> None:
        first = await elected(tmp_path, ttl_s=TTL_S)
        await first.save(1, b"good")
        hold = first._hold
        second = await elected(tmp_path, "b", TTL_S)  # the first is held up and renews nothing
        with pytest.raises(LostLeadership):
            await first.save(2, b"bad")
        with pytest.raises(LostLeadership, match="term 2"):
            await hold.save(2, b"bad")  # past its own clock: the folder refuses it too
        with pytest.raises(LostLeadership, match="term 2"):
            await hold.put_members({"n1": b"bad"})
        with pytest.raises(LostLeadership, match="term 2"):
            await hold.renew(CLOCK.monotonic_s() + STUCK_S)
        await second.resign()
        await elected(tmp_path, "c", TTL_S)
        saved = await coordinator(tmp_path).load()
        assert saved is not None
        assert saved.state == b"good"
        assert await coordinator(tmp_path).load_members() == {}

    bounded(main())


def test_an_unwritable_folder_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoordinatorRefused, match="cannot list"):
        bounded(elected(tmp_path / "file"))


def test_creating_is_exclusive_and_leaves_nothing_aside(tmp_path: Path) -> None:
    async def main() -> list[bool]:
        files = SharedFolder(str(tmp_path / "leader"))
        return await asyncio.gather(*(files.create("term-000001", b"%d" % index, STUCK_S) for index in range(8)))

    assert sorted(bounded(main())) == [False] * 7 + [True]
    assert os.listdir(tmp_path / "leader") == ["term-000001"]
    assert (tmp_path / "leader").stat().st_mode & 0o077 == 0
    assert (tmp_path / "leader" / "term-000001").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".."])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no file name"):
        bounded(SharedFolder(str(tmp_path)).replace(name, b"", STUCK_S))


class HangingFolder(SharedFolder):
    """A folder whose file server dies when told to."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.alive = threading.Event()
        self.alive.set()

    def _replace(self, name: str, data: bytes) -> None:
        assert self.alive.wait(STUCK_S)
        super()._replace(name, data)


def test_a_folder_that_hangs_blocks_neither_the_loop_nor_the_leader_s_own_judgement(tmp_path: Path) -> None:
    async def main() -> None:
        files = HangingFolder(str(tmp_path))
        first = await FolderCoordinator(files, CLOCK).campaign(named("a"), TTL_S)
        keeping = asyncio.ensure_future(first.keep())
        files.alive.clear()
        await asyncio.wait_for(first.lost.wait(), STUCK_S)
        assert not first.is_valid(CLOCK.monotonic_s())
        assert "no answer within" in first.reason
        await keeping
        second = await elected(tmp_path, "b", TTL_S)
        files.alive.set()  # its heartbeats arrive now
        assert second.term == 2
        assert await second.renew()
        assert await coordinator(tmp_path).leader() == second.record

    bounded(main())


def test_a_call_that_hangs_is_given_up_and_hanging_calls_do_not_pile_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hangs")

    def hanging() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == f"read {str(tmp_path)!r}"]

    async def main() -> None:
        files = SharedFolder(str(tmp_path))
        for _ in range(MOST_STUCK):
            with pytest.raises(CoordinatorUnreachable, match="no answer within"):
                await files.read("hangs", 0.01)
        with pytest.raises(CoordinatorUnreachable, match="still hang"):
            await files.read("hangs", STUCK_S)
        assert len(hanging()) == MOST_STUCK

    bounded(main())
    give_up_at_s = CLOCK.monotonic_s() + STUCK_S
    while hanging() and CLOCK.monotonic_s() < give_up_at_s:  # again for one that had not come as far as opening it
        os.close(os.open(tmp_path / "hangs", os.O_RDWR))  # now they can go on, and end
        time.sleep(0.01)
    assert hanging() == []


def test_what_a_thread_raises_reaches_who_waits() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bounded(in_thread(fail, STUCK_S, "divide", set()))


def test_silence_is_counted_from_the_first_sight_of_the_latest_sign() -> None:
    suspicion = LeaderSuspicion()
    assert suspicion.silent_s(LeaderSign(1, b"a"), 99.9, 100.0) == 0.0
    assert suspicion.silent_s(LeaderSign(1, b"a"), 101.5, 101.6) == 1.5
    assert suspicion.silent_s(LeaderSign(1, b"b"), 101.9, 102.0) == 0.0
    assert suspicion.silent_s(LeaderSign(2, b"b"), 102.9, 103.0) == 0.0
    assert suspicion.silent_s(LeaderSign(2, b"b"), 105.0, 109.0) == 2.0, "it was stopped while it looked"


def test_strange_names_in_the_folder_mean_nothing() -> None:
    assert newest_term([".x", "term-7", "term-000003", "term-000012.tmp", "heartbeat-000099", "xterm-000044"]) == 3
    assert newest_term(["term-1000000", "term-999999"]) == 1000000
    assert newest_term([]) == 0
