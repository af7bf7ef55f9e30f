"""A node is lost at a bad moment, or ends its workers unasked: what is waited for, and what is the cause."""

from __future__ import annotations

import pytest
from stories import (
    BUG,
    PEER,
    ending,
    evidence,
    gathering,
    incident_of,
    kinds,
    several_nodes,
    told_to_end,
)

from robust_run.launcher.model.actions import EndAttempt, Finish, OpenStore, RecordIncident, Say, WakeAt
from robust_run.launcher.model.events import AttemptEnded, Tick
from robust_run.launcher.model.job import Progress
from robust_run.launcher.model.node_events import ControllerResumed

# --- a node is lost at a bad moment -----------------------------------------------------------------------------------


def test_a_loss_while_gathering_only_means_one_fewer() -> None:
    story = gathering(2, 2)
    story.joins("a")
    assert kinds(story.is_lost("a")) == [Say, WakeAt]
    assert story.joins("b") == []
    assert kinds(story.joins("c")) == [OpenStore]
    assert story.world == ["b", "c"]


@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_loss_while_the_store_is_opened_ends_the_attempt_before_it_began(gone: str) -> None:
    story = gathering(2, 2)
    story.joins("a")
    story.joins("b")
    other = "b" if gone == "a" else "a"
    assert story.is_lost(gone) == [ending()]
    assert story.opens() == [], "nobody starts workers for it any more"
    never_started = AttemptEnded(attempt=0, node=other, started_at_s=0, ranks=(), progress=Progress())
    incident = incident_of(story.happens(never_started))
    assert (incident.verdict.rule, incident.verdict.nodes) == ("node_lost", (gone,))
    assert story.joins("c") == [OpenStore(attempt=1, node="c" if gone == "a" else "a")]


def test_a_loss_while_others_are_ended_is_waited_for_and_added() -> None:
    story = several_nodes("a", "b", "c")
    story.joins("spare")
    story.joins("spare2")
    story.is_lost("b")
    story.ends("a")
    actions = story.is_lost("c")
    assert kinds(actions) == [RecordIncident, OpenStore]
    assert actions[0].verdict.nodes == ("b", "c")
    assert story.world == ["a", "spare", "spare2"]


def test_a_node_lost_after_it_ended_the_attempt_is_not_waited_for() -> None:
    story = several_nodes("a", "b", fewest=1)
    story.exits(0, -9)
    story.ends("b")
    story.is_lost("b")
    assert story.state.phase == "ending"
    actions = story.ends("a", evidence(0, -9), told_to_end(1, 2))
    assert incident_of(actions).verdict.rule == "died_of_signal"
    assert story.world == ["a"]


def test_a_node_lost_when_all_ranks_have_ended_well_changes_nothing() -> None:
    story = several_nodes("a", "b")
    for rank in range(4):
        actions = story.exits(rank, 0)
    assert actions == [EndAttempt(attempt=0, leftovers_s=3)]
    story.ends("a", evidence(0, 0), evidence(1, 0))
    assert story.is_lost("b") == [Finish(exit_code=0, outcome="done")]


def test_a_job_is_done_even_if_its_nodes_were_cut_off_before_they_could_say_so() -> None:
    """They ended their workers, which had all done their work by then; nothing is left to do again."""
    story = several_nodes("a", "b")
    story.exits(0, 0)
    story.exits(1, 0)
    story.ends("a", evidence(0, 0), evidence(1, 0), fenced_after_s=3.0)
    assert story.ends("b", evidence(2, 0), evidence(3, 0), fenced_after_s=3.0) == [Finish(exit_code=0, outcome="done")]


# --- which is the cause: the rank or the node -------------------------------------------------------------------------


def test_a_rank_that_failed_before_the_node_went_silent_is_the_cause() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    story.exits(0, 1, BUG, after_s=10)
    story.is_lost("b", after_s=8)
    incident, finish = story.ends("a", evidence(0, 1, 10, finding=BUG), told_to_end(1, 10.5))
    assert incident.verdict.rule == "user_exception"
    assert "node b stopped answering" in incident.verdict.aftermath
    assert (finish.exit_code, finish.outcome) == (1, "failed"), "a bug is not excused by a node that went later"


