"""When a process was started."""

from __future__ import annotations

import subprocess
import sys
import time

from robust_run.launcher.agent.startup.watching import started_s


def test_a_process_was_started_between_before_and_after() -> None:
    before_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        after_s = time.monotonic()
        found = started_s(process.pid)
        process.communicate(b"\n")
    assert found is not None
    assert before_s - 0.05 <= found <= after_s + 0.05, "the kernel tells it in hundredths"


def test_a_process_that_is_not_there_was_never_started() -> None:
    assert started_s(1 << 30) is None
