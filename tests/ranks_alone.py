"""Small Python processes that answer the stacks signal as a rank does, for tests that look at them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from jobs import wait_for

from robust_run.tracer.files import ring
from robust_run.tracer.sight.targets import Target

PATIENCE_S = 200.0

ARMED = f"""
import faulthandler, os, sys
answers = open(os.environ["STACKS"], "a")
faulthandler.register({ring.stacks_signal()}, file=answers, all_threads=True)
"""


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, and fail if it does not come true."""
    wait_for(condition, what, PATIENCE_S)


@contextlib.contextmanager
def rank(folder: Path, program: str, *, armed: bool = True, number: int = 0) -> Iterator[Target]:
    """Run a program until it prints `ready`, and end it and its children afterwards."""
    steps_file = folder / f"steps-{number}"
    script = folder / f"rank_{number}.py"
    script.write_text((ARMED if armed else "import os, sys\n") + textwrap.dedent(program))
    stacks = Path(f"{steps_file}.stacks")
    stacks.touch()
    running = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"STACKS": str(stacks)},
    )
    assert running.stdout is not None
    try:
        assert running.stdout.readline() == "ready\n"
        yield Target(rank=number, node="gpu-01", pid=running.pid, steps_file=str(steps_file))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.stdout.close()
        running.wait(PATIENCE_S)
