"""Processes of ours beside the workers: what they say is kept, their ends are seen, and none is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from jobs import wait_for

from robust_run.launcher.agent.workers.workers import ChildSetup, Helpers

LIMIT_S = 60.0


def helpers(log: Path) -> Helpers:
    return Helpers(ChildSetup(()), str(log), time.monotonic)


def test_what_a_helper_says_is_in_the_log_and_its_exit_code_is_known(tmp_path: Path) -> None:
    made = helpers(tmp_path / "log")
    pid = made.start((sys.executable, "-ISc", "print('out', flush=True); raise SystemExit(3)"), {}, ())
    assert made.exit_code(pid, LIMIT_S) == 3
    assert (tmp_path / "log").read_text() == "out\n"
    assert made.pids() == []


def test_without_a_log_it_runs_all_the_same(tmp_path: Path) -> None:
    made = helpers(tmp_path / "no" / "such" / "log")
    pid = made.start((sys.executable, "-ISc", "print('out')"), {}, ())
    assert made.exit_code(pid, LIMIT_S) == 0


def test_it_has_nothing_to_read_and_the_descriptors_it_was_given(tmp_path: Path) -> None:
    theirs, ours = os.pipe()
    os.close(ours)
    made = helpers(tmp_path / "log")
    code = f"import os, sys; print(repr(sys.stdin.read()), os.read({theirs}, 1), flush=True)"
    assert made.exit_code(made.start((sys.executable, "-ISc", code), {}, (theirs,)), LIMIT_S) == 0
    os.close(theirs)
    assert (tmp_path / "log").read_text() == "'' b''\n"


def test_one_that_runs_is_listed_until_it_is_killed(tmp_path: Path) -> None:
    made = helpers(tmp_path / "log")
    pid = made.start((sys.executable, "-ISc", "import time; time.sleep(1000)"), {}, ())
    assert made.pids() == made.pids_uncollected() == [pid]
    assert made.exit_code(pid, 0.0) is None
    made.kill()
    assert made.exit_code(pid, LIMIT_S) == -signal.SIGKILL
    wait_for(lambda: made.pids() == [], "its end to be seen")


def test_of_what_is_no_helper_nothing_is_known(tmp_path: Path) -> None:
    assert helpers(tmp_path / "log").exit_code(os.getpid(), 0.0) is None
    assert helpers(tmp_path / "log").exit_code(None, 0.0) is None
