"""Shares of their time that workers wait at queues."""

from __future__ import annotations

import pytest

from robust_run.orchestrator.rules.idle import IdleBook


def test_what_waits_at_a_queue_is_idle_and_what_works_is_not() -> None:
    book = IdleBook()
    book.came("rollout/0:0", 0.0)
    book.came("rollout/1:0", 0.0)
    book.asks("rollout/0:0", 2.0)
    book.answered("rollout/0:0", 5.0)
    assert book.shares(10.0) == {"rollout/0": pytest.approx(0.3), "rollout/1": 0.0}


def test_who_waits_now_is_counted_until_now_and_two_threads_once() -> None:
    book = IdleBook()
    book.came("rollout/0:0", 0.0)
    book.asks("rollout/0:0", 4.0)
    book.asks("rollout/0:0", 6.0)
    assert book.shares(8.0) == {"rollout/0": pytest.approx(0.5)}
    book.answered("rollout/0:0", 8.0)
    book.answered("rollout/0:0", 9.0)
    assert book.shares(10.0) == {"rollout/0": pytest.approx(0.5)}


def test_a_member_of_several_ranks_is_their_mean_and_time_begins_anew_with_each_start() -> None:
    book = IdleBook()
    for rank in (0, 1):
        book.came(f"trainer/0:{rank}", 0.0)
    book.asks("trainer/0:1", 0.0)
    assert book.shares(10.0) == {"trainer/0": pytest.approx(0.5)}
    book.came("trainer/0:1", 10.0)
    assert book.shares(20.0) == {"trainer/0": 0.0}
    book.went("trainer/0:0", 30.0)
    book.went("trainer/0:1", 30.0)
    assert book.shares(30.0) == {}


def test_who_is_not_known_changes_nothing() -> None:
    book = IdleBook()
    book.asks("a/0:0", 1.0)
    book.answered("a/0:0", 2.0)
    assert book.shares(3.0) == {}


def test_seconds_are_added_up_over_all_starts_of_a_member() -> None:
    book = IdleBook()
    book.came("rollout/0:0", 0.0)
    book.asks("rollout/0:0", 2.0)
    book.went("rollout/0:0", 6.0)  # while it waited
    assert book.totals(50.0) == {"rollout/0": (4.0, 6.0)}
    book.came("rollout/0:0", 10.0)
    book.asks("rollout/0:0", 11.0)
    assert book.totals(12.0) == {"rollout/0": (5.0, 8.0)}
    book.came("rollout/0:0", 12.0)  # another start, before the end of this one is known
    assert book.totals(13.0) == {"rollout/0": (5.0, 9.0)}
