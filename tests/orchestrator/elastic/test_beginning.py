"""When a job begins whose nodes come one after the other."""

from __future__ import annotations

from robust_run.orchestrator.model.node_words import Several
from robust_run.orchestrator.rules.elastic.beginning import Beginning


def beginning(fewest: int, nodes: int) -> Beginning:
    several = Several(
        host="h", port=1, nodes=nodes, fewest=fewest, name="a", secret=b"", join_timeout_s=600.0, last_call_s=30.0
    )
    return Beginning(several, 0.0)


def test_with_all_nodes_at_once() -> None:
    assert not beginning(4, 4).is_over(3, 100.0)
    assert beginning(4, 4).is_over(4, 0.0)


def test_with_the_fewest_after_the_last_call() -> None:
    begin = beginning(2, 4)
    assert not begin.is_over(1, 5.0)
    assert not begin.is_over(2, 10.0)
    assert not begin.is_over(3, 39.0)
    assert begin.is_over(3, 40.0)


def test_one_that_leaves_again_ends_the_last_call() -> None:
    begin = beginning(2, 4)
    assert not begin.is_over(2, 10.0)
    assert not begin.is_over(1, 20.0)
    assert not begin.is_over(2, 45.0)
    assert begin.is_over(2, 75.0)


def test_it_is_late_when_the_fewest_have_not_come_in_time_and_not_before() -> None:
    begin = beginning(2, 4)
    assert not begin.is_late(1, 599.0)
    assert not begin.is_late(2, 600.0)
    assert begin.is_late(1, 600.0)
    assert begin.why(["a"]) == (
        "1 of 2 nodes came within 600 s (a); start robust-run on the others with --rdzv-endpoint h:1"
    )


def test_what_is_waited_for_is_said_until_enough_are_here() -> None:
    begin = beginning(2, 4)
    assert begin.words(["a"]) == "a leads the job at h:1; 1 of 2 nodes are here, waiting up to 600 s for more"
    assert begin.words(["a", "b"]) == ""
