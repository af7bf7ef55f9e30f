"""What is kept of what nodes say of their steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from robust_run.launcher.controller.steps import StepBook
from robust_run.launcher.model.job import Paces
from robust_run.launcher.operator.gauges.facts import GaugeFacts
from robust_run.launcher.operator.gauges.steps import SOURCES
from robust_run.tracer.pace.types import NodePace, RankPace


def paces(attempt: int = 0, first_rank: int = 0, own_ms: float = 80.0, first: int = 1, count: int = 30) -> Paces:
    ranks = tuple(
        RankPace(first_rank + each, "n", first, (own_ms + each,) * count, (100.0,) * count) for each in range(2)
    )
    return Paces(pace=NodePace(attempt, "n", 0.0, 1.0, ranks), steps=first + count - 1, since_step_s=0.5)


def test_the_newest_step_and_the_slowest_rank_of_each_node() -> None:
    book = StepBook()
    book.take("a", paces(), 10.0)
    book.take("b", paces(first_rank=2, own_ms=95.0), 10.0)
    assert (book.step, book.at_s, book.step_s) == (30, 9.5, pytest.approx(0.1))
    assert book.nodes["b"].rank == 3
    assert book.nodes["b"].own_s == pytest.approx(0.096)


def test_each_step_is_counted_once_though_all_ranks_tell_of_it_and_rounds_overlap() -> None:
    book = StepBook()
    for node in range(4):
        book.take(f"n{node}", paces(first_rank=2 * node), 10.0)
    book.take("n0", paces(first=11), 20.0)
    assert book.spread is not None
    assert book.spread.count == 40
    assert book.spread.total == pytest.approx(4.0)


def test_another_attempt_begins_anew_and_the_lengths_are_kept() -> None:
    book = StepBook()
    book.take("a", paces(), 10.0)
    book.take("a", paces(attempt=1), 99.0)
    assert (book.attempt, book.step) == (1, 30)
    assert book.spread is not None
    assert book.spread.count == 60


def test_slow_steps_are_known_before_there_are_enough_for_a_round() -> None:
    book = StepBook()
    for step, at_s in ((1, 30.0), (2, 60.0)):
        book.take("a", Paces(pace=NodePace(0, "a", 0.0, 1.0, ()), steps=step, since_step_s=0.0), at_s)
    assert (book.step, book.step_s) == (2, pytest.approx(30.0))


def test_the_longest_wait_of_the_attempt_is_known_as_long_as_it_goes_on() -> None:
    def waits(waiting_s: float | None, attempt: int = 0) -> Paces:
        return Paces(pace=NodePace(attempt, "n", 0.0, 1.0, ()), waiting_s=waiting_s)

    book = StepBook()
    assert book.waiting_since_s is None
    book.take("a", waits(3.0), 10.0)
    book.take("b", waits(8.0), 10.0)
    assert book.waiting_since_s == 2.0
    book.take("b", waits(None), 20.0)
    assert book.waiting_since_s == 7.0
    book.take("b", waits(1.0, attempt=1), 30.0)
    assert book.waiting_since_s == 29.0, "of the attempt before nobody waits any more"


def test_a_node_that_has_made_no_step_says_nothing() -> None:
    book = StepBook()
    book.take("a", Paces(pace=NodePace(0, "a", 0.0, 1.0, ())), 10.0)
    assert (book.step, book.nodes) == (0, {})


def test_the_rank_of_a_node_that_waits_longest_for_its_data_is_known_and_told_as_a_metric() -> None:
    book = StepBook()
    ranks = tuple(
        RankPace(rank, "n", 1, (80.0,) * 30, (100.0,) * 30, (wait,) * 30) for rank, wait in ((0, 5.0), (1, 40.0))
    )
    book.take("a", Paces(pace=NodePace(0, "n", 0.0, 1.0, ranks), steps=30), 10.0)
    book.take("b", paces(first_rank=2), 10.0)
    assert book.nodes["a"].late == (1, 0.04) and book.nodes["b"].late is None
    (metric,) = [each(_facts(book)) for each in SOURCES if each.__name__ == "_loader"]
    assert [(sample.labels, sample.value) for sample in metric.samples] == [(("a", "1"), 0.04)]


def _facts(book: StepBook) -> GaugeFacts:
    """What a scraper asks about that wants five nodes named; nothing else is known."""
    return SimpleNamespace(steps=book, name_nodes=5)  # type: ignore[return-value]
