"""What became of members, told from a job's journal."""

from __future__ import annotations

from robust_run.orchestrator.journal import Line
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.words import (
    Asked,
    Begun,
    Event,
    NodeGone,
    NodeOffered,
    RankEnded,
    RankReady,
    Tick,
    WorldEnded,
    WorldFailed,
    WorldRuns,
)
from robust_run.orchestrator.people.views.history import History, Loss, history_of
from robust_run.orchestrator.roles_file import parse
from robust_run.orchestrator.rules import core

SPEC = parse(
    '[roles.trainer]\ncommand = "a.py"\nends = "job"\n[roles.rollout]\ncommand = "b.py"\nmembers = 2\nfewest = 1\n'
    'restart = "alone"\nready = "called"\n'
)
TRAINER, ROLLOUT = MemberName("trainer", 0), MemberName("rollout", 1)


def told(*story: tuple[float, Event], now_s: float | None = None) -> History:
    """Return the history of a job that began at 0, to which these events came at these seconds."""
    state, lines = JobState(), []
    for at_s, event in ((0.0, NodeOffered(node="here", slots=9)), (0.0, Begun()), *story):
        lines.append(Line(at=at_s, mono=at_s, event=event, actions=core.step(SPEC, state, event, at_s)))
    return history_of(SPEC, lines, now_s)


def runs(at_s: float, member: MemberName, serial: int = 1, attempt: int = 0) -> tuple[float, Event]:
    return at_s, WorldRuns(member=member, serial=serial, attempt=attempt)


def ready(at_s: float, serial: int = 1, attempt: int = 0) -> tuple[float, Event]:
    return at_s, RankReady(member=ROLLOUT, serial=serial, rank=0, attempt=attempt)


def stretches(history: History, name: MemberName) -> list[tuple[str, float, float]]:
    (found,) = (each for each in history.members if each.name == str(name))
    return [(each.kind, each.begin_s, each.end_s) for each in found.stretches]


def test_a_member_that_fails_is_down_from_the_end_of_its_first_rank_until_it_can_be_relied_on() -> None:
    history = told(
        runs(2.0, ROLLOUT),
        ready(3.0),
        (10.0, RankEnded(member=ROLLOUT, serial=1, rank=0, attempt=0)),
        (11.0, WorldFailed(member=ROLLOUT, serial=1, attempt=0, sentence="rank 0 was killed by SIGKILL")),
        runs(14.0, ROLLOUT, attempt=1),
        ready(15.0, attempt=1),
        now_s=20.0,
    )
    assert stretches(history, ROLLOUT) == [
        ("starts", 0.0, 2.0),
        ("runs", 2.0, 10.0),
        ("down", 10.0, 14.0),
        ("runs", 14.0, 20.0),
    ]
    assert history.losses == (
        Loss(at_s=10.0, member="rollout/1", run="rollout-1.1", sentence="rank 0 was killed by SIGKILL", back_s=15.0),
    )
    assert [moment.text for moment in history.moments] == [
        "here is there",
        "the job begins",
        "rollout/1 runs (generation 1)",
        "rollout/1 failed: rank 0 was killed by SIGKILL",
        "rollout/1 runs (generation 2)",
    ]


def test_a_launcher_that_gives_up_after_its_workers_failed_is_one_loss() -> None:
    history = told(
        runs(2.0, ROLLOUT),
        (10.0, WorldFailed(member=ROLLOUT, serial=1, attempt=0, sentence="rank 0 exited with code 1")),
        (11.0, WorldEnded(member=ROLLOUT, serial=1, code=1, sentence="no restarts are left")),
        (13.0, Tick()),
        runs(14.0, ROLLOUT, serial=2),
        ready(14.5, serial=2),
        now_s=20.0,
    )
    assert stretches(history, ROLLOUT) == [
        ("starts", 0.0, 2.0),
        ("runs", 2.0, 10.0),
        ("down", 10.0, 13.0),
        ("starts", 13.0, 14.0),
        ("runs", 14.0, 20.0),
    ]
    (loss,) = history.losses
    assert (loss.at_s, loss.back_s, loss.run) == (10.0, 14.5, "rollout-1.1")
    (member,) = (each for each in history.members if each.name == "rollout/1")
    assert member.runs == ("rollout-1.1", "rollout-1.2")


def test_a_rank_that_ended_well_long_before_is_no_beginning_of_a_failure() -> None:
    history = told(
        runs(2.0, TRAINER),
        (10.0, RankEnded(member=TRAINER, serial=1, rank=1, attempt=0)),
        (90.0, WorldFailed(member=TRAINER, serial=1, attempt=0)),
    )
    assert history.losses[0].at_s == 90.0


