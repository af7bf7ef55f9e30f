"""Where attempts start from: stories of the core. Which checkpoint it is, is `test_choosing`'s."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from stories import BUG, Story, evidence, gathering, incident_of, kinds, start_of, told_to_end

from robust_run.health.types import Finding
from robust_run.launcher.core.resume import resuming
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Action, EndAttempt, Finish, OpenStore, RecordIncident, Say, StartAttempt
from robust_run.launcher.model.events import AttemptStarted, Event, RankExited, SignalReceived
from robust_run.launcher.model.job import NodeInfo
from robust_run.launcher.model.node_events import ControllerResumed, JobStarted, NodeJoined
from robust_run.launcher.model.resume_events import (
    CheckpointSaved,
    Damage,
    LookForCheckpoints,
    NoResumePoint,
    PassedOver,
    ResumeChosen,
    SavedCheckpoint,
)

DAMAGED = Finding(
    kind="exception",
    line="robust_run.ckpt_io.errors.Damaged: damaged",
    exception="robust_run.ckpt_io.errors.Damaged",
    message="damaged",
    frame="train.py:8 in <module>",
    excerpt="Traceback\nrobust_run.ckpt_io.errors.Damaged: damaged",
)
WRAPPED = Finding(
    kind="exception",
    line="RuntimeError: no checkpoint",
    exception="RuntimeError",
    message="no checkpoint",
    frame="loader.py:8 in load",
    excerpt="robust_run.ckpt_io.errors.Damaged: damaged\n\nThe above exception was the direct cause\nRuntimeError: no checkpoint",
)


def chosen(step: int, attempt: int, **more: Any) -> ResumeChosen:
    name = f"step-{step}"
    return ResumeChosen(
        attempt=attempt, source="storage", step=step, uuid=f"u{step}", name=name, address=f"/ckpt/{name}", **more
    )


def looks(*names: str, **policy: Any) -> tuple[Story, list[Any]]:
    """The story of a job on nodes with a folder of checkpoints; return it and what is done when the last has joined."""
    story = gathering(len(names), len(names), **policy)
    actions: list[Any] = []
    for name in names:
        actions = story.joins(name, ckpt_dir="/ckpt")
    return story, actions


def runs(*names: str, step: int = 0, **policy: Any) -> Story:
    """The same, and its workers run, from a step or from the beginning."""
    story, _ = looks(*names, **policy)
    story.happens(chosen(step, 0) if step else ResumeChosen(attempt=0))
    story.starts()
    return story


def says(actions: list[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


# --- workers wait for it


def test_all_nodes_are_asked_while_the_store_is_opened() -> None:
    _, actions = looks("a", "b")
    question, opens = actions
    assert question == LookForCheckpoints(attempt=0, nodes=("a", "b"), of=2, folder="/ckpt")
    assert opens == OpenStore(attempt=0, node="a")


@pytest.mark.parametrize("store_first", [True, False])
def test_workers_start_when_the_store_is_open_and_it_is_chosen_where_from(store_first: bool) -> None:
    story, _ = looks("a", "b")
    steps = [story.opens, lambda: story.happens(chosen(3000, 0))]
    first, second = steps if store_first else steps[::-1]
    assert not [action for action in first() if isinstance(action, StartAttempt)]
    assert story.state.phase == "opening"
    order = start_of(second())
    assert order.resume is not None
    assert (order.resume.source, order.resume.step, order.resume.uuid, order.resume.name) == (
        "storage",
        3000,
        "u3000",
        "step-3000",
    )
    assert {placement.node for placement in order.placements} == {"a", "b"}, "one choice for all of them"


def test_jobs_without_a_folder_of_checkpoints_wait_for_nothing() -> None:
    story = gathering(1, 1)
    assert kinds(story.joins("a")) == [OpenStore]
    assert start_of(story.opens()).resume is None


def test_one_node_with_a_folder_is_enough_for_all_to_be_told() -> None:
    story = gathering(2, 2)
    story.joins("a")
    question, _ = story.joins("b", ckpt_dir="/of/b")
    assert (question.folder, question.nodes) == ("/of/b", ("a", "b"))


def test_each_attempt_asks_anew_and_avoids_what_is_known_to_be_damaged() -> None:
    story = runs("a", "b")
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 2), steps=5)
    actions = story.ends("b")
    assert [each.attempt for each in actions if isinstance(each, LookForCheckpoints)] == [1]
    start = story.opens() + story.happens(chosen(4, 1))
    assert start_of(start).resume.step == 4  # type: ignore[union-attr]


def test_news_told_twice_or_late_changes_nothing() -> None:
    story, _ = looks("a")
    story.opens()
    story.happens(chosen(5, 0))
    before = copy.deepcopy(story.state)
    for late in (chosen(9, 0), chosen(9, 3), NoResumePoint(attempt=0, reason="late")):
        assert story.happens(late) == []
    assert story.state == before


def test_a_job_that_is_told_to_stop_while_nodes_look_stops() -> None:
    story, _ = looks("a")
    assert kinds(story.happens(SignalReceived(signal=15))) == [EndAttempt]
    assert kinds(story.ends("a", evidence(0, 0))) == [Finish]
    assert story.happens(chosen(5, 0)) == []


# --- there is none


def test_an_attempt_that_cannot_tell_where_to_start_fails_and_is_tried_again() -> None:
    story, _ = looks("a", "b")
    actions = story.happens(NoResumePoint(attempt=0, reason="/ckpt did not answer on b"))
    assert kinds(actions) == [EndAttempt]
    last = story.all_end()
    incident = incident_of(last)
    assert (incident.verdict.rule, incident.verdict.sentence) == ("no_resume_point", "/ckpt did not answer on b")
    assert incident.action == "relaunch"
    assert [each.attempt for each in last if isinstance(each, LookForCheckpoints)] == [1]


def test_where_trying_again_is_of_no_use_the_job_ends_and_says_why() -> None:
    story, _ = looks("a")
    story.happens(NoResumePoint(attempt=0, reason="none of the checkpoints can be started from", may_pass=False))
    record, finish = story.all_end()
    assert isinstance(record, RecordIncident) and isinstance(finish, Finish)
    assert finish.outcome == "failed" and finish.sentence == "none of the checkpoints can be started from"
    assert finish.reason == "starting it again cannot mend that"


# --- what the job has saved


def saved(step: int) -> SavedCheckpoint:
    return SavedCheckpoint(step=step, uuid=f"u{step}", name=f"step-{step}", created_unix_s=1e9 + step)


def test_what_ranks_have_saved_is_kept_and_a_restarted_controller_knows_it() -> None:
    story = runs("a", "b")
    assert story.state.last_saved is None, "a job that never saved may begin anew"
    assert story.happens(CheckpointSaved(attempt=0, node="a", saved=saved(10))) == []
    assert story.state.last_saved == saved(10)
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 2), saved=saved(30))
    story.ends("b", saved=saved(20))
    assert story.state.last_saved == saved(30)
    story.happens(CheckpointSaved(attempt=0, node="b", saved=saved(25)))
    assert story.state.last_saved == saved(30), "what is told late is no newer for that"
    assert replay(story.policy, story.told).last_saved == saved(30)


def test_what_was_saved_after_a_clock_was_set_back_is_newer_all_the_same() -> None:
    story = runs("a", "b")
    story.happens(CheckpointSaved(attempt=0, node="a", saved=saved(10)))
    later = msgspec.structs.replace(saved(20), created_unix_s=1e9 - 3600.0)
    story.happens(CheckpointSaved(attempt=0, node="a", saved=later))
    assert story.state.last_saved == later


def test_what_was_saved_is_known_of_a_node_that_is_lost_and_of_an_attempt_that_is_over() -> None:
    story = runs("a", "b")
    story.exits(0, -9)
    story.all_end()
    assert story.state.attempt == 1
    story.happens(CheckpointSaved(attempt=0, node="b", saved=saved(10)))
    assert story.state.last_saved == saved(10)


# --- a controller that was away


def test_a_resumed_controller_goes_on_with_what_was_chosen() -> None:
    story, _ = looks("a", "b")
    story.happens(chosen(3000, 0))
    story.opens()
    story.node_started("a")
    state = replay(story.policy, story.told)
    assert state == story.state
    story.happens(ControllerResumed(term=2))
    order = start_of(story.returns("b"))
    assert order.resume is not None and order.resume.uuid == "u3000", "not chosen anew: the other node runs from there"


def test_what_was_not_chosen_yet_is_asked_of_each_node_that_returns() -> None:
    story, _ = looks("a", "b")
    story.happens(ControllerResumed(term=2))
    question, opens = story.returns("a")
    assert question == LookForCheckpoints(attempt=0, nodes=("a",), of=2, folder="/ckpt")
    assert opens == OpenStore(attempt=0, node="a")
    assert kinds(story.returns("b")) == [LookForCheckpoints]


def test_where_the_journal_lost_the_choice_a_node_that_runs_says_it() -> None:
    story, _ = looks("a", "b")
    story.happens(ControllerResumed(term=2))
    story.opens()
    told = AttemptStarted(
        attempt=0, node="a", pids=(1, 2), port=29500, resumes_step=3000, resumes_uuid="u3000", resumes_name="step-3000"
    )
    order = start_of(story.happens(told))
    assert order.resume is not None and (order.resume.uuid, order.resume.name) == ("u3000", "step-3000")
    assert story.happens(chosen(2000, 0)) == []


def test_journals_of_before_are_replayed_as_they_were() -> None:
    story = Story(fewest=2, most=2, many=True)
    story.happens(JobStarted())
    for name in ("a", "b"):
        raw = msgspec.json.encode(NodeJoined(node=NodeInfo(id=name, name=name, nproc=2)))
        event: Event = msgspec.json.decode(raw.replace(b',"ckpt_dir":""', b""), type=Event)
        story.happens(event)
    story.starts()
    assert story.state.phase == "running" and story.state.resume is None


# --- damage


def fails_to_load(
    story: Story, *, damage: Damage | None, finding: Finding = DAMAGED, steps: int | None = None
) -> list[Any]:
    """Rank 2, on node b, cannot read what it was told to start from."""
    story.exits(2, 1, finding)
    story.ends("a")
    return story.ends("b", evidence(2, 1, finding=finding), told_to_end(3, 2), damage=damage, steps=steps)


def damage(step: int) -> Damage:
    reason = "unit 5 of 00001-2.part in /b/step has a wrong digest"
    return Damage(rank=2, uuid=f"u{step}", name=f"step-{step}", step=step, reason=reason)


def test_workers_are_told_which_checkpoints_are_to_be_left_where_they_are() -> None:
    """What is damaged does not count among those that --ckpt-keep keeps; what attempts started from may be wanted again."""
    story = runs("a", "b", step=3000, max_restarts=1)
    fails_to_load(story, damage=damage(3000))
    story.happens(chosen(2000, 1))
    order = start_of(story.opens())
    assert set(order.leave) == {"u3000", "u2000"}


def test_a_damaged_checkpoint_is_passed_over_and_costs_no_restart() -> None:
    story = runs("a", "b", step=3000, max_restarts=1)
    for step in (3000, 2000, 1000):
        actions = fails_to_load(story, damage=damage(step))
        incident = incident_of(actions)
        assert (incident.action, incident.reason) == ("relaunch", f"step {step} is passed over")
        assert incident.verdict.rule == "damaged_checkpoint"
        assert incident.verdict.sentence == (
            f"step {step} cannot be read: rank 2 on b: unit 5 of 00001-2.part in /b/step has a wrong digest"
        )
        assert (incident.verdict.ranks, incident.verdict.nodes) == ((), ()), "no rank and no node is at fault"
        (question,) = (each for each in actions if isinstance(each, LookForCheckpoints))
        assert f"u{step}" in question.avoid
        story.opens()
        story.happens(chosen(step - 1000, story.state.attempt))
        for node in ("a", "b"):
            story.node_started(node)
    assert story.state.trail.fruitless == 0
    assert set(story.state.passed_over) == {"u3000", "u2000", "u1000"}


def test_it_is_said_in_one_line_what_is_passed_over_and_only_once() -> None:
    story, _ = looks("a")
    over = PassedOver(step=3000, uuid="u3000", name="step-3000", why="part 00000-1.part is missing on /b/step-3000")
    first = chosen(2000, 0, passed_over=(over,))
    assert says(story.happens(first)) == [
        "step 3000 is passed over: part 00000-1.part is missing on /b/step-3000; attempt 0 starts at step 2000"
    ]
    story.starts()
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), steps=5)
    again = chosen(2000, 1, passed_over=(over,), lost_s=12.34)
    assert says(story.happens(again)) == ["attempt 1 starts at step 2000 (checkpoint of 12.3 s before the failure)"]


def test_where_each_node_has_its_own_that_is_said() -> None:
    story, _ = looks("a", "b")
    own = ResumeChosen(attempt=0, source="storage", step=20, name="step-20", address="/ckpt/step-20")
    assert says(story.happens(own)) == ["attempt 0 starts at step 20, each node from a checkpoint of its own"]


def test_a_first_attempt_from_the_beginning_is_not_news_and_a_later_one_is() -> None:
    story = runs("a")
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), steps=5)
    assert says(story.happens(ResumeChosen(attempt=1))) == [
        "attempt 1 starts from the beginning: there is no checkpoint yet"
    ]
    assert story.state.resume is not None and story.state.resume.is_beginning, "what was trained is lost: on record"


def test_a_job_whose_program_saves_where_it_likes_is_not_known_to_start_from_the_beginning() -> None:
    story = runs("a")
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), steps=5)
    assert not resuming.chosen(story.state, ResumeChosen(attempt=1), saves_plain_files=True)
    assert story.state.resume is not None and not story.state.resume.is_beginning


def test_a_wrapped_error_of_ours_is_one_of_ours() -> None:
    story = runs("a", "b", step=3000)
    incident = incident_of(fails_to_load(story, damage=damage(3000), finding=WRAPPED))
    assert incident.reason == "step 3000 is passed over"
    assert "RuntimeError: no checkpoint" in incident.verdict.sentence, "in the program's own words"


def test_a_programs_own_exception_is_never_taken_for_damage() -> None:
    story = runs("a", "b", step=3000)
    incident = incident_of(fails_to_load(story, damage=None, finding=BUG))
    assert incident.verdict.rule == "user_exception" and incident.reason == "restart 1 of 3 without progress"
    assert not story.state.passed_over
    story.opens()
    story.happens(chosen(3000, 1))
    for node in ("a", "b"):
        story.node_started(node)
    actions = fails_to_load(story, damage=damage(3000), finding=BUG)
    assert incident_of(actions).reason == "the same exception came back after a restart", "whatever was noted besides"
    assert set(story.state.passed_over) == {"u3000"}, "and yet it is damaged"


def test_an_attempt_that_made_steps_did_not_fail_of_what_it_started_from() -> None:
    story = runs("a", "b", step=3000)
    incident = incident_of(fails_to_load(story, damage=damage(3000), steps=70))
    assert incident.verdict.rule == "user_exception" and incident.reason == "it had made progress"


def test_never_restart_means_never() -> None:
    story = runs("a", "b", step=3000, max_restarts=0)
    actions = fails_to_load(story, damage=damage(3000))
    assert isinstance(actions[-1], Finish) and actions[-1].reason == "--max-restarts is 0"


def test_damage_survives_a_restart_of_the_controller() -> None:
    story = runs("a", "b", step=3000)
    fails_to_load(story, damage=damage(3000))
    state = replay(story.policy, story.told)
    assert set(state.passed_over) == {"u3000"} and state == story.state


# --- what is lost


def test_the_step_that_an_attempt_had_reached_is_kept() -> None:
    story = runs("a", step=100)
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), steps=37)
    assert story.state.reached_step == 137
    assert story.state.last_point is not None and story.state.last_point.step == 100
    story.opens()
    story.happens(chosen(130, 1))
    story.node_started("a")
    story.exits(0, -9)
    story.ends("a", evidence(0, -9))
    assert story.state.reached_step == 137, "an attempt that made no step lost nothing more"


def test_a_rank_that_failed_before_the_store_was_known_is_not_forgotten() -> None:
    story, _ = looks("a")
    story.happens(RankExited(attempt=0, rank=0, exit_code=1))
    story.happens(chosen(5, 0))
    assert EndAttempt in kinds(story.opens())
