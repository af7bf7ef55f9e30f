"""A node that comes back and hosts the controller again waits for workers of the old run, as long as its journal says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.launcher.model.actions import Action, Finish, OpenStore
from robust_run.launcher.model.events import Event, Tick
from robust_run.launcher.model.job import JobSpec, ManyNodes, OutputStreams
from robust_run.launcher.model.job_identity import identity_of
from robust_run.launcher.model.lease_times import longest_hold_s
from robust_run.launcher.model.node_events import LeaseRecorded
from robust_run.launcher.records.journal import Journal
from robust_run.launcher.records.left_behind import left_for_s
from robust_run.launcher.records.rendezvous_marks import RendezvousMark, marks_folder, write_mark
from robust_run.launcher.start.many.lookout import Lookout

QUIET_S = 4.0
"""Lease, margin, and the margin of a controller that takes over."""
DONE = Finish(exit_code=0, outcome="done")
OPEN = OpenStore(attempt=1, node="a")


def spec_in(folder: Path, lease_s: float = 3.0, standby: int = 0) -> JobSpec:
    return JobSpec(
        argv=("python", "train.py"),
        script="train.py",
        is_python=True,
        nproc=1,
        run_id="old",
        rdzv_id="job",
        log_dir=str(folder),
        streams=OutputStreams(redirects=(), tee=(), shown=()),
        many=ManyNodes(fewest=2, most=2, host="n0", port=29400, job="job", lease_s=lease_s, controller_standby=standby),
    )


def run_of(folder: Path, *story: Event | Action, lease_s: float = 3.0) -> str:
    """Write the journal of a run, and return its path."""
    (folder / "old").mkdir()
    path = str(folder / "old" / "journal.jsonl")
    journal = Journal(path, SystemClock(), lambda *_: None)
    journal.open_with(spec_in(folder, lease_s), "n0")
    for each in story:
        is_action = isinstance(each, (Finish, OpenStore))
        journal.event(Tick() if is_action else each, 0.0, [each] if is_action else [])  # type: ignore[arg-type, list-item]
    journal.close()
    return path


@pytest.mark.parametrize(
    ("story", "left_s"),
    [
        ((), QUIET_S),
        ((LeaseRecorded(lost_s=10.5),), 11.0),
        ((LeaseRecorded(lost_s=10.5), LeaseRecorded(lost_s=3.5)), QUIET_S),
        ((DONE,), 0.0),
        ((DONE, Tick()), 0.0),
        ((DONE, OPEN), QUIET_S),  # it was requeued
    ],
)
def test_workers_live_as_long_as_the_last_lease_on_record(
    tmp_path: Path, story: tuple[Event | Action, ...], left_s: float
) -> None:
    assert left_for_s(run_of(tmp_path, *story)) == left_s


def test_the_lease_is_that_of_the_old_run(tmp_path: Path) -> None:
    assert left_for_s(run_of(tmp_path, lease_s=9.0)) == 10.0


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert left_for_s(str(tmp_path / "nothing")) is None
    (tmp_path / "torn").write_text("{")
    assert left_for_s(str(tmp_path / "torn")) is None


def returns(tmp_path: Path) -> tuple[str, float, list[str]]:
    """Return what a node does that had a part in the run, for how long no attempt begins, and what it says."""
    said: list[str] = []
    spec = spec_in(tmp_path)
    marks = marks_folder({"XDG_STATE_HOME": str(tmp_path / "state")}, "n0")
    mark = RendezvousMark(key=identity_of(spec).key, agent="0" * 16, run_id="old", log_dir=str(tmp_path))
    write_mark(marks, mark)
    assert spec.many is not None
    lookout = Lookout(spec, spec.many, marks, "n0", SystemClock(), said.append)
    founding = asyncio.run(lookout.look())
    lookout.explain()
    return founding.act, founding.hold_s, said


def test_a_node_that_comes_back_says_at_once_for_how_long_no_attempt_begins(tmp_path: Path) -> None:
    run_of(tmp_path)
    act, hold_s, said = returns(tmp_path)
    assert (act, hold_s) == ("found", QUIET_S)
    assert "had a part in run old" in said[0] and "no attempt begins for 4 s" in said[0]


def test_where_the_journal_is_not_here_it_waits_for_the_longest_lease_there_could_be(tmp_path: Path) -> None:
    many = spec_in(tmp_path).many
    assert many is not None
    act, hold_s, said = returns(tmp_path)
    assert (act, hold_s) == ("found", longest_hold_s(many))
    assert "no attempt begins for 19 s" in said[0]


def test_a_run_that_is_over_is_waited_for_by_nobody(tmp_path: Path) -> None:
    run_of(tmp_path, DONE)
    assert returns(tmp_path) == ("found", 0.0, [])
