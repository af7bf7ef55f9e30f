"""A role that is asked to have more members, or fewer."""

from __future__ import annotations

from typing import Any

from role_story import Story, acts, role, rollout, started, stopped

from robust_run.orchestrator.model.words import Action, Asked, NodeGone, NodeOffered, SayLine, Tick
from robust_run.orchestrator.people.views.whole import lacks_room, view_of


def story(members: int = 3, devices: int = 0, **more: Any) -> Story:
    """Return a job whose rollouts run."""
    each = 1 if devices else 0
    found = Story(
        role("rollout", **{"members": members, "fewest": 1, "most": 6, "devices": each, **more}), devices=devices
    )
    for index in range(members):
        if found.standing(rollout(index)) == "starting":
            found.runs(rollout(index))
    return found


def scale(found: Story, members: int) -> list[Action]:
    return found.tell(Asked(what="scale", role="rollout", members=members))


def test_the_highest_indices_end_first_and_come_back_under_their_names() -> None:
    job = story()
    assert stopped(scale(job, 1)) == ["rollout/1", "rollout/2"]
    for index in (1, 2):
        job.ends(rollout(index), -15)
    assert started(scale(job, 3)) == ["rollout/1", "rollout/2"]


def test_the_same_again_changes_nothing() -> None:
    job = story()
    assert acts(scale(job, 3)) == []
    scale(job, 2)
    assert scale(job, 2) == []


def test_more_than_there_is_room_for_is_told_and_fails_nothing() -> None:
    job = story(members=2, devices=3)
    did = scale(job, 6)
    assert started(did) == ["rollout/2"]
    assert len([each for each in did if isinstance(each, SayLine) and "waits for room" in each.text]) == 3
    told = lacks_room(view_of(job.spec, job.state, is_led=True), "rollout")
    assert told.startswith(
        "3 of its members find no room yet, and begin when there is some: rollout/3 waits for room for"
    )
    assert stopped(job.tell(Tick(), after_s=100_000)) == []
    assert lacks_room(view_of(job.spec, job.state, is_led=True), "nobody") == ""


def test_those_that_wait_for_room_begin_on_a_node_that_comes_and_wait_again_when_it_goes() -> None:
    job = story(members=2, devices=1)
    assert job.standing(rollout(1)) == "waits"
    for _ in range(2):
        assert started(job.tell(NodeOffered(node="there", slots=4, devices=1))) == ["rollout/1"]
        job.runs(rollout(1))
        job.tell(NodeGone(node="there"))
        assert started(job.tell(Tick(), after_s=100)) == []
        assert (job.standing(rollout(0)), job.standing(rollout(1))) == ("running", "waits")
        assert job.state.phase == "going"


def test_what_others_use_may_become_free_however_long_that_takes() -> None:
    job = Story(role("first", devices=1), role("rollout", members=2, fewest=2, devices=1), devices=2)
    job.tell(Tick(), after_s=100_000)
    assert (job.standing(rollout(1)), job.state.phase) == ("waits", "going")


def test_one_that_pauses_is_not_started_anew_when_it_is_not_wanted_any_more() -> None:
    job = story()
    job.ends(rollout(2), 3)
    assert job.standing(rollout(2)) == "pausing"
    assert stopped(scale(job, 2)) == []
    assert started(job.tell(Tick(), after_s=1000)) == []
    assert started(scale(job, 3)) == ["rollout/2"]


def test_one_that_pauses_and_stays_wanted_comes_back_when_its_pause_is_over_and_not_before() -> None:
    job = story()
    job.ends(rollout(1), 3)
    assert started(scale(job, 4)) == ["rollout/3"]
    assert started(job.tell(Tick(), after_s=5)) == ["rollout/1"]


def test_one_that_is_ending_and_is_wanted_again_begins_when_it_has_ended() -> None:
    job = story()
    scale(job, 2)
    assert started(scale(job, 3)) == []
    assert started(job.ends(rollout(2), -15)) == ["rollout/2"]
