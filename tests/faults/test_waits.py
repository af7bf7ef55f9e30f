"""No wait that a job gets through under torchrun is ended: rank 0 waits or works, with default options, and the job goes on.

By default some of each sort of wait; with TEST_WAITS=all all of them; `make soak` has all wait for longer and on a busy machine.
Suspicion needs some 6 s, so 12 s are enough to be taken for a hang. `FAULTS=all` takes all, and 20 s for each.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from left_alone import assert_was_left_alone, missing, waiting
from waits import WAITS

WAIT_S = 20.0 if os.environ.get("FAULTS") == "all" else 12.0
#: So many jobs at a time: most of them only wait.
TOGETHER = 3
SAMPLE = """
    poll_file recursive_lock hidden_end_of_a_pipe
    first_batch slow_download linear_algebra
    save_to_a_slow_place debugger alarm_that_ends_a_wait
""".split()
TRIED = list(WAITS) if "all" in (os.environ.get("FAULTS"), os.environ.get("TEST_WAITS")) else SAMPLE

pytestmark = pytest.mark.timeout(900)


def part(number: int, tried: list[str]) -> list[str]:
    return tried[number :: parts(tried)]


def parts(tried: list[str]) -> int:
    return -(-len(tried) // TOGETHER)


@pytest.mark.parametrize("number", range(parts(TRIED)))
def test_a_wait_that_ends_by_itself_is_left_alone(number: int, tmp_path: Path) -> None:
    waits = part(number, TRIED)
    left_out = {wait: missing(wait) for wait in waits if missing(wait)}
    with ExitStack() as stack:
        jobs = {
            wait: stack.enter_context(waiting(wait, WAIT_S, tmp_path / wait)) for wait in waits if wait not in left_out
        }
        for wait, job in jobs.items():
            assert_was_left_alone(wait, job)
    if left_out:
        pytest.skip("; ".join(f"without {wait}: {reason}" for wait, reason in left_out.items()))


def test_every_wait_is_tried_where_all_are_asked_for() -> None:
    for tried in (list(WAITS), SAMPLE):
        assert sorted(wait for number in range(parts(tried)) for wait in part(number, tried)) == sorted(tried)
    assert len(WAITS) >= 39
    assert set(SAMPLE) <= set(WAITS)
