"""A load of our own: processes that keep CPUs busy, at the priority of whoever starts them, and end with it or after a limit.

with busy(20, limit_s=600.0):  # twenty that compute all the time
    ...
with busy(0.5, limit_s=600.0):  # one that computes half of the time
    ...
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PROGRAM = """
import os, sys, time
share, end_s, parent = float(sys.argv[1]), time.monotonic() + float(sys.argv[2]), int(sys.argv[3])
while time.monotonic() < end_s and os.getppid() == parent:
    until_s = time.monotonic() + 0.1 * share
    while time.monotonic() < until_s:
        pass
    if share < 1:
        time.sleep(0.1 * (1 - share))
"""


def shares(load: float) -> list[float]:
    """Return of each process how much of the time it computes."""
    rest = round(load - int(load), 3)
    return [1.0] * int(load) + ([rest] if rest else [])


@contextmanager
def busy(load: float, limit_s: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep CPUs busy; whatever happens, nothing of it goes on for longer than `limit_s`, or than this process."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for share in shares(load):
            argv = [sys.executable, "-S", "-c", PROGRAM, f"{share:g}", f"{limit_s:g}", str(os.getpid())]
            processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))
        yield processes
    finally:
        for process in processes:
            with suppress(OSError):
                process.kill()
        for process in processes:
            process.wait()
