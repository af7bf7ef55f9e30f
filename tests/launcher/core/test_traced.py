"""What the core does when ranks wait too long for one of them: stories."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from stories import Story, ending, evidence, incident_of, one_node, several_nodes, told_to_end

from robust_run.launcher.model.actions import EndAttempt, Inquire, OpenStore, RecordIncident, Say, WakeAt
from robust_run.launcher.model.code_events import CodeRecord, CodeVersion, Ledger
from robust_run.launcher.model.events import Event, HangSuspected, Inquired, SignalReceived, Tick
from robust_run.launcher.model.node_events import ControllerResumed
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
        "proven": True,
        **more,
    }
    return TraceVerdict(**told)


def waits(rank: int = 1, onset_s: float = 1.0, limit_s: float = 1800.0, **more: object) -> TraceVerdict:
    """A rank that others wait for and that may yet come."""
    return stuck(rank, proven=False, onset_s=onset_s, expires_s=onset_s + limit_s, **more)


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
    told = several_nodes("a", "b", on_slow="evict")
    told.joins("spare")
    (incident,) = judged(told, stuck(rank=2, node="b", kind="slow", rule="nccl_slow_nic", only_told=True))
    assert incident.action == "report" and "acted on by people" in incident.reason
    assert told.world == ["a", "b"]


def test_what_goes_with_a_rank_to_the_next_node_is_no_fault_of_a_node() -> None:
    for kind, options in (("slow", {"on_slow": "evict"}), ("hang", {})):
        story = several_nodes("a", "b", **options)
        story.joins("spare")
        story.joins("second")
        suspected(story)
        judged(story, stuck(rank=2, node="b", kind=kind))
        story.all_end()
        assert story.world == ["a", "spare"]
        story.starts()
        suspected(story)
        told = judged(story, stuck(rank=2, node="spare", kind=kind))
        if kind == "slow":
            assert told[0].action == "report"
            assert told[0].reason == "b was evicted for the same rank before: it is the program or its data, not a node"
        else:
            assert told == [ending(1)]
            assert incident_of(story.all_end()).action in ("relaunch", "diagnose")
        assert list(story.state.evicted) == ["b"], "the second standby is kept"
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=type(story.state))
        assert kept == story.state, "an elected controller's successor knows it, too"


def test_another_rank_or_much_later_is_another_case() -> None:
    for rank, later_s in ((3, 0.0), (2, 13 * 3600.0)):
        story = several_nodes("a", "b", on_slow="evict")
        story.joins("spare")
        story.joins("second")
        judged(story, stuck(rank=2, node="b", kind="slow"))
        story.all_end()
        story.starts()
        again = Inquired(
            attempt=story.state.attempt, verdict=stuck(rank=rank, node="spare", kind="slow"), at_unix_s=77.0 + later_s
        )
        story.happens(again)
        assert list(story.state.evicted) == ["b", "spare"]


def test_rules_that_may_evict_no_node_evict_none() -> None:
    slow = several_nodes("a", "b", on_slow="evict", max_evict_share=0.0)
    slow.joins("spare")
    assert judged(slow, stuck(rank=2, node="b", kind="slow"))[0].reason == "--max-evict-share 0: rules evict no node"
    hung = several_nodes("a", "b", max_evict_share=0.0)
    hung.joins("spare")
    suspected(hung)
    assert judged(hung, stuck(rank=2, node="b")) == [ending()]
    assert hung.all_end()[0].action == "relaunch"
    assert not hung.state.evicted


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


def test_what_may_be_a_wait_is_said_and_has_the_time_that_torch_gives_it() -> None:
    story = one_node()
    suspected(story)
    incident, wake = judged(story, waits())
    assert (incident.action, incident.act_at_s) == ("report", 1771.0)
    assert (
        incident.reason
        == "it may end by itself; else the attempt is ended in 29 min 24 s, shortly before torch's own time limit"
    )
    assert wake == WakeAt(1771.0), "half a minute before torch ends it"
    suspected(story)
    assert judged(story, waits()) == [WakeAt(1771.0)], "the same is said once"
    assert story.state.phase == "running"


def test_who_gives_a_group_some_seconds_may_catch_its_time_out_so_it_is_acted_on_after_that() -> None:
    story = one_node()
    suspected(story)
    incident, wake = judged(story, waits(limit_s=20.0))
    assert (incident.action, incident.act_at_s, wake) == ("report", 31.0, WakeAt(31.0))
    assert incident.reason.endswith("if it goes on after torch's own time limit, which is short")


def test_a_wait_that_goes_on_until_torch_would_end_it_is_looked_at_again_and_acted_on() -> None:
    story = one_node()
    suspected(story)
    judged(story, waits())
    assert story.happens(Tick(), 1700.0) == []
    (ask,) = story.happens(Tick(), 1771.0 - story.now_s)
    assert ask == Inquire(attempt=0, after_s=5.0), "what is known of it is half an hour old"
    assert judged(story, waits()) == [BY_SIGTERM]
    incident, again = story.ends("here", told_to_end(0, 1773.0), told_to_end(1, 1773.0))
    assert (incident.action, incident.verdict.kind, again) == ("relaunch", "hang", OpenStore(attempt=1, node="here"))


def test_a_wait_that_ended_by_itself_is_not_acted_on_when_its_time_would_have_come() -> None:
    story = one_node()
    suspected(story)
    judged(story, waits())
    suspected(story)
    assert judged(story, None) == [], "nobody waits any more"
    assert story.happens(Tick(), 1800.0) == []
    unseen = one_node()
    suspected(unseen)
    judged(unseen, waits())
    unseen.happens(Tick(), 1771.0)
    assert judged(unseen, None) == [], "it ended unseen, and evidence is taken anew before something is done"
    assert unseen.state.phase == "running"


def test_another_wait_has_its_own_time() -> None:
    story = one_node()
    suspected(story)
    judged(story, waits())
    suspected(story, after_s=1000.0)
    incident, wake = judged(story, waits(onset_s=1001.0))
    assert (incident.act_at_s, wake) == (2771.0, WakeAt(2771.0))


def test_the_time_is_that_of_the_process_group_whatever_that_is() -> None:
    for limit_s, act_at_s in ((600.0, 571.0), (300.0, 271.0), (299.0, 310.0), (50.0, 61.0), (86400.0, 86371.0)):
        story = one_node()
        suspected(story)
        incident, _ = judged(story, waits(limit_s=limit_s))
        assert incident.act_at_s == act_at_s
    unknown = one_node()
    suspected(unknown)
    incident, _ = judged(unknown, stuck(proven=False, onset_s=1.0))
    assert incident.act_at_s == 1771.0, "torch's own where it cannot be read"


def test_a_wait_that_turns_out_to_be_proven_is_acted_on_at_once() -> None:
    story = one_node()
    suspected(story)
    judged(story, waits())
    suspected(story)
    assert judged(story, stuck(kind="mismatch", rule="signature")) == [BY_SIGTERM]


def test_who_knows_his_program_may_have_every_wait_acted_on_at_once() -> None:
    impatient = one_node(on_hang="relaunch")
    suspected(impatient)
    assert judged(impatient, waits(at_work=True)) == [BY_SIGTERM]


@pytest.mark.parametrize("on_hang", ["auto", "relaunch", "evict"])
def test_what_nobody_is_seen_to_wait_for_is_said_and_never_acted_on(on_hang: str) -> None:
    story = one_node(on_hang=on_hang)
    suspected(story)
    told = judged(story, waits(only_told=True))
    assert [type(action) for action in told] == [RecordIncident]
    assert (told[0].action, told[0].reason) == ("report", "nobody is seen to wait for it")
    suspected(story, after_s=4000.0)
    assert judged(story, waits(only_told=True)) == [], "not when torch's limit is over either"
    assert story.state.phase == "running"


def acted_on_after(story: Story, verdict: TraceVerdict) -> float:
    """Return how long after its onset a wait is acted on."""
    suspected(story)
    incident = judged(story, verdict)[0]
    assert incident.action == "report"
    return float(incident.act_at_s) - (verdict.onset_s or 0.0)


def test_with_a_patience_of_his_own_a_wait_is_acted_on_when_it_is_over() -> None:
    story = one_node(hang_patience_s=300.0)
    suspected(story)
    incident, wake = judged(story, waits())
    assert incident.reason == "it may end by itself; else the attempt is ended in 4 min 54 s, by --hang-patience"
    assert wake == WakeAt(301.0)
    story.happens(Tick(), 301.0 - story.now_s)
    assert judged(story, waits()) == [BY_SIGTERM]


def test_a_patience_is_never_longer_than_torch_s_own_limit_nor_for_what_is_at_work_or_proven() -> None:
    assert acted_on_after(one_node(hang_patience_s=7200.0), waits()) == 1770.0
    assert acted_on_after(one_node(hang_patience_s=300.0), waits(at_work=True)) == 1770.0
    at_once = one_node(hang_patience_s=300.0)
    suspected(at_once)
    assert judged(at_once, stuck()) == [BY_SIGTERM]


def ended_for(story: Story, verdict: TraceVerdict) -> None:
    """Let a wait go on until it is acted on, and the next attempt start."""
    assert story.state.act_at_s is not None
    story.happens(Tick(), story.state.act_at_s - story.now_s)
    assert judged(story, verdict) != []
    story.ends("here", told_to_end(0, story.now_s), told_to_end(1, story.now_s))
    story.starts()


def test_a_wait_at_the_same_line_is_given_twice_as_long_each_time_and_after_three_times_is_only_reported() -> None:
    story = one_node(hang_patience_s=100.0, max_restarts=10)
    for patience_s in (100.0, 200.0, 400.0):
        verdict = waits(onset_s=story.now_s, where="data.py:88 get")
        assert acted_on_after(story, verdict) == patience_s
        ended_for(story, verdict)
    suspected(story)
    (incident,) = judged(story, waits(onset_s=story.now_s, where="data.py:88 get"))
    assert (incident.action, incident.act_at_s) == ("report", None)
    assert incident.reason == "the job was started again 3 times for a wait there, and waits there again"
    assert acted_on_after(story, waits(0, onset_s=story.now_s, where="train.py:7 step")) == 100.0, (
        "another line is another wait"
    )
    suspected(story)
    assert judged(story, stuck(where="data.py:88 get")) == [EndAttempt(attempt=3, signal=15, grace_s=3)], (
        "proven is no wait"
    )


def inside(since_s: float, patience_s: float, **more: object) -> TraceVerdict:
    """All have come to a call, and nothing has moved in it since then."""
    more = {"kind": "comm_stall", "rule": "all_arrived", **more}
    return waits(inside_since_s=since_s, inside_patience_s=patience_s, **more)


def test_where_nothing_moves_in_a_call_the_network_is_given_its_time_and_not_torch_s() -> None:
    story = one_node()
    suspected(story)
    incident, wake = judged(story, inside(3.0, 120.0))
    assert incident.action == "report" and incident.reason.endswith("when nothing has moved for 2 min 0 s")
    assert wake == WakeAt(123.0)
    story.happens(Tick(), 123.0 - story.now_s)
    assert judged(story, inside(3.0, 120.0)) == [BY_SIGTERM]


def test_what_has_moved_meanwhile_begins_the_network_s_time_anew() -> None:
    story = one_node()
    suspected(story)
    judged(story, inside(3.0, 120.0))
    story.happens(Tick(), 123.0 - story.now_s)
    judged(story, inside(100.0, 120.0))
    assert story.state.act_at_s == 220.0
    story.happens(Tick(), 220.0 - story.now_s)
    judged(story, waits(kind="comm_stall", rule="all_arrived"))  # it cannot be told any more: torch's own time
    assert story.state.act_at_s == 1771.0 and not story.state.traced


def test_a_network_that_stands_still_at_one_line_again_and_again_is_given_twice_as_long_each_time() -> None:
    story = one_node(max_restarts=10)
    for patience_s in (120.0, 240.0, 480.0):
        verdict = inside(story.now_s, 120.0, onset_s=story.now_s, where="train.py:7 step")
        assert acted_on_after(story, verdict) == patience_s
        ended_for(story, verdict)
    suspected(story)
    (incident,) = judged(story, inside(story.now_s, 120.0, onset_s=story.now_s, where="train.py:7 step"))
    assert incident.act_at_s is None and "3 times" in incident.reason


def test_torch_s_own_limit_comes_before_the_network_s_time_where_it_is_shorter() -> None:
    assert acted_on_after(one_node(), inside(3.0, 400.0, limit_s=330.0)) == 300.0


@pytest.mark.parametrize("patience_s", [60.0, 600.0])
def test_a_patience_of_his_own_goes_before_the_network_s_time(patience_s: float) -> None:
    assert acted_on_after(one_node(hang_patience_s=patience_s), inside(3.0, 120.0)) == patience_s


@pytest.mark.parametrize("patience_s", [None, 60.0])
def test_nobody_is_ended_who_waits_for_a_person(patience_s: float | None) -> None:
    story = one_node(hang_patience_s=patience_s)
    suspected(story)
    (incident,) = judged(story, waits(for_person=True))
    assert (incident.action, incident.act_at_s) == ("report", None)
    assert incident.reason == "a person at a terminal or a debugger may go on with it"
    story.happens(Tick(), 3600.0)
    suspected(story)
    assert judged(story, waits(for_person=True, onset_s=1.0)) == []


def test_a_node_is_evicted_for_what_may_be_a_wait_when_its_time_is_over_not_before() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    suspected(story)
    assert [type(action) for action in judged(story, waits(rank=2, node="b"))] == [RecordIncident, WakeAt]
    assert not story.state.evicted
    story.happens(Tick(), 1800.0)
    assert judged(story, waits(rank=2, node="b"))[-1] == ending()
    assert "b" in story.state.evicted


def test_a_rank_at_work_is_never_ended_even_when_torch_is_about_to() -> None:
    story = one_node()
    suspected(story)
    (incident, _) = judged(story, waits(at_work=True))
    assert incident.reason.startswith("it is at work; else the attempt is ended in ")
    story.happens(Tick(), 1800.0)
    assert judged(story, waits(at_work=True)) == []


def test_the_code_of_a_new_version_may_wait_as_well() -> None:
    """What changed last is the first suspect of a hang, but of no wait."""
    story = one_node()
    version = CodeVersion(number=2, tree="new")
    trusted = CodeRecord(version=CodeVersion(number=1, tree="old"), fate="trusted")
    story.state.code = Ledger(records=(trusted, CodeRecord(version=version, fate="probation")), running=2, trusted=1)
    suspected(story)
    assert [type(action) for action in judged(story, waits())] == [RecordIncident, WakeAt]


def test_a_controller_that_was_restarted_looks_at_known_waits_soon() -> None:
    story = one_node()
    suspected(story)
    judged(story, waits())
    (wake,) = story.happens(ControllerResumed(term=2), 100.0)
    assert wake == WakeAt(story.now_s + 5.0)
    assert story.happens(Tick(), 5.0) == [Inquire(attempt=0, after_s=5.0)]
    judged(story, waits())
    assert story.state.phase == "running", "and gives them the time that is left"


# --- ranks that the others have left behind


def left_behind(rank: int = 0, **more: object) -> TraceVerdict:
    return stuck(rank, rule="leftover", proven=False, sentence=f"rank {rank} still runs", **more)


def test_a_rank_that_still_runs_when_the_others_have_ended_is_named_and_never_acted_on() -> None:
    for on_hang in ("auto", "relaunch", "evict"):
        story = one_node(on_hang=on_hang)
        assert story.exits(1, 0) == [WakeAt(5.0)]
        assert story.happens(Tick(), 5.0) == [Inquire(attempt=0, after_s=5.0, leftovers=True)]
        incident, wake = judged(story, left_behind())
        assert (incident.action, incident.verdict.rule, incident.act_at_s) == ("report", "leftover", None)
        assert incident.reason == "1 of 2 ranks have ended with exit code 0, so the job is not started again"
        assert wake == WakeAt(16.0), "it is looked at again, less often each time"
        story.happens(Tick(), 10.0)
        assert judged(story, left_behind()) == [WakeAt(37.0)], "the same is said once"
        assert story.state.phase == "running"


def test_a_rank_that_saves_the_model_when_the_others_have_ended_is_only_mentioned() -> None:
    story = one_node()
    story.exits(1, 0)
    story.happens(Tick(), 5.0)
    said, _ = judged(story, left_behind(at_work=True))
    assert said == Say(text="attempt 0: rank 0 still runs")
    story.happens(Tick(), 10.0)
    assert judged(story, left_behind(at_work=True)) == [WakeAt(37.0)]
    story.happens(Tick(), 20.0)
    assert [type(one) for one in judged(story, left_behind())] == [RecordIncident, WakeAt], "it has become idle"


def test_ranks_that_end_one_after_another_are_given_time_from_the_last() -> None:
    story = several_nodes("a", "b")
    assert story.exits(0, 0) == [WakeAt(5.0)]
    assert story.exits(1, 0, after_s=4.0) == []
    assert story.happens(Tick(), 1.0) == [WakeAt(9.0)]
    assert story.happens(Tick(), 4.0) == [Inquire(attempt=0, after_s=5.0, leftovers=True)]


def test_while_most_ranks_go_on_nobody_is_left_behind() -> None:
    story = several_nodes("a", "b")
    story.exits(0, 0)
    assert story.happens(Tick(), 5.0) == []
    story.exits(1, 0)
    assert story.happens(Tick(), 5.0) == [Inquire(attempt=0, after_s=5.0, leftovers=True)]


def test_a_hang_of_ranks_whose_peers_have_ended_well_is_no_reason_to_train_again() -> None:
    for verdict in (
        waits(0),
        stuck(0, kind="stopped"),
        stuck(0, kind="mismatch"),
        stuck(0, kind="desync", rule="extra_op"),
    ):
        story = several_nodes("a", "b", on_hang="relaunch")
        story.exits(3, 0)
        suspected(story)
        (incident,) = judged(story, verdict)
        assert (incident.action, "1 of 4 ranks" in incident.reason) == ("report", True), verdict
    story = several_nodes("a", "b")
    story.exits(3, 0)
    suspected(story)
    assert judged(story, stuck(3, kind="desync", rule="early_exit"))[-1] == ending(), (
        "others wait for one that has gone"
    )


def test_the_leftovers_of_one_attempt_are_none_of_the_next() -> None:
    story = one_node()
    story.exits(1, 0)
    story.happens(Tick(), 5.0)
    assert story.exits(0, 1) == [BY_SIGTERM]
    story.ends("here", evidence(0, 1, 6.0), evidence(1, 0, 1.0))
    story.starts()
    assert story.happens(Tick(), 100.0) == []
    assert story.exits(1, 0) == [WakeAt(story.now_s + 5.0)]


def test_a_rank_that_went_on_and_is_stuck_again_is_reported_again() -> None:
    story = one_node(on_hang="report")
    suspected(story)
    assert len(judged(story, stuck(onset_s=1.0))) == 1
    suspected(story)
    assert judged(story, stuck(onset_s=1.0)) == []
    suspected(story)
    assert len(judged(story, stuck(onset_s=story.now_s - 2.0))) == 1
