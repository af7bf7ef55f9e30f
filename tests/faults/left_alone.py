"""Whether a job gets through a wait of `waits.py` under `robust-run`: starts it, and tells what was wrong with how it went."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    env = {"OMP_NUM_THREADS": "1", "ROBUST_WARM_DAEMON": os.environ.get("ROBUST_WARM_DAEMON", "off")}
    with running(folder, "--nproc-per-node", "2", PROGRAM, wait, f"{seconds:g}", cwd=folder, env=env) as job:
        yield job


@dataclass(frozen=True)
class Went:
    """How a job went."""

    acted: tuple[str, ...] = ()
    """What was done about its wait: each of them is wrong."""
    said: tuple[str, ...] = ()
    """What was only said of it."""
    failed: str = ""
    """What else was wrong with its end; empty if nothing was."""
    suspected: bool = False
    """Somebody waited for so long that it was looked at."""

    @property
    def problem(self) -> str:
        """What is wrong with it, in a line; empty if nothing is."""
        return "; ".join([*self.acted, *filter(None, [self.failed])])


def how_it_went(job: Job, end_s: float = END_S) -> Went:
    """Wait for the job's end, for so long, and tell how it was."""
    try:
        code = job.finish(max(5.0, end_s))
        failed = f"the job ended with {code}: {job.err[-400:]}" if code else ""
    except subprocess.TimeoutExpired:
        failed = f"the job did not end in {end_s:.0f} s"
    if not failed and not all(f"OK {rank} " in job.out for rank in range(2)):
        failed = f"a rank did not say that it came to its end: {job.out[-400:]}"
    incidents = [(each["action"], str(each["verdict"]["sentence"])) for each in job.actions("record_incident")]
    started = len(job.events("attempt_started"))
    acted = [f"{action}: {sentence}" for action, sentence in incidents if action != "report"]
    acted += [f"it was started {started} times"] if started > 1 else []
    said = [sentence for action, sentence in incidents if action == "report"]
    return Went(tuple(acted), tuple(said), failed, bool(job.events("hang_suspected")))


def assert_was_left_alone(wait: str, job: Job) -> None:
    """Wait for the job's end, and fail if it was anything but its own."""
    went = how_it_went(job)
    assert not went.problem, f"{wait}: {went.problem}"
    if wait not in SHORT:
        assert went.suspected, f"nobody has waited long for {wait}: this proves nothing"
    if wait in AT_WORK:
        assert not went.said, f"{wait} is no hang: {job.err}"
