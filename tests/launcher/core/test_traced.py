"""What the core does when ranks wait too long for one of them: stories."""

from __future__ import annotations

from typing import Any

from stories import Story, ending, evidence, one_node, several_nodes, told_to_end

from robust_run.launcher.actions import EndAttempt, Inquire, OpenStore, RecordIncident, Say
from robust_run.launcher.events import Event, HangSuspected, Inquired, SignalReceived
from robust_run.tracer.types import TraceVerdict

BY_SIGTERM = EndAttempt(attempt=0, signal=15, grace_s=3)


def stuck(rank: int = 1, node: str = "here", **more: object) -> TraceVerdict:
    told: dict[str, Any] = {
        "kind": "hang",
        "ranks": (rank,),
        "nodes": (node,),
        "confidence": "high",
        "rule": "wait_graph",
        "sentence": f"rank {rank} never joined all_reduce #4",
        **more,
    }
    return TraceVerdict(**told)


def suspected(story: Story, rank: int = 0, after_s: float = 6.0) -> list[Any]:
    event = HangSuspected(attempt=story.state.attempt, node="here", rank=rank, waited_s=5.0, after_s=5.0)
    return story.happens(event, after_s)


def judged(story: Story, verdict: TraceVerdict | None, after_s: float = 1.0) -> list[Any]:
    return story.happens(Inquired(attempt=story.state.attempt, verdict=verdict, at_unix_s=77.0), after_s)


def test_a_long_wait_has_all_ranks_looked_at_once() -> None:
    story = one_node()
    assert suspected(story) == [Inquire(attempt=0, after_s=5.0)]
    assert suspected(story, rank=1) == [], "that is being done"


def test_a_wait_that_was_nothing_may_be_suspected_again() -> None:
    story = one_node()
    suspected(story)
    assert judged(story, None) == []
    assert suspected(story) == [Inquire(attempt=0, after_s=5.0)]


def test_a_stuck_rank_is_ended_with_its_peers_and_the_job_starts_again() -> None:
    story = one_node()
    suspected(story)
    assert judged(story, stuck()) == [BY_SIGTERM]
    incident, again = story.ends("here", told_to_end(0, 8.0), told_to_end(1, 8.0))
    assert (incident.symptom, incident.action, incident.detected_at_s) == ("hang", "relaunch", 6.0)
    assert (incident.verdict.kind, incident.verdict.ranks, incident.verdict.rule) == ("hang", (1,), "wait_graph")
    assert incident.verdict.exit_code == 1
    assert again == OpenStore(attempt=1, node="here")


def test_a_job_that_gets_stuck_at_the_same_place_does_not_start_again_for_ever() -> None:
    story = one_node(max_restarts=1)
    for attempt in range(2):
        if attempt:
            story.starts()
        suspected(story)
        judged(story, stuck())
        actions = story.ends("here", told_to_end(0, 8.0), told_to_end(1, 8.0))
    assert (actions[0].action, actions[-1].outcome) == ("stop", "failed")


def test_with_report_the_job_goes_on_and_the_same_is_said_once() -> None:
    story = one_node(on_hang="report")
    suspected(story)
    (incident,) = judged(story, stuck())
    assert isinstance(incident, RecordIncident)
    assert (incident.action, incident.reason, incident.verdict.ranks) == ("report", "--on-hang report", (1,))
    suspected(story)
    assert judged(story, stuck()) == []
    suspected(story)
    assert [type(action) for action in judged(story, stuck(rank=0))] == [RecordIncident], "another rank is news"


def test_a_standby_takes_the_place_of_the_stuck_ranks_node() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    suspected(story)
    said, end = judged(story, stuck(rank=2, node="b"))
    assert isinstance(said, Say)
    assert (said.node, "never joined" in said.text) == ("b", True)
    assert end == ending()
    assert story.state.evicted["b"].by == "robust-run"
    assert story.state.evicted["b"].at_unix_s == 77.0
    *_, incident, follow_up = story.all_end()
    assert (incident.action, incident.reason, incident.verdict.kind) == ("evict", "spare takes over", "hang")
    assert follow_up == OpenStore(attempt=1, node="a")
    assert story.world == ["a", "spare"]


