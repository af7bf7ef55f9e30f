"""Leadership by a real etcd: one successor, fenced writes, etcd restarted, hanging and gone."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from controllers import refusing
from etcd import Etcd, running_etcd
from following import wait_for_leader
from jobs import wait_for

from robust_run.clock import SystemClock
from robust_run.errors import UserError
from robust_run.launcher.controller.leadership.address import parse_coordinator
from robust_run.launcher.controller.leadership.choice import open_coordinator
from robust_run.launcher.controller.leadership.etcd import EtcdCoordinator
from robust_run.launcher.controller.leadership.etcd_client import EtcdClient
from robust_run.launcher.controller.leadership.etcd_keys import Keys
from robust_run.launcher.controller.leadership.etcd_messages import (
    Empty,
    LeaseGrant,
    LeaseGrantReply,
    LeaseKeepAlive,
    LeaseKeepAliveReply,
    Range,
    RangeReply,
    Txn,
)
from robust_run.launcher.controller.leadership.tenure import Leadership
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
STUCK_S = 90.0
CLOCK = SystemClock()
CLIENTS: list[EtcdClient] = []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One etcd for all tests that leave it in peace; each has a job of its own there."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Etcd]:
    """One for a test that disturbs it."""
    with running_etcd(tmp_path) as server:
        yield server


def bounded(main: Awaitable[T]) -> T:
    """Run a test's coroutine; what it opened is closed, and no request is left under way."""

    async def within() -> T:
        try:
            return await asyncio.wait_for(main, STUCK_S)
        finally:
            for client in CLIENTS:
                await client.close()

    try:
        return asyncio.run(within())
    finally:
        wait_for(lambda: not any(client.busy for client in CLIENTS), "requests end")
        CLIENTS.clear()


def client_of(url: str) -> EtcdClient:
    CLIENTS.append(EtcdClient(parse_coordinator(url)))
    return CLIENTS[-1]


def coordinator(server: Etcd, job: str, problems: list[str] | None = None) -> EtcdCoordinator:
    listening = problems.append if problems is not None else lambda _: None
    return EtcdCoordinator(client_of(server.url), job, CLOCK, on_problem=listening)


def named(name: str, run_id: str = "run") -> Candidate:
    return Candidate(address=f"{name}:29400", host=name, run_id=run_id)


async def elected(server: Etcd, job: str, name: str = "a", run_id: str = "run", ttl_s: float = KEPT_S) -> Leadership:
    return await coordinator(server, job).campaign(named(name, run_id), ttl_s)


async def renewed(leadership: Leadership) -> bool:
    """Renew until etcd has answered in time; False: the leadership was lost."""
    while not await leadership.renew():
        if not leadership.is_valid(CLOCK.monotonic_s()):
            return False
    return True


async def keys(server: Etcd, job: str) -> list[bytes]:
    leader = Keys(job).leader
    root = leader[: -len(b"leader")]
    request = Range(key=root, range_end=root[:-1] + b"0")
    client = client_of(server.url)
    reply = await client.call("/v3/kv/range", request, RangeReply, STUCK_S)
    return [pair.key[len(root) :] for pair in reply.kvs]


def test_of_three_one_leads_and_when_it_stops_renewing_one_other_follows(shared: Etcd) -> None:
    async def main() -> None:
        campaigns = [asyncio.ensure_future(elected(shared, "three", name, ttl_s=TTL_S)) for name in "abc"]
        done, waiting = await asyncio.wait(campaigns, return_when=asyncio.FIRST_COMPLETED)
        first = next(iter(done)).result()
        keeping = asyncio.ensure_future(first.keep())
        await asyncio.sleep(1.5 * TTL_S)
        assert first.is_valid(CLOCK.monotonic_s())
        assert not any(task.done() for task in waiting), "nobody follows a leader that lives"
        keeping.cancel()
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        second = next(iter(done)).result()
        assert second.term > first.term
        assert not first.is_valid(CLOCK.monotonic_s())
        assert len(waiting) == 1
        assert await coordinator(shared, "three").leader() == second.record
        next(iter(waiting)).cancel()

    bounded(main())


def test_who_resigns_is_followed_by_the_next_term(shared: Etcd) -> None:
    async def main() -> None:
        first = await elected(shared, "resign")
        following = asyncio.ensure_future(wait_for_leader(coordinator(shared, "resign"), newer_than=1, every_s=0.05))
        await first.resign()
        assert await coordinator(shared, "resign").leader() is None
        second = await elected(shared, "resign", "b")
        assert (first.term, second.term) == (1, 2)
        assert await following == second.record

    bounded(main())


