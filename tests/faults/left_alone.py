"""Whether a job gets through a wait of `waits.py` under `robust-run`: starts it, and tells what was wrong with how it went."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from jobs import Job, running

PROGRAM = str(Path(__file__).with_name("waits.py"))
END_S = 400.0
NEEDS = {"retries_of_urllib3": "urllib3", "retries_of_a_hub": "huggingface_hub", "embedding": "sklearn",
         "preparing_data": "datasets", "file_lock": "filelock"}  # fmt: skip
PROGRAMS = {"curl": "curl", "attached": "gdb"}
#: They may be over before anybody has waited for long.
SHORT = frozenset({"one_long_call", "embedding", "compiling", "preparing_data"})
#: These are told on the terminal as what they are, and are no incident.
AT_WORK = frozenset({"slow_download", "debugger", "save_to_a_slow_place"})


def missing(wait: str) -> str:
    """Why a wait cannot be had here; empty if it can."""
    if wait in NEEDS and importlib.util.find_spec(NEEDS[wait]) is None:
        return f"{NEEDS[wait]} is not installed"
    if wait in PROGRAMS and shutil.which(PROGRAMS[wait]) is None:
        return f"{PROGRAMS[wait]} is not installed"
    return ""


@contextmanager
def waiting(wait: str, seconds: float, folder: Path) -> Iterator[Job]:
    """Start a job in a new folder in which rank 0 waits for so long."""
    folder.mkdir()
    env = {"OMP_NUM_THREADS": "1", "ROBUST_WARM_DAEMON": "off"}
    with running(folder, "--nproc-per-node", "2", PROGRAM, wait, f"{seconds:g}", cwd=folder, env=env) as job:
        yield job


def assert_was_left_alone(wait: str, job: Job) -> None:
    """Wait for the job's end, and fail if it was anything but its own."""
    assert job.finish(END_S) == 0, f"{wait}: {job.err}"
    assert [event["attempt"] for event in job.events("attempt_started")] == [0], f"{wait} was started again: {job.err}"
    assert all(f"OK {rank} " in job.out for rank in range(2)), f"{wait}: {job.out}"
    acted = [action["action"] for action in job.actions("record_incident") if action["action"] != "report"]
    assert not acted, f"{wait}: {acted}"
    if wait not in SHORT:
        assert job.events("hang_suspected"), f"nobody has waited long for {wait}: this proves nothing"
    if wait in AT_WORK:
        assert not job.actions("record_incident"), f"{wait} is no hang: {job.err}"
