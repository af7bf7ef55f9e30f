"""Orders that did not arrive, and a controller that continues where another died: stories of the core."""

from __future__ import annotations

import copy
from typing import Any

from stories import (
    PEER,
    Story,
    ending,
    evidence,
    gathering,
    incident_of,
    kinds,
    one_node,
    several_nodes,
    start_of,
    told_to_end,
)

from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Dismiss, EndAttempt, OpenStore, RecordIncident, Say, StartAttempt, WakeAt
from robust_run.launcher.model.events import AttemptEnded, RankExited, SignalReceived, Tick
from robust_run.launcher.model.job import NodeInfo, Progress
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted, NodeJoined, NodeReturned

# --- orders that did not arrive ---------------------------------------------------------------------------------------


def test_a_node_that_missed_nothing_is_told_nothing() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    assert [story.returns(node) for node in ("a", "b", "spare")] == [[], [], []]


def test_the_order_to_open_the_store_is_repeated_to_the_node_of_rank_0_only() -> None:
    story = gathering(2, 2)
    story.joins("a")
    story.joins("b")
    assert story.returns("a") == [OpenStore(attempt=0, node="a")]
    assert story.returns("b") == []


def test_the_order_to_start_is_repeated_to_a_node_that_has_not_started() -> None:
    story = gathering(2, 2)
    story.joins("a")
    story.joins("b")
    story.opens()
    story.node_started("a")
    assert story.returns("a") == []
    order = start_of(story.returns("b"))
    assert [placement.node for placement in order.placements] == ["b"]
    assert (order.world_size, order.nodes, order.address, order.port) == (4, 2, "10.0.0.1", 29500)


def test_the_order_to_end_is_repeated_to_a_node_that_has_not_ended() -> None:
    story = several_nodes("a", "b")
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 2))
    assert story.returns("a") == []
    assert story.returns("b") == [EndAttempt(attempt=0, signal=15, grace_s=3, only=("b",))]


def test_the_newest_order_to_end_is_the_one_repeated() -> None:
    story = several_nodes("a", "b")
    story.happens(SignalReceived(signal=15))
    story.happens(SignalReceived(signal=15, again=True))
    assert story.returns("b") == [EndAttempt(attempt=0, only=("b",))]


def test_a_node_unknown_to_the_job_is_not_taken_in_by_returning() -> None:
    assert several_nodes("a").returns("stranger") == []


def test_joining_again_is_returning() -> None:
    story = several_nodes("a", "b")
    story.is_lost("b")
    story.all_end()
    assert story.joins("b") == [OpenStore(attempt=1, node="a")]
    assert len(story.state.members) == 2


# --- the controller dies and another continues ------------------------------------------------------------------------


def resumed(story: Story, after_s: float = 1000.0) -> list[Any]:
    """Continue from the journal, on a machine with another clock; return what is done first."""
    before = story.state
    story.state = replay(story.policy, story.told)
    assert story.state == before
    return story.happens(ControllerResumed(term=before.term + 1), after_s)


def test_a_controller_that_died_before_anything_happened_begins() -> None:
    story = Story(fewest=1, most=1, many=True)
    assert kinds(resumed(story)) == [Say, WakeAt]
    assert kinds(story.joins("a")) == [OpenStore]


def test_a_resumed_controller_waits_for_nodes_anew() -> None:
    story = gathering(2, 3)
    story.joins("a")
    assert resumed(story)[-1] == WakeAt(1600)
    story.joins("b")
    assert resumed(story)[-1] == WakeAt(2030), "the last call, too"
    assert story.happens(Tick(), after_s=30) == [OpenStore(attempt=0, node="a")]


def test_a_controller_resumed_at_the_very_same_moment_asks_to_be_woken_again() -> None:
    assert resumed(gathering(2, 3), after_s=0)[-1] == WakeAt(600)


def test_a_controller_resumed_while_the_store_is_opened_asks_for_it_when_its_node_is_back() -> None:
    story = gathering(2, 2)
    story.joins("a")
    story.joins("b")
    assert resumed(story) == []
    assert story.returns("b") == []
    assert story.returns("a") == [OpenStore(attempt=0, node="a")]
    assert kinds(story.opens()) == [StartAttempt]


def test_a_resumed_controller_lets_workers_train_on() -> None:
    story = several_nodes("a", "b")
    assert resumed(story) == []
    assert story.returns("a") == []
    assert story.returns("b") == []
    assert story.state.phase == "running"


