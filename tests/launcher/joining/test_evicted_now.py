"""Who is evicted now and why, by the journal alone: whoever evicts, it is on record alike, and a readmission undoes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stories import Story, evidence, several_nodes, told_to_end

from robust_run.health.checks.types import CheckJudgement, SuspectNode
from robust_run.health.types import Event as Sign
from robust_run.health.types import Finding
from robust_run.launcher.model.actions import Action, HostEvicted
from robust_run.launcher.model.check_events import Decided, Diagnosed, StandbyChecked
from robust_run.launcher.model.events import Event, HangSuspected, Inquired
from robust_run.launcher.model.health_events import HealthSeen, RuleSpoke
from robust_run.launcher.model.job import NodeInfo
from robust_run.launcher.model.node_events import NodeEvicted, NodeJoined, NodeReadmitted
from robust_run.launcher.records.folds.evicted import Evicted, EvictedNow
from robust_run.launcher.records.journal import JournalEntry
from robust_run.slurm.past import judge
from robust_run.tracer.types import TraceVerdict


def job() -> Story:
    story = several_nodes("a", "b", diagnose="auto")
    story.joins("spare")
    return story


def by_an_operator(story: Story) -> None:
    story.evicts("b")


def by_a_rule(story: Story) -> None:
    sign = Sign(name="gpu.lost", kind="alert", subject="GPU 0", detail="it is gone", at_s=1.0)
    story.happens(HealthSeen(node="b", event=sign, at_unix_s=5.0), 1.0)


def by_a_rule_on_last_words(story: Story) -> None:
    finding = Finding(kind="accelerator", line="CUDA error: uncorrectable ECC error", trouble="ecc")
    story.exits(2, 1, finding, after_s=5)
    story.ends("a")
    story.ends("b", evidence(2, 1, 5.0, finding=finding), told_to_end(3, 6.0))


def by_a_hang(story: Story) -> None:
    story.happens(HangSuspected(attempt=0, node="a", rank=0, waited_s=5.0, after_s=5.0), 6.0)
    verdict = TraceVerdict(
        kind="hang",
        ranks=(2,),
        nodes=("b",),
        confidence="high",
        rule="wait_graph",
        sentence="rank 2 never joined all_reduce #4",
        proven=True,
    )
    story.happens(Inquired(attempt=0, verdict=verdict, at_unix_s=5.0), 1.0)


def by_the_ladder(story: Story) -> None:
    for _ in range(2):
        story.exits(2, -11)
        story.ends("a")
        story.ends("b", evidence(2, -11, story.now_s), told_to_end(3, story.now_s))
        if story.state.phase == "diagnosing":
            break
        story.starts()
    guilty = SuspectNode(
        node="b", check="model", confidence="high", rule="odd_output", sentence="b computes other bits"
    )
    judged = CheckJudgement(suspects=(guilty,), passed=("a",))
    story.happens(Diagnosed(attempt=story.state.attempt, judgement=judged, at_unix_s=9.0), 5.0)


def by_the_checks_of_a_standby(story: Story) -> None:
    story.happens(NodeJoined(node=NodeInfo(id="b-too", name="b", nproc=2)))
    checked = StandbyChecked(
        node="b-too", name="b", admitted=False, rule="slow", sentence="half as fast", at_unix_s=9.0
    )
    story.happens(checked)


KINDS: dict[Callable[[Story], None], tuple[str, str]] = {
    by_an_operator: ("operator", "bad memory"),
    by_a_rule: ("rule gpu.lost", "it is gone"),
    by_a_rule_on_last_words: ("rule worker.ecc", "uncorrectable ECC error"),
    by_a_hang: ("robust-run", "never joined"),
    by_the_ladder: ("robust-run, ladder", "computes other bits"),
    by_the_checks_of_a_standby: ("robust-run, admission", "half as fast"),
}


@pytest.mark.parametrize("evicts", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_each_way_to_evict_is_on_record_alike_and_a_readmission_undoes_it(evicts: Callable[[Story], None]) -> None:
    by, why = KINDS[evicts]
    story = job()
    evicts(story)
    assert list(story.state.evicted) == ["b"], "it was evicted"
    (line,) = [entry.action for entry in story.journal if isinstance(entry.action, HostEvicted)]
    assert (line.name, line.listed) == ("b", False)
    assert by in line.by and why in line.reason
    assert judge(story.journal).evicted == ("b",), "what a requeue excludes"
    story.readmits("b")
    assert judge(story.journal).evicted == ()


def now(*said: Event | Action) -> dict[str, EvictedNow]:
    evicted = Evicted()
    for each in said:
        kind: dict[str, Any] = {"event" if isinstance(each, Event) else "action": each}
        evicted.take(JournalEntry(at=0.0, mono=0.0, **kind))
    return evicted.now


def test_who_is_on_the_list_of_earlier_jobs_is_told_apart() -> None:
    assert now(NodeEvicted(name="b", reason="bad", by="ada", listed=True))["b"].listed
    assert now(NodeEvicted(name="b", reason="bad", by="the list"))["b"].listed, "as versions before wrote it"
    assert not now(NodeEvicted(name="b", reason="bad", by="ada"))["b"].listed


def test_journals_of_versions_that_kept_no_such_line_tell_of_rules_and_of_the_ladder() -> None:
    spoke = RuleSpoke(rule="gpu.lost", rung="evict", confidence="high", node="b", sentence="gone")
    decided = Decided(
        attempt=0, number=1, episode=1, rung="evict", rule="suspects_evicted", sentence="odd", nodes=("c",)
    )
    assert now(spoke, decided) == {
        "b": EvictedNow(reason="gone", by="rule gpu.lost"),
        "c": EvictedNow(reason="odd", by="robust-run, ladder"),
    }
    assert now(spoke, decided, NodeReadmitted(name="b")).keys() == {"c"}


@pytest.mark.parametrize("more", [{"rung": "report"}, {"held_back": "no node can take over"}, {"tolerated": True}])
def test_what_a_rule_only_asks_for_is_no_eviction(more: dict[str, Any]) -> None:
    told = {"rule": "gpu.ecc", "rung": "evict", "confidence": "high", "node": "b", "sentence": "x", **more}
    assert now(RuleSpoke(**told)) == {}
