"""Who is in the first attempt of a job of several nodes, and how long it waits for them: stories of the core."""

from __future__ import annotations

import pytest
from stories import (
    Story,
    ending,
    gathering,
    kinds,
    several_nodes,
    start_of,
)

from robust_run.launcher.core.attempts import ARRIVING_S
from robust_run.launcher.model.actions import Finish, OpenStore, Say, StartAttempt, WakeAt
from robust_run.launcher.model.events import StoreOpened, Tick
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted, NodeCannotStart


def test_a_job_waits_until_its_nodes_are_there_and_then_starts_at_once() -> None:
    story = gathering(2, 2)
    assert story.joins("a") == []
    assert story.joins("b") == [OpenStore(attempt=0, node="a")]
    order = start_of(story.opens())
    assert (order.world_size, order.nodes, order.address, order.port) == (4, 2, "10.0.0.1", 29500)
    assert [(each.node, each.group_rank, each.first_rank) for each in order.placements] == [("a", 0, 0), ("b", 1, 2)]


def test_waiting_is_said_once_with_what_is_missing() -> None:
    story = Story(fewest=2, most=2, many=True)
    assert story.happens(JobStarted()) == [WakeAt(ARRIVING_S)], "they are just arriving"
    assert story.joins("a", after_s=1) == []
    waits = [Say(text="1 of 2 nodes are here; waiting up to 598 s for more"), WakeAt(600)]
    assert story.happens(Tick(), after_s=ARRIVING_S - 1) == waits
    assert story.happens(Tick(), after_s=5) == []


def test_an_elastic_job_starts_at_once_with_all_it_can_use() -> None:
    story = gathering(1, 3)
    story.joins("a")
    story.joins("b")
    assert kinds(story.joins("c")) == [OpenStore]


def test_an_elastic_job_with_enough_nodes_gives_the_others_a_last_call() -> None:
    story = gathering(2, 4)
    story.joins("a")
    assert story.joins("b", after_s=10) == [Say(text="2 of 4 nodes are here; waiting up to 30 s for more"), WakeAt(40)]
    assert story.joins("c", after_s=20) == [], "another node does not prolong the last call"
    assert story.happens(Tick(), after_s=9.9) == []
    assert story.happens(Tick(), after_s=0.1) == [OpenStore(attempt=0, node="a")]
    assert story.world == ["a", "b", "c"]


def test_a_job_whose_nodes_do_not_come_gives_up_and_says_who_did() -> None:
    story = gathering(3, 3)
    story.joins("a")
    story.joins("b")
    assert kinds(story.happens(Tick(), after_s=599)) == [Say, WakeAt]
    (finish,) = story.happens(Tick(), after_s=1)
    assert finish == Finish(exit_code=1, outcome="failed", reason="only 2 of 3 nodes (a, b) came within 600 s")


def test_giving_up_names_those_that_were_there_and_went() -> None:
    story = gathering(3, 3)
    story.evicts("b")
    for name in "abc":
        story.joins(name)
    story.is_lost("c")
    (finish,) = story.happens(Tick(), after_s=600)
    assert finish.reason == "only 1 of 3 nodes (a) came within 600 s; b evicted, c lost"


def test_a_node_lost_during_the_last_call_makes_the_job_wait_anew() -> None:
    """The nodes were there: what is left of an hour-old join timeout is no measure for another one."""
    story = gathering(2, 3)
    story.joins("a")
    story.joins("b", after_s=590)
    assert story.is_lost("b", after_s=20) == [
        Say(text="1 of 2 nodes are here; waiting up to 600 s for more"),
        WakeAt(610 + 600),
    ]
    assert story.joins("b", id="b2", after_s=5)[-1] == WakeAt(615 + 30), "a last call of its own"
    assert kinds(story.happens(Tick(), after_s=30)) == [OpenStore]


def test_ranks_of_the_first_attempt_follow_the_host_names_as_people_read_them() -> None:
    story = gathering(4, 4)
    for name in ("gpu-10", "gpu-9", "gpu-010x", "cpu"):
        story.joins(name)
    assert story.world == ["cpu", "gpu-9", "gpu-10", "gpu-010x"]


@pytest.mark.parametrize("name", ["", "²", "-", "9" * 5000, "٣", "\x00"])
def test_no_host_name_confuses_the_order(name: str) -> None:
    story = gathering(2, 2)
    story.joins("node-1")
    assert kinds(story.joins(name)) == [OpenStore]


def test_given_node_ranks_come_first() -> None:
    story = gathering(4, 4)
    story.joins("a")
    story.joins("b", node_rank=1)
    story.joins("c")
    story.joins("d", node_rank=0)
    assert story.world == ["d", "b", "a", "c"]


