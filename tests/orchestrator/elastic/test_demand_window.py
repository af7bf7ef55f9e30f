"""What is measured of workers at queues, window by window."""

from __future__ import annotations

import pytest

from robust_run.orchestrator.model.demand_words import MemberDemand
from robust_run.orchestrator.rules.elastic.window import DemandBook
from robust_run.roles.queue_words import Done, GiveBack, Keep, Position, Put, Restore, Took

TAKE, PUT = Took(consumer="", count=1), Put(key="", generation=0, payload=b"")


def window(book: DemandBook, now_s: float) -> dict[str, MemberDemand]:
    return book.window({}, now_s, is_starved=False).members


def test_waits_are_counted_in_the_window_in_which_they_are() -> None:
    book = DemandBook()
    book.came("a/0:0", 0.0)
    assert book.window({}, 10.0, is_starved=False).length_s == 0.0, "it is not known what was before"
    book.asks("q", "a/0:0", TAKE, 15.0)
    assert window(book, 20.0)["a/0"].waits == {"q": pytest.approx(0.5)}
    assert window(book, 30.0)["a/0"].waits == {"q": pytest.approx(1.0)}
    book.answered("q", "a/0:0", TAKE, 33.0, got=True)
    seen = window(book, 40.0)["a/0"]
    assert (seen.waits, seen.took) == ({"q": pytest.approx(0.3)}, {"q": 1})
    assert window(book, 50.0)["a/0"] == MemberDemand(is_whole=True)


def test_waits_for_room_are_others_and_who_has_put_is_warm_from_then_on() -> None:
    book = DemandBook()
    book.came("a/0:0", 0.0)
    window(book, 0.0)
    book.asks("q", "a/0:0", PUT, 2.0)
    book.answered("q", "a/0:0", PUT, 4.0, got=True)
    seen = window(book, 10.0)["a/0"]
    assert (seen.blocked, seen.put, seen.has_put, seen.idle) == (
        {"q": pytest.approx(0.2)},
        {"q": 1},
        True,
        pytest.approx(0.2),
    )
    assert window(book, 20.0)["a/0"].has_put


def test_a_member_is_the_mean_of_its_ranks_and_whole_when_none_of_them_is_new() -> None:
    book = DemandBook()
    book.came("a/0:0", 0.0)
    book.came("a/0:1", 0.0)
    window(book, 0.0)
    book.asks("q", "a/0:0", TAKE, 0.0)
    seen = window(book, 10.0)["a/0"]
    assert (seen.waits, seen.is_whole) == ({"q": pytest.approx(0.5)}, True)
    book.came("a/0:1", 12.0)
    assert not window(book, 20.0)["a/0"].is_whole
    assert window(book, 30.0)["a/0"].is_whole
    book.went("a/0:0")
    book.went("a/0:1")
    assert window(book, 40.0) == {}


def test_an_answer_to_nobody_and_one_that_brings_nothing() -> None:
    book = DemandBook()
    book.answered("q", "gone/0:0", TAKE, 1.0, got=True)
    book.came("a/0:0", 0.0)
    window(book, 0.0)
    book.asks("q", "a/0:0", TAKE, 0.0)
    book.answered("q", "a/0:0", TAKE, 5.0, got=False)
    seen = window(book, 10.0)["a/0"]
    assert (seen.waits, seen.took) == ({"q": pytest.approx(0.5)}, {})


def test_a_thread_that_fetches_the_next_item_beside_the_work_is_no_idleness() -> None:
    book = DemandBook()
    book.came("a/0:0", 0.0)
    window(book, 0.0)
    book.asks("q", "a/0:0", TAKE, 0.0)
    book.answered("q", "a/0:0", TAKE, 2.0, got=True, numbers=[7])
    book.asks("q", "a/0:0", TAKE, 2.0)
    book.asks("q", "a/0:0", Done(consumer="a/0:0", numbers=(7,)), 9.0)
    seen = window(book, 10.0)["a/0"]
    assert (seen.idle, seen.waits) == (pytest.approx(0.3), {"q": pytest.approx(0.3)})


def test_who_waits_for_room_with_the_item_that_its_own_came_from_is_idle_and_one_of_two_threads_is_not() -> None:
    book = DemandBook()
    book.came("a/0:0", 0.0)
    window(book, 0.0)
    book.asks("q", "a/0:0", TAKE, 0.0)
    book.answered("q", "a/0:0", TAKE, 0.0, got=True, numbers=[7])
    book.asks("out", "a/0:0", PUT, 5.0)
    assert window(book, 10.0)["a/0"].idle == pytest.approx(0.5)
    book.asks("q", "a/0:0", TAKE, 10.0)
    book.answered("q", "a/0:0", TAKE, 10.0, got=True, numbers=[8])
    assert window(book, 20.0)["a/0"].idle == 0.0


def test_items_that_are_kept_given_back_or_restored_are_worked_on_no_more() -> None:
    for event in (
        Keep(consumer="", numbers=(7,)),
        GiveBack(consumer="", numbers=(7,)),
        Restore(consumer="", position=Position()),
    ):
        book = DemandBook()
        book.came("a/0:0", 0.0)
        window(book, 0.0)
        book.asks("q", "a/0:0", TAKE, 0.0)
        book.answered("q", "a/0:0", TAKE, 0.0, got=True, numbers=[7])
        book.asks("q", "a/0:0", event, 0.0)
        book.asks("q", "a/0:0", TAKE, 0.0)
        assert window(book, 10.0)["a/0"].idle == 1.0
