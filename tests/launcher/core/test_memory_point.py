"""Attempts that start from memory: stories of the core. Whether they can is `test_memory_choice`'s."""

from __future__ import annotations

from typing import Any

import pytest
from stories import Story, evidence, gathering, incident_of, kinds, start_of, told_to_end

from robust_run.ckpt_io.memory.types import generation_uuid
from robust_run.health.types import Finding
from robust_run.launcher.core.resume.memory import world_of
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import OpenStore, Say
from robust_run.launcher.model.events import AttemptStarted
from robust_run.launcher.model.node_events import ControllerResumed
from robust_run.launcher.model.resume_events import Damage, LookForCheckpoints, PassedOver, ResumeChosen

DAMAGED = Finding(
    kind="exception",
    line="robust_run.ckpt_io.errors.CheckpointError: step 9 cannot be loaded from memory",
    exception="robust_run.ckpt_io.errors.CheckpointError",
    message="step 9 cannot be loaded from memory",
    frame="train.py:8 in <module>",
    excerpt="Traceback\nrobust_run.ckpt_io.errors.CheckpointError: step 9 cannot be loaded from memory",
)
UUID = generation_uuid("run", 0, 9)
GONE = PassedOver(step=9, uuid=UUID, name="memory-0-9", why="b, which held a part of it, is gone")


def in_memory(step: int, attempt: int, of: int = 0, **more: Any) -> ResumeChosen:
    return ResumeChosen(
        attempt=attempt,
        source="memory",
        step=step,
        uuid=generation_uuid("run", of, step),
        name=f"memory-{of}-{step}",
        address=f"rrck+memory://{of}/{step}",
        **more,
    )


def runs(*names: str, folder: str = "", **policy: Any) -> Story:
    """The story of a job that keeps checkpoints in memory, and its first attempt runs."""
    story = gathering(len(names), len(names), **policy)
    for name in names:
        story.joins(name, has_memory=True, ckpt_dir=folder)
    if folder:
        story.happens(ResumeChosen(attempt=0))
    story.starts()
    return story


def fails(story: Story, *, steps: int | None = 10) -> list[Any]:
    """Rank 0 is killed; return what is done when all have ended."""
    story.exits(0, -9)
    story.ends("a", evidence(0, -9), told_to_end(1, 2), steps=steps)
    return story.ends("b")


def says(actions: list[Any]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


def test_the_first_attempt_waits_for_nothing_as_nothing_is_in_memory() -> None:
    story = gathering(1, 1)
    assert kinds(story.joins("a", has_memory=True)) == [OpenStore]
    assert start_of(story.opens()).resume is None


def test_later_ones_ask_all_nodes_though_there_is_no_folder() -> None:
    question = next(each for each in fails(runs("a", "b")) if isinstance(each, LookForCheckpoints))
    assert question == LookForCheckpoints(attempt=1, nodes=("a", "b"), of=2, folder="")


def test_it_is_said_how_many_steps_are_lost_and_all_nodes_are_told_the_same() -> None:
    story = runs("a", "b")
    fails(story)
    assert story.state.reached_step == 10
    assert says(story.happens(in_memory(9, 1, steps_lost=1, lost_s=0.2))) == [
        "attempt 1 starts at step 9 from memory, 1 step lost"
    ]
    order = start_of(story.opens())
    assert order.resume is not None
    assert (order.resume.source, order.resume.address) == ("memory", "rrck+memory://0/9")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"steps_lost": 0}, ", 0 steps lost"),
        ({"steps_lost": 3}, ", 3 steps lost"),
        ({"lost_s": 12.34}, " (checkpoint of 12.3 s before the failure)"),
        ({}, ""),
    ],
)
def test_what_is_not_known_is_not_said(more: dict[str, Any], words: str) -> None:
    story = runs("a", "b")
    fails(story, steps=None)
    assert says(story.happens(in_memory(9, 1, **more))) == [f"attempt 1 starts at step 9 from memory{words}"]


def test_steps_are_counted_from_where_the_attempt_started() -> None:
    story = runs("a", "b")
    fails(story)
    story.happens(in_memory(9, 1))
    story.starts()
    fails(story, steps=5)
    assert story.state.reached_step == 14
    assert story.state.last_memory is not None and story.state.last_memory.step == 9
    assert story.state.last_point is None, "what was in memory is not missed in storage"


def test_memory_that_is_gone_is_said_where_the_job_begins_anew() -> None:
    story = runs("a", "b")
    fails(story)
    assert says(story.happens(ResumeChosen(attempt=1, passed_over=(GONE,)))) == [
        "attempt 1 starts at step 0, as step 9 in memory cannot be used: b, which held a part of it, is gone"
    ]


def test_and_where_it_starts_from_storage() -> None:
    story = runs("a", "b", folder="/ckpt")
    fails(story)
    stored = ResumeChosen(
        attempt=1, source="storage", step=5, uuid="u5", name="step-5", passed_over=(GONE,), lost_s=9.0
    )
    assert says(story.happens(stored)) == [
        "step 9 in memory is passed over: b, which held a part of it, is gone; "
        "attempt 1 starts at step 5 (checkpoint of 9.0 s before the failure)"
    ]


def test_a_node_that_takes_another_s_place_is_known_to_be_new() -> None:
    story = gathering(2, 2)
    for name in ("a", "b", "spare"):
        story.joins(name, has_memory=True)
    story.starts()
    story.is_lost("b")
    story.all_end()
    world = world_of(story.state, "run", 1)
    assert world is not None
    assert dict(world.ranks) == {"a": (0, 1), "spare": (2, 3)}
    assert [(each.name, each.first_rank) for each in world.held_by] == [("a", 0), ("b", 2)]


def test_a_part_that_a_rank_found_damaged_is_passed_over_and_costs_no_restart() -> None:
    story = runs("a", "b", max_restarts=1)
    fails(story)
    story.happens(in_memory(9, 1))
    story.starts()
    found = Damage(rank=2, uuid=UUID, name="memory-0-9", step=9, reason="it has a wrong digest")
    story.exits(2, 1, DAMAGED)
    story.ends("a")
    actions = story.ends("b", evidence(2, 1, finding=DAMAGED), told_to_end(3, 2), damage=found)
    incident = incident_of(actions)
    assert (incident.verdict.rule, incident.reason) == ("damaged_checkpoint", "step 9 in memory is passed over")
    (question,) = (each for each in actions if isinstance(each, LookForCheckpoints))
    assert question.avoid == (UUID,)


# --- a controller that was away


def test_what_was_chosen_is_known_to_the_next_controller() -> None:
    story = runs("a", "b")
    fails(story)
    story.happens(in_memory(9, 1))
    assert replay(story.policy, story.told) == story.state


def test_what_was_not_chosen_yet_is_asked_again() -> None:
    story = runs("a", "b")
    fails(story)
    story.happens(ControllerResumed(term=2))
    assert kinds(story.returns("b")) == [LookForCheckpoints]


def test_where_the_journal_lost_the_choice_a_node_that_runs_says_it() -> None:
    story = runs("a", "b")
    fails(story)
    story.happens(ControllerResumed(term=2))
    story.opens()
    told = AttemptStarted(
        attempt=1,
        node="a",
        pids=(1, 2),
        port=29500,
        resumes_step=9,
        resumes_uuid=UUID,
        resumes_name="memory-0-9",
        resumes_source="memory",
    )
    order = start_of(story.happens(told))
    assert order.resume == in_memory(9, 1).point()