def test_a_node_that_does_not_return_to_a_resumed_controller_is_lost_like_any() -> None:
    story = several_nodes("a", "b")
    resumed(story)
    story.returns("a")
    assert story.is_lost("b", after_s=3.5) == [ending()]


def test_a_controller_resumed_while_it_suspects_is_patient_once_more() -> None:
    story = several_nodes("a", "b")
    story.exits(0, 1, PEER)
    assert resumed(story) == [WakeAt(1000.5)]
    assert story.happens(Tick(), after_s=0.5) == [ending()]


def test_a_controller_resumed_while_an_attempt_ends_tells_those_that_may_not_know() -> None:
    story = several_nodes("a", "b")
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 2))
    assert resumed(story) == []
    assert story.returns("a") == []
    assert story.returns("b") == [EndAttempt(attempt=0, signal=15, grace_s=3, only=("b",))]
    assert story.ends("b")[-1] == OpenStore(attempt=1, node="a")


def test_a_resumed_controller_tells_times_by_its_own_clock() -> None:
    """The machine it continues on may have been started long after the other one."""
    story = several_nodes("a")
    story.exits(0, -9, after_s=5000)
    resumed(story, after_s=-4000)
    incident = incident_of(story.ends("a", evidence(0, -9, 999), told_to_end(1, 1000)))
    assert incident.detected_at_s == 1000


def test_a_controller_resumed_while_the_job_is_stopped_goes_on_stopping_it() -> None:
    story = several_nodes("a")
    story.happens(SignalReceived(signal=15))
    assert resumed(story) == []
    assert story.returns("a") == [EndAttempt(attempt=0, signal=15, grace_s=30, leftovers_s=3, only=("a",))]
    assert story.ends("a")[-1].outcome == "stopped"


def test_a_controller_resumed_after_the_end_says_once_more_that_it_is_over() -> None:
    story = several_nodes("a")
    story.happens(SignalReceived(signal=15))
    (finish,) = story.ends("a")
    assert resumed(story) == [finish]
    assert story.state.term == 2, "orders of a dead controller's term are void"
    assert story.returns("a") == [Dismiss(node="a", exit_code=143, reason="the job is over")]


def test_terms_only_grow() -> None:
    story = several_nodes("a")
    story.happens(ControllerResumed(term=7))
    story.happens(ControllerResumed(term=3))
    assert story.state.term == 7


# --- the journal lost records -------------------------------------------------------------------------------------------


def returns_with(story: Story, node: str, attempt: int, after_s: float = 0.0) -> list[Any]:
    """A node connects again and says the newest attempt it was told of."""
    return story.happens(NodeReturned(node=node, attempt=attempt), after_s)


def ended(node: str, attempt: int) -> AttemptEnded:
    """Return what a node says that has ended an attempt."""
    return AttemptEnded(attempt=attempt, node=node, started_at_s=0.0, ranks=(), progress=Progress())


def end_of(attempt: int, node: str) -> EndAttempt:
    """Return how one node is told to end what it runs."""
    return EndAttempt(attempt=attempt, signal=15, grace_s=3, only=(node,))


def behind(max_restarts: int = 3) -> Story:
    """Return the story of a job whose journal says that attempt 0 runs on a and b."""
    story = several_nodes("a", "b", max_restarts=max_restarts)
    story.state = replay(story.policy, story.told)
    assert story.happens(ControllerResumed(term=2, hold_s=4.0)) == []
    return story


def test_nodes_that_run_what_is_not_on_record_end_it_and_a_newer_attempt_heals_the_job() -> None:
    story = behind(max_restarts=0)
    assert returns_with(story, "a", 7) == [ending(), end_of(7, "a")]
    assert returns_with(story, "b", 7) == [end_of(7, "b")]
    assert story.happens(ended("a", 7)) == []
    actions = story.happens(ended("b", 7))
    incident = incident_of(actions)
    assert (incident.attempt, incident.action, incident.verdict.ranks) == (7, "relaunch", ())
    assert incident.verdict.sentence.startswith("the journal ends before attempt 7, which nodes run")
    assert actions[-1] == WakeAt(4.0), "other agents that are not on record may still run it"
    assert story.happens(Tick(), after_s=4.0) == [OpenStore(attempt=8, node="a")]


def test_a_node_that_is_behind_the_journals_end_and_lost_is_not_waited_for_longer() -> None:
    story = behind()
    returns_with(story, "a", 1)
    story.happens(ended("a", 1))
    assert OpenStore not in kinds(story.is_lost("b", after_s=3.5))
    assert story.state.phase == "gathering"


