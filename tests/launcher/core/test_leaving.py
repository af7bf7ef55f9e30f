"""Nodes leave in good order, hosts are evicted and readmitted, operators restart and stop a job: stories of the core."""

from __future__ import annotations

import pytest
from stories import (
    TYPO,
    ending,
    evidence,
    gathering,
    incident_of,
    kinds,
    several_nodes,
    told_to_end,
)

from robust_run.launcher.model.actions import EndAttempt, Finish, JobEnds, OpenStore, Say, WakeAt
from robust_run.launcher.model.events import Event, SignalReceived, Tick
from robust_run.launcher.model.node_events import NodeEvicted, RestartAsked

# --- a node leaves ----------------------------------------------------------------------------------------------------


def test_a_node_that_leaves_in_good_order_ends_the_attempt_without_blame() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    story.joins("spare")
    assert story.leaves("b") == [ending()]
    story.ends("b")
    incident, follow_up = story.ends("a")
    assert incident.verdict.sentence == "node b left: maintenance"
    assert (incident.symptom, incident.action) == ("node_left", "relaunch")
    assert follow_up == OpenStore(attempt=1, node="a")
    assert story.world == ["a", "spare"]


def test_a_leaving_node_that_reconnects_is_still_leaving() -> None:
    story = several_nodes("a", "b", fewest=1)
    story.leaves("b")
    assert story.returns("b") == [EndAttempt(attempt=0, signal=15, grace_s=3, only=("b",))]
    story.all_end()
    assert story.world == ["a"]
    assert story.state.standing(story.state.members["b"]) == "left"


def test_a_leaving_node_that_is_lost_is_not_waited_for() -> None:
    story = several_nodes("a", "b", fewest=1)
    story.leaves("b")
    story.ends("a")
    actions = story.is_lost("b")
    assert incident_of(actions).verdict.rule == "node_left"
    assert actions[-1] == OpenStore(attempt=1, node="a")


def test_a_standby_that_leaves_is_said_and_no_more() -> None:
    story = several_nodes("a")
    story.joins("spare")
    assert story.leaves("spare") == [Say(text="spare left: maintenance")]
    assert story.leaves("spare") == []


def test_a_node_that_leaves_while_gathering_is_not_counted() -> None:
    story = gathering(2, 2)
    story.joins("a")
    story.leaves("a")
    assert story.joins("b") == []


# --- eviction ---------------------------------------------------------------------------------------------------------


def test_an_evicted_node_leaves_the_attempt_and_a_standby_takes_its_place() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    story.joins("spare")
    said, end = story.evicts("b")
    assert said == Say(
        text="b is evicted from the job (by operator: bad memory); it waits unused; robust readmit b takes it back",
        node="b",
    )
    assert end == ending()
    incident, follow_up = story.all_end()
    assert (incident.symptom, incident.action, incident.verdict.kind) == ("evicted", "evict", "node_fault")
    assert incident.verdict.sentence == "node b was evicted by operator: bad memory"
    assert follow_up == OpenStore(attempt=1, node="a")
    assert story.world == ["a", "spare"]
    assert story.state.standing(story.state.members["b"]) == "evicted"


def test_an_evicted_standby_is_told_and_nothing_else_happens() -> None:
    story = several_nodes("a")
    story.joins("spare")
    assert kinds(story.evicts("spare")) == [Say]
    story.is_lost("a")
    assert story.state.phase == "gathering", "it is not used"


def test_a_host_can_be_evicted_before_it_ever_joined() -> None:
    story = gathering(1, 1)
    assert story.evicts("bad") == []
    (said,) = story.joins("bad")
    assert said.node == "bad"
    assert story.joins("good") == [OpenStore(attempt=0, node="good")]
    assert story.world == ["good"]


def test_an_evicted_host_cannot_come_back_under_another_id() -> None:
    story = several_nodes("a", "b")
    story.evicts("b")
    story.joins("b", id="b2")
    story.all_end()
    assert story.state.phase == "gathering"


def test_evicting_twice_changes_nothing() -> None:
    story = several_nodes("a", "b")
    story.evicts("b")
    assert story.evicts("b") == []


def test_a_node_evicted_while_the_job_gathers_is_not_counted() -> None:
    story = gathering(2, 3)
    story.joins("a")
    story.joins("b")
    assert story.evicts("b")[-1] == WakeAt(600)
    assert story.happens(Tick(), after_s=30) == []
    assert story.joins("c")[-1] == WakeAt(60)


