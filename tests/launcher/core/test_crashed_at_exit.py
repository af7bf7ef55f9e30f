"""A rank that dies when its program has ended: the others are left alone, nothing is trained again, and the exit code says it."""

from __future__ import annotations

import pytest
from stories import BUG, PEER, Story, evidence, incident_of, kinds, told_to_end

from robust_run.launcher.model.actions import EndAttempt, Finish, OpenStore, RecordIncident, Say
from robust_run.launcher.model.job import RankEvidence
from robust_run.launcher.model.node_events import JobStarted

SEGV, ABRT, KILL = -11, -6, -9


def crashed(rank: int, code: int = SEGV, at_s: float = 1.0) -> RankEvidence:
    return evidence(rank, code, at_s, had_ended=True)


def two_ranks() -> Story:
    """Two nodes with a rank each, which train."""
    story = Story(fewest=2, most=2, many=True, last_call_s=30)
    story.happens(JobStarted())
    for name in ("a", "b"):
        story.joins(name, nproc=1)
    story.starts()
    assert story.state.world_size == 2
    return story


def test_the_others_go_on_and_the_job_ends_with_its_exit_code_when_they_have_ended_well() -> None:
    story = two_ranks()
    seen = story.exits(1, SEGV, had_ended=True)
    assert EndAttempt not in kinds(seen), "rank 0 may be saving"
    said = "attempt 0: rank 1 was killed by SIGSEGV (signal 11) when its program had ended; the other ranks go on"
    assert seen[0] == Say(text=said)
    assert EndAttempt in kinds(story.exits(0, 0, after_s=100))
    story.ends("a", evidence(0, 0, 101.0))
    actions = story.ends("b", crashed(1))
    assert kinds(actions)[:2] == [RecordIncident, Finish]
    verdict = incident_of(actions).verdict
    assert (verdict.rule, verdict.ranks, verdict.nodes, verdict.exit_code) == ("crashed_at_exit", (1,), ("b",), 139)
    assert verdict.sentence == "rank 1 was killed by SIGSEGV (signal 11)"
    assert verdict.aftermath == "its program had ended before"
    assert incident_of(actions).onset_at_s == 101.0, "until the other had ended nothing stood still"
    assert (actions[1].exit_code, actions[1].outcome) == (139, "failed")
    assert "nothing to train again" in actions[1].reason


def test_it_is_no_failure_of_a_rank_that_is_the_last_to_end() -> None:
    story = two_ranks()
    story.exits(0, 0)
    assert EndAttempt in kinds(story.exits(1, ABRT, had_ended=True))
    story.ends("a", evidence(0, 0))
    assert story.ends("b", crashed(1, ABRT))[-1].exit_code == 134


def test_all_of_them_may_die_so() -> None:
    story = two_ranks()
    story.exits(0, KILL, had_ended=True)
    story.exits(1, SEGV, had_ended=True)
    story.ends("a", crashed(0, KILL, 2.0))
    verdict = incident_of(story.ends("b", crashed(1, SEGV, 1.0))).verdict
    assert (verdict.ranks, verdict.aftermath) == ((1,), "its program had ended before; 1 other rank died so, too")


def test_one_that_another_still_needed_is_why_that_one_lost_its_connection() -> None:
    story = two_ranks()
    story.exits(1, SEGV, had_ended=True)
    story.exits(0, 1, PEER, after_s=0.1)
    story.ends("b", crashed(1))
    actions = story.ends("a", evidence(0, 1, 1.1, finding=PEER))
    verdict = incident_of(actions).verdict
    assert (verdict.rule, verdict.ranks, verdict.aftermath) == ("died_of_signal", (1,), "1 other rank failed after it")
    assert OpenStore in kinds(actions)


@pytest.mark.parametrize("finding", [BUG, None])
def test_another_rank_that_fails_is_the_cause_and_the_job_starts_again(finding: object) -> None:
    story = two_ranks()
    story.exits(1, SEGV, had_ended=True)
    story.exits(0, 1, finding, after_s=10)  # type: ignore[arg-type]
    story.ends("b", crashed(1))
    actions = story.ends("a", evidence(0, 1, 11.0, finding=finding))
    assert incident_of(actions).verdict.ranks == (0,)
    assert incident_of(actions).onset_at_s == 11.0, "that of the failure, not of the end that harmed nobody"
    assert OpenStore in kinds(actions)


def test_a_rank_that_is_lost_with_its_node_had_not_ended() -> None:
    story = two_ranks()
    story.exits(1, SEGV, had_ended=True)
    story.is_lost("a", after_s=20)
    actions = story.ends("b", crashed(1))
    assert RecordIncident in kinds(actions)
    assert Finish not in kinds(actions), "rank 0 is lost with its node: the job waits for nodes, or begins again"


def test_a_rank_that_we_told_to_end_proves_nothing() -> None:
    story = two_ranks()
    story.exits(0, 1, BUG)
    story.ends("a", evidence(0, 1, finding=BUG))
    actions = story.ends("b", told_to_end(1, 2.0, exit_code=SEGV))
    assert (incident_of(actions).verdict.rule, incident_of(actions).verdict.ranks) == ("user_exception", (0,))


def test_the_same_death_before_the_end_is_restarted_as_ever() -> None:
    story = two_ranks()
    assert EndAttempt in kinds(story.exits(1, SEGV))
    story.ends("a")
    actions = story.ends("b", evidence(1, SEGV))
    assert (incident_of(actions).verdict.rule, incident_of(actions).action) == ("died_of_signal", "relaunch")


def test_the_next_attempt_knows_nothing_of_it() -> None:
    story = two_ranks()
    story.exits(1, SEGV, had_ended=True)
    story.exits(0, 1, BUG)
    story.ends("a", evidence(0, 1, finding=BUG))
    story.ends("b", crashed(1))
    story.starts()
    story.exits(0, 0)
    story.exits(1, 0)
    story.ends("a", evidence(0, 0))
    assert story.ends("b", evidence(1, 0))[-1] == Finish(exit_code=0, outcome="done")