def test_agents_on_one_host_keep_the_order_in_which_they_came() -> None:
    story = gathering(3, 3)
    for node in ("y", "x", "z"):
        story.joins("host", id=node)
    assert [placement.node for placement in story.state.layout] == ["y", "x", "z"]


def test_nodes_may_have_different_numbers_of_workers() -> None:
    story = gathering(3, 3)
    story.joins("a", nproc=1)
    story.joins("b", nproc=4)
    story.joins("c", nproc=2)
    assert [(each.first_rank, each.nproc) for each in story.state.layout] == [(0, 1), (1, 4), (5, 2)]
    assert story.state.world_size == 7
    story.starts()
    assert story.exits(6, -9) == [ending()]


def test_a_node_beyond_the_job_stands_by() -> None:
    story = several_nodes("a", "b")
    assert story.joins("spare") == [Say(text="spare joined and stands by")]
    assert [story.state.standing(member) for member in story.state.members.values()] == ["active", "active", "standby"]


def test_only_the_node_of_rank_0_opens_the_store() -> None:
    story = gathering(2, 2)
    story.joins("a")
    story.joins("b")
    assert story.happens(StoreOpened(attempt=0, node="b", address="10.0.0.2", port=1)) == []
    assert kinds(story.opens()) == [StartAttempt]


def test_a_run_that_may_not_be_the_only_one_begins_with_a_majority_and_goes_on_with_fewer() -> None:
    story = Story(fewest=1, most=3, many=True, last_call_s=0)
    story.happens(JobStarted(needs=2))
    assert story.joins("a", after_s=10) == [
        Say(text="1 of 2 nodes are here; waiting up to 590 s for more"),
        WakeAt(600),
    ]
    assert kinds(story.joins("b", after_s=1)) == [OpenStore]
    story.starts()
    story.is_lost("b")
    assert kinds(story.all_end())[-1] is OpenStore, "needed for the first attempt alone"
    assert story.world == ["a"]


def test_after_a_return_no_attempt_begins_while_old_workers_may_live() -> None:
    story = Story(fewest=2, most=2, many=True)
    assert story.happens(JobStarted(hold_s=4.0)) == [WakeAt(4.0)]
    assert story.joins("a") == []
    assert story.joins("b", after_s=1) == [], "though all are there"
    assert story.happens(Tick(), after_s=2.9) == []
    assert kinds(story.happens(Tick(), after_s=0.1)) == [OpenStore]


# --- a node that a scheduler has started, and that cannot run the job


def no_script(name: str) -> NodeCannotStart:
    return NodeCannotStart(name=name, reason="no such script: train.py")


def test_where_no_other_node_can_come_its_cause_ends_the_wait_of_all() -> None:
    story = gathering(3, 3, exist=3)
    story.joins("a")
    said, end = story.happens(no_script("c"), after_s=1)
    assert said == Say(text="c cannot start the job: no such script: train.py")
    assert isinstance(end, Finish)
    assert (end.exit_code, end.outcome) == (2, "failed")
    assert end.reason == "1 of 3 nodes cannot start the job, which needs 3 (c: no such script: train.py)"


def test_with_standbys_enough_the_job_begins_without_it() -> None:
    story = gathering(2, 2, exist=3)
    assert kinds(story.happens(no_script("c"))) == [Say]
    story.joins("a")
    assert kinds(story.joins("b")) == [OpenStore]


def test_the_same_node_counts_once_and_not_when_it_comes_after_all() -> None:
    story = gathering(2, 2, exist=3)
    story.happens(no_script("c"))
    assert story.happens(no_script("c")) == []
    story.joins("c")
    assert kinds(story.happens(no_script("b"))) == [Say], "a and c can still make it"


def test_where_others_may_come_and_once_it_has_run_the_job_waits() -> None:
    story = gathering(2, 2)
    story.joins("a")
    assert kinds(story.happens(no_script("b"))) == [Say]
    story = several_nodes("a", "b", exist=2)
    assert kinds(story.happens(no_script("c"))) == [Say]
    story.is_lost("b")
    assert Finish not in kinds(story.all_end())


def test_after_a_requeue_what_could_not_start_then_does_not_count() -> None:
    story = gathering(3, 3, exist=4)
    story.happens(no_script("n1"))
    for node in ("a", "b", "c"):
        story.joins(node)
    story.happens(ControllerResumed(term=2, restart=1))
    assert Finish not in kinds(story.happens(no_script("n6"))), "the step has other nodes"


def test_a_controller_that_follows_one_that_died_before_the_start_needs_as_many_nodes() -> None:
    story = Story(fewest=1, most=3, many=True, last_call_s=0)
    story.happens(ControllerResumed(term=2, hold_s=4.0, needs=2))
    story.joins("a", after_s=10)
    assert story.world == []
    assert kinds(story.joins("b", after_s=1)) == [OpenStore]
