"""The child that a warm process forks to see whether it may be forked at all."""

from __future__ import annotations

import subprocess
import sys

SLOW = """
import time
from robust_run.forking.canary import try_child
print(repr(try_child(lambda: time.sleep(3), "at its start")))
"""


def test_a_child_that_a_busy_machine_does_not_run_for_seconds_has_not_hung() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=120)
    assert done.stdout == "''\n", done.stderr
