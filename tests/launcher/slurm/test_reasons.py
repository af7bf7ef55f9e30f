"""Why Slurm ends a job, what follows, and what scontrol says. The answers are those of 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.events import AttemptEnded, Event, FirstStep
from robust_run.launcher.model.job import NodeInfo, Progress
from robust_run.launcher.model.node_events import (
    ControllerResumed,
    JobStarted,
    NodeEvicted,
    NodeJoined,
    NodeLost,
    NodeReturned,
)
from robust_run.launcher.records.journal import JournalEntry
from robust_run.slurm.flags import BAD_EXIT, NO_KILL, WAIT, FlagsSeen, missing
from robust_run.slurm.past import judge
from robust_run.slurm.pulse import beat, is_silent
from robust_run.slurm.requeue import ended_as, was_told
from robust_run.slurm.rules.reasons import classify, decide, is_over
from robust_run.slurm.rules.types import Reason, SlurmEnded, SlurmJobFacts
from robust_run.slurm.scontrol import parse_job, record_of

RUNNING = (
    "JobId=9 JobName=train UserId=ada(1000) JobState=RUNNING Reason=None Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:07 TimeLimit=00:01:00 StartTime=1795312440 EndTime=1795312500 PreemptTime=None "
    "ReqNodeList=(null) ExcNodeList=rr4 NodeList=rr[1-3] BatchHost=rr1 Command=/home/ada/train.sh"
)


def action(finish: Finish) -> JournalEntry:
    return JournalEntry(at=0.0, mono=0.0, action=finish)


def event(what: Event, at_s: float = 0.0) -> JournalEntry:
    return JournalEntry(at=at_s, mono=at_s, event=what)


def test_the_facts_of_a_job_are_read() -> None:
    assert parse_job(RUNNING) == SlurmJobFacts(
        state="RUNNING",
        end_unix_s=1795312500.0,
        restarts=1,
        is_batch=True,
        may_requeue=True,
        batch_host="rr1",
        excluded="rr4",
    )


def test_of_an_arrays_tasks_the_one_that_was_asked_for_is_read() -> None:
    sibling = RUNNING.replace("JobId=9 ", "JobId=11 ArrayJobId=9 ArrayTaskId=0 ").replace("RUNNING", "CANCELLED")
    assert parse_job(record_of(f"{sibling}\n\n{RUNNING}\n", "9")).state == "RUNNING"
    assert parse_job(record_of(f"{sibling}\n", "9_0")).state == "CANCELLED"


def test_a_job_without_a_limit_has_no_end_though_slurm_writes_one() -> None:
    assert parse_job(RUNNING.replace("TimeLimit=00:01:00", "TimeLimit=UNLIMITED")).end_unix_s is None


def test_an_answer_that_is_none_says_nothing() -> None:
    assert parse_job("slurm_load_jobs error: Invalid job id specified") == SlurmJobFacts()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (SlurmJobFacts(state="RUNNING", end_unix_s=2000.0), ""),
        (SlurmJobFacts(state="RUNNING", end_unix_s=990.0), "time_limit"),
        (SlurmJobFacts(state="TIMEOUT", end_unix_s=990.0), "time_limit"),
        (SlurmJobFacts(state="CANCELLED", end_unix_s=1000.0), "cancelled"),
        (SlurmJobFacts(state="RUNNING", preempted_unix_s=1000.0, end_unix_s=2000.0), "preempted"),
        (SlurmJobFacts(state="PREEMPTED"), "preempted"),
        (SlurmJobFacts(state="COMPLETING", restarts=1), "requeued"),
        (SlurmJobFacts(state="PENDING"), "requeued"),
    ],
)
def test_the_ways_to_end_are_told_apart(facts: SlurmJobFacts, reason: Reason) -> None:
    assert classify(facts, 0, 1000.0) == reason


@pytest.mark.parametrize(
    ("ended", "requeue"),
    [
        (SlurmEnded(exit_code=143, outcome="stopped", warned="time_limit"), True),
        (SlurmEnded(exit_code=1, outcome="failed", warned="time_limit"), False),
        (SlurmEnded(exit_code=1, outcome="failed", is_short=True), True),
        (SlurmEnded(exit_code=1, outcome="failed", is_short=True, barren=2), True),
        (SlurmEnded(exit_code=1, outcome="failed", is_short=True, barren=3), False),
        (SlurmEnded(exit_code=143, outcome="stopped", warned="preempted", barren=3), True),
        (SlurmEnded(exit_code=0, outcome="done", is_orphan=True), True),
        (SlurmEnded(exit_code=0, outcome="done", warned="time_limit"), False),
        (SlurmEnded(exit_code=93, outcome="failed", warned="time_limit"), False),
        (SlurmEnded(exit_code=1, outcome="failed"), False),
        (SlurmEnded(exit_code=143, outcome="stopped", warned="cancelled"), False),
        (SlurmEnded(exit_code=143, outcome="stopped", warned="preempted"), True),
        (SlurmEnded(exit_code=143, outcome="stopped", warned="requeued"), False),
        (SlurmEnded(exit_code=143, outcome="stopped", warned="warned"), False),
    ],
)
def test_what_goes_back_into_the_queue(ended: SlurmEnded, requeue: bool) -> None:
    assert decide(ended, "auto").requeue is requeue
    assert not decide(ended, "never").requeue


@pytest.mark.parametrize(
    ("ended", "code", "told"),
    [
        (SlurmEnded(exit_code=143, outcome="stopped"), 143, True),
        (SlurmEnded(exit_code=143), 143, True),  # it came before anything was on record
        (SlurmEnded(exit_code=143, warned="preempted"), 143, False),
        (SlurmEnded(exit_code=1), 1, False),
        (SlurmEnded(exit_code=0, outcome="done"), 143, False),
    ],
)
def test_slurm_is_asked_why_a_job_was_told_to_end_however_early(ended: SlurmEnded, code: int, told: bool) -> None:
    assert was_told(ended, code) is told


def test_how_an_earlier_start_ended_does_not_count_before_this_one_is_on_record() -> None:
    entries = [event(JobStarted()), action(Finish(exit_code=1, outcome="failed"))]
    assert judge(entries).finish is not None
    assert judge(entries, restart=1).finish is None


def test_only_a_controller_that_is_gone_and_has_said_nothing_makes_a_job_short() -> None:
    assert ended_as(69, judge([]), "", is_lost=True).is_short
    assert not ended_as(137, judge([]), "", is_lost=False).is_short
    assert not ended_as(69, judge([action(Finish(exit_code=0, outcome="done"))]), "", is_lost=True).is_short


def test_a_controller_that_gives_signs_is_not_gone_and_one_whose_signs_cannot_be_seen_neither(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert not is_silent(folder, lambda _: None)
    beat(folder)
    assert is_silent(folder, lambda _: None)
    assert not is_silent(folder, lambda _: (tmp_path / "pulse").write_text("another") and None)


def test_a_job_that_gave_up_waiting_is_short_and_one_that_crashed_is_not() -> None:
    short = Finish(exit_code=1, outcome="failed", reason="only 1 of 2 nodes (rr1) came within 60 s")
    crashed = Finish(exit_code=1, outcome="failed", reason="it fails the same way again", sentence="rank 0: ValueError")
    assert ended_as(1, judge([action(short)]), "", is_lost=False).is_short
    assert not ended_as(1, judge([action(crashed)]), "", is_lost=False).is_short


def saved(progress: Progress) -> JournalEntry:
    return event(AttemptEnded(attempt=1, started_at_s=0.0, ranks=(), progress=progress))


@pytest.mark.parametrize(
    ("second", "barren"),
    [
        ([], 3),
        ([event(FirstStep(attempt=1, at_s=1.0))], 1),
        ([saved(Progress())], 3),
        ([saved(Progress(steps=1))], 1),
        ([saved(Progress(files_advanced=True))], 1),
        ([event(NodeLost(node="a", silent_s=3.6), at_s=700.0)], 1),
        ([action(Finish(exit_code=143, outcome="stopped"))], 1),
        ([action(Finish(exit_code=1, outcome="failed"))], 3),
    ],
)
def test_starts_that_got_nowhere_are_counted_even_where_nothing_of_them_is_on_record(
    second: list[JournalEntry], barren: int
) -> None:
    entries = [event(JobStarted()), event(ControllerResumed(term=2, restart=1)), *second]
    assert judge(entries, restart=2).barren == barren, "of three starts the third wrote nothing"
    assert judge([event(FirstStep(attempt=1, at_s=1.0))], restart=0).barren == 0


def test_the_past_of_a_requeued_job_begins_at_the_requeue_but_evictions_hold() -> None:
    entries = [
        event(JobStarted()),
        event(NodeJoined(node=NodeInfo(id="a", name="rr1", nproc=1))),
        event(NodeLost(node="a", silent_s=3.6)),
        event(NodeEvicted(name="rr2", reason="bad GPU")),
        action(Finish(exit_code=143, outcome="stopped")),
    ]
    before, after = judge(entries), judge([*entries, event(ControllerResumed(term=2, restart=1))])
    assert (before.lost, before.evicted) == (("rr1",), ("rr2",))
    assert before.finish is not None
    assert (after.lost, after.evicted, after.finish) == ((), ("rr2",), None)


def test_a_host_that_was_taken_over_from_is_lost_unless_it_comes_back() -> None:
    entries = [
        event(JobStarted()),
        event(NodeJoined(node=NodeInfo(id="a", name="rr1", nproc=1))),
        event(NodeJoined(node=NodeInfo(id="b", name="rr2", nproc=1))),
        event(ControllerResumed(term=2, host="rr2")),
        action(Finish(exit_code=0, outcome="done")),
    ]
    assert judge(entries, "rr1").lost == ("rr1",), "the job was over before its silence was noted"
    back = event(NodeReturned(node="a", attempt=0, name="rr1"))
    assert judge([*entries, back], "rr1").lost == ()
    same = [event(JobStarted()), event(ControllerResumed(term=2, host="rr1"))]
    assert judge(same, "rr1").lost == ()


def test_a_job_that_failed_is_not_requeued_because_its_time_was_nearly_over() -> None:
    failed = SlurmEnded(exit_code=1, outcome="failed", warned="time_limit")
    assert not decide(failed, "auto").requeue
    assert decide(SlurmEnded(exit_code=143, outcome="stopped", warned="time_limit"), "auto").requeue


def test_a_worker_that_says_never_again_at_the_deadline_is_heard() -> None:
    told = SlurmEnded(exit_code=143, outcome="stopped", warned="time_limit", codes=frozenset({0, 93}))
    assert not decide(told, "auto").requeue


@pytest.mark.parametrize("state", ["CANCELLED by 0", "COMPLETING", "TIMEOUT", "PREEMPTED", "FAILED"])
def test_the_end_time_of_a_job_that_is_over_is_no_limit(state: str) -> None:
    assert is_over(SlurmJobFacts(state=state, end_unix_s=100.0))
    assert not is_over(SlurmJobFacts(state="RUNNING", end_unix_s=100.0))
    assert not is_over(SlurmJobFacts())


def test_a_takeover_after_a_requeue_forgets_no_loss() -> None:
    entries = [
        event(ControllerResumed(term=2, host="rr1", restart=1)),
        event(NodeJoined(node=NodeInfo(id="a", name="rr3", nproc=1))),
        event(NodeLost(node="a", silent_s=3.6)),
        event(ControllerResumed(term=3, host="rr2", restart=1)),
    ]
    assert judge(entries, "rr0").lost == ("rr3", "rr1")


@pytest.mark.parametrize(
    ("words", "lacking"),
    [
        ("-N4 --no-kill --kill-on-bad-exit=0 --wait=0", ()),
        ("-N4 -k -K0 -W0", ()),
        ("-N4 -lk -K0 -W 0", ()),
        ("-N4 --no-k --kill=0 --wai 0", ()),
        ("-N4", (NO_KILL,)),
        ("-N4 -K -W 30 --no-kill", (BAD_EXIT, WAIT)),
        ("-N4 -K1 --wait=30 -k", (BAD_EXIT, WAIT)),
    ],
)
def test_missing_options_of_srun_are_seen_in_its_command_line(words: str, lacking: tuple[str, ...]) -> None:
    site = {"KillOnBadExit": "0", "WaitTime": "0 sec"}
    assert missing(FlagsSeen(words=tuple(words.split()), env={}, site=site)) == lacking


def test_without_its_command_line_the_environment_and_the_site_tell() -> None:
    assert missing(FlagsSeen(words=None, env={}, site={"KillOnBadExit": "1", "WaitTime": "30 sec"})) == (BAD_EXIT, WAIT)
    assert (
        missing(FlagsSeen(words=None, env={"SLURM_KILL_BAD_EXIT": "0", "SLURM_WAIT": "0"}, site={"KillOnBadExit": "1"}))
        == ()
    )
    assert missing(FlagsSeen(words=None, env={})) == ()
