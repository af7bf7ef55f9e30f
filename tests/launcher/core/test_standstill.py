"""When a hang that is only reported counts as a standstill, and when that is over: stories."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from stories import Story, one_node, several_nodes, told_to_end

from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Inquire, RecordIncident, StandstillOver
from robust_run.launcher.model.events import HangSuspected, Inquired, SignalReceived, WaitOver
from robust_run.launcher.model.node_events import ControllerResumed
from robust_run.tracer.types import TraceVerdict

STUCK = TraceVerdict(
    kind="hang",
    ranks=(1,),
    nodes=("here",),
    confidence="high",
    rule="wait_graph",
    sentence="rank 1 never joined all_reduce #4",
    onset_s=1.0,
)


def waits(story: Story, number: int = 1, node: str = "here", after_s: float = 6.0) -> list[Any]:
    event = HangSuspected(attempt=story.state.attempt, node=node, rank=0, waited_s=5.0, after_s=5.0, number=number)
    return story.happens(event, after_s)


def goes_on(story: Story, number: int = 1, node: str = "here", at_s: float = 30.0) -> list[Any]:
    return story.happens(WaitOver(attempt=story.state.attempt, node=node, number=number, at_s=at_s), 1.0)


def judged(story: Story, **verdict: Any) -> RecordIncident | None:
    found = msgspec.structs.replace(STUCK, **verdict)
    actions = story.happens(Inquired(attempt=story.state.attempt, verdict=found, at_unix_s=77.0), 1.0)
    return next((action for action in actions if isinstance(action, RecordIncident)), None)


def reported(story: Story, **verdict: Any) -> RecordIncident:
    incident = judged(story, **verdict)
    assert incident is not None
    assert incident.action == "report"
    return incident


def test_a_hang_that_is_reported_is_a_standstill_until_its_ranks_go_on() -> None:
    story = one_node(on_hang="report")
    waits(story)
    assert reported(story).stands_still
    assert goes_on(story) == [StandstillOver(attempt=0, at_s=30.0)]
    assert goes_on(story) == [], "an agent that returns says it again"


@pytest.mark.parametrize(
    "healthy",
    [
        {"at_work": True},  # it evaluates, or writes a checkpoint, and the others wait for it
        {"kind": "slow"},
    ],
)
def test_ranks_that_wait_for_one_at_work_do_not_stand_still(healthy: dict[str, Any]) -> None:
    story = one_node(on_hang="report")
    waits(story)
    assert not reported(story, **healthy).stands_still
    assert goes_on(story) == []


def test_a_wait_that_was_over_before_it_was_judged_is_no_standstill() -> None:
    story = one_node(on_hang="report")
    waits(story)
    assert goes_on(story) == []
    assert not reported(story).stands_still


def test_what_is_looked_at_without_a_wait_is_no_standstill() -> None:
    story = one_node(on_hang="report")
    assert waits(story, number=0) == [Inquire(attempt=0, after_s=5.0)], "NCCL became slow"
    assert not reported(story).stands_still


def test_ranks_stand_still_until_those_of_the_last_node_go_on() -> None:
    story = several_nodes("a", "b", on_hang="report")
    waits(story, node="a")
    waits(story, node="b")
    assert reported(story).stands_still
    assert goes_on(story, node="b", at_s=40.0) == []
    assert goes_on(story, node="a", at_s=41.0) == [StandstillOver(attempt=0, at_s=41.0)]


def test_a_rank_that_ends_a_hang_and_hangs_again_stands_still_again() -> None:
    story = one_node(on_hang="report")
    waits(story)
    reported(story)
    assert goes_on(story)
    waits(story, number=2)
    assert reported(story, onset_s=31.0).stands_still
    assert goes_on(story, number=1) == [], "that was the wait before"
    assert goes_on(story, number=2, at_s=60.0) == [StandstillOver(attempt=0, at_s=60.0)]


def test_an_agent_that_says_all_again_changes_nothing() -> None:
    story = one_node(on_hang="report")
    waits(story)
    reported(story)
    goes_on(story)
    waits(story, number=1)
    assert not story.state.waits
    assert not reported(story, kind="desync").stands_still


def test_the_end_of_a_wait_of_an_earlier_attempt_says_nothing() -> None:
    story = one_node()
    waits(story)
    judged(story, proven=True)
    story.ends("here", told_to_end(0, 8.0), told_to_end(1, 8.0))
    story.starts()
    assert not story.state.waits
    waits(story)
    assert reported(story).stands_still
    assert story.happens(WaitOver(attempt=0, node="here", number=1, at_s=50.0)) == []
    assert goes_on(story)


def test_a_wait_that_is_ended_is_no_standstill_that_was_reported() -> None:
    story = one_node()
    waits(story)
    judged(story, proven=True)
    assert not story.state.stands_still


def test_a_controller_that_takes_over_knows_that_ranks_stand_still_and_hears_when_they_go_on() -> None:
    story = several_nodes("a", "b", on_hang="report")
    waits(story, node="a")
    reported(story)
    story.happens(ControllerResumed(term=2), 1.0)
    assert story.state.stands_still
    waits(story, node="a")  # the agent returned, and says what it has said of the attempt
    assert goes_on(story, node="a", at_s=90.0) == [StandstillOver(attempt=0, at_s=90.0)]


def test_a_job_that_is_stopped_while_it_stands_still_ends_as_any_other() -> None:
    story = one_node(on_hang="report")
    waits(story)
    reported(story)
    story.happens(SignalReceived(signal=15), 1.0)
    story.ends("here", told_to_end(0, 8.0), told_to_end(1, 8.0))
    assert story.state.is_over


def test_a_replay_of_its_events_comes_to_the_same() -> None:
    story = one_node(on_hang="report")
    waits(story)
    reported(story)
    goes_on(story)
    waits(story, number=2)
    again = replay(story.policy, story.told)
    assert (again.waits, again.waits_over, again.stands_still, again.reported) == (
        story.state.waits,
        story.state.waits_over,
        story.state.stands_still,
        story.state.reported,
    )
