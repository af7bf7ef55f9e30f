"""Consumers wait for items, producers for room: who asked first is answered first, and nobody waits too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.orchestrator.model.queue_state import Answer
from robust_run.orchestrator.queue.book import Queue
from robust_run.orchestrator.queue.waiting import Waiting
from robust_run.roles.queue_words import Done, Put, QueueLimits, Took


class Ground:
    """A queue, and what everybody was answered."""

    def __init__(self, path: Path) -> None:
        self.queue = Queue(str(path), QueueLimits(items=2, bytes=100, lease_s=10.0), 0.0, print, "id")
        self.waiting = Waiting(self.queue)
        self.answers: list[tuple[str, Answer]] = []

    def put(self, who: str, size: int = 1, now_s: float = 0.0, wait_s: float = 5.0) -> None:
        """Put an item whose key is who puts it."""
        event = Put(key=who, generation=0, payload=bytes(size))
        self.waiting.tell(event, now_s, wait_s, who, lambda answer: self.answers.append((who, answer)))

    def take(self, who: str, count: int = 1, now_s: float = 0.0, wait_s: float = 5.0, least: int = 0) -> None:
        """Ask for items."""
        event = Took(consumer=who, count=count, least=least)
        self.waiting.tell(event, now_s, wait_s, who, lambda answer: self.answers.append((who, answer)))

    def got(self) -> list[tuple[str, object]]:
        """Return who was answered since, and with what."""
        found: list[tuple[str, object]] = [
            (who, [i.key for i in a.items] if a.items else a.accepted) for who, a in self.answers
        ]
        self.answers.clear()
        return found


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Return a queue of two items."""
    return Ground(tmp_path / "a.queue")


def test_who_asked_first_gets_the_first_item(ground: Ground) -> None:
    ground.take("one")
    ground.take("two")
    assert ground.got() == []
    ground.put("a")
    assert ground.got() == [("a", True), ("one", ["a"])]
    ground.put("b")
    assert ground.got() == [("b", True), ("two", ["b"])]


def test_a_producer_is_answered_once_there_is_room(ground: Ground) -> None:
    for who in "abcd":
        ground.put(who)
    assert ground.got() == [("a", True), ("b", True)]
    ground.take("one")
    assert ground.got() == [("one", ["a"])], "a leased item still takes room"
    ground.waiting.tell(Done(consumer="one", numbers=(0,)), 0.0, 0.0, "one", lambda _: None)
    assert ground.got() == [("c", True)]


def test_a_small_item_does_not_pass_a_large_one_that_waits(ground: Ground) -> None:
    ground.put("a", size=60)
    ground.put("large", size=90)
    ground.put("small", size=1)
    assert ground.got() == [("a", True)]
    ground.take("one")
    ground.waiting.tell(Done(consumer="one", numbers=(0,)), 0.0, 0.0, "one", lambda _: None)
    assert ground.got() == [("one", ["a"]), ("large", True), ("small", True)]


def test_who_has_waited_long_enough_is_told_so_and_not_before(ground: Ground) -> None:
    ground.take("one", wait_s=5.0)
    ground.take("two", wait_s=0.0)
    assert ground.got() == [("two", True)]
    assert ground.waiting.next_s() == 5.0
    ground.waiting.go_on(4.9)
    assert ground.got() == []
    ground.waiting.go_on(5.0)
    assert ground.got() == [("one", True)]
    assert ground.waiting.next_s() is None
    for who in "abcd":
        ground.put(who, now_s=5.0, wait_s=2.0)
    ground.got()
    ground.waiting.go_on(7.0)
    assert ground.got() == [("c", False), ("d", False)]


def test_nothing_is_given_to_who_is_gone(ground: Ground) -> None:
    ground.take("gone")
    ground.take("here")
    ground.waiting.forget("gone")
    ground.put("a")
    assert ground.got() == [("a", True), ("here", ["a"])]
    ground.put("b")
    ground.put("c")
    ground.waiting.forget("c")
    ground.take("here", count=9)
    ground.waiting.tell(Done(consumer="here", numbers=(0, 1)), 0.0, 0.0, "here", lambda _: None)
    assert ground.got() == [("b", True), ("here", ["b"])], "what it wanted to put is not put"


def test_an_item_that_can_never_be_put_is_answered_at_once(ground: Ground) -> None:
    ground.put("a", size=101)
    assert "larger than 100" in ground.answers[0][1].flaw


def test_room_that_stale_items_leave_is_used(ground: Ground) -> None:
    for who in "abc":
        ground.put(who)
    ground.take("one", least=1)
    assert ground.got() == [("a", True), ("b", True), ("c", True)]


def test_a_lease_that_is_over_serves_who_waits(ground: Ground) -> None:
    ground.put("a")
    ground.take("slow")
    ground.take("next", wait_s=30.0)
    ground.got()
    ground.waiting.go_on(10.0)
    assert ground.got() == [("next", ["a"])]
