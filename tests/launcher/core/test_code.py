"""What updates of the code mean for a job: when they are put in place, what fails because of them, what is done about it."""

from __future__ import annotations

from typing import Any

from stories import BUG, TYPO, Story, evidence, one_node

from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.actions import EndAttempt, Finish, OpenStore, RecordIncident, Say, StartAttempt
from robust_run.launcher.model.code_events import (
    CodeCaptured,
    CodeLacking,
    CodeVersion,
    NotFinite,
    RollbackAsked,
    StageCode,
    StepsSurvived,
    UpdateDue,
    UpdateStaged,
)
from robust_run.launcher.model.node_events import RestartAsked

TREE = "a" * 64


def version(number: int, parent: int, **more: object) -> CodeVersion:
    return CodeVersion(number=number, tree=TREE, parents=(parent,) if parent else (), by="ann", **more)  # type: ignore[arg-type]


def captured(story: Story) -> Story:
    assert story.happens(CodeCaptured(version=version(1, 0))) == []
    return story


def stage(story: Story, now: bool = False) -> list[Any]:
    code = story.state.code
    made = version(
        len(code.records) + 1, queries.head(code), summary="train.py +1 -1", settings={"n": str(len(code.records))}
    )
    return story.happens(UpdateStaged(version=made, now=now))


def crashes(story: Story) -> list[Any]:
    """Let rank 1 be killed; return what is done when all is over."""
    story.exits(1, -9)
    story.exits(0, -15)
    return story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -9, 1))


def begins(story: Story) -> StartAttempt:
    """Return the order to start the attempt that was opened."""
    (start,) = story.opens()
    assert isinstance(start, StartAttempt)
    for placement in story.state.layout:
        story.node_started(placement.node)
    return start


def running_on_probation() -> Story:
    story = captured(one_node())
    stage(story, now=True)
    story.exits(1, -15)
    story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -15, 2, signalled_at_s=1.5))
    assert begins(story).code is not None
    return story


def test_an_update_waits_for_the_next_failure() -> None:
    story = captured(one_node())
    sent, said = stage(story)
    assert sent == StageCode(tree=TREE)
    assert isinstance(said, Say)
    incident, again = crashes(story)
    assert (incident.action, incident.reason) == ("relaunch", "version 2 is put in place")
    assert again == OpenStore(attempt=1, node="here")
    use = begins(story).code
    assert use is not None
    assert (use.number, use.on_probation) == (2, True)


def test_one_that_is_wanted_now_or_due_ends_the_attempt_and_counts_as_no_failure() -> None:
    story = captured(one_node())
    assert stage(story, now=True)[-1] == EndAttempt(attempt=0, signal=15, grace_s=3)
    late = captured(one_node())
    stage(late)
    assert late.happens(UpdateDue(number=7)) == []
    assert late.happens(UpdateDue(number=2)) == [EndAttempt(attempt=0, signal=15, grace_s=3)]
    late.exits(0, -15)
    incident, _ = late.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -15, 2, signalled_at_s=1.5))
    assert incident.symptom == "operator"
    assert late.state.trail.fruitless == 0


def test_what_waits_can_be_wanted_now() -> None:
    story = captured(one_node())
    stage(story)
    pending = story.state.code.records[1].version
    assert story.happens(UpdateStaged(version=pending, now=True)) == [EndAttempt(attempt=0, signal=15, grace_s=3)]
    assert len(story.state.code.records) == 2


def test_a_failure_names_all_updates_that_are_part_of_what_failed() -> None:
    story = captured(one_node())
    stage(story)
    stage(story, now=True)
    story.exits(1, -15)
    story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -15, 2, signalled_at_s=1.5))
    begins(story)
    incident, _ = crashes(story)
    assert incident.verdict.aftermath == (
        "version 3 (train.py +1 -1; by ann), with version 2 (train.py +1 -1; by ann) in it, is rolled back to version 1"
    )


def test_what_is_not_kept_is_said_once() -> None:
    story = one_node()
    (said,) = story.happens(CodeCaptured(version=version(1, 0, left_out=("big.py is larger than 1024 KiB",))))
    assert isinstance(said, Say)
    assert "big.py is larger than 1024 KiB" in said.text
    assert story.happens(CodeCaptured(version=version(1, 0, left_out=("big.py is larger than 1024 KiB",)))) == []


def test_a_failure_on_probation_goes_back_and_names_the_change() -> None:
    story = running_on_probation()
    incident, again = crashes(story)
    assert (incident.action, incident.verdict.kind) == ("rollback", "crash")
    assert "version 2 (train.py +1 -1; by ann) is rolled back to version 1" in incident.verdict.aftermath
    assert isinstance(again, OpenStore)
    use = begins(story).code
    assert use is not None
    assert (use.number, use.on_probation) == (1, False)
    assert story.state.trail.fruitless == 0