def test_without_a_standby_the_same_nodes_start_again() -> None:
    story = several_nodes("a", "b")
    suspected(story)
    assert judged(story, stuck(rank=2, node="b")) == [ending()]
    assert story.all_end()[0].action == "relaunch"
    assert story.world == ["a", "b"]


def test_evict_shrinks_an_elastic_job_where_auto_would_not() -> None:
    for on_hang, world in (("auto", ["a", "b", "c"]), ("evict", ["a", "c"]), ("relaunch", ["a", "b", "c"])):
        story = several_nodes("a", "b", "c", fewest=2, on_hang=on_hang)
        suspected(story)
        judged(story, stuck(rank=2, node="b"))
        story.all_end()
        assert story.world == world, on_hang


def test_no_node_is_evicted_for_what_the_program_does() -> None:
    story = several_nodes("a", "b", on_hang="evict")
    story.joins("spare")
    suspected(story)
    judged(story, stuck(rank=2, node="b", kind="mismatch"))
    story.all_end()
    assert not story.state.evicted
    assert story.world == ["a", "b"]


def test_a_slow_rank_is_reported_unless_eviction_was_asked_for_and_somebody_can_take_over() -> None:
    slow = stuck(rank=2, node="b", kind="slow", rule="rounds")
    reported = several_nodes("a", "b")
    assert judged(reported, slow)[0].action == "report"
    alone = several_nodes("a", "b", on_slow="evict")
    assert judged(alone, slow)[0].reason == "no node can take over"
    helped = several_nodes("a", "b", on_slow="evict")
    helped.joins("spare")
    judged(helped, slow)
    helped.all_end()
    assert helped.world == ["a", "spare"]


def test_what_the_records_of_a_dead_attempt_say_goes_before_how_its_ranks_ended() -> None:
    story = one_node()
    assert story.exits(0, -6) == [BY_SIGTERM]
    assert judged(story, stuck(kind="mismatch", rule="signature")) == []
    incident, _ = story.ends("here", evidence(0, -6, 2.0), told_to_end(1, 3.0))
    assert (incident.symptom, incident.verdict.kind, incident.verdict.ranks) == ("worker_failed", "mismatch", (1,))


def test_a_verdict_that_comes_too_late_changes_nothing() -> None:
    for late in (Inquired(attempt=7, verdict=stuck()), HangSuspected(attempt=7, rank=0, waited_s=9.0)):
        event: Event = late
        assert one_node().happens(event) == []
    stopping = one_node()
    suspected(stopping)
    stopping.happens(SignalReceived(signal=15))
    assert judged(stopping, stuck()) == []
    assert stopping.ends("here", told_to_end(0, 8.0), told_to_end(1, 8.0))[-1].outcome == "stopped"


def test_a_rank_that_may_be_at_work_is_reported_and_ended_only_when_asked_or_after_long() -> None:
    busy = stuck(rule="busy", at_work=True, onset_s=1.0)
    story = one_node()
    suspected(story)
    (incident,) = judged(story, busy)
    assert (incident.action, "may yet come" in incident.reason) == ("report", True)
    suspected(story)
    assert judged(story, busy) == [], "the same is said once"
    suspected(story)
    assert judged(story, stuck(rule="busy", onset_s=1.0)) == [BY_SIGTERM], "its time is over"
    impatient = one_node(on_hang="relaunch")
    suspected(impatient)
    assert judged(impatient, busy) == [BY_SIGTERM]


def test_a_rank_that_went_on_and_is_stuck_again_is_reported_again() -> None:
    story = one_node(on_hang="report")
    suspected(story)
    assert len(judged(story, stuck(onset_s=1.0))) == 1
    suspected(story)
    assert judged(story, stuck(onset_s=1.0)) == []
    suspected(story)
    assert len(judged(story, stuck(onset_s=story.now_s - 2.0))) == 1
