"""What of an incident is in the journal alone: what a sensor said, what checks found, what the next attempt began from."""

from __future__ import annotations

import msgspec
import pytest
from fact_ground import facts_now, start
from written_journals import DRAFT, Writing

from robust_run.fleet.words import RunFacts
from robust_run.health.checks.types import CheckJudgement, SuspectNode
from robust_run.health.types import Finding
from robust_run.launcher.model import actions as a
from robust_run.launcher.model import node_events as n
from robust_run.launcher.model.check_events import Decided, Diagnosed
from robust_run.launcher.model.code_events import CodeCaptured, CodeUse, CodeVersion
from robust_run.launcher.model.health_events import RuleSpoke
from robust_run.launcher.model.job import RankEvidence, VerdictDraft
from robust_run.launcher.model.resume_events import CheckpointSaved, ResumeChosen, SavedCheckpoint

CULPRIT = RankEvidence(rank=1, pid=7, exit_code=1, exited_at_s=1.0)


def begun() -> Writing:
    writing = Writing()
    writing.line(n.JobStarted())
    start(writing, 0)
    writing.now_s += 100.0
    return writing


def incident(writing: Writing, draft: VerdictDraft, action: str = "relaunch") -> None:
    """The attempt has failed, which is seen now."""
    writing.end(0)
    now_s = writing.now_s - writing.ahead_s
    record = a.RecordIncident(
        attempt=0,
        symptom="x",
        onset_at_s=now_s,
        detected_at_s=now_s,
        verdict=draft,
        action=action,
        reason="",  # type: ignore[arg-type]
    )
    writing.line(record)


def facts_of(writing: Writing) -> RunFacts:
    writing.line(a.Finish(exit_code=0, outcome="done"), 1.0)
    return facts_now(writing, is_live=False)[0]


@pytest.mark.parametrize(
    ("trouble", "component"), [("cuda", "gpu"), ("storage", "storage"), ("host_memory", "program"), ("", "program")]
)
def test_what_a_rank_said_at_last(trouble: str, component: str) -> None:
    writing = begun()
    finding = Finding(kind="native_crash", line="it crashed", trouble=trouble)  # type: ignore[arg-type]
    culprit = msgspec.structs.replace(CULPRIT, finding=finding)
    incident(writing, msgspec.structs.replace(DRAFT, rule="native_crash", culprit=culprit))
    [told] = facts_of(writing).incidents
    assert (told.trouble, told.component) == (trouble, component)


def test_what_a_sensor_said_at_that_moment() -> None:
    writing = begun()
    spoke = RuleSpoke(rule="memory.oom_kill", rung="relaunch", confidence="medium", node="n", sentence="killed")
    writing.line(spoke)
    incident(writing, msgspec.structs.replace(DRAFT, rule="died_of_signal"))
    [told] = facts_of(writing).incidents
    assert (told.trouble, told.component) == ("", "program"), "an alert of another moment is no reason"
    writing = begun()
    writing.end(0)
    writing.line(spoke)
    writing.line(
        a.RecordIncident(
            attempt=0, symptom="x", onset_at_s=0.0, detected_at_s=0.0, verdict=DRAFT, action="relaunch", reason=""
        )
    )
    [told] = facts_of(writing).incidents
    assert (told.trouble, told.component) == ("memory.oom_kill", "program")


def test_what_checks_found_goes_before_what_led_to_them() -> None:
    writing = begun()
    incident(writing, msgspec.structs.replace(DRAFT, kind="hang", rule="all_arrived", nodes=()), "diagnose")
    suspect = SuspectNode(node="bad", check="compute", device="cuda:3", confidence="high", rule="r", sentence="wrong")
    writing.line(Diagnosed(attempt=0, judgement=CheckJudgement(suspects=(suspect,))), 60.0)
    writing.line(Decided(attempt=0, number=1, episode=1, rung="evict", rule="r", sentence="evicted", nodes=("bad",)))
    [told] = facts_of(writing).incidents
    assert (told.trouble, told.component) == ("check.compute", "gpu")
    assert (told.action, told.evicted, told.nodes) == ("evict", ("bad",), ("bad",))
    assert told.lost.check == pytest.approx(60.0)


def test_where_the_next_attempt_began_and_what_was_saved() -> None:
    writing = begun()
    saved = SavedCheckpoint(step=5, uuid="abc", name="step-5", created_unix_s=writing.now_s - 50.0)
    writing.line(CheckpointSaved(attempt=0, node="n", saved=saved))
    writing.line(CheckpointSaved(attempt=0, node="m", saved=saved))
    incident(writing, DRAFT)
    writing.line(ResumeChosen(attempt=1, source="peer", step=5, name="memory-0-5"))
    start(writing, 1, resumes_s=writing.now_s - 5.0)
    facts = facts_of(writing)
    assert [each.source for each in facts.incidents] == ["peer"]
    assert (facts.saves, facts.save_every_s) == (1, None)


def test_which_code_ran() -> None:
    writing = Writing()
    writing.line(n.JobStarted())
    version = CodeVersion(number=1, tree="0123456789abcdef")
    writing.line(CodeCaptured(version=version))
    place = writing.entries
    start(writing, 0)
    order = place[-3]
    assert isinstance(order.action, a.StartAttempt)
    writing.now_s += 10.0
    writing.fail(writing.now_s)
    use = CodeUse(number=3, tree="fedcba9876543210", rolled_back=("2-aaaaaaaaaa", "1-0123456789"))
    start(writing, 1)
    writing.line(msgspec.structs.replace(order.action, attempt=2, code=use), 1.0)
    facts = facts_of(writing)
    assert [(each.version, each.rolled_back) for each in facts.code] == [
        ("1-0123456789", True),
        ("3-fedcba9876", False),
    ]