def test_a_readmitted_node_is_used_from_the_next_attempt_on() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.evicts("b")
    story.all_end()
    story.starts()
    assert story.readmits("b") == [Say(text="readmitted by operator; this node stands by", node="b")]
    assert story.readmits("b") == []
    story.is_lost("spare")
    story.all_end()
    assert story.world == ["a", "b"]


def test_a_readmitted_node_is_used_at_once_by_a_job_that_waits() -> None:
    story = several_nodes("a", "b")
    story.evicts("b")
    story.all_end()
    assert kinds(story.readmits("b", after_s=100)) == [Say, OpenStore]


def test_a_node_evicted_when_all_ranks_have_ended_well_changes_nothing() -> None:
    story = several_nodes("a", "b")
    for rank in range(4):
        story.exits(rank, 0)
    assert kinds(story.evicts("b")) == [Say]
    story.ends("a", evidence(0, 0), evidence(1, 0))
    assert story.ends("b", evidence(2, 0), evidence(3, 0)) == [Finish(exit_code=0, outcome="done")]


def test_a_lost_node_that_was_evicted_meanwhile_is_told_so_when_it_returns() -> None:
    story = several_nodes("a", "b", fewest=1)
    story.is_lost("b")
    story.evicts("b")
    (said,) = story.returns("b")
    assert "evicted" in said.text
    story.all_end()
    assert story.world == ["a"]


# --- operators --------------------------------------------------------------------------------------------------------


def test_an_operators_restart_uses_what_nodes_there_are() -> None:
    story = several_nodes("a", "b", most=3, max_restarts=0)
    story.joins("late")
    assert story.happens(RestartAsked()) == [ending()]
    assert story.happens(RestartAsked()) == [], "once is enough"
    assert incident_of(story.all_end()).verdict.rule == "operator"
    assert story.world == ["a", "b", "late"]


@pytest.mark.parametrize("wish", [RestartAsked(by="ann"), NodeEvicted(name="b", reason="", by="ann")])
def test_who_asked_for_another_attempt_gets_it_though_a_rank_had_failed_a_moment_before(wish: Event) -> None:
    """They were told that the job goes on. That the failure is one that ends jobs is known only when all nodes have ended."""
    story = several_nodes("a", "b")
    story.joins("late")
    story.happens(wish, 9.0)
    story.ends("a", evidence(0, 1, 8.0, finding=TYPO), told_to_end(1, 9.2))
    said = story.ends("b")
    incident = incident_of(said)
    assert (incident.verdict.kind, incident.action) == ("code", "relaunch")
    assert not any(isinstance(each, Finish) for each in said)


def test_exit_code_93_ends_the_job_whatever_was_asked() -> None:
    story = several_nodes("a", "b")
    story.happens(RestartAsked(by="ann"), 9.0)
    story.ends("a", evidence(0, 93, 8.0), told_to_end(1, 9.2))
    assert story.ends("b")[-1].exit_code == 93


def test_a_restart_asked_of_a_job_that_waits_for_nodes_changes_nothing() -> None:
    assert gathering(2, 2).happens(RestartAsked()) == []


def test_stopping_a_job_that_gathers_ends_it_at_once() -> None:
    story = gathering(2, 2)
    story.joins("a")
    assert story.happens(SignalReceived(signal=15, by="ann")) == [
        Finish(exit_code=143, outcome="stopped", reason="stopped by ann")
    ]


def test_stopping_a_job_whose_store_is_being_opened_waits_for_all_nodes() -> None:
    story = gathering(2, 2)
    story.joins("a")
    story.joins("b")
    assert story.happens(SignalReceived(signal=15)) == [
        EndAttempt(attempt=0, signal=15, grace_s=30, leftovers_s=3),
    ]
    assert story.opens() == []
    story.ends("a")
    assert story.ends("b")[-1].outcome == "stopped"


def test_stopping_a_job_that_is_ending_an_attempt_starts_no_other() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.is_lost("b")
    assert story.happens(SignalReceived(signal=15)) == []
    assert story.ends("a") == [Finish(exit_code=143, outcome="stopped", reason="stopped by SIGTERM")]


def test_a_stop_that_reaches_a_node_before_the_controller_gives_the_others_their_full_time() -> None:
    """A scheduler that ends a job tells every node; the first to leave would else leave its peers the grace of a failure."""
    story = several_nodes("a", "b")
    story.leaves("b")
    stop = EndAttempt(attempt=0, signal=15, grace_s=30, leftovers_s=3)
    assert story.happens(SignalReceived(signal=15)) == [stop]
    assert story.happens(SignalReceived(signal=15)) == [], "once is enough"
    assert story.returns("a") == [EndAttempt(attempt=0, signal=15, grace_s=30, leftovers_s=3, only=("a",))]
    story.ends("b")
    assert story.ends("a")[-1].outcome == "stopped"


