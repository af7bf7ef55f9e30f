"""A raised priority is this process's alone, and never overrules a user's."""

from __future__ import annotations

import os
import subprocess
import sys

from robust_run.launcher.agent.warm.become import be_scheduled_as
from robust_run.launcher.start.priority import NICENESS

RAISES = """
import os, subprocess, sys, threading
from robust_run.launcher.agent.warm.become import be_scheduled_as
from robust_run.launcher.start.priority import raise_priority
niceness = lambda: os.getpriority(os.PRIO_PROCESS, 0)
os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[1]))
print(raise_priority(), niceness())
print(subprocess.run([sys.executable, "-c", "import os; print(os.nice(0))"], capture_output=True).stdout.decode().strip())
if os.fork() == 0:
    be_scheduled_as(os.getppid())
    print(niceness(), os.sched_getscheduler(0), flush=True)
    os._exit(0)
os.wait()
"""


def told(niceness: int) -> list[str]:
    argv = [sys.executable, "-u", "-c", RAISES, str(niceness)]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.splitlines()


def test_it_is_raised_where_that_is_allowed_and_children_have_the_usual_one() -> None:
    lower = "import os; os.setpriority(os.PRIO_PROCESS, 0, -9); os.setpriority(os.PRIO_PROCESS, 0, 0)"
    is_allowed = subprocess.run([sys.executable, "-c", lower], stderr=subprocess.DEVNULL, check=False).returncode == 0
    if is_allowed:
        assert told(0) == [f"True {NICENESS}", "0", f"0 {os.SCHED_OTHER}"]
    elif os.getpriority(os.PRIO_PROCESS, 0) == 0:
        assert told(0) == ["False 0", "0", f"0 {os.SCHED_OTHER}"]


def test_what_a_user_has_chosen_stays() -> None:
    assert told(19) == ["False 19", "19", f"19 {os.SCHED_OTHER}"]


def test_a_standby_worker_is_scheduled_as_who_starts_it() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    be_scheduled_as(os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