def test_a_finished_job_gets_no_successor_and_leaves_a_note_that_goes_by_itself(shared: Etcd) -> None:
    async def main() -> None:
        first = await elected(shared, "finish")
        await first.save(1, bytes(2 << 20))
        await first.put_members({"n1": b"1"})
        waiting = asyncio.ensure_future(elected(shared, "finish", "b", ttl_s=TTL_S))
        await first.resign(finished=True)
        with pytest.raises(JobFinished, match="run 'run'"):
            await waiting
        with pytest.raises(JobFinished):
            await coordinator(shared, "finish").leader()
        assert await keys(shared, "finish") == [b"ledger"]
        again = await elected(shared, "finish", "a", run_id="another run")
        assert again.term == 2
        assert await coordinator(shared, "finish").load() is None

    bounded(main())


def test_a_name_that_another_run_uses_is_refused(shared: Etcd) -> None:
    async def main() -> None:
        first = await elected(shared, "taken", "a", run_id="one")
        keeping = asyncio.ensure_future(first.keep())
        with pytest.raises(UserError, match=r"'taken' is used in etcd by run 'one' on a"):
            await elected(shared, "taken", "b", run_id="two", ttl_s=2.0)
        keeping.cancel()

    bounded(main())


def test_a_crashed_run_s_state_is_no_other_run_s(shared: Etcd) -> None:
    async def main() -> None:
        first = await elected(shared, "crashed", "a", run_id="one", ttl_s=TTL_S)
        await first.save(1, b"state")
        await first.put_members({"n1": b"1"})
        second = await elected(shared, "crashed", "a", run_id="two")
        assert second.term == 2
        assert await coordinator(shared, "crashed").load() is None
        assert await coordinator(shared, "crashed").load_members() == {}

    bounded(main())


def test_names_of_jobs_cannot_reach_into_each_other(shared: Etcd) -> None:
    async def main() -> None:
        inner, outer = await elected(shared, "a/members"), await elected(shared, "a")
        await inner.save(1, b"inner")
        await outer.resign(finished=True)
        saved = await coordinator(shared, "a/members").load()
        assert saved is not None
        assert saved.state == b"inner"

    bounded(main())


def test_a_successor_finds_what_was_saved_last_however_large(shared: Etcd) -> None:
    async def main() -> None:
        first = await elected(shared, "saved")
        keeping = asyncio.ensure_future(first.keep())
        large = bytes(range(256)) * (12 << 10)
        for position, state in enumerate((b"", large, large[1:], b"small", large[7:])):
            await first.save(position, state)
        assert len([key for key in await keys(shared, "saved") if key.startswith(b"parts/")]) == 6
        keeping.cancel()
        await first.resign()
        await elected(shared, "saved", "b")
        saved = await coordinator(shared, "saved").load()
        assert saved is not None
        assert (saved.term, saved.position) == (1, 4)
        assert saved.state == large[7:]

    bounded(main())


def test_ten_thousand_members_are_put_and_found(shared: Etcd) -> None:
    async def main() -> None:
        first = await elected(shared, "many")
        keeping = asyncio.ensure_future(first.keep())
        members = {f"node-{index:05d}/0": b"%d" % index * 60 for index in range(10_000)}
        await first.put_members(members)
        await first.put_members({"node-00007/0": None, "node-00008/0": b"new"})
        del members["node-00007/0"]
        members["node-00008/0"] = b"new"
        assert await coordinator(shared, "many").load_members() == members
        keeping.cancel()
        await first.resign(finished=True)

    bounded(main())


def test_what_a_deposed_leader_writes_is_refused(shared: Etcd) -> None:
    async def main() -> None:
        first = await elected(shared, "deposed", ttl_s=TTL_S)
        await first.save(1, b"good")
        second = await elected(shared, "deposed", "b", ttl_s=TTL_S)  # the first is held up and renews nothing
        with pytest.raises(LostLeadership):
            await first.save(2, b"bad")
        hold = first._hold  # past its own clock: etcd refuses it too
        with pytest.raises(LostLeadership, match="b leads with term 2"):
            await hold.save(2, b"bad")
        with pytest.raises(LostLeadership):
            await hold.put_members({"n1": b"bad"})
        with pytest.raises(LostLeadership):
            while True:
                with contextlib.suppress(CoordinatorUnreachable):  # etcd was slow to say it
                    await hold.renew(CLOCK.monotonic_s() + STUCK_S)
        saved = await coordinator(shared, "deposed").load()
        assert saved is not None
        assert saved.state == b"good"
        await second.resign()

    bounded(main())


