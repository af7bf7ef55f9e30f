"""The line after the first step."""

from __future__ import annotations

from made_starts import UNIX_S, attempt_of, node_start, slow_node, startup_of

from robust_run.report.startup.advise import advise
from robust_run.report.startup.types import Advice, SchedulerQueue
from robust_run.report.startup.words import advice_line, plain, sentence


def test_it_says_how_long_on_what_and_who_was_slow() -> None:
    said = sentence(slow_node())
    assert said == (
        "first step after 16.0 s: image 0.6, imports 1.0, init 2.1, load 9.8 (slowest: node-7), first step 2.1"
    )


def test_the_queue_is_told_and_not_counted() -> None:
    said = sentence(
        attempt_of(node_start(0), queue=SchedulerQueue(eligible_unix_s=UNIX_S + 59.0, started_unix_s=UNIX_S + 100.0))
    )
    assert said.startswith("first step after 10.0 s: ")
    assert said.endswith("; before that, in the queue 41.0 s")


def test_a_restart_says_of_which_attempt_it_is() -> None:
    said = sentence(attempt_of(node_start(0, attempt=3, began_s=103.0), is_first=False))
    assert said.startswith("first step of attempt 3 after 7.0 s: ")


def test_it_is_silent_before_a_first_step() -> None:
    assert sentence(attempt_of(node_start(0, first_step_s=None))) == ""


def test_ranks_without_a_step_are_counted() -> None:
    said = sentence(attempt_of(node_start(0), node_start(1, first_step_s=None)))
    assert said.endswith("; 2 of 4 ranks have made none")


def test_advice_is_said_only_where_it_is_worth_a_line() -> None:
    assert advice_line((), 10.0) == ""
    assert advice_line((Advice(what="x", why="", saves_s=0.9),), 1.0) == ""
    assert advice_line((Advice(what="x", why="", saves_s=2.0),), 100.0) == ""
    assert "x" in advice_line((Advice(what="x", why="", saves_s=20.0),), 100.0)
    found = slow_node()
    assert "node-7" in advice_line(advise(startup_of(found)), found.total_s)


def test_names_cannot_steer_a_terminal() -> None:
    assert plain("a\x1b[2Jb\n") == "a?[2Jb?"
    assert len(plain("n" * 1000)) <= 40
