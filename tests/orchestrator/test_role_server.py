"""Workers and their orchestrator over the loopback: who comes back keeps what it works on, who was given up is refused."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from jobs import wait_for
from role_ground import SECRET, me, orchestrator

from robust_run.errors import PlatformError, UserError
from robust_run.orchestrator.model.words import RankGone, RankReady
from robust_run.roles.queue_words import MOST_ITEM_BYTES, Put, QueueLimits
from robust_run.roles.wire import Frames, WorkerHalf
from robust_run.roles.words import Member, ReadyCall, Told, ToWorker
from robust_run.roles.work_queue import Queue


def test_what_one_puts_another_takes_and_waits_for(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (_, connect):
        one, two = Queue(connect(0), "q"), Queue(connect(1), "q")
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.extend(item.payload for item in two.take()))
        thread.start()
        one.put(b"x", generation=3)
        thread.join()
        assert found == [b"x"]
        assert one.take(timeout_s=0) == []
        assert (one.counts().leased, two.holds()) == (1, (0,))


def test_members_and_their_changes_are_told(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        client = connect(0)
        assert [each.index for each in client.members("rollout")] == [0, 1, 2, 3]
        made.do(lambda: made.server.changed(Member(role="rollout", index=2, generation=5, ready=True)))
        assert client.wait(lambda: any(each.ready for each in client.known("rollout")), 60)
        client.ask(ReadyCall(number=client.number(), address="here\n:1"))
        ready = [event for event in made.events if isinstance(event, RankReady)]
        assert [(event.rank, "\n" in event.address) for event in ready] == [(0, False)]


def test_a_worker_whose_connection_drops_comes_back_and_keeps_what_it_works_on(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        client = connect(0)
        queue, other = Queue(client, "q"), Queue(connect(1), "q")
        for number in range(20):
            queue.put(b"x", key=str(number))
        items = queue.take(5)
        client.ask(ReadyCall(number=client.number(), address="a"))
        for _ in range(3):
            version = client.version
            made.hang_up("rollout/0:0")
            wait_for(lambda seen=version: client.version > seen, "the connection")  # type: ignore[misc]
        assert queue.holds() == (0, 1, 2, 3, 4)
        assert [item.number for item in other.take(5)] == [5, 6, 7, 8, 9]
        assert queue.done(*items) == []
        wait_for(
            lambda: sum(isinstance(event, RankReady) for event in made.events) >= 4, "it says again that it is ready"
        )
        assert sum(isinstance(event, RankGone) for event in made.events) == 3


def test_many_held_items_are_no_hindrance_to_come_back(tmp_path: Path) -> None:
    with orchestrator(tmp_path, limits=QueueLimits(items=20_000)) as (made, connect):
        client = connect(0)
        queue = Queue(client, "q")
        many = [Put(key=str(number), generation=0, payload=b"") for number in range(6000)]
        made.do(lambda: [made.book.open("q", 0.0).tell(put, 0.0) for put in many])
        items = queue.take(6000)
        version = client.version
        made.hang_up("rollout/0:0")
        wait_for(lambda: client.version > version, "the connection")
        assert len(queue.holds()) == 6000
        assert queue.done(*items) == []


def test_requests_that_wait_while_the_connection_drops_are_answered(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        taker, putter = Queue(connect(0), "q"), Queue(connect(1), "q")
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(item.number for item in taker.take()))
        thread.start()
        wait_for(lambda: made.do(lambda: made.server.queues.has_takers("q")), "a taker")
        made.hang_up("rollout/0:0")
        putter.put(b"x")
        thread.join()
        assert found == [0]
        assert taker.counts().leased == 1


def test_what_a_process_that_has_ended_worked_on_is_given_to_others_at_once(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        first, second = connect(0), Queue(connect(1), "q")
        queue = Queue(first, "q")
        queue.put(b"x")
        queue.take()
        first.close()
        assert second.take(timeout_s=0) == [], "it may come back"
        made.ended(0, rank=0)
        assert [item.tries for item in second.take(timeout_s=0)] == [2]


def test_a_launcher_that_has_ended_gives_back_what_all_its_ranks_had_and_nobody_elses(tmp_path: Path) -> None:
    with orchestrator(tmp_path, members=12) as (made, connect):
        mine = [Queue(connect(1, rank), "q") for rank in range(2)]
        other = Queue(connect(10), "q")
        for _ in range(3):
            other.put(b"x")
        for queue in (*mine, other):
            queue.take()
        made.ended(1, rank=None, attempt=1 << 30)
        assert other.counts().waiting == 2
        assert other.holds() == (2,)


def test_a_later_start_takes_the_place_of_an_earlier_one_which_is_refused_from_then_on(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        old, other = connect(0, attempt=0), Queue(connect(1), "q")
        queue = Queue(old, "q")
        queue.put(b"x")
        queue.take()
        new = Queue(connect(0, attempt=1), "q")
        assert new.counts().waiting == 1, "what the earlier one worked on waits again"
        with pytest.raises(PlatformError, match="was given up"):
            queue.put(b"y")
        made.ended(0, rank=0, attempt=0)  # late
        assert [item.number for item in new.take()] == [0]
        assert other.counts().leased == 1


def test_a_process_that_has_ended_according_to_its_launcher_is_not_let_in_again(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        made.ended(0, rank=0, serial=1, attempt=2)
        with pytest.raises(PlatformError, match="was given up"):
            connect(0, serial=1, attempt=2).members("rollout")
        assert connect(0, serial=1, attempt=3).members("rollout")
        made.newest["rollout/1"] = (4, 0)  # known from the journal, by an orchestrator that was started again
        with pytest.raises(PlatformError, match="was given up"):
            connect(1, serial=3).members("rollout")
        assert connect(1, serial=4).members("rollout")


def test_nothing_is_given_to_a_connection_whose_place_was_taken(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        old = Queue(connect(0), "q")

        def take() -> None:
            with pytest.raises(PlatformError, match="was given up"):
                old.take()

        thread = threading.Thread(target=take)
        thread.start()
        wait_for(lambda: made.do(lambda: made.server.queues.has_takers("q")), "a taker")
        new = Queue(connect(0, attempt=1), "q")
        new.put(b"x")
        assert [item.number for item in new.take(timeout_s=0)] == [0]
        thread.join()


def test_an_orchestrator_that_is_started_again_elsewhere_is_found_and_leases_stay(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        queue, other = Queue(connect(0), "q"), Queue(connect(1), "q")
        for number in range(4):
            queue.put(b"x", key=str(number))
        items = queue.take(2)
        kept = other.take(1, keep=True)
        saved = other.state_dict()
        made.stop()
        made.start()
        assert queue.counts().leased == 2
        assert queue.holds() == (0, 1)
        assert queue.done(*items) == []
        assert [item.number for item in other.take(5)] == [3]
        other.load_state_dict(saved)
        assert other.counts().kept == len(kept)
        other.load_state_dict(None)
        assert sorted(item.number for item in other.take(5)) == [2, 3]


def test_a_process_that_was_forked_is_told_to_leave_it(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (_, connect):
        client = connect(0)
        client.members("rollout")
        pid = os.fork()
        if pid == 0:
            told = 0
            for call in (
                lambda: client.members("rollout"),
                lambda: Queue(client, "q").counts(),
                lambda: client.wait(bool, 1),
            ):
                try:
                    call()
                except UserError as error:
                    told += "forked" in str(error)
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert client.members("rollout")


def test_errors_of_a_request_are_the_callers_and_the_connection_stays(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (_, connect):
        client = connect(0)
        with pytest.raises(UserError, match="is no name of a queue"):
            Queue(client, "../q").put(b"")
        with pytest.raises(UserError, match="put it into a file"):
            Queue(client, "q").put(bytes(MOST_ITEM_BYTES + 1))
        with pytest.raises(UserError, match="1 is the least"):
            Queue(client, "q").take(0)
        for state in (
            {},
            {"queue": "q", "of": "x", "through": "1", "beyond": []},
            {"queue": "q", "of": "x", "through": 1, "beyond": ["a"]},
        ):
            with pytest.raises(UserError, match="no state of the queue q"):
                Queue(client, "q").load_state_dict(state)  # type: ignore[arg-type]
        assert Queue(client, "q").put(b"")


def test_a_full_queue_makes_producers_wait_and_says_so_in_time(tmp_path: Path) -> None:
    with orchestrator(tmp_path, limits=QueueLimits(items=1)) as (_, connect):
        queue = Queue(connect(0), "q")
        assert queue.put(b"x")
        assert not queue.put(b"y", timeout_s=0.05)
        assert queue.counts().put == 1


def test_two_hundred_workers_share_the_work_and_each_item_is_done_once(tmp_path: Path) -> None:
    count = 200
    with orchestrator(tmp_path, members=count) as (_, connect):
        clients = [connect(index) for index in range(count)]
        first = Queue(clients[0], "q")
        for _ in range(2 * count):
            first.put(b"x")
        done: list[int] = []

        def work(queue: Queue) -> None:
            while items := queue.take(timeout_s=0):
                assert queue.done(*items) == []
                done.extend(item.number for item in items)

        threads = [threading.Thread(target=work, args=(Queue(client, "q"),)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == list(range(2 * count))


def test_strangers_are_sent_away_and_disturb_nobody(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        queue = Queue(connect(0), "q")
        for data in (b"GET / HTTP/1.0\r\n\r\n", b"\0\0\0\1\xc1", b"\xff" * 100):
            with socket.create_connection(("127.0.0.1", made.port)) as stranger:
                stranger.sendall(data)
                stranger.settimeout(60)
                while stranger.recv(1 << 16):
                    pass
        half, frames = WorkerHalf(SECRET, me(99), "1"), Frames(ToWorker)
        with socket.create_connection(("127.0.0.1", made.port)) as stranger:
            stranger.sendall(frames.frame(half.hello))
        assert queue.put(b"x")


def test_who_reads_nothing_is_given_up_and_others_go_on(tmp_path: Path) -> None:
    with orchestrator(tmp_path) as (made, connect):
        slow, queue = connect(0), Queue(connect(1), "q")
        slow.members("rollout")
        worker = made.server._workers["rollout/0:0"]
        long = Member(role="rollout", index=1, addresses=("x" * (8 << 20),))

        def flood() -> bool:
            for _ in range(4):
                worker.send(Told(member=long))
            return worker._transport is None or worker._transport.is_closing()

        with slow._changed:  # its reading thread stands still
            wait_for(lambda: made.do(flood), "it to be given up")
        assert queue.put(b"x")
        assert slow.members("rollout"), "it has come back"