def test_an_etcd_that_restarts_keeps_the_leader_or_at_least_the_terms(own: Etcd) -> None:
    async def main() -> None:
        first = await elected(own, "restart", ttl_s=2 * TTL_S)
        await first.save(1, b"state")
        keeping = asyncio.ensure_future(first.keep())
        own.kill()
        await asyncio.to_thread(own.start)
        if first.is_valid(CLOCK.monotonic_s()):
            assert await renewed(first)
            await first.resign()
        await keeping
        second = await elected(own, "restart", "b")
        assert second.term == 2
        saved = await coordinator(own, "restart").load()
        assert saved is not None
        assert saved.state == b"state"

    bounded(main())


@pytest.mark.parametrize("how", ["gone", "hangs"])
def test_without_etcd_the_leader_s_time_runs_out_and_candidates_wait(own: Etcd, how: str) -> None:
    async def main() -> None:
        first = await elected(own, "unreachable", ttl_s=TTL_S)
        keeping = asyncio.ensure_future(first.keep())
        assert await renewed(first)
        own.kill() if how == "gone" else own.pause()
        await asyncio.wait_for(first.lost.wait(), STUCK_S)
        assert not first.is_valid(CLOCK.monotonic_s())
        assert "127.0.0.1" in first.reason
        await keeping
        problems: list[str] = []
        waiting = asyncio.ensure_future(coordinator(own, "unreachable", problems).campaign(named("b"), TTL_S))
        while not problems:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        if how == "gone":
            await asyncio.to_thread(own.start)
        else:
            own.resume()
        assert (await waiting).term == 2

    bounded(main())


def test_any_endpoint_will_do(shared: Etcd) -> None:
    async def main() -> None:
        with refusing() as port:
            url = f"etcd://127.0.0.1:{port},no-such-host.invalid:1,127.0.0.1:{shared.port}"
            place = EtcdCoordinator(client_of(url), "endpoints", CLOCK)
            assert (await place.campaign(named("a"), KEPT_S)).term == 1

    bounded(main())


def test_refusals_and_silence_are_told_apart(shared: Etcd) -> None:
    async def main() -> None:
        client = client_of(shared.url)
        with pytest.raises(CoordinatorRefused, match="etcd at 127"):
            await client.call("/v3/no/such/thing", Empty(), Empty, STUCK_S)
        with pytest.raises(CoordinatorRefused, match="key is not provided"):
            await client.call("/v3/kv/range", Range(key=b""), RangeReply, STUCK_S)
        with refusing() as port, pytest.raises(CoordinatorUnreachable, match="refused"):
            await client_of(f"etcd://127.0.0.1:{port}").call("/v3/kv/txn", Txn(), Empty, STUCK_S)

    bounded(main())


def test_a_lease_that_has_ended_is_seen_as_such(shared: Etcd) -> None:
    async def main() -> None:
        client = client_of(shared.url)
        alive = await client.call("/v3/lease/keepalive", LeaseKeepAlive(id=12345), LeaseKeepAliveReply, STUCK_S)
        assert alive.result.ttl == 0
        granted = await client.call("/v3/lease/grant", LeaseGrant(ttl=1), LeaseGrantReply, STUCK_S)
        assert granted.ttl >= 1

    bounded(main())


def test_something_else_on_the_port_is_not_taken_for_etcd() -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        place = EtcdCoordinator(client_of(f"etcd://127.0.0.1:{port}"), "job", CLOCK)
        with pytest.raises(CoordinatorRefused, match="does not answer as etcd"):
            await place.campaign(named("a"), TTL_S)
        server.close()
        await server.wait_closed()

    bounded(main())


def test_the_option_chooses_the_place(shared: Etcd, tmp_path: Path) -> None:
    async def main() -> None:
        for option in (shared.url, ""):
            place = open_coordinator(option, "", "choice", str(tmp_path), CLOCK, lambda _: None)
            leadership = await place.campaign(named("a"), KEPT_S)
            assert leadership.record == await place.leader()
            await leadership.resign()
            await place.close()

    bounded(main())
    assert (tmp_path / "leader" / "term-000001").exists()


def test_a_connection_that_is_free_again_while_the_client_closes_is_closed_too() -> None:
    client = EtcdClient(parse_coordinator("etcd://127.0.0.1:1"))

    class ClosedMeanwhile(list[http.client.HTTPConnection]):
        def append(self, connection: http.client.HTTPConnection) -> None:
            asyncio.run(client.close())
            super().append(connection)

    connection = http.client.HTTPConnection("127.0.0.1", 1)
    here, there = socket.socketpair()
    connection.sock = here
    client._idle["127.0.0.1", 1] = ClosedMeanwhile()
    client._keep(("127.0.0.1", 1), connection)
    there.close()
    assert connection.sock is None


def test_certificates_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UserError, match="--tls-ca"):
        EtcdClient(parse_coordinator("etcd+https://127.0.0.1:2379", "/no/such/ca.pem"))
