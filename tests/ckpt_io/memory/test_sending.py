"""When copies are sent: the newest at its turn, again after a while where that failed, and never so that a save waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from robust_run.ckpt_io.memory import generations
from robust_run.ckpt_io.memory.agent_protocol import CopyTo, KeeperNote
from robust_run.ckpt_io.memory.budget import MemoryFacts
from robust_run.ckpt_io.memory.buffers import Ledger, reserve
from robust_run.ckpt_io.memory.copies.copying import CopyFailed, Outgoing, Sender
from robust_run.ckpt_io.memory.copies.greeting import Credentials
from robust_run.ckpt_io.memory.copies.sending import QUIET_S, RETRIES_S, SLOW_S, SOON_S, Sending
from robust_run.ckpt_io.memory.generations import Holdings
from robust_run.ckpt_io.memory.pool import Pool

PEER = CopyTo(attempt=0, host="10.0.0.2", port=7, name="node-1")


class Network(Sender):
    """Sends nothing, and answers what the test says."""

    def __init__(self) -> None:
        super().__init__(Credentials(), lambda _: None)
        self.sent: list[tuple[str, int]] = []
        self.fails: CopyFailed | None = None
        self.was_cut = False

    def send(self, to: CopyTo, parts: tuple[Outgoing, ...]) -> int:
        if self.fails is not None:
            raise self.fails
        self.sent.append((to.name, parts[0].push.step))
        return 1

    def cut(self) -> None:
        self.was_cut = True


class Ground:
    """One rank, and a network whose sends end when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.notes: list[str] = []
        self.jobs: list[Callable[[], None]] = []
        ledger = Ledger(MemoryFacts, 1 << 30)
        self.pool = Pool(ledger)
        self.network = Network()
        self.sending = Sending(self.pool, self.network, self.run, self.note, lambda: self.now_s)
        self.holdings = generations.begin_attempt(Holdings(), 0, (0,), 1, None)
        ids = self.pool.take_in(reserve(ledger, 0, 4096, 3, 3))
        self.holdings = generations.add(self.holdings, 0, 4096, ids)
        self.last = 0

    def note(self, said: KeeperNote) -> None:
        self.notes.append(said.text)

    def run(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        def work() -> None:
            try:
                result = job()
            except CopyFailed as error:
                result = error
            then(result)

        self.jobs.append(work)

    def finish(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    def save(self, step: int) -> None:
        """A part becomes whole."""
        free = {each.id for each in self.holdings.buffers} - self.pool.lent
        self.holdings, chosen = generations.make(self.holdings, 0, step, maker=1, free=free)
        assert isinstance(chosen, int), "saving goes on whatever is being sent"
        noted = generations.copied(self.holdings, chosen, 1, step, 10, 1.0)
        assert noted is not None
        part = next(each.part for each in noted.buffers if each.id == chosen)
        assert part is not None
        self.holdings = generations.hashed(noted, chosen, part, bytes(16))
        self.sending.look(self.holdings)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.sending.answer_due(self.holdings)

    def end(self) -> None:
        self.jobs.clear()
        self.pool.free(self.holdings.buffers)
        for name in os.listdir("/proc/self/fd"):
            with_link = f"/proc/self/fd/{name}"
            if os.path.islink(with_link) and "robust-ckpt" in os.readlink(with_link):
                os.close(int(name))


@pytest.fixture
def ground() -> Iterator[Ground]:
    found = Ground()
    yield found
    found.end()


def begin(ground: Ground) -> None:
    ground.sending.begin_attempt(0)
    ground.sending.copy_to(PEER, 0)


def test_each_generation_is_sent_where_there_is_time(ground: Ground) -> None:
    begin(ground)
    for step in (1, 2, 3, 4, 5, 6):
        ground.save(step)
        ground.finish()
    assert ground.network.sent == [("node-1", step) for step in (1, 2, 3, 4, 5, 6)]
    assert ground.pool.lent == set()


def test_what_came_while_another_was_sent_is_left_out_and_the_stride_grows(ground: Ground) -> None:
    begin(ground)
    ground.save(1)
    ground.finish()
    for step in range(2, 30):
        ground.save(step)
        if step % 5 == 0:
            ground.finish()
    assert [step for _, step in ground.network.sent] == [1, 2, 8, 12, 16, 24]
    assert ground.sending.pace.own == 8


def test_the_newest_is_sent_when_nothing_follows(ground: Ground) -> None:
    begin(ground)
    ground.save(1)
    ground.save(2)
    ground.save(3)
    ground.finish()
    assert ground.network.sent == [("node-1", 1)]
    ground.wait(QUIET_S)
    ground.finish()
    assert ground.network.sent == [("node-1", 1), ("node-1", 3)]
    ground.wait(1000.0)
    assert ground.jobs == []


def test_what_there_is_already_is_sent_to_a_new_peer(ground: Ground) -> None:
    ground.sending.begin_attempt(0)
    ground.save(1)
    assert ground.jobs == []
    ground.sending.copy_to(PEER, 0)
    ground.wait(0.0)
    ground.finish()
    assert ground.network.sent == [("node-1", 1)]


def test_a_failure_is_said_once_and_tried_again_later_and_later(ground: Ground) -> None:
    begin(ground)
    ground.network.fails = CopyFailed("it hung up")
    ground.save(1)
    ground.finish()
    assert ground.notes == []
    for number, pause_s in enumerate((*RETRIES_S, RETRIES_S[-1])):
        ground.save(number + 2)
        assert ground.jobs == []
        ground.wait(pause_s - 0.1)
        assert ground.jobs == []
        ground.wait(0.1)
        assert len(ground.jobs) == 1
        ground.finish()
        assert len(ground.notes) == min(number + 1, 1), "what may be over in a moment is no news"
    assert ground.notes == [
        "no copies of checkpoints in memory on node-1: it hung up; it is tried again, training goes on"
    ]
    ground.network.fails = None
    ground.wait(RETRIES_S[-1])
    ground.finish()
    assert ground.network.sent == [("node-1", 8)]
    ground.save(9)
    ground.finish()
    assert ground.network.sent[-1] == ("node-1", 9)


def test_a_peer_that_is_full_is_said_at_once(ground: Ground) -> None:
    begin(ground)
    ground.network.fails = CopyFailed("too little memory", may_pass=False)
    ground.save(1)
    ground.finish()
    assert len(ground.notes) == 1


def test_a_peer_that_is_slow_is_said_once(ground: Ground) -> None:
    begin(ground)
    for step in (1, 2):
        ground.save(step)
        ground.now_s += SLOW_S + 15
        ground.finish()
    assert ground.notes == [
        "copying a step to node-1 takes 75 s: it is kept up with; training does not wait for it",
    ]


def test_a_peer_that_is_not_ready_yet_is_no_news(ground: Ground) -> None:
    begin(ground)
    ground.network.fails = CopyFailed("its own ranks have no buffers yet", is_usual=True)
    ground.save(1)
    ground.finish()
    ground.network.fails = None
    ground.save(2)
    ground.finish()
    assert ground.network.sent == [("node-1", 2)] and ground.notes == []


NOT_READY = "its own ranks have no buffers yet"


def test_a_peer_that_is_not_ready_is_asked_again_soon_and_not_for_ever_that_often(ground: Ground) -> None:
    begin(ground)
    ground.network.fails = CopyFailed(NOT_READY, is_usual=True, is_soon=True)
    ground.save(1)
    ground.finish()
    for pause_s in (*SOON_S, *[SOON_S[-1]] * 20):
        ground.wait(pause_s - 0.01)
        assert ground.jobs == []
        ground.wait(0.011)
        assert len(ground.jobs) == 1
        ground.finish()
    ground.network.fails = None
    ground.wait(SOON_S[-1])
    ground.finish()
    assert ground.network.sent == [("node-1", 1)] and ground.notes == []


def test_what_is_saved_meanwhile_is_offered_at_once_to_a_peer_that_is_not_ready(ground: Ground) -> None:
    begin(ground)
    ground.network.fails = CopyFailed(NOT_READY, is_usual=True, is_soon=True)
    ground.save(1)
    ground.finish()
    ground.network.fails = None
    ground.save(2)
    ground.finish()
    assert ground.network.sent == [("node-1", 2)]


def test_to_be_not_ready_is_no_failure_and_a_failure_is_tried_as_late_as_ever(ground: Ground) -> None:
    begin(ground)
    ground.save(1)
    later, broken = CopyFailed(NOT_READY, is_usual=True, is_soon=True), CopyFailed("it hung up")
    for error, pause_s in ((later, SOON_S[0]), (broken, RETRIES_S[0]), (broken, RETRIES_S[1]), (later, SOON_S[1])):
        ground.network.fails = error
        ground.finish()
        ground.wait(pause_s - 0.01)
        assert ground.jobs == []
        ground.wait(0.011)
        assert len(ground.jobs) == 1, (error, pause_s)


@pytest.mark.parametrize("is_ready", [True, False])
def test_another_peer_in_the_same_attempt_is_asked_at_once_however_the_one_before_failed(
    ground: Ground, is_ready: bool
) -> None:
    begin(ground)
    ground.network.fails = CopyFailed("it hung up")
    ground.save(1)
    ground.finish()
    for pause_s in RETRIES_S[:3]:
        ground.wait(pause_s)
        ground.finish()
    ground.network.fails = None if is_ready else CopyFailed(NOT_READY, is_usual=True, is_soon=True)
    ground.sending.copy_to(CopyTo(attempt=0, host="10.0.0.3", port=7, name="node-2"), 0)
    ground.wait(0.0)
    ground.finish()
    ground.network.fails = None
    if not is_ready:
        ground.wait(SOON_S[0] + 0.001)
        ground.finish()
    assert ground.network.sent == [("node-2", 1)]


def test_a_new_attempt_gives_up_what_is_being_sent_and_waits_to_be_told_where_to(ground: Ground) -> None:
    begin(ground)
    ground.save(1)
    ground.holdings = generations.begin_attempt(ground.holdings, 1, (0,), 1, 1)
    ground.sending.begin_attempt(1)
    assert ground.network.was_cut
    ground.sending.copy_to(CopyTo(attempt=1, host="10.0.0.3", port=7, name="node-2"), 1)
    ground.wait(0.0)
    ground.network.fails = CopyFailed("it was cut", is_usual=True)
    ground.finish()
    ground.network.fails = None
    ground.wait(0.0)
    ground.finish()
    assert ground.network.sent == [("node-2", 1)] and ground.notes == []


def test_an_order_for_an_attempt_that_has_not_begun_waits_for_it(ground: Ground) -> None:
    ground.sending.copy_to(CopyTo(attempt=1, host="10.0.0.3", port=7, name="node-2"), 0)
    ground.save(1)
    assert ground.jobs == []
    ground.holdings = generations.begin_attempt(ground.holdings, 1, (0,), 1, 1)
    ground.sending.begin_attempt(1)
    ground.wait(0.0)
    ground.finish()
    assert ground.network.sent == [("node-2", 1)]


def test_nobody_is_sent_to_any_more_when_that_is_said(ground: Ground) -> None:
    begin(ground)
    ground.save(1)
    ground.sending.copy_to(CopyTo(attempt=0), 0)
    ground.finish()
    ground.save(2)
    ground.wait(1000.0)
    assert ground.jobs == []
