"""Waiting for the end of a child, also of one of which a thread cannot end."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

#: How often it is looked whether only a part of the agent has ended, and how often that must be seen: it lasts a moment always.
LOOK_S = 1.0
HALF_ENDED_LOOKS = 3
#: Where /proc/PID/stat has it, after the name.
_EXIT_CODE = 49


def wait_for_end(pid: int, look: Callable[[], float] = lambda: LOOK_S) -> int:
    """Wait for the end of a child; return its status as `waitpid` gives it. `look`: called now and then, says when again.

    A thread that waits for a file system which hangs keeps even a killed process: such a one is not waited for, and that is said.
    """
    poll = select.poll()
    descriptor = _opened(pid)
    if descriptor >= 0:
        poll.register(descriptor, select.POLLIN)
    pause_s, looked_at_s, looks = LOOK_S, time.monotonic(), 0
    while True:
        poll.poll(pause_s * 1000)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        pause_s = look()
        if time.monotonic() < looked_at_s + LOOK_S:
            continue
        looked_at_s, left = time.monotonic(), status_of_half_ended(pid)
        looks = looks + 1 if left is not None else 0
        if left is not None and looks >= HALF_ENDED_LOOKS:
            what = "has ended, but for a thread that waits for a file system which does not answer"
            print(f"robust-run: the agent (pid {pid}) {what}", file=sys.stderr, flush=True)
            return left


def _opened(pid: int) -> int:
    """Return what can be read from once a process has ended; -1: there is no such thing here."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def status_of_half_ended(pid: int) -> int | None:
    """Return the exit status of a process whose first thread has ended; None: that has not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[_EXIT_CODE]) if fields[0] == b"Z" else None
    except (OSError, IndexError, ValueError):
        return None