def test_a_typo_that_no_restart_mends_is_mended_by_going_back_or_by_what_is_pending() -> None:
    story = running_on_probation()
    story.exits(1, 1, TYPO)
    story.exits(0, -15)
    incident, _ = story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, 1, 1, finding=TYPO))
    assert incident.action == "rollback"
    other = captured(one_node())
    stage(other)
    other.exits(1, 1, TYPO)
    other.exits(0, -15)
    incident, again = other.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, 1, 1, finding=TYPO))
    assert incident.action == "relaunch"
    assert isinstance(again, OpenStore)


def test_never_restart_means_never() -> None:
    story = captured(one_node(max_restarts=0))
    stage(story)
    assert isinstance(crashes(story)[-1], Finish)


def test_nan_on_probation_ends_the_attempt_and_goes_back() -> None:
    story = running_on_probation()
    assert story.happens(NotFinite(attempt=1, node="here", rank=1, step=4)) == [
        EndAttempt(attempt=1, signal=15, grace_s=3)
    ]
    story.exits(1, -15)
    incident, _ = story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -15, 2, signalled_at_s=1.5))
    assert (incident.action, incident.verdict.kind, incident.verdict.ranks) == ("rollback", "nan", (1,))


def test_nan_in_trusted_code_is_none_of_an_updates() -> None:
    story = captured(one_node())
    assert story.happens(NotFinite(attempt=0, node="here", rank=1, step=4)) == []


def test_a_slower_version_goes_back() -> None:
    story = captured(one_node())
    assert story.happens(StepsSurvived(attempt=0, node="here", steps=20, step_s=0.1)) == []
    stage(story, now=True)
    story.exits(1, -15)
    story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -15, 2, signalled_at_s=1.5))
    begins(story)
    assert isinstance(story.happens(StepsSurvived(attempt=1, node="here", steps=20, step_s=0.3))[0], EndAttempt)
    story.exits(1, -15)
    incident, _ = story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -15, 2, signalled_at_s=1.5))
    assert (incident.action, incident.verdict.kind) == ("rollback", "slow")
    assert "3.0 times" in incident.verdict.sentence


def test_steps_survived_make_it_trusted_and_then_a_failure_is_a_failure() -> None:
    story = running_on_probation()
    (said,) = story.happens(StepsSurvived(attempt=1, node="here", steps=20, step_s=0.1))
    assert "trusted from now on" in said.text
    assert crashes(story)[0].action == "relaunch"
    assert story.state.code.running == 2


def test_a_restart_that_somebody_asks_for_is_not_the_updates_fault() -> None:
    story = running_on_probation()
    story.happens(RestartAsked())
    story.exits(1, -15)
    incident, _ = story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -15, 2, signalled_at_s=1.5))
    assert incident.action == "relaunch"
    assert story.state.code.records[1].fate == "probation"


def test_a_node_that_cannot_have_the_version_takes_it_back() -> None:
    story = running_on_probation()
    assert isinstance(story.happens(CodeLacking(attempt=1, node="here", number=2, message="disk full"))[0], EndAttempt)
    (incident, _) = story.ends("here")
    assert incident.action == "rollback"
    assert "disk full" in incident.verdict.sentence


def test_a_rollback_by_hand() -> None:
    story = running_on_probation()
    assert story.happens(RollbackAsked(by="bob")) == [EndAttempt(attempt=1, signal=15, grace_s=3)]
    assert story.state.code.running == 1
    fresh = captured(one_node())
    assert fresh.happens(RollbackAsked()) == [], "there is nothing before the first"


def test_a_job_that_ends_well_on_probation_proves_it() -> None:
    story = running_on_probation()
    story.exits(0, 0)
    story.exits(1, 0)
    story.ends("here", evidence(0, 0), evidence(1, 0))
    assert story.state.code.records[1].fate == "trusted"


def test_without_versions_nothing_changes() -> None:
    story = one_node()
    assert stage(story, now=True) == []
    assert begins_after_crash(story).code is None


def begins_after_crash(story: Story) -> StartAttempt:
    crashes(story)
    return begins(story)


def test_incidents_of_a_rollback_have_the_design_s_words() -> None:
    story = running_on_probation()
    story.exits(1, 1, BUG)
    story.exits(0, -15)
    incident, _ = story.ends("here", evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, 1, 1, finding=BUG))
    assert isinstance(incident, RecordIncident)
    assert (incident.action, incident.verdict.kind) == ("rollback", "code")
