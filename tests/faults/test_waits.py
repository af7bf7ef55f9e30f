"""No wait that a job gets through under torchrun is ended: rank 0 waits or works, with default options, and the job goes on.

`FAULTS=all` takes 20 s for each wait. Suspicion needs some 6 s, so 12 s are enough to be taken for a hang.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from jobs import Job, running
from waits import WAITS

PROGRAM = str(Path(__file__).with_name("waits.py"))
WAIT_S = 20.0 if os.environ.get("FAULTS") == "all" else 12.0
#: So many jobs at a time: most of them only wait.
TOGETHER = 3
END_S = 400.0
NEEDS = {"retries_of_urllib3": "urllib3", "retries_of_a_hub": "huggingface_hub", "embedding": "sklearn",
         "preparing_data": "datasets", "file_lock": "filelock"}  # fmt: skip
PROGRAMS = {"curl": "curl", "attached": "gdb"}
#: They may be over before anybody has waited for long.
SHORT = frozenset({"one_long_call", "embedding", "compiling", "preparing_data"})
#: These are told on the terminal as what they are, and are no incident.
AT_WORK = frozenset({"slow_answer", "slow_download", "debugger", "save_to_a_slow_place"})

pytestmark = pytest.mark.timeout(900)


def missing(wait: str) -> str:
    """Why a wait cannot be had here; empty if it can."""
    if wait in NEEDS and importlib.util.find_spec(NEEDS[wait]) is None:
        return f"{NEEDS[wait]} is not installed"
    if wait in PROGRAMS and shutil.which(PROGRAMS[wait]) is None:
        return f"{PROGRAMS[wait]} is not installed"
    return ""


def assert_was_left_alone(wait: str, job: Job) -> None:
    assert [event["attempt"] for event in job.events("attempt_started")] == [0], f"{wait} was started again: {job.err}"
    assert all(f"OK {rank} " in job.out for rank in range(2)), f"{wait}: {job.out}"
    acted = [action["action"] for action in job.actions("record_incident") if action["action"] != "report"]
    assert not acted, f"{wait}: {acted}"
    if wait not in SHORT:
        assert job.events("hang_suspected"), f"nobody has waited long for {wait}: this proves nothing"
    if wait in AT_WORK:
        assert not job.actions("record_incident"), f"{wait} is no hang: {job.err}"


def part(number: int) -> list[str]:
    return list(WAITS)[number :: -(-len(WAITS) // TOGETHER)]


@pytest.mark.parametrize("number", range(-(-len(WAITS) // TOGETHER)))
def test_a_wait_that_ends_by_itself_is_left_alone(number: int, tmp_path: Path) -> None:
    left_out = {wait: missing(wait) for wait in part(number) if missing(wait)}
    with ExitStack() as stack:
        jobs: dict[str, Job] = {}
        for wait in part(number):
            if wait not in left_out:
                folder = tmp_path / wait
                folder.mkdir()
                env = {"OMP_NUM_THREADS": "1", "ROBUST_WARM_DAEMON": "off"}
                arguments = ("--nproc-per-node", "2", PROGRAM, wait, f"{WAIT_S:g}")
                jobs[wait] = stack.enter_context(running(folder, *arguments, cwd=folder, env=env))
        for wait, job in jobs.items():
            assert job.finish(END_S) == 0, f"{wait}: {job.err}"
            assert_was_left_alone(wait, job)
    if left_out:
        pytest.skip("; ".join(f"without {wait}: {reason}" for wait, reason in left_out.items()))


def test_every_wait_is_tried() -> None:
    parts = [part(number) for number in range(-(-len(WAITS) // TOGETHER))]
    assert sorted(wait for each in parts for wait in each) == sorted(WAITS)
    assert len(WAITS) >= 39