def test_what_is_wanted_is_no_loss() -> None:
    history = told(
        runs(2.0, TRAINER),
        runs(2.0, ROLLOUT),
        (5.0, Asked(what="scale", role="rollout", members=1, by="me")),
        (6.0, WorldEnded(member=ROLLOUT, serial=1, code=-15)),
        (7.0, WorldEnded(member=TRAINER, serial=1, code=0)),
        (8.0, WorldEnded(member=MemberName("rollout", 0), serial=1, code=-15)),
    )
    assert history.losses == ()
    assert (history.ended_s, history.known_s) == (8.0, 8.0)
    assert stretches(history, ROLLOUT)[-1] == ("ends", 5.0, 6.0)
    assert history.moments[-1].text == "the job is over: trainer is done"


def test_a_node_that_is_gone_takes_its_members_with_it() -> None:
    history = told(
        runs(2.0, TRAINER),
        runs(2.0, ROLLOUT),
        ready(3.0),
        (9.0, NodeGone(node="here", why="silent")),
        now_s=10.0,
    )
    assert {loss.member for loss in history.losses} == {"trainer/0", "rollout/0", "rollout/1"}
    assert all(loss.sentence == "its node here is gone" and loss.back_s is None for loss in history.losses)
    assert "here is gone: silent" in [moment.text for moment in history.moments]


def test_a_late_word_of_an_earlier_start_changes_nothing() -> None:
    history = told(
        runs(2.0, ROLLOUT),
        (3.0, WorldFailed(member=ROLLOUT, serial=1, attempt=0)),
        runs(4.0, ROLLOUT, attempt=1),
        (5.0, WorldFailed(member=ROLLOUT, serial=1, attempt=0)),
        (6.0, WorldEnded(member=ROLLOUT, serial=7, code=1)),
        now_s=8.0,
    )
    assert len(history.losses) == 1
    assert stretches(history, ROLLOUT)[-1] == ("runs", 4.0, 8.0)


def test_nothing_is_known_of_a_job_that_has_not_begun() -> None:
    assert history_of(SPEC, []) == History()


def test_a_start_that_somebody_asked_for_is_no_loss_and_no_failure() -> None:
    history = told(
        runs(2.0, ROLLOUT),
        ready(3.0),
        (10.0, RankEnded(member=ROLLOUT, serial=1, rank=0, attempt=0)),
        (10.5, WorldFailed(member=ROLLOUT, serial=1, attempt=0, sentence="version 2 is put in place", was_asked=True)),
        runs(11.0, ROLLOUT, attempt=1),
        ready(12.0, attempt=1),
        (15.0, WorldFailed(member=ROLLOUT, serial=1, attempt=1, sentence="rank 0 exited with code 1")),
        now_s=20.0,
    )
    assert stretches(history, ROLLOUT)[1:] == [
        ("runs", 2.0, 10.0),
        ("ends", 10.0, 11.0),
        ("runs", 11.0, 15.0),
        ("down", 15.0, 20.0),
    ]
    assert [loss.at_s for loss in history.losses] == [15.0], "what the new code does is"
    assert "rollout/1 begins again: version 2 is put in place" in [moment.text for moment in history.moments]


def test_what_a_leader_reads_once_more_after_its_own_death_did_not_happen_again() -> None:
    failed = WorldFailed(member=ROLLOUT, serial=1, attempt=0, sentence="rank 0 was killed by SIGKILL")
    story = (runs(2.0, ROLLOUT), (10.0, failed), runs(11.0, ROLLOUT, attempt=1))
    once_more = tuple((30.0, event) for _, event in story)
    after_it = told(*story, *once_more, now_s=40.0)
    before = told(*story, now_s=40.0)
    assert (after_it.moments, after_it.losses) == (before.moments, before.losses)
    assert stretches(after_it, ROLLOUT) == stretches(before, ROLLOUT)


def test_the_end_of_a_launcher_that_is_told_late_is_not_told_beside_the_end_of_its_node() -> None:
    history = told(
        runs(2.0, ROLLOUT),
        (9.0, NodeGone(node="here", why="silent")),
        (50.0, NodeOffered(node="here", slots=9)),
        (51.0, WorldEnded(member=ROLLOUT, serial=1, code=-9)),
    )
    (ended,) = (moment for moment in history.moments if moment.text.startswith("rollout/1 ended"))
    assert ended.at_s == 9.0