def test_a_rank_that_failed_after_the_node_had_gone_silent_is_its_victim() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    story.exits(0, -6, after_s=12)
    story.is_lost("b", after_s=1)
    incident = incident_of(story.ends("a", evidence(0, -6, 12), told_to_end(1, 12.5)))
    assert incident.verdict.nodes == ("b",)
    assert incident.verdict.rule == "node_lost"
    assert story.state.phase == "gathering"


def test_peers_that_only_lost_their_connections_are_victims_whenever_they_noticed() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    assert story.exits(0, 1, PEER, after_s=10) == [WakeAt(10.5)]
    story.exits(1, 1, PEER)
    story.happens(Tick(), after_s=0.5)
    story.ends("a", evidence(0, 1, 10, finding=PEER), evidence(1, 1, 10, finding=PEER))
    assert story.state.phase == "ending", "the silent node may still run its workers"
    incident = incident_of(story.is_lost("b", after_s=3.2))
    assert incident.verdict.rule == "node_lost"
    assert story.state.phase == "gathering"


def test_a_node_lost_while_a_peer_is_suspected_ends_the_suspicion() -> None:
    story = several_nodes("a", "b")
    story.exits(0, 1, PEER)
    assert story.is_lost("b") == [ending()]
    assert story.happens(Tick(), after_s=0.5) == []


def test_causes_of_one_attempt_are_forgotten_in_the_next() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    story.is_lost("b")
    story.all_end()
    story.returns("b")
    story.starts()
    story.exits(0, 1, BUG, after_s=10)
    story.ends("a", evidence(0, 1, 10, finding=BUG), told_to_end(1, 10.5))
    incident, finish = story.ends("b")
    assert incident.verdict.rule == "user_exception"
    assert finish.outcome == "failed"


# --- a node ends its workers by itself --------------------------------------------------------------------------------


def test_a_node_that_was_cut_off_and_is_back_has_ended_its_workers() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    story.returns("b", after_s=50)
    assert story.ends("b", fenced_after_s=3.0) == [ending()]
    incident, follow_up = story.ends("a")
    assert incident.verdict.sentence == "node b could not reach the controller for 3.0 s and ended its workers"
    assert (incident.symptom, incident.action, incident.onset_at_s) == ("node_lost", "relaunch", 47)
    assert follow_up == OpenStore(attempt=1, node="a")
    assert story.world == ["a", "b"], "it is there, so it is used again"


def test_a_node_that_was_cut_off_while_the_controller_moved_is_not_to_blame() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    story.happens(ControllerResumed(term=2, hold_s=4.0), after_s=50)
    story.returns("b", after_s=1)
    assert story.ends("b", fenced_after_s=3.0) == [ending()]
    incident, *_ = story.ends("a", after_s=3)
    assert (incident.verdict.nodes, incident.verdict.rule, incident.action) == ((), "node_fenced", "relaunch")
    assert incident.verdict.sentence == "node b could not reach the controller for 3.0 s and ended its workers"


def test_a_node_that_ends_its_workers_unasked_is_the_cause_whatever_it_says_later() -> None:
    """It leaves, and was cut off before it could say so."""
    story = several_nodes("a", "b", max_restarts=0)
    story.returns("b")
    assert story.ends("b") == [ending()]
    story.leaves("b")
    incident = incident_of(story.ends("a"))
    assert incident.verdict.rule == "node_left"
    assert story.state.phase == "gathering"


def test_a_node_whose_rank_failed_while_it_was_cut_off_does_not_hide_it() -> None:
    story = several_nodes("a", "b", max_restarts=0)
    story.returns("b", after_s=50)
    failed = evidence(2, 1, 40, finding=BUG)
    story.ends("b", failed, told_to_end(3, 49), fenced_after_s=3.0)
    incident, finish = story.ends("a")
    assert incident.verdict.ranks == (2,)
    assert isinstance(finish, Finish)
