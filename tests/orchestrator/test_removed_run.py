"""Somebody removes the run directory of a job of roles while it runs; then the process that leads it is lost."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
from jobs import kill, wait_for
from role_jobs import role_job

from robust_run.clock import SystemClock
from robust_run.orchestrator.guarding.bereft import Bereft, end_what_runs, first_word
from robust_run.orchestrator.guarding.words import AllKnown, Asked, FromGuard, FromLeader, Known, Link, Send
from robust_run.orchestrator.journal import NAME, has_begun


def is_removed(folder: Path) -> bool:
    """Remove it as `rm -rf` does; the job may put something there meanwhile, but no journal."""
    shutil.rmtree(folder, ignore_errors=True)
    return not (folder / NAME).exists()


@pytest.mark.parametrize("is_begun_anew", [True, False])
def test_the_job_ends_in_good_order_and_says_why(tmp_path: Path, is_begun_anew: bool) -> None:
    """A launcher that starts its workers again makes the directory anew, without a journal."""
    with role_job(tmp_path, hold=5) as roles:
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        wait_for(lambda: is_removed(roles.job.run_dir), "it to be removed")
        if is_begun_anew:
            kill(roles.pid("trainer-0"))
            roles.pid("trainer-0", "1.1")
        os.kill(roles.leader(), signal.SIGKILL)
        assert roles.job.finish() == 1
        assert f"{roles.job.run_dir} was removed while the job ran" in roles.job.err
        assert "Traceback" not in roles.job.err
        roles.job.assert_nothing_left()


def known(name: str, code: int | None = None) -> Known:
    return Known(name=name, pid=1, code=code)


def test_what_runs_is_told_to_end_and_what_has_ended_is_not_waited_for() -> None:
    left = Bereft([AllKnown(launchers=(known("a-0.1"), known("a-1.1", -9), known("b-0.1")))])
    assert left.was_any
    assert left.end_all(15) == [Send(name="a-0.1", number=15), Send(name="b-0.1", number=15)]
    assert left.take(known("b-0.1", 143)) == []
    assert not left.is_over
    assert left.take(Asked(number=2)) == [Send(name="a-0.1", number=2)], "whoever is told twice ends at once"
    left.take(known("a-0.1", 130))
    assert (left.is_over, left.asked) == (True, 2)


def test_a_new_job_knows_no_launcher() -> None:
    assert not Bereft([AllKnown(launchers=())]).was_any


def test_all_that_ran_may_have_ended_by_itself() -> None:
    left = Bereft([AllKnown(launchers=(known("a-0.1", 0),))])
    assert (left.was_any, left.is_over) == (True, True)


def test_the_guard_hears_of_each_that_is_to_end_and_says_when_they_have() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guard, leader = Link(ours, FromLeader), Link(theirs, FromGuard)
        guard.send(AllKnown(launchers=(known("a-0.1"),)))
        left = Bereft(first_word(leader))
        guard.send(Asked(number=15))
        guard.send(known("a-0.1", 143))
        assert end_what_runs(leader, left, SystemClock()) == 143
        assert list(guard.receive()) == [Send(name="a-0.1", number=15)] * 2


@pytest.mark.parametrize(("text", "begun"), [(None, False), (b"", False), (b'{"sch', False), (b'{"schema":1}\n', True)])
def test_a_journal_begins_with_a_whole_line(tmp_path: Path, text: bytes | None, begun: bool) -> None:
    if text is not None:
        (tmp_path / NAME).write_bytes(text)
    assert has_begun(str(tmp_path)) is begun
    assert not has_begun(str(tmp_path / "removed"))