def test_a_node_lost_while_the_job_is_stopped_is_not_waited_for() -> None:
    story = several_nodes("a", "b")
    story.happens(SignalReceived(signal=2))
    story.ends("a")
    assert story.is_lost("b") == [Finish(exit_code=130, outcome="stopped", reason="stopped by SIGINT")]


# --- nodes are told to leave, and go a moment later -------------------------------------------------------------------


def test_a_node_that_is_told_to_leave_trains_on_until_it_leaves() -> None:
    story = several_nodes("a", "b", fewest=1)
    assert story.is_told("a") == []
    assert story.state.is_training
    assert story.leaves("a", after_s=5) == [ending()]
    story.all_end()
    assert story.world == ["b"]


def test_if_all_nodes_are_told_the_job_ends_as_a_whole_and_those_that_were_told_stay_for_it() -> None:
    story = several_nodes("a", "b", fewest=1)
    story.joins("spare")
    story.is_told("a")
    story.is_told("spare", after_s=1)
    stays, stop = story.is_told("b", after_s=3)
    assert stays == JobEnds(nodes=("a", "b", "spare"))
    assert stop == EndAttempt(attempt=0, signal=15, grace_s=30, leftovers_s=3)
    assert story.is_told("a") == [JobEnds(nodes=("a",))], "said again after a change of controller"
    story.ends("a")
    assert story.ends("b") == [Finish(exit_code=143, outcome="stopped", reason="stopped by SIGTERM on all nodes")]


def test_no_attempt_begins_before_the_last_that_was_told_has_left() -> None:
    story = several_nodes("a", "b", "c", fewest=1)
    story.is_told("a")
    story.is_told("b", after_s=4)
    story.leaves("a", after_s=1)
    assert OpenStore not in kinds(story.all_end()), "b is about to leave, and c may be told next"
    assert story.leaves("b", after_s=4) == [OpenStore(attempt=1, node="c")]


def test_no_attempt_begins_if_the_last_is_told_while_others_leave() -> None:
    story = several_nodes("a", "b", "c", fewest=1)
    story.is_told("a")
    story.is_told("b", after_s=4)
    story.leaves("a", after_s=1)
    story.all_end()
    assert story.is_told("c", after_s=3)[-1] == Finish(
        exit_code=143, outcome="stopped", reason="stopped by SIGTERM on all nodes"
    )


def test_a_node_that_was_told_does_not_take_the_place_of_another() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.is_told("spare")
    story.is_lost("b")
    story.all_end()
    assert kinds(story.leaves("spare")) == [Say, WakeAt], "the job waits for a node"
    assert story.joins("new") == [OpenStore(attempt=1, node="a")]


def test_a_pod_that_is_made_anew_on_the_same_machine_was_not_told() -> None:
    story = several_nodes("a", "b")
    story.is_told("b")
    story.leaves("b", after_s=5)
    story.all_end()
    assert story.joins("b", id="b2") == [OpenStore(attempt=1, node="a")]
    assert story.state.places == {"a": 0, "b2": 1}


def test_a_node_that_was_told_and_is_lost_holds_nobody_up() -> None:
    story = several_nodes("a", "b", fewest=1)
    story.is_told("b")
    story.is_lost("b")
    assert story.ends("a")[-1] == OpenStore(attempt=1, node="a")
    story.starts()
    assert story.is_told("b") == [], "it is gone"


def test_a_job_that_is_told_to_end_keeps_those_that_were_about_to_leave() -> None:
    story = several_nodes("a", "b")
    story.is_told("b")
    stop = EndAttempt(attempt=0, signal=2, grace_s=30, leftovers_s=3)
    assert story.happens(SignalReceived(signal=2)) == [JobEnds(nodes=("b",)), stop]
    story.ends("b")
    assert story.ends("a") == [Finish(exit_code=130, outcome="stopped", reason="stopped by SIGINT")]


def test_an_evicted_node_that_waits_unused_is_one_of_all() -> None:
    story = several_nodes("a", "b", fewest=1)
    story.evicts("b")
    story.all_end()
    story.starts()
    assert story.is_told("a") == [], "b still leads, perhaps, and is not told"
    assert kinds(story.is_told("b")) == [JobEnds, EndAttempt]