def test_an_agent_that_only_the_lost_records_knew_ends_what_it_runs() -> None:
    story = gathering(1, 1)
    story.state = replay(story.policy, [])
    assert story.happens(ControllerResumed(term=2, hold_s=4.0))[-1] == WakeAt(4.0)
    joined = NodeJoined(node=NodeInfo(id="a", name="a", nproc=1), attempt=3)
    assert story.happens(joined, after_s=1.0)[0] == end_of(3, "a")
    again = NodeJoined(node=NodeInfo(id="b", name="b", nproc=1), attempt=3)
    assert story.happens(again)[0] == end_of(3, "b"), "as recent as the other"
    assert story.happens(ended("a", 3)) == []
    assert RecordIncident in kinds(story.happens(ended("b", 3)))
    assert story.happens(Tick(), after_s=3.0) == [OpenStore(attempt=4, node="a")]


def test_a_resumed_controller_holds_back_until_unknown_agents_have_ended_by_themselves() -> None:
    story = gathering(1, 1)
    story.happens(ControllerResumed(term=2, hold_s=4.0))
    assert OpenStore not in kinds(story.joins("a"))
    assert OpenStore not in kinds(story.happens(Tick(), after_s=3.9))
    assert story.happens(Tick(), after_s=0.1) == [OpenStore(attempt=0, node="a")]


def test_the_same_number_for_another_attempt_is_found_out() -> None:
    """An agent that was cut off while the number was given again knows an attempt of this number that it has no place in."""
    story = behind()
    stranger = NodeJoined(node=NodeInfo(id="c", name="c", nproc=1), attempt=0)
    assert story.happens(stranger, after_s=60.0)[:2] == [ending(), end_of(0, "c")]
    for node in ("a", "b"):
        story.ends(node)
    assert story.happens(ended("c", 0))[-1] == OpenStore(attempt=1, node="a")


def test_a_stop_waits_for_nodes_whose_attempt_is_not_on_record_and_a_second_one_ends_them_at_once() -> None:
    story = behind()
    returns_with(story, "a", 1)
    assert story.happens(SignalReceived(signal=15)) == []
    now = story.happens(SignalReceived(signal=15, again=True))
    assert now == [EndAttempt(attempt=0), EndAttempt(attempt=1, only=("a",))]
    assert returns_with(story, "a", 1) == [EndAttempt(attempt=1, only=("a",))], "said again"
    assert story.happens(ended("a", 1)) == []
    (*_, finish) = story.is_lost("b", after_s=3.5)
    assert (finish.outcome, finish.exit_code) == ("stopped", 143)


# --- the end ----------------------------------------------------------------------------------------------------------


def test_who_comes_after_the_end_is_sent_home_with_the_jobs_exit_code() -> None:
    story = several_nodes("a", "b")
    for rank in range(4):
        story.exits(rank, 0)
    story.ends("a", evidence(0, 0), evidence(1, 0))
    story.ends("b", evidence(2, 0), evidence(3, 0))
    assert story.joins("late") == [Dismiss(node="late", exit_code=0, reason="the job is over")]
    assert story.returns("a") == [Dismiss(node="a", exit_code=0, reason="the job is over")]
    assert story.is_lost("b") == []


def test_a_job_of_one_node_waits_without_a_word() -> None:
    story = Story()
    assert story.happens(JobStarted()) == [WakeAt(600)]
    assert story.joins("here") == [OpenStore(attempt=0, node="here")]


def test_a_job_of_one_node_knows_nothing_of_other_nodes() -> None:
    story = one_node()
    assert story.happens(NodeJoined(node=NodeInfo(id="x", name="x", nproc=1))) == []
    story.happens(RankExited(attempt=0, rank=1, exit_code=-9))
    assert kinds(story.ends("here", told_to_end(0, 2), evidence(1, -9))) == [RecordIncident, OpenStore]
    assert story.world == ["here"]


def test_replaying_a_story_gives_the_same_state() -> None:
    story = several_nodes("a", "b", fewest=1)
    story.joins("c")
    story.is_lost("a")
    story.evicts("b")
    story.all_end()
    kept = copy.deepcopy(story.state)
    assert replay(story.policy, story.told) == kept


def test_a_node_that_went_with_its_launcher_is_not_said_to_have_been_silent() -> None:
    story = one_node()
    story.happens(ControllerResumed(term=2, host="here"))
    incident = incident_of(story.is_lost("here", silent_s=0.0))
    assert incident.verdict.sentence == "node here is gone, with the launcher that was there before"
